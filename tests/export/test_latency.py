"""The latency model and its file: values by hand, what always holds, and every table that must be refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sca_search.errors import SpecError
from sca_search.export.c.source import stamped_steps
from sca_search.export.graph.records import INPUT, Convolution, Graph, Linear
from sca_search.export.latency.model import Calibration, LatencyModel, LayerLatency, latency_model
from sca_search.export.latency.program import kernels_hash, network_hash, nonzeros_at, with_random_trits
from sca_search.export.latency.table import parse_calibration, read_calibration, write_calibration
from tests.support.random_records import Builder

LAYER = LayerLatency("a", 100, (10, 20, 100), (2.0, 4.0, 8.0), ("lists", "lists", "codes"))


def graph_of(outputs: int = 4) -> Graph:
    """A ternary convolution of 18 weights per output, a ternary layer behind it, and a dense one beside them."""
    builder = Builder((2, 6, 5), np.random.default_rng(1))
    first = builder.convolution(INPUT, outputs, (3, 3), "trits")
    return builder.graph([builder.linear(first, 3, "trits"), builder.linear(INPUT, 2, "floats")])


def content_of(graph: Graph, variants: dict[float, tuple[float, list[float]]]) -> dict[str, Any]:
    """A table by sparsity: the time of the whole, and of the first ternary layer, the second, and all else."""
    layers = [layer.name for layer in graph.ternary_layers]
    weights = {layer.name: layer.weight.size for layer in graph.ternary_layers}
    rows = []
    for sparsity, (whole, times) in variants.items():
        steps: list[dict[str, Any]] = []
        for name in stamped_steps(graph):
            time = times[layers.index(name)] if name in layers else times[2] if name == INPUT else 0.0
            steps.append({"step": name, "low_us": time, "spread": 0.001})
            if name in layers:
                count = round((1 - sparsity) * weights[name])
                steps[-1] |= {"kernel": "lists", "weights": weights[name], "nonzeros": count}
        rows.append({"sparsity": sparsity, "low_us": whole, "spread": sparsity / 10, "steps": steps})
    return {
        "format": "sca-search/latency",
        "version": 1,
        "network": network_hash(graph),
        "kernels": kernels_hash(),
        "threads": 1,
        "batch": 1,
        "cpu": "a cpu",
        "compiler": "a compiler",
        "samples": 10,
        "noisy_samples": 3,
        "variants": rows,
    }


USUAL: dict[float, tuple[float, list[float]]] = {0.0: (20.0, [8.0, 6.0, 6.0]), 0.5: (13.0, [4.0, 3.0, 6.0])}


def model_of(variants: dict[float, tuple[float, list[float]]]) -> LatencyModel:
    graph = graph_of()
    return latency_model(parse_calibration(json.dumps(content_of(graph, variants)), "here", graph))


@pytest.mark.parametrize(
    ("nonzeros", "expected"),
    [
        (10, 2.0),
        (20, 4.0),
        (100, 8.0),
        (15, 3.0),
        (60, 6.0),  # halfway between 20 and 100
        (5, 1.0),  # straight on: 0.2 a weight
        (0, 0.0),
        (1000, 8.0),
    ],
)
def test_layer_is_straight_from_point_to_point(nonzeros: float, expected: float) -> None:
    assert LAYER.at(nonzeros) == pytest.approx(expected)


def test_layer_never_takes_less_than_nothing() -> None:
    steep = replace(LAYER, microseconds=(2.0, 8.0, 8.0))  # 0.6 a weight: at 5 it would be -1
    assert steep.at(5) == 0.0


def test_layer_with_one_point_takes_the_same_everywhere() -> None:
    single = LayerLatency("a", 1, (1,), (2.0,), ("lists",))
    assert [single.at(count) for count in (0, 1, 5)] == [2.0, 2.0, 2.0]


def test_prediction_is_the_sum_of_what_is_fixed_and_the_layers() -> None:
    other = LayerLatency("b", 10, (1, 10), (1.0, 10.0), ("lists", "lists"))
    model = LatencyModel(3.0, {"a": LAYER, "b": other}, 0.01, {})
    assert model.predict_us({"a": 15, "b": 4}) == pytest.approx(3.0 + 3.0 + 4.0)
    assert model.range_us({"a": 10, "b": 1}) == pytest.approx((3.0 + 2.0 + 1.0, 3.0 + 8.0 + 10.0))


def test_prediction_wants_every_layer() -> None:
    with pytest.raises(KeyError):
        LatencyModel(3.0, {"a": LAYER}, 0.01, {}).predict_us({"b": 3})


def test_steps_are_scaled_to_the_time_of_the_whole() -> None:
    # The steps sum up to 20 and 10; the wholes are 30 and 20: factors of 1.5 and 2.
    model = model_of({0.0: (30.0, [8.0, 6.0, 6.0]), 0.5: (20.0, [3.0, 3.0, 4.0])})
    first, second = model.layers.values()
    assert first.weights == 4 * 2 * 9
    assert first.nonzeros == (36, 72)
    assert first.microseconds == pytest.approx((6.0, 12.0))
    assert second.microseconds == pytest.approx((6.0, 9.0))
    assert model.fixed_us == pytest.approx((9.0 + 8.0) / 2)  # the median of both
    assert model.spread == pytest.approx(0.05)
    assert model.about["cpu"] == "a cpu"
    assert set(model.about) == {"cpu", "compiler", "kernels", "network", "threads", "batch"}


def test_uniform_sparsity_is_predicted_as_it_was_measured() -> None:
    model = model_of(USUAL)
    for sparsity, (whole, _) in USUAL.items():
        nonzeros = {name: (1 - sparsity) * layer.weights for name, layer in model.layers.items()}
        assert model.predict_us(nonzeros) == pytest.approx(whole, rel=0.01)


def test_time_that_falls_with_more_weights_is_levelled() -> None:
    # By the pool-adjacent-violators rule 5 and 3 become their mean, with factors of 1 everywhere.
    variants = {0.0: (9.0, [3.0, 2.0, 4.0]), 0.5: (11.0, [5.0, 2.0, 4.0]), 0.9: (7.0, [1.0, 2.0, 4.0])}
    first = next(iter(model_of(variants).layers.values()))
    assert first.microseconds == pytest.approx((1.0, 4.0, 4.0))


def test_same_number_of_nonzeros_is_one_point() -> None:
    content = content_of(graph_of(), USUAL)
    for variant in content["variants"]:
        for step in variant["steps"]:
            if "weights" in step:
                step["nonzeros"] = 7
    model = latency_model(parse_calibration(json.dumps(content), "here", graph_of()))
    first = next(iter(model.layers.values()))
    assert first.nonzeros == (7,)
    assert first.microseconds == pytest.approx((6.0,))


TIMES = st.floats(0.01, 1e6)


@settings(max_examples=50, deadline=None)
@given(times=st.lists(TIMES, min_size=8, max_size=8), counts=st.lists(st.floats(0, 80), min_size=2, max_size=2))
def test_more_weights_never_take_less_time(times: list[float], counts: list[float]) -> None:
    model = model_of({0.0: (times[0], times[1:4]), 0.5: (times[4], times[5:8])})
    fewer, more = sorted(counts)
    for layer in model.layers.values():
        assert 0.0 <= layer.at(fewer) <= layer.at(more) * (1 + 1e-12)


@settings(max_examples=25, deadline=None)
@given(times=st.lists(TIMES, min_size=8, max_size=8))
def test_file_gives_back_what_was_written(times: list[float], tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = graph_of()
    variants = {0.0: (times[0], times[1:4]), 0.5: (times[4], times[5:8])}
    given_table = parse_calibration(json.dumps(content_of(graph, variants)), "here", graph)
    path = tmp_path_factory.mktemp("table") / "latency.json"
    write_calibration(path, given_table)
    assert read_calibration(path, graph) == given_table
    assert latency_model(read_calibration(path, graph)) == latency_model(given_table)


def test_table_of_another_processor_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(content_of(graph_of(), USUAL) | {"cpu": "Cortex-A53"}))
    assert latency_model(read_calibration(path, graph_of())).about["cpu"] == "Cortex-A53"


def test_structure_is_hashed_and_weights_are_not() -> None:
    graph = graph_of()
    filled = with_random_trits(graph, nonzeros_at(graph, 0.9), seed=3)
    assert network_hash(filled) == network_hash(graph)
    assert network_hash(graph_of(outputs=5)) != network_hash(graph)
    dense = tuple(
        replace(record, weight=record.weight.astype(np.float32)) if isinstance(record, Convolution) else record
        for record in graph.records
    )
    assert network_hash(replace(graph, records=dense)) != network_hash(graph)


def test_random_trits_have_the_asked_nonzeros() -> None:
    graph = graph_of()
    asked = nonzeros_at(graph, 0.9)
    assert asked == {graph.ternary_layers[0].name: 7, graph.ternary_layers[1].name: 14}  # of 72 and 3 · 4 · 4 · 3
    assert nonzeros_at(graph, 0.9999) == dict.fromkeys(asked, 1)
    filled = with_random_trits(graph, asked)
    for layer in filled.ternary_layers:
        assert layer.weight.size - layer.zeros == asked[layer.name]
        assert set(np.unique(layer.weight)) == {-1, 0, 1}
    dense = [record for record in filled.records if isinstance(record, Linear) and not record.ternary]
    assert all(record is graph.record(record.name) for record in dense)


def variant(content: dict[str, Any], number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = content["variants"][number]
    return found


def layer_step(content: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return next(step for step in variant(content, number)["steps"] if "weights" in step)


BAD: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda c: c.update(format="sca-search/prior"), "must have the format 'sca-search/latency', version 1, got 'sca-s"),
    (lambda c: c.update(version=2), "version 1, got 'sca-search/latency', version 2"),
    (lambda c: c.update(network="0"), "the latency table must be of this study's network, .*, got '0'"),
    (lambda c: c.pop("network"), "must be of this study's network, .*, got None"),
    (lambda c: c.update(kernels="0"), "must be of this version's C kernels, .*, got '0'; calibrate again"),
    (lambda c: c.pop("cpu"), "damaged latency table: cpu: field required"),
    (lambda c: c.update(color=1), "damaged latency table: color: extra inputs are not permitted"),
    (lambda c: c.update(noisy_samples=11), "11 of 10 samples cannot be noisy"),
    (lambda c: c.update(variants=[]), "variants: tuple should have at least 2 items"),
    (lambda c: c["variants"].pop(), "variants: tuple should have at least 2 items"),
    (lambda c: c["variants"].reverse(), r"sparsities of its variants must increase, got \[0.5, 0.0\]"),
    (lambda c: variant(c).update(low_us=0.0), "variants.0.low_us: input should be greater than 0, got 0"),
    (lambda c: variant(c).update(low_us=-1.0), "variants.0.low_us: input should be greater than 0, got -1"),
    (lambda c: variant(c).update(low_us=float("nan")), "variants.0.low_us: .*finite number, got nan"),
    (lambda c: variant(c).update(low_us=float("inf")), "variants.0.low_us: .*finite number, got inf"),
    (lambda c: variant(c).update(low_us="3"), "variants.0.low_us: input should be a valid number, got 3"),
    (lambda c: variant(c).update(spread=-0.1), "variants.0.spread: input should be greater than or equal to 0"),
    (lambda c: variant(c).update(sparsity=1.0), "variants.0.sparsity: input should be less than 1"),
    (lambda c: variant(c)["steps"].pop(), "at sparsity 0 its steps are not those of the network"),
    (lambda c: layer_step(c).update(low_us=-1.0), r"variants.0.steps.\d.low_us: input should be greater than or equal"),
    (lambda c: layer_step(c).update(weights=71), "the layer has 72 ternary weights, got 71"),
    (lambda c: layer_step(c).update(nonzeros=73), "of 72 weights, 73 cannot be non-zeros"),
    (lambda c: layer_step(c).pop("nonzeros"), "of 72 weights, None cannot be non-zeros"),
    (lambda c: layer_step(c).update(nonzeros=0), "nonzeros: input should be greater than or equal to 1"),
    (lambda c: layer_step(c).update(nonzeros=30), r"non-zeros must not increase with sparsity, got \(30, 36\)"),
]


@pytest.mark.parametrize(("spoil", "sentence"), BAD, ids=[sentence[:40] for _, sentence in BAD])
def test_table_that_cannot_be_trusted_is_one_sentence(
    spoil: Callable[[dict[str, Any]], Any], sentence: str, tmp_path: Path
) -> None:
    content = content_of(graph_of(), USUAL)
    spoil(content)
    path = tmp_path / "table.json"
    path.write_text(json.dumps(content))
    with pytest.raises(SpecError, match=sentence) as caught:
        latency_model(read_calibration(path, graph_of()))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "cannot be read as a latency table"),
        (b'{"format": ', "cannot be read as a latency table"),
        (b"\xff\xfe", "cannot be read as a latency table"),
        (b"[1, 2]", "a latency table must be a JSON object, got list"),
        (b"[" * 100_000, "cannot be read as a latency table"),
    ],
)
def test_file_that_is_no_table_is_one_sentence(text: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(text)
    with pytest.raises(SpecError, match=sentence):
        latency_model(read_calibration(path, graph_of()))


def test_missing_and_unreadable_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such latency table"):
        latency_model(read_calibration(tmp_path / "nowhere.json", graph_of()))
    with pytest.raises(SpecError, match="cannot be read as a latency table"):
        latency_model(read_calibration(tmp_path, graph_of()))


def test_record_of_a_table_cannot_be_changed() -> None:
    table = Calibration.model_validate(content_of(graph_of(), USUAL), strict=False)
    with pytest.raises(ValueError, match="frozen"):
        table.cpu = "another"  # type: ignore[misc]

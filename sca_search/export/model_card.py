"""The model card, MODEL.md: what the model is, its metric, its size, how to use each file, how to reproduce it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sca_search.config.names import ACCURACY, format_metric, format_spread
from sca_search.data.input_spec import InputSpec
from sca_search.export.graph.agreement import TOLERANCE
from sca_search.export.graph.records import Graph
from sca_search.export.layout import ONNX, PACKED, PROGRAM, STATE, STUDY_FILE, C
from sca_search.export.metadata import Metadata
from sca_search.export.packed.format import payload_bytes
from sca_search.export.verify import Verification


@dataclass(frozen=True)
class Sizes:
    """Bytes of the ternary weights; `others` are those of the numbers that are always float32."""

    weights: int
    bound: float  # Σ n · (H(s) + 1 - s) / 8 over the layers: positions of zeros, and a sign per non-zero
    packed: int  # in the packed format's code
    others: int

    @property
    def fp32(self) -> int:
        return 4 * self.weights

    @property
    def int8(self) -> int:
        return self.weights

    @property
    def two_bit(self) -> int:
        return -(-self.weights // 4)


def sizes(graph: Graph) -> Sizes:
    """Counted over a graph."""
    layers = graph.ternary_layers
    return Sizes(
        weights=sum(layer.weight.size for layer in layers),
        bound=sum(layer.weight.size * bits_per_weight(layer.zeros / layer.weight.size) for layer in layers) / 8,
        packed=sum(payload_bytes(graph).values()),
        others=4 * _float_count(graph),
    )


def bits_per_weight(sparsity: float) -> float:
    """H(s) + (1 - s): the entropy of a weight that is zero with probability s, its signs even."""
    rest = 1.0 - sparsity
    entropy = -sum(fraction * math.log2(fraction) for fraction in (sparsity, rest) if fraction > 0)
    return entropy + rest


def _float_count(graph: Graph) -> int:
    """Float values of all records."""
    ternary = {layer.name for layer in graph.ternary_layers}
    return sum(
        getattr(record, field).size
        for record in graph.records
        for field in ("weight", "scale", "bias")
        if hasattr(record, field) and not (field == "weight" and record.name in ternary)
    )


def model_card(folder: Path, metadata: Metadata, graph: Graph, verification: Verification) -> str:
    """The card's text."""
    about = metadata.about
    title = f"{about['study']}, trial {about['trial']}" if "study" in about else "A ternary network"
    sections = [
        f"# {title}\n\n{_summary(metadata, graph)}",
        f"## {_title(about)}\n\n{_accuracy(about)}" if "accuracy" in about else "",
        f"## Sparsity\n\n{_sparsity(graph)}",
        f"## Size\n\n{_sizes(folder, graph)}",
        f"## How to use it\n\n{_input(metadata.input)}\n\n{_usage(folder, metadata.input)}",
        f"## Verified\n\n{verification_text(verification, has_classes=metadata.input.kind == 'classes')}",
        f"## How to reproduce it\n\n{_repeat(about)}" if "study" in about else "",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def verification_text(verification: Verification, *, has_classes: bool = True) -> str:
    """The table of checks in Markdown."""
    verdict = "Everything agrees" if verification.holds else "**Something differs: do not use these files**"
    rows = [[check.file, check.what, check.found, VERDICTS[check.holds]] for check in verification.checks]
    classes = ", and classes may differ only where a tie explains it" if has_classes else ""
    return (
        f"{verdict}. Compared with {verification.described}. The difference of answers a from the reference b is "
        f"max|a-b| / max|b|; the limit is {TOLERANCE:g}{classes}.\n\n"
        f"{markdown_table(['file', 'check', 'found', 'holds'], rows)}"
    )


VERDICTS = {True: "yes", False: "NO", None: "not checked"}


def _summary(metadata: Metadata, graph: Graph) -> str:
    weights = sum(layer.weight.size for layer in graph.ternary_layers)
    text = (
        f"{_what(metadata.input)}, "
        f"with {weights:,} weights that are only -1, 0 and +1, {graph.sparsity:.3%} of them 0. Found by sca-search."
    )
    return text + (f"\n\nGoal of the study: {metadata.about['goal']}." if "goal" in metadata.about else "")


_ANSWERS = {"classes": "classes", "multi-label": "labels", "regression": "values"}


def _what(spec: InputSpec) -> str:
    is_image = spec.is_image
    if spec.kind == "classes":
        name = "An image classifier" if is_image else "A classifier"
    else:
        name = "A network for images" if is_image else "A network"
    return f"{name}, {_spelled(spec.input_shape)} to {len(spec.classes)} {_ANSWERS[spec.kind]}"


def _title(about: Any) -> str:
    metric = str(about.get("metric", ACCURACY))
    return metric.capitalize() if metric == ACCURACY else metric


def _accuracy(about: Any) -> str:
    def value(name: str) -> str:
        return format_metric(about.get("metric", ACCURACY), about[name])

    examples = about.get("examples", "images")
    spread = format_spread(about.get("metric", ACCURACY), about.get("accuracy_spread", 0.0))
    lines = [f"- Validation: {value('accuracy')} for this very model"]
    if about.get("seeds", 1) > 1:
        lines.append(
            f"- Over {about['seeds']} seeds: {value('accuracy_mean')} ± {spread} "
            "(mean and standard deviation; what to expect of another training)"
        )
    else:
        lines.append("- One seed: no spread is known; as the best of many trials, the figure is optimistic")
    if about.get("test_metric") is not None:
        lines.append(f"- Test: {value('test_metric')} on {about['test_images']} {examples}, read once")
    if about.get("dense_accuracy") is not None:
        lines.append(f"- The dense network it started from: {value('dense_accuracy')} on validation")
    return "\n".join(lines)


def _sparsity(graph: Graph) -> str:
    layers = graph.ternary_layers
    rows = [
        [layer.name, f"{layer.weight.size:,}", f"{layer.zeros:,}", f"{layer.zeros / layer.weight.size:.3%}"]
        for layer in layers
    ]
    total = [sum(layer.weight.size for layer in layers), sum(layer.zeros for layer in layers)]
    rows.append(["all", f"{total[0]:,}", f"{total[1]:,}", f"{graph.sparsity:.3%}"])
    return markdown_table(["ternary layer", "weights", "zeros", "sparsity"], rows)


def _sizes(folder: Path, graph: Graph) -> str:
    size = sizes(graph)
    kinds = [
        ("float32", size.fp32),
        ("int8", size.int8),
        ("2 bits per weight", size.two_bit),
        ("packed", size.packed),
        ("lower bound, H(s) + 1 - s bits per weight", math.ceil(size.bound)),
    ]
    rows = [[name, f"{count:,}", f"{count + size.others:,}"] for name, count in kinds]
    table = markdown_table(["stored as", "ternary weights, bytes", "with all other numbers, bytes"], rows)
    files = [path for path in (PACKED, C, ONNX, PROGRAM, STATE) if (folder / path).exists()]
    listed = "\n".join(f"- `{path}`: {(folder / path).stat().st_size:,} bytes" for path in files)
    return f"{table}\n\n{listed}"


def _input(spec: InputSpec) -> str:
    mean, std = (
        spec.mean or (0.0,) * spec.input_shape[0],
        spec.std or (1.0,) * spec.input_shape[0],
    )
    is_image = spec.is_image
    what, one, axes = (
        ("Images", "image", "channels, height, width") if is_image else ("Inputs", "input", "channels first")
    )
    return (
        f"{what} are float32, {_spelled(spec.input_shape)} ({axes}), as the data set gives them; "
        f"all files but `{STATE}` normalise them themselves, ({one} - mean) / std with mean {_numbers(mean)} and std "
        f"{_numbers(std)} per channel. {_answer(spec)}"
    )


def _answer(spec: InputSpec) -> str:
    names = f"{', '.join(map(_code, spec.classes[:12]))}{' …' if len(spec.classes) > 12 else ''}"
    if spec.kind == "classes":
        return f"The answer is a logit for each of the classes {names}."
    if spec.kind == "multi-label":
        return f"The answer is a logit for each of the labels {names}: above 0 if the label applies."
    text = f"The answer is a number for each of {names}, in the units of the data set."
    if not spec.target_std:
        return text
    mean, std = _numbers(spec.target_mean), _numbers(spec.target_std)
    return f"{text} That of `{STATE}` alone is standardised: its units are answer · {std} + {mean}."


def _usage(folder: Path, spec: InputSpec) -> str:
    size = ", ".join(map(str, spec.input_shape))
    parts = {
        PACKED: f'```python\nimport sca_search, torch\n\nmodel = sca_search.load("{PACKED}")\n'
        f"logits = model(torch.rand(1, {size}))\nprint(model.class_names[logits.argmax()])\n```"
        if spec.kind == "classes"
        else f'```python\nimport sca_search, torch\n\nmodel = sca_search.load("{PACKED}")\n'
        f"answers = model(torch.rand(1, {size}))\nprint(dict(zip(model.class_names, answers[0].tolist())))\n```",
        C: "```sh\nmake -C c check                                      # compiles it and runs its self-test\n"
        "make -C c && c/model < images.f32 > logits.f32      # float32, image by image\n```\n\n"
        '```c\n#include "model.h"\n\nmodel_predict(image, logits);              /* one image; no heap */\n```\n\n'
        '```python\nimport numpy, sca_search\n\nmodel = sca_search.compile(".")  # the C source, from Python\n'
        f"logits = model(numpy.random.rand({size}))\n```",
        ONNX: f'```python\nimport numpy, onnxruntime\n\nsession = onnxruntime.InferenceSession("{ONNX}")\n'
        f"images = numpy.random.rand(1, {size}).astype(numpy.float32)\n"
        "(logits,) = session.run(None, {session.get_inputs()[0].name: images})\n```",
        PROGRAM: "A .pt2 may run code when it is loaded: load only one that you wrote or trust.\n\n"
        f'```python\nimport torch\n\nmodel = torch.export.load("{PROGRAM}").module()\n```',
        STATE: "The state dict of the network's own class, trits as int8; it takes normalised inputs.\n\n"
        f'```python\nfrom safetensors.torch import load_file\n\nnetwork.load_state_dict(load_file("{STATE}"))\n```',
    }
    return "\n\n".join(f"### {file}\n\n{text}" for file, text in parts.items() if (folder / file).exists())


def _repeat(about: Any) -> str:
    return (
        f"`{STUDY_FILE}` beside this card is the whole study.\n\n"
        f"```sh\nsca-search {STUDY_FILE}\nsca-search export RUN --trial {about['trial']}\n"
        "sca-search verify .                        # in this folder: checks these files again\n```\n\n"
        f"The same seed, machine, thread count and versions give the same trial: {_versions(about)}."
    )


def _versions(about: Any) -> str:
    return ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())


def _spelled(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _code(name: str) -> str:
    return f"`{name}`"

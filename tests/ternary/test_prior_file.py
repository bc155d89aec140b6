"""A study's prior as a file: it reads back what was written, and refuses everything else in one sentence."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sca_search.errors import SpecError
from sca_search.ternary.allocation import LayerShape
from sca_search.ternary.prior_correction import Observation
from sca_search.ternary.prior_file import read_prior, write_prior

LAYERS = (LayerShape("conv2", (32, 16, 5, 5)), LayerShape("fc1", (64, 128)))
SEEN = [Observation("conv2", 0.5, 0.49, 10.0), Observation("fc1", 0.9, 1.0, 0.0)]

quick = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
shares = st.floats(0, 1)
observed = st.builds(Observation, st.sampled_from(["conv2", "fc1"]), shares, shares, st.floats(0, 1e12))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "prior.json"


def content(**changes):
    """What a good file holds, with some of it changed."""
    good = {
        "format": "sca-search/prior",
        "version": 1,
        "form": "paper",
        "layers": {"conv2": [32, 16, 5, 5], "fc1": [64, 128]},
        "observations": [{"layer": "conv2", "asked": 0.5, "reached": 0.49, "strength": 10.0}],
    }
    return good | changes


def refusal(path, form="paper", layers=LAYERS):
    """The sentence that a file is refused with."""
    with pytest.raises(SpecError) as caught:
        read_prior(path, form, layers)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert "\n" not in sentence
    return sentence


@quick
@given(st.lists(observed, max_size=5), st.sampled_from(["paper", "sharpened", "straight-through"]))
def test_what_is_written_reads_back(path, observations, form):
    write_prior(path, form, LAYERS, observations)
    assert read_prior(path, form, LAYERS) == observations


def test_file_is_the_documented_json(path):
    write_prior(path, "paper", LAYERS, SEEN[:1])
    assert json.loads(path.read_text()) == content()


def test_a_file_written_by_hand_is_read(path):
    path.write_text(json.dumps(content()))
    assert read_prior(path, "paper", LAYERS) == SEEN[:1]


def test_a_new_file_replaces_the_old_one_and_leaves_nothing_beside(path):
    write_prior(path, "paper", LAYERS, SEEN)
    write_prior(path, "paper", LAYERS, SEEN[1:])
    assert read_prior(path, "paper", LAYERS) == SEEN[1:]
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_file_is_rejected(path):
    assert refusal(path) == f"{path}: there is no such prior file"


def test_a_folder_is_rejected(tmp_path):
    assert "cannot be read as a prior file" in refusal(tmp_path)


@pytest.mark.parametrize(
    "raw", [b"", b"not json", b'{"format": "sca-search/prior"', b"\xff\xfe\x00"], ids=["empty", "text", "cut", "bytes"]
)
def test_what_is_no_json_is_rejected(path, raw):
    path.write_bytes(raw)
    assert "cannot be read as a prior file" in refusal(path)


@pytest.mark.parametrize(("value", "kind"), [([1, 2], "list"), ("prior", "str"), (3, "int"), (None, "NoneType")])
def test_json_that_is_no_object_is_rejected(path, value, kind):
    path.write_text(json.dumps(value))
    assert refusal(path) == f"{path}: a prior must be a JSON object, got {kind}"


@pytest.mark.parametrize(
    ("changes", "given_words"),
    [
        ({"format": "sca-search/checkpoint"}, "'sca-search/checkpoint', version 1"),
        ({"format": None}, "None, version 1"),
        ({"version": 2}, "'sca-search/prior', version 2"),
        ({"version": "1"}, "'sca-search/prior', version '1'"),
    ],
)
def test_another_format_or_version_is_rejected(path, changes, given_words):
    path.write_text(json.dumps(content(**changes)))
    assert refusal(path) == (f"{path}: a prior must have the format 'sca-search/prior', version 1, got {given_words}")


def test_a_prior_of_another_form_is_rejected(path):
    write_prior(path, "sharpened", LAYERS, SEEN)
    assert refusal(path) == f"{path}: the prior must be of this study's form, paper, got 'sharpened'"


@pytest.mark.parametrize(
    "layers",
    [
        LAYERS[:1],
        (LAYERS[0], LayerShape("fc2", (64, 128))),
        (LAYERS[0], LayerShape("fc1", (128, 64))),
        (*LAYERS, LayerShape("fc2", (64, 10))),
    ],
    ids=["fewer", "renamed", "reshaped", "more"],
)
def test_a_prior_of_other_layers_is_rejected_with_both(path, layers):
    write_prior(path, "paper", layers, ())
    sentence = refusal(path)
    assert "this study's layers, conv2 32×16×5×5, fc1 64×128, got conv2 32×16×5×5" in sentence


@pytest.mark.parametrize("layers", [None, [], "conv2", {"conv2": 3}])
def test_layers_that_are_none_are_rejected(path, layers):
    path.write_text(json.dumps(content(layers=layers)))
    assert "the prior must be of this study's layers" in refusal(path)


GOOD = {"layer": "conv2", "asked": 0.5, "reached": 0.5, "strength": 1.0}


@pytest.mark.parametrize(
    "observation",
    [
        *({key: value for key, value in GOOD.items() if key != missing} for missing in GOOD),
        *(GOOD | {key: "half"} for key in GOOD),
        *(GOOD | {key: None} for key in GOOD),
        *(GOOD | {key: math.nan} for key in ("asked", "reached", "strength")),
        *(GOOD | {key: math.inf} for key in ("asked", "reached", "strength")),
        *(GOOD | {key: -0.01} for key in ("asked", "reached", "strength")),
        *(GOOD | {key: 1.01} for key in ("asked", "reached")),
        GOOD | {"layer": "fc9"},
        GOOD | {"layer": ["conv2"]},
        [0.5, 0.5, 1.0],
        "conv2",
        None,
    ],
    ids=str,
)
def test_a_damaged_observation_is_rejected(path, observation):
    path.write_text(json.dumps(content(observations=[GOOD, observation])))
    assert "is a damaged prior, an observation is invalid: " in refusal(path)


@pytest.mark.parametrize("observations", [None, 3, "all", {"conv2": GOOD}])
def test_observations_that_are_no_list_are_rejected(path, observations):
    path.write_text(json.dumps(content(observations=observations)))
    assert "is a damaged prior" in refusal(path)


def test_a_file_without_observations_is_rejected(path):
    whole = content()
    del whole["observations"]
    path.write_text(json.dumps(whole))
    assert "is a damaged prior" in refusal(path)


# The command


def digits_prior(form="sharpened", **changes):
    """A prior as a study of the small LeNet on the digits would leave it."""
    layers = {"conv2": [32, 16, 5, 5], "fc1": [64, 128]}
    return json.dumps(content(form=form, layers=layers) | changes)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "given.json: there is no such prior file"),
        ("not json", "given.json: cannot be read as a prior file"),
        (digits_prior(form="paper"), "given.json: the prior must be of this study's form, sharpened, got 'paper'"),
        (digits_prior(observations=[GOOD | {"asked": 2}]), "given.json: is a damaged prior"),
    ],
    ids=["missing", "text", "form", "observation"],
)
def test_command_rejects_a_bad_prior_before_anything_is_written(run, text, sentence):
    if text is not None:
        Path("given.json").write_text(text)
    outcome = run("--prior", "given.json", "--trials", "1")
    assert outcome.returncode == 2
    assert sentence in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1
    assert not Path("runs").exists()


def test_command_takes_a_good_prior_in_a_dry_run(run):
    Path("given.json").write_text(digits_prior())
    assert run("--prior", "given.json", "--dry-run").returncode == 0


def test_numbers_beyond_all_bounds_and_endless_brackets_are_rejected(path):
    observation = '{"layer": "conv2", "asked": 0.5, "reached": 0.5, "strength": ' + "9" * 400 + "}"
    path.write_text(json.dumps(content(observations=[])).replace("[]", f"[{observation}]"))
    assert "damaged prior" in refusal(path)
    path.write_text("[" * 100_000)
    assert "cannot be read as a prior file" in refusal(path)


@pytest.mark.parametrize("given", ["0.5", True, None, [0.5]])
def test_what_only_looks_like_a_number_is_rejected(path, given):
    entry = {"layer": "conv2", "asked": given, "reached": 0.5, "strength": 1.0}
    path.write_text(json.dumps(content(observations=[entry])))
    assert "damaged prior" in refusal(path)

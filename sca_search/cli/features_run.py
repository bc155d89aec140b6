"""From a run folder to the feature maps of one of its trials, beside the dense network's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from sca_search.errors import RunError
from sca_search.export.run import built, trial_row
from sca_search.export.state_dict import load_plain
from sca_search.models.weights import TEACHER_LOGITS
from sca_search.runs.candidates import FEATURES, best_of, records_of
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import limits_of
from sca_search.system.files import write_json_atomic
from sca_search.training.evaluate import EVALUATION_BATCH
from sca_search.training.features import compare_features
from sca_search.training.task import BY_NAME


def features_run(path: Path, trial: int | None, say: Callable[[str], None]) -> tuple[int, dict[str, Any]]:
    """Compares a trial, by default the chosen one, with the dense network; keeps what it found beside the trial."""
    run = RunFolder(path)
    spec = run.spec()
    row = trial_row(run, spec, trial)
    number = int(row["candidate"])
    best = best_of(records_of(run, number), limits_of(spec.goal))
    state, layers, _ = load_plain(best["folder"] / "model.safetensors")
    dense = dense_state(run)
    say("reading the data")
    data = BY_NAME.load(spec)
    if not data.input.is_image:
        raise RunError(
            f"{run.path}: feature maps are of images, inputs of {data.name} have the shape {data.input_shape}"
        )
    say("comparing the networks")
    one, other = (
        built(spec, data.input, weights, where) for weights, where in ((dense, run.path), (state, best["folder"]))
    )
    found = compare_features(one, other, data.val.batches(EVALUATION_BATCH), data.name_of, layers).as_json()
    write_json_atomic(run.candidate(number) / FEATURES, found)
    return int(row["trial"]), found


def dense_state(run: RunFolder) -> dict[str, Any]:
    """The dense network's weights, as the study left them."""
    try:
        state = load_file(run.dense_file)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{run.dense_file} cannot be read: {error}") from error
    state.pop(TEACHER_LOGITS, None)
    return state

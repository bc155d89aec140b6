"""The documents that `--json` prints, one per command; docs/commands.md lists the keys."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sca_search.config.study import StudySpec
from sca_search.runs.candidates import read_json
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import aim_of, chosen_trial, planned_sparsities
from sca_search.runs.trials import pareto_front, read_csv

if TYPE_CHECKING:  # they import torch, which `show` does not need
    from sca_search.export.check import CheckReport
    from sca_search.export.folder import Exported
    from sca_search.export.verify import Verification
    from sca_search.training.task import Task


def study_answer(run: RunFolder, spec: StudySpec) -> dict[str, Any]:
    """A study, finished or not."""
    has_trials = run.trials_file.exists()
    frame = read_csv(run.trials_file) if has_trials else None
    states = frame["state"].value_counts().to_dict() if frame is not None else {}
    files = {
        "dashboard": run.dashboard_file,
        "log": run.log_file,
        "trials": run.trials_file,
        "front": run.front_file,
        "model": run.chosen_file,
    }
    return {
        "run": run.path,
        "goal": aim_of(spec, run.metric),
        "states": states,
        "chosen": None if frame is None else chosen_trial(frame, spec.goal, run.metric),
        "front": [] if frame is None else pareto_front(frame).to_dict("records"),
        "summary": read_json(run.summary_file, None),
        "files": {name: path for name, path in files.items() if path.exists()},
    }


def plan_answer(spec: StudySpec, task: "Task", alphas: Mapping[str, float], epochs: int) -> dict[str, Any]:
    """The plan of a study (`--dry-run`)."""
    layers = [
        {
            "layer": choice.layer.name,
            "weights": choice.layer.weights,
            "ternary": choice.ternary,
            "why": choice.why,
            "alpha": alphas.get(choice.layer.name),
        }
        for choice in task.choices
    ]
    planned = planned_sparsities(spec)
    return {
        "study": spec.model_dump(mode="json"),
        "goal": aim_of(spec, task.metric.name),
        "layers": layers,
        "planned_sparsities": planned,
        "epochs": epochs,
    }


def export_answer(exported: "Exported") -> dict[str, Any]:
    """An export and its verification."""
    return {
        "folder": exported.folder,
        "files": exported.files,
        "left_out": exported.left_out,
        "verification": verification_answer(exported.verification),
    }


def verification_answer(verification: "Verification") -> dict[str, Any]:
    """Every check; `holds` is null if something could not be checked."""
    return {
        "holds": verification.holds,
        "compared_with": verification.described,
        "checks": [asdict(check) for check in verification.checks],
    }


def check_answer(report: "CheckReport") -> dict[str, Any]:
    """Results of the self-test on other machines."""
    sizes = {
        stored: {"code": size.code, "constants": size.constants, "flash": size.flash, "ram": size.ram}
        for stored, size in report.sizes.items()
    }
    return {"holds": report.holds, "checks": [asdict(check) for check in report.checks], "cortex_m4_bytes": sizes}


def features_answer(picture: Path, trial: int, layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Similarity of the feature maps per layer."""
    keys = ("layer", "ternary", "cka")
    return {"picture": picture, "trial": trial, "layers": [{name: layer[name] for name in keys} for layer in layers]}

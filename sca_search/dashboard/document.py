"""A run as the document of a page: plain JSON values, with every number on the page computed before drawing."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sca_search.config.costs import COST_METRICS
from sca_search.config.names import METHODS, SCA, is_fraction
from sca_search.dashboard import text
from sca_search.dashboard.figures import growth, importance, paper_figures, parallel, prior_view, timeline
from sca_search.dashboard.front import fronts
from sca_search.dashboard.read import CandidateFiles, RunFiles, detailed_trials, read_candidate
from sca_search.dashboard.trial import page_features, trial_detail
from sca_search.runs.goal import limits_of
from sca_search.runs.trials import searched_parameters
from sca_search.system.console import scrub

Document = dict[str, Any]
_MODEL = ("trial", "refit", "reason", "metric", "sparsity")
_COST_KEYS = ("key", "label", "unit", "scale", "remark")
# The first columns of the table, in this order.
_FIRST = ("trial", "state", "metric", "sparsity", "planned_sparsity", *(each.key for each in COST_METRICS), "loss")
# Trials with feature maps on the page: pictures are large, and a page should fit in an e-mail.
MAX_PICTURED = 6


def study_document(files: RunFiles) -> Document:
    """Everything that the page shows about one run."""
    rows = files.rows
    chosen = None if files.choice is None else files.choice.trial
    detailed = [*detailed_trials(files.frame), *([] if chosen is None else [chosen])]
    candidates = _candidates(files, sorted(set(detailed)))
    names = searched_parameters(files.frame)
    ranked = importance(rows, names)
    grown = growth(files.frame, files.dense_metric, files.metric)
    records = {trial: each.records[0] for trial, each in candidates.items()}
    prior = prior_view(files.closed_form, records, is_planned=files.spec.plans_sparsity)
    trust = " --trust" if files.spec.references else ""
    paper = paper_figures(files.spec.data.name, files.spec.model.name)
    document = {
        "name": files.run.path.resolve().name,
        "lead": text.lead(files, rows),
        "status": text.status(text.state_of(files), files.now),
        "tiles": text.tiles(files, rows),
        "chosen": chosen,
        "model": files.model and {name: files.model.get(name) for name in _MODEL},
        "dense_metric": files.dense_metric,
        "method": {"name": files.spec.search.method, "weights": METHODS[files.spec.search.method].weights},
        "metric": {"name": files.metric, "is_fraction": is_fraction(files.metric)},
        "goal": {"metric": files.spec.goal.min_accuracy, **_goals(files)},
        "costs": [{name: getattr(each, name) for name in _COST_KEYS} for each in COST_METRICS],
        "fronts": _fronts(files, rows),
        "paper": paper and asdict(paper),
        "table": _table(files, names),
        "details": _details(files, candidates),
        "prior": prior | {"headline": text.prior_headline(prior["drift"])},
        "timeline": timeline(rows),
        "growth": grown | {"headline": text.growth_headline(grown["area"])},
        "importance": {"ranked": ranked, "headline": text.importance_headline(ranked)},
        "parallel": parallel(rows, names, ranked),
        "sensitivity": sensitivity(files.sensitivity),
        "setup": _setup(files),
        "command": f"sca-search export {shlex.quote(str(files.run.path))}{trust} --trial",
    }
    plain: Document = compact(document)
    return plain


def one_detail(files: RunFiles, trial: int) -> Document | None:
    """The details of a trial that are not on the page."""
    found = _candidates(files, [trial])
    return compact(_details(files, found)[str(trial)]) if found else None


def compact(value: Any) -> Any:
    """The value for JSON: floats with six digits, which is more than a figure shows; NaN and infinity as null."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): compact(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [compact(each) for each in value]
    return value.item() if hasattr(value, "item") else value


def sensitivity(costs: Sequence[Any]) -> Document | None:
    """Validation loss increase when only one layer is ternarized: one row per layer, one column per sparsity."""
    if not costs:
        return None
    layers = list(dict.fromkeys(str(cost["layer"]) for cost in costs))
    sparsities = sorted({float(cost["sparsity"]) for cost in costs})
    losses = {(str(cost["layer"]), float(cost["sparsity"])): float(cost["loss"]) for cost in costs}
    table = [[losses.get((layer, sparsity)) for sparsity in sparsities] for layer in layers]
    worst = max(layers, key=lambda layer: max(loss for (name, _), loss in losses.items() if name == layer))
    return {"layers": layers, "sparsity": sparsities, "loss": table, "headline": f"{worst} is the most sensitive layer"}


def _candidates(files: RunFiles, trials: Sequence[int]) -> dict[int, CandidateFiles]:
    if "candidate" not in files.frame:
        return {}
    complete = files.frame[files.frame["state"] == "complete"]
    numbers = dict(zip(complete["trial"], complete["candidate"], strict=True))
    found = {trial: read_candidate(files.run, int(numbers[trial])) for trial in trials if trial in numbers}
    return {trial: each for trial, each in found.items() if each is not None}


def _details(files: RunFiles, candidates: dict[int, CandidateFiles]) -> dict[str, Document]:
    rows = {row["trial"]: row for row in files.rows}
    pictured = [trial for trial, each in candidates.items() if each.features][-MAX_PICTURED:]
    return {
        str(trial): trial_detail(each, rows[trial], files.spec, files.metric)
        | {"features": page_features(each.features) if trial in pictured else None}
        for trial, each in candidates.items()
    }


def _fronts(files: RunFiles, rows: list[dict[str, Any]]) -> list[Document]:
    levels = [] if files.dense_metric is None else [files.dense_metric]
    found = fronts(files.frame, levels, _goals(files), files.metric)
    return [
        asdict(front) | {"headline": text.front_headline(front, rows, files.dense_metric, files.metric)}
        for front in found
    ]


def _goals(files: RunFiles) -> dict[str, float]:
    """Value of the goal per measure: the target sparsity and the budgets."""
    target = files.spec.goal.target_sparsity
    return limits_of(files.spec.goal) | ({} if target is None else {"sparsity": target})


def _table(files: RunFiles, names: list[str]) -> Document:
    known = [str(name) for name in files.frame.columns]
    others = [name for name in known if name not in {*_FIRST, *names}]
    columns = [*(name for name in _FIRST if name in known), *others, *names]
    shown = [name for name in columns if name == "state" or not files.frame[name].replace("", None).isna().all()]
    rows = [[row.get(name) for name in shown] for row in files.rows]
    return {"columns": shown, "searched": [name for name in names if name in shown], "rows": rows}


def _setup(files: RunFiles) -> Document:
    spec, method = files.spec, files.spec.search.method
    return {
        "spec": spec.to_toml(),
        "overview": [
            ("Data", spec.data.name),
            ("Network", spec.model.label),
            ("Method", f"{method}, weights {METHODS[method].weights}"),
            *([("Form", spec.search.form)] if method == SCA else []),
            ("Seed", str(spec.seed)),
            *((name.capitalize(), str(value)) for name, value in files.about.get("machine", {}).items()),
        ],
        "versions": files.about.get("versions") or files.summary.get("versions") or {},
        "commands": [scrub(str(each.get("command", ""))) for each in files.about.get("commands", ())],
    }

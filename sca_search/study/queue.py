"""The study's trials where Optuna keeps them: the queue of waiting ones, promotions, and all of them as rows.

The plan is a queue of waiting trials in the study's own storage, one a candidate, each with its planned sparsity where
that is known ahead: workers take the next, one whose worker died is put back, and a finished study goes on when more
are queued. A candidate may so have several trials; it counts once, as the one that is complete, else as the newest.
"""

import contextlib
import json
from collections.abc import Callable
from datetime import UTC
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, proxy

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState
from pydantic import ValidationError

from sca_search.config.load import differences
from sca_search.config.storage_url import Shared
from sca_search.config.study import StudySpec
from sca_search.errors import RunError
from sca_search.runs.folder import RunFolder, joined_run, require_joinable
from sca_search.runs.goal import planned_ahead
from sca_search.runs.integrity import damage_refused, require_sound
from sca_search.runs.log import logger
from sca_search.runs.trials import FACTS, PARAM, PREDICTED, RUNG, trial_frame
from sca_search.study.halving import RungScore, promoted, rung_epochs
from sca_search.study.heartbeat import OWNER
from sca_search.study.sampler import INNER, PlannedSampler
from sca_search.study.seen import Seen
from sca_search.study.space import Space
from sca_search.study.storage import open_storage, queue_locked, storage_errors, storage_of
from sca_search.ternary.prior_correction import Observation

SPEC = "spec"
_SEEN: WeakKeyDictionary[optuna.Study, Seen] = WeakKeyDictionary()
_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.FAIL: "failed",
    TrialState.PRUNED: "paused",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}
# What a trial tells of itself beside its two objectives.
_FACTS = {"loss", "soft_metric", "rounded_metric", "moved_share", "reason", *FACTS}
# What a candidate keeps when it is put back.
_KEPT = {"candidate", "planned_sparsity", "split", "asked", "checkpoint", "kept"}
# Of a trial whose candidate was being trained when it was cut short.
_GOES_ON = "goes_on"
# A candidate whose workers died so often without coming any further is what they die of: of its memory, mostly.
MOST_DEATHS = 3


def join(spec: StudySpec, shared: Shared) -> RunFolder:
    """This machine's folder of a shared study. That the database can be used and holds no other study of this name is
    known before anything is written or trained."""
    run = RunFolder(spec.out / (spec.name or spec.base_name), shared)
    require_joinable(run, spec)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with contextlib.closing(open_storage(run, at_once=True)) as storage, storage_errors(run):
        study = optuna.create_study(
            study_name=run.study_name, storage=storage, directions=["maximize", "maximize"], load_if_exists=True
        )
        _agree(study, spec)
    return joined_run(spec, shared)


def open_study(run: RunFolder, space: Space, stop_requested: Callable[[], bool] = lambda: False) -> optuna.Study:
    """The run's study, made where it does not exist; a shared one must be of the same spec."""
    spec = space.spec
    sampler = PlannedSampler(spec.seed, space.first_guess(), INNER[spec.search.sampler])
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if run.shared is None:
        require_sound(run.path / "study.db")
    storage = open_storage(run, stop_requested)
    with storage_errors(run), damage_refused(run.path, "opened"):
        study = optuna.create_study(
            study_name=run.study_name,
            storage=storage,
            directions=["maximize", "maximize"],
            sampler=sampler,
            load_if_exists=True,
        )
        if run.shared is not None:
            _agree(study, spec)
        trial_frame(rows(study))  # checks every trial before another is trained
        observations(study)
    # Optuna takes them in the order of the queue; there is no other place to say otherwise.
    study._pop_waiting_trial_id = partial(_taken, proxy(study))  # type: ignore[method-assign]
    return study


def _taken(study: optuna.Study) -> int | None:
    """The waiting trial that is this worker's from now on: what was cut short goes on before anything is begun."""
    storage = study._storage
    for trial in sorted(_in_state(study, TrialState.WAITING), key=lambda trial: _GOES_ON not in trial.user_attrs):
        with contextlib.suppress(UpdateFinishedTrialError):
            if storage.set_trial_state_values(trial._trial_id, state=TrialState.RUNNING):
                return trial._trial_id
    return None


def _agree(study: optuna.Study, spec: StudySpec) -> None:
    """Leaves the spec with the study; who joins must have the same."""
    with queue_locked(study):
        if SPEC not in study.user_attrs:
            study.set_user_attr(SPEC, json.loads(spec.model_dump_json(exclude_none=True, exclude={"out", "name"})))
            return
    if changed := differences(spec, shared_spec(study)):
        raise RunError(
            f"--storage holds another study named {study.study_name!r}, it differs in {', '.join(changed)}; choose "
            "another --name"
        )


def shared_spec(study: optuna.Study) -> StudySpec:
    """What the machines of a shared study have agreed on."""
    given = study.user_attrs.get(SPEC)
    if not isinstance(given, dict):
        raise RunError(f"--storage: {study.study_name!r} is no study of sca-search's")
    try:
        return StudySpec.model_validate(given | {"name": study.study_name})
    except ValidationError as error:  # somebody else may have written it
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise RunError(
            f"--storage: the study {study.study_name!r} cannot be used, its {where} is none of ours"
        ) from error


def fill_queue(study: optuna.Study, space: Space, *, is_alone: bool = True) -> int:
    """Queues what is missing of the spec's trials, and says how many wait now.

    Who is alone with the study holds the run's lock, so that a trial still marked as running belongs to a process that
    is gone; else its heart tells.
    """
    for trial in _in_state(study, TrialState.RUNNING) if is_alone else ():
        take_back(study, trial, counts=False)
    with queue_locked(study):
        known = {trial.user_attrs["candidate"] for trial in study.get_trials(deepcopy=False)}
        first = space.first_guesses(lambda candidate: planned_ahead(space.spec.goal, candidate))
        for candidate in range(space.spec.search.trials):
            if candidate not in known:
                # The first ones are known guesses; what is not fixed here is sampled when the trial starts.
                study.enqueue_trial(first.get(candidate, {}), user_attrs=_queued(space, candidate))
        if space.spec.search.keep < 1.0:
            _promote(study, space.spec)  # a process may have died before it did
    return len(_in_state(study, TrialState.WAITING))


def queue_another(study: optuna.Study, space: Space) -> None:
    """One more trial within the goal's limits, beyond those that the spec asks for, unless one is there."""
    with queue_locked(study):
        trials = study.get_trials(deepcopy=False)
        if not any(trial.state in {TrialState.WAITING, TrialState.RUNNING} for trial in trials):
            number = max(trial.user_attrs["candidate"] for trial in trials) + 1
            study.enqueue_trial(space.first_guess(), user_attrs={"candidate": number})


def _queued(space: Space, candidate: int) -> dict[str, float]:
    planned = planned_ahead(space.spec.goal, candidate) if space.spec.plans_sparsity else None
    if planned is None:
        return {"candidate": candidate}
    return {"candidate": candidate, "planned_sparsity": space.possible(planned)}


def has_waiting(study: optuna.Study) -> bool:
    """Whether a trial waits to be run."""
    return bool(_in_state(study, TrialState.WAITING))


def is_running(study: optuna.Study) -> bool:
    """Whether somebody trains, so that a trial may have to be put back."""
    return bool(_in_state(study, TrialState.RUNNING))


def _in_state(study: optuna.Study, state: TrialState) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(state,))


def promote(study: optuna.Study, spec: StudySpec) -> int:
    """Queues the paused candidates that belong to the best of their rung by now; says how many."""
    if spec.search.keep == 1.0:
        return 0
    with queue_locked(study):  # two workers that end at once would queue the same candidate
        return _promote(study, spec)


def _promote(study: optuna.Study, spec: StudySpec) -> int:
    trials = _newest(study)
    paused = [trial for trial in trials if trial.state == TrialState.PRUNED]
    promotions = 0
    for epoch in rung_epochs(spec.search.rungs, spec.train.epochs):
        here = [trial for trial in paused if max(_rungs_of(trial), default=0) == epoch]
        scores = [_rung_score(trial, epoch) for trial in here]
        for candidate in promoted(scores, rung_scores(study, epoch), spec.search.keep):
            _queue_again(study, next(trial for trial in here if trial.user_attrs["candidate"] == candidate))
            promotions += 1
    return promotions


def rung_scores(study: optuna.Study, epoch: int) -> list[RungScore]:
    """Every candidate that has come to a rung."""
    return [_rung_score(trial, epoch) for trial in _newest(study) if epoch in _rungs_of(trial)]


def _rungs_of(trial: FrozenTrial) -> list[int]:
    return [int(name.removeprefix(RUNG)) for name in trial.user_attrs if name.startswith(RUNG)]


def _rung_score(trial: FrozenTrial, epoch: int) -> RungScore:
    attributes = trial.user_attrs
    planned = attributes.get("planned_sparsity", 0.0)  # seeds of a recipe have none, and compare with each other
    return RungScore(attributes["candidate"], planned, attributes[f"{RUNG}{epoch}"])


def _newest(study: optuna.Study) -> list[FrozenTrial]:
    """The trial that counts of each candidate: the others were put back."""
    counting: dict[int, FrozenTrial] = {}
    for trial in study.get_trials(deepcopy=False):
        before = counting.get(trial.user_attrs["candidate"])
        if before is None or before.state != TrialState.COMPLETE:
            counting[trial.user_attrs["candidate"]] = trial
    return sorted(counting.values(), key=lambda trial: trial.number)


def is_surplus(study: optuna.Study, trial: FrozenTrial | optuna.Trial) -> bool:
    """Whether another trial of the same candidate is complete, or was queued later: this one need not be trained."""
    mine = trial.user_attrs["candidate"]
    others = [each for each in study.get_trials(deepcopy=False) if each.user_attrs["candidate"] == mine]
    return any(
        each.state == TrialState.COMPLETE
        or (each.number > trial.number and each.state in {TrialState.WAITING, TrialState.RUNNING})
        for each in others
        if each.number != trial.number
    )


def put_back(study: optuna.Study, trial: FrozenTrial | optuna.Trial) -> None:
    """Queues the candidate of a trial that is about to end again, with the values it had."""
    with queue_locked(study):
        if not is_surplus(study, trial):
            _queue_again(study, trial, {_GOES_ON: True})


def take_back(study: optuna.Study, trial: FrozenTrial, *, counts: bool = True) -> None:
    """Puts the candidate of a worker that has died back, unless the trial has ended meanwhile.

    First it waits again, then the old trial fails: whoever dies in between leaves a trial that is taken back once more.
    """
    storage = storage_of(study)
    with queue_locked(study):
        now = study.get_trials(deepcopy=False)[trial.number]
        if now.state != TrialState.RUNNING:
            return
        deaths = _deaths(now) + counts
        if deaths >= MOST_DEATHS:
            reason = f"its workers died {deaths} times: they were killed, for want of memory perhaps"
            storage.set_trial_user_attr(now._trial_id, "reason", reason)
        elif not is_surplus(study, now):
            counted = {"deaths": deaths, "kept_then": now.user_attrs.get("kept", 0)}
            _queue_again(study, now, {_GOES_ON: True} | (counted if deaths else {}))
        storage.set_trial_state_values(now._trial_id, TrialState.FAIL)
    logger.warning("trial %d was lost with its worker%s", trial.number, "" if deaths >= MOST_DEATHS else ", put back")


def _deaths(trial: FrozenTrial) -> int:
    """How often workers have died with this candidate since it last came further."""
    came_further = trial.user_attrs.get("kept", 0) != trial.user_attrs.get("kept_then", 0)
    return 0 if came_further else int(trial.user_attrs.get("deaths", 0))


def fail(study: optuna.Study, trial: FrozenTrial, reason: str) -> None:
    """Ends a trial whose worker was ended because of it."""
    storage = storage_of(study)
    storage.set_trial_user_attr(trial._trial_id, "reason", reason)
    storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)


def trials_of(study: optuna.Study, owner: str) -> list[FrozenTrial]:
    """What a worker is training."""
    return [trial for trial in _in_state(study, TrialState.RUNNING) if trial.system_attrs.get(OWNER) == owner]


def _queue_again(study: optuna.Study, trial: FrozenTrial | optuna.Trial, more: dict[str, Any] | None = None) -> None:
    kept = {name: value for name, value in trial.user_attrs.items() if name in _KEPT or name.startswith(RUNG)}
    # A trial that was stopped before it sampled has no params yet, only what its queue entry fixed.
    fixed = study.get_trials(deepcopy=False)[trial.number].system_attrs.get("fixed_params", {})
    study.enqueue_trial(fixed | trial.params, user_attrs=kept | (more or {}))


def complete_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Those that were trained to their end, a candidate each."""
    return [trial for trial in _newest(study) if trial.state == TrialState.COMPLETE]


def observations(study: optuna.Study) -> list[Observation]:
    """What the finished trials leave for the prior's correction."""
    left = ((trial.number, trial.user_attrs.get("observed", ())) for trial in complete_trials(study))
    return _SEEN.setdefault(study, Seen()).read(left)


def rows(study: optuna.Study) -> list[dict[str, object]]:
    """The study's trials as rows for `results.trial_frame`; trials that were put back are left out."""
    return [_row(trial) for trial in _newest(study)]


def _row(trial: FrozenTrial) -> dict[str, object]:
    accuracy, sparsity = trial.values or (None, None)
    seconds = trial.duration.total_seconds() if trial.duration else None
    if seconds is not None and seconds < 0:  # the clock was moved back meanwhile
        seconds = None
    told = {
        name: value for name, value in trial.user_attrs.items() if name in _FACTS or name.startswith((RUNG, PREDICTED))
    }
    return {
        "trial": trial.number,
        "state": _STATES[trial.state],
        "planned_sparsity": trial.user_attrs.get("planned_sparsity"),
        "sparsity": sparsity,
        "metric": accuracy,
        "seconds": seconds,
        "started": _started(trial),
        **told,
        **{PARAM + name: value for name, value in trial.params.items()},
    }


def _started(trial: FrozenTrial) -> str | None:
    """Optuna keeps local time without saying so."""
    began = trial.datetime_start
    return began.astimezone(UTC).isoformat(timespec="milliseconds") if began else None

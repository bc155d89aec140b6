"""The trials of a study in Optuna's storage: the queue of waiting ones, promotions, and all trials as rows.

The plan is a queue of waiting trials, one per candidate, with its planned sparsity if that is known in advance. Workers
start the next one, a trial whose worker crashed is requeued, and a finished study continues when more are queued. A
candidate can therefore have several trials; it counts once, by its complete trial or else by its newest.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from types import MappingProxyType
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from pydantic import ValidationError

from sca_search.config.load import differences
from sca_search.config.storage_url import Shared
from sca_search.config.study import StudySpec
from sca_search.errors import RunError
from sca_search.runs.candidates import damage_of
from sca_search.runs.folder import RunFolder, joined_run, require_joinable
from sca_search.runs.goal import planned_ahead
from sca_search.runs.integrity import damage_as_run_error, require_intact_database
from sca_search.runs.log import logger, require_same_inputs
from sca_search.runs.trials import OPTIONAL_COLUMNS, PARAM, PREDICTED, RUNG, trial_frame
from sca_search.study.events import TrialEnded
from sca_search.study.halving import RungScore, promoted, rung_epochs
from sca_search.study.heartbeat import OWNER
from sca_search.study.optuna_internals import QueueStorage, queue_locked, set_queue_order, storage_of, trial_id
from sca_search.study.sampler import INNER, PlannedSampler
from sca_search.study.space import Space
from sca_search.study.storage import open_storage, storage_errors
from sca_search.system.machine import __version__

SPEC, INPUTS = "spec", "inputs"
# The number of a complete trial whose files are lost, and which no longer counts.
REPLACES = "replaces"
_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.FAIL: "failed",
    TrialState.PRUNED: "paused",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}
# User attributes of a trial that are columns of the table.
_COLUMN_ATTRIBUTES = {"loss", "soft_metric", "rounded_metric", "adjusted_fraction", "reason", *OPTIONAL_COLUMNS}
# User attributes that a requeued candidate keeps.
_REQUEUED = {"candidate", "planned_sparsity", "allocation", "checkpoint", "checkpoints", REPLACES}
# Marks the trial of a candidate whose training was interrupted.
_RESUMES = "resumes"
# A candidate whose workers crash this often without a new checkpoint causes the crashes, mostly by its memory.
MAX_CRASHES = 3


class TakenOverError(Exception):
    """Another worker owns or finished this trial; discard our result."""


def join(spec: StudySpec, shared: Shared, inputs: Mapping[str, str] = MappingProxyType({})) -> RunFolder:
    """This machine's run folder of a shared study.

    Before anything is written, it is checked that the database can be used, has no other study of this name, and that
    this machine has the study's data, network and version of this package.
    """
    run = RunFolder(spec.out / (spec.name or spec.base_name), shared)
    require_joinable(run, spec)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with contextlib.closing(open_storage(run, at_once=True)) as storage, storage_errors(run):
        study = create_study(run, storage)
        _check_spec(study, spec)
        _check_inputs(study, {**inputs, "sca-search": __version__})
    return joined_run(spec, shared)


def create_study(run: RunFolder, storage: QueueStorage, sampler: BaseSampler | None = None) -> optuna.Study:
    """The run's study in its storage; created if it does not exist."""
    return optuna.create_study(
        study_name=run.study_name,
        storage=storage,
        directions=["maximize", "maximize"],
        sampler=sampler,
        load_if_exists=True,
    )


def open_study(run: RunFolder, space: Space, stop_requested: Callable[[], bool] = lambda: False) -> optuna.Study:
    """The run's study; created if it does not exist. A shared one must have the same spec."""
    spec = space.spec
    sampler = PlannedSampler(spec.seed, space.first_guess(), INNER[spec.search.sampler])
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if run.shared is None:
        require_intact_database(run.path / "study.db")
    storage = open_storage(run, stop_requested)
    with storage_errors(run), damage_as_run_error(run.path, "opened"):
        study = create_study(run, storage, sampler)
        if run.shared is not None:
            _check_spec(study, spec)
        trial_frame(rows(study))  # invalid trials are reported before another is trained
    set_queue_order(study, _start_next)
    return study


def _start_next(study: optuna.Study) -> int | None:
    """Start the next waiting trial; interrupted ones first."""
    storage = storage_of(study)
    for trial in sorted(in_state(study, TrialState.WAITING), key=lambda trial: _RESUMES not in trial.user_attrs):
        with contextlib.suppress(UpdateFinishedTrialError):
            if storage.set_trial_state_values(trial_id(trial), state=TrialState.RUNNING):
                return trial_id(trial)
    return None


def _check_spec(study: optuna.Study, spec: StudySpec) -> None:
    """Store the spec with a new study; other machines must have the same."""
    with queue_locked(study):
        if SPEC not in study.user_attrs:
            study.set_user_attr(SPEC, json.loads(spec.model_dump_json(exclude_none=True, exclude={"out", "name"})))
            return
    if changed := differences(spec, shared_spec(study)):
        raise RunError(
            f"--storage holds another study named {study.study_name!r}, it differs in {', '.join(changed)}; choose "
            "another --name"
        )


def _check_inputs(study: optuna.Study, inputs: Mapping[str, str]) -> None:
    """Store the inputs of a new study; other machines must have the same."""
    with queue_locked(study):
        known = study.user_attrs.get(INPUTS)
        if known is None:
            study.set_user_attr(INPUTS, dict(inputs))
    require_same_inputs(f"--storage: the study {study.study_name!r}", known, inputs)


def shared_spec(study: optuna.Study) -> StudySpec:
    """The spec that is stored with a shared study."""
    given = study.user_attrs.get(SPEC)
    if not isinstance(given, dict):
        raise RunError(f"--storage: {study.study_name!r} is not a study of sca-search")
    try:
        return StudySpec.model_validate(given | {"name": study.study_name})
    except ValidationError as error:  # another program may have written it
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise RunError(f"--storage: the study {study.study_name!r} cannot be used, its {where} is invalid") from error


def fill_queue(study: optuna.Study, space: Space, *, is_alone: bool = True) -> int:
    """Queue the missing trials of the spec, and return the number that are waiting.

    A process that is alone holds the lock of the run folder, so a trial marked as running belongs to a process that has
    ended. Otherwise heartbeats decide.
    """
    for trial in in_state(study, TrialState.RUNNING) if is_alone else ():
        requeue_lost(study, trial, is_crash=False)
    with queue_locked(study):
        known = {trial.user_attrs["candidate"] for trial in study.get_trials(deepcopy=False)}
        first = space.first_guesses()
        for candidate in range(space.spec.search.trials):
            if candidate not in known:
                planned = planned_ahead(space.spec.goal, candidate) if space.spec.plans_sparsity else None
                plan = {} if planned is None else {"planned_sparsity": space.possible(planned)}
                # The first trials have fixed values; others are sampled when the trial starts.
                study.enqueue_trial(first.get(candidate, {}), user_attrs={"candidate": candidate, **plan})
    promote(study, space.spec)  # a process may have crashed before this
    return len(in_state(study, TrialState.WAITING))


def queue_another(study: optuna.Study, space: Space) -> None:
    """Queue one trial more than the spec requests, unless one is waiting or running."""
    with queue_locked(study):
        trials = study.get_trials(deepcopy=False)
        if not any(trial.state in {TrialState.WAITING, TrialState.RUNNING} for trial in trials):
            number = max(trial.user_attrs["candidate"] for trial in trials) + 1
            study.enqueue_trial(space.first_guess(), user_attrs={"candidate": number})


def has_waiting(study: optuna.Study) -> bool:
    """Whether a trial is waiting."""
    return bool(in_state(study, TrialState.WAITING))


def in_state(study: optuna.Study, state: TrialState) -> list[FrozenTrial]:
    """The trials in one state."""
    return study.get_trials(deepcopy=False, states=(state,))


def promote(study: optuna.Study, spec: StudySpec) -> int:
    """Queue the paused candidates that are now among the best of their rung, and return their number."""
    if spec.search.keep == 1.0:
        return 0
    promotions = 0
    with queue_locked(study):  # two workers at the same time would queue the same candidate
        paused = [trial for trial in _current(study) if trial.state == TrialState.PRUNED]
        for epoch in rung_epochs(spec.search.rungs, spec.train.epochs):
            here = [trial for trial in paused if max(_rungs_of(trial), default=0) == epoch]
            scores = [_rung_score(trial, epoch) for trial in here]
            for candidate in promoted(scores, rung_scores(study, epoch), spec.search.keep):
                _enqueue(study, next(trial for trial in here if trial.user_attrs["candidate"] == candidate))
                promotions += 1
    return promotions


def rung_scores(study: optuna.Study, epoch: int) -> list[RungScore]:
    """The scores of all candidates that reached a rung."""
    return [_rung_score(trial, epoch) for trial in _current(study) if epoch in _rungs_of(trial)]


def _rungs_of(trial: FrozenTrial) -> list[int]:
    return [int(name.removeprefix(RUNG)) for name in trial.user_attrs if name.startswith(RUNG)]


def _rung_score(trial: FrozenTrial, epoch: int) -> RungScore:
    attributes = trial.user_attrs
    planned = attributes.get("planned_sparsity", 0.0)  # seeds of a recipe have none and are comparable
    return RungScore(attributes["candidate"], planned, attributes[f"{RUNG}{epoch}"])


def _current(study: optuna.Study) -> list[FrozenTrial]:
    """The trial that counts per candidate; the others were requeued."""
    counting: dict[int, FrozenTrial] = {}
    for trial in _not_replaced(study):
        before = counting.get(trial.user_attrs["candidate"])
        if before is None or before.state != TrialState.COMPLETE:
            counting[trial.user_attrs["candidate"]] = trial
    return sorted(counting.values(), key=lambda trial: trial.number)


def _not_replaced(study: optuna.Study) -> list[FrozenTrial]:
    trials = study.get_trials(deepcopy=False)
    replaced = {trial.user_attrs.get(REPLACES) for trial in trials}
    return [trial for trial in trials if trial.number not in replaced]


def is_superseded(study: optuna.Study, trial: FrozenTrial | optuna.Trial) -> bool:
    """Whether another trial of the same candidate is complete or was queued later, so this one is not needed."""
    queued = {TrialState.WAITING, TrialState.RUNNING}
    return any(
        each.state == TrialState.COMPLETE or (each.number > trial.number and each.state in queued)
        for each in _not_replaced(study)
        if each.user_attrs["candidate"] == trial.user_attrs["candidate"] and each.number != trial.number
    )


@contextlib.contextmanager
def owned(study: optuna.Study, trial: optuna.Trial) -> Iterator[None]:
    """Hold the queue, so that no other worker can end the trial; TakenOverError if one has."""
    with queue_locked(study):
        state = study.get_trials(deepcopy=False)[trial.number].state
        if state != TrialState.RUNNING or is_superseded(study, trial):
            raise TakenOverError
        yield


def requeue(study: optuna.Study, trial: FrozenTrial | optuna.Trial) -> None:
    """Queue the candidate of an interrupted trial again, with the same values."""
    with queue_locked(study):
        if not is_superseded(study, trial):
            _enqueue(study, trial, {_RESUMES: True})


def requeue_damaged(study: optuna.Study, run: RunFolder) -> list[str]:
    """Queue the candidates of complete trials whose files are missing or damaged again; returns the damages."""
    damages = []
    with queue_locked(study):
        for trial in complete_trials(study):
            if (damage := damage_of(run.candidate(trial.user_attrs["candidate"]))) is not None:
                _enqueue(study, trial, {REPLACES: trial.number})
                damages.append(damage)
    return damages


def requeue_lost(study: optuna.Study, trial: FrozenTrial, *, is_crash: bool = True) -> None:
    """Requeue the candidate of a worker that has ended, unless the trial has ended too.

    The candidate is queued before the old trial fails: after a crash in between, the old trial is still running and is
    requeued again. If the old trial completes in between, the new one is superseded and is not trained.
    """
    with queue_locked(study):
        now = study.get_trials(deepcopy=False)[trial.number]
        if now.state != TrialState.RUNNING:
            return
        crashes = _crashes(now) + is_crash
        reason = f"its worker crashed {crashes} times (out of memory?)" if crashes >= MAX_CRASHES else ""
        if not reason and not is_superseded(study, now):
            counted = {"crashes": crashes, "checkpoints_at_crash": now.user_attrs.get("checkpoints", 0)}
            _enqueue(study, now, {_RESUMES: True} | (counted if crashes else {}))
        if not fail(study, now, reason):
            return
    logger.warning("trial %d lost its worker%s", trial.number, "" if reason else ", requeued")


def _crashes(trial: FrozenTrial) -> int:
    """How often workers have crashed with this candidate since its last new checkpoint."""
    attributes = trial.user_attrs
    has_progress = attributes.get("checkpoints", 0) != attributes.get("checkpoints_at_crash", 0)
    return 0 if has_progress else int(attributes.get("crashes", 0))


def fail(study: optuna.Study, trial: FrozenTrial, reason: str) -> bool:
    """Mark a trial as failed whose worker has ended; False if the trial has ended since it was read."""
    storage = storage_of(study)
    try:
        if reason:
            storage.set_trial_user_attr(trial_id(trial), "reason", reason)
        storage.set_trial_state_values(trial_id(trial), TrialState.FAIL)
    except UpdateFinishedTrialError:  # its worker was only suspended
        return False
    return True


def trials_of(study: optuna.Study, owner: str) -> list[FrozenTrial]:
    """The running trials of a worker."""
    return [trial for trial in in_state(study, TrialState.RUNNING) if trial.system_attrs.get(OWNER) == owner]


def _enqueue(study: optuna.Study, trial: FrozenTrial | optuna.Trial, more: dict[str, Any] | None = None) -> None:
    attributes = {name: value for name, value in trial.user_attrs.items() if name in _REQUEUED or name.startswith(RUNG)}
    # A trial that was interrupted before it sampled has no params, only those that its queue entry fixed.
    fixed = study.get_trials(deepcopy=False)[trial.number].system_attrs.get("fixed_params", {})
    study.enqueue_trial(fixed | trial.params, user_attrs=attributes | (more or {}))


def complete_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The completed trials, one per candidate."""
    return [trial for trial in _current(study) if trial.state == TrialState.COMPLETE]


def rows(study: optuna.Study) -> list[dict[str, object]]:
    """The trials as rows for `trial_frame`; without those that were requeued."""
    return [_row(trial) for trial in _current(study)]


def _row(trial: FrozenTrial) -> dict[str, object]:
    accuracy, sparsity = trial.values or (None, None)
    seconds = trial.duration.total_seconds() if trial.duration else None
    if seconds is not None and seconds < 0:  # the clock was moved back
        seconds = None
    began, attributes = trial.datetime_start, trial.user_attrs.items()
    columns = {
        name: value for name, value in attributes if name in _COLUMN_ATTRIBUTES or name.startswith((RUNG, PREDICTED))
    }
    return {
        "trial": trial.number,
        "state": _STATES[trial.state],
        "planned_sparsity": trial.user_attrs.get("planned_sparsity"),
        "sparsity": sparsity,
        "metric": accuracy,
        "seconds": seconds,
        # In UTC; Optuna stores local time without a time zone.
        "started": began.astimezone(UTC).isoformat(timespec="milliseconds") if began else None,
        **columns,
        **{PARAM + name: value for name, value in trial.params.items()},
    }


def trial_ended(study: optuna.Study, number: int) -> TrialEnded:
    """The event with the trial's row. A trial whose candidate is queued again has none."""
    return TrialEnded(number, next((row for row in rows(study) if row["trial"] == number), None))

"""The study's trials where Optuna keeps them: the queue of waiting ones, promotions, and all of them as rows.

The plan is a queue of waiting trials in the study's own storage, one a candidate, each with its planned sparsity where
that is known ahead: workers take the next, a killed one is put back, and a finished study goes on when more are queued.
"""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from sca_search.budget import PREDICTED
from sca_search.correction import Observation
from sca_search.damage import damage_refused
from sca_search.errors import StorageError
from sca_search.goal import planned_ahead
from sca_search.halving import RUNG, RungScore, promoted, rung_epochs
from sca_search.results import FACTS, trial_frame
from sca_search.run_folder import RunFolder
from sca_search.sampler import INNER, PlannedSampler
from sca_search.space import Space
from sca_search.spec import StudySpec
from sca_search.study_database import require_sound

STUDY_NAME = "sca-search"
_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.FAIL: "failed",
    TrialState.PRUNED: "paused",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}
# What a trial tells of itself beside its two objectives.
_FACTS = {"loss", "soft_accuracy", "rounded_accuracy", "moved_share", "reason", *FACTS}


def open_study(run: RunFolder, space: Space) -> optuna.Study:
    """The run's study, made where it does not exist."""
    spec = space.spec
    sampler = PlannedSampler(spec.seed, space.first_guess(), INNER[spec.search.sampler])
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    require_sound(run.path / "study.db")
    with storage_errors(run), damage_refused(run.path, "opened"):
        study = optuna.create_study(
            study_name=STUDY_NAME,
            storage=QueueStorage(run),
            directions=["maximize", "maximize"],
            sampler=sampler,
            load_if_exists=True,
        )
        trial_frame(rows(study))  # what is wrong with a trial shows before another is trained
    return study


class QueueStorage(RDBStorage):
    """A waiting trial is taken by one worker: SQLite cannot lock a row, and two that look at the same moment would both
    find it waiting."""

    def __init__(self, run: RunFolder) -> None:
        super().__init__(run.storage_url)
        self._run = run

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        with self._run.queue_locked() if state == TrialState.RUNNING else contextlib.nullcontext():
            taken: bool = super().set_trial_state_values(trial_id, state, values)
        return taken


@contextlib.contextmanager
def storage_errors(run: RunFolder) -> Iterator[None]:
    """A database that cannot be written (a full disk, mostly) is the machine's fault, in one sentence."""
    try:
        yield
    except StorageInternalError as error:
        cause = str(error.__cause__ or error).splitlines()[0]
        raise StorageError(f"{run.path / 'study.db'} cannot be written: {cause}") from error


def fill_queue(study: optuna.Study, space: Space) -> int:
    """Queues what is missing of the spec's trials, and says how many wait now.

    The caller holds the run's lock, so a trial still marked as running belongs to a process that is gone.
    """
    waiting = {trial.user_attrs["candidate"] for trial in _in_state(study, TrialState.WAITING)}
    for trial in _in_state(study, TrialState.RUNNING):
        if trial.user_attrs["candidate"] not in waiting:  # else a resume died right here before
            put_back(study, trial)
        study.tell(trial.number, state=TrialState.FAIL)
    known = [trial.user_attrs["candidate"] for trial in study.get_trials(deepcopy=False)]
    first = space.first_guesses(lambda candidate: planned_ahead(space.spec.goal, candidate))
    for candidate in range(space.spec.search.trials):
        if candidate not in known:
            # The first ones are known guesses; what is not fixed here is sampled when the trial starts.
            study.enqueue_trial(first.get(candidate, {}), user_attrs=_queued(space, candidate))
    if space.spec.search.keep < 1.0:
        _promote(study, space.spec)  # a process may have died before it did
    return len(_in_state(study, TrialState.WAITING))


def queue_another(study: optuna.Study, space: Space) -> None:
    """One more trial within the goal's limits, beyond those that the spec asks for."""
    number = max(trial.user_attrs["candidate"] for trial in study.get_trials(deepcopy=False)) + 1
    study.enqueue_trial(space.first_guess(), user_attrs={"candidate": number})


def _queued(space: Space, candidate: int) -> dict[str, float]:
    planned = planned_ahead(space.spec.goal, candidate) if space.spec.plans_sparsity else None
    if planned is None:
        return {"candidate": candidate}
    return {"candidate": candidate, "planned_sparsity": space.possible(planned)}


def has_waiting(study: optuna.Study) -> bool:
    """Whether a trial waits to be run."""
    return bool(_in_state(study, TrialState.WAITING))


def _in_state(study: optuna.Study, state: TrialState) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(state,))


def promote(study: optuna.Study, spec: StudySpec, run: RunFolder) -> int:
    """Queues the paused candidates that belong to the best of their rung by now; says how many."""
    if spec.search.keep == 1.0:
        return 0
    with run.queue_locked():  # two workers that end at once would queue the same candidate
        return _promote(study, spec)


def _promote(study: optuna.Study, spec: StudySpec) -> int:
    trials = _newest(study)
    paused = [trial for trial in trials if trial.state == TrialState.PRUNED]
    promotions = 0
    for epoch in rung_epochs(spec.search.rungs, spec.train.epochs):
        here = [trial for trial in paused if max(_rungs_of(trial), default=0) == epoch]
        scores = [_rung_score(trial, epoch) for trial in here]
        for candidate in promoted(scores, rung_scores(study, epoch), spec.search.keep):
            put_back(study, next(trial for trial in here if trial.user_attrs["candidate"] == candidate))
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
    """The last trial of each candidate: the others were put back."""
    newest = {trial.user_attrs["candidate"]: trial for trial in study.get_trials(deepcopy=False)}
    return sorted(newest.values(), key=lambda trial: trial.number)


def put_back(study: optuna.Study, trial: FrozenTrial | optuna.Trial) -> None:
    """Queues a trial's candidate again, with the values it had."""
    kept = {
        name: value
        for name, value in trial.user_attrs.items()
        if name in {"candidate", "planned_sparsity", "split", "asked"} or name.startswith(RUNG)
    }
    # A trial that was stopped before it sampled has no params yet, only what its queue entry fixed.
    fixed = study.get_trials(deepcopy=False)[trial.number].system_attrs.get("fixed_params", {})
    study.enqueue_trial(fixed | trial.params, user_attrs=kept)


def observations(study: optuna.Study) -> list[Observation]:
    """What the finished trials leave for the prior's correction."""
    finished = _in_state(study, TrialState.COMPLETE)
    return [Observation(**each) for trial in finished for each in trial.user_attrs.get("observed", ())]


def rows(study: optuna.Study) -> list[dict[str, object]]:
    """The study's trials as rows for `results.trial_frame`; trials that were put back are left out."""
    return [_row(trial) for trial in _newest(study)]


def _row(trial: FrozenTrial) -> dict[str, object]:
    accuracy, sparsity = trial.values or (None, None)
    seconds = trial.duration.total_seconds() if trial.duration else None
    told = {
        name: value for name, value in trial.user_attrs.items() if name in _FACTS or name.startswith((RUNG, PREDICTED))
    }
    return {
        "trial": trial.number,
        "state": _STATES[trial.state],
        "planned_sparsity": trial.user_attrs.get("planned_sparsity"),
        "sparsity": sparsity,
        "accuracy": accuracy,
        "seconds": seconds,
        "started": _started(trial),
        **told,
        **trial.params,
    }


def _started(trial: FrozenTrial) -> str | None:
    """Optuna keeps local time without saying so."""
    began = trial.datetime_start
    return began.astimezone(UTC).isoformat(timespec="milliseconds") if began else None

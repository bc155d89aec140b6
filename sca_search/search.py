"""The study: an ordinary Optuna study with two objectives, accuracy and sparsity, both maximized.

Its plan is a queue of waiting trials in the study's own storage, one a candidate, each with its planned sparsity where
that is known ahead: workers take the next, a killed one is put back, and a finished study goes on when more are queued.
"""

import contextlib
import csv
import dataclasses
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState

from sca_search.candidate import Candidate
from sca_search.correction import Observation, asked_for
from sca_search.errors import DivergenceError, StorageError
from sca_search.export.plain import count_zeros, save_plain
from sca_search.files import write_json_atomic, write_text_atomic
from sca_search.fit import StopRequestedError
from sca_search.goal import planned_ahead, planned_between
from sca_search.halving import RUNG, RungScore, goes_on, promoted, rung_epochs
from sca_search.measure import Score
from sca_search.results import trial_frame
from sca_search.run_folder import RunFolder
from sca_search.sampler import INNER, PlannedSampler, derived_seed
from sca_search.space import Space
from sca_search.spec import GoalSpec, StudySpec
from sca_search.task import Epoch, PausedError, Progress, Rungs, Settled, Task, WarmStart
from sca_search.ternary import total
from sca_search.train import train_candidate

STUDY_NAME = "sca-search"
_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.FAIL: "failed",
    TrialState.PRUNED: "paused",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}
# What a trial tells of itself beside its two objectives.
_FACTS = (
    "loss",
    "soft_accuracy",
    "rounded_accuracy",
    "moved_share",
    "sparsity_before",
    "epochs",
    "reason",
    "candidate",
)


@dataclass(frozen=True)
class Listener:
    """How a study talks to the outside."""

    on_start: Callable[[int, float], None] = field(default=lambda _trial, _sparsity: None)
    on_epoch: Callable[[int, Epoch], None] = field(default=lambda _trial, _epoch: None)
    on_end: Callable[[int], None] = field(default=lambda _trial: None)
    stop_requested: Callable[[], bool] = field(default=lambda: False)


def open_study(run: RunFolder, space: Space) -> optuna.Study:
    """The run's study, made where it does not exist."""
    spec = space.spec
    sampler = PlannedSampler(spec.seed, space.first_guess(), INNER[spec.search.sampler])
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with storage_errors(run):
        return optuna.create_study(
            study_name=STUDY_NAME,
            storage=run.storage_url,
            directions=["maximize", "maximize"],
            sampler=sampler,
            load_if_exists=True,
        )


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
            study.enqueue_trial(first.get(candidate, {}), user_attrs=_queued(space.spec.goal, candidate))
    return len(_in_state(study, TrialState.WAITING))


def _queued(goal: GoalSpec, candidate: int) -> dict[str, float]:
    planned = planned_ahead(goal, candidate)
    return {"candidate": candidate} if planned is None else {"candidate": candidate, "planned_sparsity": planned}


def has_waiting(study: optuna.Study) -> bool:
    """Whether a trial waits to be run."""
    return bool(_in_state(study, TrialState.WAITING))


def _in_state(study: optuna.Study, state: TrialState) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(state,))


def promote(study: optuna.Study, spec: StudySpec, run: RunFolder) -> int:
    """Queues the paused candidates that belong to the best of their rung by now; says how many."""
    if spec.search.keep == 1.0:
        return 0
    with run.promoting():  # two workers that end at once would queue the same candidate
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
    return RungScore(attributes["candidate"], attributes["planned_sparsity"], attributes[f"{RUNG}{epoch}"])


def _newest(study: optuna.Study) -> list[FrozenTrial]:
    """The last trial of each candidate: the others were put back."""
    newest = {trial.user_attrs["candidate"]: trial for trial in study.get_trials(deepcopy=False)}
    return sorted(newest.values(), key=lambda trial: trial.number)


def put_back(study: optuna.Study, trial: FrozenTrial | optuna.Trial) -> None:
    """Queues a trial's candidate again, with the values it had."""
    kept = {
        name: value
        for name, value in trial.user_attrs.items()
        if name in {"candidate", "planned_sparsity", "asked"} or name.startswith(RUNG)
    }
    # A trial that was stopped before it sampled has no params yet, only what its queue entry fixed.
    fixed = study.get_trials(deepcopy=False)[trial.number].system_attrs.get("fixed_params", {})
    study.enqueue_trial(fixed | trial.params, user_attrs=kept)


@dataclass(frozen=True)
class Objective:
    """Trains one trial's candidate and keeps all that it gave."""

    run: RunFolder
    space: Space
    task: Task
    start: WarmStart
    listener: Listener
    given: tuple[Observation, ...] = ()  # what another study's prior file tells

    @property
    def spec(self) -> StudySpec:
        return self.space.spec

    def __call__(self, trial: optuna.Trial) -> tuple[float, float]:
        number, sparsity = trial.user_attrs["candidate"], self._planned(trial)
        self.listener.on_start(trial.number, sparsity)
        candidate = self._candidate(trial, number, sparsity)
        epochs = _Counter()

        def on_epoch(epoch: Epoch) -> None:
            epochs.seen += 1
            self.listener.on_epoch(trial.number, epoch)

        try:
            settled = train_candidate(
                candidate,
                self.task,
                self.start,
                Progress(on_epoch, self.listener.stop_requested),
                self._rungs(trial, number, sparsity),
            )
        except DivergenceError as error:
            trial.set_user_attr("reason", str(error))
            raise
        except StopRequestedError:
            put_back(trial.study, trial)
            raise
        except PausedError as error:
            raise optuna.TrialPruned from error
        finally:
            trial.set_user_attr("epochs", epochs.seen)
        counted = keep(self.run, number, candidate, settled, self.task)
        self.run.checkpoint(number).unlink(missing_ok=True)
        for name, value in facts(settled).items():
            trial.set_user_attr(name, value)
        trial.set_user_attr("observed", observed(candidate, settled))
        return settled.score.accuracy, counted

    def _planned(self, trial: optuna.Trial) -> float:
        """The trial's sparsity: planned when it was queued, else now, with all that has been seen."""
        if "planned_sparsity" not in trial.user_attrs and self.spec.goal.min_accuracy is not None:
            seen = trial_frame(rows(trial.study))
            trial.set_user_attr("planned_sparsity", planned_between(seen, self.spec.goal.min_accuracy))
        return float(trial.user_attrs["planned_sparsity"])

    def _candidate(self, trial: optuna.Trial, number: int, sparsity: float) -> Candidate:
        """The trial's values as a candidate; what the prior is asked for follows from what others reached."""
        layers = self.task.layer_shapes
        candidate = self.space.sample(trial, sparsity, seed=derived_seed(self.spec.seed, number))
        if "asked" not in trial.user_attrs:  # a candidate that goes on keeps what it began with
            trial.set_user_attr("asked", self.asked(trial.study, candidate))
        asked = trial.user_attrs["asked"]
        plan = {layer.name: candidate.sparsity_of(layer.name) for layer in layers}
        return candidate if asked == plan else candidate.model_copy(update={"asked": asked})

    def asked(self, study: optuna.Study, candidate: Candidate) -> dict[str, float]:
        """The sparsity to ask the prior for, a layer."""
        seen = [*self.given, *observations(study)] if self.spec.search.correction else []
        return {
            layer.name: asked_for(
                [each for each in seen if each.layer == layer.name],
                candidate.sparsity_of(layer.name),
                candidate.strength_of(layer.name, candidate.epochs),
            )
            for layer in self.task.layer_shapes
        }

    def _rungs(self, trial: optuna.Trial, number: int, sparsity: float) -> Rungs:
        def passes(epoch: int, score: Score) -> bool:
            trial.set_user_attr(f"{RUNG}{epoch}", score.loss)
            mine = RungScore(number, sparsity, score.loss)
            return goes_on(mine, rung_scores(trial.study, epoch), self.spec.search.keep)

        epochs = rung_epochs(self.spec.search.rungs, self.spec.train.epochs)
        return Rungs(epochs, passes, self.run.checkpoint(number))


@dataclass
class _Counter:
    seen: int = 0


def observed(candidate: Candidate, settled: Settled) -> list[dict[str, Any]]:
    """What each layer was asked for and reached by rounding alone, for the prior's correction."""
    return [
        vars(Observation(layer, candidate.asked_of(layer), reached, candidate.strength_of(layer, candidate.epochs)))
        for layer, reached in settled.reached.items()
    ]


def observations(study: optuna.Study) -> list[Observation]:
    """What the finished trials leave for the prior's correction."""
    finished = _in_state(study, TrialState.COMPLETE)
    return [Observation(**each) for trial in finished for each in trial.user_attrs.get("observed", ())]


def facts(settled: Settled) -> dict[str, float]:
    """The figures of a candidate beside its two objectives."""
    return {
        "loss": settled.score.loss,
        "soft_accuracy": settled.soft_accuracy,
        "rounded_accuracy": settled.rounded_accuracy,
        "moved_share": settled.moved_share,
        "sparsity_before": settled.sparsity_before,
    }


def keep(run: RunFolder, number: int, candidate: Candidate, settled: Settled, task: Task, refit: int = 0) -> float:
    """Writes a candidate's folder and gives its sparsity, counted in the file written."""
    folder = run.candidate(number, refit)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomic(folder / "history.csv", history_csv(settled.history))
    model_file = folder / "model.safetensors"
    about = {
        "input_shape": task.data.input_shape,
        "classes": task.data.classes,
        "mean": task.data.mean,
        "std": task.data.std,
    }
    save_plain(model_file, settled.model, task.ternary_layers, about)
    counted = total(count_zeros(model_file)).sparsity
    record = {
        "candidate": candidate.model_dump(mode="json"),
        "accuracy": settled.score.accuracy,
        "sparsity": counted,
        **facts(settled),
        "strength_unit": settled.unit,
        "alphas": settled.alphas,
        "dead_layers": settled.dead_layers,
        "reached": settled.reached,
        "layers": {name: dataclasses.asdict(count) for name, count in settled.counts.items()},
    }
    # The record comes last: where it is, the candidate is whole.
    write_json_atomic(folder / "candidate.json", record)
    return counted


def history_csv(history: tuple[Epoch, ...]) -> str:
    """A training's epochs as a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*(each.name for each in dataclasses.fields(Epoch)), "gap"])
    writer.writeheader()
    writer.writerows(dataclasses.asdict(epoch) | {"gap": epoch.gap} for epoch in history)
    return text.getvalue()


def work(
    study: optuna.Study,
    objective: Objective,
    take_ticket: Callable[[], bool],
    give_tickets: Callable[[int], None] = lambda _more: None,
) -> None:
    """Runs waiting trials as long as there are tickets for them. A stop puts the trial under way back.

    A paused candidate that is promoted waits again, which makes another ticket.
    """

    def on_end(_study: optuna.Study, trial: FrozenTrial) -> None:
        objective.listener.on_end(trial.number)
        give_tickets(promote(study, objective.spec, objective.run))

    while take_ticket() and not objective.listener.stop_requested():
        with storage_errors(objective.run):
            study.optimize(objective, n_trials=1, catch=(DivergenceError,), callbacks=[on_end])


def rows(study: optuna.Study) -> list[dict[str, object]]:
    """The study's trials as rows for `results.trial_frame`; trials that were put back are left out."""
    return [_row(trial) for trial in _newest(study)]


def _row(trial: FrozenTrial) -> dict[str, object]:
    accuracy, sparsity = trial.values or (None, None)
    seconds = trial.duration.total_seconds() if trial.duration else None
    told = {name: value for name, value in trial.user_attrs.items() if name in _FACTS or name.startswith(RUNG)}
    return {
        "trial": trial.number,
        "state": _STATES[trial.state],
        "planned_sparsity": trial.user_attrs.get("planned_sparsity"),
        "sparsity": sparsity,
        "accuracy": accuracy,
        "seconds": seconds,
        **told,
        **trial.params,
    }


class Clock:
    """Says whether another trial, and the refits after it, still fit into the time budget."""

    def __init__(self, budget: float | None, refits: int) -> None:
        self._budget = budget
        self._refits = refits
        self._began = time.monotonic()
        self._longest = 0.0
        self._last = self._began

    def trial_fits(self) -> bool:
        now = time.monotonic()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        if self._budget is None:
            return True
        return now - self._began + self._longest * (1 + self._refits) <= self._budget

"""Study files and flags -> a frozen, validated StudySpec. Every check of what a user typed is here.

Flags overrule the file, the file overrules the defaults. All faults are found at once, before anything is written.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import (
    Field,
    ValidationError,
    model_validator,
)

from sca_search.errors import SpecError
from sca_search.method_names import METHODS, SCA
from sca_search.metric_name import at_most_one, is_share
from sca_search.passwords import address_without_password, holds_password
from sca_search.recipe import RecipeSpec
from sca_search.spec_faults import fault_of, sentence
from sca_search.spec_tables import (
    BUDGETS,
    GOALS,
    DataSpec,
    GoalSpec,
    ModelSpec,
    SearchSpec,
    Table,
    TrainSpec,
)
from sca_search.spec_values import IN_PYTHON, MOST_SEEDS, Folder, Name, TrainerSettings, Whole

# Flag -> key in the study file. A flag's fault is reported under the flag's name.
FLAGS = {
    "target_sparsity": "goal.target_sparsity",
    "min_accuracy": "goal.min_accuracy",
    "front": "goal.front",
    "max_latency_ms": "goal.max_latency_ms",
    "max_kb": "goal.max_kb",
    "max_file_kb": "goal.max_file_kb",
    "prefer": "goal.prefer",
    "grid": "goal.grid",
    "data": "data.name",
    "data_dir": "data.dir",
    "image_size": "data.image_size",
    "train_limit": "data.train_limit",
    "normalise": "data.normalise",
    "data_columns": "data.columns",
    "augment": "data.augment",
    "skip_unreadable": "data.skip_unreadable",
    "model": "model.name",
    "skip": "model.skip",
    "only": "model.only",
    "weights": "model.weights",
    "trials": "search.trials",
    "method": "search.method",
    "form": "search.form",
    "time_budget": "search.time_budget",
    "refits": "search.refits",
    "strength": "search.space.strength",
    "split": "search.space.split",
    "groups": "search.groups",
    "keep": "search.keep",
    "prior": "search.prior",
    "latency_table": "search.latency_table",
    "workers": "search.workers",
    "threads": "search.threads",
    "trial_time": "search.trial_time",
    "trial_memory_gb": "search.trial_memory_gb",
    "epochs": "train.epochs",
    "dense_epochs": "train.dense_epochs",
    "batch": "train.batch",
    "loss": "train.loss",
    "metric": "train.metric",
    "seed": "seed",
    "name": "name",
    "out": "out",
}
# What may differ when a study is resumed or joined: how much is done, by whom and where, not what is done. A prior was
# copied into the run folder when the study began.
MAY_CHANGE = (
    "name",
    "out",
    "data.dir",
    "search.trials",
    "search.time_budget",
    "search.workers",
    "search.threads",
    "search.heartbeat",
    "search.checkpoint_every",
    "search.trial_time",
    "search.trial_memory_gb",
    "search.refits",
    "search.prior",
)


# Ten times as much as the longest that makes sense.
_LARGEST_FILE = 100_000
_MOST_DOTS = 100


class StudySpec(Table):
    """A whole study."""

    name: Name | None = None
    seed: Annotated[Whole, Field(ge=0, lt=2**31)] = 0
    out: Folder = Path("runs")
    goal: GoalSpec = GoalSpec()
    data: DataSpec = DataSpec()
    model: ModelSpec = ModelSpec()
    train: TrainSpec = TrainSpec()
    search: SearchSpec = SearchSpec()
    recipe: RecipeSpec | None = None  # one point, trained as it stands
    trainer: TrainerSettings | None = None  # settings of Lightning's Trainer, passed on as they are

    @model_validator(mode="before")
    @classmethod
    def _as_the_recipe_has_it(cls, given: Any) -> Any:
        """What a recipe's study leaves unsaid: no goal, no distillation, nothing frozen, as long as the paper's."""
        recipe = given.get("recipe") if isinstance(given, dict) else None
        if not isinstance(recipe, dict):
            return given
        model, train = given.get("model", {}), given.get("train", {})
        if not isinstance(model, dict) or not isinstance(train, dict):
            return given
        epochs = train.get("epochs", recipe.get("epochs", 1))
        is_trained = recipe.get("initialisation") == "pretrained" and model.get("weights") is None
        usual: dict[str, dict[str, Any]] = {
            "goal": {"front": True},
            "train": {
                "epochs": epochs,
                "dense_epochs": epochs if is_trained else 0,
                "frozen_epochs": 0,
                "distillation": 0.0,
            },
            "search": {"form": "paper", "trials": 1, "refits": 0},
        }
        said = {key: value for key in usual if isinstance(value := given.get(key, {}), dict)}
        goal = said.get("goal", {})
        if goal.keys() & {*GOALS, *BUDGETS}:
            usual["goal"] = {}  # refused below
        return given | {key: usual[key] | table for key, table in said.items()}

    @model_validator(mode="after")
    def _recipe_alone(self) -> Self:
        """A recipe leaves nothing to search, and says all that its training needs."""
        if self.recipe is None:
            return self
        rule = "must not be given beside a recipe, whose zeros are as they land"
        for goal in ("target_sparsity", "min_accuracy", *BUDGETS):
            if (value := getattr(self.goal, goal)) is not None:
                raise fault_of(f"goal.{goal}", rule, value)
        if self.search.form != "paper":
            raise fault_of("search.form", "must be 'paper' beside a recipe", self.search.form)
        if self.train.distillation:
            raise fault_of("train.distillation", "must be 0 beside a recipe", self.train.distillation)
        if self.train.learning_rate_steps:
            raise fault_of(
                "train.learning_rate_steps", "must be in the recipe where there is one", self.train.learning_rate_steps
            )
        if self.model.weights is not None and self.recipe.initialisation == "xavier":
            raise fault_of("model.weights", "must not be given where a recipe starts by xavier", self.model.weights)
        return self

    @property
    def plans_sparsity(self) -> bool:
        """Whether trials have a sparsity to end with; else their zeros are as they land."""
        return self.recipe is None and METHODS[self.search.method].plans_sparsity

    @model_validator(mode="before")
    @classmethod
    def _as_the_method_has_it(cls, given: Any) -> Any:
        """A method that cannot choose its sparsity has no goal: all of its networks are of interest."""
        search = given.get("search", {}) if isinstance(given, dict) else {}
        named = search.get("method", SCA) if isinstance(search, dict) else None
        method = METHODS.get(named) if isinstance(named, str) else None
        if method is None or method.plans_sparsity:
            return given
        return {"goal": {"front": True}} | given

    @model_validator(mode="after")
    def _method_and_goal(self) -> Self:
        name = self.search.method
        if self.recipe is not None and name != SCA:
            raise fault_of("search.method", f"must be {SCA!r} beside a recipe", name)
        if self.plans_sparsity or self.recipe is not None:
            if name != SCA and self.search.form != "sharpened":
                raise fault_of("search.form", f"must not be given with the method {name!r}", self.search.form)
            return self
        for goal in ("target_sparsity", "min_accuracy", *BUDGETS):
            if (value := getattr(self.goal, goal)) is not None:
                rule = f"must not be given with the method {name!r}, whose zeros are as they land"
                raise fault_of(f"goal.{goal}", rule, value)
        return self

    @model_validator(mode="before")
    @classmethod
    def _trained_already(cls, given: Any) -> Any:
        """Weights to start from stand instead of the dense training, unless that is asked for."""
        if not isinstance(given, dict):
            return given
        model, train = given.get("model"), given.get("train", {})
        if not isinstance(model, dict) or not isinstance(train, dict) or model.get("weights") is None:
            return given
        return given | {"train": {"dense_epochs": 0} | train}

    @model_validator(mode="after")
    def _dense_somehow(self) -> Self:
        is_made = self.model.name.startswith(IN_PYTHON)  # it comes with weights of its own
        needs_none = self.recipe is not None and self.recipe.initialisation == "xavier"
        if self.train.dense_epochs == 0 and self.model.weights is None and not (is_made or needs_none):
            raise fault_of("train.dense_epochs", "must be at least 1 where model.weights names no file", 0)
        return self

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        """A metric that is 1 at best cannot be asked for more, nor a share for nothing."""
        least, metric = self.goal.min_accuracy, self.train.metric
        if least is None:
            return self
        if at_most_one(metric) and least > 1:
            raise fault_of("goal.min_accuracy", "must be at most 1", least)
        if (metric is None or is_share(metric)) and least <= 0:
            raise fault_of("goal.min_accuracy", "must be above 0", least)
        return self

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @property
    def own_names(self) -> tuple[str | None, ...]:
        """What may name functions of a user's own."""
        return self.data.name, self.model.name, self.train.loss, self.train.metric

    @property
    def base_name(self) -> str:
        """A run folder's name where the user gave none: data, network, target."""
        data = re.sub(r"[^A-Za-z0-9]+", "-", Path(self.data.name.replace(":", "-")).name).strip("-")[:60].rstrip("-")
        network = re.sub(r"[^A-Za-z0-9.]+", "-", self.model.name.rpartition(":")[2]).strip("-.")[:40].rstrip("-.")
        return f"{data or 'data'}-{network or 'network'}-{self._goal_name}"

    @property
    def _goal_name(self) -> str:
        goal = self.goal
        if self.recipe is not None:
            return "recipe"
        parts = [
            f"s{goal.target_sparsity:g}" if goal.target_sparsity is not None else "",
            f"a{goal.min_accuracy:g}" if goal.min_accuracy is not None else "",
            *(f"{value:g}{name.removeprefix('max_').removeprefix('latency_')}" for name, value in goal.budgets.items()),
        ]
        return "-".join(part.replace("_", "-") for part in parts if part) or "front"


def resolve(study_file: Path | None, flags: Mapping[str, object]) -> StudySpec:
    """The spec of a study file and the flags that were given (those that are not None)."""
    values = read_toml(study_file) if study_file else {}
    by_flag: dict[str, str] = {}
    if isinstance(values.get("goal"), dict):
        for goal in _overruled(flags):
            values["goal"].pop(goal, None)
    for flag, value in flags.items():
        if value is not None:
            key = FLAGS[flag]
            _put(values, key.split("."), value)
            by_flag[key] = f"--{flag.replace('_', '-')}"
    where = str(study_file) if study_file else "the command line"
    _require_no_passwords(values, where)
    try:
        return StudySpec.model_validate(values)
    except ValidationError as error:
        sentences = [sentence(fault, where, by_flag, StudySpec) for fault in error.errors()]
        raise SpecError("\n".join(dict.fromkeys(sentences))) from error


def check_seeds(seeds: int) -> None:
    """Of commands that train the same several times."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise SpecError(f"--seeds must be from 1 to {MOST_SEEDS:,}, got {seeds}")


def _require_no_passwords(values: Mapping[str, Any], where: str) -> None:
    """Of an address in the wrong place nothing else is said: other sentences would quote parts of it, and the spec is
    written down."""
    waiting: list[tuple[str, object]] = [("a key", list(values)), *values.items()]
    while waiting:  # a database's spec may hold tables within tables, deeper than calls may go
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(key, list(value)), *((f"{key}.{name}", each) for name, each in value.items())]
        elif isinstance(value, list | tuple):
            waiting += [(key, each) for each in value]
        elif isinstance(value, str | Path) and holds_password(str(value)):
            shown = address_without_password(str(value))
            raise SpecError(f"{where}: {key} must not be an address with a password, got {shown!r}")


def _overruled(flags: Mapping[str, object]) -> tuple[str, ...]:
    """A goal on the command line stands instead of the file's; a budget stands beside it, if it can."""
    if any(flags.get(goal) is not None for goal in GOALS):
        return GOALS
    return ("front",) if any(flags.get(budget) is not None for budget in BUDGETS) else ()


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table."""
    try:
        if (size := path.stat().st_size) > _LARGEST_FILE:
            raise SpecError(f"{path}: a study file must have at most {_LARGEST_FILE:,} bytes, got {size:,}")
        text = path.read_text(encoding="utf-8")
        # The time and memory that Python's reader takes for a key grow with the square of its parts.
        if max(part.count(".") for part in re.split(r"[\n,=\[\]{}]", text)) > _MOST_DOTS:
            raise SpecError(f"{path}: a key must have at most {_MOST_DOTS} parts between dots")
        return tomllib.loads(text)
    except FileNotFoundError as error:
        raise SpecError(f"{path}: there is no such study file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as a study file: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: is not valid TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: a number has thousands of digits, or tables lie too deep within tables") from error


def differences(ours: StudySpec, theirs: StudySpec) -> list[str]:
    """The keys in which two studies differ, apart from those that may change when a study goes on."""
    mine, other = _flat(ours.model_dump(mode="json")), _flat(theirs.model_dump(mode="json"))
    keys = sorted(mine.keys() | other.keys())
    return [key for key in keys if mine.get(key) != other.get(key) and key not in MAY_CHANGE]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _put(values: dict[str, Any], path: list[str], value: object) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            return  # what should be a table is none: a fault that is found with all others
    values[path[-1]] = value

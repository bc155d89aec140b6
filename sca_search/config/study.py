"""The study: frozen, validated tables of settings, as a study file holds them. `load.py` reads files and flags."""

import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import AfterValidator, Field, model_validator

from sca_search.config import types as t
from sca_search.config.candidate import FromPrior, Tracked
from sca_search.config.costs import BUDGETS, FILE_SIZE, LATENCY, TERNARY_SIZE
from sca_search.config.messages import key_error
from sca_search.config.names import (
    DATA,
    LOSSES,
    METHODS,
    METRICS,
    MODELS,
    REFERENCE_KEYS,
    SCA,
    Augmentation,
    at_most_one,
    is_fraction,
)
from sca_search.config.references import PYTHON_OBJECT, is_reference
from sca_search.config.types import Fraction, NonNegativeFloat, Table

GOALS = ("target_sparsity", "min_accuracy", "front")
_Rule = tuple[bool, str, str]  # whether it is broken, the key, the rule


def _is_unplanned(method: object) -> bool:
    """Whether a method cannot choose its sparsity. Users add methods of their own to the table."""
    return isinstance(method, str) and method in METHODS and not METHODS[method].plans_sparsity


def _key(default: Any, text: str) -> Any:
    """A setting of study files only, with its help text."""
    return Field(default, description=text)


def _flag(default: Any, text: str, name: str = "", kind: str = "") -> Any:
    """A setting with a command-line flag; `name` and `kind` are its name and type if they differ from the key's."""
    return Field(default, description=text, json_schema_extra={"flag": name, "kind": kind})


def _names_by_kind(names: dict[str, tuple[str, ...]]) -> str:
    return "; ".join(f"{kind}: {', '.join(names[kind])}" for kind in names)


class GoalSpec(Table):
    """The goal: one of three, budgets, or both. Without any, a target sparsity of 0.5."""

    target_sparsity: t.FractionBelowOne | None = _flag(
        None, "Fraction of ternary weights that are zero, from 0 to below 1. Default: 0.5."
    )
    min_accuracy: Annotated[float, Field(strict=True)] | None = _flag(
        None, "Alternative goal: the sparsest model with at least this validation metric, in its unit: 0.98."
    )
    front: bool = _flag(False, "Alternative goal: the whole Pareto front, without a target.")
    max_latency_ms: t.PositiveFloat | None = _flag(None, LATENCY.help)
    max_kb: t.PositiveFloat | None = _flag(None, FILE_SIZE.help)
    max_ternary_kb: t.PositiveFloat | None = _flag(None, TERNARY_SIZE.help)
    prefer: Literal["sparsest", "fastest", "smallest"] = _flag(
        "sparsest", "With --min-accuracy, which accurate model to choose: sparsest, fastest or smallest."
    )
    grid: bool = _flag(
        True, "Plan every other trial at a sparsity around the target, for the front; off: all at the target."
    )

    @property
    def budgets(self) -> dict[str, float]:
        """The budgets that are set, by name."""
        return {name: getattr(self, name) for name in BUDGETS if getattr(self, name) is not None}

    @model_validator(mode="before")
    @classmethod
    def _default_target(cls, values: Any) -> Any:
        is_open = isinstance(values, dict) and not values.keys() & {*GOALS, *BUDGETS}
        return {"target_sparsity": 0.5} | values if is_open else values

    @model_validator(mode="after")
    def _one_goal(self) -> Self:
        named = [name for name in GOALS if getattr(self, name) not in {None, False}]
        if self.target_sparsity == 0.0:  # a goal, although equal to False
            named.append("target_sparsity")
        if len(named) > 1 or not (named or self.budgets):
            raise ValueError(f"must name one of {', '.join(GOALS)}, got {' and '.join(named) or 'none'}")
        if self.front and self.budgets:
            raise ValueError(f"must not have both front, which has no limit, and {' and '.join(self.budgets)}")
        if self.prefer != "sparsest" and self.min_accuracy is None:
            raise ValueError(f"must name min_accuracy where it has prefer, got {self.prefer!r} alone")
        return self


class DataSpec(Table):
    """The data set."""

    name: t.NameOrReference = _flag(
        "digits",
        f"Data set. One of {', '.join(f'{name}PATH' if name.endswith(':') else name for name in DATA)}, or your own "
        "function: module:function or file.py:function. digits is included in the package.",
        name="data",
    )
    dir: t.FilePath | None = _flag(None, "Folder with local copies of the named data sets.", name="data_dir")
    image_size: t.Pixels | None = _flag(
        None, "Height and width in pixels to which image files are resized. Default: 64; imagenet 224."
    )
    train_limit: t.Images | None = _flag(None, "Maximum number of training images. Default: all.")
    normalize: bool = _flag(True, "Normalize inputs per channel, and the targets of a regression.")
    columns: t.Patterns = _flag(
        (), "Input and target columns of hf-disk data: 'image,label'. Default: by type.", name="data_columns"
    )
    augment: Augmentation = _flag(
        "none",
        "Augmentation of training images. One of none, crop-flip (shifted by up to an eighth, mirrored) or "
        "scale-aspect (image files only: a crop of 8 to 100 % of the area, mirrored).",
    )
    skip_unreadable: bool = _flag(False, "Skip image files that cannot be read, and report their number.")


class ModelSpec(Table):
    """The network, and which of its layers become ternary."""

    name: t.NameOrReference = _flag(
        "lenet-small",
        f"Network. One of {', '.join(MODELS)}; any other as file.py:function, package.module:function, "
        "torchvision:NAME or timm:NAME.",
        name="model",
    )
    weights: Annotated[t.FilePath, AfterValidator(Path.resolve)] | None = _flag(
        None, "Trained weights to start from instead of dense training: a safetensors file or a state dict."
    )
    dropout: t.FractionBelowOne = _key(0.0, "Dropout rate of the built-in networks.")
    keep_first: bool = _key(True, "Leave the first weight layer dense.")
    keep_last: bool = _key(True, "Leave the last weight layer dense.")
    skip: t.Patterns = _flag((), "Layers that stay dense, as name patterns: 'fc*,conv2'.")
    only: t.Patterns = _flag((), "The only layers to make ternary, as name patterns.")

    @property
    def label(self) -> str:
        """The name without the folders of a file."""
        place, colon, function = self.name.rpartition(":")
        return f"{Path(place).name}{colon}{function}" if place.endswith(".py") else self.name


class TrainSpec(Table):
    """Training settings that all candidates share."""

    batch: Annotated[t.Integer, Field(ge=2, lt=2**31)] = _flag(64, "Batch size.")
    dense_epochs: t.CountOrZero = _flag(30, "Epochs of the dense warm start. Default: 30; 0 with --weights.")
    dense_learning_rate: t.PositiveFloat = _key(0.01, "Maximum learning rate of the dense warm start.")
    epochs: t.Count = _flag(20, "Ternary training epochs per trial.")
    frozen_epochs: t.CountOrZero = _key(5, "Epochs after rounding in which only the float parameters are trained.")
    learning_rate_steps: t.EpochFactors = _key((), "[epoch, factor] pairs; empty: one-cycle schedule.")
    last_layer_weight_decay: NonNegativeFloat = _key(0.0, "Weight decay of the last layer.")
    weight_decay: NonNegativeFloat = _key(
        0.0, "Weight decay of all trained parameters except the last layer, if that has its own."
    )
    loss: t.LossName | None = _flag(
        None,
        f"Loss. By kind of target: {_names_by_kind(LOSSES)}; or module:function of (outputs, targets). Default: the "
        "first of its kind.",
    )
    metric: t.MetricName | None = _flag(
        None,
        f"Metric that trials are compared by. By kind of target: {_names_by_kind(METRICS)}; or module:function of "
        "(outputs, targets), higher is better. Default: the first of its kind.",
    )
    floor_per_layer: t.CountOrZero = _key(1, "Minimum number of non-zero weights per layer.")
    floor_per_channel: t.CountOrZero = _key(0, "Minimum number of non-zero weights per output channel.")


class SpaceSpec(Table):
    """The ranges that a study samples from; a number instead of [low, high] fixes the value."""

    strength: t.PositiveRange | None = _flag(
        None, "Fix the regularization strength (dimensionless λ) instead of searching it.", kind="float"
    )
    strength_first: t.PositiveRange = _key((0.3, 30.0), "Form decoupled: the strength at the start of training.")
    strength_start: t.Range[t.EarlyFraction] = _key((0.0, 0.6), "Fraction of training before λ increases.")
    strength_schedule: t.StrengthSchedules = _key(
        ("linear", "exponential", "step"), "How λ increases to its final strength."
    )
    gradient: t.Gradients = _key(
        ("straight-through", "tanh", "flow"), "Form decoupled: how the gradient of a soft weight is estimated."
    )
    rise_start: t.Range[t.FractionBelowOne] = _key(
        (0.0, 0.3), "Fraction of training before the sparsity, and with it α, rises from 0."
    )
    rise: t.Range[t.FractionBelowOne] = _key(
        (0.0, 0.7), "Fraction of training in which the sparsity rises to the planned value."
    )
    reallocation: t.Reallocations = _key(
        ("adaptive", "fixed"), "Whether zeros move between layers during training; never where the goal has a budget."
    )
    spread: t.Range[t.Spread] = _key((0.3, 0.9), "Root mean square of the latents at the start.")
    learning_rate: t.PositiveRange = _key((0.003, 0.05), "Learning rate of the float parameters.")
    latent_learning_rate: t.PositiveRange = _key((0.01, 0.1), "Learning rate of the latents.")
    frozen_learning_rate: t.PositiveRange = _key((0.001, 0.01), "Learning rate of the frozen phase.")
    allocation: t.HalfWidth = _flag(
        1.0, "Search range of the per-layer sparsity allocation, as ± log-density. 0 = uniform."
    )
    group_strength: t.HalfWidth = _key(0.7, "Search range of λ per layer or stage, as ± logarithm; 0: equal for all.")
    group_rise: Fraction = _key(
        0.2, "Search range of `rise` per layer or stage, as ± fraction of training; 0: equal for all."
    )
    distillation: t.Range[Fraction] = _key(
        (0.0, 0.95), "Weight of the distillation loss, from 0 to 1; the task's loss has the rest."
    )
    temperature: t.Range[t.Temperature] = _key((1.0, 8.0), "Temperature of distillation.")


class SearchSpec(Table):
    """The search: how many trials, of which form, by how many workers."""

    trials: t.Count = _flag(16, "Number of trials, each training one candidate.")
    method: t.Method = _flag(SCA, f"Training method. One of {', '.join(METHODS)}.")
    form: Literal["decoupled", "paper"] = _flag(
        "decoupled",
        "Form of SCA: decoupled (the regularizer acts on the weights), or paper (it is a term of the loss).",
    )
    alpha: Annotated[Tracked | FromPrior, Field(discriminator="kind")] | None = _key(
        None, "How α is chosen during training; default: by form."
    )
    groups: Literal["layer", "stage", "all"] | None = _flag(
        None, "Layers that share searched values: layer (none), stage or all. Default: by the number of layers."
    )
    sampler: Literal["tpe", "gp", "random"] = _key("tpe", "Optuna sampler, used from trial 20 on.")
    latency_table: t.FilePath | None = _flag(
        None, "Latency table of the target device, from `calibrate --emit`. Default: calibrate this machine."
    )
    rungs: tuple[Fraction, ...] = _key(
        (0.25, 0.5), "Fractions of training at which candidates of equal sparsity are compared (successive halving)."
    )
    keep: t.PositiveFraction = _flag(1.0, "Fraction of candidates that continue at each rung. 1 = all.")
    refits: t.CountOrZero = _flag(2, "Number of refits of the chosen candidate with other seeds.")
    time_budget: t.Seconds | None = _flag(
        None, "Start no trial that would end later than this: 90s, 10m, 2h. Default: no limit.", kind="str"
    )
    workers: t.Processes = _flag(1, "Number of worker processes that train trials in parallel.")
    threads: t.Threads = _flag(0, "Threads per worker. Default: from model size and CPU count.")
    heartbeat: t.Seconds = _key(10.0, "Seconds between heartbeats; after three missing ones a trial is requeued.")
    checkpoint_every: t.Seconds = _key(60.0, "Seconds between checkpoints, which are written at the end of an epoch.")
    trial_time: t.Seconds | None = _flag(
        None, "Kill a trial that takes longer than this: 90s, 10m, 2h. Default: no limit.", kind="str"
    )
    trial_memory_gb: t.PositiveFloat | None = _flag(
        None, "Kill a trial whose worker uses more than this many GB. Default: no limit."
    )
    space: SpaceSpec = SpaceSpec()


class RecipeSpec(Table):
    """The paper's values for one network on one data set; epochs are those of the full-length training."""

    epochs: t.PositiveInt
    images: t.PositiveInt | None = None  # per epoch at full length; a smaller data.train_limit shortens training too
    alpha: NonNegativeFloat
    strength_lambda: t.BoundedFloat  # λ itself
    lambda_steps: t.EpochFactors = ()
    learning_rate: t.BoundedFloat
    learning_rate_steps: t.EpochFactors = ()  # empty: one-cycle schedule
    optimizer: Literal["adam"] = "adam"
    initialization: Literal["xavier", "pretrained"] = "xavier"
    tanh: bool = True  # false: W = Θ without bounds, the paper's ablation
    # Root mean square of Θ at the start. None: that of the initial weights at full length, rescaled in shorter runs.
    spread: t.PositiveFloat | None = None


class StudySpec(Table):
    name: t.RunName | None = _flag(None, "Name of the run folder. Default: from data, network and goal.")
    seed: t.Seed = _flag(0, "Random seed. The same seed, machine and threads give the same front.")
    out: t.FilePath = _flag(Path("runs"), "Folder in which run folders are created.")
    goal: GoalSpec = GoalSpec()
    data: DataSpec = DataSpec()
    model: ModelSpec = ModelSpec()
    train: TrainSpec = TrainSpec()
    search: SearchSpec = SearchSpec()
    recipe: RecipeSpec | None = _key(None, "One fixed candidate that is trained without a search.")
    trainer: t.TrainerSettings | None = _key(None, "Settings passed to Lightning's Trainer.")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        """Defaults that depend on other tables; a value that must be a table and is not is reported by its field."""
        if not isinstance(values, dict):
            return values
        tables = {key: value for key, value in values.items() if isinstance(value, dict)}
        model, train, search = (tables.get(key, {}) for key in ("model", "train", "search"))
        has_weights = model.get("weights") is not None  # they replace dense training
        defaults: dict[str, dict[str, Any]] = {"train": {"dense_epochs": 0}} if has_weights else {}
        if "goal" not in values and _is_unplanned(search.get("method")):
            defaults["goal"] = {"front": True}
        if (recipe := tables.get("recipe")) is not None:
            epochs = train.get("epochs", recipe.get("epochs", 1))
            is_trained = recipe.get("initialization") == "pretrained" and not has_weights
            fixed = {"dense_epochs": epochs if is_trained else 0, "frozen_epochs": 0}
            defaults["train"] = {"epochs": epochs} | fixed
            defaults["search"] = {"form": "paper", "trials": 1, "refits": 0}
            if not tables.get("goal", {}).keys() & {*GOALS, *BUDGETS}:  # else rejected below
                defaults["goal"] = {"front": True}
        allowed = {key: table for key, table in defaults.items() if isinstance(values.get(key, {}), dict)}
        return values | {key: table | values.get(key, {}) for key, table in allowed.items()}

    @property
    def uses_teacher(self) -> bool:
        """Whether candidates may use distillation."""
        return self.recipe is None and self.search.space.distillation[1] > 0

    @property
    def plans_sparsity(self) -> bool:
        """Whether trials have a planned sparsity; otherwise it results from rounding."""
        return self.recipe is None and not _is_unplanned(self.search.method)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for is_broken, key, rule in (*self._goal_rules(), *self._training_rules(), *self._accuracy_rules()):
            if is_broken:
                raise key_error(key, rule, attrgetter(key)(self))
        return self

    def _goal_rules(self) -> Iterator[_Rule]:
        reason = "a recipe, whose sparsity results from rounding"
        if self.recipe is None:
            reason = f"the method {self.search.method!r}, which cannot choose its sparsity"
        for name in ("target_sparsity", "min_accuracy", *BUDGETS):
            is_given = getattr(self.goal, name) is not None
            yield is_given and not self.plans_sparsity, f"goal.{name}", f"must not be given with {reason}"
        method, float_weights = self.search.method, METHODS[self.search.method].weights == "float"
        for name in self.goal.budgets:
            yield (
                float_weights,
                f"goal.{name}",
                f"must not be given with the method {method!r}, whose weights are float",
            )

    def _training_rules(self) -> Iterator[_Rule]:
        """A recipe excludes goals and searched settings, and contains all settings of its training."""
        method, form, train = self.search.method, self.search.form, self.train
        has_recipe, has_weights = self.recipe is not None, self.model.weights is not None
        is_random = self.recipe is not None and self.recipe.initialization == "xavier"
        if has_recipe:
            yield form != "paper", "search.form", "must be 'paper' with a recipe"
            steps = "train.learning_rate_steps"
            yield len(train.learning_rate_steps) > 0, steps, "must be set in the recipe if there is one"
            rule = "must not be given with a recipe whose initialization is xavier"
            yield is_random and has_weights, "model.weights", rule
            yield method != SCA, "search.method", f"must be {SCA!r} with a recipe"
        is_other = self.plans_sparsity and method != SCA
        yield is_other and form != "decoupled", "search.form", f"must not be given with the method {method!r}"
        is_start = has_weights or is_random or self.model.name.startswith(PYTHON_OBJECT)  # which has weights already
        yield not (train.dense_epochs or is_start), "train.dense_epochs", "must be at least 1 without model.weights"

    def _accuracy_rules(self) -> Iterator[_Rule]:
        """Reject minima that no value can meet (above 1, for metrics of at most 1) or miss (0, for fractions)."""
        minimum, metric = self.goal.min_accuracy, self.train.metric
        if minimum is not None:
            yield at_most_one(metric) and minimum > 1, "goal.min_accuracy", "must be at most 1"
            is_share = metric is None or is_fraction(metric)
            yield is_share and minimum <= 0, "goal.min_accuracy", "must be above 0"

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @property
    def references(self) -> dict[str, str]:
        """The settings that refer to user code, by key."""
        prefixes = {key: (*known, PYTHON_OBJECT) for key, known in REFERENCE_KEYS.items()}
        named = {key: str(attrgetter(key)(self)) for key in prefixes}
        return {key: name for key, name in named.items() if is_reference(name) and not name.startswith(prefixes[key])}

    @property
    def base_name(self) -> str:
        """Default name of the run folder: data, network, goal."""
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

"""The tables of a study file, each a frozen set of validated values. What concerns several of them is in spec.py."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sca_search.method_names import SCA
from sca_search.recipe import EpochFactors, PositiveFloat
from sca_search.schedule import FromPrior, NonNegativeFloat, Share, Tracked
from sca_search.spec_values import (
    Augmentation,
    Count,
    CountOrNone,
    EarlyRange,
    Folder,
    Growths,
    HalfWidth,
    HoldRange,
    KeptShare,
    LossName,
    MetricName,
    OwnName,
    Patterns,
    Pixels,
    PositiveRange,
    Processes,
    Seconds,
    ShareBelowOne,
    ShareRange,
    Spread,
    Temperature,
    Threads,
    Whole,
    known_augmentation,
    known_method,
)

GOALS = ("target_sparsity", "min_accuracy", "front")
# Each may stand alone, or beside a target sparsity or a least accuracy.
BUDGETS = ("max_latency_ms", "max_kb", "max_file_kb")


class Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GoalSpec(Table):
    """What the study is after: one of three, budgets, or both. Without any, half of the weights are to be zero."""

    target_sparsity: ShareBelowOne | None = None  # the most accurate model at this sparsity
    min_accuracy: Annotated[float, Field(strict=True)] | None = None  # the sparsest with so much of the study's metric
    front: bool = False  # the whole front
    max_latency_ms: PositiveFloat | None = None  # of the exported C: one image, one thread
    max_kb: PositiveFloat | None = None  # of the packed ternary weights, in 1,024 bytes
    max_file_kb: PositiveFloat | None = None  # of the whole packed file
    prefer: Literal["sparsest", "fastest", "smallest"] = "sparsest"  # of the models that are accurate enough
    grid: bool = True  # every other trial of a target draws the front around it; else all are at the target

    @property
    def budgets(self) -> dict[str, float]:
        """Those that are given, by their names."""
        return {name: getattr(self, name) for name in BUDGETS if getattr(self, name) is not None}

    @model_validator(mode="before")
    @classmethod
    def _half_by_default(cls, given: Any) -> Any:
        is_open = isinstance(given, dict) and not given.keys() & {*GOALS, *BUDGETS}
        return {"target_sparsity": 0.5} | given if is_open else given

    @model_validator(mode="after")
    def _one(self) -> Self:
        named = [name for name in GOALS if getattr(self, name) not in {None, False}]
        if self.target_sparsity == 0.0:  # which is a goal, and equal to False
            named.append("target_sparsity")
        if len(named) > 1 or not (named or self.budgets):
            raise ValueError(f"must name one of {', '.join(GOALS)}, got {' and '.join(named) or 'none'}")
        if self.front and self.budgets:
            raise ValueError(f"must not have both front, which has no limit, and {' and '.join(self.budgets)}")
        if self.prefer != "sparsest" and self.min_accuracy is None:
            raise ValueError(f"must name min_accuracy where it has prefer, got {self.prefer!r} alone")
        return self


class DataSpec(Table):
    """Where the examples come from."""

    name: OwnName = "digits"
    dir: Folder | None = None
    image_size: Pixels | None = None
    train_limit: Annotated[Whole, Field(ge=10, lt=2**31)] | None = None
    normalise: bool = True  # inputs by channel, and a regression's targets; else they stay as they are
    columns: Patterns = ()  # of hf-disk: inputs and targets
    augment: Annotated[Augmentation, BeforeValidator(known_augmentation)] = "none"  # of training images alone
    skip_unreadable: bool = False  # whether image files that cannot be read are left out, or refused


class ModelSpec(Table):
    """The network, and which of its layers become ternary."""

    name: OwnName = "lenet-small"
    weights: Annotated[Folder, AfterValidator(Path.resolve)] | None = None  # a trained state to start from
    dropout: ShareBelowOne = 0.0
    keep_first: bool = True
    keep_last: bool = True
    skip: Patterns = ()
    only: Patterns = ()

    @property
    def label(self) -> str:
        """The name without the folders of a file, which are nobody's business."""
        place, colon, own = self.name.rpartition(":")
        return f"{Path(place).name}{colon}{own}" if place.endswith(".py") else self.name


class TrainSpec(Table):
    """What is the same for every candidate."""

    batch: Annotated[Whole, Field(ge=2, lt=2**31)] = 64
    dense_epochs: CountOrNone = 30  # 0 where there are weights to start from, and the file names no number
    dense_learning_rate: PositiveFloat = 0.01
    epochs: Count = 20
    frozen_epochs: CountOrNone = 5
    learning_rate_steps: EpochFactors = ()
    last_layer_weight_decay: NonNegativeFloat = 0.0
    weight_decay: NonNegativeFloat = 0.0  # of everything that is trained; the last layer's own stands instead
    loss: LossName | None = None  # None: by the kind of the targets
    metric: MetricName | None = None  # likewise; what trials are compared by, higher is better
    distillation: Share = 0.9  # share of the loss that asks for the dense net's answers
    temperature: Temperature = 4.0
    floor_per_layer: CountOrNone = 1
    floor_per_channel: CountOrNone = 0


class SpaceSpec(Table):
    """The ranges that a study samples from; a number instead of [low, high] fixes a value."""

    strength: PositiveRange | None = None  # dimensionless λ; None: by form, and none at all when sharpened
    pull_start: ShareRange = (0.0, 0.6)
    growth: Growths = ("linear", "exponential", "step")  # how λ gets from pull_start to its strength
    hold_from: HoldRange = (0.3, 0.9)  # the paper's form: when weights begin to be rounded for good; 1: never
    sharpness: PositiveRange = (100.0, 10000.0)  # sharpened: β at the end
    sharpness_first: PositiveRange = (1.0, 100.0)  # and until it begins to rise
    sharpness_start: EarlyRange = (0.0, 0.5)  # when it does
    gradient_sharpness: PositiveRange = (
        0.5,
        500.0,
    )  # β of the gradient at most; from `sharpness` on it is the real one
    rise: ShareRange = (0.0, 0.7)  # share of the training in which a tracked sparsity climbs to its plan
    spread: Spread = (0.3, 0.9)
    learning_rate: PositiveRange = (0.003, 0.02)
    latent_learning_rate: PositiveRange = (0.01, 0.1)
    frozen_learning_rate: PositiveRange = (0.001, 0.01)
    # Half-width of each group's logarithm of density beside the others'; 0 splits the zeros evenly.
    split: HalfWidth = 1.0
    # Half-width of the logarithm of each group's own strength or sharpness beside the others'; 0: the same for all.
    own: HalfWidth = 0.7


class SearchSpec(Table):
    """How much is searched, in which form, by whom."""

    trials: Count = 16
    method: Annotated[str, BeforeValidator(known_method)] = SCA
    form: Literal["sharpened", "paper", "straight-through"] = "sharpened"  # of SCA
    alpha: Annotated[Tracked | FromPrior, Field(discriminator="kind")] | None = None  # None: by form
    # Which layers share what is searched a layer; None: each its own, or by stage where there are many.
    groups: Literal["layer", "stage", "all"] | None = None
    sampler: Literal["tpe", "gp", "random"] = "tpe"  # which of Optuna's ours asks
    correction: bool = True  # what trials reach corrects what later ones ask the prior for
    prior: Folder | None = None  # a file with what another study of this network reached
    latency_table: Folder | None = None  # a calibration of another device
    # Shares of the training at which a candidate is compared with others of its sparsity; the best `keep` go on.
    rungs: tuple[Share, ...] = (0.25, 0.5)
    keep: KeptShare = 1.0
    refits: CountOrNone = 2
    time_budget: Seconds | None = None
    workers: Processes = 1
    threads: Threads = 0  # a worker; 0: by the network's size and the machine's cores
    heartbeat: Seconds = 10.0  # how often a worker says that it is alive; three in silence, and its trial is put back
    checkpoint_every: Seconds = 60.0  # so much of a training is lost at most if it is killed, and an epoch
    trial_time: Seconds | None = None  # a trial that takes longer is ended, and counts as failed
    trial_memory_gb: PositiveFloat | None = None  # a worker that takes more is ended, and its trial counts as failed
    space: SpaceSpec = SpaceSpec()

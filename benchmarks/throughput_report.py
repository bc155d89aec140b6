"""Report of training throughput: images per second compared with the bare loop, and with alternatives."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.interleave import Timing
from benchmarks.report import table

GOAL = 0.95
# Our training and the bare loop that it is compared with.
TRAININGS = {
    "dense": ("dense", "bare"),
    "decoupled": ("ternary, decoupled form", "bare decoupled"),
    "paper": ("ternary, paper's form", "bare paper"),
}
# A design choice and its alternative: the two variants, and their descriptions.
CHOICES = (
    ("bare", "contiguous", "channels last", "contiguous"),
    ("bare", "loader", "batches from memory", "DataLoader with per-image transforms, in the same process"),
    ("bare", "unfused", "fused Adam", "Adam, torch's default"),
    ("two workers", "two threads", "two workers with one thread", "one worker with two threads"),
    ("bare", "bare decoupled", "dense", "the same ternary, decoupled form"),
    ("bare", "bare paper", "dense", "the same ternary, paper's form"),
)
VARIANTS = {
    *TRAININGS,
    *(bare for _, bare in TRAININGS.values()),
    *(variant for each in CHOICES for variant in each[:2]),
}


@dataclass(frozen=True)
class Speed:
    """Images per second in the best and the worst round, and per CPU second in the best."""

    best: float
    worst: float
    processor: float


def speeds_of(timings: Mapping[str, list[Timing]], images: int) -> dict[str, Speed]:
    return {
        name: Speed(
            images / min(each.seconds for each in rounds),
            images / max(each.seconds for each in rounds),
            images / min(each.processor_seconds for each in rounds),
        )
        for name, rounds in timings.items()
    }


def text_of(speeds: Mapping[str, Speed], setting: str) -> str:
    """Both tables, and whether the goal is met."""
    trainings = [
        [
            label,
            _range(speeds[name]),
            _range(speeds[bare]),
            f"{ratio_of(speeds, name):.3f}",
            f"{speeds[name].processor / speeds[bare].processor:.3f}",
        ]
        for name, (label, bare) in TRAININGS.items()
    ]
    choices = [
        [
            *(chosen, instead, f"{speeds[variant].best:,.0f}", f"{speeds[other].best:,.0f}"),
            f"{speeds[variant].best / speeds[other].best:.2f}",
        ]
        for variant, other, chosen, instead in CHOICES
    ]
    headings = [
        *("network", "ours, images per second, best (worst)", "bare loop"),
        *("ratio", "ratio by CPU time"),
    ]
    return "\n\n".join(
        [
            table(headings, trainings),
            verdict(speeds),
            table(["choice", "alternative", "images per second", "of the alternative", "ratio"], choices),
            f"Best round, interleaved in one process except for two workers; {setting}; one thread unless stated "
            "otherwise. The bare loop is channels last, from memory, with fused Adam. For a ternary network it "
            "computes the soft weights and, in the paper's form, the regularizer with plain torch operations and "
            "constant α and λ; ours updates them and, in the decoupled form, keeps α at the quantile and allocates "
            "zeros. Ours is a complete `fit`, including setup.",
        ]
    )


def ratio_of(speeds: Mapping[str, Speed], name: str) -> float:
    """Ratio of the best rounds."""
    return speeds[name].best / speeds[TRAININGS[name][1]].best


def verdict(speeds: Mapping[str, Speed]) -> str:
    met = {name: ratio_of(speeds, name) >= GOAL for name in TRAININGS}
    verdicts = "; ".join(f"{TRAININGS[name][0]} {'met' if is_met else 'not met'}" for name, is_met in met.items())
    return f"The goal is {GOAL:g} times the bare loop of the same network: {verdicts}."


def _range(speed: Speed) -> str:
    return f"{speed.best:,.0f} ({speed.worst:,.0f})"

"""What rounds of trainings say: images a second, beside the bare loop and beside the same loop with another choice."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.report import table
from benchmarks.turns import Taken

GOAL = 0.95
# Ours, and the bare loop of the same network that it stands beside.
TRAININGS = {
    "dense": ("dense", "bare"),
    "sharpened": ("ternary, sharpened form", "bare sharpened"),
    "paper": ("ternary, paper's form", "bare paper"),
}
# What is chosen, and the same with another choice: the arms, and both in words.
CHOICES = (
    ("bare", "contiguous", "channels last", "contiguous"),
    ("bare", "loader", "batches from memory", "DataLoader with transforms of each image, in the same process"),
    ("bare", "unfused", "fused Adam", "Adam by torch's default"),
    ("two workers", "two threads", "two workers of one thread", "one worker of two threads"),
    ("bare", "bare sharpened", "dense", "the same ternary, sharpened form"),
    ("bare", "bare paper", "dense", "the same ternary, paper's form"),
    ("paper", "held", "ours, paper's form", "ours, its weights held at trits step by step, as a search begins"),
)
ARMS = {*TRAININGS, *(bare for _, bare in TRAININGS.values()), *(arm for each in CHOICES for arm in each[:2])}


@dataclass(frozen=True)
class Speed:
    """Images a second: of the best and of the worst round, and of the processor's own time at best."""

    best: float
    worst: float
    processor: float


def speeds_of(taken: Mapping[str, list[Taken]], images: int) -> dict[str, Speed]:
    return {
        name: Speed(
            images / min(each.seconds for each in rounds),
            images / max(each.seconds for each in rounds),
            images / min(each.processor_seconds for each in rounds),
        )
        for name, rounds in taken.items()
    }


def text_of(speeds: Mapping[str, Speed], setting: str) -> str:
    """Both tables, and whether the goal is met."""
    trainings = [
        [
            told,
            _range(speeds[name]),
            _range(speeds[bare]),
            f"{ratio_of(speeds, name):.3f}",
            f"{speeds[name].processor / speeds[bare].processor:.3f}",
        ]
        for name, (told, bare) in TRAININGS.items()
    ]
    choices = [
        [
            *(chosen, instead, f"{speeds[arm].best:,.0f}", f"{speeds[other].best:,.0f}"),
            f"{speeds[arm].best / speeds[other].best:.2f}",
        ]
        for arm, other, chosen, instead in CHOICES
    ]
    headings = [
        *("network", "ours, images a second, best (worst)", "its bare loop"),
        *("times the bare loop", "the same by processor time"),
    ]
    return "\n\n".join(
        [
            table(headings, trainings),
            verdict(speeds),
            table(["choice", "instead of", "images a second", "instead", "times"], choices),
            f"Best of the rounds, in turns in one process, but for two workers; {setting}; one thread but where two "
            "are named. The bare loop is channels last, from memory, with fused Adam. Of a ternary network it computes "
            "the soft weights and, where the form has one, the regularizer by torch's own operations, with α, β and λ "
            "that stand still; ours moves them, and keeps α at the quantile. Ours is a whole `fit`, with its setting "
            "up. The paper's form is trained as the paper does; a search also holds weights step by step, which no "
            "bare loop here does: the last row has its cost, and the goal does not count it.",
        ]
    )


def ratio_of(speeds: Mapping[str, Speed], name: str) -> float:
    """By the best rounds: what is compared does the same work."""
    return speeds[name].best / speeds[TRAININGS[name][1]].best


def verdict(speeds: Mapping[str, Speed]) -> str:
    met = {name: ratio_of(speeds, name) >= GOAL for name in TRAININGS}
    told = "; ".join(f"{TRAININGS[name][0]} {'met' if is_met else 'not met'}" for name, is_met in met.items())
    return f"The goal is {GOAL:g} times the bare loop of the same network: {told}."


def _range(speed: Speed) -> str:
    return f"{speed.best:,.0f} ({speed.worst:,.0f})"

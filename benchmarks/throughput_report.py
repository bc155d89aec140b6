"""What rounds of trainings say: images a second, beside the bare loop and beside the same loop with another choice."""

from collections.abc import Mapping
from dataclasses import dataclass

from report import table
from turns import Taken

GOAL = 0.95
# Ours beside the bare loop.
TRAININGS = {
    "bare": "bare loop, dense",
    "dense": "ours, dense",
    "sharpened": "ours, ternary, sharpened form",
    "paper": "ours, ternary, paper's form",
}
# The bare loop with another choice: what is chosen, and instead of what.
CHOICES = {
    "contiguous": ("channels last", "contiguous"),
    "loader": ("batches from memory", "DataLoader with transforms of each image, in the same process"),
    "unfused": ("fused Adam", "Adam by torch's default"),
    "two threads": ("one thread", "two threads"),
}
ARMS = TRAININGS.keys() | CHOICES.keys()


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
    bare = speeds["bare"]
    trainings = [
        [
            told,
            _range(speeds[name]),
            f"{speeds[name].best / bare.best:.3f}",
            f"{speeds[name].processor / bare.processor:.3f}",
        ]
        for name, told in TRAININGS.items()
    ]
    choices = [
        [chosen, other, f"{bare.best:,.0f}", f"{speeds[name].best:,.0f}", f"{bare.best / speeds[name].best:.2f}"]
        for name, (chosen, other) in CHOICES.items()
    ]
    headings = ["training", "images a second, best (worst)", "times the bare loop", "the same by processor time"]
    return "\n\n".join(
        [
            table(headings, trainings),
            verdict(speeds),
            table(["choice", "instead of", "images a second", "instead", "times"], choices),
            f"Best of the rounds, in turns in one process; {setting}; one thread but where two are named. The bare "
            "loop is channels last, from memory, with fused Adam. Ours is a whole `fit`, with its setting up; ternary "
            "training computes soft weights, and the quantiles and the regularizer of its form, which the dense "
            "network has not.",
        ]
    )


def verdict(speeds: Mapping[str, Speed]) -> str:
    """By the best rounds of the dense network: what is compared does the same work."""
    ratio = speeds["dense"].best / speeds["bare"].best
    return f"The goal for the dense network is {GOAL:g} times the bare loop: {'met' if ratio >= GOAL else 'not met'}."


def _range(speed: Speed) -> str:
    return f"{speed.best:,.0f} ({speed.worst:,.0f})"

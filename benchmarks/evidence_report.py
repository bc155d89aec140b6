"""Tables and verdicts of `evidence.py`, from its lines of results."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.report import RESULTS, provenance, table, write_section
from benchmarks.significance import HEADINGS, Difference, cells_of, holm, paired_test, spread

TRIALS = 12
# Draws from a pool for the estimate and for each repeat of the bootstrap, whose number limits the smallest p-value: it
# has to remain below 0.05 after the correction for all rows.
DRAWS, DRAWS_PER_REPEAT, REPEATS = 4000, 100, 5000
# (arm, arm it is compared with seed by seed)
FORMS = [("first guess", "straight-through"), ("search", "search, straight-through")]
# (search, pool of its null or of random parameters)
NULLS = [
    ("search", "first guess"),
    ("search", "random"),
    ("search", "straight-through"),
    ("search, GP", "first guess"),
    ("search, random", "first guess"),
    ("search, straight-through", "straight-through"),
]
_EFFECTS = (
    "One parameter alone at an end of its range, all others as in the first guess: difference of the validation loss, "
    "p-values corrected by Holm's method per data set. The noise is that of the first guess with other seeds."
)
Trial = dict[str, Any]
Lines = dict[str, dict[int, dict[str, Any]]]


def selected(trials: list[Trial], images: int) -> Trial:
    """The network that is chosen on validation: within one standard error of the best metric, the lowest loss."""
    best = max(trial["metric"] for trial in trials)
    error = (best * (1.0 - best) / images) ** 0.5
    return min((trial for trial in trials if trial["metric"] >= best - error), key=lambda trial: trial["loss"])


def chosen(lines: Lines, arm: str) -> dict[int, Trial]:
    """The chosen network of each cell of an arm."""
    return {number: selected(line["trials"], line["images"]) for number, line in sorted(lines.get(arm, {}).items())}


def best_of_pool(pool: NDArray[np.float64], images: int, random: np.random.Generator, draws: int) -> float:
    """The mean test metric of the network chosen among 12 of a pool, drawn without replacement.

    `pool` has a row per network: metric and loss on validation, metric on the test split.
    """
    places = random.permuted(np.tile(np.arange(len(pool)), (draws, 1)), axis=1)[:, :TRIALS]
    metric, loss, test = (pool[places, column] for column in range(3))
    best = metric.max(axis=1, keepdims=True)
    loss = np.where(metric >= best - np.sqrt(best * (1.0 - best) / images), loss, np.inf)
    return float(np.take_along_axis(test, loss.argmin(axis=1, keepdims=True), axis=1).mean())


def search_against_pool(lines: Lines, search: str, pool: str) -> Difference | None:
    """In points, by bootstrap over searches and the pool."""
    if len(lines.get(search, {})) < 2 or len(lines.get(pool, {})) < TRIALS:
        return None
    random, images = np.random.default_rng(0), next(iter(lines[pool].values()))["images"]
    ours = np.array([trial["test"] for trial in chosen(lines, search).values()])
    trials = [line["trials"][0] for line in lines[pool].values()]
    theirs = np.array([[trial["metric"], trial["loss"], trial["test"]] for trial in trials])
    difference = ours.mean() - best_of_pool(theirs, images, random, DRAWS)
    repeats = np.array(
        [
            random.choice(ours, len(ours)).mean()
            - best_of_pool(random.choice(theirs, len(theirs)), images, random, DRAWS_PER_REPEAT)
            for _ in range(REPEATS)
        ]
    )
    low, high = np.quantile(repeats, [0.025, 0.975])
    crossings = min((repeats <= 0).sum(), (repeats >= 0).sum())
    p = min(1.0, 2.0 * (crossings + 1) / (REPEATS + 1))
    return Difference(100 * float(difference), 100 * float(low), 100 * float(high), float(p))


def differences(lines: Lines, one: str, other: str) -> list[float]:
    """Of the test metric of the chosen networks in points, cell by cell."""
    ours, theirs = chosen(lines, one), chosen(lines, other)
    return [100 * (ours[number]["test"] - theirs[number]["test"]) for number in sorted(ours.keys() & theirs.keys())]


def parameter_effects(lines: Lines) -> list[tuple[str, int, float, float]]:
    """Per setting of one parameter: cells, mean difference of the validation loss from the first guess, and its p.

    The noise of seeds is that of the first guess, from all its cells: a setting has only a few.
    """
    pool = [line["trials"][0]["loss"] for line in lines.get("first guess", {}).values()]
    by_setting: dict[str, list[float]] = {}
    for line in lines.get("one parameter", {}).values():
        ((name, value),) = line["trials"][0]["values"].items()
        by_setting.setdefault(f"{name} = {_short(value)}", []).append(line["trials"][0]["loss"])
    if len(pool) < 3:
        return []
    noise = statistics.stdev(pool)
    effects = []
    for setting, losses in by_setting.items():
        difference = statistics.fmean(losses) - statistics.fmean(pool)
        error = noise * (1 / len(losses) + 1 / len(pool)) ** 0.5
        effects.append(
            (setting, len(losses), difference, 2 * float(stats.t.sf(abs(difference) / error, len(pool) - 1)))
        )
    return effects


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def report(folder: Path) -> None:
    """Write the section of RESULTS.md."""
    arms: list[list[str]] = []
    tests: list[tuple[str, str, str, Difference]] = []
    effects: list[list[str]] = []
    for path in sorted(folder.glob("*.jsonl")):
        lines: Lines = {}
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            lines.setdefault(line["arm"], {})[line["number"]] = line
        arms += [_row(path.stem, arm, cells) for arm, cells in lines.items()]
        found_effects = parameter_effects(lines)
        for (setting, count, difference, _), p in zip(
            found_effects, holm([each[-1] for each in found_effects]), strict=True
        ):
            effects.append([path.stem, setting, str(count), f"{difference:+.4f}", f"{p:.3f}"])
        for one, other in FORMS:
            pairs = differences(lines, one, other)
            if result := paired_test(pairs):
                tests.append((path.stem, f"{one} − {other}", f"{len(pairs)} pairs, t-test", result))
        for search, pool in NULLS:
            if result := search_against_pool(lines, search, pool):
                tests.append((path.stem, f"{search} − best of {TRIALS} of {pool}", "bootstrap", result))
    tested = cells_of([each[-1] for each in tests])
    rows = [[data, text, how, *cells] for (data, text, how, _), cells in zip(tests, tested, strict=True)]
    headings = [
        "data",
        "arm",
        "networks",
        "test accuracy, %",
        "validation loss",
        "chosen by validation: test, %",
        "hours",
    ]
    text = "\n\n".join(
        [
            "## Search and forms against their nulls",
            "Test accuracy with the sample standard deviation over cells. All arms start from one dense network per "
            "data set, have the same allocation of zeros at the start, and train each network for the same epochs. "
            "Seeds that were used to choose defaults are not among them.",
            table(headings, arms),
            "Differences of test accuracy in points, 95 % intervals, p-values corrected by Holm's method:",
            table(["data", "difference", "test", *HEADINGS], rows),
            *([_EFFECTS, table(["data", "setting", "networks", "validation loss", "p"], effects)] if effects else []),
            provenance(),
        ]
    )
    write_section(RESULTS, "evidence", text)


def _row(name: str, arm: str, cells: dict[int, dict[str, Any]]) -> list[str]:
    trials = [trial for line in cells.values() for trial in line["trials"]]
    images = next(iter(cells.values()))["images"]
    picked = [100 * selected(line["trials"], images)["test"] for line in cells.values()]
    of_search = any(len(line["trials"]) > 1 for line in cells.values())
    hours = sum(line["seconds"] for line in cells.values()) / 3600
    return [
        name,
        arm,
        f"{len(trials)}",
        spread([100 * trial["test"] for trial in trials], 2),
        spread([trial["loss"] for trial in trials], 4),
        spread(picked, 2) if of_search else "",
        f"{hours:.2f}",
    ]

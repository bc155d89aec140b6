"""Times several programs in one process, interleaved, and detects noise from other programs.

Each sample is taken between two calibration loops whose cycles are known. One is a single chain of instructions: it
measures the clock rate. The other saturates the core: it slows down when a second thread runs on the same core, which
does not affect the first. A sample is noisy if a loop next to it took over a tenth longer than the fastest, or if its
thread was interrupted.
"""

import ctypes
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.export.c.amalgamate import kernel_file
from sca_search.export.c.compiler import build_library
from sca_search.export.c.library import CompiledModel, address
from sca_search.export.graph.records import Floats

Sampler = Callable[[int], float]
"""Number of calls -> seconds."""

# More optimization would vectorize the loops, and their cycles would no longer be known.
_FLAGS = ("-O1", "-std=c99")
_LOOPS = 4_000  # about 20 microseconds of each loop
_CYCLES_PER_LOOP = 16
_NOISY = 1.1  # times the fastest loop
_INTERRUPTED = 1.02  # times the seconds that the thread was running
_WARM_SECONDS, _SAMPLE_SECONDS = 0.001, 0.002
_FEWEST_QUIET = 5


@dataclass(frozen=True, eq=False)
class Timing:
    """Seconds per call of each sample, and which samples were measured while the machine was quiet."""

    seconds: NDArray[np.float64]
    quiet: NDArray[np.bool_]

    @property
    def noisy_fraction(self) -> float:
        """The fraction of noisy samples."""
        return 1.0 - float(self.quiet.mean())

    @property
    def has_quiet(self) -> bool:
        """Whether there are enough quiet samples; if not, the figures are over all of them."""
        return int(self.quiet.sum()) >= _FEWEST_QUIET

    @property
    def median(self) -> float:
        return self._percentile(50)

    @property
    def low(self) -> float:
        """The tenth percentile: least affected by noise that was not detected."""
        return self._percentile(10)

    @property
    def spread(self) -> float:
        """Between the first and the third quartile."""
        return self._percentile(75) - self._percentile(25)

    def _percentile(self, percent: float) -> float:
        return float(np.percentile(self.seconds[self.quiet] if self.has_quiet else self.seconds, percent))


@dataclass(frozen=True)
class Timings:
    """Programs by name that were timed interleaved, and the processor's clock rate."""

    clock_hz: float
    each: Mapping[str, Timing]


def time_interleaved(samplers: Mapping[str, Sampler], seconds: float, least_rounds: int = 7) -> Timings:
    """Rounds in which every program is sampled once, for this many seconds."""
    watch = stopwatch()
    counts = {name: _calls(sampler) for name, sampler in samplers.items()}
    samples: dict[str, list[_Sample]] = {name: [] for name in samplers}
    names, rounds, end = list(samplers), 0, time.monotonic() + seconds
    while rounds < least_rounds or time.monotonic() < end:
        for name in names:
            samples[name].append(_sample(watch, samplers[name], *counts[name]))
        names = [*names[1:], names[0]]  # so that the order varies
        rounds += 1
    rows = {name: np.array(each) for name, each in samples.items()}
    fastest = np.concatenate(list(rows.values()))[:, 2:].min(axis=0)
    timings = {}
    for name, each in rows.items():
        quiet = (each[:, 2:] <= _NOISY * fastest).all(axis=1) & (each[:, 0] <= _INTERRUPTED * each[:, 1])
        timings[name] = Timing(each[:, 0] / counts[name][1], quiet)
    return Timings(_CYCLES_PER_LOOP * _LOOPS / float(fastest[0]), timings)


class Stopwatch:
    """The calibration loops and the clock around a model, in C."""

    def __init__(self) -> None:
        library = build_library({"stopwatch.c": kernel_file("stopwatch.c")}, _FLAGS)
        self._library = ctypes.CDLL(str(library))
        for name in ("stopwatch_cycles", "stopwatch_width", "stopwatch_model"):
            getattr(self._library, name).restype = ctypes.c_double

    def loops(self) -> tuple[float, float]:
        """Seconds of the two calibration loops."""
        count = ctypes.c_size_t(_LOOPS)
        return self._library.stopwatch_cycles(count), self._library.stopwatch_width(count)

    def sampler(self, model: CompiledModel, image: Floats) -> Sampler:
        """A compiled model on one image, timed inside C, without the cost of calls from Python."""
        logits = np.empty(len(model.class_names), dtype=np.float32)
        memory = np.ascontiguousarray(image, dtype=np.float32)
        places = (*model.addresses, address(memory), address(logits))

        def sample(count: int) -> float:
            _ = model, memory, logits  # their memory is used, so they must live as long as this function
            seconds: float = self._library.stopwatch_model(*places, ctypes.c_size_t(count))
            return seconds

        return sample


@functools.cache
def stopwatch() -> Stopwatch:
    """The stopwatch of this process."""
    return Stopwatch()


def python_sampler(call: Callable[[], Any]) -> Sampler:
    """A Python function, timed in Python."""

    def sample(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - began

    return sample


_Sample = tuple[float, float, float, float]
"""Seconds, those that the thread was not interrupted, and the slower of each calibration loop beside it."""


def _calls(sampler: Sampler) -> tuple[int, int]:
    """Number of calls that warm the caches before a sample, and in the sample."""
    sampler(1)
    once = min(sampler(1) for _ in range(3))
    return max(1, round(_WARM_SECONDS / once)), max(1, round(_SAMPLE_SECONDS / once))


def _sample(watch: Stopwatch, sampler: Sampler, warm: int, calls: int) -> _Sample:
    sampler(warm)
    before = watch.loops()
    began, running = time.perf_counter(), time.thread_time()
    seconds = sampler(calls)
    running, whole = time.thread_time() - running, time.perf_counter() - began
    after = watch.loops()
    return seconds, seconds * running / whole, max(before[0], after[0]), max(before[1], after[1])

"""How long throttled work waits, computed by hand."""

import pytest

from sca_search.study.events import Throttle


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


# At a fraction of 5 %, work of 2 s is due every 40 s: 38 s after it ended.
@pytest.mark.parametrize(("later", "times"), [(0.0, 1), (37.9, 1), (38.0, 2), (1000.0, 2)])
def test_work_waits_in_proportion_to_its_duration(later: float, times: int) -> None:
    clock, done = Clock(), []

    def work() -> None:
        clock.now += 2.0
        done.append(clock.now)

    throttle = Throttle(0.05, clock)
    throttle.run_if_due(work)
    clock.now += later
    throttle.run_if_due(work)
    assert len(done) == times


def test_run_does_not_wait() -> None:
    clock, done = Clock(), []

    def work() -> None:
        clock.now += 2.0
        done.append(clock.now)

    throttle = Throttle(0.05, clock)
    throttle.run(work)
    throttle.run(work)
    throttle.run_if_due(work)
    assert done == [102.0, 104.0]

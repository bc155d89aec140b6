"""Work at a pace: how long it waits, by hand."""

import pytest

from sca_search.system.throttle import Pace


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


# At a share of 5 %, a work of 2 s takes turns of 40 s: 38 s after it ended, the next is due.
@pytest.mark.parametrize(("later", "times"), [(0.0, 1), (37.9, 1), (38.0, 2), (1000.0, 2)])
def test_work_waits_for_the_rest_of_its_turn(later: float, times: int) -> None:
    clock, done = Clock(), []

    def work() -> None:
        clock.now += 2.0
        done.append(clock.now)

    pace = Pace(0.05, clock)
    pace.run_if_due(work)
    clock.now += later
    pace.run_if_due(work)
    assert len(done) == times


def test_work_that_is_wanted_now_is_done_now() -> None:
    clock, done = Clock(), []

    def work() -> None:
        clock.now += 2.0
        done.append(clock.now)

    pace = Pace(0.05, clock)
    pace.run(work)
    pace.run(work)
    pace.run_if_due(work)
    assert done == [102.0, 104.0]

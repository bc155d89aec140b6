"""What finished trials leave for the correction: all of it, in their order, made once."""

from sca_search.study.seen import Seen
from sca_search.ternary.prior_correction import Observation


def left(*layers):
    return [{"layer": layer, "asked": 0.5, "reached": 0.4, "strength": 3.0} for layer in layers]


def test_all_that_trials_left_is_read_in_the_order_given():
    found = Seen().read([(4, left("fc1", "conv2")), (2, []), (7, left("fc2"))])
    assert found == [Observation(layer, 0.5, 0.4, 3.0) for layer in ("fc1", "conv2", "fc2")]


def test_a_trial_is_read_once_and_a_late_one_takes_its_place():
    """A trial may end after one with a higher number."""
    seen = Seen()
    (first, last) = seen.read([(1, left("fc1")), (3, left("fc3"))])
    again = seen.read([(1, left("fc1")), (2, left("fc2")), (3, left("fc3"))])
    assert [each.layer for each in again] == ["fc1", "fc2", "fc3"]
    assert again[0] is first
    assert again[2] is last

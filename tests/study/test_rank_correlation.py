"""Spearman's rank correlation, by hand and beside an independent implementation."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from sca_search.study.rank_correlation import spearman


def test_by_hand_with_a_tie():
    # Ranks 1 2.5 2.5 4 against 1 2 3 4: covariance 4.5, variances 4.5 and 5.
    assert spearman([1, 5, 5, 9], [10, 20, 30, 40]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_only_the_order_counts():
    assert spearman([1, 2, 3], [1, 10, 1e9]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [0.3, 0.2, -5]) == pytest.approx(-1.0)


def test_what_is_all_the_same_has_no_order():
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


@given(st.lists(st.tuples(st.integers(-5, 5), st.floats(-1e6, 1e6)), min_size=3, max_size=30))
def test_as_scipy_has_it(pairs):
    first, second = zip(*pairs, strict=True)
    if len(set(first)) > 1 and len(set(second)) > 1:
        assert spearman(first, second) == pytest.approx(spearmanr(first, second).statistic, abs=1e-12)

"""The table of cost metrics: complete in every place that reads it, and one unit for sizes."""

import pytest

from sca_search.config.costs import COST_COLUMNS, COST_METRICS, FILE_SIZE, LATENCY, format_size
from sca_search.config.load import FLAGS
from sca_search.config.study import GoalSpec
from sca_search.runs.goal import PREFERRED
from sca_search.runs.trials import OPTIONAL_COLUMNS


def test_every_cost_metric_has_a_flag_and_a_column() -> None:
    for metric in COST_METRICS:
        field = GoalSpec.model_fields[metric.budget]
        assert (field.default, field.description) == (None, metric.help)
        assert FLAGS[metric.budget] == f"goal.{metric.budget}"
    assert set(COST_COLUMNS) <= set(OPTIONAL_COLUMNS)


def test_prefer_names_sparsity_and_cost_metrics() -> None:
    assert PREFERRED == {"sparsest": "sparsity", "fastest": "latency_ms", "smallest": "ternary_bytes"}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (36, "36 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.00 KB"),
        (2664, "2.60 KB"),
        (19_968, "19.50 KB"),
        (2_569_011, "2.45 MB"),
    ],
)
def test_a_kb_is_1024_bytes(given: float, shown: str) -> None:
    assert format_size(given) == FILE_SIZE.format(given) == shown
    assert FILE_SIZE.scale == 1024


def test_latency_is_shown_in_milliseconds() -> None:
    assert (LATENCY.format(0.123456), LATENCY.scale) == ("0.1235 ms", 1.0)

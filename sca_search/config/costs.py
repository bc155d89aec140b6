"""Cost metrics of exported networks, which budgets can limit. Needs no torch.

The table drives goals and limits, the columns of trials.csv, the terminal, the dashboard, JSON and help. A new budget
is an entry here, its field in `GoalSpec`, and a function that predicts and one that measures it in study/budgets.py.
"""

from dataclasses import dataclass

KB = 1024  # bytes, in flags, tables and on pages


@dataclass(frozen=True)
class CostMetric:
    """A cost of an exported network; lower is better."""

    key: str  # column of trials.csv and key in JSON, in milliseconds or bytes
    budget: str  # key in [goal] and, with dashes, the flag
    unit: str  # unit of the budget and of displayed values
    label: str
    remark: str  # short description of the measurement
    help: str
    prefer: str = ""  # value of goal.prefer that minimizes it
    spread_key: str = ""  # column of the spread of its samples, if it is timed
    margin: float = 0.0  # fraction below the budget at which trials are planned
    is_calibrated: bool = False  # whether a prediction needs a calibration of the device

    @property
    def scale(self) -> float:
        """The value of the column that is one unit."""
        return float(KB) if self.unit == "KB" else 1.0

    def format(self, value: float) -> str:
        """A value of the column with its unit."""
        return format_size(value) if self.unit == "KB" else f"{value:.4g} {self.unit}"


LATENCY = CostMetric(
    "latency_ms",
    "max_latency_ms",
    "ms",
    "latency",
    "one image, one thread",
    "Latency budget in ms per image (exported C, one thread). Can be combined with --target-sparsity or "
    "--min-accuracy, as can all budgets.",
    prefer="fastest",
    spread_key="latency_spread_ms",
    margin=0.02,  # timings are noisy
    is_calibrated=True,
)
TERNARY_SIZE = CostMetric(
    "ternary_bytes",
    "max_ternary_kb",
    "KB",
    "ternary size",
    "ternary weights in the packed file",
    "Budget for the ternary weights alone, as stored in the packed file, in KB.",
    prefer="smallest",
)
FILE_SIZE = CostMetric(
    "file_bytes",
    "max_kb",
    "KB",
    "file size",
    "whole packed file",
    "Budget for the whole packed file in KB (1,024 bytes).",
)
COST_METRICS = (LATENCY, TERNARY_SIZE, FILE_SIZE)
COST_COLUMNS = tuple(column for metric in COST_METRICS for column in (metric.key, metric.spread_key) if column)
BUDGETS = tuple(metric.budget for metric in COST_METRICS)


def format_size(size_bytes: float) -> str:
    """Bytes as bytes, KB or MB; 1 KB is 1,024 bytes and 1 MB is 1,024 KB."""
    if size_bytes < KB:
        return f"{size_bytes:.0f} bytes"
    if size_bytes < KB**2:
        return f"{size_bytes / KB:,.2f} KB"
    return f"{size_bytes / KB**2:,.2f} MB"

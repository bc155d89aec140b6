"""How far two rows of numbers are in the same order."""

from collections.abc import Sequence

import pandas as pd


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation, from -1 to 1; NaN where one of the two is all the same.

    By pandas, which every study has loaded: scipy.stats would take 20 MB more of its memory.
    """
    return float(pd.DataFrame({"first": first, "second": second}).corr(method="spearman").loc["first", "second"])

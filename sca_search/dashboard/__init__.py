"""The dashboard of a study: rows -> DashboardData -> figures -> page; the one room that imports plotly."""

import os

from sca_search.dashboard.data import DashboardData, FrontPoint, LayerRow, dashboard_data
from sca_search.dashboard.page import render_page
from sca_search.files import write_text_atomic

__all__ = ["DashboardData", "FrontPoint", "LayerRow", "dashboard_data", "render_page", "write_dashboard"]


def write_dashboard(path: str | os.PathLike[str], data: DashboardData) -> None:
    """Writes the page to `path`; a browser that reloads sees the old page or the new one."""
    write_text_atomic(path, render_page(data))

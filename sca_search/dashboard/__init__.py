"""The dashboard of a study: run folder -> document -> page; the one room that imports plotly."""

from sca_search.dashboard.document import study_document
from sca_search.dashboard.page import render_page
from sca_search.dashboard.read import read_run
from sca_search.dashboard.writing import PageWriter, write_page

__all__ = ["PageWriter", "read_run", "render_page", "study_document", "write_page"]

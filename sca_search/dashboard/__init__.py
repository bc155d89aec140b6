"""The dashboard of a study: run folder -> document -> page, and a live server. Needs no torch."""

from sca_search.dashboard.document import study_document
from sca_search.dashboard.page import PageWriter, render_page, write_page
from sca_search.dashboard.read import read_run

__all__ = ["PageWriter", "read_run", "render_page", "study_document", "write_page"]

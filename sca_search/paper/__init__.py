"""The paper: the figures of its tables, its recipes as cells, and our results next to them."""

from sca_search.paper.cells import Cell, TrainingExtent, cells_of
from sca_search.paper.figures import TITLES, Figure, figures_of

__all__ = ["TITLES", "Cell", "Figure", "TrainingExtent", "cells_of", "figures_of"]

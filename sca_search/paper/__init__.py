"""The paper: the figures of its tables, its recipes as cells, and our results next to them."""

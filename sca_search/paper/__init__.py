"""The paper under one command a table: its figures, its recipes as cells, and ours beside them."""

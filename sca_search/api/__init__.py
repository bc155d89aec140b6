"""The Python API: studies, the user's own training loop, and the Lightning callback. Its names are in `sca_search`."""

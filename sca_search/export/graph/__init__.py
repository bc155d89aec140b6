"""A network as records: tracing, folding, shapes, and the numpy and torch references. Records need no torch."""

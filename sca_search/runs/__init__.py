"""The run folder on disk: paths, trials.csv, goal and chosen trial, candidates, provenance. Needs no torch."""

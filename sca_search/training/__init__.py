"""Training: the task, the Lightning loop, losses, metrics, evaluation, checkpoints and sensitivity."""

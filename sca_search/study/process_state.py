"""Restores the state of the process that a study changes: a study may run inside another program."""

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import optuna
import torch

# Lightning's Trainer handles these two; a study handles SIGINT and SIGTERM.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")


@contextmanager
def process_state_restored() -> Iterator[None]:
    """Restore random states, torch's number of threads, Optuna's verbosity and signal handlers, also after an error."""
    with ExitStack() as restored:
        restored.callback(random.setstate, random.getstate())
        restored.callback(np.random.set_state, np.random.get_state())
        restored.callback(torch.set_rng_state, torch.get_rng_state())
        if torch.cuda.is_available():
            restored.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
        restored.callback(torch.set_num_threads, torch.get_num_threads())
        restored.callback(optuna.logging.set_verbosity, optuna.logging.get_verbosity())
        if threading.current_thread() is threading.main_thread():  # no other thread can set handlers
            for number in (getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)):
                if (handler := signal.getsignal(number)) is not None:  # None: set by C code
                    restored.callback(signal.signal, number, handler)
        yield

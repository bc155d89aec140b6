"""What a damaged file of a run raises deep inside of what is made of it, as one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sca_search.errors import RunError

# The last but one by Optuna, of rows that lack what their own kind calls for.
_RAISED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RecursionError)


@contextmanager
def damage_refused(where: Path, what: str) -> Iterator[None]:
    """Turns what values of another kind than ours raise into a RunError. Only for code that reads, and asks nothing of
    a user's own code: there the same errors are faults of that."""
    try:
        yield
    except _RAISED as error:
        raise RunError(f"{where}: cannot be {what}, a file in it is damaged: {repr(error)[:300]}") from error

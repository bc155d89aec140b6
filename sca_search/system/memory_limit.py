"""A machine's memory that does not suffice, as an error of ours."""

import contextlib
from collections.abc import Iterator

from sca_search.errors import LimitError

# How torch says that there is no memory, on the processor and on others; the last of a size beyond any machine's.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")


@contextlib.contextmanager
def memory_limits() -> Iterator[None]:
    """LimitError where there is no memory for what is done inside."""
    try:
        yield
    except MemoryError as error:
        raise LimitError("ran out of memory") from error
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _OUT_OF_MEMORY):
            raise
        raise LimitError(f"ran out of memory: {str(error).splitlines()[0]}") from error

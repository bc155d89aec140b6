"""Which version of the run folder's layout a run was written in, as a number in its about.json.

| format | what changed |
| --- | --- |
| 1 | the first; a run without a number is of it |

A change that older versions of sca-search could not read raises the number. Older formats stay readable.
"""

import json
from pathlib import Path

from sca_search.errors import RunError

FORMAT = 1


def require_known_format(about_file: Path) -> None:
    """Raises RunError where a newer sca-search wrote the run; what else is wrong with the file is found where it is
    read."""
    try:
        about = json.loads(about_file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return
    given = about.get("format", 1) if isinstance(about, dict) else 1
    if type(given) is not int or given < 1:
        raise RunError(f"{about_file}: format must be a whole number from 1, got {str(given)[:80]}")
    if given > FORMAT:
        raise RunError(
            f"{about_file.parent}: was written by a newer sca-search, as a run folder of format {str(given)[:20]}; "
            f"this one reads up to {FORMAT}"
        )

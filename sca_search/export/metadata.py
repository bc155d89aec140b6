"""The metadata of an export folder, with which it can be verified and described without the run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sca_search.data.input_spec import InputSpec
from sca_search.errors import ExportError
from sca_search.export.layout import METADATA_FILE, C
from sca_search.system.files import require_regular

VERSION = 2


@dataclass(frozen=True)
class Metadata:
    """Everything except the model."""

    version: int
    input: InputSpec
    ternary_layers: tuple[str, ...]
    zeros: dict[str, tuple[int, int]]  # layer -> zeros and weights that the study claims
    half: bool
    largest_values: dict[str, float] | None = None  # largest magnitude per value: the scales of integer activations
    state_file: str | None = None  # the state in the run, relative to the export folder
    about: Mapping[str, Any] = field(default_factory=dict)


METADATA = TypeAdapter(Metadata)


def read_metadata(folder: Path) -> Metadata:
    """ExportError unless the folder is an export with valid metadata."""
    path = folder / METADATA_FILE
    if not folder.is_dir():
        raise ExportError(f"{folder}: there is no such folder")
    if not path.is_file():
        raise ExportError(f"{folder}: is not an export folder, it has no {path.name}")
    require_regular(path, ExportError)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("version", VERSION) != VERSION:
            raise ExportError(f"{path} must have version {VERSION}, got {str(content['version'])[:80]}; export again")
        return METADATA.validate_python(content)
    except (OSError, ValueError, RecursionError) as error:
        first = str(error).splitlines()[0]
        raise ExportError(f"{path} cannot be read as the metadata of an export: {first}") from error


def require_c(folder: Path) -> None:
    """ExportError unless the folder is an export with C source."""
    read_metadata(folder)
    if not (folder / C).is_file():
        raise ExportError(f"{folder}: contains no {C}; sca-search export --format packed,c writes it")

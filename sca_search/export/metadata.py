"""The metadata of an export folder, with which it can be verified and described without the run."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sca_search.data.input_spec import InputSpec
from sca_search.errors import ExportError
from sca_search.export.graph.network import Network
from sca_search.system.files import write_json_atomic

VERSION = 2


@dataclass(frozen=True)
class Facts:
    """Everything but the model itself."""

    version: int
    input: InputSpec
    ternary_layers: tuple[str, ...]
    zeros: dict[str, tuple[int, int]]  # layer -> zeros and weights that the study claims
    half: bool
    largest_values: dict[str, float] | None = None  # largest magnitude per value: the scales of integer activations
    state_file: str | None = None  # the state in the run, relative to the export folder
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, network: Network, folder: Path, *, half: bool, largest_values: Mapping[str, float] | None = None
    ) -> "Facts":
        """Of a network that is exported into a folder."""
        state = network.state_file
        return cls(
            version=VERSION,
            input=network.input,
            ternary_layers=network.ternary_layers,
            zeros=dict(network.claimed_zeros()),
            half=half,
            largest_values=None if largest_values is None else dict(largest_values),
            # a relative path stays valid when both folders are moved together
            state_file=os.path.relpath(state, folder) if state is not None else None,
            about=network.about,
        )


_READER = TypeAdapter(Facts)


def write_facts(path: Path, facts: Facts) -> None:
    write_json_atomic(path, _READER.dump_python(facts, mode="json"))


def read_facts(path: Path) -> Facts:
    """ExportError unless the file exists and is valid."""
    if not path.is_file():
        raise ExportError(f"{path.parent}: is not an export folder, it has no {path.name}")
    try:
        facts = _READER.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise ExportError(f"{path} cannot be read as the metadata of an export: {first}") from error
    if facts.version != VERSION:
        raise ExportError(f"{path} is of version {facts.version}, version {VERSION} is known")
    return facts

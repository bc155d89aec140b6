"""Writes a whole export folder: the formats, metadata and a model card; then verifies it.

The folder is made under a temporary name and renamed: it is complete or absent.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sca_search.errors import ExportError, unknown_name
from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.source import write_c
from sca_search.export.graph.network import Network
from sca_search.export.graph.records import Graph
from sca_search.export.integer.model import IntegerModel, integer_model
from sca_search.export.integer.reference import largest_values
from sca_search.export.latency.tune import tune
from sca_search.export.layout import (
    CARD_FILE,
    FACTS_FILE,
    INTEGER_VECTORS_FILE,
    ONNX,
    PACKED,
    PROGRAM,
    STATE,
    STUDY_FILE,
    VECTORS_FILE,
    C,
)
from sca_search.export.metadata import Facts, read_facts, write_facts
from sca_search.export.model_card import model_card
from sca_search.export.onnx import onnx_missing
from sca_search.export.open import Reference
from sca_search.export.packed.format import round_to_half, write_packed
from sca_search.export.packed.test_vectors import write_vectors
from sca_search.export.state_dict import save_plain
from sca_search.export.torch_program import write_program
from sca_search.export.verify import USUAL_SECONDS, Verification, references_of, verify, with_integers
from sca_search.system.files import new_folder, write_text_atomic

FORMATS = ("packed", "c", "onnx", "torch")

References = tuple[Reference, ...]
ACTIVATIONS = ("float", "int8")


@dataclass(frozen=True)
class ExportOptions:
    """What is written, and how."""

    formats: tuple[str, ...] = FORMATS
    half: bool = False  # all numbers but trits as float16
    int2: bool = False  # ONNX with two bits per ternary weight
    seconds: float = USUAL_SECONDS  # time limit per format on the validation split
    replace: bool = False  # overwrite an existing export
    tune: bool = False  # C with the kernels that are fastest on this machine
    stored: bool = False  # C with its weights stored as the kernels read them
    activations: str = "float"  # of C; one of ACTIVATIONS
    say: Callable[[str], None] = field(default=lambda _line: None)


@dataclass(frozen=True)
class _Content:
    """What is written."""

    network: Network
    graph: Graph
    references: References
    integer: IntegerModel | None  # the graph with integer activations, if C has them


Writer = Callable[[Path, _Content, ExportOptions], None]


@dataclass(frozen=True)
class Exported:
    """A finished export."""

    folder: Path
    files: tuple[str, ...]
    verification: Verification
    left_out: tuple[str, ...]  # sentences


def parse_formats(text: str) -> tuple[str, ...]:
    """ "packed,c" -> ("packed", "c"), in the order of FORMATS."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in FORMATS:
            raise ExportError(unknown_name("format", name, FORMATS))
    if not names:
        raise ExportError(f"--format must name at least one of {', '.join(FORMATS)}")
    return tuple(name for name in FORMATS if name in names)


def export_network(folder: Path, network: Network, options: ExportOptions | None = None) -> Exported:
    """Exports a network; ExportError, before anything is written, if a format cannot express it."""
    options = options or ExportOptions()
    check_target(folder, replaced=options.replace)
    formats, left_out = _possible(options)
    options.say("reading the network")
    graph = network.graph()
    integer = _integer_model(network, graph, options)
    references = references_of(network, graph, half=options.half)
    references = references if integer is None else with_integers(references, integer)
    content = _Content(network, graph, references, integer)
    with new_folder(folder) as new:
        for name in formats:
            options.say(f"writing {name}")
            _WRITERS[name](new, content, options)
        if "packed" not in formats or options.half:
            write_vectors(new / VECTORS_FILE, references[0].vectors)
        largest = None if integer is None else integer.largest
        facts = Facts.of(network, folder, half=options.half, largest_values=largest)
        write_facts(new / FACTS_FILE, facts)
        if network.study_toml is not None:
            write_text_atomic(new / STUDY_FILE, network.study_toml)
        options.say("verifying")
        verification = verify(new, references, written_here=True, seconds=options.seconds)
        write_text_atomic(new / CARD_FILE, model_card(new, facts, graph, verification))
        files = tuple(sorted(str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()))
    return Exported(folder, files, verification, left_out)


def _integer_model(network: Network, graph: Graph, options: ExportOptions) -> IntegerModel | None:
    """Calibrated on training images, if requested."""
    if options.activations not in ACTIVATIONS:
        raise ExportError(unknown_name("kind of activations", options.activations, ACTIVATIONS))
    if options.activations == "float":
        return None
    if "c" not in options.formats:
        raise ExportError("--activations int8 is for C: --format must include c")
    if options.tune:
        raise ExportError("--tune times the kernels of float activations: it cannot be used with --activations int8")
    if network.training is None:
        raise ExportError("--activations int8 calibrates its scales on training images, and there are none")
    options.say("calibrating on training images")
    return integer_model(graph, largest_values(graph, network.training.batches()))


def check_target(folder: Path, *, replaced: bool) -> None:
    """Rejects a folder that is not empty, unless it is an export that may be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ExportError(f"{folder} must be a folder, it is a file")
    if not any(folder.iterdir()) or (replaced and _is_export(folder)):
        return
    hint = "choose another --out" if replaced else "choose another --out, or replace an export with --force"
    raise ExportError(f"{folder} must be empty, it holds files; {hint}")


def _is_export(folder: Path) -> bool:
    try:
        read_facts(folder / FACTS_FILE)
    except ExportError:
        return False
    return True


def _possible(options: ExportOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The formats that can be written on this machine, and a sentence for each of the others."""
    missing = onnx_missing() if "onnx" in options.formats else None
    formats = tuple(name for name in options.formats if name != "onnx" or missing is None)
    if not formats:
        raise ExportError(missing or "no format was requested")
    return formats, () if missing is None else (missing,)


def _write_packed(new: Path, content: _Content, options: ExportOptions) -> None:
    stored = round_to_half(content.graph) if options.half else content.graph
    vectors = next(each.vectors for each in content.references if PACKED in each.files)
    write_packed(new / PACKED, stored, vectors, half=options.half)


def _write_c(new: Path, content: _Content, options: ExportOptions) -> None:
    (new / C).parent.mkdir()
    kernels = tune(content.graph, say=options.say) if options.tune else {}
    vectors = next(each.vectors for each in content.references if C in each.files)
    write_c((new / C).parent, content.graph, vectors, COptions(kernels, options.stored, content.integer))
    if content.integer is not None:
        write_vectors(new / INTEGER_VECTORS_FILE, vectors)


def _write_onnx(new: Path, content: _Content, options: ExportOptions) -> None:
    # here, because the package onnx is an extra
    from sca_search.export.onnx.write import write_onnx  # noqa: PLC0415

    write_onnx(new / ONNX, content.graph, int2=options.int2)


def _write_torch(new: Path, content: _Content, _options: ExportOptions) -> None:
    network = content.network
    module = copy.deepcopy(network.normalised()).eval()
    write_program(new / PROGRAM, module, network.input.input_shape)
    save_plain(new / STATE, network.model, network.ternary_layers, network.input)


_WRITERS: dict[str, Writer] = {"packed": _write_packed, "c": _write_c, "onnx": _write_onnx, "torch": _write_torch}

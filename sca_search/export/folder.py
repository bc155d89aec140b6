"""Writes a whole export folder: the formats, metadata and a model card; then verifies it.

The folder is made under a temporary name, and renamed or exchanged with an earlier export: it is complete or absent.
"""

import copy
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sca_search.errors import ExportError, unknown_name
from sca_search.export import layout as files
from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.source import write_c
from sca_search.export.graph.network import Network
from sca_search.export.graph.records import Graph, TestVectors
from sca_search.export.integer.model import IntegerModel, integer_model
from sca_search.export.integer.reference import largest_values
from sca_search.export.latency.tune import tune
from sca_search.export.metadata import METADATA, VERSION, Metadata, read_metadata
from sca_search.export.model_card import model_card
from sca_search.export.onnx import onnx_missing
from sca_search.export.open import Reference
from sca_search.export.packed.format import write_packed
from sca_search.export.packed.test_vectors import write_vectors
from sca_search.export.state_dict import save_plain
from sca_search.export.verify import USUAL_SECONDS, Verification, references_of, verify, with_integers
from sca_search.system.files import atomic_path, is_leftover, new_folder, write_json_atomic, write_text_atomic

FORMATS = ("packed", "c", "onnx", "torch")

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
class Exported:
    """A finished export."""

    folder: Path
    files: tuple[str, ...]
    verification: Verification
    left_out: tuple[str, ...]  # a sentence for each format that cannot be written on this machine


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
    missing = onnx_missing() if "onnx" in options.formats else None
    formats = [name for name in options.formats if name != "onnx" or missing is None]
    if not formats:
        raise ExportError(missing or "no format was requested")
    options.say("reading the network")
    graph = network.graph()
    integer = _integer_model(network, graph, options)
    references = references_of(network, graph, half=options.half)
    references = references if integer is None else with_integers(references, integer)
    writer = _Writer(network, graph, references, integer, options)
    with new_folder(folder) as new:
        for name in formats:
            options.say(f"writing {name}")
            getattr(writer, f"write_{name}")(new)
        if "packed" not in formats or options.half:
            write_vectors(new / files.VECTORS_FILE, references[0].vectors)
        metadata = writer.metadata(folder)
        write_json_atomic(new / files.METADATA_FILE, METADATA.dump_python(metadata, mode="json"))
        if network.study_toml is not None:
            write_text_atomic(new / files.STUDY_FILE, network.study_toml)
        options.say("verifying")
        verification = verify(new, references, written_here=True, seconds=options.seconds)
        write_text_atomic(new / files.CARD_FILE, model_card(new, metadata, graph, verification))
        written = tuple(sorted(str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()))
    return Exported(folder, written, verification, () if missing is None else (missing,))


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
    if all(map(is_leftover, folder.iterdir())):  # an export may have been killed
        return
    if replaced:
        with suppress(ExportError):
            read_metadata(folder)
            return
    hint = "choose another --out" if replaced else "choose another --out, or replace an export with --force"
    raise ExportError(f"{folder} must be empty, it holds files; {hint}")


@dataclass(frozen=True)
class _Writer:
    """Writes the formats and the metadata of one export; a method for each of FORMATS."""

    network: Network
    graph: Graph
    references: tuple[Reference, ...]
    integer: IntegerModel | None  # the graph with integer activations, if C has them
    options: ExportOptions

    def write_packed(self, new: Path) -> None:
        write_packed(new / files.PACKED, self.graph, self._vectors(files.PACKED), half=self.options.half)

    def write_c(self, new: Path) -> None:
        folder = (new / files.C).parent
        folder.mkdir()
        kernels = tune(self.graph, say=self.options.say) if self.options.tune else {}
        vectors = self._vectors(files.C)
        write_c(folder, self.graph, vectors, COptions(kernels, self.options.stored, self.integer))
        if self.integer is not None:
            write_vectors(new / files.INTEGER_VECTORS_FILE, vectors)

    def write_onnx(self, new: Path) -> None:
        # here, because the package onnx is an extra
        from sca_search.export.onnx.write import write_onnx  # noqa: PLC0415

        write_onnx(new / files.ONNX, self.graph, int2=self.options.int2)

    def write_torch(self, new: Path) -> None:
        """The state dict, and a .pt2 program: the network as torch itself runs it, without its Python code."""
        save_plain(new / files.STATE, self.network.model, self.network.ternary_layers, self.network.input)
        module = copy.deepcopy(self.network.normalized()).eval()
        # Sizes 0 and 1 are special in torch.export's symbolic shapes; the example batch must be larger.
        images = torch.zeros(2, *self.network.input.input_shape)
        batch = torch.export.Dim("batch", min=1)
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # torch warns about its own internals, nothing that a user can change
                program = torch.export.export(module, (images,), dynamic_shapes=({0: batch},))
                with atomic_path(new / files.PROGRAM) as temporary:
                    torch.export.save(program, temporary)
        except (RuntimeError, ValueError, torch._dynamo.exc.TorchDynamoException) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ExportError(f"torch.export cannot write the network: {reason[0]}") from error

    def metadata(self, folder: Path) -> Metadata:
        """Of the export that will be in this folder."""
        network, state = self.network, self.network.state_file
        zeros, half = dict(network.claimed_zeros()), self.options.half
        largest = None if self.integer is None else dict(self.integer.largest)
        # a relative path stays valid when both folders are moved together
        place = os.path.relpath(state, folder) if state is not None else None
        return Metadata(VERSION, network.input, network.ternary_layers, zeros, half, largest, place, network.about)

    def _vectors(self, file: str) -> TestVectors:
        return next(each.vectors for each in self.references if file in each.files)

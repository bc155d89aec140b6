"""The C export as a function of numpy arrays: compiled on this machine, cached for the user."""

import ctypes
import math
import re
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sca_search.errors import ExportError
from sca_search.export.c.amalgamate import kernel_file
from sca_search.export.c.compiler import Compiler, build_library, require_compiler
from sca_search.export.c.source import write_c
from sca_search.export.graph.agreement import agreement
from sca_search.export.graph.records import Floats, Shape, TestVectors
from sca_search.export.layout import PACKED, C
from sca_search.export.packed.format import read_packed

_ALIGNMENT = 64  # bytes of a cache line, and of the longest vector


def compile_model(
    path: str | Path, *, threads: int = 1, compiler: Compiler | None = None, flags: tuple[str, ...] = ()
) -> "CompiledModel":
    """An exported model as a function from images to logits, at the speed of the C export.

    `path` is an export folder, the folder of its C source, or a packed file, whose C source is then written first. It
    is compiled by the system's compiler (or that of the extra [cross]) for this machine, once: the library is cached.
    Compiling a folder runs its code, so compile only folders that you trust. Several threads split the images of a
    batch; a single image uses one thread.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    found = Path(path)
    packed = found if found.is_file() else found / PACKED
    folder = next((each for each in (found / Path(C).parent, found) if (each / "model.c").is_file()), None)
    if folder is not None:
        model = compile_source(folder, compiler, flags)
    elif packed.is_file():
        model = _from_packed(packed, compiler, flags)
    else:
        raise ExportError(f"{found}: is neither a packed model nor a folder that holds {C}, model.c or {PACKED}")
    model.use_threads(threads)
    return model


class CompiledModel:
    """A model in a shared library, with its own memory.

    Thread-safe: calls run one after the other.
    """

    def __init__(self, library: Path, header: str) -> None:
        try:
            self._library = ctypes.CDLL(str(library))
            inputs, outputs = self._number("inputs"), self._number("outputs")
            self.table_bytes, self.scratch_bytes = self._number("tables"), 4 * self._number("scratch")
            names = (ctypes.c_char_p * outputs).in_dll(self._library, "model_class_names")
        except (OSError, ValueError) as error:
            raise ExportError(f"{library} cannot be loaded as a model: {error}") from error
        self.library_path = library
        self.class_names = tuple((name or b"").decode() for name in names)
        self.input_shape = _shape(header, inputs)
        self._tables = aligned(self.table_bytes)
        self.use_threads(1)
        self._lock = threading.Lock()
        self.initialize()

    def initialize(self) -> None:
        """Expand the weights into the tables, once, when the model is created."""
        self._library.library_init(address(self._tables))

    def use_threads(self, threads: int) -> None:
        """The number of threads for a batch, each with its own scratch memory."""
        self._scratches = [aligned(self.scratch_bytes) for _ in range(threads)]

    def __call__(self, images: ArrayLike) -> Floats:
        """The logits of one image, or of a batch of them: (classes,) or (batch, classes)."""
        checked = self._checked(np.asarray(images))
        batch = checked.reshape(-1, *self.input_shape)
        logits = np.empty((len(batch), len(self.class_names)), dtype=np.float32)
        with self._lock:
            self._predict_batch(batch, logits)
        return logits if checked.ndim > len(self.input_shape) else logits[0]

    def _predict_batch(self, batch: Floats, logits: Floats) -> None:
        count = max(1, min(len(self._scratches), len(batch)))
        if count == 1:
            self._predict(self._scratches[0], batch, logits)
            return
        parts = np.array_split(batch, count), np.array_split(logits, count)
        with ThreadPoolExecutor(count) as pool:  # ctypes releases the GIL
            list(pool.map(self._predict, self._scratches, *parts))

    def _predict(self, scratch: NDArray[np.uint8], batch: Floats, logits: Floats) -> None:
        self._library.library_predict(
            address(self._tables), address(scratch), address(batch), address(logits), ctypes.c_size_t(len(batch))
        )

    @property
    def addresses(self) -> tuple[ctypes.c_void_p, ...]:
        """For a C program that times it: the function that predicts, the tables, the first thread's scratch memory."""
        function = ctypes.cast(self._library.library_predict, ctypes.c_void_p)
        return function, address(self._tables), address(self._scratches[0])

    def _checked(self, images: NDArray[Any]) -> Floats:
        rank = len(self.input_shape)
        if images.dtype.kind not in "fiub":
            raise ValueError(f"images must be numbers, got an array of {images.dtype}")
        if images.shape[-rank:] != self.input_shape or images.ndim not in (rank, rank + 1):
            shape = ", ".join(map(str, self.input_shape))
            raise ValueError(f"images must have the shape ({shape}) or (batch, {shape}), got {images.shape}")
        return np.ascontiguousarray(images, dtype=np.float32)

    def _number(self, name: str) -> int:
        return ctypes.c_size_t.in_dll(self._library, f"library_{name}").value


def aligned(size_bytes: int) -> NDArray[np.uint8]:
    """Zeroed memory aligned to a cache line."""
    memory = np.zeros(size_bytes + _ALIGNMENT, dtype=np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size_bytes]


def address(array: NDArray[Any]) -> ctypes.c_void_p:
    """The address of an array."""
    return ctypes.c_void_p(array.ctypes.data)


def compile_source(
    folder: Path, compiler: Compiler | None = None, flags: tuple[str, ...] = (), *, keep: bool = True
) -> CompiledModel:
    """The C source in a folder, compiled for this machine unless flags say otherwise."""
    compiler = compiler or require_compiler()
    try:
        sources = {name: (folder / name).read_text(encoding="utf-8") for name in ("model.c", "model.h")}
    except (OSError, ValueError) as error:
        raise ExportError(f"{folder} cannot be read as a C model: {error}") from error
    sources["library.c"] = kernel_file("library.c")
    return CompiledModel(build_library(sources, flags or compiler.native(), compiler, keep=keep), sources["model.h"])


def _from_packed(path: Path, compiler: Compiler | None, flags: tuple[str, ...]) -> CompiledModel:
    graph, vectors = read_packed(path)
    with tempfile.TemporaryDirectory() as temporary:
        write_c(Path(temporary), graph, vectors)
        model = compile_source(Path(temporary), compiler, flags)
    require_answers(str(path), model, vectors)
    return model


def require_answers(what: str, model: CompiledModel, vectors: TestVectors) -> None:
    """ExportError unless the model reproduces its test vectors."""
    if vectors.images.shape[1:] != model.input_shape or vectors.logits.shape[1:] != (len(model.class_names),):
        raise ExportError(f"{what}: its test vectors belong to another model")
    found = agreement(model(vectors.images), vectors.logits)
    if not found.holds:
        raise ExportError(f"{what}: the compiled model does not reproduce its test vectors: {found}")


def _shape(header: str, inputs: int) -> Shape:
    """The shape of an image in model.h; a vector if it has none."""
    for spelled in re.findall(r"\d+(?: x \d+)+", header):
        shape = tuple(map(int, spelled.split(" x ")))
        if math.prod(shape) == inputs:
            return shape
    return (inputs,)

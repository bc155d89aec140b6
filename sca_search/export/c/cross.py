"""A C export on other machines: its self-test, and its size on a microcontroller.

The self-test is cross-compiled here and run under an emulator if one is installed. Sizes are those of a Cortex-M4 with
its floating-point unit and no operating system, read from the headers of the object file, without tools of the target.
"""

import importlib.util
import platform
import shutil
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sca_search.errors import ExportError, unknown_name
from sca_search.export.c.compiler import PORTABLE, Compiler, run_program, zig_compiler

_WRITE, _ALLOCATE, _EXECUTE = 1, 2, 4
_NO_BITS = 8


@dataclass(frozen=True)
class SectionBytes:
    """Bytes of the sections that are loaded."""

    code: int
    constants: int
    data: int  # initialized variables
    zeroed: int  # variables that start as zero, which need no bytes in a file

    @property
    def flash(self) -> int:
        """Bytes of a device's flash memory."""
        return self.code + self.constants + self.data

    @property
    def ram(self) -> int:
        """Bytes of its RAM, without the stack."""
        return self.data + self.zeroed


def section_bytes(content: bytes) -> SectionBytes:
    """Of a little-endian ELF file of 32 or 64 bits."""
    if content[:4] != b"\x7fELF" or len(content) < 64 or content[5] != 1 or content[4] not in (1, 2):
        raise ExportError("an object file must be a little-endian ELF file")
    # Begin, size and number of the section headers; and the type, flags and size in each.
    if content[4] == 1:
        (begin,), (size, count) = struct.unpack_from("<I", content, 32), struct.unpack_from("<HH", content, 46)
        kind_flags_size = "<4xII8xI"
    else:
        (begin,), (size, count) = struct.unpack_from("<Q", content, 40), struct.unpack_from("<HH", content, 58)
        kind_flags_size = "<4xIQ16xQ"
    found = {"code": 0, "constants": 0, "data": 0, "zeroed": 0}
    try:
        for index in range(count):
            kind, flags, length = struct.unpack_from(kind_flags_size, content, begin + index * size)
            writable = "data" if flags & _WRITE else "constants"
            if flags & _ALLOCATE:
                found["zeroed" if kind == _NO_BITS else "code" if flags & _EXECUTE else writable] += length
    except struct.error as error:
        raise ExportError("an object file ends before its section headers do") from error
    return SectionBytes(**found)


Outcome = Literal["ran", "compiled", "failed"]


@dataclass(frozen=True)
class Build:
    """A way to compile for a target: an instruction set, and the flags that select it."""

    instructions: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """A kind of machine: the compiler's triple, the emulator, and `platform.machine()` there."""

    triple: str
    runner: str
    machines: tuple[str, ...]
    builds: tuple[Build, ...]


TARGETS = {
    "aarch64-linux": Target("aarch64-linux-musl", "qemu-aarch64", ("aarch64", "arm64"), (Build("NEON"),)),
    "armv7-linux": Target(
        "arm-linux-musleabihf",
        "qemu-arm",
        ("armv7l",),
        (Build("NEON", ("-mcpu=generic+v7a",)), Build("VFP", ("-mcpu=generic+v7a-neon+vfp3d16",))),
    ),
    "riscv64-linux": Target("riscv64-linux-musl", "qemu-riscv64", ("riscv64",), (Build("RV64GC"),)),
    "wasm32-wasi": Target("wasm32-wasi", "wasmtime", (), (Build("SIMD", ("-msimd128",)), Build("without SIMD"))),
}


@dataclass(frozen=True)
class TargetCheck:
    """The outcome of the self-test on one target, and the output of it or a tool."""

    target: str
    instructions: str
    outcome: Outcome
    said: str


def parse_targets(text: str) -> tuple[str, ...]:
    """ "wasm32-wasi,aarch64-linux" -> the names in the order of TARGETS."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        require_target(name)
    if not names:
        raise ExportError(f"--target must name at least one of {', '.join(TARGETS)}")
    return tuple(name for name in TARGETS if name in names)


def require_target(name: str) -> None:
    """ExportError unless there is such a target."""
    if name not in TARGETS:
        raise ExportError(unknown_name("target", name, TARGETS))


def require_cross_compiler() -> Compiler:
    """The compiler of the extra [cross], or ExportError."""
    if compiler := zig_compiler():
        return compiler
    raise ExportError("ziglang is not installed, which compiles for other machines; pip install 'sca-search[cross]'")


def check_target(source: Path, name: str) -> tuple[TargetCheck, ...]:
    """Compiles the self-test of a C export for a target and runs it if possible."""
    compiler, target, checks = require_cross_compiler(), TARGETS[name], []
    for build in target.builds:
        with tempfile.TemporaryDirectory() as temporary:
            program = Path(temporary) / "check"
            try:
                _compile(compiler, source, target, build, program)
                outcome, said = _run(target, program)
            except ExportError as error:
                outcome, said = "failed", str(error)
            checks.append(TargetCheck(name, build.instructions, outcome, said))
    return tuple(checks)


def _compile(compiler: Compiler, source: Path, target: Target, build: Build, program: Path) -> None:
    """Only the model is compiled with the build's flags: the C library is then the same for all builds of a target."""
    objects = []
    for name, flags in (("model", build.flags), ("check", ())):
        objects.append(str(program.with_name(f"{name}.o")))
        here = ["-target", target.triple, *PORTABLE, *flags, "-c", "-o", objects[-1], str(source / f"{name}.c")]
        compiler.run(here)
    compiler.run(["-target", target.triple, "-static", "-o", str(program), *objects, "-lm"])


def _run(target: Target, program: Path) -> tuple[Outcome, str]:
    if platform.machine() in target.machines:
        return "ran", run_program([str(program)]).decode().strip()
    if target.runner == "wasmtime" and importlib.util.find_spec("wasmtime") is not None:
        return "ran", _run_wasm(program).strip()
    runner = shutil.which(target.runner) or shutil.which(f"{target.runner}-static")
    if runner is None:
        return "compiled", f"{target.runner} is not installed"
    return "ran", run_program([runner, str(program)]).decode().strip()


def _run_wasm(program: Path) -> str:
    # here, because the package is an extra
    import wasmtime  # noqa: PLC0415

    printed = program.with_suffix(".txt")
    settings = wasmtime.WasiConfig()
    settings.stdout_file = str(printed)
    engine = wasmtime.Engine()
    store, linker = wasmtime.Store(engine), wasmtime.Linker(engine)
    store.set_wasi(settings)
    linker.define_wasi()
    try:
        instance = linker.instantiate(store, wasmtime.Module.from_file(engine, str(program)))
        start = instance.exports(store)["_start"]
        assert isinstance(start, wasmtime.Func)
        start(store)
    except wasmtime.ExitTrap as trap:
        if trap.code != 0:
            raise ExportError(f"wasmtime ended with code {trap.code}: {printed.read_text()[-400:].strip()}") from trap
    except wasmtime.WasmtimeError as error:
        raise ExportError(f"wasmtime rejects the program: {error}") from error
    except wasmtime.Trap as trap:
        raise ExportError(f"wasmtime stopped the program: {trap}") from trap
    return printed.read_text()


# linux-musl only provides the headers of a C library: nothing is linked. Stacks are never unwound on such a device.
_MICROCONTROLLER = ("-target", "thumb-linux-musleabihf", "-mcpu=cortex_m4", "-std=c99", "-Os")
_NO_UNWINDING = ("-fno-unwind-tables", "-fno-asynchronous-unwind-tables")


def bare_metal_bytes(source: Path) -> SectionBytes:
    """Bytes of model.c's object file, its static memory included."""
    compiler = require_cross_compiler()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.o"
        compiler.run([*_MICROCONTROLLER, *_NO_UNWINDING, "-c", "-o", str(path), str(source / "model.c")])
        try:
            return section_bytes(path.read_bytes())
        except ExportError as error:
            raise ExportError(f"{source / 'model.c'}: {error}") from error

"""Finds a C compiler, compiles with it, and caches the results per user."""

import atexit
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sca_search.errors import ExportError, StorageError
from sca_search.system.files import atomic_path
from sca_search.system.machine import cache_folder, instruction_set

PORTABLE = ("-O3", "-std=c99")
_MOST_SECONDS = 600  # for a compilation, or for a few images


@dataclass(frozen=True)
class Compiler:
    """A C compiler by its command, such as ("gcc",) or ("python", "-P", "-m", "ziglang", "cc")."""

    command: tuple[str, ...]

    @functools.cache  # noqa: B019 - of few compilers, which are small
    def version(self) -> str:
        """Its version output; two compilers of one version build the same."""
        return run_program([*self.command, "--version"]).decode(errors="replace").strip()

    @functools.cache  # noqa: B019
    def takes(self, flag: str) -> bool:
        """Whether the compiler supports a flag, by compiling an empty file."""
        with tempfile.TemporaryDirectory() as temporary:
            source = Path(temporary) / "empty.c"
            source.write_text("int nothing;\n")
            try:
                run_program([*self.command, flag, "-c", "-o", str(source.with_suffix(".o")), str(source)])
            except ExportError:
                return False
        return True

    def native(self) -> tuple[str, ...]:
        """Flags for the fastest code on this machine."""
        return (*PORTABLE, "-march=native") if self.takes("-march=native") else PORTABLE

    def run(self, arguments: list[str]) -> None:
        """Raise ExportError with the compiler's output unless it succeeds."""
        run_program([*self.command, *arguments], name="zig" if "ziglang" in self.command else "")


def find_compiler() -> Compiler | None:
    """The compiler that CC names, else the system's, else the one of the extra [cross]."""
    if named := shlex.split(os.environ.get("CC", "")):
        found = shutil.which(named[0])
        return Compiler((found, *named[1:])) if found else None
    system = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    return Compiler((system,)) if system else zig_compiler()


def require_compiler() -> Compiler:
    """The compiler, or ExportError."""
    if compiler := find_compiler():
        return compiler
    raise ExportError(
        "no C compiler was found: CC names none, and there is no cc, gcc or clang; sca-search[cross] brings one"
    )


def zig_compiler() -> Compiler | None:
    """The compiler of the package ziglang, which compiles for any target; None where it is not installed."""
    found = importlib.util.find_spec("ziglang")
    # -P: the working folder, which may be somebody else's, is not searched for modules.
    return Compiler((sys.executable, "-P", "-m", "ziglang", "cc")) if found else None


def build_library(
    sources: Mapping[str, str], flags: tuple[str, ...], compiler: Compiler | None = None, *, keep: bool = True
) -> Path:
    """A shared library of these sources, by file name, built now or taken from the cache.

    Without `keep`, it is deleted when this process ends.
    """
    compiler = compiler or require_compiler()
    parts = [compiler.version(), *compiler.command, *flags, instruction_set()]
    name = digest(parts + [part for source in sources.items() for part in source])
    name += ".dll" if sys.platform == "win32" else ".so"
    known = (cache_folder() if keep else _own_folder()) / name
    _require_private(known.parent)
    if known.is_file():
        _require_private(known)
        return known
    try:
        return _build(known, sources, flags, compiler)
    except StorageError:  # a home folder that is not writable, or full
        return _build(_own_folder() / name, sources, flags, compiler)


def run_program(command: list[str], stdin: bytes = b"", name: str = "") -> bytes:
    """A program's standard output; ExportError, with its own or another name, unless it succeeds."""
    name = name or Path(command[0]).name
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=_MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExportError(f"{name} cannot be run to its end: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
        raise ExportError(f"{name} failed with code {done.returncode}: {said[-400:]}")
    return done.stdout


def _build(path: Path, sources: Mapping[str, str], flags: tuple[str, ...], compiler: Compiler) -> Path:
    make_private(path.parent)
    with tempfile.TemporaryDirectory() as temporary, atomic_path(path) as library:
        folder = Path(temporary)
        for name, text in sources.items():
            (folder / name).write_text(text, encoding="utf-8")
        files = [str(folder / name) for name in sources if name.endswith(".c")]
        compiler.run([*flags, "-shared", "-fPIC", "-o", str(library), *files, "-lm"])
    path.chmod(0o700)  # whatever the umask
    return path


def make_private(folder: Path) -> None:
    """Makes a folder that only this user can write to: its files are loaded and run."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror or error}") from error


def _require_private(path: Path) -> None:
    """ExportError if another user could have written a file or folder of the cache."""
    try:
        found = path.stat()
    except OSError:
        return  # there is none
    mode = stat.S_IMODE(found.st_mode)
    if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or mode & 0o022):
        raise ExportError(
            f"{path}: must belong to you and be writable only by you, because code in it is run, "
            f"got user {found.st_uid} and mode {mode:o}; remove it"
        )


@functools.cache
def _own_folder() -> Path:
    """A folder of this process only."""
    folder = Path(tempfile.mkdtemp(prefix="sca-search-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def digest(parts: Iterable[str]) -> str:
    """A hash of texts. Lengths keep ("ab", "c") and ("a", "bc") apart."""
    return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()[:32]

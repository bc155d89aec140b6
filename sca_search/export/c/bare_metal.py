"""How large a C export is on a microcontroller: a Cortex-M4 with its floating-point unit, no operating system."""

import tempfile
from pathlib import Path

from sca_search.errors import ExportError
from sca_search.export.c.cross import require_cross_compiler
from sca_search.export.c.elf import SectionBytes, section_bytes

# The Linux in it only brings headers of a C library: nothing is linked. Nobody unwinds a stack on such a device.
FLAGS = (
    "-target",
    "thumb-linux-musleabihf",
    "-mcpu=cortex_m4",
    "-std=c99",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
)


def bare_metal_bytes(source: Path, optimise: str = "-Os") -> SectionBytes:
    """Bytes of model.c's object file, its static memory included."""
    compiler = require_cross_compiler()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.o"
        compiler.run([*FLAGS, optimise, "-c", "-o", str(path), str(source / "model.c")])
        try:
            return section_bytes(path.read_bytes())
        except ExportError as error:
            raise ExportError(f"{source / 'model.c'}: {error}") from error

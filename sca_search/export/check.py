"""An export's C source on other machines: its self-test, and its size on a microcontroller."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.cross import SectionBytes, TargetCheck, bare_metal_bytes, check_target, require_cross_compiler
from sca_search.export.c.source import write_c
from sca_search.export.layout import PACKED, C
from sca_search.export.metadata import require_c
from sca_search.export.packed.format import read_packed


@dataclass(frozen=True)
class CheckReport:
    """What ran, what was only compiled, and the size of the model on a microcontroller."""

    checks: tuple[TargetCheck, ...]
    sizes: dict[str, SectionBytes]  # by how the weights are stored

    @property
    def holds(self) -> bool:
        return all(check.outcome != "failed" for check in self.checks)


def check_folder(
    folder: Path, targets: tuple[str, ...], say: Callable[[str], None] = lambda _line: None
) -> CheckReport:
    """Compiles the self-test of an export folder for each target, and runs it if possible."""
    require_c(folder)
    require_cross_compiler()
    source = (folder / C).parent
    checks: list[TargetCheck] = []
    for target in targets:
        say(f"compiling for {target}")
        checks += check_target(source, target)
    say("compiling for a Cortex-M4")
    return CheckReport(tuple(checks), {"as exported": bare_metal_bytes(source), **_stored_both_ways(folder / PACKED)})


def _stored_both_ways(packed: Path) -> dict[str, SectionBytes]:
    """Both ways to store weights; none if there is no packed model."""
    if not packed.is_file():
        return {}
    (graph, vectors), sizes = read_packed(packed), {}
    for how, stored in (("packed, expanded into RAM", False), ("stored as they are read", True)):
        with tempfile.TemporaryDirectory() as temporary:
            write_c(Path(temporary), graph, vectors, COptions(stored=stored))
            sizes[how] = bare_metal_bytes(Path(temporary))
    return sizes

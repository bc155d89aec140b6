"""Programs that some tests need and pip does not install: which one is missing, and how to get it."""

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

# What to install for a program, where the package has another name.
_PACKAGES = {"qemu-aarch64": "qemu-user", "qemu-arm": "qemu-user", "nm": "binutils", "setpriv": "util-linux"}
CLANG_SANITIZERS = "clang's sanitizers"


@cache
def missing_tool(name: str) -> str:
    """Why a tool cannot be used, in one sentence; empty if it can."""
    if name == CLANG_SANITIZERS:
        return missing_tool("clang") or _missing_sanitizers()
    return "" if shutil.which(name) else f"{name} is not installed: apt-get install {_PACKAGES.get(name, name)}"


def _missing_sanitizers() -> str:
    """Debian's clang comes without their library, which only linking shows."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["clang", "-fsanitize=address,undefined", "-xc", "-", "-o", str(Path(folder) / "a")]
        done = subprocess.run(
            command, input="int main(void) { return 0; }", capture_output=True, text=True, check=False
        )
    return "clang links no sanitizers: apt-get install libclang-rt-dev" if done.returncode else ""

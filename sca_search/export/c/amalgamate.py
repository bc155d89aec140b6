"""The C files of the package, put together into one: each file once, behind those that it includes."""

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from importlib import resources

_SYSTEM = re.compile(r"#include <(\w+\.h)>")
_LOCAL = re.compile(r'#include "([\w.]+)"')


def kernel_file(name: str) -> str:
    """The text of a file in kernels/."""
    return (resources.files(__package__) / "kernels" / name).read_text(encoding="utf-8")


@functools.cache
def kernels_hash() -> str:
    """Of all that decides how fast the C source of a model is: the kernels, and the Python that puts them together."""
    package = resources.files(__package__)
    generator = [file for file in package.iterdir() if file.name.startswith("c_") and file.name.endswith(".py")]
    files = sorted((*generator, *(package / "kernels").iterdir()), key=lambda file: file.name)
    texts = (f"{file.name} {len(text)} {text}" for file in files for text in [file.read_text(encoding="utf-8")])
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def amalgamate(names: Iterable[str], generated: Mapping[str, str]) -> str:
    """One text of the files and of all that they include; those that no file has are given as they are."""
    headers: set[str] = set()
    texts: list[str] = []
    seen: set[str] = set()

    def take(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        if name in generated:
            texts.append(generated[name])
            return
        kept: list[str] = []
        conditions = 0
        for line in kernel_file(name).splitlines():
            conditions += line.startswith("#if") - line.startswith("#endif")
            # A header that only some machines have stays under its condition.
            if conditions == 0 and (system := _SYSTEM.fullmatch(line)):
                headers.add(f"#include <{system[1]}>\n")
            elif local := _LOCAL.fullmatch(line):
                take(local[1])
            elif line != "#pragma once":
                kept.append(line)
        texts.append("\n".join(kept).strip() + "\n")

    for name in names:
        take(name)
    return "".join(sorted(headers)) + "\n" + "\n".join(texts)

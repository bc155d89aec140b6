"""The C files of the package, put together into one: each file once, behind those that it includes."""

import re
from collections.abc import Iterable, Mapping
from importlib import resources

_SYSTEM = re.compile(r"#include <(\w+\.h)>")
_LOCAL = re.compile(r'#include "([\w.]+)"')


def kernel_file(name: str) -> str:
    """The text of a file in kernels/."""
    return (resources.files(__package__) / "kernels" / name).read_text(encoding="utf-8")


def kernel_texts() -> list[str]:
    """The text of every file in kernels/, in the order of their names."""
    folder = resources.files(__package__) / "kernels"
    return [kernel_file(name) for name in sorted(file.name for file in folder.iterdir())]


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

"""Amalgamates C files of the package into one: each file once, after those that it includes."""

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
    """One text of the files and all their includes; `generated` has the text of includes that are not files."""
    headers: set[str] = set()
    texts: list[str] = []
    included: set[str] = set()

    def include(name: str) -> None:
        if name in included:
            return
        included.add(name)
        if name in generated:
            texts.append(generated[name])
            return
        lines: list[str] = []
        conditions = 0
        for line in kernel_file(name).splitlines():
            conditions += line.startswith("#if") - line.startswith("#endif")
            # A header that exists only on some machines stays under its condition.
            if conditions == 0 and (system := _SYSTEM.fullmatch(line)):
                headers.add(f"#include <{system[1]}>\n")
            elif local := _LOCAL.fullmatch(line):
                include(local[1])
            elif line != "#pragma once":
                lines.append(line)
        texts.append("\n".join(lines).strip() + "\n")

    for name in names:
        include(name)
    return "".join(sorted(headers)) + "\n" + "\n".join(texts)

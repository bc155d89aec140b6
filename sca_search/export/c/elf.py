"""What the sections of an object file take: read from its headers, so that no tool of the target is needed."""

import struct
from dataclasses import dataclass

from sca_search.errors import ExportError

_WRITE, _ALLOCATE, _EXECUTE = 1, 2, 4
_NO_BITS = 8


@dataclass(frozen=True)
class SectionBytes:
    """Bytes of the sections that are loaded."""

    code: int
    constants: int
    data: int  # initialised variables
    zeroed: int  # variables that begin as zeros, which take no room in a file

    @property
    def flash(self) -> int:
        """What lies in a device's permanent memory."""
        return self.code + self.constants + self.data

    @property
    def ram(self) -> int:
        """What lies in its working memory, but for the stack."""
        return self.data + self.zeroed


def section_bytes(content: bytes) -> SectionBytes:
    """Of a little-endian ELF file of 32 or 64 bits."""
    if content[:4] != b"\x7fELF" or len(content) < 64 or content[5] != 1 or content[4] not in (1, 2):
        raise ExportError("an object file must be a little-endian ELF file")
    # Where the headers of sections begin, their size and number; and of each its type, flags and size.
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
            if flags & _ALLOCATE:
                found[_kind(kind, flags)] += length
    except struct.error as error:
        raise ExportError("an object file ends before its section headers do") from error
    return SectionBytes(**found)


def _kind(kind: int, flags: int) -> str:
    if kind == _NO_BITS:
        return "zeroed"
    if flags & _EXECUTE:
        return "code"
    return "data" if flags & _WRITE else "constants"

"""MNIST's file format, looked at before torchvision reads it: its errors name neither the file nor what is wrong.

Four bytes 0, 0, 8 (for bytes) and the number of axes; the length of each axis in four bytes, the highest first; values.
"""

import math
import struct
from pathlib import Path

_BYTES = 8


def idx_fault(path: Path, axes: int) -> str:
    """What is wrong with a file of bytes with so many axes; empty where nothing is."""
    with path.open("rb") as file:
        head = file.read(4 + 4 * axes)
    if len(head) < 4 + 4 * axes:
        return f"it ends in its header, after {len(head)} bytes"
    if head[:4] != bytes((0, 0, _BYTES, axes)):
        return f"it must begin with the bytes 0 0 {_BYTES} {axes}, got {' '.join(map(str, head[:4]))}"
    lengths = struct.unpack(f">{axes}I", head[4:])
    if 0 in lengths:
        return "by its header it is empty"
    expected, found = len(head) + math.prod(lengths), path.stat().st_size
    return f"by its header it has {expected:,} bytes, it has {found:,}" if found != expected else ""

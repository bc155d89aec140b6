"""Checksums, by which machines and later commands notice that they have other data or another network."""

import zlib
from collections.abc import Iterable

import torch
from torch import Tensor


def checksum(tensors: Iterable[Tensor]) -> str:
    """CRC-32 over types, shapes and values, in hex.

    It detects mistakes, not attacks, and is several times faster than reading data.
    """
    found = 0
    for tensor in tensors:
        found = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"

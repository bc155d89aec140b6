"""The packed format: one small safetensors file with trits in an entropy code. Needs no torch."""

from sca_search.export.packed.format import payload_bytes, read_packed, round_to_half, write_packed
from sca_search.export.packed.trit_code import decode_trits, encode_trits

__all__ = ["decode_trits", "encode_trits", "payload_bytes", "read_packed", "round_to_half", "write_packed"]

"""The packed format: one small safetensors file with trits in an entropy code. Needs no torch."""

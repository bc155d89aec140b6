"""The C export: generated C99 source, its kernels, and its compilation for this and other machines. Needs no torch."""

from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.compiler import Compiler, find_compiler
from sca_search.export.c.count_zeros import count_zeros_c
from sca_search.export.c.library import CompiledModel, compile_model
from sca_search.export.c.source import write_c

__all__ = ["COptions", "CompiledModel", "Compiler", "compile_model", "count_zeros_c", "find_compiler", "write_c"]

"""The operating system and the terminal: files, memory, signals, console output. Imports no torch at package level."""

from sca_search.system.console import scrub
from sca_search.system.files import atomic_path, new_folder, save_tensors, write_json_atomic, write_text_atomic
from sca_search.system.machine import cache_folder, usable_cores

__all__ = [
    "atomic_path",
    "cache_folder",
    "new_folder",
    "save_tensors",
    "scrub",
    "usable_cores",
    "write_json_atomic",
    "write_text_atomic",
]

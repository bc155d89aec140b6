"""The Python API behind `import sca_search`: studies, your own training loop, and a Lightning callback.

Import from `sca_search` itself, which loads these modules on first use.
"""

__all__ = ["callback", "loop", "study"]

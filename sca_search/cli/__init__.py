"""The command line: one module per command, options generated from the study spec, output and exit codes."""

from sca_search.cli.app import main

__all__ = ["main"]

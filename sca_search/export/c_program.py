"""Compiles the C export and runs it, to see that it does what it should."""

from pathlib import Path

import numpy as np

from sca_search.errors import ExportError
from sca_search.export.c.compiler import PORTABLE, require_compiler, run_program
from sca_search.export.graph.records import Floats


class CProgram:
    """The compiled example and self-test, in a folder that nobody else needs.

    The example is built for this machine and the self-test for any, as `make check` builds it: so that both what is
    fast here and what is the same everywhere are seen to be right.
    """

    def __init__(self, source: Path, scratch: Path, classes: int) -> None:
        compiler = require_compiler()
        self._classes = classes
        self._model, self._check = scratch / "model", scratch / "check-model"
        programs = ((self._model, "main.c", compiler.native()), (self._check, "check.c", PORTABLE))
        for program, example, flags in programs:
            compiler.run([*flags, "-o", str(program), str(source / example), str(source / "model.c"), "-lm"])

    def __call__(self, images: Floats) -> Floats:
        answered = run_program([str(self._model)], np.ascontiguousarray(images, dtype=np.float32).tobytes())
        logits = np.frombuffer(answered, dtype=np.float32)
        if logits.size != len(images) * self._classes:
            raise ExportError(f"the C program answered {logits.size} logits for {len(images)} images")
        return logits.reshape(len(images), self._classes)

    def self_test(self) -> None:
        """What `make check` runs."""
        run_program([str(self._check)])

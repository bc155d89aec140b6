"""Compiles the C export with the system's compiler and runs it, to see that it does what it should."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np

from sca_search.errors import ExportError
from sca_search.export.records import Floats

_FLAGS = ("-O2", "-std=c99")
_MOST_SECONDS = 600  # for a compilation, or for a few images


def c_compiler() -> str | None:
    """The system's C compiler: what CC names, else the first that is there."""
    named = os.environ.get("CC")
    names = [named] if named else ["cc", "gcc", "clang"]
    return next((found for name in names if (found := shutil.which(name))), None)


class CProgram:
    """The compiled example and self-test, in a folder that nobody else needs."""

    def __init__(self, source: Path, scratch: Path, classes: int) -> None:
        compiler = c_compiler()
        if compiler is None:
            raise ExportError("no C compiler was found")
        self._classes = classes
        self._model, self._check = scratch / "model", scratch / "check-model"
        model = scratch / "model.o"
        _call([compiler, *_FLAGS, "-c", "-o", str(model), str(source / "model.c")])
        for program, example in ((self._model, "main.c"), (self._check, "check.c")):
            _call([compiler, *_FLAGS, "-o", str(program), str(source / example), str(model), "-lm"])

    def __call__(self, images: Floats) -> Floats:
        answered = _call([str(self._model)], np.ascontiguousarray(images, dtype=np.float32).tobytes())
        logits = np.frombuffer(answered, dtype=np.float32)
        if logits.size != len(images) * self._classes:
            raise ExportError(f"the C program answered {logits.size} logits for {len(images)} images")
        return logits.reshape(len(images), self._classes)

    def self_test(self) -> None:
        """What `make check` runs."""
        _call([str(self._check)])


def _call(command: list[str], given: bytes = b"") -> bytes:
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=_MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExportError(f"{name} cannot be run to its end: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
        raise ExportError(f"{name} failed with code {done.returncode}: {said[-400:]}")
    return done.stdout

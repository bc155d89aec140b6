"""How deep a search is: our stack frames from `main` to a training step, and our modules that a search enters."""

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import sca_search
from sca_search.cli.app import main
from tests.support.command import TINY

PACKAGE = str(Path(sca_search.__file__).parent)
MOST_FRAMES, MOST_MODULES = 15, 77
# The deepest frame of a training step: the regularizer of the method, or the step itself without one.
STEP = {"LayerSchedules.penalty", "EpochModule.training_step"}


class Calls:
    """A profile function that notes our frames at each training step, and our modules with a called function."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.deepest: tuple[str, ...] = ()
        self._known: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        is_known = code in self._known
        if is_known and code.co_qualname not in STEP:
            return
        names, is_import = _own_frames(frame)
        if is_import:
            return
        self._known.add(code)
        self.modules.add(str(frame.f_globals["__name__"]))
        if code.co_qualname in STEP and len(names) > len(self.deepest):
            self.deepest = names


def _own_frames(frame: FrameType) -> tuple[tuple[str, ...], bool]:
    """Our frames from `main` on, and whether a module is being imported."""
    names, is_import, each = [], False, frame
    while each is not None:
        code = each.f_code
        if code.co_filename.startswith(PACKAGE):
            names.append(f"{each.f_globals['__name__']}.{code.co_qualname}")
            is_import = is_import or code.co_name == "<module>"
            if code is main.__code__:
                break
        each = each.f_back  # type: ignore[assignment]
    return tuple(reversed(names)), is_import


@pytest.mark.e2e
def test_a_search_has_few_frames_and_enters_few_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sca-search", "--target-sparsity", "0.5", *TINY])
    calls, before = Calls(), sys.getprofile()
    sys.setprofile(calls)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.setprofile(before)
    assert ended.value.code == 0, capsys.readouterr().err
    with capsys.disabled():
        print(f"\n{len(calls.deepest)} frames to a training step, {len(calls.modules)} modules entered")
    assert calls.deepest[0].endswith(".main")
    assert calls.deepest[-1].endswith("LayerSchedules.penalty")
    assert len(calls.deepest) <= MOST_FRAMES, "\n".join(calls.deepest)
    assert len(calls.modules) <= MOST_MODULES, "\n".join(sorted(calls.modules))

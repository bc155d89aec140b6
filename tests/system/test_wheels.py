"""Each case is a process of its own: an operator, once defined, cannot be taken back."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors._safetensors_rust

ROOT = Path(__file__).parents[2]


def run(program: str, *paths: Path) -> str:
    """What the program prints; a failure of it, or any warning, fails the test."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def stub_torchvision(folder: Path) -> Path:
    """A package named torchvision that must not be imported."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text("raise AssertionError('imported')\n")
    return folder / "torchvision"


@pytest.mark.e2e
def test_heal_torchvision_lets_torchvision_and_lightning_be_imported() -> None:
    program = (
        "from sca_search.system.torchvision import heal_torchvision\n"
        "heal_torchvision()\n"
        "heal_torchvision()\n"
        "import torchvision.datasets, torchvision.models, pytorch_lightning\n"
        "heal_torchvision()\n"
        "print('imported')"
    )
    assert run(program) == "imported"


@pytest.mark.e2e
def test_lightning_is_imported_without_scipys_signals_which_are_there_when_asked_for() -> None:
    program = (
        "import sys\n"
        "import sca_search.training.fit\n"
        "print('scipy.signal' in sys.modules, 'scipy.stats' in sys.modules)\n"
        "import scipy.signal\n"
        "print(scipy.signal.windows.hamming(3).tolist()[1], hasattr(scipy.signal, 'hamming'))"
    )
    assert run(program).splitlines() == ["False False", "1.0 False"]


@pytest.mark.e2e
def test_whoever_needs_scipys_signals_meanwhile_has_them() -> None:
    program = (
        "import sys\n"
        "from sca_search.system.torchvision import without_scipy_signal\n"
        "with without_scipy_signal():\n"
        "    import scipy.signal\n"
        "    assert scipy.signal.hamming is None\n"
        "    from scipy.signal import fftconvolve\n"
        "print(fftconvolve([1, 2], [1, 1]).round(6).tolist(), sys.modules['scipy.signal'].fftconvolve is fftconvolve)"
    )
    assert run(program) == "[1.0, 3.0, 2.0] True"


@pytest.mark.e2e
def test_heal_torchvision_leaves_operators_that_exist() -> None:
    program = (
        "import torch\n"
        "from sca_search import wheels\n"
        "own = torch.library.Library('torchvision', 'DEF')\n"
        "for name in ('nms', 'qnms'):\n"
        "    own.define(name + '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "wheels.heal_torchvision()\n"
        "print(len(wheels._kept))"
    )
    assert run(program) == "0"


@pytest.mark.e2e
def test_heal_torchvision_declares_only_what_is_missing() -> None:
    program = (
        "import torch\n"
        "from sca_search import wheels\n"
        "own = torch.library.Library('torchvision', 'DEF')\n"
        "own.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "wheels._declare(wheels._missing_operators())\n"
        "print(torch.ops.torchvision.qnms.default._schema)"
    )
    assert run(program) == "torchvision::qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@pytest.mark.e2e
def test_heal_torchvision_without_torchvision_defines_nothing() -> None:
    program = (
        "import sys\n"
        "sys.modules['torchvision'] = None\n"
        "from sca_search import wheels\n"
        "wheels.heal_torchvision()\n"
        "print(wheels._missing_operators())"
    )
    assert run(program) == "['nms', 'qnms']"


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform == "win32", reason="a library is told by another suffix there")
@pytest.mark.parametrize("loads", [True, False])
def test_heal_torchvision_declares_only_if_the_library_does_not_load(tmp_path: Path, loads: bool) -> None:
    library = stub_torchvision(tmp_path) / "_C.so"
    if loads:  # any library that the loader accepts stands for a wheel that matches
        shutil.copy(safetensors._safetensors_rust.__file__, library)
    else:
        library.write_bytes(b"built for another torch")
    program = (
        "from sca_search import wheels\n"
        "wheels.heal_torchvision()\n"
        "wheels.heal_torchvision()\n"
        "print(len(wheels._kept), len(wheels._missing_operators()))"
    )
    assert run(program, tmp_path) == ("0 2" if loads else "1 0")


@pytest.mark.e2e
def test_heal_torchvision_gives_no_kernel() -> None:
    program = (
        "import torch\n"
        "from sca_search import wheels\n"
        "wheels._declare(['nms'])\n"
        "try:\n"
        "    torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)\n"
        "except NotImplementedError:\n"
        "    print('no kernel')"
    )
    assert run(program) == "no kernel"

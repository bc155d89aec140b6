"""Each case runs in a new process: the definition of an operator cannot be undone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors._safetensors_rust

ROOT = Path(__file__).parents[2]


def run(program: str, *paths: Path) -> str:
    """The output of a program. Its failure, or any warning, fails the test."""
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
def test_patch_torchvision_lets_torchvision_and_lightning_be_imported() -> None:
    program = (
        "from sca_search.system.torchvision import patch_torchvision\n"
        "patch_torchvision()\n"
        "patch_torchvision()\n"
        "import torchvision.datasets, torchvision.models, pytorch_lightning\n"
        "patch_torchvision()\n"
        "print('imported')"
    )
    assert run(program) == "imported"


@pytest.mark.e2e
def test_patch_torchvision_leaves_operators_that_exist() -> None:
    program = (
        "import torch\n"
        "from sca_search.system import torchvision as patch\n"
        "own = torch.library.Library('torchvision', 'DEF')\n"
        "for name in ('nms', 'qnms'):\n"
        "    own.define(name + '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "patch.patch_torchvision()\n"
        "print(len(patch._libraries))"
    )
    assert run(program) == "0"


@pytest.mark.e2e
def test_patch_torchvision_declares_only_what_is_missing() -> None:
    program = (
        "import torch\n"
        "from sca_search.system import torchvision as patch\n"
        "own = torch.library.Library('torchvision', 'DEF')\n"
        "own.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "patch._declare(patch._missing_operators())\n"
        "print(torch.ops.torchvision.qnms.default._schema)"
    )
    assert run(program) == "torchvision::qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@pytest.mark.e2e
def test_patch_torchvision_without_torchvision_defines_nothing() -> None:
    program = (
        "import sys\n"
        "sys.modules['torchvision'] = None\n"
        "from sca_search.system import torchvision as patch\n"
        "patch.patch_torchvision()\n"
        "print(patch._missing_operators())"
    )
    assert run(program) == "['nms', 'qnms']"


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform == "win32", reason="libraries have another suffix there")
@pytest.mark.parametrize("loads", [True, False])
def test_patch_torchvision_declares_only_if_the_library_does_not_load(tmp_path: Path, loads: bool) -> None:
    library = stub_torchvision(tmp_path) / "_C.so"
    if loads:  # any library that the loader accepts stands for a wheel that matches
        shutil.copy(safetensors._safetensors_rust.__file__, library)
    else:
        library.write_bytes(b"built for another torch")
    program = (
        "from sca_search.system import torchvision as patch\n"
        "patch.patch_torchvision()\n"
        "patch.patch_torchvision()\n"
        "print(len(patch._libraries), len(patch._missing_operators()))"
    )
    assert run(program, tmp_path) == ("0 2" if loads else "1 0")


@pytest.mark.e2e
def test_patch_torchvision_gives_no_kernel() -> None:
    program = (
        "import torch\n"
        "from sca_search.system import torchvision as patch\n"
        "patch._declare(['nms'])\n"
        "try:\n"
        "    torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)\n"
        "except NotImplementedError:\n"
        "    print('no kernel')"
    )
    assert run(program) == "no kernel"

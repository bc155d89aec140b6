"""What the shell may complete: commands, names of data and networks, study files, run folders. Nothing here is slow."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import typer

from sca_search.cli.app import UNNAMED
from sca_search.config.names import METHODS, Augmentation

# Named again here, since the rooms that know them import torch; a test holds them together.
MODELS = ("lenet-small", "lenet-medium", "lenet", "vgg-s", "vgg-variate", "resnet20", "resnet18", "alexnet")
DATA = ("digits", "mnist", "cifar10", "cifar100", "tiny-imagenet", "imagenet", "folder:", "npz:", "hf-disk:")
TABLES = tuple("1234567")
# Where they lie unless somebody chose another place.
_USUAL_RUNS, _USUAL_STUDIES = "runs", "studies"


def model_names(incomplete: str) -> list[str]:
    """Networks by name."""
    return [name for name in MODELS if name.startswith(incomplete)]


def data_names(incomplete: str) -> list[str]:
    """Data sets by name; behind a colon comes a path, which the shell knows better."""
    return [name for name in DATA if name.startswith(incomplete)]


def augmentation_names(incomplete: str) -> list[str]:
    """What may be done to training images."""
    return [name for name in get_args(Augmentation) if name.startswith(incomplete)]


def method_names(incomplete: str) -> list[str]:
    """Ways to train few-valued weights."""
    return [name for name in METHODS if name.startswith(incomplete)]


def table_names(incomplete: str) -> list[str]:
    """The paper's tables."""
    return [name for name in TABLES if name.startswith(incomplete)]


def run_folders(incomplete: str) -> list[str]:
    """Folders that hold a study."""
    return _found(incomplete, _USUAL_RUNS, lambda path: (path / "study.toml").is_file())


def study_files(ctx: typer.Context, incomplete: str) -> list[str]:
    """Study files, and the commands where none was named so far."""
    files = _found(incomplete, _USUAL_STUDIES, lambda path: path.suffix == ".toml" and path.is_file())
    group = ctx.find_root().command
    commands = getattr(group, "commands", {}) if ctx.meta.get(UNNAMED) else {}
    return [*(name for name in commands if name.startswith(incomplete)), *files]


def _found(incomplete: str, usual: str, is_wanted: Callable[[Path], bool]) -> list[str]:
    """Paths that begin with what was typed: in the folder that it names, and in the usual one."""
    typed, slash, _ = incomplete.rpartition("/")
    folders = [f"{typed}/"] if slash else ["", f"{usual}/"]
    return [path for folder in folders for path in _in_folder(folder, is_wanted) if path.startswith(incomplete)]


def _in_folder(folder: str, is_wanted: Callable[[Path], bool]) -> Iterator[str]:
    try:
        paths = sorted(Path(folder or ".").expanduser().iterdir())
    except OSError:  # no such folder, or one that may not be read: nothing to offer
        return
    yield from (f"{folder}{path.name}" for path in paths if is_wanted(path))

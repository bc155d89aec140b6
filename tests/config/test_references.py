"""A user's own objects by name: from modules and files, and a sentence for each that cannot be had."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sca_search.config.references import describe_error, file_of, is_reference, load_object, user_code_errors
from sca_search.errors import CodeError, DataError, LimitError, SpecError
from sca_search.training.evaluate import score


@pytest.fixture(autouse=True)
def _finders_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def _file(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("package.module:make", True),
        ("file.py:make", True),
        ("/some where/file.py:Holder.make", True),
        ("digits", False),
        ("file.py", False),
        ("file.py:", False),
        ("file.py:not a name", False),
        ("/folder:make", False),
        ("module:1st", False),
    ],
)
def test_a_reference_is_a_place_a_colon_and_a_name(text: str, expected: bool) -> None:
    assert is_reference(text) is expected


def test_an_object_of_an_installed_module_is_found() -> None:
    assert load_object("numpy.linalg:norm", "the metric") is np.linalg.norm


@pytest.mark.parametrize(
    ("reference", "file"),
    [
        ("os:abort", "os.py:abort"),
        ("os.path:exists", "os/path.py:exists"),
        ("builtins:exit", "builtins.py:exit"),
        ("signal:pause", "signal.py:pause"),
    ],
)
def test_an_object_of_python_itself_is_rejected(reference: str, file: str) -> None:
    with pytest.raises(DataError, match=rf"the data must be of your own .*; a file of that name is {re.escape(file)}$"):
        load_object(reference, "the data", DataError)


@pytest.mark.parametrize(
    "reference", ["torch:os.abort", "sca_search.system.files:os", "sca_search.system.files:Path", "torch:sys.exit"]
)
def test_an_object_of_python_itself_is_rejected_through_another_module(reference: str) -> None:
    with pytest.raises(DataError, match=f"the data must be of your own .*, {reference} is of Python itself"):
        load_object(reference, "the data", DataError)


def test_a_file_may_have_a_name_of_pythons_and_hold_what_was_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "calendar.py").write_text(
        "import functools\n\n\ndef load(): return 3\n\n\nagain = functools.partial(load)\n"
    )
    assert load_object(f"{tmp_path}/calendar.py:load", "the data")() == 3
    assert load_object(f"{tmp_path}/calendar.py:again", "the data")() == 3


@pytest.mark.parametrize(
    ("line", "cause"), [("1 / 0", "ZeroDivisionError: division by zero"), ("exit(0)", "SystemExit: 0")]
)
def test_own_code_that_fails_is_reported_with_its_line(tmp_path: Path, line: str, cause: str) -> None:
    (tmp_path / "fails.py").write_text(f"def call():\n    {line}\n")
    call = load_object(f"{tmp_path}/fails.py:call", "the call")
    with (
        pytest.raises(CodeError, match=rf"^the network failed with {cause} \(fails\.py, line 2\)$"),
        user_code_errors("the network"),
    ):
        call()


def test_code_of_others_that_fails_is_not_reported_as_the_users() -> None:
    with pytest.raises(LimitError, match="no room"), user_code_errors("the network"):
        raise LimitError("no room")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        score(torch.nn.Linear(3, 2), [(torch.zeros(4, 5), torch.zeros(4, dtype=torch.long))])


def test_an_object_of_a_file_is_found_and_the_file_runs_once(tmp_path: Path) -> None:
    path = _file(tmp_path, "class Holder:\n    value = object()\n")
    first = load_object(f"{path}:Holder", "the data")
    again = load_object(f"{path}:Holder.value", "the data")
    assert isinstance(first, type)
    assert first.value is again


def test_a_file_can_import_what_lies_beside_it(tmp_path: Path) -> None:
    _file(tmp_path, "ANSWER = 42\n", "a_neighbor_of_mine.py")
    path = _file(tmp_path, "from a_neighbor_of_mine import ANSWER\n")
    assert load_object(f"{path}:ANSWER", "the data") == 42


def test_a_module_of_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _file(tmp_path, "ANSWER = 43\n", "a_module_that_lies_here.py")
    monkeypatch.chdir(tmp_path)
    assert load_object("a_module_that_lies_here:ANSWER", "the data") == 43


def test_users_folders_are_not_on_the_search_path_and_do_not_replace_installed_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(sys.path)
    _file(tmp_path, "raise AssertionError\n", "wave.py")
    _file(tmp_path, "raise AssertionError\n", "sklearn.py")
    path = _file(tmp_path, "import wave\nimport sklearn\n\nKNOWN = wave.__name__\n")
    monkeypatch.chdir(tmp_path)
    assert load_object(f"{path}:KNOWN", "the data") == "wave"
    assert load_object("sklearn:__name__", "the data") == "sklearn"
    assert sys.path == before


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("mine.py:make", "mine.py"),
        ("mine:make", "mine.py"),
        ("package.inner:make", "package/inner.py"),
        ("package:make", "package/__init__.py"),
        ("package.no_such:make", None),
        ("no_such:make", None),
        ("no_such.inner:make", None),
    ],
)
def test_the_file_of_a_reference_is_found_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, expected: str | None
) -> None:
    (tmp_path / "package").mkdir()
    for name in ("mine.py", "package/__init__.py", "package/inner.py"):
        _file(tmp_path, "raise AssertionError\n", name)
    monkeypatch.chdir(tmp_path)
    assert file_of(reference) == (expected and tmp_path / expected)


def test_the_file_of_an_installed_module_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _file(tmp_path, "", "numpy.py")
    monkeypatch.chdir(tmp_path)
    assert file_of("numpy.linalg:norm") == Path(np.__file__).parent / "linalg" / "__init__.py"


def test_an_object_of_python_is_not_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _file(tmp_path, "raise AssertionError\n", "python.py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"^the loss 'python:focal' is a Python object, which cannot be"):
        load_object("python:focal", "the loss")


def test_a_missing_module_is_named() -> None:
    with pytest.raises(SpecError, match=r"^the loss: there is no module 'no_such_thing\.at_all' to import"):
        load_object("no_such_thing.at_all:loss", "the loss")


def test_a_missing_file_is_named_with_the_requested_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^the data: there is no file .*nothing\.py$"):
        load_object(f"{tmp_path}/nothing.py:make", "the data", DataError)


def test_a_missing_name_brings_the_nearest(tmp_path: Path) -> None:
    path = _file(tmp_path, "def make_data(): ...\n")
    with pytest.raises(SpecError, match=r"has no 'make_dat'; did you mean 'make_data'\?$"):
        load_object(f"{path}:make_dat", "the data")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("\nraise ValueError('no\\nluck')\n", r"failed with ValueError: no luck \(mine\.py, line 2\)$"),
        ("import no_such_package_of_theirs\n", r"failed with ModuleNotFoundError: .*no_such_package_of_theirs"),
        ("def broken(:\n", r"failed with SyntaxError: "),
        ("import sys\nsys.exit(3)\n", r"failed with SystemExit: 3 \(mine\.py, line 2\)$"),
    ],
)
def test_an_import_that_fails_is_reported_in_one_line(tmp_path: Path, text: str, cause: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(SpecError, match=cause) as output:
        load_object(f"{path}:make", "the data")
    assert "\n" not in str(output.value)


def test_a_text_that_is_no_reference_is_rejected_with_the_rule() -> None:
    with pytest.raises(SpecError, match=r"^the metric must be named as .*, got 'acuracy'$"):
        load_object("acuracy", "the metric")


def test_a_cause_without_words_is_its_kind() -> None:
    assert describe_error(KeyError()) == "KeyError"

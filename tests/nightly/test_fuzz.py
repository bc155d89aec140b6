"""Files that accidents and attackers changed: every reader answers or refuses in its own words, soon and in little
memory. benchmarks/fuzz.py is the long form."""

import random
import warnings
from pathlib import Path

import pytest

from sca_search.errors import RunError
from tests.support.fuzzing import (
    Outcomes,
    Reader,
    altered,
    altered_header,
    damaged,
    fuzzed,
    reworded,
    shuffled_lines,
    spliced,
)
from tests.support.hostile_files import readers

# Readers of a whole page, screen or study take ten times as long as others.
CASES, CASES_OF_SLOW = 150, 15


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return {reader.name: reader for reader in readers(tmp_path_factory.mktemp("files"))}


NAMES = (
    "packed model",
    "packed model, signed",
    "test vectors",
    "plain model",
    "weights, safetensors",
    "weights, torch",
    "checkpoint",
    "metadata of an export",
    "C source",
    "C source, stored",
    "ONNX model",
    "study file",
    "recipe",
    "latency table",
    "page: summary.json",
    "page: about.json",
    "page: closed-form.json",
    "page: sensitivity.json",
    "page: study.toml",
    "page: trials.csv",
    "page: dense.json",
    "page: candidate.json",
    "live: progress.json",
    "live: dense.json",
    "live: candidate.json",
    "live: history.csv",
    "live: distribution.json",
    "live: features.json",
    "live: request to export",
    "show: trials.csv",
    "show: summary.json",
    "show: dense.json",
    "candidate of a run",
    "export: candidate.json",
    "export: trials.csv",
    "export: model.safetensors",
    "resume: about.json",
    "resume: dense.json",
    "resume: dense.safetensors",
    "resume: sensitivity.json",
    "resume: study.db",
    "whole study: study.db",
    "resume: checkpoint.safetensors",
    "rerun: about.json",
    "store: artifacts.json",
    "features: dense.safetensors",
    "comparison: a method's result",
    "reproduction: a cell's result",
)


def test_no_reader_is_left_out(known: dict[str, Reader]) -> None:
    assert set(known) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_bad_files_are_read_or_refused(known: dict[str, Reader], name: str) -> None:
    outcomes = fuzzed(known[name], CASES_OF_SLOW if known[name].is_slow else CASES)
    assert outcomes.sound, "\n".join([str(outcomes), *outcomes.crashes])
    # A page passes over most of what is wrong with a part of it; all others must have refused something.
    assert outcomes.refused > 0 or name.startswith(("page", "live", "show"))


def spoil(error: BaseException) -> Outcomes:
    """A reader that meets every bad file with this."""

    def read(content: bytes) -> None:
        if content != b"good":
            raise error

    return fuzzed(Reader("a reader", b"good", read, (lambda _content, _dice: b"bad",)), 3)


def test_an_error_that_is_none_of_ours_is_a_crash() -> None:
    assert not spoil(KeyError("x")).sound
    assert not spoil(MemoryError()).sound
    assert spoil(RunError("x")).sound


def test_a_librarys_warning_is_a_crash() -> None:
    def read(content: bytes) -> None:
        if content != b"good":
            warnings.warn("odd", RuntimeWarning, stacklevel=1)

    assert len(fuzzed(Reader("a reader", b"good", read, (lambda _content, _dice: b"bad",)), 3).crashes) == 3


def test_a_reader_that_does_not_end_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.fuzzing.MOST_SECONDS", 0.05)

    def read(content: bytes) -> None:
        while content != b"good":
            pass

    outcomes = fuzzed(Reader("a reader", b"good", read, (lambda _content, _dice: b"bad",)), 1)
    assert (outcomes.hangs, outcomes.sound) == (1, False)


def test_a_reader_that_refuses_the_good_file_was_never_tried() -> None:
    def read(_content: bytes) -> None:
        raise RunError("no")

    with pytest.raises(RunError):
        fuzzed(Reader("a reader", b"good", read, (damaged,)), 1)


@pytest.mark.parametrize("mutator", [damaged, spliced, reworded, shuffled_lines, altered, altered_header])
def test_mutators_change_files_and_repeat_themselves(mutator, tmp_path: Path) -> None:
    header = b'{"__metadata__": {"a": "[1, 2]"}, "x": {"shape": [3, 4]}}'
    text = b'{"a": [1, 2, {"b": 3}],\n "c": "d",\n "e": 5.5}\n'
    content = len(header).to_bytes(8, "little") + header + b"body" if mutator is altered_header else text
    made = [mutator(content, random.Random(seed)) for seed in range(40)]
    assert made == [mutator(content, random.Random(seed)) for seed in range(40)]
    assert len(set(made)) > 5
    assert sum(each != content for each in made) > 20

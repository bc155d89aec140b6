"""Terminals whose encoding lacks some characters: these are replaced on the terminal, and kept in files and JSON."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sca_search.system import console
from sca_search.system.console import SafeConsole, configure_output, print_json
from tests.support.command import TINY, sca_search


@pytest.fixture
def stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="cp1252", write_through=True)


def written(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("cp1252")


def test_characters_that_the_encoding_lacks_become_question_marks(stream: io.TextIOWrapper) -> None:
    SafeConsole(file=stream).print("λ = 3 · 4 → é")
    assert written(stream) == "? = 3 · 4 ? é\n"


def test_json_has_every_character_in_any_encoding(stream: io.TextIOWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_out", SafeConsole(file=stream))
    configure_output(json=True)
    print_json({"λ": "→"})
    configure_output()
    assert json.loads(written(stream)) == {"λ": "→"}


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_show_and_help_in_another_encoding(
    encoding: str, tiny_run: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    for arguments, part in ((("show", str(tiny_run[0])), "Chosen: trial"), (("--help",), "--target-sparsity")):
        done = sca_search(*arguments, cwd=tiny_run[0], encoding=encoding)
        assert (done.returncode, done.stderr) == (0, "")
        assert part in done.stdout


@pytest.mark.e2e
def test_a_study_in_the_c_locale_writes_its_files_in_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}.items():
        monkeypatch.setenv(name, value)
    probe = [sys.executable, "-c", "import locale, sys; print(locale.getencoding(), sys.stdout.encoding)"]
    assert "UTF-8" not in subprocess.run(probe, capture_output=True, text=True, check=True).stdout
    done = sca_search("--target-sparsity", "0.5", "--name", "tiny", *TINY, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = tmp_path / "runs" / "tiny"
    assert (run / "chosen.safetensors").is_file()
    for file, part in {"dashboard.html": "α", "summary.json": '"chosen"', "trials.csv": "trial,"}.items():
        assert part in (run / file).read_text(encoding="utf-8"), file
    assert sca_search("show", str(run), cwd=tmp_path).returncode == 0

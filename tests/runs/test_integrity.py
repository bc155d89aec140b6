"""A run folder of somebody else: no links to the outside, no code that runs, no hostile database."""

import json
import os
import py_compile
import re
import resource
import shutil
import sqlite3
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sca_search.errors import ExportError, RunError
from sca_search.export.c.count_zeros import count_zeros_c
from sca_search.export.onnx.write import count_zeros_onnx
from sca_search.runs.folder import RunFolder
from sca_search.runs.integrity import require_intact_database
from tests.support.command import TINY, sca_search
from tests.support.make_run_folder import RUN_FOLDER


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))  # which code with consent adds its folder to
    return shutil.copytree(RUN_FOLDER, tmp_path / "sent")


def put(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize("name", ["log.txt", "candidates/000/features.json", "candidates/001", "exports"])
@pytest.mark.parametrize("target", ["../outside", "/etc", "../../../../../../../../etc/passwd", "../sent-too"])
def test_link_to_the_outside_is_rejected(sent: Path, name: str, target: str) -> None:
    link = sent / name
    if link.is_dir():
        shutil.rmtree(link)
    else:
        link.unlink(missing_ok=True)
    depth = len(link.parent.relative_to(sent).parts)
    link.symlink_to(target if target.startswith("/") else "../" * depth + target)
    with pytest.raises(RunError, match=f"must contain its files itself, {name} points outside of it"):
        RunFolder(sent).spec()


@pytest.mark.parametrize("command", [("show",), ("export",), ("dashboard", "--no-open"), ("rerun",), ("features",)])
def test_no_command_follows_a_link_out(run, sent: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"versions": {"secret": "word"}}')
    (sent / "about.json").unlink()
    (sent / "about.json").symlink_to(secret)
    done = run(command[0], str(sent), *command[1:])
    assert done.returncode == 2
    assert "about.json points outside of it" in done.stderr
    assert "word" not in done.stderr + done.stdout
    assert secret.read_text() == '{"versions": {"secret": "word"}}'


def test_links_within_the_folder_and_to_the_folder_are_followed(sent: Path) -> None:
    (sent / "candidates" / "000" / "again.csv").symlink_to("history.csv")
    (sent / "nowhere").symlink_to("candidates/not-there")
    (sent.parent / "runs").symlink_to(sent)
    assert RunFolder(sent.parent / "runs").spec().name == "run-folder"


FILES = ["about.json", "summary.json", "trials.csv", "study.db", "candidates/000/candidate.json"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("command", ["show", "dashboard"])
def test_a_pipe_in_a_run_folder_is_rejected(run, sent: Path, command: str, file: str) -> None:
    """Reading it would wait for a writer."""
    (sent / file).unlink()
    os.mkfifo(sent / file)
    done = run(command, "sent", *(["--no-open"] if command == "dashboard" else []))
    assert (done.returncode, done.stderr) == (2, f"sent/{file}: must be a regular file, got a pipe or device\n")


@pytest.mark.parametrize("file", [*FILES, "study.toml"])
@pytest.mark.parametrize("command", ["show", "dashboard"])
def test_a_file_that_is_too_large_is_rejected_before_it_is_read(run, sent: Path, command: str, file: str) -> None:
    """It has no content, only a size."""
    os.truncate(sent / file, 2**43)
    done = run(command, "sent", *(["--no-open"] if command == "dashboard" else []))
    assert done.returncode == 2
    assert re.fullmatch(rf"sent/{file}: must have at most [0-9,]+ bytes, got 8,796,093,022,208\n", done.stderr)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("export", "candidates/000/model.safetensors"),
        ("rerun", "dense.safetensors"),
        ("features", "dense.safetensors"),
    ],
)
def test_tensors_that_do_not_fit_into_memory_are_rejected(run, sent: Path, command: str, file: str) -> None:
    os.truncate(sent / file, 2**43)
    done = run(command, "sent", "--trial", "0")
    assert (done.returncode, f"sent/{file}: must fit into the available memory, " in done.stderr) == (2, True)


@pytest.mark.timeout(60)
def test_files_of_an_export_are_regular_and_not_too_large(run, sent: Path) -> None:
    assert run("export", "sent", "--trial", "0", "--format", "packed", "--out", "model").returncode == 0
    os.truncate("model/export.json", 2**43)
    done = run("verify", "model")
    assert (done.returncode, "model/export.json: must have at most" in done.stderr) == (2, True), done.stderr
    Path("model/export.json").unlink()
    os.mkfifo("model/export.json")
    done = run("verify", "model")
    assert (done.returncode, done.stderr) == (2, "model/export.json: must be a regular file, got a pipe or device\n")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("FILE.toml",), "FILE.toml: must be a regular file"),
        (("--max-latency-ms", "1", "--latency-table", "FILE.json"), "FILE.json: must be a regular file"),
        (("--weights", "FILE.pt"), "--weights FILE.pt: there is no such file"),
        (("--data", "npz:FILE.npz"), "FILE.npz: the data file must exist"),
    ],
)
def test_a_pipe_as_an_input_is_rejected(run, tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    for name in ("FILE.toml", "FILE.json", "FILE.pt", "FILE.npz"):
        os.mkfifo(tmp_path / name)
    done = run(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("size", [10**400, 2**40, 10**6, 4000, -8, 0], ids=range(6))
def test_a_model_that_names_a_gigantic_input_is_refused_in_little_memory(run, sent: Path, size: int) -> None:
    model = sent / "candidates" / "000" / "model.safetensors"
    with safe_open(model, framework="pt") as file:
        metadata = file.metadata()
    about = json.loads(metadata["about"])
    metadata["about"] = json.dumps(about | {"input_shape": [1, 8, size]})
    save_file(load_file(model), model, metadata=metadata)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = run("export", str(sent), "--trial", "0", "--format", "packed", "--out", "out")
    assert (done.returncode, "Traceback" in done.stderr, Path("out").exists()) == (2, False, False), done.stderr
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_c_source_that_tells_of_columns_without_end_is_refused_soon(tmp_path: Path) -> None:
    """3 to the power of these columns has billions of digits."""
    source = "/* conv2: 9 weights in t as 9999999999 columns in 3 vectors, 0 blocks */\nuint16_t t[1] = {};\n"
    (tmp_path / "model.c").write_text(source.replace("{}", "{0}"))
    with pytest.raises(ExportError, match="9999999999 columns in 3 by 8 are impossible"):
        count_zeros_c(tmp_path)


def test_an_onnx_model_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    trits = onnx.TensorProto(name="trits", data_type=123, dims=[1], raw_data=b"0")
    node = onnx.helper.make_node("DequantizeLinear", ["trits", "trits"], ["out"], name="text")
    graph = onnx.helper.make_graph([node], "graph", [], [], [trits])
    (tmp_path / "model.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(ExportError, match="'trits' cannot be read"):
        count_zeros_onnx(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("location", "sentence"),
    [("", "a node's name must be a string"), ("../../etc/passwd", "all weights must be in the file itself")],
)
def test_an_onnx_model_that_is_no_text_or_lies_elsewhere_is_refused(
    tmp_path: Path, location: str, sentence: str
) -> None:
    trits = onnx.numpy_helper.from_array(np.array([1, 0], dtype=np.int8), "trits")
    if location:
        trits.ClearField("raw_data")
        trits.data_location = onnx.TensorProto.EXTERNAL
        trits.external_data.add(key="location", value=location)
    node = onnx.helper.make_node("DequantizeLinear", ["trits", "trits"], ["out"], name="text")
    graph = onnx.helper.make_graph([node], "graph", [], [], [trits])
    content = onnx.helper.make_model(graph).SerializeToString()
    (tmp_path / "model.onnx").write_bytes(content.replace(b"text", b"te\xff\xfe"))
    with pytest.raises(ExportError, match=sentence):
        count_zeros_onnx(tmp_path / "model.onnx")


EVIL = 'from pathlib import Path\n\nPath("was-here").touch()\n\n\ndef net(*_):\n    raise AssertionError\n'
COMMANDS = [("export",), ("dashboard", "--live", "--no-open"), ("rerun",), ("features",)]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('name = "lenet-small"', 'name = "sent/evil.py:net"', "model.name"),
        ('name = "lenet-small"', 'name = "sent/../sent/evil.py:net"', "model.name"),
        ('name = "lenet-small"', 'name = "sent.evil:net"', "model.name"),
        ('name = "digits"', 'name = "sent/evil.py:net"', "data.name"),
        ("batch = 10", 'batch = 10\nloss = "sent.evil:net"', "train.loss"),
        ("batch = 10", 'batch = 10\nmetric = "sent/evil.py:net"', "train.metric"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_code_that_a_run_names_needs_consent(
    run, sent: Path, command: tuple[str, ...], old: str, new: str, key: str
) -> None:
    (sent / "evil.py").write_text(EVIL)
    put(sent / "study.toml", old, new)
    done = run(command[0], "sent", *command[1:])
    assert done.returncode == 2
    assert f"sent/study.toml: {key} names code" in done.stderr
    assert f"from {sent}/evil.py; if you trust it, add --trust" in done.stderr
    assert not Path("was-here").exists()


@pytest.mark.parametrize("command", [("show", "sent"), ("dashboard", "sent", "--no-open")])
def test_what_only_reads_results_runs_no_code_and_needs_no_consent(run, sent: Path, command: tuple[str, ...]) -> None:
    (sent / "evil.py").write_text(EVIL)
    put(sent / "study.toml", 'name = "lenet-small"', 'name = "sent/evil.py:net"')
    assert run(*command).returncode == 0
    assert not Path("was-here").exists()


def test_code_that_an_export_names_needs_consent(run, sent: Path) -> None:
    assert run("export", "sent", "--trial", "0", "--format", "packed", "--out", "model").returncode == 0
    Path("model/evil.py").write_text(EVIL)
    put(Path("model/study.toml"), 'name = "lenet-small"', 'name = "model/evil.py:net"')
    done = run("verify", "model")
    assert (done.returncode, "model/study.toml: model.name names code" in done.stderr) == (2, True)
    assert not Path("was-here").exists()
    run("verify", "model", "--trust")
    assert Path("was-here").exists()


def test_code_runs_with_consent(run, sent: Path) -> None:
    (sent / "evil.py").write_text(EVIL)
    put(sent / "study.toml", 'name = "lenet-small"', 'name = "sent/evil.py:net"')
    assert "failed when called: AssertionError" in run("export", "sent", "--trial", "0", "--trust").stderr
    assert Path("was-here").exists()


def test_a_study_file_that_names_code_needs_consent(run, sent: Path) -> None:
    (sent / "evil.py").write_text(EVIL)
    put(sent / "study.toml", 'name = "lenet-small"', 'name = "sent/evil.py:net"')
    for command in ((), ("compare",), ("calibrate",)):
        done = run(*command, "sent/study.toml")
        assert (done.returncode, "model.name names code" in done.stderr) == (2, True)
    assert not Path("was-here").exists()


def test_code_that_was_typed_needs_no_other_consent(run, sent: Path) -> None:
    (sent / "evil.py").write_text(EVIL)
    put(sent / "study.toml", 'name = "lenet-small"', 'name = "other.py:net"')
    done = run("sent/study.toml", "--model", "sent/evil.py:net", "--dry-run")
    assert "failed when called: AssertionError" in done.stderr
    assert Path("was-here").exists()


def compiled(source: Path) -> None:
    """Leave the byte code alone, as `evil.pyc`, which Python imports without a source."""
    py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
    source.unlink()


@pytest.mark.parametrize(
    ("file", "reference", "origin"),
    [
        ("evil.pyc", "evil:net", "sent/evil.pyc"),
        ("tensorboard.py", "torch.utils.tensorboard:SummaryWriter", "torch/utils/tensorboard/__init__.py"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_module_of_a_run_is_imported_in_its_folder(
    run, sent: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], file: str, reference: str, origin: str
) -> None:
    source = (sent / file).with_suffix(".py")
    source.write_text(EVIL)
    if file.endswith(".pyc"):
        compiled(source)
    put(sent / "study.toml", 'name = "lenet-small"', f'name = "{reference}"')
    monkeypatch.chdir(sent)
    done = run(command[0], ".", *command[1:])
    assert done.returncode == 2
    assert "model.name names code" in done.stderr
    assert f"{origin}; if you trust it" in done.stderr
    assert not Path("was-here").exists()


@pytest.mark.e2e
def test_a_trusted_module_does_not_import_files_of_the_run(sent: Path) -> None:
    """In the run folder itself, where `python -m` finds modules first."""
    (sent / "tensorboard.py").write_text(EVIL)
    put(sent / "study.toml", 'name = "lenet-small"', 'name = "torch.utils.tensorboard:SummaryWriter"')
    done = sca_search("export", ".", "--trust", cwd=sent)
    assert (done.returncode, (sent / "was-here").exists()) == (2, False), done.stderr


@pytest.mark.e2e
def test_no_module_of_the_working_folder_replaces_another(sent: Path) -> None:
    """In the command, in its workers and in the processes that start these."""
    for module in ("typing", "multiprocessing", "numpy", "pickle", "tomllib", "optuna"):
        (sent / f"{module}.py").write_text(EVIL)
    put(sent / "study.toml", 'name = "run-folder"', 'name = "sent"')
    more = ("--trials", "4", "--workers", "2", "--out", "..")
    done = sca_search(*STUDY, *more, cwd=sent)
    assert (done.returncode, (sent / "was-here").exists()) == (0, False), done.stderr


def test_a_network_of_ones_own_next_to_the_runs_is_still_made(run, sent: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from sca_search.models.builtin import resnet20 as net\n")
    put(sent / "study.toml", 'name = "lenet-small"', f'name = "{tmp_path}/mine.py:net"')
    assert RunFolder(sent).spec(trust=True).model.label == "mine.py:net"


def changed(sent: Path, *statements: str) -> Path:
    path = sent / "study.db"
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    return path


def test_database_of_a_stored_run_is_sound(sent: Path) -> None:
    require_intact_database(sent / "study.db")
    require_intact_database(sent / "there-is-none.db")


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials; END", "tables only, got the trigger 't'"),
        ("CREATE VIEW v AS SELECT 1", "tables only, got the view 'v'"),
    ],
)
def test_database_with_more_than_tables_is_rejected(sent: Path, statement: str, sentence: str) -> None:
    path = changed(sent, statement)
    with pytest.raises(RunError) as refused:
        require_intact_database(path)
    assert str(refused.value).startswith(f"{path}: is not a readable study database: ")
    assert sentence in str(refused.value)


def test_endless_view_is_not_evaluated(sent: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS trial_id, i AS number FROM n"
    path = changed(sent, "DROP TABLE trials", f"CREATE VIEW trials AS {endless}")
    with pytest.raises(RunError, match="got the view 'trials'"):
        require_intact_database(path)


STUDY = ("--target-sparsity", "0.5", "--name", "sent", "--refits", "0", "--epochs", "2", "--dense-epochs", "6")
STUDY += ("--threads", "1", "--train-limit", "100", "--batch", "10", "--out", ".", "--trials", "3", "--resume")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trial_user_attributes SET value_json = '\"../x\"' WHERE key = 'candidate'",
        "UPDATE trial_user_attributes SET value_json = '-1' WHERE key = 'candidate'",
        "UPDATE trial_user_attributes SET value_json = '1.5' WHERE key = 'candidate'",
        "UPDATE trial_user_attributes SET value_json = '[' WHERE key = 'loss'",
        "UPDATE trial_user_attributes SET value_json = '2' WHERE key = 'planned_sparsity'",
        "DELETE FROM trial_user_attributes WHERE key = 'candidate'",
        "UPDATE trials SET number = -1 WHERE trial_id = 1",
        "DROP TABLE trial_user_attributes",
        "UPDATE trial_params SET distribution_json = '{}' WHERE param_id = 1",
        "UPDATE trials SET state = 'NONE' WHERE trial_id = 1",
        "UPDATE trial_values SET value = NULL WHERE trial_id = 1",
        "UPDATE trial_user_attributes SET value_json = '\"x\"' WHERE key = 'loss'",
        "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials; END",
        "UPDATE study_directions SET direction = 'SIDEWAYS'",
    ],
)
def test_study_is_not_resumed_from_a_bad_database(run, sent: Path, statement: str) -> None:
    changed(sent, statement)
    put(sent / "study.toml", 'name = "run-folder"', 'name = "sent"')
    before = (sent / "candidates" / "001" / "model.safetensors").read_bytes()
    done = run(*STUDY)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert (sent / "candidates" / "001" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        (
            "sensitivity.json",
            [{"layer": "a", "sparsity": "x", "loss": 0.1, "accuracy": 0.1}],
            "a file in it is damaged",
        ),
        ("sensitivity.json", [{"layer": "a", "sparsity": 2, "loss": 0.1, "accuracy": 0.1}], "must be a finite loss at"),
        ("dense.json", {"metric": [], "loss": 1.0}, "the dense network cannot be read"),
    ],
)
def test_study_is_not_resumed_from_bad_files(run, sent: Path, file: str, content: object, sentence: str) -> None:
    (sent / file).write_text(json.dumps(content))
    put(sent / "study.toml", 'name = "run-folder"', 'name = "sent"')
    done = run(*STUDY)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert sentence in done.stderr


@pytest.mark.e2e
def test_a_network_of_the_working_folder_is_trained_resumed_and_exported(tmp_path: Path) -> None:
    """With a module next to it, in worker processes too."""
    (tmp_path / "blocks.py").write_text("from sca_search.models.builtin import build_model as build\n")
    (tmp_path / "nets.py").write_text(
        "from blocks import build\n\n\ndef net(num_classes, input_shape):\n"
        "    return build('lenet-small', num_classes=num_classes, input_shape=input_shape)\n"
    )
    study = ("--model", "nets:net", "--name", "own", *TINY, "--workers", "2")
    done = sca_search(*study, "--trials", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "To use it: sca-search export runs/own --trust" in done.stdout
    assert sca_search(*study, "--resume", cwd=tmp_path).returncode == 0
    assert sca_search("export", "runs/own", cwd=tmp_path).returncode == 2
    done = sca_search("export", "runs/own", "--trust", "--format", "packed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

"""sca-search export and sca-search verify on a real, small study."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import sca_search
from sca_search.export import onnx as onnx_export
from sca_search.export.packed.format import read_packed
from sca_search.export.state_dict import count_zeros, load_plain
from tests.support.command import Outcome

Run = Callable[..., Outcome]


@pytest.mark.e2e
def test_chosen_trial_is_exported_in_all_formats_and_verified(
    tiny_run: tuple[Path, str], tiny_export: tuple[Path, str], run: Run
) -> None:
    study, printed = tiny_run
    assert f"sca-search export runs/{study.name}" in printed
    said = tiny_export[1]
    for line in ("reading the data", "writing packed", "writing c", "writing onnx", "writing torch", "verifying"):
        assert line in said
    for file in ("model.safetensors", "c/model.c", "model.onnx", "model.pt2", "state.safetensors"):
        assert file in said
    shutil.copytree(tiny_export[0], "out")
    assert "all 270 validation images" in Path("out/MODEL.md").read_text()  # a narrow screen breaks the words
    assert "everything agrees" in said
    summary = json.loads((study / "summary.json").read_text())["chosen"]
    network = sca_search.load("out/model.safetensors")
    assert network.about["trial"] == summary["trial"]
    assert network.about["goal"] == "target sparsity 0.5"
    assert network.about["test_metric"] == summary["test_metric"]
    graph, _ = read_packed(Path("out/model.safetensors"))
    assert {layer.name: layer.zeros for layer in graph.ternary_layers} == {
        name: layer["zeros"] for name, layer in summary["layers"].items()
    }
    # the very weights of the study's own file
    state, _, about = load_plain(study / "chosen.safetensors")
    assert np.array_equal(graph.ternary_layers[0].weight, state[f"{graph.ternary_layers[0].name}.weight"].numpy())
    assert np.allclose(graph.mean, about.mean)
    assert tomllib.loads(Path("out/study.toml").read_text())["data"]["name"] == "digits"
    card = Path("out/MODEL.md").read_text()
    for words in (
        f"Chosen: {summary['reason']}",
        ", one refit",
        f"Test: {summary['test_metric']:.2%} on 450 images",
        "sca-search export RUN",
    ):
        assert words in card

    again = run("verify", "out")
    assert again.returncode == 0, again.stderr
    assert "all 270" in again.stdout
    assert "a .pt2 is loaded only by the process that wrote it" in again.stdout
    assert run("export", str(study), "--out", "out").returncode == 2
    assert run("export", str(study), "--out", "out", "--force", "--format", "packed").returncode == 0
    assert not Path("out/model.onnx").exists()


@pytest.mark.e2e
def test_integer_activations_are_within_a_point_of_the_floats(tiny_run: tuple[Path, str], run: Run) -> None:
    done = run("export", str(tiny_run[0]), "--out", "out", "--format", "packed,c", "--activations", "int8")
    assert done.returncode == 0, done.stderr
    card = Path("out/MODEL.md").read_text()
    assert "| c/model.c | all 270 validation images | equal bit for bit | yes |" in card
    found = re.search(r"accuracy ([\d.]+)%, with float activations ([\d.]+)%", card)
    assert found is not None
    assert float(found[1]) >= float(found[2]) - 1
    again = run("verify", "out")
    assert again.returncode == 0, again.stderr
    assert "bit for bit" in again.stdout
    assert run("bench", "out", "--seconds", "0.5").returncode == 0
    refused = run("export", str(tiny_run[0]), "--out", "other", "--activations", "int4")
    assert refused.returncode == 2
    assert "unknown kind of activations 'int4'" in refused.stderr
    assert not Path("other").exists()


@pytest.mark.e2e
def test_any_trial_is_exported_and_verified_from_the_runs_state(tiny_run: tuple[Path, str], run: Run) -> None:
    study = Path(shutil.copytree(tiny_run[0], "study"))
    done = run("export", "study", "--trial", "1", "--format", "packed,c")
    assert done.returncode == 0, done.stderr
    folder = study / "exports" / "trial-001"
    graph, _ = read_packed(folder / "model.safetensors")
    counted = count_zeros(study / "candidates" / "001" / "model.safetensors")
    assert {layer.name: layer.zeros for layer in graph.ternary_layers} == {n: each.zeros for n, each in counted.items()}
    assert "Refits:" not in (folder / "MODEL.md").read_text()  # only the chosen trial is trained again
    assert "trained network" in run("verify", str(folder)).stdout
    # alone, without the run, it is compared with the packed model; with a changed weight it does not agree
    shutil.move(folder, "alone")
    alone = run("verify", "alone")
    assert alone.returncode == 0
    assert "the records of model.safetensors" in alone.stdout
    source = Path("alone/c/model.c").read_text()
    at = source.index(" weights in layer_")
    # a + that becomes a -: as many zeros as before, and another answer
    Path("alone/c/model.c").write_text(source[:at] + source[at:].replace("$", "%", 1))
    wrong = run("verify", "alone")
    assert wrong.returncode == 1
    assert "something differs" in wrong.stdout
    for_a_script = run("verify", "alone", "--json")
    assert for_a_script.returncode == 1
    assert json.loads(for_a_script.stdout)["holds"] is False


@pytest.mark.e2e
def test_missing_data_is_said_and_the_export_goes_on(tiny_run: tuple[Path, str], run: Run) -> None:
    study = Path(shutil.copytree(tiny_run[0], "study"))
    toml = (study / "study.toml").read_text().replace('name = "digits"', 'name = "npz:gone.npz"')
    (study / "study.toml").write_text(toml)
    done = run("export", "study", "--format", "packed", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "the validation split cannot be read, so only test vectors are compared" in done.stdout
    assert "gone.npz" in run("verify", "out").stdout


def test_bad_requests_are_one_sentence_and_write_nothing(tiny_run: tuple[Path, str], run: Run) -> None:
    study = Path(shutil.copytree(tiny_run[0], "study"))
    trials = (study / "trials.csv").read_text()
    (study / "trials.csv").write_text(trials.replace("\n2,complete", "\n2,failed").replace("2,complete", "2,failed", 1))
    before = sorted(study.rglob("*"))
    for arguments, sentence in {
        ("nowhere",): "nowhere: is not a run folder, it has no study.toml",
        ("study", "--trial", "77"): "study: there is no trial 77; there are 0, 1, 2",
        ("study", "--trial", "2"): "study: trial 2 must be complete to be exported, it is failed",
        ("study", "--format", "onxx"): "unknown format 'onxx': known are c, onnx, packed, torch; did you mean 'onnx'?",
        ("study", "--format", ""): "--format must name at least one",
        ("study", "--out", "study"): "study must be empty, it holds files",
        ("study", "--out", "study/study.toml"): "study/study.toml must be a folder, it is a file",
    }.items():
        done = run("export", *arguments)
        assert done.returncode == 2, arguments
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
    assert sorted(study.rglob("*")) == before
    assert "is not an export folder" in run("verify", "study").stderr
    assert "there is no such folder" in run("verify", "nowhere").stderr


def test_damaged_run_is_one_sentence(tiny_run: tuple[Path, str], run: Run) -> None:
    study = Path(shutil.copytree(tiny_run[0], "study"))
    (study / "candidates" / "001" / "model.safetensors").write_bytes(b"short")
    assert "cannot be read as a model" in run("export", "study", "--trial", "1").stderr
    (study / "candidates" / "001" / "candidate.json").write_text("{")
    assert "candidate.json cannot be read" in run("export", "study", "--trial", "1").stderr
    shutil.rmtree(study / "candidates" / "001")
    assert "the candidate's files are missing" in run("export", "study", "--trial", "1").stderr
    (study / "trials.csv").unlink()
    assert "no trial has finished yet" in run("export", "study").stderr
    assert not (study / "exports").exists()


@pytest.mark.e2e
def test_without_the_onnx_extra_the_others_are_written(
    tiny_run: tuple[Path, str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = onnx_export.find_spec
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None if name.startswith("onnx") else found(name))
    done = run("export", str(tiny_run[0]), "--out", "out", "--format", "packed,onnx")
    assert done.returncode == 0
    assert "onnx is not installed, so the format onnx is left out; pip install 'sca-search[onnx]'" in done.stderr
    assert Path("out/model.safetensors").exists()
    assert not Path("out/model.onnx").exists()
    alone = run("export", str(tiny_run[0]), "--out", "alone", "--format", "onnx")
    assert alone.returncode == 2
    assert "pip install 'sca-search[onnx]'" in alone.stderr
    assert not Path("alone").exists()


@pytest.mark.e2e
def test_commands_of_the_card_work(tiny_run: tuple[Path, str], run: Run) -> None:
    # Not all formats: the card's lines for state.safetensors continue a program of the reader's own.
    run("export", str(tiny_run[0]), "--out", "out", "--format", "packed,c")
    card = Path("out/MODEL.md").read_text()
    for python in card.split("```python\n")[1:]:
        program = python.split("```")[0]
        if "network.load_state_dict" in program:  # of the user's own network
            continue
        subprocess.run([sys.executable, "-c", program], cwd="out", check=True, timeout=120, capture_output=True)
    shell = card.split("```sh\n")[1].split("```")[0].splitlines()
    images = torch.rand(3, 1, 8, 8).numpy()
    images.tofile("out/images.f32")
    for command in shell:
        subprocess.run(command, shell=True, cwd="out", check=True, timeout=120, capture_output=True)
    logits = np.fromfile("out/logits.f32", dtype=np.float32).reshape(3, 10)
    expected = sca_search.load("out/model.safetensors")(torch.from_numpy(images)).numpy()
    assert np.allclose(logits, expected, atol=1e-4)

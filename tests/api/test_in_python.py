"""A study from Python, and what the package promises by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sca_search as sca
from sca_search.errors import ExportError, ModelError, RunError, SpecError

QUICK: dict[str, Any] = {
    "trials": 2, "epochs": 3, "dense_epochs": 4, "refits": 0, "threads": 1, "progress": False,
}  # fmt: skip


def two_classes(*shape: int, count: int = 240) -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """Noise around one of two patterns: train, validation, test."""
    random = torch.Generator().manual_seed(0)
    patterns = torch.randn(2, *shape, generator=random)
    labels = torch.arange(count) % 2
    inputs = patterns[labels] + 0.5 * torch.randn(count, *shape, generator=random)
    third = count // 3
    return tuple(  # type: ignore[return-value]
        TensorDataset(inputs[part : part + third], labels[part : part + third]) for part in (0, third, 2 * third)
    )


def sequence_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(3, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 16, 5, padding=2), nn.BatchNorm1d(16),
        nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 2),
    )  # fmt: skip


class SmallTransformer(nn.Module):
    """Patches, two blocks with torch's own attention, a head."""

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.patches = nn.Conv2d(channels, 16, 4, stride=4)
        self.places = nn.Parameter(torch.zeros(1, height // 4 * (width // 4), 16))
        block = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        answers: torch.Tensor = self.head(self.blocks(tokens).mean(1))
        return answers


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> sca.Result:
    out = tmp_path_factory.mktemp("sequences")
    return sca.search(sequence_network(), two_classes(3, 40), target_sparsity=0.5, out=out, **QUICK)


def test_search_of_objects_gives_front_chosen_and_page(sequences: sca.Result) -> None:
    assert list(sequences.trials["state"]) == ["complete", "complete"]
    assert set(sequences.front["trial"]) <= set(sequences.trials["trial"])
    assert sequences.chosen.sparsity == pytest.approx(0.5, abs=0.001)
    assert sequences.chosen.metric > 0.9
    assert sequences.chosen.test_metric is not None
    assert sequences.chosen.test_metric > 0.9
    assert sequences.summary["chosen"]["trial"] == sequences.chosen.trial
    assert sequences.dashboard.read_text().startswith("<!doctype html>")


def test_chosen_model_takes_inputs_as_they_are(sequences: sca.Result) -> None:
    model = sequences.chosen.model()
    inputs, labels = two_classes(3, 40)[2].tensors
    with torch.no_grad():
        right = float((model(inputs).argmax(1) == labels).float().mean())
    assert right == pytest.approx(sequences.chosen.test_metric)
    assert sca.sparsity(model) == pytest.approx(0.5, abs=0.001)


@pytest.mark.e2e
def test_chosen_is_exported_verified_and_loaded_again(sequences: sca.Result, tmp_path: Path) -> None:
    exported = sequences.chosen.export(tmp_path / "out", formats=["packed", "c", "onnx"])
    assert exported.verification.holds
    inputs = two_classes(3, 40)[2].tensors[0]
    ours = sequences.chosen.model()(inputs).detach().numpy()
    loaded = sca.load(tmp_path / "out" / "model.safetensors")
    np.testing.assert_allclose(loaded(inputs).detach().numpy(), ours, rtol=1e-3, atol=1e-3)


@pytest.mark.e2e
def test_network_made_in_python_cannot_be_made_by_the_command(sequences: sca.Result) -> None:
    command = [sys.executable, "-m", "sca_search", "export", str(sequences.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is a Python object" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.e2e
def test_transformer_of_torchs_own_blocks_is_searched_and_its_export_rejected_by_name(tmp_path: Path) -> None:
    result = sca.search(
        SmallTransformer, two_classes(3, 16, 16), target_sparsity=0.9, out=tmp_path, **(QUICK | {"epochs": 12})
    )
    assert result.chosen.sparsity == pytest.approx(0.9, abs=0.001)
    assert result.chosen.metric > 0.9
    layers = result.summary["chosen"]["layers"]
    assert {"blocks.layers.0.self_attn.q_proj", "blocks.layers.1.self_attn.out_proj"} <= layers.keys()
    with pytest.raises(ExportError, match=r"blocks|attn|patches"):
        result.chosen.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.e2e
def test_search_of_names_is_the_commands_study(tmp_path: Path) -> None:
    result = sca.search("lenet-small", "digits", target_sparsity=0.7, out=tmp_path, name="named", **QUICK)
    again = sca.search("lenet-small", "digits", target_sparsity=0.7, out=tmp_path, name="named", resume=True,
                       **(QUICK | {"trials": 3}))  # fmt: skip
    assert result.path == again.path == tmp_path / "named"
    assert len(again.trials) == 3
    shown = subprocess.run(
        [sys.executable, "-m", "sca_search", "show", str(result.path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{again.chosen.sparsity:.3%}" in shown.stdout


def test_network_that_comes_with_its_weights_needs_no_dense_training(tmp_path: Path) -> None:
    settings = QUICK | {"dense_epochs": 0, "trials": 1}
    network = sequence_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    result = sca.search(network, two_classes(3, 40), out=tmp_path, **settings)
    assert result.chosen.sparsity == pytest.approx(0.5, abs=0.001)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())  # a copy was trained


def in_thousandths(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return 1000 * float((outputs.argmax(1) == targets).float().mean())


@pytest.mark.e2e
def test_functions_stand_for_loss_and_metric_and_the_metric_chooses(tmp_path: Path) -> None:
    losses: list[float] = []

    def doubled(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = 2 * nn.functional.cross_entropy(outputs, targets)
        losses.append(float(loss.detach()))
        return loss

    result = sca.search(
        sequence_network(), two_classes(3, 40), front=True, metric=in_thousandths, loss=doubled, out=tmp_path, **QUICK
    )
    assert losses
    assert result.summary["metric_name"] == "in_thousandths"
    assert 500 < result.chosen.metric <= 1000
    assert result.chosen.trial == result.summary["chosen"]["trial"]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda out: sca.search(target_sparsty=0.5, out=out), SpecError, "did you mean 'target_sparsity'"),
        (lambda out: sca.search(target_sparsity=1.5, out=out), SpecError, "--target-sparsity must be below 1"),
        (lambda out: sca.search(nn.ReLU(), out=out), ModelError, "no parameters"),
        (lambda out: sca.search(lambda: 3, out=out), ModelError, r"must return a torch.nn.Module"),
        (lambda out: sca.search(sequence_network(), two_classes(4, 40), out=out), ModelError, r"\(4, 40\)"),
        (lambda out: sca.search(sequence_network(), two_classes(3, 40), workers=2, out=out), SpecError, "workers"),
        (lambda out: sca.search(study=out / "none.toml", out=out), SpecError, "no such study file"),
    ],
)
def test_misuse_is_one_clear_sentence_and_leaves_nothing(
    call: Any, error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words) as caught:
        call(tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_goal_that_nothing_meets_says_what_the_best_is(tmp_path: Path) -> None:
    result = sca.search(
        sequence_network(), two_classes(3, 40), min_accuracy=1.0, out=tmp_path, **(QUICK | {"trials": 1, "epochs": 1})
    )
    if result.summary["chosen"] is None:
        with pytest.raises(RunError, match="No trial meets the goal"):
            _ = result.chosen
    else:  # it may well be perfect
        assert result.chosen.metric == 1.0


PROMISED = {
    "Control", "TrialModel", "Result", "TernaryCallback", "__version__", "bake", "compile", "load", "regularizer",
    "search", "sparsity", "ternarize", "export_baked", "ternary_layers",
}  # fmt: skip


def test_package_has_the_names_that_it_promises_each_documented() -> None:
    assert set(sca.__all__) == PROMISED == set(dir(sca))
    for name in PROMISED - {"__version__"}:
        assert (getattr(sca, name).__doc__ or "").strip(), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sca.nothing
    assert (Path(sca.__file__).parent / "py.typed").exists()


def test_import_is_light() -> None:
    program = (
        "import sys, sca_search; print(sorted({'torch', 'optuna', 'pandas', 'plotly', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

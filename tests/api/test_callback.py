"""`TernaryCallback` beside other people's LightningModules and Trainers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sca_search.api.callback import TernaryCallback, lightning
from sca_search.api.loop import export_baked, sparsity, ternary_layers
from sca_search.data import load_data
from sca_search.errors import ModelError
from sca_search.export.open import load
from sca_search.ternary.parametrize import latents

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about loaders and devices


class Theirs(lightning.LightningModule):
    """A module as its owner wrote it: nothing in it knows of trits."""

    def __init__(self, normalized: bool = True, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        norm = nn.BatchNorm2d(16) if normalized else nn.Identity()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), norm, nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(images)
        return logits

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), self.learning_rate)


def loader(shuffled: bool = True) -> DataLoader[Any]:
    split = load_data("digits", seed=0).train
    return DataLoader(TensorDataset(split.images, split.labels), 64, shuffle=shuffled)


def trainer(*callbacks: Any, **settings: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(**(quiet | {"max_epochs": 12, "accelerator": "cpu", "callbacks": [*callbacks]} | settings))


def accuracy(module: nn.Module) -> float:
    split = load_data("digits", seed=0).val
    with torch.no_grad():
        return float((module.eval()(split.images).argmax(1) == split.labels).float().mean())


@pytest.mark.e2e
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("target", [0.5, 0.95])
def test_callback_alone_gives_an_accurate_ternary_network(normalized: bool, target: float) -> None:
    torch.manual_seed(0)
    module = Theirs(normalized)
    callback = TernaryCallback(target_sparsity=target)
    trainer(callback).fit(module, loader())
    assert sparsity(module) == callback.sparsity == pytest.approx(target, abs=0.001)
    assert set(module.net[2].weight.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert set(module.net[7].weight.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert accuracy(module) > 0.9


@pytest.mark.e2e
def test_module_trained_with_the_callback_is_exported_and_verified(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Theirs(normalized=False)
    trainer(TernaryCallback(0.9), max_epochs=4).fit(module, loader())
    assert ternary_layers(module) == ("net.2", "net.7")
    images = load_data("digits", seed=0).val.images
    exported = export_baked(module, tmp_path / "out", images, ["packed", "c"])
    assert exported.verification.holds
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path / "out" / "model.safetensors")(images), module.eval()(images))


def test_examples_order_of_execution_says_which_layers_are_first_and_last() -> None:
    module = Theirs()
    module.example_input_array = torch.zeros(2, 1, 8, 8)
    trainer(TernaryCallback(0.9), max_epochs=1, limit_train_batches=2).fit(module, loader())
    # A normalization is seen to follow the convolution, so that only the full layer needs a scale of its own.
    assert [name for name, _ in module.named_parameters() if name.endswith("output_scale")] == ["net.7.output_scale"]


@pytest.mark.e2e
def test_papers_form_adds_its_pull_to_the_gradient() -> None:
    torch.manual_seed(0)
    module = Theirs(learning_rate=0.02)
    # A pull far stronger than the task: nearly every weight must end at a peak before anything is rounded.
    seen: list[torch.Tensor] = []

    class Look(lightning.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            seen[:] = [torch.tanh(theta.detach()) for theta in latents(module).values()]

    callback = TernaryCallback(0.5, form="paper", wdr_strength=10.0, frozen_fraction=0.0)
    trainer(callback, Look()).fit(module, loader())
    gaps = torch.cat([(soft - soft.round()).abs().flatten() for soft in seen])
    assert float((gaps < 0.1).float().mean()) > 0.95
    assert sparsity(module) == pytest.approx(0.5, abs=0.001)


@pytest.mark.e2e
@pytest.mark.parametrize("stopped_after", [4, 11])  # before and after the trits are frozen
def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path, stopped_after: int) -> None:
    def trained(epochs: list[int]) -> Theirs:
        torch.manual_seed(0)
        module, path = Theirs(), None
        for epoch in epochs:
            going = trainer(TernaryCallback(0.8), Stop(epoch))
            going.fit(module, loader(shuffled=False), ckpt_path=path)
            path = tmp_path / "on-the-way.ckpt"
            if epoch != epochs[-1]:
                module = Theirs()
        return module

    class Stop(lightning.Callback):
        """Writes a checkpoint after an epoch and ends there, as a killed process would."""

        def __init__(self, epoch: int) -> None:
            self.epoch = epoch

        def on_train_epoch_end(self, trainer: Any, _module: Any) -> None:
            if trainer.current_epoch + 1 == self.epoch < 12:
                trainer.save_checkpoint(tmp_path / "on-the-way.ckpt")
                trainer.should_stop = True

    whole, parts = trained([12]), trained([stopped_after, 12])
    for (name, one), other in zip(whole.state_dict().items(), parts.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, msg=name, rtol=1e-4, atol=1e-5)


def test_training_without_an_end_is_rejected() -> None:
    with pytest.raises(ModelError, match="must have an end"):
        trainer(TernaryCallback(0.5), max_epochs=-1).fit(Theirs(), loader())


def test_module_without_layers_to_make_ternary_is_rejected() -> None:
    module = Theirs()
    module.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ModelError, match="no layer to make ternary"):
        trainer(TernaryCallback(0.5)).fit(module, loader())

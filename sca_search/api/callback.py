"""`TernaryCallback`: makes any LightningModule ternary while a Trainer trains it."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sca_search.api.loop import Control, bake, regularizer, sparsity, ternarize
from sca_search.config.candidate import Form
from sca_search.errors import ModelError
from sca_search.system.torchvision import patch_torchvision
from sca_search.ternary.parametrize import ternary_weights

patch_torchvision()
import pytorch_lightning as lightning  # noqa: E402 - it imports torchvision, which must be healed before


class TernaryCallback(lightning.Callback):
    """Makes a LightningModule ternary during its usual training, with exactly the requested number of zeros.

        trainer = Trainer(max_epochs=20, callbacks=[sca.TernaryCallback(target_sparsity=0.5)])
        trainer.fit(module, loader)

    Latent weights are added before the module configures its optimizers. The last `frozen_fraction` of the steps train
    with the trits frozen; when training ends, the weights are plain numbers in {-1, 0, +1}. The first and the last
    layer stay dense, by order of execution if the module has Lightning's `example_input_array`, else by order of
    definition; `skip` and `only` are name patterns. In the paper's form, `wdr_strength` (λ) times the regularizer is
    added to the loss; it needs automatic optimization.

    A checkpoint written during training holds Θ: to resume from it, the trainer needs this callback again.
    """

    def __init__(
        self,
        target_sparsity: float = 0.5,
        *,
        form: Form = "decoupled",
        wdr_strength: float | None = None,
        frozen_fraction: float = 0.2,
        skip: Sequence[str] = (),
        only: Sequence[str] = (),
        keep_first: bool = True,
        keep_last: bool = True,
    ) -> None:
        super().__init__()
        self.target_sparsity = target_sparsity
        self.form: Form = form
        self.wdr_strength = wdr_strength
        self.frozen_fraction = frozen_fraction
        self.choice: dict[str, Any] = {"skip": skip, "only": only, "keep_first": keep_first, "keep_last": keep_last}
        self._control: Control | None = None
        self._loaded: dict[str, Any] = {}

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:  # noqa: ARG002
        if stage == "fit" and not ternary_weights(pl_module):
            example = getattr(pl_module, "example_input_array", None)
            known = example if isinstance(example, Tensor) else None
            ternarize(pl_module, self.target_sparsity, form=self.form, example=known, **self.choice)

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        steps = trainer.estimated_stepping_batches
        if not math.isfinite(steps):
            raise ModelError("TernaryCallback: the training must have an end (max_epochs or max_steps), it has none")
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 and not self._loaded else None
        how: dict[str, Any] = {"wdr_strength": self.wdr_strength, "frozen_fraction": self.frozen_fraction}
        self._control = Control(pl_module, int(steps), optimizer=optimizer, **how)
        if self._loaded:
            self._control.resume(0, self._loaded)

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        assert self._control is not None
        self._control.move_to(trainer.global_step / self._control.steps)

    def on_before_backward(self, trainer: Any, pl_module: nn.Module, loss: Tensor) -> None:  # noqa: ARG002
        if self.wdr_strength is not None:
            # Lightning calls `backward` on the loss alone, so the regularizer's gradient is added here.
            penalty = regularizer(pl_module)
            if penalty.requires_grad:
                (penalty / trainer.accumulate_grad_batches).backward()

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:  # noqa: ARG002
        if ternary_weights(pl_module):
            bake(pl_module)
            self.sparsity = sparsity(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._control is None else self._control.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = dict(state_dict)

"""Networks of torchvision and timm by name, newly initialized: nothing is downloaded."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from sca_search.config.references import describe_error
from sca_search.errors import ModelError, nearest_name
from sca_search.models.builtin import Shape, require_maps
from sca_search.models.user import Maker
from sca_search.system.torchvision import patch_torchvision


def torchvision_maker(name: str, num_classes: int, input_shape: Shape) -> Maker:
    """Any of torchvision's classifiers; for other than three input channels the first convolution is replaced."""
    patch_torchvision()
    from torchvision import models  # noqa: PLC0415 - after patch_torchvision

    known = models.list_models(module=models)
    if name not in known:
        raise ModelError(f"torchvision has no classifier {name!r}{nearest_name(name, known)}")
    require_maps(f"torchvision:{name}", input_shape)
    settings = _settings(models.get_model_builder(name), name, input_shape)

    def make() -> nn.Module:
        network = _made(
            f"torchvision:{name}", models.get_model, name, weights=None, num_classes=num_classes, **settings
        )
        if input_shape[0] != 3:
            first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
            first.in_channels = input_shape[0]
            first.weight = nn.Parameter(first.weight.new_empty(first.out_channels, input_shape[0], *first.kernel_size))
            first.reset_parameters()
        return network

    return make


def _made(name: str, build: Callable[..., nn.Module], *args: str, **settings: Any) -> nn.Module:
    try:
        return build(*args, **settings)
    except Exception as error:  # such as an image size that is not a multiple of the patch size
        raise ModelError(f"model {name}: cannot be made: {describe_error(error)}") from error


def _settings(builder: Any, name: str, input_shape: Shape) -> dict[str, Any]:
    """Required settings: no auxiliary output in training; the image size of a vision transformer."""
    if name in {"googlenet", "inception_v3"}:
        return {"aux_logits": False, "init_weights": True}
    if name.startswith("vit_"):
        if input_shape[1] != input_shape[2]:
            raise ModelError(f"model torchvision:{name}: takes square images, the data's shape is {input_shape}")
        return {"image_size": input_shape[1]}
    if name.startswith("maxvit") and "input_size" in inspect.signature(builder).parameters:
        return {"input_size": tuple(input_shape[1:])}
    return {}


def timm_maker(name: str, num_classes: int, input_shape: Shape) -> Maker:
    """Any of timm's networks, where timm is installed."""
    patch_torchvision()  # timm imports it
    try:
        import timm  # noqa: PLC0415 - not a dependency
    except ImportError as error:
        raise ModelError(f"model timm:{name}: the package timm is not installed: pip install timm") from error
    known = timm.list_models()
    if name not in known and name.partition(".")[0] not in known:
        raise ModelError(f"timm has no network {name!r}{nearest_name(name, known)}")
    require_maps(f"timm:{name}", input_shape)
    settings = {"pretrained": False, "num_classes": num_classes, "in_chans": input_shape[0]}
    return lambda: _made(f"timm:{name}", timm.create_model, name, **settings)

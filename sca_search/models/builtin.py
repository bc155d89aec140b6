"""The networks of the paper, smaller LeNets for studies of seconds, and the blocks that they are made of.

Every weight layer except the last is followed by a BatchNorm and has no bias: weights in {-1, 0, +1} have no scale, the
normalization supplies one. The paper lists none for LeNet, where TWN has one, and the original AlexNet has none.
Normalizations and activations are numbered by the weight layer they follow, counted over the whole network:
conv1 bn1 relu1 ... conv6 bn6 relu6, then fc1 bn7 relu7.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from sca_search.errors import ModelError, unknown_name
from sca_search.system.torchvision import patch_torchvision

Shape = tuple[int, ...]
"""(channels, height, width) for images; (channels, length), (channels, depth, height, width), (features,)"""
Layers = dict[str, nn.Module]


def require_maps(model: str, shape: Shape) -> None:
    """ModelError for an input that is not an image."""
    if len(shape) != 3:
        raise ModelError(
            f"model {model}: takes images (channels, height, width), the data's shape is {tuple(shape)}; "
            "other networks can be given as file.py:function"
        )


def lenet(widths: tuple[int, int, int], num_classes: int, shape: Shape, dropout: float) -> nn.Module:
    """Two 5×5 convolutions, each with a pooling, and two linear layers, dropout before the last.

    The padding preserves the image's size, so only the two poolings reduce it.
    """
    channels, height, width = shape
    first, second, wide = widths
    return _initialized(
        _conv(1, channels, first, 5)
        | {"pool1": nn.MaxPool2d(2)}
        | _conv(2, first, second, 5)
        | {"pool2": nn.MaxPool2d(2), "flatten": nn.Flatten()}
        | _hidden(1, 3, second * (height // 4) * (width // 4), wide)
        | _dropped(2, dropout)
        | {"fc2": nn.Linear(wide, num_classes)}
    )


def vgg(
    widths: Sequence[int], wide: int, drops_first: bool, num_classes: int, shape: Shape, dropout: float
) -> nn.Module:
    """Three stages of two 3×3 convolutions and a pooling, then two linear layers, dropout before the last or both."""
    layers: Layers = {}
    channels, height, width = shape
    for stage, outputs in enumerate(widths, start=1):
        layers |= _conv(2 * stage - 1, channels, outputs, 3) | _conv(2 * stage, outputs, outputs, 3)
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
        channels = outputs
    layers |= {"flatten": nn.Flatten()} | _dropped(1, dropout if drops_first else 0.0)
    # each of the three poolings drops an odd row or column
    layers |= _hidden(1, 7, channels * (height // 8) * (width // 8), wide) | _dropped(2, dropout)
    return _initialized(layers | {"fc2": nn.Linear(wide, num_classes)})


def alexnet(num_classes: int, shape: Shape, dropout: float) -> nn.Module:
    """torchvision's layout: five convolutions, average pooling to 6×6, three linear layers; dropout before the hidden
    two."""
    return _initialized(
        _conv(1, shape[0], 64, 11, stride=4, padding=2)
        | {"pool1": nn.MaxPool2d(3, stride=2)}
        | _conv(2, 64, 192, 5)
        | {"pool2": nn.MaxPool2d(3, stride=2)}
        | _conv(3, 192, 384, 3)
        | _conv(4, 384, 256, 3)
        | _conv(5, 256, 256, 3)
        | {"pool3": nn.MaxPool2d(3, stride=2), "average": nn.AdaptiveAvgPool2d(6), "flatten": nn.Flatten()}
        | _dropped(1, dropout)
        | _hidden(1, 6, 256 * 6 * 6, 4096)
        | _dropped(2, dropout)
        | _hidden(2, 7, 4096, 4096)
        | {"fc3": nn.Linear(4096, num_classes)}
    )


def resnet20(widths: tuple[int, int, int], num_classes: int, shape: Shape, _dropout: float) -> nn.Module:
    """A 3×3 convolution, three stages of three blocks, average pooling, a linear layer."""
    first, second, third = widths
    return _initialized(
        _conv(1, shape[0], first, 3)
        | {
            "stage1": nn.Sequential(Block(first, first, 1), Block(first, first, 1), Block(first, first, 1)),
            "stage2": nn.Sequential(Block(first, second, 2), Block(second, second, 1), Block(second, second, 1)),
            "stage3": nn.Sequential(Block(second, third, 2), Block(third, third, 1), Block(third, third, 1)),
            "average": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(third, num_classes),
        }
    )


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=projection, bn=nn.BatchNorm2d(outputs)))
        self.relu2 = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(images)))))
        out: Tensor = self.relu2(branch + self.shortcut(images))
        return out


def resnet18(num_classes: int, _shape: Shape, _dropout: float) -> nn.Module:
    """torchvision's network with its own initialization."""
    patch_torchvision()
    from torchvision import models  # noqa: PLC0415 - it takes seconds to import, and no other network needs it

    network: nn.Module = models.resnet18(weights=None, num_classes=num_classes)
    return network


def _conv(order: int, inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int | None = None) -> Layers:
    """A convolution, its BatchNorm and ReLU; the default padding preserves the image's size at stride 1."""
    padding = kernel // 2 if padding is None else padding
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
    return {f"conv{order}": layer, f"bn{order}": nn.BatchNorm2d(outputs), f"relu{order}": nn.ReLU()}


def _hidden(number: int, order: int, inputs: int, outputs: int) -> Layers:
    """The fully connected layer `fc<number>`, the network's weight layer `order`, its BatchNorm and ReLU."""
    layer = nn.Linear(inputs, outputs, bias=False)
    return {f"fc{number}": layer, f"bn{order}": nn.BatchNorm1d(outputs), f"relu{order}": nn.ReLU()}


def _dropped(number: int, rate: float) -> Layers:
    """A dropout before `fc<number>`; none at rate 0, so that an export has no unused layer."""
    return {f"dropout{number}": nn.Dropout(rate)} if rate > 0 else {}


def _initialized(layers: Layers) -> nn.Module:
    """The layers in their order as one network, Xavier (Glorot) uniform as in the paper; biases are 0.

    U(-b, b), b = √(6 / (fan in + fan out)).
    """
    network = nn.Sequential(OrderedDict(layers))
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network


Builder = Callable[[int, Shape, float], nn.Module]
"""(number of classes, input shape, dropout rate) -> network"""

# With the weights between the first and the last layer, for inputs as in the paper.
MODELS: dict[str, Builder] = {
    # 16C5-MP2-32C5-MP2-64FC: trains in seconds on a CPU; 20,992 on 1×8×8
    "lenet-small": partial(lenet, (16, 32, 64)),
    # 16C5-MP2-32C5-MP2-128FC: an eighth of the paper's weights, for studies on a subset of MNIST
    "lenet-medium": partial(lenet, (16, 32, 128)),
    # The paper's 32C5-MP2-64C5-MP2-512FC; 1,656,832 on 1×28×28
    "lenet": partial(lenet, (32, 64, 512)),
    # 2×128C3-MP2-2×256C3-MP2-2×512C3-MP2-1024FC; 12,959,744 on 3×32×32
    "vgg-s": partial(vgg, (128, 256, 512), 1024, True),
    # 2×48C3-MP2-2×96C3-MP2-2×160C3-MP2-128FC. The paper only says that this network has at least 0.84 M parameters, so
    # the widths are our choice: a narrower VGG-S with 841,472 on 3×32×32; larger images enlarge its first linear layer
    "vgg-variate": partial(vgg, (48, 96, 160), 128, False),
    # 16, 32 and 64 channels; 269,824, 2,560 of them in the projections
    "resnet20": partial(resnet20, (16, 32, 64)),
    "resnet18": resnet18,  # 11,157,504
    "alexnet": alexnet,  # 56,971,264 for any image size
}

# The paper's recipes train these without dropout, which they do not support.
_WITHOUT_DROPOUT = {"resnet20", "resnet18"}

# Two poolings; three; two strides of 2 that round up: from 3 pixels on, each has more than one pixel to reduce; five of
# these; and 63 pixels become 15, 7, 3 and 1 through the strided convolution and three poolings of 3 at stride 2.
_LEAST_PIXELS = {"lenet": 4, "vgg": 8, "resnet20": 3, "resnet18": 17, "alexnet": 63}


def build_model(name: str, *, num_classes: int, input_shape: Shape, dropout: float = 0.0) -> nn.Module:
    """The named network for inputs of (channels, height, width), newly initialized, in training mode."""
    if name not in MODELS:
        sentence = unknown_name("model", name, MODELS)
        raise ModelError(f"{sentence}; others can be given as file.py:function, torchvision:NAME or timm:NAME")
    require_maps(name, input_shape)
    channels, height, width = input_shape
    least = _LEAST_PIXELS[name.partition("-")[0]]
    rules = {
        f"the number of outputs must be at least 1, got {num_classes}": num_classes >= 1,
        f"the input must have at least 1 channel, got {channels}": channels >= 1,
        f"dropout must be at least 0 and below 1, got {dropout}": 0 <= dropout < 1,
        f"dropout must be 0, the network has none, got {dropout}": dropout == 0 or name not in _WITHOUT_DROPOUT,
        f"the input must have 3 channels, got {channels}": channels == 3 or name != "resnet18",
        f"the input must be at least {least}x{least} pixels (height x width), got {height}x{width}": (
            min(height, width) >= least
        ),
    }
    for rule, holds in rules.items():
        if not holds:
            raise ModelError(f"model {name}: {rule}")
    return MODELS[name](num_classes, (channels, height, width), dropout)

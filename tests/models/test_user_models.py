"""Networks of the user's: found in files and packages, called with what they take, refused in one sentence."""

import importlib.util
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from sca_search.errors import ModelError
from sca_search.models import find_maker, maker_of

FILE = """
from torch import nn
import beside_it

net = nn.Linear(4, 3)
number = 7

def by_name(width=5, *, input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1], width), nn.Linear(width, num_classes))

def by_place(count, shape):
    return nn.Linear(shape[-1], count)

def one(count):
    import beside_it_later
    return nn.Linear(beside_it_later.WIDTH, count)

def none():
    return nn.Linear(beside_it.WIDTH, 2)

class Net(nn.Linear):
    def __init__(self, num_classes):
        super().__init__(6, num_classes)

def more(num_classes, input_shape, depth, width=3):
    pass

def keyword_only(num_classes, *, depth):
    pass

def nothing(num_classes):
    pass

def fails(num_classes):
    raise ValueError("no such size\\nand more")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets.py").write_text(FILE)
    (tmp_path / "beside_it.py").write_text("WIDTH = 9\n")
    (tmp_path / "beside_it_later.py").write_text("WIDTH = 8\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("from torch import nn\n\ndef make(n):\n    return nn.Linear(2, n)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))  # which an import adds this folder to
    yield tmp_path
    for name in ("beside_it", "beside_it_later", "package", "package.inner"):
        sys.modules.pop(name, None)


def make(name: str, classes: int = 3, shape: tuple[int, ...] = (2, 4)) -> nn.Module:
    return find_maker(name, num_classes=classes, input_shape=shape)()


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        ("by_name", [(5, 8), (3, 5)]),
        ("by_place", [(3, 4)]),
        ("one", [(3, 8)]),
        ("none", [(2, 9)]),
        ("Net", [(3, 6)]),
        ("net", [(3, 4)]),
    ],
)
def test_a_file_is_called_with_what_it_takes(folder, function, shapes):
    network = make(f"nets.py:{function}")
    found = [tuple(module.weight.shape) for module in network.modules() if isinstance(module, nn.Linear)]
    assert found == shapes
    assert network.training


def test_a_package_is_imported_from_here(folder):
    assert make("package.inner:make").weight.shape == (3, 2)


def test_a_module_made_in_python_that_cannot_be_copied_is_rejected():
    network = nn.Linear(4, 3)
    network.lock = threading.Lock()
    with pytest.raises(ModelError, match=r"must be copyable by copy\.deepcopy, got TypeError: cannot pickle"):
        maker_of(network, 3, (4,), "python:Linear")()


def test_a_module_made_in_python_is_copied_each_time():
    given = nn.Linear(4, 3).eval()
    maker = maker_of(given, 3, (4,), "given")
    first, second = maker(), maker()
    assert first is not given
    assert first.weight is not second.weight
    assert torch.equal(first.weight, given.weight)
    assert first.training
    assert not given.training


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nets.py:by_nam", "model 'nets.py:by_nam': nets.py has no 'by_nam'; did you mean 'by_name'?"),
        ("nets.py:zzz", "model 'nets.py:zzz': nets.py has no 'zzz'"),
        ("none.py:make", "model: there is no file none.py"),
        ("none.at.all:make", "model: there is no module 'none.at.all' to import, here or installed"),
        (
            "broken.py:make",
            "model: importing broken.py failed with ZeroDivisionError: division by zero (broken.py, line 1)",
        ),
        ("ends.py:make", "model: importing ends.py failed with SystemExit: 3 (ends.py, line 2)"),
        (
            "nets.py:more",
            "model nets.py:more: is called with num_classes and input_shape only, its signature is "
            "(num_classes, input_shape, depth, width=3); give the other parameters defaults",
        ),
        (
            "nets.py:keyword_only",
            "model nets.py:keyword_only: is called with num_classes and input_shape only, its signature is "
            "(num_classes, *, depth); give the other parameters defaults",
        ),
        ("nets.py:nothing", "model nets.py:nothing: must return a torch.nn.Module, got None"),
        (
            "nets.py:number",
            "model nets.py:number: must be a function, a class or a torch module, got a value of type int",
        ),
        (
            "nets.py:fails",
            "model nets.py:fails: failed when called: ValueError: no such size and more "
            f"(nets.py, line {FILE[: FILE.index('raise')].count(chr(10)) + 1})",
        ),
        ("torchvision:resnet81", "torchvision has no classifier 'resnet81'; did you mean 'resnet18'?"),
    ],
)
def test_what_cannot_be_made_gives_a_one_line_error(folder, name, sentence):
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "ends.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(ModelError) as caught:
        make(name)
    assert str(caught.value) == sentence


def test_the_cause_of_a_failure_is_kept(folder):
    with pytest.raises(ModelError) as caught:
        make("nets.py:fails")
    assert isinstance(caught.value.__cause__, ValueError)


def test_dropout_is_a_setting_of_built_in_networks(folder):
    with pytest.raises(ModelError) as caught:
        find_maker("nets.py:Net", num_classes=3, input_shape=(6,), dropout=0.5)
    assert str(caught.value) == "model nets.py:Net: model.dropout is a setting of the built-in networks, got 0.5"


def test_built_in_networks_take_images_only():
    with pytest.raises(ModelError, match=r"model lenet: takes images .*, the data's shape is \(2, 40\)"):
        find_maker("lenet", num_classes=3, input_shape=(2, 40))()


# The zoos


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_torchvision_takes_any_number_of_channels(channels):
    network = find_maker("torchvision:mobilenet_v3_small", num_classes=7, input_shape=(channels, 32, 32))()
    assert network.eval()(torch.zeros(2, channels, 32, 32)).shape == (2, 7)
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    assert first.weight.shape == (16, channels, 3, 3)
    assert (first.stride, first.padding, first.bias) == ((2, 2), (1, 1), None)


def test_a_vision_transformer_is_reported_its_images_size():
    with torch.device("meta"):
        network = find_maker("torchvision:vit_b_16", num_classes=4, input_shape=(3, 32, 32))()
    assert network.encoder.pos_embedding.shape == (1, 5, 768)  # 2 × 2 patches and the class token
    with pytest.raises(ModelError, match=r"takes square images, the data's shape is \(3, 32, 48\)"):
        find_maker("torchvision:vit_b_16", num_classes=4, input_shape=(3, 32, 48))


def test_timm_is_requested_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)  # its import fails
    with pytest.raises(ModelError) as caught:
        find_maker("timm:resnet18", num_classes=4, input_shape=(3, 32, 32))
    assert str(caught.value) == "model timm:resnet18: the package timm is not installed: pip install timm"


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
@pytest.mark.e2e
def test_timm_makes_a_network_for_the_data():
    network = find_maker("timm:resnet10t", num_classes=4, input_shape=(1, 32, 32))()
    assert network.eval()(torch.zeros(2, 1, 32, 32)).shape == (2, 4)
    with pytest.raises(ModelError, match=r"timm has no network 'resnet10x'; did you mean"):
        find_maker("timm:resnet10x", num_classes=4, input_shape=(1, 32, 32))

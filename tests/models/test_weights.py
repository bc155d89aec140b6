"""Weights that a user brings: two kinds of files, and every way in which they do not fit."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sca_search.errors import ModelError
from sca_search.models.weights import load_weights


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "a.pth"])
def test_a_state_is_loaded_whole(tmp_path, name):
    trained, fresh = network(), network()
    trained(torch.randn(8, 3))
    write = save_file if name.endswith("safetensors") else torch.save
    write(trained.state_dict(), tmp_path / name)
    load_weights(fresh, tmp_path / name)
    assert all(torch.equal(value, fresh.state_dict()[key]) for key, value in trained.state_dict().items())


def test_a_state_of_another_protocol_is_loaded_without_a_word(tmp_path, recwarn):
    trained, fresh = network(), network()
    torch.save(trained.state_dict(), tmp_path / "a.pt", pickle_protocol=3)
    load_weights(fresh, tmp_path / "a.pt")
    assert torch.equal(fresh[0].weight, trained[0].weight)
    assert not recwarn.list


def test_what_does_not_fit_is_listed_by_its_first_names(tmp_path):
    state = network().state_dict()
    given = {f"module.{number}": torch.zeros(1) for number in range(5)}
    given |= {"0.weight": torch.zeros(4, 7), "2.weight": state["2.weight"], "2.bias": state["2.bias"]}
    torch.save(given, tmp_path / "a.pt")
    with pytest.raises(ModelError) as caught:
        load_weights(network(), tmp_path / "a.pt")
    assert str(caught.value) == (
        f"--weights {tmp_path}/a.pt: must match the network; "
        "missing: 0.bias, 1.weight, 1.bias and 2 more; "
        "unexpected: module.0, module.1, module.2 and 2 more; "
        "of another shape: 0.weight (4, 7) instead of (4, 3)"
    )


class Evil:
    def __reduce__(self):
        return (print, ("code ran",))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (Evil(), "contains more than tensors, which could run code when loaded"),
        (nn.Linear(2, 2), "contains more than tensors, which could run code when loaded"),
        ({"state_dict": {}, "epoch": 3}, "names to tensors, .* got a dict with state_dict, epoch"),
        ({}, "got an empty dict"),
        (torch.zeros(3), "got a value of type Tensor"),
        ({"0.weight": torch.tensor([1.0, torch.inf])}, "all weights must be finite, 0.weight is not"),
    ],
    ids=["code", "module", "nested", "empty", "tensor", "infinite"],
)
def test_another_content_is_rejected_and_runs_no_code(tmp_path, capsys, content, sentence):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(ModelError, match=sentence):
        load_weights(network(), tmp_path / "a.pt")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt"])
def test_a_file_that_is_none_is_rejected(tmp_path, name):
    with pytest.raises(ModelError, match="there is no such file"):
        load_weights(network(), tmp_path / name)
    (tmp_path / name).write_text("hello")
    with pytest.raises(ModelError, match=r"must be a safetensors file or a state dict|could run code"):
        load_weights(network(), tmp_path / name)

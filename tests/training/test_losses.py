"""Losses by kind, a user's own, and what distillation adds to each."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from sca_search.data import DataSet, from_objects
from sca_search.errors import CodeError, SpecError
from sca_search.training.losses import distillation, loss_of, mismatch_of


def data_with(targets: torch.Tensor) -> DataSet:
    pairs = TensorDataset(torch.randn(len(targets), 3, generator=torch.Generator().manual_seed(1)), targets)
    return from_objects("mine", (pairs, pairs, pairs), seed=0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_each_kind_has_its_default_loss() -> None:
    outputs = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    chosen = loss_of(None, data_with(torch.tensor([0, 1])))(outputs, torch.tensor([0, 1]))
    exact = outputs.double().numpy()
    assert float(chosen) == pytest.approx(
        float(np.mean(np.log(1 + np.exp(exact[[0, 1], [1, 0]] - exact[[0, 1], [0, 1]]))))
    )
    labels = np.array([[1.0, 0.0], [0.0, 1.0]])
    binary = loss_of(None, data_with(torch.eye(2, dtype=torch.int64)))(outputs, torch.tensor(labels).float())
    assert float(binary) == pytest.approx(float(-np.log(sigmoid(np.where(labels == 1, exact, -exact))).mean()))
    squares = loss_of(None, data_with(torch.rand(4, 2)))(outputs, torch.zeros(2, 2))
    assert float(squares) == pytest.approx(float((exact**2).mean()))


def test_balanced_cross_entropy_weighs_every_class_the_same() -> None:
    """Three examples of class 0 and one of class 1: the mean of the two classes' own means."""
    labels = torch.tensor([0, 0, 0, 1])
    outputs = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    each = np.log1p(np.exp([-1.0, -2.0, 0.0, 1.0]))
    expected = (each[:3].mean() + each[3]) / 2
    assert float(loss_of("balanced-cross-entropy", data_with(labels))(outputs, labels)) == pytest.approx(expected)


def test_a_loss_of_another_kind_is_rejected() -> None:
    with pytest.raises(
        SpecError, match="the loss mse is not for targets that are classes, as those of mine: known are cross"
    ):
        loss_of("mse", data_with(torch.tensor([0, 1])))


OWN = """
import torch
calls = 0
def good(outputs, targets): return ((outputs - targets) ** 4).mean()
def wide(outputs, targets): return (outputs - targets).abs()
def number(outputs, targets): return 3.0
def cut(outputs, targets): return (outputs - targets).detach().mean()
def broken(outputs, targets): return outputs.nothing
def late(outputs, targets):
    global calls
    calls += 1
    if calls > 1:
        raise ValueError("tired")
    return outputs.mean()
"""


def test_a_users_loss_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    loss = loss_of(f"{tmp_path}/own.py:good", data_with(torch.rand(4)))
    assert float(loss(torch.tensor([[2.0], [0.0]]), torch.zeros(2, 1))) == 8.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wide", r"must return a tensor with a single number \(shape \(\)\), got a tensor of shape \(4, 1\)"),
        ("number", r"must return a tensor with a single number \(shape \(\)\), got a float"),
        ("cut", r"must be differentiable in the outputs, it has no gradient"),
        ("broken", r"failed with AttributeError: .* \(own\.py, line 8\)$"),
    ],
)
def test_a_loss_that_is_none_is_rejected_before_anything_is_trained(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(SpecError, match=rf"^the loss .*own\.py:{name} {message}"):
        loss_of(f"{tmp_path}/own.py:{name}", data_with(torch.rand(4)))


def test_a_loss_that_fails_later_is_reported_as_the_users(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    loss = loss_of(f"{tmp_path}/own.py:late", data_with(torch.rand(4)))
    with pytest.raises(CodeError, match=r"own\.py:late failed with ValueError: tired \(own\.py, line 13\)$"):
        loss(torch.zeros(2, 1), torch.zeros(2, 1))


def test_labels_are_distilled_by_the_teachers_probabilities() -> None:
    outputs, answers = torch.tensor([[1.0, -2.0]]), torch.tensor([[4.0, 0.0]])
    theirs = sigmoid(np.array([[4.0, 0.0]]) / 2)
    ours = sigmoid(np.array([[1.0, -2.0]]) / 2)
    expected = 4 * -(theirs * np.log(ours) + (1 - theirs) * np.log(1 - ours)).mean()
    assert float(mismatch_of("multi-label", 2.0)(outputs, answers)) == pytest.approx(float(expected))


def test_numbers_are_distilled_by_squares_next_to_any_loss() -> None:
    loss = distillation(0.25, torch.nn.functional.l1_loss, mismatch_of("regression", 4.0))
    outputs, targets, answers = torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1), torch.tensor([[1.0], [4.0]])
    assert float(loss(outputs, targets, answers)) == pytest.approx(0.75 * 1.5 + 0.25 * 2.0)

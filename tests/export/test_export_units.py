"""Answers of a regression in the user's units, and comparisons that know no classes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sca_search.data.input_spec import InputSpec
from sca_search.export.graph.agreement import agreement, compare_values
from sca_search.export.graph.network import Network
from sca_search.export.graph.records import ChannelAffine
from sca_search.export.graph.torch_module import RecordNetwork


def last_is_linear() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 4, 2))


def last_is_a_pool() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.e2e
@pytest.mark.parametrize(("make", "more_records"), [(last_is_linear, 0), (last_is_a_pool, 1)])
def test_exported_answers_are_in_units_whatever_the_last_layer_is(make: object, more_records: int) -> None:
    torch.manual_seed(0)
    model = make().eval()
    mean, std = (1000.0, -2.0), (50.0, 0.1)
    spec = InputSpec((1, 4, 4), ("a", "b"), (0.5,), (2.0,), "regression")
    plain = Network(model, spec)
    network = Network(model, replace(spec, target_mean=mean, target_std=std))
    images = torch.randn(6, 1, 4, 4)
    with torch.no_grad():
        expected = model((images - 0.5) / 2.0) * torch.tensor(std) + torch.tensor(mean)
        assert torch.allclose(network.normalized()(images), expected, rtol=1e-5)
        assert torch.allclose(RecordNetwork(network.graph())(images), expected, rtol=1e-5)
    graph = network.graph()
    assert len(graph.records) - len(plain.graph().records) == more_records
    assert isinstance(graph.record(graph.output), ChannelAffine) == bool(more_records)


def test_without_classes_only_values_are_compared() -> None:
    expected = np.array([[1.0, 2.0], [4.0, 3.0]])
    swapped = expected[:, ::-1]
    assert agreement(swapped, expected).other_class == 2
    found = agreement(swapped, expected, has_classes=False)
    assert (found.other_class, found.difference, str(found)) == (0, 0.25, "2.5e-01 apart")
    assert agreement(expected, expected, has_classes=False).holds


def test_compare_values_tell_mean_and_largest_difference() -> None:
    batches = [np.ones((2, 1), np.float32), np.full((2, 1), 4.0, np.float32)]
    told = compare_values((lambda x: x, lambda x: 1.5 * x), batches, 10.0)
    # apart by 0.5, 0.5, 2 and 2, the largest is 6
    assert told == "2.1e-01 apart on average, 3.3e-01 at most, on 4 validation examples"

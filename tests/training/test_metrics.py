"""Metrics against scikit-learn's, their errors by bootstrap, and a sentence for each that cannot be used."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from sca_search.config.names import METRICS, format_metric, format_spread, metric_scale, short_name
from sca_search.config.types import check_name
from sca_search.data import DataSet, from_objects
from sca_search.errors import CodeError, DivergenceError, SpecError
from sca_search.training.metrics import ACCURACY_METRIC, Metric, metric_of, try_metric


def data_with(targets: torch.Tensor, normalize: bool = True) -> DataSet:
    inputs = torch.randn(len(targets), 3, generator=torch.Generator().manual_seed(1))
    pairs = torch.utils.data.TensorDataset(inputs, targets)
    return from_objects("mine", (pairs, pairs, pairs), seed=0, normalize=normalize)


def classes(count: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers that are right now and then, of which class 3 of 4 is rare."""
    random = np.random.default_rng(0)
    targets = random.choice(4, size=count, p=[0.6, 0.3, 0.08, 0.02])
    logits = random.normal(size=(count, 4))
    logits[np.arange(count), targets] += 0.8
    return torch.from_numpy(logits).float(), torch.from_numpy(targets)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("accuracy", sk.accuracy_score),
        ("balanced-accuracy", sk.balanced_accuracy_score),
        ("macro-f1", lambda targets, answers: sk.f1_score(targets, answers, average="macro")),
    ],
)
def test_metrics_of_classes_are_those_of_sklearn(name: str, theirs: object) -> None:
    logits, targets = classes()
    metric = metric_of(name, data_with(targets))
    assert metric(logits, targets) == pytest.approx(theirs(targets, logits.argmax(1)))


def test_macro_f1_takes_in_classes_that_are_only_answered() -> None:
    targets, answers = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 2, 1, 1])
    logits = torch.nn.functional.one_hot(answers, 4).float()
    # class 0: 2·1/3, class 1: 2·2/4, class 2: 0; class 3 does not occur at all
    assert metric_of("macro-f1", data_with(torch.arange(4)))(logits, targets) == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_metrics_of_labels_are_those_of_sklearn() -> None:
    random = np.random.default_rng(0)
    targets = (random.random((200, 3)) < [0.5, 0.2, 0.0]).astype(int)  # the last label never occurs
    logits = random.normal(size=(200, 3)) + targets
    data = data_with(torch.from_numpy(targets))
    given = torch.from_numpy(logits).float(), torch.from_numpy(targets).float()
    expected = sk.f1_score(targets, logits > 0, average="macro", zero_division=0)
    assert metric_of(None, data)(*given) == pytest.approx(expected)
    assert metric_of("exact-match", data)(*given) == pytest.approx(sk.accuracy_score(targets, logits > 0))


@pytest.mark.parametrize("normalize", [True, False])
def test_metrics_of_numbers_are_in_the_users_units(normalize: bool) -> None:
    random = np.random.default_rng(0)
    targets = random.normal(size=(300, 2)) * [50.0, 0.1] + [1000.0, -3.0]
    data = data_with(torch.from_numpy(targets), normalize)
    truth = data.val.labels
    answers = truth + 0.3 * torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    theirs = data.in_units(answers).numpy()
    assert metric_of(None, data)(answers, truth) == pytest.approx(sk.r2_score(targets, theirs), rel=1e-4)
    assert metric_of("negative-mae", data)(answers, truth) == pytest.approx(
        -sk.mean_absolute_error(targets, theirs), rel=1e-4
    )
    assert metric_of("negative-mse", data)(answers, truth) == pytest.approx(
        -sk.mean_squared_error(targets, theirs), rel=1e-4
    )


def test_each_kind_has_its_default() -> None:
    assert metric_of(None, data_with(torch.arange(6) % 2)).name == "accuracy"
    assert metric_of(None, data_with(torch.eye(4, dtype=torch.bool))).name == "macro-f1"
    assert metric_of(None, data_with(torch.rand(4))).name == "r2"


def test_a_metric_of_another_kind_is_rejected_with_those_that_fit() -> None:
    with pytest.raises(
        SpecError, match=r"accuracy is not for targets that are regression, .*: known are r2, negative-m"
    ):
        metric_of("accuracy", data_with(torch.rand(4)))


def test_a_users_metric_is_called_by_its_name_and_gets_the_whole_split(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def largest(outputs, targets):\n    return (outputs[:, 0] - targets[:, 0]).abs().max()\n")
    data = data_with(torch.tensor([[10.0], [20.0], [30.0]]))
    metric = metric_of(f"{file}:largest", data)
    assert metric.name == "largest"
    assert metric(data.val.labels + torch.tensor([[0.0], [1.0], [0.0]]), data.val.labels) == pytest.approx(
        data.input.target_std[0], rel=1e-5
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda _o, _t: None, "must return one finite number, got a NoneType"),
        (lambda _o, _t: torch.ones(2), "must return one finite number, got a Tensor"),
        (lambda _o, _t: math.nan, "must return one finite number, got nan"),
        (lambda outputs, _t: outputs.no_such_thing, "failed with AttributeError: "),
    ],
)
def test_what_a_users_metric_gives_is_checked(given: object, message: str) -> None:
    metric = Metric("mine", given)  # type: ignore[arg-type]
    with pytest.raises(CodeError, match=f"^the metric mine {message}"):
        metric(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(SpecError, match=f"data set 'mine': the metric mine {message}"):
        try_metric(metric, data_with(torch.arange(6) % 2))


def test_outputs_that_are_not_finite_are_a_divergence() -> None:
    metric = metric_of("r2", data_with(torch.rand(8)))
    with pytest.raises(DivergenceError, match="outputs are not finite"):
        metric(torch.full((8, 1), math.inf), torch.rand(8, 1))


def test_targets_that_are_all_alike_have_no_r2() -> None:
    data = data_with(torch.full((8,), 3.0))
    with pytest.raises(SpecError, match=r"the metric r2 must return one finite number, got"):
        try_metric(metric_of(None, data), data)


def test_a_module_that_is_no_function_is_rejected() -> None:
    with pytest.raises(SpecError, match=r"the metric numpy:pi must be a function of \(outputs, targets\), got 3\.14"):
        metric_of("numpy:pi", data_with(torch.rand(4)))


def test_the_bootstrap_of_a_mean_is_near_its_standard_error() -> None:
    """An exact match is a mean of zeros and ones, so that its error is known: √(p(1 - p)/n)."""
    random = np.random.default_rng(0)
    targets = torch.from_numpy(random.random((500, 1)) < 0.5).float().repeat(1, 2)
    outputs = torch.where(torch.from_numpy(random.random((500, 1)) < 0.9), 2 * targets - 1, 1 - 2 * targets)
    metric = metric_of("exact-match", data_with(targets.long()))
    share = metric(outputs, targets)
    expected = math.sqrt(share * (1 - share) / 500)
    # a hundred samples know a spread to 7 %; three times that
    assert metric.standard_error(outputs, targets) == pytest.approx(expected, rel=0.21)
    assert metric.standard_error(outputs, targets) == metric.standard_error(outputs, targets)


def test_accuracy_needs_no_bootstrap_and_a_metric_that_fails_on_samples_tells_no_error() -> None:
    logits, targets = classes(50)
    assert ACCURACY_METRIC.standard_error(logits, targets) is None

    def needs_all(_outputs: torch.Tensor, given: torch.Tensor) -> float:
        return 0.5 if torch.equal(given, targets) else math.nan

    assert replace(ACCURACY_METRIC, measure=needs_all).standard_error(logits, targets) == 0.0


def test_values_are_shown_in_percent_only_where_they_are_shares() -> None:
    assert (format_metric("macro-f1", 0.5), format_metric("r2", 0.87654321), format_metric("mine", -1234.5678)) == (
        "50.00%",
        "0.87654",
        "-1234.6",
    )
    assert (format_spread("accuracy", 0.001), format_spread("negative-mae", 0.012345)) == ("0.10%", "0.012")
    assert short_name("some/where/file.py:mine") == "mine"


def test_a_whole_is_one_for_fractions_and_a_level_for_units() -> None:
    assert (
        metric_scale("accuracy", 0.9),
        metric_scale("r2", -3.0),
        metric_scale("negative-mae", -20.0),
        metric_scale("mine", 0.0),
    ) == (
        1.0,
        1.0,
        20.0,
        1.0,
    )


def test_a_name_that_nobody_knows_brings_the_nearest() -> None:
    with pytest.raises(ValueError, match="got 'acuracy'; did you mean 'accuracy'"):
        check_name("acuracy", METRICS)
    assert check_name("package.module:mine", METRICS) == "package.module:mine"

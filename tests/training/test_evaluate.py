"""Figures of a network and what it is asked for: score, logits, normalization statistics, distillation."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sca_search.data import Split, TeacherSplit
from sca_search.training.evaluate import Score, has_initial_statistics, logits_of, reestimate_normalization, score
from sca_search.training.losses import distillation, mismatch_of


class Table(nn.Module):
    """Answers row i of a table to the image that holds the number i."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows))

    def forward(self, images):
        return self.rows[images.flatten().long()]


def numbered(labels):
    """A split whose images hold their own row's number."""
    return Split(torch.arange(len(labels), dtype=torch.float32).view(-1, 1, 1, 1), torch.tensor(labels))


# Score


def test_score_by_hand():
    # Right, wrong, right; softmax of the label: 3/4, 1/4 and 1/2 (a tie goes to the first class).
    model = Table([[math.log(3), 0.0], [0.0, math.log(3)], [0.0, 0.0]])
    scored = score(model, numbered([0, 0, 0]).batches(2))
    assert scored.accuracy == pytest.approx(2 / 3)
    assert scored.loss == pytest.approx((math.log(4 / 3) + math.log(4) + math.log(2)) / 3)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_score_does_not_depend_on_the_batches(size):
    """Every image counts the same, also those of a smaller last batch."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(7, 4)).astype(np.float32), rng.integers(0, 4, 7)
    log_share = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    scored = score(Table(logits), numbered(labels.tolist()).batches(size))
    assert scored.accuracy == pytest.approx((logits.argmax(1) == labels).mean())
    assert scored.loss == pytest.approx(-log_share[np.arange(7), labels].mean(), rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_score_puts_the_mode_back_and_evaluates_without_dropout(training):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(1, 2)).train(training)
    split = numbered([0, 1, 0, 1])
    assert score(model, split.batches(2)) == score(model, split.batches(2))
    assert model.training is training
    assert model[1].training is training


def test_score_changes_no_statistics_and_keeps_no_gradient():
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2), nn.BatchNorm1d(2)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    score(model, numbered([0, 1, 0]).batches(2))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_score_reads_batches_that_carry_a_teachers_answers():
    split = numbered([0, 1])
    model = Table([[1.0, 0.0], [1.0, 0.0]])
    distilled = TeacherSplit(split, torch.zeros(2, 2))
    assert score(model, distilled.batches(2)) == score(model, split.batches(2))


def test_scores_compare_by_value():
    assert Score(0.5, 1.0) == Score(0.5, 1.0) != Score(0.5, 1.1)


# Logits


def test_outputs_come_in_the_splits_order():
    rows = np.random.default_rng(1).normal(size=(11, 3)).astype(np.float32)
    given = logits_of(Table(rows), numbered([0] * 11).batches(4))
    np.testing.assert_array_equal(given.numpy(), rows)
    assert not given.requires_grad


def test_outputs_are_those_of_the_evaluated_network():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(1, 2)).train()
    split = numbered([0] * 8)
    assert torch.equal(logits_of(model, split.batches(3)), logits_of(model, split.batches(3)))


# Normalization statistics


def unequal_batches(seed=0, sizes=(5, 3, 2), features=4):
    """Batches of different sizes, drawn around different means."""
    rng = np.random.default_rng(seed)
    return [
        (torch.from_numpy(rng.normal(loc=k, scale=1 + k, size=(size, features)).astype(np.float32)), torch.zeros(size))
        for k, size in enumerate(sizes)
    ]


def test_statistics_are_the_mean_over_the_batches_each_counting_the_same():
    """A cumulative mean of the batches' own statistics: 2 images weigh as much as 5.

    The variance is the mean of the variances within the batches (of n - 1), so what differs between
    batches is not in it. Both biases vanish for shuffled batches of equal size, which is what settling gives it.
    """
    norm = nn.BatchNorm1d(4)
    batches = unequal_batches()
    reestimate_normalization(norm, batches)
    images = [batch.double().numpy() for batch, _ in batches]
    np.testing.assert_allclose(norm.running_mean, np.mean([x.mean(0) for x in images], axis=0), rtol=1e-5)
    np.testing.assert_allclose(norm.running_var, np.mean([x.var(0, ddof=1) for x in images], axis=0), rtol=1e-5)
    weighted = np.concatenate(images).mean(0)
    assert not np.allclose(norm.running_mean, weighted, rtol=0.05)  # the batches were unequal enough to tell


def test_one_batch_gives_exactly_its_own_statistics():
    norm = nn.BatchNorm1d(4)
    ((images, labels),) = unequal_batches(sizes=(6,))
    reestimate_normalization(norm, [(images, labels)])
    np.testing.assert_allclose(norm.running_mean, images.numpy().mean(0), rtol=1e-5)
    np.testing.assert_allclose(norm.running_var, images.numpy().var(0, ddof=1), rtol=1e-5)


def test_former_statistics_are_forgotten():
    ours, theirs = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    theirs.running_mean.fill_(1e6)
    theirs.running_var.fill_(math.nan)
    for norm in (ours, theirs):
        reestimate_normalization(norm, unequal_batches())
    assert torch.equal(ours.running_mean, theirs.running_mean)
    assert torch.equal(ours.running_var, theirs.running_var)


def test_a_later_normalization_sees_what_the_earlier_one_gives_for_the_batch():
    """In numpy: the first normalizes each batch by itself, the second's statistics are those of the results."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.BatchNorm1d(4))
    batches = unequal_batches()
    reestimate_normalization(model, batches)
    means, variances = [], []
    for images, _ in batches:
        x = images.double().numpy()
        hidden = np.maximum((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), 0)
        means.append(hidden.mean(0))
        variances.append(hidden.var(0, ddof=1))
    np.testing.assert_allclose(model[2].running_mean, np.mean(means, axis=0), rtol=1e-4)
    np.testing.assert_allclose(model[2].running_var, np.mean(variances, axis=0), rtol=1e-4)


def test_images_have_statistics_a_channel():
    norm = nn.BatchNorm2d(2)
    images = torch.randn(6, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    reestimate_normalization(norm, [(images, torch.zeros(6))])
    np.testing.assert_allclose(norm.running_mean, images.numpy().mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norm.running_var, images.numpy().var((0, 2, 3), ddof=1), rtol=1e-4)


def test_dropout_stays_off_while_statistics_are_taken():
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(4)).train()
    ((images, labels),) = unequal_batches(sizes=(6,))
    reestimate_normalization(model, [(images, labels)])
    np.testing.assert_allclose(model[1].running_mean, images.numpy().mean(0), rtol=1e-5)


@pytest.mark.parametrize("momentum", [0.1, 0.37, None])
def test_momentum_is_put_back_and_the_network_evaluates(momentum):
    model = nn.Sequential(nn.BatchNorm1d(4, momentum=momentum), nn.BatchNorm1d(4, momentum=0.5)).train()
    reestimate_normalization(model, unequal_batches())
    assert [norm.momentum for norm in model] == [momentum, 0.5]
    assert not any(module.training for module in model.modules())


def test_weights_are_left_alone():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    reestimate_normalization(model, unequal_batches())
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_network_without_normalization_asks_for_no_batch():
    def refuse():
        raise AssertionError("no batch is needed")
        yield

    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    reestimate_normalization(model, refuse())
    assert torch.equal(model.weight, before)


# What a network is asked for


def drawn(seed=0, count=6, classes=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, classes)) * 3, rng.integers(0, classes, count), rng.normal(size=(count, classes)) * 3


def softmax(x):
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def numpy_cross_entropy(logits, labels):
    return -np.log(softmax(logits)[np.arange(len(labels)), labels]).mean()


def numpy_mismatch(logits, teacher, temperature):
    """KL(teacher ‖ network), a mean over the images."""
    theirs, ours = softmax(teacher / temperature), softmax(logits / temperature)
    return (theirs * (np.log(theirs) - np.log(ours))).sum(1).mean()


def tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


def test_cross_entropy_against_numpy():
    logits, labels, _ = drawn()
    assert float(F.cross_entropy(*tensors(logits, labels))) == pytest.approx(numpy_cross_entropy(logits, labels))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_distillation_against_numpy(share, temperature):
    logits, labels, teacher = drawn()
    expected = (1 - share) * numpy_cross_entropy(logits, labels)
    expected += share * temperature**2 * numpy_mismatch(logits, teacher, temperature)
    assert float(
        distillation(share, F.cross_entropy, mismatch_of("classes", temperature))(*tensors(logits, labels, teacher))
    ) == pytest.approx(expected)


def test_distillation_without_a_fraction_is_cross_entropy():
    logits, labels, teacher = tensors(*drawn())
    assert float(
        distillation(0.0, F.cross_entropy, mismatch_of("classes", 4.0))(logits, labels, teacher)
    ) == pytest.approx(float(F.cross_entropy(logits, labels)))


def test_distillation_alone_has_no_use_for_labels_and_ends_where_the_teacher_is():
    logits, labels, teacher = tensors(*drawn())
    loss = distillation(1.0, F.cross_entropy, mismatch_of("classes", 4.0))
    assert float(loss(logits, labels, teacher)) == float(loss(logits, (labels + 1) % 4, teacher))
    # A constant added to an image's logits is no difference between answers.
    assert float(loss(teacher + torch.arange(6.0).view(-1, 1), labels, teacher)) == pytest.approx(0.0, abs=1e-12)
    assert float(loss(logits, labels, teacher)) > 0


def test_temperature_leaves_the_gradients_size():
    """T² makes the gradient tend to that of matching centered logits: (z - v) / (N · classes), for large T."""
    logits, labels, teacher = tensors(*drawn())
    logits, teacher = logits - logits.mean(1, keepdim=True), teacher - teacher.mean(1, keepdim=True)
    logits.requires_grad_()
    distillation(1.0, F.cross_entropy, mismatch_of("classes", 1e4))(logits, labels, teacher).backward()
    expected = (logits.detach() - teacher) / (6 * 4)
    np.testing.assert_allclose(logits.grad, expected, rtol=1e-3, atol=1e-5)


# The teacher's answers beside the batches


def test_taught_batches_carry_each_images_own_answer_however_shuffled():
    count = 23
    distilled = TeacherSplit(numbered(list(range(count))), torch.arange(count) * 10.0)
    batches = distilled.batches(4, seed=3)
    orders = []
    for _ in range(2):
        seen = [(images.flatten(), labels, given) for images, labels, given in batches]
        images, labels, given = (torch.cat(parts) for parts in zip(*seen, strict=True))
        assert torch.equal(images, labels.float())
        assert torch.equal(given, labels * 10.0)
        assert sorted(labels.tolist()) == list(range(count))
        orders.append(labels.tolist())
    assert orders[0] != orders[1] != sorted(orders[1])


def test_taught_batches_are_the_splits_own_with_a_third_part():
    split = numbered(list(range(9)))
    distilled = TeacherSplit(split, torch.zeros(9, 2))
    assert len(distilled) == 9
    for ours, theirs in zip(distilled.batches(4, seed=5), split.batches(4, seed=5), strict=True):
        assert len(ours) == 3
        assert all(torch.equal(a, b) for a, b in zip(ours[:2], theirs, strict=True))


@pytest.mark.parametrize(("momentum", "steps", "remembers"), [(0.1, 43, True), (0.1, 44, False), (0.01, 400, True)])
def test_statistics_remember_their_beginning_for_some_steps(momentum, steps, remembers):
    """0.9 ** 43 = 0.0108, 0.9 ** 44 = 0.0097, 0.99 ** 400 = 0.018."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=momentum), nn.BatchNorm1d(2, momentum=None))
    assert has_initial_statistics(model, steps) is remembers

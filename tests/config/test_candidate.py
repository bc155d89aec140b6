"""A candidate: what each layer gets of it, and that it reads back."""

import pytest
from hypothesis import settings
from pydantic import ValidationError

from sca_search.config.candidate import Candidate, Constant, FromPrior, Ramp, Tracked, default_alpha

quick = settings(max_examples=60, deadline=None, derandomize=True)


def candidate(**changes):
    given_settings = {
        "sparsity": 0.6,
        "strength": 0.5,
        "learning_rate": 0.01,
        "latent_learning_rate": 0.02,
        "epochs": 10,
        "frozen_epochs": 0,
        "frozen_learning_rate": 0.005,
    }
    return Candidate(**given_settings | changes)


# Layers


def test_a_layer_has_its_own_or_the_candidates():
    own = Ramp(first=0.0, last=4.0)
    chosen = candidate(
        allocation={"fc1": 0.9},
        alpha=FromPrior(),
        layer_alpha={"fc1": Tracked()},
        layer_strength={"fc1": own},
    )
    assert [chosen.sparsity_of(layer) for layer in ("conv2", "fc1")] == [0.6, 0.9]
    assert [chosen.alpha_of(layer) for layer in ("conv2", "fc1")] == [FromPrior(), Tracked()]
    assert [chosen.strength_of(layer, 5) for layer in ("conv2", "fc1")] == [0.5, 2.0]


def test_alpha_stands_still_in_the_papers_form_and_follows_in_the_others():
    assert default_alpha("paper") == FromPrior()
    assert default_alpha("decoupled") == default_alpha("straight-through") == Tracked()


# The record


def test_a_candidate_reads_back_from_its_record():
    chosen = candidate(
        form="paper",
        adaptive=True,
        gradient="flow",
        allocation={"fc1": 0.9},
        layer_strength={"fc1": Ramp(first=0.1, last=4.0, interpolation="exponential")},
        layer_alpha={"fc1": Tracked(start=0.25, rise=0.5)},
        seed=2**31 - 1,
    )
    assert Candidate.model_validate(chosen.model_dump(mode="json")) == chosen
    assert Candidate.model_validate_json(chosen.model_dump_json()) == chosen


def test_plain_numbers_are_constant_schedules():
    assert candidate(strength=0.5).strength == Constant(value=0.5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sparsity": 1.0}, "less than 1"),
        ({"sparsity": -0.1}, "greater than or equal to 0"),
        ({"allocation": {"fc1": 1.0}}, "less than 1"),
        ({"epochs": -1}, "greater than or equal to 0"),
        ({"rescaling": 1.1}, "less than or equal to 1"),
        ({"learning_rate": 0.0}, "greater than 0"),
        ({"learning_rate": float("nan")}, "finite number"),
        ({"form": "sharpened"}, "'decoupled', 'paper', 'straight-through' or 'no-tanh'"),
        ({"gradient": "exact"}, "'straight-through', 'tanh' or 'flow'"),
        ({"sharpness": 3.0}, "sharpness"),
        ({"epohcs": 3}, "epohcs"),
    ],
)
def test_impossible_candidates_are_rejected(changes, says):
    with pytest.raises(ValidationError, match=says):
        candidate(**changes)


def test_a_candidate_may_have_no_epochs():
    chosen = candidate(epochs=0, strength=Ramp(first=0.0, last=3.0))
    assert chosen.strength_of("fc1", 0) == 3.0

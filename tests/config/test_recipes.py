"""The paper's ten recipes, how they are scaled, and real steps of each on inputs of the right shape."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sca_search.config.candidate import Constant, Steps
from sca_search.config.load import resolve
from sca_search.config.recipe import describe_scaling, recipe_candidate
from sca_search.config.study import StudySpec
from sca_search.errors import ModelError, SpecError
from sca_search.models import MODELS
from sca_search.models.weights import TEACHER_LOGITS, load_weights
from sca_search.study.setup import make_task
from sca_search.system.torchvision import patch_torchvision
from sca_search.ternary.methods.sca import spreads_of
from sca_search.ternary.parametrize import TernaryWeight, latents, parametrize_layers, soft_weights
from sca_search.training.fit import FitPlan, parameter_groups
from sca_search.training.task import Task
from sca_search.training.train import train_candidate, train_dense
from tests.support.real_layouts import write_cifar10_npz, write_imagenet, write_mnist, write_tiny_imagenet

RECIPES = Path(__file__).parents[2] / "studies" / "paper"

# By hand from the paper: α, λ, its steps, learning rate, its steps, epochs, start, dropout, decay of the last layer and
# of the whole network, augmentation, images of an epoch.
TENTH = 0.1
PAPER = {
    "mnist-lenet": (1e-4, 1e-7, (), 0.01, ((100, TENTH), (160, TENTH)), 200, "xavier", 0.5, 0, 0, "none", 60_000),
    "cifar10-vgg-s": (
        *(0.1, 5e-8, (), 0.01, ((200, TENTH), (370, TENTH)), 450, "xavier", 0.5, 1e-5, 0, "crop-flip", 50_000),
    ),
    "cifar10-resnet20": (
        *(0.1, 5e-6, (), 0.005, ((150, 0.2), (450, 0.5)), 700, "pretrained", 0.0, 1e-5, 0, "crop-flip", 50_000),
    ),
    "cifar10-vgg-variate": (
        *(0.1, 5e-8, ((270, 50),), 0.005, ((120, TENTH), (270, TENTH)), 370, "pretrained", 0.5, 1e-5, 0),
        *("crop-flip", 50_000),
    ),
    "cifar100-vgg-s": (
        *(1e-4, 5e-8, (), 0.01, ((200, TENTH), (370, TENTH)), 450, "xavier", 0.5, 1e-5, 0, "crop-flip", 50_000),
    ),
    "cifar100-vgg-variate": (
        *(0.5, 5e-8, ((270, 50),), 0.005, ((120, TENTH), (270, TENTH)), 370, "pretrained", 0.5, 1e-5, 0),
        *("crop-flip", 50_000),
    ),
    # The paper gives no learning rates for Tiny ImageNet: those of CIFAR, in one cycle.
    "tiny-imagenet-vgg-s": (*(0.1, 5e-7, ((90, 100),), 0.01, (), 120, "xavier", 0.5, 0, 1e-5, "crop-flip", 100_000),),
    "tiny-imagenet-vgg-variate": (
        *(0.1, 5e-7, ((90, 100),), 0.005, (), 120, "pretrained", 0.5, 0, 1e-5, "crop-flip", 100_000),
    ),
    "imagenet-resnet18": (
        *(0.3, 1e-9, ((50, 100), (70, 10)), 0.005, ((30, TENTH), (50, TENTH), (70, TENTH)), 90, "pretrained", 0.0),
        *(1e-6, 0, "scale-aspect", 1_281_167),
    ),
    "imagenet-alexnet": (
        *(1.0, 1e-9, ((70, 10_000), (100, 1_000)), 0.005, ((50, 0.5), (70, TENTH), (100, 0.2)), 130, "pretrained"),
        *(0.0, 1e-6, 0, "scale-aspect", 1_281_167),
    ),
}


def test_there_are_the_papers_ten_recipes() -> None:
    assert {path.stem for path in RECIPES.glob("*.toml")} == PAPER.keys()


@pytest.mark.parametrize("name", PAPER)
def test_recipe_file_has_the_papers_values(name: str) -> None:
    spec = resolve(RECIPES / f"{name}.toml", {})
    recipe = spec.recipe
    assert recipe is not None
    assert (
        *(recipe.alpha, recipe.strength_lambda, recipe.lambda_steps, recipe.learning_rate, recipe.learning_rate_steps),
        *(recipe.epochs, recipe.initialization, spec.model.dropout, spec.train.last_layer_weight_decay),
        *(spec.train.weight_decay, spec.data.augment, recipe.images),
    ) == PAPER[name]
    assert f"{spec.data.name}-{spec.model.name}" == name
    assert (spec.train.batch, recipe.optimizer, recipe.tanh, recipe.spread) == (128, "adam", True, None)
    assert spec.model.keep_first
    assert spec.model.keep_last


@pytest.mark.parametrize("name", PAPER)
def test_recipe_at_full_length_is_the_papers_point(name: str) -> None:
    spec = resolve(RECIPES / f"{name}.toml", {})
    alpha, strength, lambda_steps, rate, rate_steps, epochs, start, *_ = PAPER[name]
    point = recipe_candidate(spec, seed=3)
    assert point.alpha == Constant(value=alpha)
    if lambda_steps:
        assert point.strength == Steps(value=strength, factors=lambda_steps)
    else:
        assert point.strength == Constant(value=strength)
    assert (point.learning_rate, point.latent_learning_rate) == (rate, rate)
    assert point.learning_rate_steps == rate_steps
    assert (point.epochs, point.frozen_epochs, point.distillation, point.seed) == (epochs, 0, 0.0, 3)
    assert (point.form, point.exact, point.strength_is_lambda, point.spread) == ("paper", False, True, None)
    assert point.from_dense == (start == "pretrained")
    assert spec.train.dense_epochs == (epochs if start == "pretrained" else 0)
    assert spec.goal.front
    assert "the paper's own values" in describe_scaling(spec)


def test_shortening_keeps_shares_of_the_training_and_raises_the_pull() -> None:
    spec = resolve(RECIPES / "cifar10-vgg-variate.toml", {"epochs": 37})  # a tenth
    point = recipe_candidate(spec, 0)
    assert isinstance(point.strength, Steps)
    assert point.strength.value == pytest.approx(5e-6)  # ten times for the steps, ten times for the task's gradient
    assert [epoch for epoch, _ in point.strength.factors] == pytest.approx([27.0])
    assert [factor for _, factor in point.strength.factors] == [50]
    assert [epoch for epoch, _ in point.learning_rate_steps] == pytest.approx([12.0, 27.0])
    assert [factor for _, factor in point.learning_rate_steps] == [0.1, 0.1]
    assert point.learning_rate == 0.005
    # Σ λ over epochs: ten times 270 at 5e-8 and 100 at 50 times that.
    total = sum(point.strength.at(epoch + 0.5, 37) for epoch in range(37))
    assert total == pytest.approx(10 * (270 * 5e-8 + 100 * 2.5e-6))
    assert spec.train.dense_epochs == 37
    sentence = describe_scaling(spec)
    assert "10.00% of its steps, 37 of 370 epochs" in sentence
    assert "λ is 5e-06 at first and 0.00025 at the end, instead of 5e-08 and 2.5e-06" in sentence


@pytest.mark.parametrize("name", PAPER)
def test_no_step_of_a_shortened_pull_is_above_a_tenth(name: str) -> None:
    spec = resolve(RECIPES / f"{name}.toml", {"epochs": 2, "train_limit": 2_000})
    strength = recipe_candidate(spec, 0).strength
    values = [strength.at(epoch / 100, 2) for epoch in range(201)]
    assert max(values) <= 0.1 * (1 + 1e-9)
    assert values == sorted(values)


def test_a_pull_that_would_step_above_a_tenth_stays_there() -> None:
    # A 370th: 5e-8 · 370² is 0.0068, and 50 times that would be 0.34.
    strength = recipe_candidate(resolve(RECIPES / "cifar10-vgg-variate.toml", {"epochs": 1}), 0).strength
    assert (strength.at(0.0, 1), strength.at(1.0, 1)) == (pytest.approx(0.006845), pytest.approx(0.1))


def test_fewer_images_shorten_the_steps_but_move_no_epoch() -> None:
    spec = resolve(RECIPES / "mnist-lenet.toml", {"epochs": 20, "train_limit": 20_000})  # a tenth of a third
    now = recipe_candidate(spec, 0)
    assert describe_scaling(spec).startswith("recipe shortened to 3.33% of its steps, 20 of 200 epochs")
    assert now.strength.at(0.0, 20) == pytest.approx(3e-5)  # 30 times for the steps, 10 times for the epochs
    assert [epoch for epoch, _ in now.learning_rate_steps] == pytest.approx([10.0, 16.0])
    assert (now.spread, now.rescaling) == (0.6, pytest.approx(29 / 30))


def test_fewer_images_alone_raise_the_pull_by_the_steps() -> None:
    spec = resolve(RECIPES / "mnist-lenet.toml", {"train_limit": 20_000})
    assert recipe_candidate(spec, 0).strength.at(0.0, 200) == pytest.approx(3e-7)


def test_the_pull_is_never_raised_above_a_tenth() -> None:
    spec = resolve(RECIPES / "cifar10-resnet20.toml", {"epochs": 1, "train_limit": 1_000})  # by 700 · 50 · 700
    assert recipe_candidate(spec, 0).strength.at(0.0, 1) == 0.1


def test_a_longer_run_stretches_steps_and_leaves_the_rest() -> None:
    spec = resolve(RECIPES / "mnist-lenet.toml", {"epochs": 400})
    now = recipe_candidate(spec, 0)
    assert now.strength == Constant(value=1e-7)
    assert [epoch for epoch, _ in now.learning_rate_steps] == [200.0, 320.0]
    assert now.spread is None
    assert describe_scaling(spec).startswith(
        "recipe stretched to 400 epochs instead of 200: steps of rates and λ come at the same"
    )
    half = resolve(RECIPES / "mnist-lenet.toml", {"epochs": 400, "train_limit": 30_000})
    assert describe_scaling(half).startswith(
        "recipe stretched to 400 epochs instead of 200 of 50% of the images: steps of rates"
    )


def test_a_spread_of_the_recipes_own_stands_instead_of_the_rule(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text((RECIPES / "mnist-lenet.toml").read_text() + "spread = 0.3\n")
    now = recipe_candidate(resolve(path, {"epochs": 2}), 0)
    assert (now.spread, now.rescaling) == (0.3, 1.0)
    assert "0.3 in every layer" in describe_scaling(resolve(path, {"epochs": 2}))


def digits_spec(tmp_path: Path, more: str = "", **flags: object) -> StudySpec:
    """A recipe on the embedded digits, 100 epochs long."""
    path = tmp_path / "digits.toml"
    path.write_text(f"[recipe]\nepochs = 100\nalpha = 0.1\nstrength_lambda = 1e-3\nlearning_rate = 0.01\n{more}")
    return resolve(path, flags)


def test_theta_starts_between_its_own_scale_and_the_spread(tmp_path: Path) -> None:
    spec = digits_spec(tmp_path, epochs=25)
    task = make_task(spec)
    torch.manual_seed(0)
    model = task.make_model()
    own = {
        name: model.get_submodule(name).weight.detach().square().mean().sqrt().item() for name in task.ternary_layers
    }
    spreads = spreads_of(model, recipe_candidate(spec, 0), task)
    expected = {name: math.exp(0.25 * math.log(mean) + 0.75 * math.log(0.6)) for name, mean in own.items()}
    assert spreads == pytest.approx(expected)
    parametrize_layers(model, spreads)
    for name, latent in latents(model).items():
        assert latent.detach().square().mean().sqrt().item() == pytest.approx(expected[name], rel=1e-5)


def test_at_full_length_the_soft_weight_is_the_weight_itself(tmp_path: Path) -> None:
    spec = digits_spec(tmp_path)
    task = make_task(spec)
    torch.manual_seed(0)
    model = task.make_model()
    before = {name: model.get_submodule(name).weight.detach().clone() for name in task.ternary_layers}
    parametrize_layers(model, spreads_of(model, recipe_candidate(spec, 0), task))
    for name, soft in soft_weights(model).items():
        torch.testing.assert_close(soft, before[name])


def test_weights_beyond_one_stay_finite_without_a_spread() -> None:
    latent = TernaryWeight("paper", None).right_inverse(torch.tensor([-3.0, -1.0, 0.0, 0.5, 1.0]))
    assert latent.isfinite().all()
    torch.testing.assert_close(latent.tanh(), torch.tensor([-0.999, -0.999, 0.0, 0.5, 0.999]))


def test_without_tanh_weights_are_free_and_trits_the_nearest() -> None:
    weight = TernaryWeight("no-tanh", None)
    weight.alpha = 0.1
    given = torch.tensor([-3.0, -0.6, 0.2, 1.4])
    torch.testing.assert_close(weight(weight.right_inverse(given).requires_grad_()), given)
    # R = Σ (α - w²) w²: the first weight alone gives (0.1 - 9) · 9.
    squares = [9.0, 0.36, 0.04, 1.96]
    assert weight.wdr().item() == pytest.approx(sum((0.1 - square) * square for square in squares), rel=1e-5)
    weight.rounding = True
    assert weight(given).tolist() == [-1.0, -1.0, 0.0, 1.0]


def test_weight_decay_reaches_everything_and_the_last_layer_has_its_own() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    parametrize_layers(model, {"0": 0.6})
    plan = FitPlan(epochs=1, learning_rate=0.1, weight_decay=1e-5, last_layer_weight_decay=1e-3, last_layer="1")
    decays = {id(p): group["weight_decay"] for group in parameter_groups(model, plan) for p in group["params"]}
    assert decays[id(latents(model)["0"])] == 1e-5
    assert decays[id(model[0].bias)] == 1e-5
    assert decays[id(model[1].weight)] == decays[id(model[1].bias)] == 1e-3


SHAPES = {
    "mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
    "tiny-imagenet": (3, 64, 64),
    "imagenet": (3, 224, 224),
}


def made_up_images(folder: Path, shape: tuple[int, int, int], count: int) -> str:
    """Noise with two classes, as a data set's name."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % 2
    channels, height, width = shape  # which a file has last
    images = random.normal(size=(count, height, width, channels)).astype(np.float32) + labels.reshape(-1, 1, 1, 1)
    file = folder / "noise.npz"
    np.savez(file, train_images=images, train_labels=labels, test_images=images[:8], test_labels=labels[:8])
    return f"npz:{file}"


# Large networks and large images take from ten seconds to a minute.
LARGE = [name for name in PAPER if name.endswith("vgg-s") or name.startswith(("imagenet", "tiny"))]


@pytest.mark.parametrize("name", [name for name in PAPER if name not in LARGE])
def test_recipe_trains_on_inputs_of_its_shape(name: str, tmp_path: Path) -> None:
    trains_a_few_steps(name, tmp_path, count=20)


@pytest.mark.nightly
@pytest.mark.parametrize("name", LARGE)
def test_large_recipe_trains_on_inputs_of_its_shape(name: str, tmp_path: Path) -> None:
    trains_a_few_steps(name, tmp_path, count=12)


def trains_a_few_steps(name: str, folder: Path, count: int) -> None:
    """A dense epoch where the recipe wants one, then two of the recipe."""
    dataset = next(known for known in SHAPES if name.startswith(f"{known}-"))
    data = made_up_images(folder, SHAPES[dataset], count)
    spec = resolve(RECIPES / f"{name}.toml", {"data": data, "batch": 8, "epochs": 2, "dense_epochs": 1})
    task = make_task(spec.model_copy(update={"data": spec.data.model_copy(update={"augment": "none"})}))
    require_trained(task, spec)


def require_trained(task: Task, spec: StudySpec) -> None:
    start = train_dense(task, epochs=1, learning_rate=0.01, seed=0, with_teacher=False)
    trained = train_candidate(recipe_candidate(spec, 0), task, start)
    assert math.isfinite(trained.score.loss)
    trits = {name: trained.model.get_submodule(name).weight for name in task.ternary_layers}
    assert all(set(layer.unique().tolist()) <= {-1.0, 0.0, 1.0} for layer in trits.values())
    assert trained.adjusted_fraction == 0.0  # the zeros are as they land
    assert len(trained.history) == 2
    assert not set(task.ternary_layers) & {task.choices[0].layer.name, task.last_layer}


# Recipes, and what writes their data set in files as it comes in.
OWN_FILES = {
    "mnist-lenet": write_mnist,
    "cifar10-resnet20": write_cifar10_npz,
    "tiny-imagenet-vgg-variate": write_tiny_imagenet,
    "imagenet-resnet18": write_imagenet,
}


@pytest.mark.e2e
@pytest.mark.parametrize("name", OWN_FILES)
def test_recipe_trains_on_its_data_set_in_its_own_files_and_augmented(name: str, tmp_path: Path) -> None:
    OWN_FILES[name](tmp_path)
    spec = resolve(
        RECIPES / f"{name}.toml", {"data_dir": tmp_path, "batch": 8, "epochs": 2, "dense_epochs": 1, "train_limit": 18}
    )
    task = make_task(spec)
    assert task.data.augmentation == PAPER[name][-2]
    assert task.data.name == spec.data.name
    require_trained(task, spec)


def test_seeds_of_xavier_start_apart_and_those_of_a_dense_network_together(tmp_path: Path) -> None:
    """With no epochs of training, what is left is the start."""
    weights = {}
    for start in ("xavier", "pretrained"):
        spec = digits_spec(tmp_path, f'initialization = "{start}"\n', epochs=2, dense_epochs=1)
        task = make_task(spec)
        dense = train_dense(task, epochs=1, learning_rate=0.01, seed=0, with_teacher=False)
        for seed in (1, 2):
            untrained = recipe_candidate(spec, seed).model_copy(update={"epochs": 0})
            trained = train_candidate(untrained, task, dense)
            weights[start, seed] = trained.model.get_submodule("conv2").weight
    assert torch.equal(weights["pretrained", 1], weights["pretrained", 2])
    assert not torch.equal(weights["xavier", 1], weights["xavier", 2])
    assert not torch.equal(weights["xavier", 1], weights["pretrained", 1])


@pytest.mark.parametrize(
    ("more", "flags", "sentence"),
    [
        ("", {"target_sparsity": 0.5}, "--target-sparsity must not be given with a recipe"),
        ("", {"max_kb": 3.0}, "--max-kb must not be given with a recipe"),
        ("", {"form": "decoupled"}, "--form must be 'paper' with a recipe, got 'decoupled'"),
        ("", {"weights": Path("w.pt")}, "--weights must not be given with a recipe whose initialization is xavier"),
        ("lambda_steps = [[9, 2], [3, 2]]", {}, "recipe.lambda_steps must name each epoch once, in order"),
        ("initialization = 'glorot'", {}, "recipe.initialization must be 'xavier' or 'pretrained', got 'glorot'"),
        ("optimizer = 'sgd'", {}, "recipe.optimizer must be 'adam', got 'sgd'"),
        ("alhpa = 1", {}, "unknown key 'recipe.alhpa'"),
        ("[train]\nlearning_rate_steps = [[3, 0.1]]", {}, "train.learning_rate_steps must be set in the recipe"),
        ("initialization = 'pretrained'", {"dense_epochs": 0}, "--dense-epochs must be at least 1"),
    ],
)
def test_a_recipe_that_cannot_be_is_rejected(
    tmp_path: Path, more: str, flags: dict[str, object], sentence: str
) -> None:
    with pytest.raises(SpecError) as rejected:
        digits_spec(tmp_path, more, **flags)
    assert sentence in str(rejected.value)


def test_a_recipe_without_its_values_names_each(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("[recipe]\n")
    with pytest.raises(SpecError) as rejected:
        resolve(path, {})
    lines = str(rejected.value).splitlines()
    missing = ("epochs", "alpha", "strength_lambda", "learning_rate")
    assert [line.split(" is missing")[0] for line in lines] == [f"{path}: recipe.{key}" for key in missing]


@pytest.mark.e2e
def test_a_recipes_study_runs_resumes_and_says_what_was_shortened(run, tmp_path: Path) -> None:
    text = "[recipe]\nepochs = 40\nalpha = 0.1\nstrength_lambda = 1e-3\nlearning_rate = 0.01\n"
    (tmp_path / "point.toml").write_text(text)
    command = ("point.toml", "--epochs", "2", "--threads", "1", "--name", "point")
    first = run(*command)
    assert first.returncode == 0, first.stderr
    assert "recipe shortened to 5.00% of its steps, 2 of 40 epochs" in first.stdout
    assert "λ is 0.1 instead of 0.001" in first.stdout
    again = run(*command, "--trials", "2", "--resume")
    assert again.returncode == 0, again.stderr
    assert "[2/2] trial 1" in again.stdout
    trials = (tmp_path / "runs" / "point" / "trials.csv").read_text().splitlines()
    assert len(trials) == 3
    summary = json.loads((tmp_path / "runs" / "point" / "summary.json").read_text())
    assert summary["goal"] == "none, a recipe is trained as given"
    planned = trials[0].split(",").index("planned_sparsity")
    assert [line.split(",")[planned] for line in trials[1:]] == ["", ""]


def test_weights_of_old_and_a_studys_own_dense_weights_fit(tmp_path: Path) -> None:
    made, other = (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)) for _ in range(2))
    state = {name: value for name, value in made.state_dict().items() if not name.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "old.pt")
    load_weights(other, tmp_path / "old.pt")
    assert torch.equal(other[0].weight, made[0].weight)
    save_file(made.state_dict() | {TEACHER_LOGITS: torch.zeros(5, 3)}, tmp_path / "dense.safetensors")
    load_weights(other, tmp_path / "dense.safetensors")
    save_file({**made.state_dict(), "answers": torch.zeros(5, 3)}, tmp_path / "more.safetensors")
    with pytest.raises(ModelError, match="unexpected: answers"):
        load_weights(other, tmp_path / "more.safetensors")


def test_torchvisions_weights_of_resnet18_fit(tmp_path: Path) -> None:
    patch_torchvision()
    theirs = importlib.import_module("torchvision.models").resnet18(weights=None)
    torch.save(theirs.state_dict(), tmp_path / "resnet18.pth")
    ours = MODELS["resnet18"](1000, (3, 224, 224), 0.0)
    load_weights(ours, tmp_path / "resnet18.pth")
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(images), theirs.eval()(images))


def test_pretrained_weights_of_another_network_are_rejected(run, tmp_path: Path) -> None:
    data = made_up_images(tmp_path, (3, 32, 32), 20)
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")
    recipe = (RECIPES / "cifar10-resnet20.toml").read_text().replace('augment = "crop-flip"\n', "")
    (tmp_path / "recipe.toml").write_text(recipe)
    outcome = run("recipe.toml", "--data", data, "--epochs", "1", "--weights", "other.pt")
    assert outcome.returncode == 2
    assert "other.pt" in outcome.stderr
    assert not (tmp_path / "runs").exists()

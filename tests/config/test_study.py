"""Study files and flags: what they resolve to, and one sentence per error."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sca_search.config.candidate import FromPrior, Tracked
from sca_search.config.load import FLAGS, MAY_CHANGE, differences, read_toml, resolve
from sca_search.config.study import SpaceSpec, StudySpec, TrainSpec
from sca_search.errors import SpecError

quick = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.fixture
def study(tmp_path):
    """Writes a study file and gives its path."""

    def write(text):
        path = tmp_path / "a.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def errors_of(study_file=None, **flags):
    """The sentences of a study that cannot be resolved."""
    with pytest.raises(SpecError) as caught:
        resolve(study_file, flags)
    return str(caught.value).splitlines()


def has_key(key):
    table = StudySpec.model_fields
    *path, last = key.split(".")
    for part in path:
        table = table[part].annotation.model_fields
    return last in table


# Resolving


def test_nothing_given_gives_the_defaults():
    spec = resolve(None, {})
    assert spec == StudySpec()
    assert (spec.goal.target_sparsity, spec.data.name, spec.model.name) == (0.5, "digits", "lenet-small")
    assert (spec.search.form, spec.seed, spec.name, spec.out) == ("decoupled", 0, None, Path("runs"))


def test_an_empty_file_gives_the_defaults(study):
    assert resolve(study(""), {}) == StudySpec()


def test_the_file_overrules_the_defaults(study):
    spec = resolve(
        study("seed = 7\n[goal]\ntarget_sparsity = 0.9\n[search]\ntrials = 3\nalpha = { kind = 'prior' }\n"), {}
    )
    assert (spec.seed, spec.goal.target_sparsity, spec.search.trials) == (7, 0.9, 3)
    assert spec.search.alpha == FromPrior()
    assert spec.train == StudySpec().train


def test_flags_overrule_the_file_and_only_there(study):
    path = study("seed = 7\n[search]\ntrials = 3\nworkers = 2\n")
    spec = resolve(path, {"trials": 40, "seed": None, "model": "lenet"})
    assert (spec.search.trials, spec.search.workers, spec.seed, spec.model.name) == (40, 2, 7, "lenet")


def test_a_flag_mends_a_fault_of_the_file(study):
    assert resolve(study("goal.target_sparsity = 1.5"), {"target_sparsity": 0.25}).goal.target_sparsity == 0.25


def test_a_flag_of_0_is_given(study):
    assert resolve(study("seed = 7\n[search]\nrefits = 5"), {"seed": 0, "refits": 0}).search.refits == 0


@pytest.mark.parametrize(("flag", "key"), FLAGS.items())
def test_every_flag_has_a_key(flag, key):
    assert has_key(key)


@pytest.mark.parametrize("key", MAY_CHANGE)
def test_every_key_that_may_change_exists(key):
    assert has_key(key)


FLAG_VALUES = {
    "target_sparsity": 0.125,
    "min_accuracy": 0.75,
    "front": True,
    "max_latency_ms": 0.4,
    "max_kb": 64.0,
    "max_ternary_kb": 32.0,
    "prefer": "fastest",
    "grid": False,
    "data": "mnist",
    "data_dir": Path("some/where"),
    "image_size": 48,
    "train_limit": 100,
    "normalize": False,
    "data_columns": "picture,kind",
    "augment": "crop-flip",
    "skip_unreadable": True,
    "model": "lenet",
    "skip": "fc*",
    "only": "conv*",
    "weights": Path("/some/weights.pt"),
    "trials": 3,
    "method": "sca",
    "form": "paper",
    "time_budget": "2m",
    "refits": 4,
    "strength": 30.0,
    "allocation": 1.5,
    "groups": "stage",
    "keep": 0.5,
    "latency_table": Path("other/device.json"),
    "workers": 5,
    "trial_time": "10m",
    "trial_memory_gb": 2.5,
    "threads": 6,
    "epochs": 7,
    "dense_epochs": 8,
    "batch": 9,
    "loss": "mae",
    "metric": "file.py:mine",
    "seed": 10,
    "name": "study-1",
    "out": Path("else/where"),
}
RESOLVED = {
    "trial_time": 600.0,
    "metric": f"{Path('file.py').resolve()}:mine",  # found again from wherever the run is looked at
    "strength": (30.0, 30.0),
    "skip": ("fc*",),
    "only": ("conv*",),
    "time_budget": 120.0,
    "data_columns": ("picture", "kind"),
}


def test_every_flag_lands_in_its_key():
    assert FLAG_VALUES.keys() == FLAGS.keys()
    for flag, value in FLAG_VALUES.items():
        got = resolve(None, {flag: value} | ({"min_accuracy": 0.9} if flag == "prefer" else {}))
        for part in FLAGS[flag].split("."):
            got = getattr(got, part)
        assert got == RESOLVED.get(flag, value), flag


def test_a_spec_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        StudySpec().seed = 3


@pytest.mark.parametrize(
    ("given_budget", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("1.5h", 5400),
        (" 3 m ", 180),
        (".5m", 30),
        (45, 45),
        (0.5, 0.5),
    ],
)
def test_time_budgets_are_seconds(given_budget, seconds):
    assert resolve(None, {"time_budget": given_budget}).search.time_budget == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("0.5", (0.5, 0.5)),
        ("2", (2.0, 2.0)),
        ("[0.1, 0.2]", (0.1, 0.2)),
        ("[0.2, 0.2]", (0.2, 0.2)),
        ("[1, 3]", (1.0, 3.0)),
    ],
)
def test_ranges_are_a_number_or_two(study, line, ends):
    assert resolve(study(f"search.space.spread = {line}"), {}).search.space.spread == ends


def test_patterns_come_as_a_list_or_with_commas(study):
    assert resolve(study("model.skip = ['a*', 'b']"), {}).model.skip == ("a*", "b")
    assert resolve(None, {"skip": "a*, b,,"}).model.skip == ("a*", "b")
    assert resolve(None, {"skip": ""}).model.skip == ()


def test_alpha_may_be_tracked_with_its_own_pace(study):
    assert resolve(study("search.alpha = { kind = 'tracked', every = 5 }"), {}).search.alpha == Tracked(every=5)


# Errors: where, what, the rule, the actual value


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (float("nan"), r"must be a finite number, got nan"),
        (float("inf"), r"must be a finite number, got inf"),
        (1.5, r"must be below 1(\.0)?, got 1\.5"),
        (1.0, r"must be below 1(\.0)?, got 1\.0"),
        (-0.1, r"must be at least 0(\.0)?, got -0\.1"),
        ("half", r"must be a number, got 'half'"),
    ],
)
def test_a_bad_target_is_named_by_flag_or_by_file(study, value, rule):
    (by_flag,) = errors_of(target_sparsity=value)
    assert re.fullmatch(f"--target-sparsity {rule}", by_flag)
    path = study(f"goal.target_sparsity = {value!r}")
    (by_file,) = errors_of(path)
    assert re.fullmatch(f"{re.escape(str(path))}: goal.target_sparsity {rule}", by_file)


def test_three_faults_are_three_sentences(study):
    path = study("seed = -1\n[train]\nbatch = 1\n[search]\nform = 'papr'\n")
    assert errors_of(path) == [
        f"{path}: seed must be at least 0, got -1",
        f"{path}: train.batch must be at least 2, got 1",
        f"{path}: search.form must be 'decoupled' or 'paper', got 'papr'; did you mean 'paper'?",
    ]


def test_faults_of_file_and_flags_come_together(study):
    path = study("[train]\nbatch = 1\n[data]\nnmae = 'x'\n")
    lines = errors_of(path, target_sparsity=2.0, trials=0)
    assert len(lines) == 4
    assert any(line.startswith("--target-sparsity must be below 1") for line in lines)
    assert any(re.fullmatch(r"--trials must be (at least 1|above 0), got 0", line) for line in lines)
    assert f"{path}: train.batch must be at least 2, got 1" in lines
    assert any(line.startswith(f"{path}: unknown key 'data.nmae'") for line in lines)


@pytest.mark.parametrize(
    ("line", "key", "rule"),
    [
        ("search.trials = 0", "search.trials", r"must be (at least 1|above 0), got 0"),
        ("search.trials = 1.5", "search.trials", r"must be an integer, got 1\.5"),
        ("search.trials = 'many'", "search.trials", r"must be an integer, got 'many'"),
        ("search.refits = -1", "search.refits", r"must be at least 0, got -1"),
        ("seed = 2147483648", "seed", r"must be below 2147483648, got 2147483648"),
        ("data.train_limit = 9", "data.train_limit", r"must be at least 10, got 9"),
        ("data.name = 3", "data.name", r"must be a string, got 3"),
        (
            "data.augment = 'cropflip'",
            "data.augment",
            r"must be 'none', 'crop-flip' or 'scale-aspect', got 'cropflip'; did you mean 'crop-flip'\?",
        ),
        ("data.augment = 4", "data.augment", r"must be 'none', 'crop-flip' or 'scale-aspect', got 4"),
        ("data.skip_unreadable = 'some'", "data.skip_unreadable", r"must be true or false, got 'some'"),
        ("model.dropout = 1.0", "model.dropout", r"must be below 1(\.0)?, got 1\.0"),
        ("model.keep_first = 'maybe'", "model.keep_first", r"must be true or false, got 'maybe'"),
        ("model = 'lenet'", "model", r"must be a table, got 'lenet'"),
        ("search.space = 3", "search.space", r"must be a table, got 3"),
        ("name = 'a/b'", "name", r"must start with a letter or digit .*, got 'a/b'"),
        ("name = '..'", "name", r"must start with a letter or digit .*, got '\.\.'"),
        ("name = ''", "name", r"must start with a letter or digit .*, got ''"),
        (f"name = '{'x' * 101}'", "name", r"must be at most 100 characters long, got 'x{101}'"),
        ("search.time_budget = 0", "search.time_budget", r"must be above 0(\.0)?, got 0(\.0)?"),
        ("search.alpha = { kind = 'prior', x = 1 }", "", r"unknown key .*"),
        (
            "search.space.spread = [2, 1]",
            "search.space.spread",
            r"must be a number or \[low, high\].*, got \[2.*, 1.*\]",
        ),
        ("search.space.spread = [-1, 2]", "search.space.spread", r"must be above 0(\.0)?, got -1"),
        ("search.space.spread = [1, 4]", "search.space.spread", r"must be at most 3(\.0)?, got 4"),
        ("search.space.strength_start = [0, 1]", "search.space.strength_start", r"must be below 0\.9, got 1"),
        ("search.space.strength = [1, inf]", "search.space.strength", r"must be a finite number, got inf"),
        ("train.learning_rate_steps = [[1, 0]]", "train.learning_rate_steps", r"must be above 0(\.0)?, got 0"),
        ("search.keep = 0", "search.keep", r"must be above 0(\.0)?, got 0"),
        ("search.keep = 1.5", "search.keep", r"must be at most 1(\.0)?, got 1\.5"),
        ("search.rungs = 0.5", "search.rungs", r"must be a list, got 0\.5"),
        ("search.rungs = [0.5, 2]", "search.rungs", r"must be at most 1(\.0)?, got 2"),
        ("search.sampler = 'grid'", "search.sampler", r"must be 'tpe', 'gp' or 'random', got 'grid'"),
        (
            "search.space.strength_schedule = 'cubic'",
            "search.space.strength_schedule",
            r"must be 'linear', .* or 'step', got 'cubic'",
        ),
        ("search.space.rise = [0, 1]", "search.space.rise", r"must be below 1(\.0)?, got 1"),
        ("search.space.rise_start = [0, 1]", "search.space.rise_start", r"must be below 1(\.0)?, got 1"),
        ("search.space.strength_first = 0", "search.space.strength_first", r"must be above 0(\.0)?, got 0"),
        ("search.space.group_strength = -1", "search.space.group_strength", r"must be at least 0(\.0)?, got -1"),
        ("search.space.group_rise = 2", "search.space.group_rise", r"must be at most 1(\.0)?, got 2"),
        ("search.space.distillation = [0, 2]", "search.space.distillation", r"must be at most 1(\.0)?, got 2"),
        ("search.space.temperature = 0", "search.space.temperature", r"must be above 0(\.0)?, got 0"),
        (
            "search.space.gradient = 'exact'",
            "search.space.gradient",
            r"must be 'straight-through', 'tanh' or 'flow', got 'exact'",
        ),
        (
            "search.space.reallocation = ['fixd']",
            "search.space.reallocation",
            r"must be 'adaptive' or 'fixed', got 'fixd'; did you mean 'fixed'\?",
        ),
        ("search.alpha = { kind = 'tracked', rise = 2 }", "search.alpha.rise", r"must be at most 1(\.0)?, got 2"),
        ("search.form = 'sharpened'", "search.form", r"must be 'decoupled' or 'paper', got 'sharpened'"),
        ("search.form = 'straight-through'", "search.form", r"must be 'decoupled' or 'paper', got 'straight-through'"),
    ],
)
def test_a_fault_is_one_sentence(study, line, key, rule):
    path = study(line)
    (sentence,) = errors_of(path)
    assert re.fullmatch(f"{re.escape(str(path))}: {re.escape(key)} ?{rule}", sentence)


@pytest.mark.parametrize("value", ["nan", "0", "-1"])
def test_a_single_number_as_range_has_one_fault_not_two(study, value):
    assert len(errors_of(study(f"search.space.spread = {value}"))) == 1


@pytest.mark.parametrize("value", ["[0.5]", "[1, 2, 3]", "[]", "'wide'", "true"])
def test_what_is_no_range_is_explained(study, value):
    path = study(f"search.space.spread = {value}")
    sentences = errors_of(path)
    assert len(sentences) == 1
    assert sentences[0].startswith(f"{path}: search.space.spread must be a number or [low, high]")


@pytest.mark.parametrize("value", ["1.2.3", ".", "ten", "1h30m", "2 days", ""])
def test_what_is_no_time_is_rejected_with_its_value(value):
    (sentence,) = errors_of(time_budget=value)
    assert sentence.startswith("--time-budget must be ")
    assert sentence.endswith(f"got {value!r}")


@pytest.mark.parametrize("value", ["-5", "nan", "inf", "0", "0s", "-0"])
def test_a_time_budget_is_a_positive_number(value):
    (sentence,) = errors_of(time_budget=value)
    assert re.match(r"--time-budget must be .*, got '?-?(5|nan|inf|0)", sentence)


@pytest.mark.parametrize(
    "line",
    [
        "search.trials = true",
        "seed = true",
        "goal.target_sparsity = false",
        "search.time_budget = true",
        "search.space.spread = [true, 2]",
        "train.learning_rate_steps = [[true, 0.1]]",
    ],
)
def test_true_and_false_are_no_numbers(study, line):
    path = study(line)
    (sentence,) = errors_of(path)
    assert sentence.startswith(f"{path}: {line.split(' =')[0]} must be ")


@pytest.mark.parametrize("steps", ["[[5, 0.1], [2, 0.1]]", "[[2, 0.1], [2, 0.1]]"])
def test_learning_rate_steps_out_of_order_are_found_before_training(study, steps):
    path = study(f"train.learning_rate_steps = {steps}")
    (sentence,) = errors_of(path)
    assert sentence.startswith(f"{path}: train.learning_rate_steps ")


# Unknown keys


@pytest.mark.parametrize(
    ("line", "key", "nearest"),
    [
        ("sead = 1", "sead", "seed"),
        ("[serach]\ntrials = 3", "serach", "search"),
        ("[search]\ntrails = 3", "search.trails", "search.trials"),
        ("[search.space]\nspred = 3", "search.space.spred", "search.space.spread"),
        ("search.alpha = { kind = 'tracked', evry = 2 }", "search.alpha.evry", "search.alpha.every"),
    ],
)
def test_an_unknown_key_is_offered_the_nearest(study, line, key, nearest):
    path = study(line)
    (sentence,) = errors_of(path)
    assert sentence.startswith(f"{path}: unknown key {key!r}: known are ")
    assert sentence.endswith(f"; did you mean {nearest!r}?")


def test_an_unknown_key_far_from_all_is_shown_the_known_ones(study):
    path = study("goal.xyz = 1")
    known = (
        "goal.front, goal.grid, goal.max_kb, goal.max_latency_ms, goal.max_ternary_kb, goal.min_accuracy, goal.prefer, "
        "goal.target_sparsity"
    )
    assert errors_of(path)[0].startswith(f"{path}: unknown key 'goal.xyz': known are {known}")


def test_two_goals_are_one_too_many(study):
    path = study("goal.target_sparsity = 0.0\ngoal.min_accuracy = 0.9")
    assert errors_of(path) == [
        f"{path}: goal must name one of target_sparsity, min_accuracy, front, got min_accuracy and target_sparsity"
    ]


@pytest.mark.parametrize("budget", ["max_latency_ms", "max_kb", "max_ternary_kb"])
@pytest.mark.parametrize("value", [0, -1.5, "fast", True, float("inf")])
def test_a_budget_is_a_positive_number(budget, value):
    with pytest.raises(SpecError) as fault:
        resolve(None, {budget: value})
    assert str(fault.value).startswith(f"--{budget.replace('_', '-')} must be")


def test_a_budget_may_stand_alone_or_next_to_a_sparsity_or_an_accuracy():
    assert resolve(None, {"max_kb": 64.0}).goal.target_sparsity is None
    both = resolve(None, {"max_kb": 64.0, "target_sparsity": 0.9}).goal
    assert (both.budgets, both.target_sparsity) == ({"max_kb": 64.0}, 0.9)
    assert resolve(None, {"max_latency_ms": 0.4, "min_accuracy": 0.9}).goal.budgets == {"max_latency_ms": 0.4}


def test_a_budget_on_the_command_line_stands_next_to_the_files_goal_but_not_next_to_the_front(study):
    assert resolve(study("goal.target_sparsity = 0.8"), {"max_kb": 9.0}).goal.target_sparsity == 0.8
    assert not resolve(study("goal.front = true"), {"max_kb": 9.0}).goal.front


def test_the_whole_front_has_no_budget(study):
    path = study("goal.front = true\ngoal.max_kb = 3.0")
    assert errors_of(path) == [f"{path}: goal must not have both front, which has no limit, and max_kb"]


def test_a_preference_is_among_accurate_ones(study):
    path = study('goal.prefer = "fastest"')
    assert errors_of(path) == [f"{path}: goal must name min_accuracy where it has prefer, got 'fastest' alone"]


def test_a_goal_on_the_command_line_stands_instead_of_the_files(study):
    goal = resolve(study("goal.target_sparsity = 0.9"), {"min_accuracy": 0.98}).goal
    assert (goal.target_sparsity, goal.min_accuracy, goal.front) == (None, 0.98, False)


def test_a_key_in_the_wrong_table_is_unknown(study):
    path = study("trials = 3")
    (sentence,) = errors_of(path)
    assert sentence.startswith(f"{path}: unknown key 'trials': known are data, goal, model, name, out, recipe, search")


def test_an_unknown_kind_of_alpha_names_the_key_and_the_known_kinds(study):
    path = study("search.alpha = { kind = 'trakced' }")
    (sentence,) = errors_of(path)
    assert sentence.startswith(f"{path}: search.alpha")
    assert all(word in sentence for word in ("'trakced'", "tracked", "prior"))


def test_a_fault_within_alpha_is_named_as_it_stands_in_the_file(study):
    path = study("search.alpha = { kind = 'tracked', every = 0 }")
    assert errors_of(path) == [f"{path}: search.alpha.every must be at least 1, got 0"]


@pytest.mark.parametrize(
    "line", ["search.alpha = { kind = '{x}' }", "name = '{x}'", "'{x}' = 1", "search.form = '{0}'"]
)
def test_braces_in_what_was_given_are_shown_as_they_are(study, line):
    (sentence,) = errors_of(study(line))
    assert re.search(r"\{[x0]\}", sentence)


def test_a_flag_into_a_table_that_is_none_is_one_of_all_faults(study):
    path = study("seed = -1\nmodel = 'lenet'\n")
    lines = errors_of(path, model="resnet20")
    assert f"{path}: model must be a table, got 'lenet'" in lines
    assert f"{path}: seed must be at least 0, got -1" in lines


# Files


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "none.toml"
    assert errors_of(path) == [f"{path}: there is no such study file"]


def test_a_file_that_is_not_toml_is_reported_with_the_place(study):
    path = study("seed = 1\ntrials = = 2\n")
    (sentence,) = errors_of(path)
    assert sentence.startswith(f"{path}: is not valid TOML: ")
    assert "line 2" in sentence


def test_a_folder_or_bytes_are_no_study_file(tmp_path):
    (tmp_path / "b.toml").write_bytes(b"name = '\xff'")
    for path in (tmp_path, tmp_path / "b.toml"):
        (sentence,) = errors_of(path)
        assert sentence.startswith(f"{path}: cannot be read as a study file: ")


def test_read_toml_gives_the_table(study):
    assert read_toml(study("a.b = [1, 2]")) == {"a": {"b": [1, 2]}}


# Writing

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
positive = st.floats(1e-6, 1e6)
positive_ranges = positive | st.lists(positive, min_size=2, max_size=2).map(sorted)
tables = st.fixed_dictionaries(
    {},
    optional={
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
        "seed": st.integers(0, 2**31 - 1),
        "goal": st.fixed_dictionaries({"target_sparsity": st.floats(0, 0.999999)}),
        "data": st.fixed_dictionaries({"name": texts}, optional={"image_size": st.integers(1, 512)}),
        "model": st.fixed_dictionaries({"skip": st.lists(texts, max_size=3), "keep_last": st.booleans()}),
        "train": st.fixed_dictionaries(
            {"learning_rate_steps": st.just([]) | st.just([[2, 0.1], [4.5, 0.5]]), "epochs": st.integers(1, 999)}
        ),
        "search": st.fixed_dictionaries(
            {"space": st.fixed_dictionaries({"learning_rate": positive_ranges, "strength": positive_ranges})},
            optional={
                "form": st.sampled_from(["paper", "decoupled"]),
                "time_budget": st.sampled_from(["10m", 0.25, "90"]),
                "alpha": st.sampled_from([{"kind": "prior"}, {"kind": "tracked", "every": 3}]),
            },
        ),
    },
)


@quick
@given(tables)
def test_what_is_written_resolves_to_the_same(tmp_path_factory, table):
    spec = StudySpec.model_validate(table)
    path = tmp_path_factory.mktemp("spec") / "study.toml"
    path.write_text(spec.to_toml(), encoding="utf-8", newline="")
    assert resolve(path, {}) == spec
    assert differences(resolve(path, {}), spec) == []


def test_what_is_written_names_every_key_that_has_a_value():
    written = tomllib.loads(resolve(None, {"target_sparsity": 0.75}).to_toml())
    assert written["goal"] == {"target_sparsity": 0.75, "front": False, "grid": True, "prefer": "sparsest"}
    assert written["search"]["trials"] == StudySpec().search.trials
    assert "time_budget" not in written["search"]


# Differences


def test_differences_name_the_keys():
    ours = resolve(None, {"seed": 1, "target_sparsity": 0.9, "skip": "a"})
    assert differences(ours, StudySpec()) == ["goal.target_sparsity", "model.skip", "seed"]
    assert differences(StudySpec(), ours) == ["goal.target_sparsity", "model.skip", "seed"]


def test_differences_pass_over_what_may_change():
    changed = {"name": "x", "out": Path("y"), "trials": 99, "time_budget": "1h", "workers": 3, "threads": 2}
    assert differences(resolve(None, {**changed, "refits": 0}), StudySpec()) == []


def test_differences_reach_into_optional_tables():
    tracked = StudySpec.model_validate({"search": {"alpha": {"kind": "tracked", "every": 2}}})
    other = StudySpec.model_validate({"search": {"alpha": {"kind": "tracked", "every": 3}}})
    assert differences(tracked, other) == ["search.alpha.every"]
    assert differences(tracked, StudySpec()) != []
    assert differences(StudySpec.model_validate({"search": {"space": {"spread": 0.5}}}), StudySpec()) == [
        "search.space.spread"
    ]


# Names


@pytest.mark.parametrize(
    ("data", "target", "name"),
    [
        ("digits", 0.5, "digits-lenet-small-s0.5"),
        ("folder:/photos/my cats/", 0.9, "my-cats-lenet-small-s0.9"),
        ("npz:/data/x.npz", 0.0, "x-npz-lenet-small-s0"),
        ("///", 0.25, "data-lenet-small-s0.25"),
    ],
)
def test_base_name_says_data_network_and_target(data, target, name):
    assert resolve(None, {"data": data, "target_sparsity": target}).base_name == name


@quick
@given(texts)
def test_base_name_is_one_plain_folder_whatever_the_data(data):
    name = resolve(None, {"data": data}).base_name
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)


@pytest.mark.parametrize(
    ("line", "growths"), [("'step'", ("step",)), ("['linear', 'exponential']", ("linear", "exponential"))]
)
def test_growths_are_one_or_several(study, line, growths):
    assert resolve(study(f"search.space.strength_schedule = {line}"), {}).search.space.strength_schedule == growths


def test_no_growth_at_all_is_rejected(study):
    path = study("search.space.strength_schedule = []")
    (sentence,) = errors_of(path)
    assert sentence.startswith(f"{path}: search.space.strength_schedule ")


def test_default_ranges_are_in_order():
    for field in SpaceSpec.model_fields:
        ends = getattr(SpaceSpec(), field)
        is_range = isinstance(ends, tuple) and isinstance(ends[0], float)
        assert not is_range or ends[0] <= ends[1]


@pytest.mark.parametrize(
    "key",
    [
        "train.distillation",
        "train.temperature",
        *("search.space." + name for name in ("sharpness", "sharpness_first", "sharpness_start")),
        *("search.space." + name for name in ("gradient_sharpness", "group_range")),
    ],
)
def test_a_key_that_was_removed_is_rejected_with_the_known_ones(study, key):
    path = study(f"{key} = 0.5")
    (sentence,) = errors_of(path)
    table = key.rpartition(".")[0]
    known = (TrainSpec if table == "train" else SpaceSpec).model_fields
    named = ", ".join(sorted(f"{table}.{name}" for name in known))
    assert sentence.startswith(f"{path}: unknown key '{key}': known are {named}")


def test_distillation_needs_a_teacher_unless_it_is_switched_off_or_a_recipe(study):
    assert StudySpec().uses_teacher
    assert not resolve(study("search.space.distillation = 0"), {}).uses_teacher
    recipe = "recipe = { epochs = 1, alpha = 0.1, strength_lambda = 1e-3, learning_rate = 0.01 }"
    assert not resolve(study(recipe), {}).uses_teacher


# Networks of the user's own


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("lenet-small", "digits-lenet-small-s0.5"),
        ("some/where/nets.py:my_net", "digits-my-net-s0.5"),
        ("package.module:MyNet", "digits-MyNet-s0.5"),
        ("torchvision:mobilenet_v3_small", "digits-mobilenet-v3-small-s0.5"),
        ("timm:vit.in21k", "digits-vit.in21k-s0.5"),
        ("nets.py:" + "very_long_" * 20, "digits-very-long-very-long-very-long-very-long-s0.5"),
        ("nets.py:_", "digits-network-s0.5"),
    ],
)
def test_base_name_is_short_and_legal_whatever_the_network(model, name):
    assert resolve(None, {"model": model}).base_name == name


def test_a_networks_file_is_found_from_anywhere_and_shown_without_its_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = resolve(None, {"model": "nets.py:make", "weights": Path("w.pt")})
    assert spec.model.name == f"{tmp_path}/nets.py:make"
    assert spec.model.label == "nets.py:make"
    assert spec.model.weights == tmp_path / "w.pt"
    assert resolve(None, {"model": "package.inner:make"}).model.name == "package.inner:make"


def test_weights_stand_instead_of_the_dense_training_unless_it_is_requested(tmp_path):
    weights = {"weights": Path("w.pt")}
    assert resolve(None, {}).train.dense_epochs == 30
    assert resolve(None, weights).train.dense_epochs == 0
    assert resolve(None, weights | {"dense_epochs": 3}).train.dense_epochs == 3
    again = tmp_path / "study.toml"
    again.write_text(resolve(None, weights).to_toml())
    assert resolve(again, {}) == resolve(None, weights)


def test_no_dense_training_without_weights_is_rejected(tmp_path):
    with pytest.raises(SpecError) as caught:
        resolve(None, {"dense_epochs": 0})
    assert str(caught.value) == "--dense-epochs must be at least 1 without model.weights, got 0"
    (tmp_path / "a.toml").write_text("[train]\ndense_epochs = 0\n")
    with pytest.raises(SpecError) as caught:
        resolve(tmp_path / "a.toml", {})
    assert str(caught.value) == (
        f"{tmp_path}/a.toml: train.dense_epochs must be at least 1 without model.weights, got 0"
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"model": {"name": "torchvision:resnet18"}, "data": {"name": "folder:photos"}}, {}),
        ({"model": {"name": "timm:resnet18"}, "data": {"name": "hf-disk:photos"}}, {}),
        ({"model": {"name": "python:Net"}, "data": {"name": "python:tuple"}}, {}),
        ({"model": {"name": "folder:make"}}, {"model.name": "folder:make"}),
        ({"data": {"name": "timm:make"}}, {"data.name": "timm:make"}),
        ({"data": {"name": "digits:make"}}, {"data.name": "digits:make"}),
        ({"data": {"name": "/digits.py:make"}}, {"data.name": "/digits.py:make"}),
        (
            {"train": {"loss": "npz:loss", "metric": "timm:metric"}},
            {"train.loss": "npz:loss", "train.metric": "timm:metric"},
        ),
    ],
)
def test_settings_that_refer_to_user_code(values: dict[str, object], expected: dict[str, str]) -> None:
    assert StudySpec.model_validate(values).references == expected

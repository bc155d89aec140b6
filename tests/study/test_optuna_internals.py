"""The private API of Optuna that this package uses: fails if a new version changes any of it."""

import ast
import inspect
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages._rdb import models
from optuna.storages._rdb import storage as rdb

from sca_search.study import optuna_internals
from sca_search.study.optuna_internals import RETRIED, WaitingTrialCache, set_queue_order, storage_of, trial_id

PACKAGE = Path(optuna_internals.__file__).parents[1]


def test_the_version_is_the_one_that_this_was_written_for() -> None:
    assert optuna.__version__.startswith("5.0."), (
        f"Optuna {optuna.__version__}: compare the methods that study/optuna_internals.py overrides or calls with "
        "those of the new release, then change this version and the one in the module's docstring"
    )


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (RDBStorage._get_trials, "self study_id states included_trial_ids trial_id_greater_than"),
        (RDBStorage._create_new_trial, "self study_id template_trial"),
        (RDBStorage._get_prepared_new_trial, "self study_id template_trial session"),
        (
            RDBStorage._set_trial_param,
            "self trial_id param_name param_value_internal distribution previous_distribution",
        ),
        (RDBStorage.set_trial_state_values, "self trial_id state values"),
        (rdb._create_scoped_session, "scoped_session ignore_integrity_error"),
        (optuna.Study._pop_waiting_trial_id, "self"),
    ],
)
def test_methods_have_the_same_parameters(function, parameters: str) -> None:
    assert list(inspect.signature(function).parameters) == parameters.split()


def test_the_cache_calls_the_methods_that_are_overridden() -> None:
    calls = inspect.getsource(_CachedStorage)
    for name in ("_backend._get_trials(", "_backend._create_new_trial(", "_backend._set_trial_param("):
        assert name in calls
    assert "self._get_prepared_new_trial(" in inspect.getsource(RDBStorage._create_new_trial)
    assert "self._pop_waiting_trial_id()" in inspect.getsource(optuna.Study.ask)


def test_attributes_exist(tmp_path: Path) -> None:
    assert {"trial_id", "study_id", "state"} <= set(models.TrialModel.__table__.columns.keys())
    assert {"trial_id", "key", "value_json"} <= set(models.TrialSystemAttributeModel.__table__.columns.keys())
    assert all(callable(getattr(RDBStorage, name)) for name in RETRIED)
    storage = WaitingTrialCache(f"sqlite:///{tmp_path / 'study.db'}")
    study = optuna.create_study(storage=storage)
    study.enqueue_trial({})
    assert storage_of(study)._backend is storage
    assert storage.engine is not None
    assert storage.scoped_session is not None
    taken = []
    set_queue_order(study, taken.append)
    assert trial_id(study.ask()) == trial_id(study.get_trials()[-1])
    assert len(taken) == 1
    storage.remove_session()
    storage.engine.dispose()


def test_no_other_module_uses_private_names_of_optuna() -> None:
    private = {"_storage", "_backend", "_trial_id", "_study_id", "_rdb", "_cached_storage", "_pop_waiting_trial_id"}
    for path in [*(PACKAGE / "study").glob("*.py"), *(PACKAGE / "cli").glob("*.py")]:
        if path == Path(optuna_internals.__file__):
            continue
        tree = ast.parse(path.read_text())
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & private
        assert not used, path
        assert not any(name.startswith("optuna.") and "._" in name for name in modules), path

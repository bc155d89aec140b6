"""A paused training's file: it reads back bit for bit, and refuses what it did not write."""

import json
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from sca_search.errors import CheckpointError, RunError
from sca_search.training.checkpoint import FORMAT, VERSION, Checkpoint, _digest, load_checkpoint, save_checkpoint

quick = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "candidates" / "007" / "checkpoint.safetensors"


def checkpoint(**changes):
    generator = torch.Generator().manual_seed(0)
    settings_of_it = {
        "epoch": 5,
        "method": {"unit": 1.25e-7, "threshold of conv2": math.inf, "threshold of fc1": 1.9999999999999998},
        "history": [{"phase": "ternary", "epoch": 1, "soft_metric": 0.1}],
        "model": {
            "conv2.parametrizations.weight.original": torch.randn(3, 2, 2, 2, generator=generator),
            "bn2.num_batches_tracked": torch.tensor(17),
        },
        "memory": {"0.exp_avg": torch.randn(3, 4, generator=generator), "0.step": torch.tensor(35.0)},
        "random": torch.get_rng_state(),
    }
    return Checkpoint(**settings_of_it | changes)


def tensors_equal(ours, theirs):
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in ours
    )


def assert_same(ours, theirs):
    progress = [(each.epoch, each.method, each.history, each.snapshots) for each in (ours, theirs)]
    assert progress[0] == progress[1]
    assert tensors_equal(ours.model, theirs.model)
    assert tensors_equal(ours.memory, theirs.memory)
    assert torch.equal(ours.random, theirs.random)


def test_what_is_written_reads_back_bit_for_bit(path):
    saved = checkpoint()
    save_checkpoint(path, saved)
    assert_same(load_checkpoint(path), saved)


@quick
@given(
    st.integers(0, 10**6),
    st.dictionaries(st.text("abc.12/", min_size=1, max_size=8), st.floats(0), max_size=3),
    st.dictionaries(st.text("abc.12/", min_size=1, max_size=8), st.lists(st.floats(width=32), max_size=4), max_size=3),
)
def test_any_facts_and_tensors_read_back(path, epoch, method, values):
    tensors = {name: torch.tensor(each) for name, each in values.items()}
    saved = checkpoint(epoch=epoch, method=method, model=tensors, memory={})
    save_checkpoint(path, saved)
    loaded = load_checkpoint(path)
    assert (loaded.epoch, loaded.method, loaded.memory) == (epoch, method, {})
    assert loaded.model.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(loaded.model[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_random_state_goes_on_where_it_was(path):
    torch.manual_seed(3)
    torch.rand(5)
    save_checkpoint(path, checkpoint(random=torch.get_rng_state()))
    expected = torch.rand(4)
    torch.rand(100)
    torch.set_rng_state(load_checkpoint(path).random)
    assert torch.equal(torch.rand(4), expected)


def test_a_transposed_weight_is_stored_as_it_is(path):
    turned = torch.arange(6.0).reshape(2, 3).T
    save_checkpoint(path, checkpoint(model={"fc1.weight": turned}))
    assert torch.equal(load_checkpoint(path).model["fc1.weight"], turned)


def test_every_flipped_bit_and_every_cut_is_noticed(path):
    """What is read is what was written, or nothing is; a flip in the header's padding changes nothing."""
    save_checkpoint(path, checkpoint())
    raw, whole = path.read_bytes(), repr(load_checkpoint(path))
    random = np.random.default_rng(0)
    noticed = 0
    for _ in range(400):
        bit = int(random.integers(8 * len(raw)))
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert repr(load_checkpoint(path)) == whole
        except CheckpointError:
            noticed += 1
    assert noticed > 390
    for length in range(0, len(raw), 97):
        path.write_bytes(raw[:length])
        with pytest.raises(CheckpointError):
            load_checkpoint(path)


def test_a_new_checkpoint_replaces_the_old_one_and_leaves_nothing_beside(path):
    save_checkpoint(path, checkpoint(epoch=5))
    save_checkpoint(path, checkpoint(epoch=10))
    assert load_checkpoint(path).epoch == 10
    assert list(path.parent.iterdir()) == [path]


def refusal(path):
    with pytest.raises(RunError) as caught:
        load_checkpoint(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    return sentence


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, 0.5, 0.99])
def test_a_truncated_file_is_rejected(path, kept):
    save_checkpoint(path, checkpoint())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    assert "must be a readable checkpoint" in refusal(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"not a checkpoint at all, whatever its name",
        b"\x00" * 64,
        b"\xff" * 64,
        struct.pack("<Q", 2) + b"[]",
        b"\x80\x04.",
    ],
    ids=["text", "zeros", "ones", "list", "pickle"],
)
def test_garbage_is_rejected(path, raw):
    path.parent.mkdir(parents=True)
    path.write_bytes(raw)
    assert "must be a readable checkpoint" in refusal(path)


def test_a_missing_file_and_a_folder_are_rejected(path):
    assert "must be a readable checkpoint" in refusal(path)
    path.mkdir(parents=True)
    assert "must be a readable checkpoint" in refusal(path)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"format": "pt"},
        {"format": "sca-search/plain", "version": "1"},
        {"format": "sca-search/checkpoint", "version": "2"},
        {"format": "sca-search/checkpoint"},
    ],
    ids=["none", "torch", "plain", "version", "unversioned"],
)
def test_another_format_or_version_is_rejected(path, metadata):
    """A model of ours, or anybody's safetensors file, under a checkpoint's name."""
    path.parent.mkdir(parents=True)
    save_file({"model/a": torch.zeros(2)}, path, metadata=metadata)
    assert "must be a checkpoint of version 3" in refusal(path)


PROGRESS = {"epoch": 5, "method": {"unit": 1.0, "threshold of conv2": 0.5}, "history": [], "snapshots": []}


def about(tensors: dict[str, torch.Tensor], progress: str) -> dict[str, str]:
    return {"format": FORMAT, "version": VERSION, "progress": progress, "digest": _digest(tensors, progress)}


@pytest.mark.parametrize(
    "progress",
    [
        *(json.dumps({key: value for key, value in PROGRESS.items() if key != missing}) for missing in PROGRESS),
        json.dumps(PROGRESS | {"epoch": "five"}),
        json.dumps(PROGRESS | {"method": None}),
        json.dumps(PROGRESS | {"method": [0.5]}),
        json.dumps(PROGRESS | {"method": {"unit": "half"}}),
        "[]",
        "{",
        "",
    ],
)
def test_damaged_facts_are_rejected(path, progress):
    path.parent.mkdir(parents=True)
    tensors = {"model/a": torch.zeros(2), "random/torch": torch.get_rng_state()}
    save_file(tensors, path, metadata=about(tensors, progress))
    assert "must be a readable checkpoint" in refusal(path)


@pytest.mark.parametrize("tensors", [{"model/a": torch.zeros(2)}, {"else/a": torch.zeros(2)}], ids=["none", "else"])
def test_a_file_without_a_random_state_or_with_other_tensors_is_rejected(path, tensors):
    path.parent.mkdir(parents=True)
    save_file(tensors, path, metadata=about(tensors, json.dumps(PROGRESS)))
    assert "must be a readable checkpoint" in refusal(path)

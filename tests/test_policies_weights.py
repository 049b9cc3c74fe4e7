"""Tests of weights files: what comes back, and one clear line for everything that may be wrong."""

import json

import chex
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from policy_cases import chain, randomised

from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import Cluster
from regal_jax.policies import (
    Network,
    Policy,
    PolicyConfig,
    load_policy,
    make_features,
    read_metadata,
    save_policy,
)
from regal_jax.policies.weights import VERSION

SMALL = PolicyConfig(width=4, rounds=1)


def weighted(config):
    return randomised(nnx.eval_shape(lambda: Policy(config, rngs=nnx.Rngs(0))))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "policy.safetensors"
    save_policy(path, weighted(SMALL), {"data": "synthetic"})
    return path


def rewrite(path, change):
    """Lets ``change`` edit tensors and metadata of a file."""
    with safetensors.safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        tensors = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    change(tensors, metadata)
    path.write_bytes(safetensors.numpy.save(tensors, metadata))


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        PolicyConfig(num_devices=3, network=Network.SEQUENCE, width=4, features="plain"),
        PolicyConfig(num_devices=1, width=4, rounds=3, share_rounds=True, first=(0.5,), second=(0.01, 0.05)),
        PolicyConfig(parametrisation="alpha-beta", width=4, rounds=0, uniform=False, initial_bias=0.5),
    ],
)
def test_what_was_saved_comes_back(tmp_path, config):
    path = tmp_path / "a policy"
    policy = weighted(config)
    save_policy(path, policy, {"data": "synthetic", "seed": "7"})
    loaded = load_policy(path, num_devices=config.num_devices)
    assert loaded.config == config
    x = make_features(
        [chain(5)], Cluster.uniform(config.num_devices, transfer="blocking"), None, config.feature_config
    )
    call = nnx.jit(lambda policy, x: policy(x))
    chex.assert_trees_all_equal(call(loaded, x), call(policy, x))
    chex.assert_trees_all_equal(nnx.state(loaded), nnx.state(policy))
    assert read_metadata(path) == {"data": "synthetic", "seed": "7"}
    assert [p.name for p in tmp_path.iterdir()] == ["a policy"]


def test_loaded_policy_can_be_trained_and_saved_again(saved, tmp_path):
    policy = load_policy(saved)
    x = make_features([chain(5)], Cluster.uniform(2, transfer="blocking"), None, SMALL.feature_config)
    gradient = nnx.jit(nnx.grad(lambda policy: (policy(x).first ** 2).mean()))(policy)
    assert any(np.abs(leaf).max() > 0 for leaf in nnx.to_flat_state(gradient).leaves)
    save_policy(tmp_path / "again", policy)
    assert load_policy(tmp_path / "again").config == SMALL


def test_same_policy_same_bytes(saved, tmp_path):
    save_policy(tmp_path / "again", load_policy(saved), {"data": "synthetic"})
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()


def test_other_number_of_devices(saved):
    with pytest.raises(ConfigError, match="a policy for 2 devices, not for 4; load or train one for 4"):
        load_policy(saved, num_devices=4)


def test_truncated_anywhere(saved):
    whole = saved.read_bytes()
    header = int.from_bytes(whole[:8], "little") + 8
    for length in (9, 100, header - 1, header, header + 10, len(whole) - 1):
        saved.write_bytes(whole[:length])
        with pytest.raises(FormatError, match="truncated or damaged") as caught:
            load_policy(saved)
        assert "\n" not in str(caught.value)
    for length in (0, 5, 8):
        saved.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"truncated or damaged|not a safetensors file"):
            load_policy(saved)


def test_other_files(tmp_path):
    path = tmp_path / "other"
    for data in (b"Dear Sir or Madam, this is a letter.", b"\x80\x04\x95pickle" * 9, bytes(100)):
        path.write_bytes(data)
        with pytest.raises(FormatError, match="other: not a safetensors file"):
            load_policy(path)
    path.write_bytes(safetensors.numpy.save({"x": np.zeros(3)}))
    with pytest.raises(FormatError, match="holds no policy of regal_jax"):
        load_policy(path)
    with pytest.raises(FileNotFoundError):
        load_policy(tmp_path / "nowhere")


def without(tensors, _):
    del tensors["first.kernel"]


def surplus(tensors, _):
    tensors["third.kernel"] = np.zeros(3, np.float32)


def reshaped(tensors, _):
    tensors["first.bias"] = np.zeros((3, 5), np.float32)


def retyped(tensors, _):
    tensors["first.bias"] = tensors["first.bias"].astype(np.float64)


def infinite(tensors, _):
    tensors["first.bias"][0, 0] = np.inf


def newer(_, metadata):
    metadata["version"] = "99"


def unreadable(_, metadata):
    metadata["config"] = "{"


def listed(_, metadata):
    metadata["config"] = "[1]"


def unknown_field(_, metadata):
    metadata["config"] = json.dumps({**json.loads(metadata["config"]), "colour": "red"})


def impossible(_, metadata):
    metadata["config"] = json.dumps({**json.loads(metadata["config"]), "width": -1})


def wider(_, metadata):
    metadata["config"] = json.dumps({**json.loads(metadata["config"]), "width": 5})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without, "weights 'first.kernel' are missing"),
        (surplus, "weights 'third.kernel' are not a part of this policy"),
        (reshaped, r"weights 'first.bias' are float32 \(3, 5\), expected float32 \(3, 4\)"),
        (retyped, r"weights 'first.bias' are float64 \(3, 4\), expected float32"),
        (infinite, "weights 'first.bias' are not finite"),
        (newer, f"format version '99', this release reads '{VERSION}'"),
        (unreadable, "metadata 'config'"),
        (listed, "metadata 'config'"),
        (unknown_field, "metadata 'config': .*colour"),
        (impossible, "metadata 'config': policy: width is -1"),
        (wider, "does not fit its own config"),
    ],
)
def test_damage_is_named_in_one_line(saved, change, message):
    rewrite(saved, change)
    with pytest.raises(FormatError, match=message) as caught:
        load_policy(saved)
    assert "\n" not in str(caught.value)
    assert str(saved) in str(caught.value)


def test_what_cannot_be_saved(tmp_path):
    policy = weighted(SMALL)
    path = tmp_path / "policy"
    for metadata in ({"config": "mine"}, {"seed": 7}):
        with pytest.raises(ConfigError, match="give texts, under names other than format, version, config"):
            save_policy(path, policy, metadata)
    with pytest.raises(ConfigError, match="give a path, then a Policy"):
        save_policy(policy, path)
    policy.hidden.bias[...] = jnp.full_like(policy.hidden.bias[...], np.nan)
    with pytest.raises(ConfigError, match=r"weights 'hidden.bias' are not finite"):
        save_policy(path, policy)
    assert not path.exists()

"""Tests of weights files: round trips, and errors of one line."""

import json
import pathlib

import chex
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from policy_cases import BEFORE, chain, four_bins, randomised

import regal_jax.policies
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import Cluster
from regal_jax.learning import TrainConfig
from regal_jax.policies import (
    Network,
    Policy,
    PolicyConfig,
    load_policy,
    make_inputs,
    read_metadata,
    save_policy,
)
from regal_jax.policies.conversion import EARLIER, main, translated
from regal_jax.policies.weights import VERSION

SMALL = four_bins(width=4, rounds=1)


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
        four_bins(num_devices=3, network=Network.SEQUENCE, width=4, features="plain"),
        four_bins(num_devices=1, width=4, rounds=3, share_rounds=True, means=(0.5,), variances=(0.01, 0.05)),
        four_bins(alphas=(1, 2, 5), betas=(1, 2, 5, 20), width=4, rounds=0, uniform=False, priority_bias=0.5),
        PolicyConfig(width=4, objective="peak-memory"),
    ],
)
def test_what_was_saved_comes_back(tmp_path, config):
    path = tmp_path / "a policy"
    policy = weighted(config)
    save_policy(path, policy, {"data": "synthetic", "seed": "7"})
    loaded = load_policy(path, num_devices=config.num_devices)
    assert loaded.config == config
    x = make_inputs([chain(5)], Cluster.uniform(config.num_devices, transfer="blocking"), None, config)
    call = nnx.jit(lambda policy, x: policy(*x))
    chex.assert_trees_all_equal(call(loaded, x), call(policy, x))
    chex.assert_trees_all_equal(nnx.state(loaded), nnx.state(policy))
    assert read_metadata(path) == {"data": "synthetic", "seed": "7"}
    assert [p.name for p in tmp_path.iterdir()] == ["a policy"]


def test_loaded_policy_can_be_trained_and_saved_again(saved, tmp_path):
    policy = load_policy(saved)
    x = make_inputs([chain(5)], Cluster.uniform(2, transfer="blocking"), None, SMALL)
    gradient = nnx.jit(nnx.grad(lambda policy: (policy(*x).means ** 2).mean()))(policy)
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
    for none in ("a\0b", None):
        with pytest.raises(FormatError, match=r"such a name|name of a file, got NoneType"):
            load_policy(none)


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


def unknown_ablation(_, metadata):
    config = json.loads(metadata["config"])
    metadata["config"] = json.dumps({**config, "ablation": {**config["ablation"], "colour": "red"}})


def without_ablation(_, metadata):
    config = json.loads(metadata["config"])
    del config["ablation"]
    metadata["config"] = json.dumps(config)


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
        (newer, f"format version '99', this release reads '{VERSION}' and '{EARLIER}'"),
        (unreadable, "metadata 'config'"),
        (listed, "metadata 'config'"),
        (unknown_field, "metadata 'config': .*colour"),
        (unknown_ablation, "metadata 'config': .*colour"),
        (without_ablation, "metadata 'config': .*ablation"),
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


# Files of version 5 ---------------------------------------------------------------------------------

BINS = {"means": (0.2, 0.4, 0.6, 0.8), "variances": (0.1, 0.01), "rounds": 1, "width": 4}
SCHEDULED = {"features": "scheduled", "order": "schedule", "order_gain": 0.5, "reach": 4}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, four_bins(**BINS)),
        ({"cuts": ["fine", "along"]}, four_bins(placements=("fine", "along"), **BINS)),
        ({"cuts": []}, four_bins(prior="none", placement_scale=0.0, transfers=None, **BINS)),
        (
            {"features": "plain"},
            four_bins(prior="none", placement_scale=0.0, transfers=None, features="plain", **BINS),
        ),
        (
            {"order_gain": 0.5, "reach": 3, "transfers": "midway"},
            four_bins(order_scale=0.5, reach=3, transfers=None, **BINS),
        ),
        ({"balance": "bytes"}, four_bins(objective="peak-memory", **BINS)),
        (
            {**SCHEDULED, "cuts": ["across", "fine", "schedule"], "transfers": "schedule"},
            four_bins(prior="schedule", order_scale=0.5, transfers=None, reach=4, **BINS),
        ),
        (
            {"features": "ordered", "cuts": ["peaks-one"], "uniform": False, "transfers": "reader-there"},
            four_bins(prior="memory", placements=("peaks-one",), uniform=False, transfers=None, **BINS),
        ),
        (
            {"parametrisation": "alpha-beta", "first": [1, 2], "second": [3.5], "share_rounds": True},
            four_bins(
                alphas=(1, 2), betas=(3.5,), share_rounds=True, rounds=1, width=4,
                means=PolicyConfig().means, variances=PolicyConfig().variances,
            ),
        ),
    ],
)  # fmt: skip
def test_configs_of_version_5_mean_what_they_meant(change, expected):
    assert translated({**BEFORE, **change}) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {**SCHEDULED, "order": "levels"},
            "an order by 'levels' with 'scheduled' features; train the policy",
        ),
        ({"features": "all"}, "features is 'all'; version 5 knows own, plain"),
        ({"balance": "time"}, "balance is 'time'; version 5 knows work, bytes"),
        ({"width": -1}, "width is -1"),
        ({"colour": "red"}, "colour missing or unknown in a config of version 5"),
    ],
)
def test_configs_of_version_5_that_mean_nothing(change, message):
    with pytest.raises(ConfigError, match=message):
        translated({**BEFORE, **change})


def test_a_file_of_version_5_is_read_and_rewritten(tmp_path, capsys):
    path = tmp_path / "policy.safetensors"
    policy = weighted(translated(BEFORE))
    save_policy(path, policy, {"training": json.dumps({"seed": 3, "policy": BEFORE}), "step": "7"})

    def older(_, metadata):
        metadata["version"], metadata["config"] = EARLIER, json.dumps(BEFORE)

    rewrite(path, older)
    loaded = load_policy(path)
    assert loaded.config == policy.config
    chex.assert_trees_all_equal(nnx.state(loaded), nnx.state(policy))
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata()["version"] == VERSION
    chex.assert_trees_all_equal(nnx.state(load_policy(path)), nnx.state(policy))
    metadata = read_metadata(path)
    assert metadata["step"] == "7"
    config = TrainConfig.from_document(json.loads(metadata["training"]))
    assert (config.seed, config.policy) == (3, policy.config)
    again = path.read_bytes()
    main([str(path)])  # A converted file is not changed.
    assert path.read_bytes() == again


@pytest.mark.parametrize("text", ["300 synthetic graphs", "[1]", '{"policy": 3}', '{"policy": {"width": 8}}'])
def test_the_conversion_keeps_texts_that_are_no_settings(tmp_path, text):
    path = tmp_path / "policy.safetensors"
    save_policy(path, weighted(translated(BEFORE)), {"training": text})
    rewrite(path, lambda _, metadata: metadata.update(version=EARLIER, config=json.dumps(BEFORE)))
    assert main([str(path)]) == 0
    assert read_metadata(path)["training"] == text


def test_the_conversion_leaves_other_files_alone_and_names_them_in_one_line(tmp_path, capsys):
    shipped = pathlib.Path(regal_jax.policies.__file__).parent / "trained/regal-primed/makespan-2.safetensors"
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(shipped.read_bytes())
    assert main([str(copy)]) == 0
    assert copy.read_bytes() == shipped.read_bytes()
    other = tmp_path / "other.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(1, np.float32)}, other)
    for arguments, message in (
        ([str(other)], "other.safetensors: holds no policy of regal_jax"),
        ([str(tmp_path / "none")], "No such file"),
        ([], "FILE: give the weights files"),
    ):
        capsys.readouterr()
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("regal_jax.policies.conversion: error: ")
        assert message in err
    for option, code in (("--help", 0), ("--none", 2)):
        with pytest.raises(SystemExit) as ended:
            main([option])
        assert ended.value.code == code
        assert "usage: python -m regal_jax.policies.conversion [-h] [FILE ...]" in "".join(
            capsys.readouterr()
        )

"""Training that begins with weights of another run."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from policy_cases import four_bins

from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, FormatError
from regal_jax.gflownet import GflownetConfig, SchedulePolicy, save_gflownet
from regal_jax.learning import train
from regal_jax.learning.config import TrainConfig
from regal_jax.learning.share import GraphShare
from regal_jax.learning.step import Learner
from regal_jax.policies import Policy, save_policy

POLICY = four_bins(width=4, rounds=0)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "first.safetensors"
    save_policy(path, Policy(POLICY, rngs=nnx.Rngs(7)))
    return path


def test_the_first_state_has_the_given_weights(file):
    config = TrainConfig(start=str(file), policy=POLICY)
    given, fresh = (Learner(c).init() for c in (config, dataclasses.replace(config, start="")))
    expected = nnx.state(Policy(POLICY, rngs=nnx.Rngs(7)))
    jax.tree.map(np.testing.assert_array_equal, given.policy, expected)
    same = jax.tree.map(np.array_equal, given.policy, fresh.policy)
    assert not all(jax.tree.leaves(same))
    # Only the weights come from the file.
    jax.tree.map(np.testing.assert_array_equal, given.policy_optimizer, fresh.policy_optimizer)
    assert int(given.step) == 0


def test_weights_of_another_network_are_refused(file):
    config = TrainConfig(start=str(file), policy=dataclasses.replace(POLICY, width=8))
    with pytest.raises(ConfigError, match=r"start: .*first.safetensors has width = 4, the config 8; make"):
        Learner(config).init()
    scaled = dataclasses.replace(POLICY.ablation, placement_scale=9.0)
    config = TrainConfig(start=str(file), policy=dataclasses.replace(POLICY, ablation=scaled))
    with pytest.raises(ConfigError, match=r"has ablation\.placement_scale = 3\.0, the config 9\.0; make"):
        Learner(config).init()
    config = TrainConfig(start=str(file), policy=dataclasses.replace(POLICY, num_devices=3))
    with pytest.raises(ConfigError, match="for 2 devices, not for 3"):
        Learner(config).init()


def test_a_folder_is_not_taken_by_a_run_whose_start_does_not_fit(file, tmp_path):
    """References of all graphs, which take hours, come after the check, and the folder stays free."""
    schedules = tmp_path / "schedules.safetensors"
    small = GflownetConfig(devices=2, layers=1, width=8, head_width=4)
    save_gflownet(schedules, SchedulePolicy(small, rngs=nnx.Rngs(0)))
    graphs = [generate("chain", 3, seed=0)]
    for start, policy, error in (
        (file, dataclasses.replace(POLICY, num_devices=3), ConfigError),
        (file, dataclasses.replace(POLICY, width=8), ConfigError),
        (schedules, POLICY, FormatError),
    ):
        config = TrainConfig(start=str(start), policy=policy)
        with pytest.raises(error, match=start.name):
            train(config, graphs, graphs, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("graphs", [None, 3, iter(()), [1]])
def test_what_is_no_list_of_graphs_is_refused(graphs):
    with pytest.raises(ConfigError, match="train: graphs: give a list of graphs, "):
        GraphShare.of(graphs)

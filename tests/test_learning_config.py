"""Settings of a training run: read, written, and refused in one line that names the setting."""

import dataclasses
import importlib.resources
import json
import math
import pathlib
import tomllib

import numpy as np
import pytest
from learning_cases import GRAPHS, HELD_OUT

from regal_jax.errors import ConfigError, FormatError
from regal_jax.learning import Baseline, DataConfig, OptimizerConfig, TaskConfig, TrainConfig, train
from regal_jax.learning.gflownet import GflownetDataConfig, GflownetTrainConfig, train_gflownet
from regal_jax.learning.insertion import InsertionDataConfig, InsertionTrainConfig, train_insertion
from regal_jax.learning.ordering import OrderDataConfig, OrderOptimizerConfig, OrderTrainConfig, train_orders
from regal_jax.plan import Objective
from regal_jax.policies import (
    SHIPPED,
    Ablation,
    Network,
    PolicyConfig,
    Transfers,
    is_shipped,
    read_metadata,
    shipped_policy,
)
from regal_jax.search import BrkgaConfig
from regal_jax.storage.documents import parse_json

TOML = """
seed = 3
[task]
objective = "peak-memory"
memory = "16GiB"
transfer = "delay:latency=5us,bandwidth=50GB/s"
evaluations = 200
[data]
train = "sets/train"
validation = "sets/validation"
noise = 0
[policy]
num_devices = 3
network = "sequence"
means = [0.25, 0.75]
variances = [0.08, 0.01, 0.001]
[policy.ablation]
placements = []
transfers = "reader"
uniform = true
[search]
population = 20
elites = 5
mutants = 4
bias = "linear"
parents = 3
restart_after = 50
[optimizer]
learning_rate = 1
baseline = "learned"
samples = 1
"""


def test_a_file_is_what_it_says(tmp_path):
    (tmp_path / "run.toml").write_text(TOML)
    config = TrainConfig.load(tmp_path / "run.toml")
    assert config == TrainConfig(
        seed=3,
        task=TaskConfig(Objective.PEAK_MEMORY, "16GiB", "delay:latency=5us,bandwidth=50GB/s", 200),
        data=DataConfig("sets/train", "sets/validation", noise=0.0),
        policy=PolicyConfig(
            3,
            Objective.PEAK_MEMORY,
            network=Network.SEQUENCE,
            means=(0.25, 0.75),
            variances=(0.08, 0.01, 0.001),
            ablation=Ablation(placements=(), transfers=Transfers.READER, uniform=True),
        ),
        search=BrkgaConfig(20, 5, 4, bias="linear", parents=3, restart_after=50),
        optimizer=OptimizerConfig(learning_rate=1.0, baseline=Baseline.LEARNED, samples=1),
    )
    assert isinstance(config.optimizer.learning_rate, float)
    cluster = config.task.cluster(3)
    assert (cluster.num_devices, cluster.memory[0], cluster.transfer) == (3, 2.0**34, "delay")


def test_the_policy_is_for_the_task():
    config = TrainConfig.from_document({"task": {"objective": "peak-memory"}, "policy": {"width": 4}})
    assert (config.policy.objective, config.policy.prior) == (Objective.PEAK_MEMORY, "memory")
    assert config.policy == PolicyConfig(objective=Objective.PEAK_MEMORY, width=4)
    with pytest.raises(ConfigError, match=r"policy\.objective: is 'makespan', but task\.objective is"):
        TrainConfig(task=TaskConfig(Objective.PEAK_MEMORY))


@pytest.mark.parametrize(
    ("objective", "devices", "name"),
    [(o, d, name) for name in SHIPPED for o in Objective for d in range(1, 17) if is_shipped(o, d, name)],
)
def test_the_settings_beside_the_weights_are_those_that_they_were_trained_with(objective, devices, name):
    folder = importlib.resources.files("regal_jax.policies") / "trained" / name
    config = TrainConfig.load(str(folder / f"{objective}-{devices}.toml"))
    assert config.policy == shipped_policy(name, objective, devices).config
    assert config.policy.num_devices == devices
    training = json.loads(read_metadata(str(folder / f"{objective}-{devices}.safetensors"))["training"])
    assert TrainConfig.from_document(training) == config


def test_nothing_given_is_every_default():
    assert TrainConfig.from_document({}) == TrainConfig()


@pytest.mark.parametrize("system", [TrainConfig, OrderTrainConfig, GflownetTrainConfig])
def test_rates_that_cannot_train_are_refused(system):
    for rate in (1e300, 10.1, 1e-300, 1e-40, math.inf):
        with pytest.raises(
            ConfigError, match=r"^optimizer.learning_rate: is .*; give a number above 0 and at most 10"
        ):
            system.from_document({"optimizer": {"learning_rate": rate}})
    for rate in (10, 1e-6):
        assert system.from_document({"optimizer": {"learning_rate": rate}}).optimizer.learning_rate == rate
    with pytest.raises(ConfigError, match=r"^optimizer.clip: is 1e\+39"):
        system.from_document({"optimizer": {"clip": 1e39}})


@pytest.mark.parametrize("system", [OrderTrainConfig, GflownetTrainConfig])
def test_a_factor_that_raises_the_rate_is_refused(system):
    with pytest.raises(ConfigError, match=r"^optimizer.decay: is 1.1; give a number above 0 and at most 1,"):
        system.from_document({"optimizer": {"decay": 1.1}})
    assert system.from_document({"optimizer": {"decay": 1}}).optimizer.decay == 1


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(),
        TrainConfig.from_document(tomllib.loads(TOML)),
        TrainConfig(optimizer=OptimizerConfig(worst=math.inf)),
        *(TrainConfig(task=TaskConfig(memory=memory)) for memory in (math.inf, 2**34, 1.5e9, np.int64(7))),
    ],
)
def test_a_config_survives_its_document(config):
    document = config.as_document()
    assert TrainConfig.from_document(document) == config
    assert parse_json(json.dumps(document)) == document
    assert hash(TrainConfig.from_document(document)) == hash(config)
    plain = (bool, int, float, str, list)
    tables = [table for table in document.values() if isinstance(table, dict)]
    tables.append(document["policy"].pop("ablation"))
    assert all(isinstance(value, plain) for table in tables for value in table.values())


def test_names_and_numbers_of_numpy_become_plain():
    """The name of a baseline is converted to the enumeration."""
    config = OptimizerConfig(baseline="learned", steps=np.int64(5))
    assert config.baseline is Baseline.LEARNED
    assert type(config.steps) is int
    assert type(OptimizerConfig(clip=np.float32(0.5)).clip) is float
    assert TaskConfig(objective="peak-memory").objective is Objective.PEAK_MEMORY


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("optimizer", {"step": 1}, "optimizer.step: there is no such setting; use one of steps, batch,"),
        ("optimizer", {"steps": 0}, "optimizer.steps: is 0; give a whole number from 1"),
        ("optimizer", {"steps": 1.5}, "optimizer.steps: is 1.5; give a whole number"),
        ("optimizer", {"steps": True}, "optimizer.steps: is True; give a whole number"),
        ("optimizer", {"steps": 2**31}, "optimizer.steps: is 2147483648; give a whole number from 1 to"),
        ("optimizer", {"learning_rate": "fast"}, "optimizer.learning_rate: is 'fast'; give a number"),
        ("optimizer", {"learning_rate": 0}, "optimizer.learning_rate: is 0.0; give a number above 0"),
        ("optimizer", {"clip": 10**400}, "optimizer.clip: is 1000"),
        ("optimizer", {"clip": 10**5000}, "optimizer.clip: is a whole number of 16610 bits; give a number"),
        ("optimizer", {"baseline": 10**5000}, "optimizer.baseline: is a whole number of 16610 bits; give a"),
        ("optimizer", {"clip": float("nan")}, "optimizer.clip: is nan; give a number above 0"),
        ("optimizer", {"entropy": -1}, "optimizer.entropy: is -1.0; give a number of at least 0"),
        ("optimizer", {"worst": 1.0}, "optimizer.worst: is 1.0; give a number above 1"),
        ("optimizer", {"samples": 1}, "optimizer.samples: is 1, but the baseline leave-one-out needs at"),
        ("optimizer", {"baseline": "none"}, "optimizer.baseline: is 'none'; use one of leave-one-out,"),
        ("optimizer", {"baseline": 3}, "optimizer.baseline: is 3; give a text"),
        ("task", {"objective": "speed"}, "task.objective: is 'speed'; use one of makespan"),
        ("task", {"objective": np.arange(2)}, "task.objective: is array([0, 1]); give a text"),
        ("task", {"memory": "much"}, "task.memory, task.transfer: memory[0]"),
        ("task", {"memory": -1}, "task.memory, task.transfer: memory[0]: must be zero or more, got -1"),
        ("task", {"memory": 10**5000}, "task.memory, task.transfer: memory[0]: expected a number, got"),
        ("task", {"memory": True}, "task.memory: is True; give a text or a number"),
        ("task", {"capacity": -1}, "task.capacity: is -1"),
        ("task", {"memory": "1GiB", "capacity": 1.2}, "task.memory, task.capacity: are '1GiB' and 1.2"),
        ("task", {"transfer": "teleport"}, "task.memory, task.transfer: transfer: cannot read 'teleport'"),
        ("task", {"transfer": "delay:speed=3"}, "task.memory, task.transfer: transfer 'delay:speed=3'"),
        ("task", {"evaluations": 0}, "task.evaluations: is 0; give a whole number from 1"),
        ("task", {"encoding": "x"}, "task.encoding: is 'x'; use one of chromosome, schedule"),
        ("task", {"encoding": ["schedule"]}, "task.encoding: is ['schedule']; give a text"),
        ("data", {"contract": True}, "data.contract: is True; give a text"),
        ("data", {"contract": "yes"}, "data.contract: is 'yes'; use one of no, only, both"),
        ("data", {"min_parallelism": -1}, "data.min_parallelism: is -1.0; give a number of at least 0"),
        ("policy", {"guided_share": 0}, "[policy] policy: guided_share is 0.0; give a number from"),
        ("policy", {"uniform": True}, "policy.uniform: there is no such setting; use one of num_devices,"),
        ("policy", {"prior": "best"}, "[policy] policy: prior is 'best'; use one of none, levels, schedule,"),
        ("policy", {"prior": 3}, "policy.prior: is 3; give a text"),
        ("policy", {"reach": "far"}, "policy.reach: is 'far'; give a whole number"),
        ("policy", {"ablation": 3}, "policy.ablation: is 3; give a table of settings"),
        ("policy", {"ablation": {"uniform": 1}}, "policy.ablation.uniform: is 1; give true or false"),
        ("policy", {"ablation": {"placements": "up"}}, "policy.ablation.placements: is 'up'; give a list"),
        ("policy", {"ablation": {"placements": ["up"]}}, "[policy.ablation] ablation: placements is 'up';"),
        ("policy", {"ablation": {"transfers": 3}}, "policy.ablation.transfers: is 3; give a text"),
        ("policy", {"objective": "peak-memory"}, "policy.objective: is 'peak-memory', but task.objective is"),
        ("data", {"noise": -0.1}, "data.noise: is -0.1; give a number of at least 0"),
        ("data", {"noise": 10.5}, "data.noise: is 10.5; give a number from 0 to 10"),
        ("data", {"train": ["a", 3]}, "data.train: is ['a', 3]; give a text, or a list of texts"),
        ("policy", {"num_devices": 0}, "[policy] policy: num_devices is 0; give a whole number from 1"),
        ("policy", {"means": 0.5}, "policy.means: is 0.5; give a list"),
        ("policy", {"means": [0.5, 1.5]}, "[policy] policy: means has a bin 1.5; give numbers between"),
        ("policy", {"network": "cnn"}, "[policy] policy: network is 'cnn'; use one of gnn, sequence"),
        ("search", {"elites": 100}, "[search] BrkgaConfig: elites is 100, which leaves no newcomers"),
        ("search", {"restart_after": "never"}, "search.restart_after: is 'never'; give a whole number"),
        ("search", {"bias": "odd"}, "[search] BrkgaConfig: bias is 'odd'; use one of"),
        ("learning", {}, "learning: there is no such setting; use one of seed, start, task,"),
        ("task", 3, "task: is 3; give a table of settings"),
        ("seed", -1, "seed: is -1; give a whole number from 0"),
        ("seed", "lucky", "seed: is 'lucky'; give a whole number"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(section, values, said):
    with pytest.raises(ConfigError) as error:
        TrainConfig.from_document({section: values})
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_the_advice_for_one_action_per_graph_names_a_setting():
    with pytest.raises(ConfigError, match=r'raise it, or set optimizer\.baseline = "learned"$'):
        TrainConfig.from_document({"optimizer": {"samples": 1}})
    learned = TrainConfig.from_document({"optimizer": {"samples": 1, "baseline": "learned"}})
    assert learned.optimizer.baseline is Baseline.LEARNED


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        TrainConfig.load(tmp_path / "absent.toml")
    for content in (b"steps = ", b"\xff\xfe"):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"bad\.toml: cannot be read as TOML"):
            TrainConfig.load(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("memory", "text"),
    [(2**34, "17179869184"), (2.0**34, "17179869184"), (math.inf, "inf"), ("16GB", "16GB")],
)
def test_a_number_of_bytes_becomes_a_text(memory, text):
    config = TrainConfig.from_document({"task": {"memory": memory}})
    assert config.task.memory == TaskConfig(memory=memory).memory == text
    assert TrainConfig.from_document(config.as_document()) == config


def test_python_gets_the_same_answers():
    for make, said in (
        (lambda: OptimizerConfig(steps=2.5), "optimizer.steps"),
        (lambda: OptimizerConfig(clip="1"), "optimizer.clip"),
        (lambda: OptimizerConfig(baseline=np.arange(2)), r"optimizer.baseline: is array\(\[0, 1\]\); use"),
        (lambda: OptimizerConfig(worst=np.arange(2)), r"optimizer.worst: is array\(\[0, 1\]\); give a"),
        (lambda: PolicyConfig(network=np.arange(2)), r"policy: network is array\(\[0, 1\]\); use one"),
        (lambda: OptimizerConfig(entropy=-(10**5000)), "optimizer.entropy: is a whole number of 16610 bits"),
        (lambda: TaskConfig(encoding={}), "task.encoding: is {}; use one of chromosome, schedule"),
        (lambda: TaskConfig(transfer=None), "task.transfer: give a str, got NoneType"),
        (lambda: TaskConfig(memory=None), "task.memory: give a str, got NoneType"),
        (lambda: TaskConfig(memory=-1), "task.memory, task.transfer: .*must be zero or more"),
        (lambda: TaskConfig(memory=100, capacity=1.2), "task.memory, task.capacity: are '100' and 1.2"),
        (lambda: OrderOptimizerConfig(standardise="no"), "optimizer: standardise is 'no'; give true or"),
        (lambda: TrainConfig(policy=5), "policy: give a PolicyConfig, got int"),
        (lambda: TrainConfig.from_document([]), r"settings: is \[\]; give a table of settings"),
        (lambda: dataclasses.replace(TrainConfig(), seed=-1), "seed"),
    ):
        with pytest.raises(ConfigError, match=f"^{said}"):
            make()


@pytest.mark.parametrize(
    ("config", "data"),
    [
        (TrainConfig, DataConfig),
        (OrderTrainConfig, OrderDataConfig),
        (GflownetTrainConfig, GflownetDataConfig),
        (InsertionTrainConfig, InsertionDataConfig),
    ],
)
def test_sets_are_texts_and_tables_are_settings(config, data):
    for given in (3, None, [3], [["a"]], {"a": 1}):
        with pytest.raises(ConfigError, match=r"^data\.train: is .*; give a text, or a list of texts$"):
            data(train=given)
    for given in ([""], ["a", ""], ("",)):
        with pytest.raises(ConfigError, match=r"^data\.train: is .*, with an empty text; leave it out$"):
            data(train=given)
    assert data(train="").train == ()
    assert data(train="a").train == data(train=pathlib.Path("a")).train == data(train=["a"]).train == ("a",)
    with pytest.raises(ConfigError, match=f"^data: give an? {data.__name__}, got int$"):
        config(data=5)


@pytest.mark.parametrize("config", [TrainConfig, OrderTrainConfig, GflownetTrainConfig])
def test_a_start_is_the_path_of_a_file(config):
    assert config(start=pathlib.Path("a")) == config(start="a")
    for given in (None, 3, b"a", ["a"]):
        with pytest.raises(ConfigError, match=r"^start: is .*; give the path of a file, or leave it out$"):
            config(start=given)


@pytest.mark.parametrize(
    ("run", "config"),
    [
        (lambda *given: train(given[0], GRAPHS, HELD_OUT, given[1]), TrainConfig()),
        (train_orders, OrderTrainConfig()),
        (train_gflownet, GflownetTrainConfig()),
        (train_insertion, InsertionTrainConfig(data=InsertionDataConfig(families=("layered",)))),
    ],
    ids=["regal", "topoformer", "gflownet", "insertion"],
)
def test_a_run_has_a_folder_with_a_name(run, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out, said in (("", "'' names no folder"), (3, "got int"), ("a\0", "no file can have such a name")):
        with pytest.raises(FormatError, match=said):
            run(config, out)
    assert not list(tmp_path.iterdir())

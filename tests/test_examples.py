"""Every example is a valid graph of the model that it names."""

import functools
import gzip
import subprocess
import sys

import jax
import numpy as np
import pytest

from regal_jax.errors import ConfigError
from regal_jax.examples import DEFAULT_EXAMPLE, EXAMPLES, kept, kept_example, load_example
from regal_jax.examples.registry import Example
from regal_jax.graph import Cluster
from regal_jax.plan import Objective, Plan, insert_transfers, lower_bound

# Parameters of the model without optimiser state, and the operations of its products: by hand, or from
# the publications (ResNet-50: 25.6 M; GPT-2 small: 124.4 M; U-Net: 31.0 M).
PARAMETERS = {
    "mlp": 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10,
    "resnet50": 25_557_032,
    "gpt2-small": 124_439_808,
    "unet": 31_030_658,
    # Two cells of (650 + 650 + 1) x 4 x 650, an embedding and a head.
    "lstm-lm": 2 * 1301 * 2600 + 10000 * 650 + 651 * 10000,
}


# By default, "moe-small" has the blocks of "moe" and of "gpt2-small", fewer and narrower ones, and "unet" has
# convolutions.
LARGE = ("moe", "gpt2-small", "resnet50")
every_example = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in EXAMPLES]
)
BUILD = Example.build


class Graphs(dict):
    """The graph of each example, made when it is first needed."""

    def __missing__(self, name):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Example, "build", built)
            # As the command loads them, so that tests in other processes need not trace them again.
            self[name] = kept_example(name)
        return self[name]


@pytest.fixture(scope="module")
def graphs():
    return Graphs()


@functools.cache
def built(example, batch_size=None):
    """The training step, which takes a trace."""
    return BUILD(example, batch_size)


@functools.cache
def leaves_of(name):
    """The abstract parameters of an example, and these with all other leaves that stay on the devices."""
    step = built(EXAMPLES[name], None)
    return jax.tree.leaves(step.args[0]), jax.tree.leaves(step.args[:3])


@every_example
def test_resident_bytes_are_those_of_the_abstract_leaves(graphs, name):
    graph, (parameters, leaves) = graphs[name], leaves_of(name)
    resident = [graph.op_kinds[o] == "parameter" for o in graph.tensor_op]
    assert graph.tensor_bytes[resident].sum() == sum(x.size * x.dtype.itemsize for x in leaves)
    if name in PARAMETERS:
        assert sum(x.size for x in parameters) == PARAMETERS[name]


@every_example
def test_it_runs_on_one_device_and_has_something_to_place_on_two(graphs, name):
    graph = graphs[name]
    placement = np.zeros(graph.num_ops, dtype=int)
    one = Cluster.uniform(1)
    order = insert_transfers(graph, one, placement, np.arange(graph.num_ops))
    plan = Plan.from_events(graph, one, placement, order)
    assert plan.makespan > 0
    assert (
        lower_bound(graph, Cluster.uniform(2, transfer="blocking"), Objective.MAKESPAN) < 0.7 * plan.makespan
    )
    # Parameters and optimiser state are donated, and results of the same size replace them.
    resident = sum(x.size * x.dtype.itemsize for x in leaves_of(name)[1])
    assert plan.peak_memory[0] > resident
    assert plan.timeline.memory_bytes[0][-1] - graph.tensor_bytes[graph.tensor_keep].sum() == 0
    assert abs(int(plan.timeline.memory_bytes[0][-1]) - resident) < 0.1 * resident + 2**21


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        # One product forward and two backward per layer; the images need no gradient.
        ("mlp", "dot_general", 3 * 3 - 1),
        pytest.param("resnet50", "conv_general_dilated", 3 * 53 - 1, marks=pytest.mark.slow),
        ("unet", "conv_general_dilated", 3 * 23 - 1),
        # A block has 4 projections, 2 attention products, 2 feed-forward products; one head.
        pytest.param("gpt2-small", "dot_general", 3 * (12 * 8 + 1), marks=pytest.mark.slow),
    ],
)
def test_the_number_of_products_is_that_of_the_architecture(graphs, name, kind, count):
    assert graphs[name].op_kinds.count(kind) == count


def test_layers_can_be_recognised(graphs):
    names = graphs[DEFAULT_EXAMPLE].op_index
    assert "GPT/block0/experts/expert3_expand/dot_general" in names
    assert "backward/GPT/block0/experts/expert3_expand/dot_general" in names
    assert "params/block0/experts/expert3_expand/kernel" in names


def test_sizes_of_the_first_ones(graphs):
    assert graphs["mlp"].num_ops < 300
    assert graphs[DEFAULT_EXAMPLE].num_ops < 2000
    assert graphs["lstm-lm"].op_kinds.count("tanh") == 2 * 2 * 35  # Unrolled: no scan.
    assert "scan" not in graphs["lstm-lm"].op_kinds


def test_batch_size_and_profile():
    small, large = (load_example("mlp", batch_size=b, profile=("h200", "cpu")) for b in (1, 64))
    sizes = [int(g.tensor_bytes[g.output_offset[g.op_index["inputs"]]]) for g in (small, large)]
    assert sizes == [784 * 4, 64 * 784 * 4]
    assert large.runtime.shape == (large.num_ops, 2)
    assert (large.runtime[:, 1].sum()) > large.runtime[:, 0].sum() / 4


def test_unknown_names_and_batch_sizes_are_refused():
    with pytest.raises(ConfigError, match=r"no 'vgg'; use one of mlp, moe-small, .*lstm-lm"):
        load_example("vgg")
    for batch_size in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match=f"batch_size {batch_size} must be a whole number above 0"):
            load_example("mlp", batch_size=batch_size)


@pytest.mark.slow
def test_flax_and_optax_wait_until_an_example_is_built():
    code = "import sys, regal_jax.examples; sys.exit(bool({'flax', 'optax'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_keeps_graphs_of_examples(tmp_path, monkeypatch):
    monkeypatch.setenv("REGAL_JAX_CACHE", str(tmp_path))
    graph = kept_example("mlp")
    (file,) = tmp_path.glob("*/example-*.json.gz")
    traced = []
    monkeypatch.setattr(
        kept, "load_example", lambda *args, **more: traced.append(0) or load_example(*args, **more)
    )
    again = kept_example("mlp")
    assert (again.name, again.content_hash, again.op_kinds) == (
        graph.name,
        graph.content_hash,
        graph.op_kinds,
    )
    assert not traced
    # Another profile, changed source and a damaged file each cause a new trace.
    assert kept_example("mlp", profile="a100").content_hash != graph.content_hash
    monkeypatch.setattr(kept, "_source", lambda: "changed")
    assert kept_example("mlp").content_hash == graph.content_hash
    assert len(traced) == 2
    monkeypatch.undo()
    monkeypatch.setenv("REGAL_JAX_CACHE", str(tmp_path))
    for damage in (b"", b"{}", file.read_bytes()[:-20], gzip.compress(b"{}")):
        file.write_bytes(damage)
        assert kept_example("mlp").content_hash == graph.content_hash
        assert len(file.read_bytes()) > 1000
    monkeypatch.setenv("REGAL_JAX_CACHE", "off")
    file.unlink()
    assert kept_example("mlp").content_hash == graph.content_hash
    assert not file.exists()

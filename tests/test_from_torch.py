"""`from_torch`: sizes, edges and costs by hand, views, several results, gradients, refusals."""

import dataclasses
import itertools
import logging
import subprocess
import sys
import types
from collections import Counter

import numpy as np
import pytest
import torch
from importer_cases import Count, op
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import regal_jax
from regal_jax.errors import ConfigError, FormatError, GraphError, MissingExtraError
from regal_jax.graph import Cluster
from regal_jax.importers import from_torch

FLOPS, BYTES = Count("flops"), Count("bytes")


def kept_ops(graph):
    """For each op, whether an output of it is kept."""
    bounds = graph.output_offset
    return [graph.tensor_keep[a:b].any() for a, b in itertools.pairwise(bounds)]


def kinds(graph):
    return [k for k in graph.op_kinds if k not in ("parameter", "input", "start")]


class Module(nn.Module):
    """``forward`` from a plain function."""

    def __init__(self, fn, **parts):
        super().__init__()
        self.fn = fn
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.fn(self, *args, **kwargs)


def module(fn, **parts):
    return Module(fn, **parts)


def mlp():
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False))


# Shapes of graphs -------------------------------------------------------------------------------


def test_a_small_perceptron_by_hand():
    graph = from_torch(mlp(), torch.empty(4, 3), profile=(FLOPS, BYTES))
    assert graph.name == "Sequential"
    assert graph.time_unit == "s"
    names = ("0.weight", "0.bias", "2.weight", "input", "start", "0/linear", "1/relu", "2/linear")
    assert graph.op_names == names
    assert np.flatnonzero(graph.resident).tolist() == [0, 1, 2, 3]
    nothing = {"inputs": [], "after": [], "temp": 0, "runtime": [0, 0]}
    for name, size, group in (
        ("0.weight", 60, "0/linear"),
        ("0.bias", 20, "0/linear"),
        ("2.weight", 40, "2/linear"),
    ):
        assert op(graph, name) == {
            "kind": "parameter", "sizes": [size], "keep": [True], "group": group, "devices": None, **nothing,
        }  # fmt: skip
    assert op(graph, "input") == {
        "kind": "input", "sizes": [48], "keep": [True], "group": None, "devices": (0,), **nothing,
    }  # fmt: skip
    assert op(graph, "start")["after"] == list(names[:4])
    # 4 rows, 5 columns, 3 multiply-adds each; reads 48 + 60 + 20 bytes and writes 80.
    assert op(graph, "0/linear") == {
        "kind": "aten.linear", "inputs": ["0.weight:0", "0.bias:0", "input:0"], "after": ["start"],
        "sizes": [80], "keep": [False], "temp": 0, "runtime": [2 * 4 * 5 * 3, 208], "group": "0/linear",
        "devices": None,
    }  # fmt: skip
    assert op(graph, "1/relu") == {
        "kind": "aten.relu", "inputs": ["0/linear:0"], "after": [], "sizes": [80], "keep": [False],
        "temp": 0, "runtime": [20, 160], "group": None, "devices": None,
    }  # fmt: skip
    assert op(graph, "2/linear") == {
        "kind": "aten.linear", "inputs": ["2.weight:0", "1/relu:0"], "after": [], "sizes": [32],
        "keep": [True], "temp": 0, "runtime": [2 * 4 * 2 * 5, 80 + 40 + 32], "group": "2/linear",
        "devices": None,
    }  # fmt: skip


def test_a_gradient_by_hand():
    graph = from_torch(mlp(), torch.empty(4, 3), form="gradient", profile=FLOPS)
    forward = ["aten.t", "aten.addmm", "aten.relu", "aten.t", "aten.mm", "aten.mean"]
    assert kinds(graph)[:6] == forward
    products = [n for n, k in zip(graph.op_names, graph.op_kinds, strict=True) if k == "aten.mm"]
    assert products[0] == "2/mm"
    # Weight and input gradient of the second layer, weight gradient alone of the first.
    sizes = [op(graph, name)["sizes"] for name in products[1:]]
    assert sorted(sizes) == [[40], [60], [80]]
    flops = {s[0]: op(graph, n)["runtime"] for n, s in zip(products[1:], sizes, strict=True)}
    assert flops == {40: 2 * 2 * 4 * 5, 60: 2 * 5 * 4 * 3, 80: 2 * 4 * 2 * 5}
    assert all(name.startswith("backward/") for name in products[1:])
    # Kept: the loss, the gradient of each parameter, and arrays that the caller holds.
    kept = [
        int(s)
        for s, t in zip(graph.tensor_bytes, range(graph.num_tensors), strict=True)
        if graph.tensor_keep[t] and graph.op_kinds[graph.tensor_op[t]] not in ("parameter", "input")
    ]
    assert sorted(kept) == [4, 20, 40, 60]


def test_a_training_step_adds_seven_ops_of_adam_for_each_parameter():
    x = torch.empty(4, 3)
    gradient = from_torch(mlp(), x, form="gradient")
    step = from_torch(mlp(), x, form="training-step")
    adam = [name for name, kind in zip(step.op_names, step.op_kinds, strict=True) if kind.startswith("aten")]
    adam = [name for name in adam if name.startswith("adam/")]
    assert len(adam) == 7 * 3
    assert len(kinds(step)) == len(kinds(gradient)) + 7 * 3
    assert op(step, "adam/m/0.weight")["sizes"] == [60]
    assert op(step, "adam/v/0.weight")["keep"] == [False]
    assert op(step, "0.weight")["keep"] == [False]
    assert op(step, "input")["keep"] == [True]
    held = from_torch(mlp(), x, form="training-step", donate_state=False)
    assert op(held, "0.weight")["keep"] == [True]


def test_a_loss_of_the_users_own():
    graph = from_torch(mlp(), torch.empty(4, 3), form="gradient", loss=lambda y: (y * y).sum())
    assert "aten.sum" in kinds(graph)
    assert "aten.mean" not in kinds(graph)


# A training step has a gradient.
def test_a_loss_that_computes_with_parameters_is_refused():
    net, x = nn.Linear(3, 2), torch.empty(4, 3)
    with pytest.raises(FormatError, match="computes with the parameter 'bias' of the module"):
        from_torch(net, x, form="gradient", loss=lambda y: y.sum() + net.bias.square().sum())
    # Shapes and types are no computation.
    mean = from_torch(net, x, form="gradient", loss=lambda y: y.sum().to(net.bias.dtype) / net.bias.numel())
    assert "aten.div" in kinds(mean)


@pytest.mark.parametrize("form", [pytest.param("gradient", marks=pytest.mark.slow), "training-step"])
def test_a_loss_may_close_over_tensors_on_any_device(form):
    def graph(device, labels):
        target, weight = torch.zeros(4, 2, device=device), torch.ones(2, device=device)
        classes, entropy = torch.zeros(4, dtype=torch.long, device=device), nn.CrossEntropyLoss(weight=weight)

        def loss(y):
            error = nn.functional.mse_loss(y, target.to(y.dtype)) + (y - target.reshape(4, 2)).abs().mean()
            return error + entropy(y, classes) if labels else error

        x = torch.empty(4, 3, device="meta")
        return from_torch(mlp().to("meta"), x, form=form, loss=loss, name="mlp")

    for labels in (False, True):
        there, here = graph("meta", labels), graph("cpu", labels)
        assert there.content_hash == here.content_hash
        # A target that the function closes over is a constant. It is in memory without being an argument.
        constants = [o for o, name in enumerate(there.op_names) if name.startswith("constant")]
        sizes = sorted(there.tensor_bytes[np.isin(there.tensor_op, constants)].tolist())
        assert sizes == ([8, 32, 32] if labels else [32])


def test_views_take_no_time_and_detach_is_no_op():
    def fn(_, x):
        y = x.t().detach().unsqueeze(0).expand(2, 3, 4).reshape(6, 4)
        return y.contiguous().sin()

    graph = from_torch(module(fn), torch.empty(4, 3), profile=BYTES)
    assert "aten.detach" not in kinds(graph)
    for name in ("t", "unsqueeze", "expand"):
        assert op(graph, name)["runtime"] == 0
    assert op(graph, "expand")["sizes"] == [96]
    assert op(graph, "sin")["runtime"] == 192
    assert op(graph, "t")["after"] == ["start"]


def test_in_place_views_lie_in_the_buffer_of_what_they_view():
    def fn(self, x):
        h = torch.relu(x)
        return h.reshape(3, 4).t().sum(0)

    net = module(fn)
    graph = from_torch(net, torch.empty(4, 3), in_place=True)
    assert kinds(graph) == ["aten.relu", "aten.view", "aten.t", "aten.sum"]
    assert [op(graph, name)["sizes"] for name in graph.op_names[2:]] == [[48], [0], [0], [12]]
    # Who reads a view also reads its buffer, which is freed after the last of them.
    assert op(graph, "sum")["inputs"] == ["relu:0", "t:0"]
    assert op(graph, "view")["inputs"] == ["relu:0"]
    plain = from_torch(net, torch.empty(4, 3))
    assert plain.op_names == graph.op_names
    assert [op(plain, name)["sizes"] for name in graph.op_names[2:]] == [[48], [48], [48], [12]]


def test_in_place_views_of_arguments_and_parameters_have_no_memory():
    net = module(lambda self, x: (x.view(3, 4) + x.t()) @ self.w.weight.t(), w=nn.Linear(4, 3, bias=False))
    for form in ("forward", "gradient"):
        graph = from_torch(net, torch.empty(4, 3), form=form, in_place=True)
        assert [op(graph, name)["sizes"] for name in ("view", "t", "add")] == [[0], [0], [48]]
        assert op(graph, "t")["inputs"] == ["args_0:0"]


def test_in_place_a_result_that_is_a_view_keeps_its_buffer():
    graph = from_torch(module(lambda self, x: torch.relu(x).t()), torch.empty(4, 3), in_place=True)
    assert op(graph, "relu")["keep"] == op(graph, "t")["keep"] == [True]
    assert (op(graph, "relu")["sizes"], op(graph, "t")["sizes"]) == ([48], [0])


def test_in_place_a_copy_that_nobody_needs_has_no_memory():
    def fn(self, x):
        kept = torch.relu(x).clone()  # read only
        turned = kept.t().clone(memory_format=torch.contiguous_format)  # another layout
        returned = turned.sin().clone()
        return kept.sum(), returned, returned.t()

    graph = from_torch(module(fn), torch.empty(4, 3), in_place=True)
    sizes = {name: op(graph, name)["sizes"][0] for name in graph.op_names[2:]}
    assert sizes == {
        "relu": 48,
        "clone": 0,
        "t": 0,
        "clone_1": 48,
        "sin": 48,
        "clone_2": 48,
        "sum": 4,
        "t_1": 0,
    }
    assert op(graph, "sum")["inputs"] == ["relu:0", "clone:0"]


def test_in_place_adam_writes_over_its_state():
    net, x = nn.Linear(3, 5, bias=False), torch.empty(4, 3)
    options = {"form": "training-step", "in_place": True}
    graph = from_torch(net, x, **options)
    adam = {name: op(graph, name) for name in graph.op_names if name.startswith("adam/")}
    sizes = {name.removeprefix("adam/"): row["sizes"][0] for name, row in adam.items()}
    # The moments and the parameter are updated where they are; the root is the only new buffer.
    assert sizes == {
        "m/weight": 60, "v/weight": 60, "lerp": 0, "mul": 0, "addcmul": 0, "sqrt": 60, "div": 0, "add": 0,
        "addcdiv": 0,
    }  # fmt: skip
    assert op(graph, "weight")["keep"] == op(graph, "adam/m/weight")["keep"] == [True]
    # The parameter is written after everything else that reads it or a view of it.
    assert {"t", "mm"} <= set(op(graph, "adam/addcdiv")["after"])
    # The caller still holds what is not donated.
    kept = from_torch(net, x, donate_state=False, **options)
    sizes = {
        name: op(kept, f"adam/{name}")["sizes"][0] for name in ("lerp", "mul", "addcmul", "addcdiv", "div")
    }
    assert sizes == {"lerp": 60, "mul": 60, "addcmul": 0, "addcdiv": 60, "div": 0}


def test_a_cast_is_no_view():
    graph = from_torch(module(lambda _, x: x.to(torch.float64)), torch.empty(3), profile=BYTES)
    assert kinds(graph) == ["aten._to_copy"]
    assert graph.runtime[-1] == 12 + 24


def test_an_op_with_several_results_is_one_op():
    def fn(_, x):
        a, b, c = x.split((1, 2, 3))
        values, order = torch.sort(c)
        return a + b[:1], values, order

    graph = from_torch(module(fn), torch.empty(6), profile=FLOPS)
    split = next(n for n in graph.op_names if n.startswith("split"))
    assert op(graph, split)["sizes"] == [4, 8, 12]
    assert op(graph, "sort") == {
        "kind": "aten.sort", "inputs": [f"{split}:2"], "after": [], "sizes": [12, 24], "keep": [True, True],
        "temp": 0, "runtime": pytest.approx(3 * np.log2(3)), "group": None, "devices": None,
    }  # fmt: skip


def test_a_training_step_frees_no_parameter_that_it_does_not_change():
    net = module(lambda self, x: self.w(x), w=nn.Linear(2, 2), unused=nn.Linear(2, 2, bias=False))
    graph = from_torch(net, torch.empty(3, 2), form="training-step")
    kept = {name for name in graph.op_names[: graph.op_names.index("start")] if all(op(graph, name)["keep"])}
    assert kept == {"unused.weight", "adam/m/unused.weight", "adam/v/unused.weight", "args_0"}


def test_dead_code_goes_and_unused_parameters_stay():
    def fn(self, x):
        torch.cos(x)
        return torch.sin(x)

    graph = from_torch(module(fn, unused=nn.Linear(2, 2, bias=False)), torch.empty(3))
    assert graph.op_names[0] == "unused.weight"
    assert kinds(graph) == ["aten.sin"]
    assert op(graph, "unused.weight")["group"] is None


def test_a_tied_parameter_is_one_source():
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    graph = from_torch(nn.Sequential(first, second), torch.empty(2, 4))
    assert graph.op_kinds.count("parameter") == 1
    readers = [n for n in graph.op_names if n.endswith("linear")]
    assert len(readers) == 2
    source = next(n for n, k in zip(graph.op_names, graph.op_kinds, strict=True) if k == "parameter")
    assert all(f"{source}:0" in op(graph, name)["inputs"] for name in readers)
    gradient = from_torch(nn.Sequential(first, second), torch.empty(2, 4), form="gradient")
    assert kinds(gradient).count("aten.add") == 1  # The sum of the two gradients of the shared weight.


def test_constants_are_parameters():
    table = torch.ones(3)
    graph = from_torch(module(lambda _, x: x + table + torch.tensor([1.0, 2.0, 3.0])), torch.empty(3))
    assert graph.op_kinds.count("parameter") == 2


def test_results_may_be_in_dicts_and_tuples_and_be_inputs():
    def fn(_, x, pair, *, scale):
        return {"a": x * scale, "b": (pair["p"], pair["q"] + 1)}

    pair = {"p": torch.empty(5), "q": torch.empty(6)}
    graph = from_torch(
        module(fn), torch.empty(3), pair, kwargs={"scale": torch.empty(3)}, input_devices={1: 2, "scale": 1}
    )
    inputs = [n for n, k in zip(graph.op_names, graph.op_kinds, strict=True) if k == "input"]
    assert [op(graph, n)["devices"] for n in inputs] == [(0,), (2,), (2,), (1,)]
    assert [op(graph, n)["sizes"] for n in inputs] == [[12], [20], [24], [12]]
    assert kinds(graph) == ["aten.mul", "aten.add"]
    assert op(graph, "mul")["keep"] == op(graph, "add")["keep"] == [True]


def test_numbers_among_the_arguments_are_no_ops():
    graph = from_torch(module(lambda _, x, n, flag=None: x * n), torch.empty(3), 2, kwargs={"flag": None})
    assert graph.op_kinds == ("input", "start", "aten.mul")
    with pytest.raises(ConfigError, match="kwargs: give a Mapping, got int"):
        from_torch(module(lambda _, x: x), torch.empty(3), kwargs=3)


class Block(nn.Module):
    """A residual block as in ResNet."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn1(self.conv1(x)) + x)


def test_a_residual_block():
    x = torch.empty(2, 8, 6, 6)
    graph = from_torch(Block().eval(), x, profile=FLOPS)
    assert kinds(graph) == [
        "aten.conv2d", "aten._native_batch_norm_legit_no_training", "aten.add", "aten.relu",
    ]  # fmt: skip
    assert op(graph, "conv1/conv2d")["runtime"] == 2 * (2 * 8 * 36) * (8 * 9)
    assert "x:0" in op(graph, "add")["inputs"]
    gradient = from_torch(Block().eval(), x, form="gradient", profile=FLOPS)
    backward = op(gradient, "backward/convolution_backward")
    # Only the weights need a gradient, which takes the same work as the forward pass.
    assert backward["runtime"] == op(graph, "conv1/conv2d")["runtime"]
    assert backward["sizes"] == [8 * 8 * 9 * 4]
    assert backward["keep"] == [True]


def test_modules_that_write_in_place():
    def fn(self, x):
        y = self.layer(x)
        y[:, 0].mul_(2)
        self.steps.add_(1)
        # Under autograd this one fills a mask in place.
        return nn.functional.dropout1d(y[..., None])[..., 0] + x.add_(1)

    part = module(fn, layer=nn.Linear(4, 4))
    part.register_buffer("steps", torch.zeros(()))
    for form in ("forward", "gradient"):
        graph = from_torch(part, torch.empty(2, 4), form=form)
        assert not any(kind.endswith("_") for kind in graph.op_kinds)
        kept = [k for k, keep in zip(graph.op_kinds, kept_ops(graph), strict=True) if keep]
        # Those of the count and of x; in the forward pass also the result.
        assert kept.count("aten.add") == (2 if form == "gradient" else 3)
    assert part.steps == 0


def test_statistics_of_a_training_mode_are_results():
    block = Block().train()
    graph = from_torch(block, torch.empty(2, 8, 6, 6))
    assert op(graph, "bn1.running_mean")["keep"] == [False]
    assert op(graph, "bn1.weight")["keep"] == [True]
    norm = op(graph, "bn1/_native_batch_norm_legit_functional")
    assert norm["keep"] == [False, False, False, True, True]
    assert int(block.bn1.num_batches_tracked) == 0  # The user's module is unchanged.


def test_blocks_without_gradient_and_control_flow_by_cond():
    def fn(self, x):
        with torch.no_grad():
            y = torch.sin(x)
        return torch.cond(x.sum() > 0, lambda a: a.cos(), lambda a: (a + 1) * 2, (y,))

    graph = from_torch(module(fn), torch.empty(4), profile=FLOPS)
    assert kinds(graph) == ["aten.sin", "aten.sum", "aten.gt", "cond"]
    assert op(graph, "cond")["runtime"] == 40  # The slower branch.
    assert op(graph, "cond")["temp"] == 16


def test_scratch_of_branches_is_their_peak_of_live_values():
    def long(x):
        y = x.sin()
        z = y.view(-1) * 2
        return (z.cos() + y.view(-1)).view_as(x)

    def nested(x):
        return torch.cond(x.sum() > 1, long, lambda a: a + 1, (x * 2,)) + 1

    def fn(self, x):
        return torch.cond(x.sum() > 0, nested, lambda a: a.cos(), (x,))

    found = {
        place: op(from_torch(module(fn), torch.empty(4, 5), in_place=place), "cond")["temp"]
        for place in (True, False)
    }
    # In `long` three values live while `cos` runs, in `nested` operand, result and condition of its branch.
    assert found == dict.fromkeys((True, False), 3 * 80 + 2 * 80 + 1)


# Costs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "shapes", "flops"),
    [
        (torch.bmm, [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        (torch.matmul, [(7, 3, 4), (4, 5)], 2 * 7 * 3 * 4 * 5),
        (lambda a, b: torch.einsum("bij,jk->bik", a, b), [(2, 3, 4), (4, 5)], 2 * 2 * 3 * 4 * 5),
        (
            lambda a, b: torch.einsum("...ij,...jk->...ik", a, b),
            [(3, 1, 2, 4), (6, 4, 5)],
            2 * 18 * 2 * 4 * 5,
        ),
        (torch.nn.functional.conv1d, [(1, 2, 10), (6, 2, 3)], 2 * 6 * 8 * 2 * 3),
        (torch.nn.functional.conv_transpose2d, [(1, 2, 4, 4), (2, 3, 2, 2)], 2 * 2 * 16 * 3 * 4),
        (torch.exp, [(6,)], 60),
        (torch.sum, [(6, 7)], 42),
        (lambda x: torch.nn.functional.max_pool2d(x, 2), [(1, 3, 4, 4)], 3 * 4 * 4),
        (lambda x: torch.softmax(x, -1), [(2, 5)], 140),
        (torch.frac, [(6,)], 6),
        (lambda x: x.flip(0), [(6,)], 0),
        (
            torch.nn.functional.scaled_dot_product_attention,
            [(2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6)],
            2 * 2 * 3 * 4 * 5 * (8 + 6),
        ),
    ],
)
def test_flops_by_hand(fn, shapes, flops):
    graph = from_torch(module(lambda _, *a: fn(*a)), *(torch.empty(s) for s in shapes), profile=FLOPS)
    assert graph.runtime.sum() == flops


def test_a_recurrent_layer_by_hand():
    # 24 steps, and four gates of 16 that each read 8 inputs and 16 of the state.
    graph = from_torch(nn.LSTM(8, 16, batch_first=True), torch.empty(4, 6, 8), profile=FLOPS)
    assert graph.runtime[graph.op_kinds.index("aten.lstm")] == 2 * 24 * 64 * (8 + 16)


def test_a_lookup_reads_only_what_it_returns():
    graph = from_torch(nn.Embedding(1000, 4), torch.zeros(3, dtype=torch.int64), profile=BYTES)
    assert graph.runtime[-1] == 2 * 48 + 24


# By default, a loss closes over tensors on any device.
@pytest.mark.slow
def test_numbers_do_not_depend_on_where_the_weights_are():
    with torch.device("meta"):
        ghost = Block()
    for form in ("forward", "gradient"):
        real = from_torch(Block(), torch.zeros(2, 8, 6, 6), form=form)
        meta = from_torch(ghost, torch.empty(2, 8, 6, 6, device="meta"), form=form)
        mixed = from_torch(ghost, torch.zeros(2, 8, 6, 6), form=form)
        assert real.op_names == meta.op_names == mixed.op_names
        np.testing.assert_array_equal(real.runtime, meta.runtime)
        np.testing.assert_array_equal(real.tensor_bytes, meta.tensor_bytes)
    assert ghost.conv1.weight.is_meta


# Use --------------------------------------------------------------------------------------------


def test_the_graph_can_be_optimised():
    graph = regal_jax.from_torch(mlp(), torch.empty(4, 3), form="gradient")
    cluster = Cluster.uniform(2, transfer="blocking:latency=1us,bandwidth=50GB/s")
    plan = regal_jax.optimize(graph, cluster, evaluations=200)
    plan.verify(graph)
    assert 0 < plan.makespan <= graph.runtime.sum() * (1 + 1e-6)


# Refusals ---------------------------------------------------------------------------------------


def data_dependent(_, x):
    return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (data_dependent, (torch.empty(3),)),
        (lambda _, x: x @ x, (torch.empty(3, 4),)),
        (lambda _, x: {}["missing"], (torch.empty(3),)),
        (lambda _, x: x, ()),
    ],
)
@pytest.mark.parametrize("form", ["forward", "gradient"])
def test_what_cannot_be_traced_is_refused_in_one_line_with_its_cause(fn, args, form):
    with pytest.raises(FormatError, match=r"cannot trace 'Module': \w+: ") as caught:
        from_torch(module(fn, part=nn.Linear(2, 2)), *args, form=form)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


class Reversed(torch.autograd.Function):
    """A function whose gradient is not that of the ops in it."""

    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, *gradients):
        return -gradients[0]


def test_a_function_with_a_backward_of_its_own_has_only_a_forward_pass():
    net = module(lambda m, x: Reversed.apply(m.w(x)), w=nn.Linear(3, 3))
    assert kinds(from_torch(net, torch.empty(2, 3))) == ["aten.linear", "aten.sin"]
    with pytest.raises(FormatError, match=r"torch.autograd.Function 'Reversed', .* use form='forward'"):
        from_torch(net, torch.empty(2, 3), form="gradient")
    assert Reversed.apply(torch.ones(2, requires_grad=True)).requires_grad  # It still works elsewhere.


def derived(m, x):
    x = x.detach()
    x.requires_grad = True
    return torch.autograd.grad(m.w(x).square().sum(), x)[0]


def changed(m, x):
    with torch.no_grad():
        m.w.weight.mul_(0.5)
    return m.w(x)


def chosen(m, x):
    def quiet(y):
        with torch.no_grad():
            return y.sin()

    return torch.cond(x.sum() > 0, quiet, lambda y: y.cos(), (m.w(x),))


def doubled(m, x):
    y = m.w(x)
    with torch.no_grad():
        y.mul_(2)
    return y.sin()


def halved(m, x):
    y = m.w(x)
    y.data[0] = 0
    return y.sin()


def doubled_view(m, x):
    y = m.w(x)
    y.detach().view(-1).mul_(2)
    return y.sin()


def relu_of_detached(m, x):
    y = m.w(x)
    torch.nn.functional.relu(y.detach()[0], inplace=True)
    return y.sin()


def view_without_gradient(m, x):
    y = m.w(x)
    with torch.no_grad():
        y[0].mul_(2)
    return y.sin()


def read_before(m, x):
    old = x.data
    y = m.w(x)
    old.mul_(2)  # The gradient of the weight would be that of the new value.
    return y


def made_without_gradient(m, x):
    with torch.no_grad():
        y = x.clone()
    y.add_(m.w(x))
    return y


def detached_with_gradient(m, x):
    y = x.detach()
    y.mul_(m.w.weight.sum())  # It has a gradient now, and the argument has none.
    return y.sin() + m.w(x)


def detached_and_returned(m, x):
    y = x.detach()
    y.mul_(m.w.weight.sum())
    return {"w": m.w(x), "list": [y]}


def part_of_detached(m, x):
    y = x.detach()
    y[0].mul_(m.w.weight.sum())
    return y.sin() + m.w(x)


def view_of_detached(m, x):
    y = x.detach()
    z = y.view(-1)
    y.mul_(m.w.weight.sum())
    return z.sin().sum() + m.w(x)


def doubled_in_branch(m, x):
    def double(y):
        z = y.sin()
        z.detach().view(-1).mul_(2)
        return z

    return torch.cond(x.sum() > 0, double, lambda y: y.cos(), (m.w(x),))


def looped(m, x):
    step, start = torch.tensor(0), m.w(x)
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.sin()), (step, start))[1]


def hooked(m, x):
    y = m.w(x)
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 2)
    return y


@pytest.mark.parametrize(
    ("fn", "message", "forms"),
    [
        (chosen, "no_grad within a branch of torch.cond, whose gradient no trace shows", ("gradient",)),
        (doubled, "changes a tensor, without its gradient, by mul_, which no trace", ("gradient",)),
        (halved, "changes a tensor, without its gradient, by __setitem__, which no trace", ("gradient",)),
        (doubled_view, "changes a tensor, without its gradient, by mul_, which no", ("gradient",)),
        (relu_of_detached, "changes a tensor, without its gradient, by relu, which no", ("gradient",)),
        (view_without_gradient, "changes a tensor, without its gradient, by mul_, which no", ("gradient",)),
        (read_before, "changes a tensor, without its gradient, by mul_, which no", ("gradient",)),
        (made_without_gradient, "changes a tensor, without its gradient, by add_, which no", ("gradient",)),
        (detached_with_gradient, "without its gradient, by an op on what is detached", ("gradient",)),
        (detached_and_returned, "without its gradient, by an op on what is detached", ("gradient",)),
        (part_of_detached, "without its gradient, by an op on what is detached", ("gradient",)),
        (view_of_detached, "without its gradient, by an op on what is detached", ("gradient",)),
        (doubled_in_branch, "without its gradient, by aten.mul_.Tensor, which no", ("gradient",)),
        (looped, "uses while_loop, of which PyTorch traces no gradient: write", ("gradient",)),
        (hooked, "calls register_hook.. of a tensor, and no trace shows what a hook does", ("gradient",)),
        (
            derived,
            r"computes a tensor of shape \[3, 3\] in a way that no trace shows",
            ("forward", "gradient"),
        ),
        (changed, "changes its parameter 'w.weight' in place, and has no gradient for it", ("gradient",)),
        (lambda m, x: m.w(m.w(x).detach_()), "detach_.., which no trace shows", ("gradient",)),
    ],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch's own, where it exports.
def test_what_a_trace_does_not_show_is_refused(fn, message, forms):
    net = module(fn, w=nn.Linear(3, 3))
    for form in ("forward", "gradient"):
        if form in forms:
            with pytest.raises(FormatError, match=message):
                from_torch(net, torch.empty(2, 3), form=form)
        else:
            assert "aten.linear" in kinds(from_torch(net, torch.empty(2, 3), form=form))


@pytest.mark.parametrize("given", [False, True])
def test_gradients_with_sparse_tensors_are_refused(given):
    matrix = torch.eye(3).to_sparse()
    net = module(lambda m, x, s=None: torch.sparse.mm(m.s if s is None else s, m.w(x)), w=nn.Linear(3, 3))
    net.register_buffer("s", matrix)
    args = (torch.empty(3, 3), *([matrix] if given else []))
    from_torch(net, *args)
    with pytest.raises(FormatError, match=r"^a tensor of shape \[3, 3\] has the layout torch.sparse_coo"):
        from_torch(net, *args, form="gradient")


@pytest.mark.parametrize("where", ["w", "w.weight"])
def test_hooks_of_the_backward_pass_are_refused(where):
    net = module(lambda m, x: m.w(x), w=nn.Linear(3, 3))
    if where == "w":
        net.w.register_full_backward_hook(lambda *_: None)
    else:
        net.w.weight.register_hook(lambda gradient: gradient * 2)
    from_torch(net, torch.empty(2, 3))
    with pytest.raises(FormatError, match=f"has a hook of the backward pass at '{where}', and no trace"):
        from_torch(net, torch.empty(2, 3), form="gradient")


@pytest.mark.parametrize("form", ["forward", "gradient"])
def test_functions_that_are_mapped_may_detach_and_change_what_they_make(form):
    def row(y):
        z = y.sin()
        z.mul_(2)
        return z + y.detach()

    net = module(lambda m, x: torch.vmap(row)(m.w(x)), w=nn.Linear(3, 3))
    assert "aten.sin" in kinds(from_torch(net, torch.empty(2, 3), form=form))


@dataclasses.dataclass(frozen=True)
class Frozen:
    """An object that holds another one."""

    inner: types.SimpleNamespace


class Slots:
    """An object without a dict."""

    __slots__ = ("mean",)

    def __init__(self):
        self.mean = torch.zeros(3)


class Attributes(nn.Module):
    """A module that changes plain attributes."""

    def __init__(self, change):
        super().__init__()
        self.w, self.inner, self.change = nn.Linear(3, 3), nn.Identity(), change
        self.inner.calls, self.table, self.last, self.state = 0, {"scale": 1.0}, None, torch.zeros(2, 3)
        self.objects = [Frozen(types.SimpleNamespace(count=0)), Slots()]
        self.apart, self.seen, self.votes, self.array = (nn.Identity(),), set(), Counter(), np.zeros(2)
        self.apart[0].calls = 0

    def forward(self, x):
        return self.change(self, self.w(x))


def counting(m, y):
    m.inner.calls += 1
    return y * m.inner.calls


def scaling(m, y):
    m.table["scale"] *= 2
    return y * torch.tensor(m.table["scale"])


def carrying(m, y):
    before = torch.zeros(2, 3) if m.last is None else m.last
    m.last = torch.tanh(y + before)
    return m.last


def remembering(m, y):
    y = y + m.state
    m.state = y.detach()
    return y


def writing(m, y):
    m.state[0] = y.detach()[0]
    return y + m.state


def counting_in_object(m, y):
    m.objects[0].inner.count += 1
    return y * m.objects[0].inner.count


def counting_apart(m, y):
    m.apart[0].calls += 1
    return y * m.apart[0].calls


def averaging_in_object(m, y):
    m.objects[1].mean = 0.9 * m.objects[1].mean + y.detach().mean(0)
    return y - m.objects[1].mean


def writing_in_object(m, y):
    m.objects[1].mean.add_(y.detach().mean(0))
    return y - m.objects[1].mean


def collecting(m, y):
    m.seen.add(len(m.seen))
    return y * len(m.seen)


def voting(m, y):
    m.votes["a"] += 1
    return y * m.votes["a"]


def filling(m, y):
    m.array[0] += 1
    return y * float(m.array[0])


@pytest.mark.parametrize("form", ["forward", "training-step"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (counting, "changes its attribute 'inner.calls' from 0 to 1, on which its next call depends"),
        (scaling, r"changes its attribute 'table' from {'scale': 1.0} to {'scale': 2.0}, on which"),
        (carrying, "changes its attribute 'last' from None to a tensor, on which its next call depends"),
        (remembering, "changes its attribute 'state' from a tensor to a tensor, on which"),
        (
            writing,
            "changes its tensor 'state' in place, which is no buffer, and no trace shows that: register",
        ),
        (counting_in_object, r"changes its attribute 'objects\[0\].inner.count' from 0 to 1, on which"),
        (counting_apart, r"changes its attribute 'apart\[0\].calls' from 0 to 1, on which"),
        (averaging_in_object, r"changes its attribute 'objects\[1\].mean' from a tensor to a tensor, on"),
        (writing_in_object, r"changes its tensor 'objects\[1\].mean' in place, which is no buffer"),
        (collecting, r"changes its attribute 'seen' from set\(\) to \{0\}, on which"),
        (voting, r"changes its attribute 'votes' from Counter\(\) to Counter\({'a': 1}\), on which"),
        (filling, r"changes its attribute 'array' from array\(\[0., 0.\]\) to array\(\[1., 0.\]\), on which"),
    ],
)
def test_attributes_that_change_are_refused(change, message, form):
    net = Attributes(change)
    with pytest.raises(FormatError, match=f"^the module {message}") as caught:
        from_torch(net, torch.empty(2, 3), form=form)
    assert "\n" not in str(caught.value)
    assert (net.inner.calls, net.table, net.last) == (0, {"scale": 1.0}, None)
    assert (net.objects[0].inner.count, net.seen, net.votes, net.array[0]) == (0, set(), {}, 0)


def test_attributes_on_which_no_call_depends_may_change():
    def note(m, y):
        m.inner.calls += 1
        m.objects[0].inner.count += 1
        m.last, m.table["max"], m.objects[1].mean = y.detach(), y.amax(), y.mean()
        return y

    def prepare(m, y):
        if m.last is None:
            m.last = torch.arange(3.0)
        return y + m.last

    assert kinds(from_torch(Attributes(note), torch.empty(2, 3))) == ["aten.linear"]
    net = Attributes(prepare)
    with pytest.raises(FormatError, match="if it is only set by the first call, call the module once before"):
        from_torch(net, torch.empty(2, 3))
    net(torch.empty(2, 3))
    assert kinds(from_torch(net, torch.empty(2, 3))) == ["aten.linear", "aten.add"]
    net = Attributes(lambda m, y: y + m.objects[1].mean)
    assert kinds(from_torch(net, torch.empty(2, 3))) == ["aten.linear", "aten.add"]


@pytest.mark.parametrize("form", ["forward", "training-step"])
def test_a_cache_that_is_not_used_under_tracing_is_no_state(form):
    """As in LeViT of timm: in a dict that the first call fills; PyTorch's tracers go without it."""

    def scaled(m, y):
        if torch.jit.is_tracing():
            return y * m.w.bias[[0, 2, 1]]
        m.inner.calls += 1
        if "bias" not in m.table:
            m.table["bias"] = m.w.bias[[0, 2, 1]]
        return y * m.table["bias"]

    net, plain = Attributes(scaled), Attributes(lambda m, y: y * m.w.bias[[0, 2, 1]])
    graph = from_torch(net, torch.empty(2, 3), form=form)
    assert graph.content_hash == from_torch(plain, torch.empty(2, 3), form=form).content_hash
    assert (net.inner.calls, net.table) == (0, {"scale": 1.0})
    assert not torch.jit.is_tracing()

    def always(m, y):
        m.calls = getattr(m, "calls", 0) + 1
        m.new = m.calls
        return y * m.calls

    with pytest.raises(FormatError, match="changes its attribute 'calls' from nothing to 1, on which"):
        from_torch(Attributes(always), torch.empty(2, 3), form=form)
    assert not torch.jit.is_tracing()


def test_reasons_name_the_part_of_the_module_and_how_to_mend_it():
    def reason(net, *args):
        with pytest.raises(FormatError) as caught:
            from_torch(net, *args)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    norm = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=None))
    said = reason(norm, torch.empty(2, 3))
    assert "depends on the values of tensors, in '1' (BatchNorm1d) at batchnorm.py:" in said
    assert said.endswith(
        "(give it a momentum; with momentum=None it divides by the number of batches so far)"
    )
    assert "1.running_mean" in from_torch(norm.eval(), torch.empty(2, 3)).op_names
    said = reason(module(data_dependent), torch.empty(3))
    assert "depends on the values of tensors, in the module (Module) at test_from_torch.py:" in said
    assert "torch.where or torch.cond" in said
    loss = module(lambda _, x, y: nn.CTCLoss()(x, y, (4, 4), (2, 2)))
    said = reason(loss, torch.empty(4, 2, 3), torch.ones(2, 2, dtype=torch.int64))
    assert "aten._ctc_loss.default makes a tensor whose size depends on the values of others, in" in said
    assert said.endswith("(return the log-probabilities, and compute the loss outside of the module)")


def test_buffers_that_share_memory_are_refused_in_words():
    net = module(lambda m, x: m.w(x) + m.one.add_(1) + m.other, w=nn.Linear(3, 3))
    net.register_buffer("one", torch.zeros(3))
    net.register_buffer("other", net.one)
    with pytest.raises(
        FormatError, match="changes a tensor that shares memory with a buffer, parameter or arg"
    ):
        from_torch(net, torch.empty(2, 3))
    net = module(lambda m, x: nn.functional.linear(x, *m.plain) + m.w(x), w=nn.Linear(3, 3))
    net.plain = [torch.zeros(3, 3), torch.zeros(3)]
    with pytest.raises(FormatError, match="with several tensors that are neither parameters nor buffers"):
        from_torch(net, torch.empty(2, 3))


def test_a_tensor_that_changes_has_no_elements_of_another():
    memory = torch.zeros(3)
    net = module(lambda m, x: m.w(x) + m.one.add_(1).sum() + m.part, w=nn.Linear(3, 3))
    net.register_buffer("one", memory)
    net.register_buffer("part", memory[1:2])
    with pytest.raises(FormatError, match="'one' and 'part' share memory, and the program changes one"):
        from_torch(net, torch.empty(2, 3))
    net = module(lambda m, x: m.w(x) + m.view.sum(), w=nn.Linear(3, 3))
    net.register_buffer("view", net.w.weight.detach()[0])
    assert from_torch(net, torch.empty(2, 3), form="gradient").num_ops
    with pytest.raises(FormatError, match=r"'view' and 'w\.weight' share memory"):
        from_torch(net, torch.empty(2, 3), form="training-step")


def test_parameters_may_be_parts_of_one_memory():
    net, memory = module(lambda m, x: x @ m.left @ m.right), torch.ones(3, 6, dtype=torch.bfloat16)
    net.left, net.right = nn.Parameter(memory[:, :3]), nn.Parameter(memory[:, 3:])
    x = torch.empty(2, 3, dtype=torch.bfloat16)
    assert from_torch(net, x, form="training-step").num_ops


def test_sizes_that_depend_on_data_are_refused():
    with pytest.raises(FormatError, match=r"depends on the data") as caught:
        from_torch(module(lambda _, x: torch.nonzero(x)), torch.empty(3))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (lambda x: x, {}, FormatError, "module: got function; give a torch.nn.Module"),
        (nn.ReLU(), {"form": "backward"}, ConfigError, "form: 'backward' is unknown; use one of forward, "),
        (nn.ReLU(), {"form": "gradient"}, FormatError, "no parameter that requires a gradient"),
        (nn.ReLU(), {"loss": torch.sum}, ConfigError, "loss: has no meaning"),
        (mlp(), {"form": "gradient", "loss": lambda y: y}, FormatError, "loss: must return a tensor of one"),
        (nn.ReLU(), {"input_devices": -1}, ConfigError, "-1 must be the index of a device"),
        (nn.ReLU(), {"input_devices": {3: 0}}, ConfigError, "there is no argument 3"),
        (nn.ReLU(), {"profile": "abacus"}, ConfigError, "unknown device 'abacus'"),
        (nn.ReLU(), {"profile": ()}, ConfigError, "profile: got no device"),
    ],
)
def test_impossible_input_is_refused(given, options, error, message):
    with pytest.raises(error, match=message) as caught:
        from_torch(given, torch.empty(2, 3), **options)
    assert "\n" not in str(caught.value)


def test_a_module_without_anything_is_refused():
    with pytest.raises(GraphError, match="empty"):
        from_torch(module(lambda _: ()))


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'regal-jax\[torch\]'"):
        from_torch(None)  # pyright: ignore[reportArgumentType]


def test_importing_loads_no_torch():
    code = "import sys, regal_jax.importers; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("fn", "loss"),
    [
        (lambda m, x: m.w(x) if m.w(x).sum() > 0 else x, None),  # torch.export prints the program so far.
        (lambda m, x: m.w(x) @ torch.zeros(7, 2), None),  # Shape checks log a traceback.
        (lambda m, x: m.w(x), lambda y: (y - torch.zeros(7, 9)).sum()),
        (lambda m, x: m.w(x), lambda y: y.sum() * (1 if y.sum() > 0 else 2)),
    ],
)
def test_an_error_is_one_line_and_pytorch_says_nothing_before_it(fn, loss, capfd, caplog):
    with pytest.raises(FormatError, match="cannot trace 'Module': ") as caught:
        from_torch(module(fn, w=nn.Linear(3, 3)), torch.empty(4, 3), form="gradient", loss=loss)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_the_user_prints_while_tracing_is_shown(capfd):
    def forward(m, x):
        sys.stderr.write("said")
        return m.w(x)

    from_torch(module(forward, w=nn.Linear(3, 3)), torch.empty(4, 3))
    assert "said" in capfd.readouterr().err


def test_from_torch_pins_and_colocates():
    perceptron = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    graph = from_torch(perceptron, torch.empty(4, 3), pin={"0/*": 1}, colocate="[12]/*")
    o = graph.op_index
    assert graph.allowed_devices[o["0/linear"]] == (1,)
    assert graph.colocation_leader[o["1/relu"]] == graph.colocation_leader[o["2/linear"]]
    # Parameters share the device of their first reader, also if that op is in a colocation group.
    assert graph.colocation_leader[o["2.weight"]] == graph.colocation_leader[o["1/relu"]]

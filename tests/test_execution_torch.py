"""`apply_to_torch`: equal results, the order of the plan, memory as predicted, devices, refusals."""

import copy
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from random_plans import random_plan
from torch import nn

from regal_jax import Cluster, Plan, apply_to_torch, execution, from_torch, order
from regal_jax.errors import ConfigError, FormatError, MissingExtraError, PlanError
from regal_jax.execution import measure_torch
from regal_jax.execution.torch.program import TorchProgram
from regal_jax.plan.schedule import insert_transfers


class Branches(nn.Module):
    """Branches that shrink a wide tensor, a batch normalisation, an unused parameter."""

    def __init__(self, count=2):
        super().__init__()
        self.stem = nn.Linear(16, 32)
        self.norm = nn.BatchNorm1d(32)
        self.wide = nn.ModuleList(nn.Linear(32, 256) for _ in range(count))
        self.narrow = nn.ModuleList(nn.Linear(256, 8) for _ in range(count))
        self.mask = torch.tensor([1.0, 0.0] * 16)
        self.scale = nn.Parameter(torch.ones(3))  # unused

    def forward(self, x):
        h = torch.relu(self.norm(self.stem(x))) * self.mask
        high = [torch.relu(layer(h)) for layer in self.wide]
        low = [layer(part) for layer, part in zip(self.narrow, high, strict=True)]
        return torch.cat(low, -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return {"logits": self.head(self.layer(x)[:, -1]), "size": x.shape[0]}


class Recurrent(nn.Module):
    """State that the module changes, tied weights, a constant, a number among the arguments."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(6, 8, batch_first=True)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, factor):
        self.calls.add_(1)
        y, _ = self.cell(x)
        return self.second(torch.tanh(self.first(y))) * factor + torch.tensor([0.5] * 8)


class Small(nn.Module):
    """Few parameters: each has an update of its own, which is traced and compiled."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, x):
        return torch.relu(self.layer(x))


class Spectrum(nn.Module):
    """A complex parameter."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=8) + self.filter.abs().sum()


CASES = [
    (Branches, (torch.randn(12, 16),), {}),
    (Attention, (torch.randn(3, 7, 16),), {}),
    (Recurrent, (torch.randn(2, 5, 6),), {"factor": 2.0}),
]
FEW = (Small, (torch.randn(12, 16),), {})
"""A case whose training step is traced and compiled fast."""


@pytest.fixture(autouse=True, scope="module")
def _kernels_are_not_vectorised():
    """The order of kernels does not depend on it, and Inductor would compile programs that try the CPU."""
    from torch._inductor import config

    with config.patch("cpp.vec_isa_ok", False):
        yield


GRAPHS = {}
"""Graphs of modules of one class with arguments of one kind, since a trace takes half a second."""


def squares(result):
    leaves = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    return sum((x * x).mean() for x in leaves)


def planned(module, args, kwargs=None, *, form="forward", seed=0, devices=1, loss=None, **options):
    """The module in a random order. `apply_to_torch` traces every module and compares it with the graph."""
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    shapes = [tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    key = (type(module), str(module), module.training, form, loss, *shapes, *sorted(options.items()))
    graph = GRAPHS.get(key) or from_torch(module, *args, kwargs=kwargs, form=form, loss=loss, **options)
    GRAPHS[key] = graph
    plan = random_plan(graph, Cluster.uniform(devices), np.random.default_rng(seed))
    where = [torch.device("cpu")] * devices
    return apply_to_torch(plan, module, *args, kwargs=kwargs, form=form, loss=loss, devices=where), graph


def close(one, other):
    """Checks equality up to rounding: `torch.export` expresses some ops differently."""
    torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


def same(one, other):
    mine, yours = (torch.utils._pytree.tree_leaves(tree) for tree in (one, other))
    assert len(mine) == len(yours)
    for a, b in zip(mine, yours, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def twins(make):
    torch.manual_seed(0)
    module = make()
    return module, copy.deepcopy(module)


# One device is that of most other tests.
@pytest.mark.parametrize(
    ("case", "devices"),
    [(0, 1), (2, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 2), (2, 1)))],
)
def test_outputs_and_buffers_are_those_of_the_module(case, devices):
    make, args, kwargs = CASES[case]
    module, plain = twins(make)
    runs, _ = planned(module, args, kwargs, devices=devices)
    for _ in range(2):
        with torch.no_grad():
            close(runs(*args, **kwargs), plain(*args, **kwargs))
    same(dict(module.named_buffers()), dict(plain.named_buffers()))


# A gradient has the ops of the forward pass, too. Results and gradients of the first case on one device are
# compared below.
@pytest.mark.parametrize("form", [pytest.param("forward", marks=pytest.mark.slow), "gradient"])
@pytest.mark.parametrize(
    "case", [*(pytest.param(case, marks=pytest.mark.slow) for case in (0, 1)), *range(2, len(CASES))]
)
def test_every_order_has_the_same_results_bit_for_bit(case, form):
    make, args, kwargs = CASES[case]
    module, _ = twins(make)
    loss = None if form == "forward" else squares
    found = []
    for seed in range(2):
        runs, _ = planned(copy.deepcopy(module), args, kwargs, form=form, loss=loss, seed=seed)
        found.append(runs(*args, **kwargs))
    same(found[1], found[0])


@pytest.mark.parametrize(
    ("case", "devices"),
    [(0, 1), (2, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 2), (2, 1)))],
)
def test_gradients_are_those_of_autograd(case, devices):
    make, args, kwargs = CASES[case]
    module, plain = twins(make)
    runs, _ = planned(module, args, kwargs, form="gradient", loss=squares, devices=devices)
    loss, gradients = runs(*args, **kwargs)
    wanted = squares(plain(*args, **kwargs))
    wanted.backward()
    close(loss, wanted.detach())
    assert sorted(gradients) == sorted(name for name, _ in plain.named_parameters())
    for name, parameter in plain.named_parameters():
        if parameter.grad is None:
            assert gradients[name] is None
        else:
            torch.testing.assert_close(gradients[name], parameter.grad)
    same(dict(module.named_buffers()), dict(plain.named_buffers()))


@pytest.mark.parametrize("affine", [False, True])
def test_statistics_of_instance_norm_are_those_of_the_module(affine):
    """PyTorch changes them without saying so."""

    def make():
        return nn.Sequential(
            nn.Conv1d(2, 3, 1), nn.InstanceNorm1d(3, affine=affine, track_running_stats=True)
        )

    args = (torch.randn(4, 2, 5),)
    for form in ("forward", "gradient"):
        module, plain = twins(make)
        runs, graph = planned(module, args, form=form, loss=None if form == "forward" else squares, devices=2)
        for _ in range(2):
            runs(*args)
            plain(*args)
        assert "aten.instance_norm" not in graph.op_kinds
        same(dict(module.named_buffers()), dict(plain.named_buffers()))
        assert plain[1].running_mean.any()


@pytest.mark.parametrize(
    ("case", "devices", "options"),
    [
        (FEW, 2, {}),
        pytest.param(CASES[0], 2, {}, marks=pytest.mark.slow),
        *((case, 1, {"in_place": True}) for case in CASES),
        *(((Spectrum, (torch.randn(3, 8),), {}), n, {"in_place": n == 1}) for n in (1, 2)),
    ],
    ids=lambda x: x[0].__name__ if isinstance(x, tuple) else None,
)
def test_training_steps_are_those_of_adam(case, devices, options):
    make, args, kwargs = case
    module, plain = twins(make)
    runs, _ = planned(module, args, kwargs, form="training-step", loss=squares, devices=devices, **options)
    adam = torch.optim.Adam(plain.parameters(), foreach=False)
    for step in range(4):
        adam.zero_grad()
        wanted = squares(plain(*args, **kwargs))
        wanted.backward()
        adam.step()
        torch.testing.assert_close(runs(*args, **kwargs), wanted.detach())
        assert runs.steps == step + 1
        for one, other in zip(module.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, other)
    for name, parameter in plain.named_parameters():
        if parameter in adam.state:
            state = adam.state[parameter]
            torch.testing.assert_close(runs.moments[f"adam/m/{name}"], state["exp_avg"])
            torch.testing.assert_close(runs.moments[f"adam/v/{name}"], state["exp_avg_sq"])
    if case is not CASES[2]:  # Gradients of tied weights and of a recurrence are summed in another order.
        same(list(module.parameters()), list(plain.parameters()))


def test_training_goes_on_from_a_saved_state(tmp_path):
    first, other, x = Small(), Small(), torch.randn(12, 16)
    form = {"form": "training-step", "loss": squares}
    runs, _ = planned(first, (x,), **form)
    runs(x)
    runs(x)
    torch.save(runs.state_dict(), tmp_path / "state.pt")
    again, _ = planned(other, (x,), seed=1, **form)
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert again.steps == 2
    same(again(x), runs(x))
    same(dict(other.named_parameters()), dict(first.named_parameters()))
    with pytest.raises(ConfigError, match="of another module or form"):
        planned(Small(), (x,))[0].load_state_dict(torch.load(tmp_path / "state.pt"))
    with pytest.raises(ConfigError, match="of another module or form"):
        again.load_state_dict({**again.state_dict(), "_extra_state": {"moments": again.moments}})


def test_a_deep_copy_trains_by_itself_and_pickles_are_refused(tmp_path):
    x = torch.randn(12, 16)
    runs, _ = planned(Small(), (x,), form="training-step", loss=squares)
    runs(x)
    copied = copy.deepcopy(runs)
    before = copy.deepcopy(list(runs.module.parameters()))
    mine = copied(x)
    assert (copied.steps, runs.steps) == (2, 1)
    same(list(runs.module.parameters()), before)
    same(runs(x), mine)
    same(copied.moments, runs.moments)
    assert copy.copy(runs).module is runs.module
    with pytest.raises(ConfigError, match=r"cannot be pickled, as torch.save does; save its state_dict\(\)"):
        torch.save(runs, tmp_path / "module.pt")


def test_a_chosen_learning_rate_is_that_of_adam():
    module, plain = twins(Small)
    x = torch.randn(12, 16)
    runs, _ = planned(module, (x,), form="training-step", loss=squares)
    runs.rate = 0.02
    adam = torch.optim.Adam(plain.parameters(), lr=0.02, foreach=False)
    for _ in range(3):
        adam.zero_grad()
        squares(plain(x)).backward()
        adam.step()
        runs(x)
    same(list(module.parameters()), list(plain.parameters()))


# A training step has the ops of the others, too; below, the memory of a forward pass is predicted.
@pytest.mark.parametrize(
    "form",
    [*(pytest.param(form, marks=pytest.mark.slow) for form in ("forward", "gradient")), "training-step"],
)
@pytest.mark.parametrize("make", [Branches, pytest.param(Attention, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_measured_memory_is_the_predicted_one(form, make, seed):
    """The graph has all memory except the scratch memory of single ops."""
    args = {Branches: (torch.randn(64, 16),), Attention: (torch.randn(8, 16, 16),)}[make]
    loss = None if form == "forward" else squares
    module = make()
    runs, _ = planned(module, args, form=form, loss=loss, seed=seed, in_place=True)
    measured = measure_torch(runs, *args).peak_bytes
    assert measured == pytest.approx(runs.predicted_bytes[0], rel=0.02)


@pytest.fixture(scope="module")
def ordered():
    """A module of four branches, its arguments, its graph and a plan of few bytes."""
    module, x = Branches(4).eval(), torch.randn(64, 16)
    graph = from_torch(module, x, in_place=True)
    return module, x, graph, order(graph, method="order-search")


def test_a_better_order_needs_less_memory(ordered):
    module, x, graph, plan = ordered
    program = np.arange(graph.num_ops)
    plain = Plan.from_events(graph, Cluster.uniform(1), np.zeros(graph.num_ops, np.int64), program)
    before, after = (apply_to_torch(each, module, x) for each in (plain, plan))
    assert after.predicted_bytes[0] < 0.5 * before.predicted_bytes[0]
    first, second = measure_torch(before, x), measure_torch(after, x)
    same(first.result, second.result)
    assert second.peak_bytes < 0.5 * first.peak_bytes
    for measured, runs in ((first, before), (second, after)):
        assert measured.peak_bytes == pytest.approx(runs.predicted_bytes[0], rel=0.02)
    assert first.growth == {"cpu": first.peak_bytes}
    assert first.seconds > 0


@pytest.mark.slow
def test_inductor_keeps_the_order_of_the_plan(ordered):
    module, x, graph, plan = ordered
    # All wide tensors first, and each narrowed before the next is made.
    wide = sorted(range(graph.num_ops), key=lambda op: ("narrow" in graph.op_names[op], op))
    wide.sort(key=lambda op: graph.op_kinds[op] == "aten.cat")
    wide.sort(key=lambda op: not graph.resident[op])
    zeros = np.zeros(graph.num_ops, np.int64)
    runs = [
        apply_to_torch(each, module, x)
        for each in (Plan.from_events(graph, Cluster.uniform(1), zeros, wide), plan)
    ]
    peaks = []
    for planned_module in runs:
        planned_module.compile()
        measured = measure_torch(planned_module, x)
        close(measured.result, module(x).detach())
        peaks.append(measured.peak_bytes)
    assert peaks[1] < 0.6 * peaks[0]


@pytest.mark.filterwarnings("ignore")  # PyTorch warns while it compiles.
def test_torch_compile_takes_the_order_of_kernels():
    class Wide(nn.Module):
        """The result of one branch is computed before the wider one of the other."""

        def __init__(self):
            super().__init__()
            self.kept, self.up, self.down = nn.Linear(16, 512), nn.Linear(16, 1024), nn.Linear(1024, 16)

        def forward(self, x):
            return self.kept(x), self.down(self.up(x))

    module, x = Wide(), torch.randn(64, 16)
    named = {"method": "order-search", "time_limit": 2.0}
    planned_options = execution.inductor_options(**named)
    unordered = {"reorder_for_peak_memory": False}
    found = []
    for options in (unordered, planned_options):
        torch._dynamo.reset()
        with torch.no_grad():
            found.append(measure_torch(torch.compile(module, options=options), x))
        with torch.no_grad():
            close(found[-1].result, module(x))
    assert found[1].peak_bytes < 0.75 * found[0].peak_bytes
    # Gradients: a forward and a backward graph.
    torch._dynamo.reset()
    twin = copy.deepcopy(module)
    squares(torch.compile(module, options=planned_options)(x)).backward()
    squares(twin(x)).backward()
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_pass_that_fails_leaves_the_order(monkeypatch):
    fails = execution.inductor_options()["_post_fusion_custom_pass"]
    monkeypatch.setattr(type(fails), "_ordered", lambda self, nodes: 1 / 0)
    nodes = [object(), object()]
    with pytest.warns(UserWarning, match="keep Inductor's order: ZeroDivisionError"):
        assert fails(nodes) == nodes
    assert fails.uuid() != execution.inductor_options(time_limit=1.0)["_post_fusion_custom_pass"].uuid()
    with pytest.raises(ConfigError, match="time_limit"):
        execution.inductor_options(time_limit="long")
    with pytest.raises(ConfigError, match="method"):
        execution.inductor_options(method="nothing")
    with pytest.raises(ConfigError, match="list-search is for makespan, not for peak-memory"):
        execution.inductor_options(method="list-search")


@pytest.mark.parametrize(
    ("case", "form"),
    [
        (FEW, "training-step"),
        *(
            pytest.param(case, form, marks=pytest.mark.slow)
            for case in CASES[:2]
            for form in ("gradient", "training-step")
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else x[0].__name__,
)
def test_compiled_gradients_and_steps_are_those_of_eager_ones(case, form):
    make, args, kwargs = case
    made = [copy.deepcopy(make().eval()) for _ in range(2)]
    made[1].load_state_dict(made[0].state_dict())
    one, other = (planned(module, args, kwargs, form=form, loss=squares)[0] for module in made)
    one.compile()
    for _ in range(3):
        torch.testing.assert_close(one(*args, **kwargs), other(*args, **kwargs), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.moments, other.moments, rtol=1e-4, atol=1e-5)
    assert one.steps == other.steps == 3 * (form == "training-step")


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(8, 16, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.layer(x)[0]


# `test_gradients_are_those_of_autograd` and `test_every_order_has_the_same_results_bit_for_bit` have an LSTM
# of one direction by default.
@pytest.mark.slow
def test_an_lstm_in_every_order():
    module, plain = twins(Recurrent)
    x = torch.randn(2, 5, 8)
    squares(plain(x)).backward()
    for seed in range(2):
        _, found = planned(module, (x,), form="gradient", loss=squares, seed=seed)[0](x)
        same([found[name] for name, _ in plain.named_parameters()], [p.grad for p in plain.parameters()])


@pytest.mark.slow
def test_a_compiled_gradient_of_an_lstm():
    # PyTorch traces its ops with other sizes and strides than their results have.
    module, plain = twins(Recurrent)
    x = torch.randn(2, 5, 8)
    runs, _ = planned(module, (x,), form="gradient", loss=squares)
    runs.compile()
    loss = squares(plain(x))
    loss.backward()
    mine, found = runs(x)
    close(mine, loss.detach())
    close([found[name] for name, _ in plain.named_parameters()], [p.grad for p in plain.parameters()])


def test_a_plan_of_several_devices_is_not_compiled():
    runs, _ = planned(nn.Linear(4, 2), (torch.randn(3, 4),), devices=2)
    with pytest.raises(ConfigError, match="for 2 devices"):
        runs.compile()


def test_ops_run_in_the_order_of_the_plan(monkeypatch):
    ran = []
    one = TorchProgram._one

    def noted(self, action, values, numbers):
        ran.append(self.ops.program.calls.index(action.call))
        one(self, action, values, numbers)

    monkeypatch.setattr(TorchProgram, "_one", noted)
    module, x = Branches().eval(), torch.randn(3, 16)
    runs, graph = planned(module, (x,), seed=3)
    runs(x)
    computes = runs.plan.timeline.op[runs.plan.timeline.port < 0]
    assert ran == [op - (graph.num_ops - len(ran)) for op in computes if graph.op_kinds[op][:4] == "aten"]
    assert ran != sorted(ran)


def test_each_op_runs_on_the_device_of_the_plan(monkeypatch):
    module, x = Branches().eval(), torch.randn(3, 16)
    graph = from_torch(module, x)
    # What comes first is on the CPU; data cannot come back from the meta device.
    last = np.zeros(graph.num_ops, np.int64)
    np.maximum.at(last, graph.colocation_leader, np.arange(graph.num_ops))
    place = (last[graph.colocation_leader] > graph.num_ops - 5).astype(np.int64)
    events = insert_transfers(graph, Cluster.uniform(2), place, list(range(graph.num_ops)), eager=True)
    plan = Plan.from_events(graph, Cluster.uniform(2), place, events)
    runs = apply_to_torch(plan, module, x, devices=["cpu", "meta"])
    placed = dict(zip(plan.op_names, place.tolist(), strict=True))
    for name, parameter in module.named_parameters():
        assert parameter.device.type == ("cpu", "meta")[placed[name]]
    found = []
    one = TorchProgram._one

    def noted(self, action, values, numbers):
        one(self, action, values, numbers)
        made = action.call.outputs if action.call else (action.moved[0],)
        found.extend((action.device, values[value, action.device].device.type) for value in made)

    monkeypatch.setattr(TorchProgram, "_one", noted)
    assert runs(x).device.type == "meta"
    assert set(found) == {(0, "cpu"), (1, "meta")}


def test_a_branch_of_cond_and_inlined_blocks():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                y = self.layer(x)
            return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (y.detach(),))

    module = Both()
    for sign in (1, -1):
        x = sign * torch.ones(2, 4)
        runs, _ = planned(module, (x,))
        with torch.no_grad():
            same(runs(x), module(x))


class Stopped(nn.Module):
    """Parts of which autograd has no gradient, one of them under autocast, and a checkpointed block."""

    def __init__(self):
        super().__init__()
        self.layer, self.target = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        y = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=True)
        with torch.no_grad():
            still, half = self.layer.weight.data.sum(0) + self.layer(x), self.target(x).chunk(2, -1)[0]
            self.mean.mul_(0.5).add_(y.mean(0))
            with torch.enable_grad():
                moving = self.layer(x).sin()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                mask = self.target(x).relu()
            z = self.layer(y) * mask
        return y * still.data + y.detach().exp() + moving.data * half.sum() + z.float() + self.mean


class Copies(nn.Module):
    """Its buffers become copies of an argument and of each other."""

    def __init__(self):
        super().__init__()
        for name in ("given", "left", "right", "same"):
            self.register_buffer(name, torch.rand(3, 3))

    def forward(self, x):
        old = self.left.clone()
        self.left.copy_(self.right)
        self.right.copy_(old)
        self.given.copy_(x)
        self.same.copy_(self.given)
        return x + old


def test_a_buffer_that_becomes_a_copy_has_memory_of_its_own():
    module, plain = twins(Copies)
    x = torch.rand(3, 3)
    runs, _ = planned(module, (x,))
    for _ in range(3):
        same(runs(x), plain(x))
        same(dict(module.named_buffers()), dict(plain.named_buffers()))
    assert len({buffer.data_ptr() for buffer in (x, *module.buffers())}) == 5


class InPlace(nn.Module):
    """Changes parts of tensors, and a buffer under `torch.no_grad` by what has a gradient."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3, 3))
        self.register_buffer("last", torch.zeros(3, 3))

    def forward(self, x):
        y, z = self.layer(x), torch.zeros(4, 3)
        z[1:] = y
        y[0] += x[1]
        y.fill_diagonal_(0.5)
        with torch.no_grad():
            self.mean.lerp_(y, 0.1)
            self.mean[0] = y[0]
            self.mean += y
            torch.mul(self.mean, y, out=self.last)
        self.last.data.add_(y)
        return z.sin().sum() + (y * self.mean).sum() + (y * self.last).sum()


def test_gradients_of_changes_in_place_are_those_of_autograd():
    module, plain = twins(InPlace)
    x = torch.rand(3, 3)
    runs, _ = planned(module, (x,), form="gradient", loss=torch.sum)
    for _ in range(2):
        plain.zero_grad()
        wanted = plain(x)
        wanted.backward()
        loss, gradients = runs(x)
        torch.testing.assert_close(loss, wanted.detach())
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad)
        torch.testing.assert_close(dict(module.named_buffers()), dict(plain.named_buffers()))


class Biased(nn.Module):
    """Attention with a trained mask: its result has another layout where it is differentiated."""

    def __init__(self):
        super().__init__()
        self.layer, self.bias = nn.Linear(8, 24), nn.Parameter(torch.randn(1, 2, 5, 5))

    def forward(self, x):
        q, k, v = self.layer(x).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias + self.bias)
        return y.transpose(1, 2).contiguous().reshape(3, 5, -1)


def test_a_view_is_copied_where_its_layout_is_another_under_gradients():
    module, plain = twins(Biased)
    x = torch.randn(3, 5, 8)
    runs, _ = planned(module, (x,), form="gradient", loss=squares)
    loss, gradients = runs(x)
    wanted = squares(plain(x))
    wanted.backward()
    close(loss, wanted.detach())
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_what_has_no_gradient_in_pytorch_has_none_here():
    module, plain = twins(Stopped)
    x = torch.randn(3, 4, requires_grad=True)
    with torch.no_grad():  # Where it is traced makes no difference.
        runs, _ = planned(module, (x,), form="gradient", loss=squares)
    loss, gradients = runs(x)
    wanted = squares(plain(x))
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach())
    assert plain.target.weight.grad is None
    assert gradients["target.weight"] is None
    torch.testing.assert_close(gradients["layer.weight"], plain.layer.weight.grad)
    torch.testing.assert_close(gradients["layer.bias"], plain.layer.bias.grad)
    same(module.mean, plain.mean)
    runs, _ = planned(module, (x,))
    with torch.no_grad():
        close(runs(x), plain(x))


def test_parameters_are_shared_and_loaded_values_count():
    module, other = nn.Linear(4, 2), nn.Linear(4, 2)
    x = torch.randn(3, 4)
    runs, _ = planned(module, (x,))
    assert next(iter(runs.module.parameters())) is module.weight
    module.load_state_dict(other.state_dict())
    assert torch.equal(runs(x), other(x).detach())


def test_arguments_that_the_module_changes_are_changed():
    class Adds(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    x = torch.zeros(3)
    runs, _ = planned(Adds(), (torch.zeros(3),))
    same(runs(x), torch.full((3,), 2.0))
    same(x, torch.ones(3))


class Names(nn.Module):
    """An argument, a parameter and a buffer of one name, and buffers with names that PyTorch gives others."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.ones(3))
        for name in ("y", "b_y", "p_x"):
            self.register_buffer(name, torch.zeros(3))

    def forward(self, x, y):
        self.b_y.add_(y)
        self.p_x.sub_(1)
        y.mul_(2)
        return x * self.x + self.b_y


@pytest.mark.parametrize("form", ["forward", "training-step"])
def test_arguments_may_have_names_of_parameters_and_buffers(form):
    module, plain = twins(Names)
    given, wanted = [[torch.full((3,), 2.0), torch.arange(3.0)] for _ in range(2)]
    runs, _ = planned(module, tuple(wanted), form=form)
    runs(*given)
    result = plain(*wanted)
    if form == "training-step":
        result.mean().backward()
        torch.optim.Adam(plain.parameters()).step()
    same(given, wanted)
    same(module.state_dict(), plain.state_dict())


def test_a_call_in_inference_mode_leaves_a_module_that_can_be_trained():
    module, plain = twins(Names)
    x, y = torch.ones(3), torch.ones(3)
    runs, _ = planned(module, (x, y))
    with torch.inference_mode():
        same(runs(x, y.clone()), plain(x, y.clone()))
        same(runs(x + 1, y + 1), plain(x + 1, y + 1))
    assert not module.b_y.is_inference()
    module(x, y).sum().backward()
    assert module.x.grad is not None


def test_modules_of_one_op_and_of_none():
    x = torch.randn(3)
    for module in (nn.ReLU(), nn.Identity()):
        runs, _ = planned(module, (x,))
        same(runs(x), module(x))


def test_a_plan_may_come_from_a_file(tmp_path):
    module, x = nn.Linear(4, 2), torch.randn(3, 4)
    order(from_torch(module, x)).save(tmp_path / "plan.json")
    same(apply_to_torch(tmp_path / "plan.json", module, x)(x), module(x).detach())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((torch.ones(3, 5),), r"argument 0 is torch\.float32\[3, 5\] and was torch\.float32\[3, 4\]"),
        ((torch.ones(3, 4).double(),), r"torch\.float64\[3, 4\] and was torch\.float32\[3, 4\]"),
        ((1.0,), "argument 0 is of type float and was a tensor"),
        ((torch.ones(3, 4, device="meta"),), "argument 0 is on the meta device and has no data"),
        ((), "got 0 arguments and the plan is for 1"),
    ],
)
def test_other_arguments_are_refused(given, message):
    module, x = nn.Linear(4, 2), torch.randn(3, 4)
    runs, _ = planned(module, (x,))
    with pytest.raises(ConfigError, match=message):
        runs(*given)


class Differs(nn.Module):
    """Arguments of one shape, whose order matters."""

    def forward(self, x, a, b=None, **more):
        return x["p"] - 2 * x["q"] + 3 * a - 4 * b + 5 * more.get("c", 0)


@pytest.mark.parametrize("names", [(), ("b", "a"), ("c", "b", "a")])
def test_arguments_may_be_given_by_name_and_in_any_order(names):
    p, q, a, b, c = torch.randn(5, 3)
    named = {"a": a, "b": b, "c": c}
    args = ({"p": p, "q": q}, *([] if names else [a, b]))
    kwargs = {name: named[name] for name in names}
    plan = order(from_torch(Differs(), *args, kwargs=kwargs), evaluations=10)
    runs = apply_to_torch(plan, Differs(), *args, kwargs=kwargs)
    expected = p - 2 * q + 3 * a - 4 * b + 5 * (c if "c" in names else 0)
    rest = {"c": c} if "c" in names else {}
    for x in ({"p": p, "q": q}, {"q": q, "p": p}):
        for got in (runs(x, a, b, **rest), runs(x, b=b, a=a, **rest), runs(**rest, a=a, b=b, x=x)):
            torch.testing.assert_close(got, expected)
    for args, kwargs in (((x, a), rest), ((x, a, b), {"a": a, **rest}), ((x, a), {"d": b, **rest})):
        with pytest.raises(ConfigError, match="apply a plan for these arguments"):
            runs(*args, **kwargs)
    with pytest.raises(ConfigError, match=r"key\(s\): .* apply a plan for these arguments"):
        runs({"p": p, "r": q}, a, b, **rest)


def test_arguments_may_have_other_strides():
    class Flat(nn.Module):
        def forward(self, x):
            return x.reshape(-1) * 2

    x, turned = torch.randn(3, 4), torch.randn(4, 3).t()
    for traced, given in ((x, turned), (turned, x), (x[:1].expand(3, 4), x), (x, x[:1].expand(3, 4))):
        runs = apply_to_torch(order(from_torch(Flat(), traced), evaluations=10), Flat(), traced)
        same(runs(given), given.reshape(-1) * 2)


def test_arguments_and_gradients_may_be_sparse():
    x, module = torch.eye(3).to_sparse(), nn.Linear(3, 2)
    runs = apply_to_torch(order(from_torch(module, x), evaluations=10), module, x)
    same(runs(x), module(x).detach())
    module, rows = nn.Embedding(4, 2, sparse=True), torch.tensor([1, 1, 3])
    form = {"form": "gradient", "loss": torch.sum}
    plan = order(from_torch(module, rows, **form), evaluations=10)
    _, gradients = apply_to_torch(plan, module, rows, **form)(rows)
    module(rows).sum().backward()
    assert gradients["weight"].layout is module.weight.grad.layout is torch.sparse_coo
    same(gradients["weight"].to_dense(), module.weight.grad.to_dense())


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.two(self.one(x))


@pytest.mark.parametrize(
    ("form", "change", "message"),
    [
        (
            "training-step",
            lambda m: m.two.requires_grad_(False),
            "'two.weight' was traced with requires_grad=T",
        ),
        (
            "training-step",
            lambda m: setattr(m.two, "weight", m.one.weight),
            "'two.weight' was traced with oth",
        ),
        (
            "forward",
            lambda m: delattr(m.one, "weight"),
            "'one.weight' is no parameter or",
        ),
    ],
)
def test_a_module_with_other_parameters_is_refused(form, change, message):
    x = torch.randn(3, 4)
    runs, _ = planned(Pair(), (x,), form=form)
    change(runs.module)
    with pytest.raises(ConfigError, match=re.escape(message)):
        runs(x)


def test_tied_parameters_stay_tied_and_frozen_ones_still_run_forward():
    x, module = torch.randn(3, 4), Pair()
    module.two.weight = module.one.weight
    runs = apply_to_torch(order(from_torch(module, x), evaluations=10), module, x)
    same(copy.deepcopy(runs)(x), module(x).detach())
    module.load_state_dict(module.state_dict(), assign=True)
    assert module.two.weight is not module.one.weight
    same(runs(x), module(x).detach())
    module.requires_grad_(False)
    same(runs(x), module(x))
    module.one.weight = nn.Parameter(torch.zeros(4, 4))
    with pytest.raises(ConfigError, match="was traced with other names for it"):
        runs(x)


def test_another_mode_is_refused():
    module, x = nn.Sequential(nn.Linear(16, 4), nn.Dropout(0.5)), torch.randn(3, 16)
    runs, _ = planned(module, (x,))
    runs.eval()
    with pytest.raises(ConfigError, match="traced in another mode"):
        runs(x)
    runs.train()
    runs(x)
    still, _ = planned(module.eval(), (x,))
    same(still(x), module(x).detach())


def test_another_number_is_refused():
    make, args, kwargs = CASES[2]
    runs, _ = planned(make(), args, kwargs)
    with pytest.raises(ConfigError, match=r"argument 1 is 3\.0 and was 2\.0"):
        runs(*args, factor=3.0)


def test_a_module_that_was_changed_after_its_trace_is_refused():
    module, x = nn.Linear(4, 2), torch.randn(3, 4)
    runs, _ = planned(module, (x,))
    with pytest.raises(ConfigError, match=r"'weight' is torch.float64\[2, 4\] and was torch.float32\[2, 4\]"):
        module.double() and runs(x)
    module.float().bias = nn.Parameter(torch.zeros(1))
    with pytest.raises(ConfigError, match=r"'bias' is torch.float32\[1\] and was torch.float32\[2\]"):
        runs(x)


def test_what_does_not_fit_is_refused():
    module, x = nn.Linear(4, 2), torch.randn(3, 4)
    graph = from_torch(module, x)
    plan = random_plan(graph, Cluster.uniform(2), np.random.default_rng(0))
    with pytest.raises(ConfigError, match="for 2 devices and there are 1"):
        apply_to_torch(plan, module, x)
    for devices in (["tpuX"], ["cuda:77"], 3, [None]):
        with pytest.raises(ConfigError, match="devices: "):
            apply_to_torch(order(graph), module, x, devices=devices)
    with pytest.raises(PlanError, match="plan the graph of this module"):
        apply_to_torch(order(graph), nn.Sequential(nn.Linear(4, 2), nn.ReLU()), x)
    with pytest.raises(FormatError, match=r"give a torch\.nn\.Module"):
        apply_to_torch(order(graph), torch.relu, x)
    with pytest.raises(ConfigError, match="form"):
        apply_to_torch(order(graph), module, x, form="backward")
    with pytest.raises(ConfigError, match="runs"):
        measure_torch(module, x, runs=0)
    with pytest.raises(ConfigError, match="int is no function or module"):
        measure_torch(3)  # pyright: ignore[reportArgumentType]


def test_a_module_without_data_is_refused():
    with torch.device("meta"):
        module, x = nn.Linear(4, 2), torch.empty(3, 4)
    plan = order(from_torch(module, x))
    assert apply_to_torch(plan, module, x)(x).device.type == "meta"
    with pytest.raises(ConfigError, match=r"'weight' is on the meta device and has no data"):
        apply_to_torch(plan, module, x, devices=["cpu"])


def test_names_that_need_torch_name_the_extra():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from regal_jax import execution, MissingExtraError\n"
        "for name in ('PlannedModule', 'TorchRun', 'inductor_options', 'measure_torch'):\n"
        "    try:\n"
        "        getattr(execution, name)\n"
        "    except MissingExtraError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all("pip install 'regal-jax[torch]'" in line for line in lines)


def test_without_torch_the_extra_is_named(monkeypatch):
    plan = order(from_torch(nn.ReLU(), torch.ones(2)))
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"regal_jax\[torch\]|torch"):
        apply_to_torch(plan, None, 1)


class Twice(nn.Module):
    """The gradients of both parameters are one tensor."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))

    def forward(self, x):
        return x * 2 + self.a + self.b


class Shift(nn.Module):
    """The gradient of the parameter is one number, read many times."""

    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x + self.b


@pytest.mark.parametrize("module", [Twice(), Shift()])
@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_share_no_memory(module, in_place):
    x, form = torch.ones(2, 3), {"form": "gradient", "loss": torch.sum}
    plan = order(from_torch(module, x, **form, in_place=in_place), evaluations=10)
    _, gradients = apply_to_torch(plan, module, x, **form)(x)
    module.zero_grad()
    torch.sum(module(x)).backward()
    for name, parameter in module.named_parameters():
        gradients[name].mul_(0.5)  # A write to one is no write to another, and each element has its own.
        assert torch.equal(gradients[name], 0.5 * parameter.grad)


@pytest.mark.parametrize("form", ["forward", "gradient", "training-step"])
def test_autocast_of_the_caller_changes_nothing(form):
    x = torch.randn(4, 6)
    made = []
    for inside in (False, True):
        torch.manual_seed(0)
        module = nn.Linear(6, 2)
        step = apply_to_torch(order(from_torch(module, x, form=form), evaluations=10), module, x, form=form)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            result = step(x)
        parts = [*result[1].values()] if form == "gradient" else [result, *module.parameters()]
        made.append([part.detach() for part in parts])
    assert all(part.dtype == torch.float32 for part in made[1])
    assert all(map(torch.equal, *made))


class AddsOne(nn.Module):
    def forward(self, a, b):
        a.add_(1)
        return a + b


def test_an_argument_that_is_changed_shares_no_memory_with_another():
    module, x = AddsOne(), torch.zeros(3)
    step = apply_to_torch(order(from_torch(module, x, x.clone()), evaluations=10), module, x, x.clone())
    assert step(x, torch.zeros(3)).tolist() == [1, 1, 1]
    with pytest.raises(ConfigError, match="arguments 0 and 1 share memory, and the module changes one"):
        step(x, x)
    plain = nn.Bilinear(3, 3, 1)
    both = apply_to_torch(order(from_torch(plain, x, x), evaluations=10), plain, x, x)
    assert torch.equal(both(x, x), plain(x, x).detach())

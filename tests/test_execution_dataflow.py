"""The check of new assignments of memory: it accepts what computes the same, and refuses everything else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regal_jax.execution.xla import hook, program
from regal_jax.execution.xla.dataflow import same_dataflow
from regal_jax.execution.xla.donation import elide_copies
from regal_jax.execution.xla.errors import NotSupported
from regal_jax.execution.xla.module_proto import new_executable, new_result
from regal_jax.execution.xla.schedule import Schedule
from regal_jax.execution.xla.sequence import orders_of
from regal_jax.execution.xla.thunks import accesses, inner_sequences, steps_of
from regal_jax.storage.varint import read_varint


def put(part, block, offset, size):
    part.buffer_allocation_index, part.offset, part.size = block, offset, size


def kernels(*rows):
    """A sequence of kernels: slices that each one reads, and slices that it writes."""
    sequence = new_result().thunk_sequence
    for i, (reads, writes) in enumerate(rows):
        thunk = sequence.thunks.add(kind="kernel")
        thunk.info.op_name = f"k{i}"
        for row, places in ((thunk.kernel_thunk.arguments, reads), (thunk.kernel_thunk.results, writes)):
            for place in places:
                put(row.add().slice, *place)
    return sequence


ARGUMENT, RESULT = (0, 0, 64), (1, 0, 64)
CHAIN = [([ARGUMENT], [(2, 0, 64)]), ([(2, 0, 64)], [(2, 64, 64)]), ([(2, 0, 64), (2, 64, 64)], [RESULT])]


def same(old, new, results=((RESULT, RESULT),), updates=lambda name: False):
    return same_dataflow(kernels(*old), kernels(*new), [(ARGUMENT, ARGUMENT)], list(results), updates, {})


def moved(changes):
    """The chain with some of its slices elsewhere."""
    swap = lambda row: [changes.get(place, place) for place in row]  # noqa: E731
    return [(swap(reads), swap(writes)) for reads, writes in CHAIN]


def test_the_same_and_no_program():
    assert same(CHAIN, CHAIN)
    assert same_dataflow(kernels(), kernels(), [], [], lambda name: False, {})


@pytest.mark.parametrize(
    ("changes", "equal"),
    [
        ({(2, 0, 64): (2, 128, 64)}, True),
        ({(2, 0, 64): (2, 64, 64), (2, 64, 64): (2, 0, 64)}, True),
        ({(2, 64, 64): (0, 0, 64)}, True),  # The argument is not read any more.
        ({(2, 0, 64): (1, 0, 64)}, False),  # It is read while the result is written.
        ({(2, 64, 64): (2, 0, 64)}, False),
        ({(2, 64, 64): (2, 32, 64)}, False),
        ({(2, 0, 64): (0, 0, 64)}, False),  # A kernel that was not compiled for one place.
    ],
)
def test_slices_that_are_moved(changes, equal):
    assert same(CHAIN, moved(changes)) == equal


def calls(*rows):
    """A sequence of custom calls: slices that each one reads, and slices that it writes."""
    sequence = new_result().thunk_sequence
    for i, (reads, writes) in enumerate(rows):
        thunk = sequence.thunks.add(kind="custom-call")
        thunk.info.op_name = f"c{i}"
        buffers = thunk.custom_call_thunk.op_buffers
        for row, places in ((buffers.arguments, reads), (buffers.results, writes)):
            for place in places:
                put(row.add().slice, *place)
    return sequence


@pytest.mark.parametrize(("matrix", "note", "equal"), [(0, 128, True), (0, 192, True), (64, 128, False)])
def test_a_custom_call_that_updates_an_operand_reads_no_other_result(matrix, note, equal):
    """As the factorisation of a matrix in place, with a note on its success."""

    def program(matrix, note):
        state, said = (2, matrix, 64), (2, note, 4)
        return calls(
            ([ARGUMENT], [(2, 0, 64)]),
            ([ARGUMENT], [(2, 128, 4)]),
            ([state], [state, said]),
            ([state], [RESULT]),
        )

    old, new = program(0, 128), program(matrix, note)
    given, results = [(ARGUMENT, ARGUMENT)], [(RESULT, RESULT)]
    assert same_dataflow(old, new, given, results, lambda name: True, {}) == equal


def test_a_result_elsewhere_must_be_said():
    new = moved({RESULT: (0, 0, 64)})
    assert not same(CHAIN, new)
    assert same(CHAIN, new, results=[(RESULT, (0, 0, 64))])


def test_parts_of_slices():
    one = [([ARGUMENT], [(2, 0, 64)]), ([(2, 32, 16)], [RESULT])]
    assert same(one, [([ARGUMENT], [(2, 64, 64)]), ([(2, 96, 16)], [RESULT])])
    assert not same(one, [([ARGUMENT], [(2, 64, 64)]), ([(2, 80, 16)], [RESULT])])
    # A part is overwritten: the rest is still what it was.
    two = [([ARGUMENT], [(2, 0, 64)]), ([], [(2, 0, 16)]), ([(2, 0, 64)], [RESULT])]
    assert same(two, two)
    assert not same(two, [two[0], ([], [(2, 16, 16)]), two[2]])


def test_kernels_that_update_need_what_was_there():
    old = [([ARGUMENT], [(2, 0, 64)]), ([ARGUMENT], [(2, 0, 64)]), ([(2, 0, 64)], [RESULT])]
    new = [([ARGUMENT], [(2, 0, 64)]), ([ARGUMENT], [(2, 64, 64)]), ([(2, 64, 64)], [RESULT])]
    assert same(old, new)
    assert not same(old, new, updates=lambda name: name == "k1")


def loop(state, scratch):
    """``while``: the condition reads the state; the body makes a scratch value of it, and the next state."""
    sequence = new_result().thunk_sequence
    thunk = sequence.thunks.add(kind="while")
    thunk.info.op_name = "w"
    body = thunk.while_thunk
    flag = (3, 0, 1)
    body.cond_sequence.CopyFrom(kernels(([state], [flag])))
    body.body_sequence.CopyFrom(kernels(([state], [scratch]), ([scratch], [state])))
    put(body.cond_buffer, *flag)
    sequence.thunks.extend(kernels(([state, (4, 0, 64)], [RESULT])).thunks)
    return sequence


@pytest.mark.parametrize(
    ("state", "scratch", "equal"),
    [
        ((2, 64, 64), (2, 0, 64), True),
        ((2, 0, 64), (2, 0, 64), False),
        ((2, 0, 64), (4, 0, 64), False),  # What is read after the loop is overwritten in it.
        ((2, 0, 64), (2, 32, 64), False),
        ((2, 0, 64), (3, 0, 64), True),  # The flag is read before.
    ],
)
def test_loops(state, scratch, equal):
    given = [((2, 0, 64), state), ((4, 0, 64), (4, 0, 64))]
    old, new = loop((2, 0, 64), (2, 64, 64)), loop(state, scratch)
    assert same_dataflow(old, new, given, [(RESULT, RESULT)], lambda name: False, {}) == equal


def branches(first, second):
    sequence = new_result().thunk_sequence
    thunk = sequence.thunks.add(kind="conditional")
    put(thunk.conditional_thunk.branch_index_buffer, 3, 0, 1)
    for scratch in (first, second):
        made = kernels(([ARGUMENT], [scratch]), ([scratch], [RESULT]))
        thunk.conditional_thunk.branch_sequences.append(made)
    sequence.thunks.extend(kernels(([RESULT, (4, 0, 64)], [(5, 0, 64)])).thunks)
    return sequence


@pytest.mark.parametrize(("second", "equal"), [((2, 0, 64), True), ((4, 0, 64), False), ((3, 0, 64), True)])
def test_branches(second, equal):
    given = [((b, 0, 64),) * 2 for b in (0, 3, 4)]
    old, new = branches((2, 0, 64), (2, 64, 64)), branches((2, 64, 64), second)
    assert same_dataflow(old, new, given, [((5, 0, 64),) * 2], lambda name: False, {}) == equal


def test_unknown_steps_are_refused():
    sequence = kernels(*CHAIN)
    sequence.thunks[1].ClearField("kernel_thunk")
    with pytest.raises(NotSupported, match="unknown kind"):
        list(steps_of(sequence))


def read_program(fn, *args):
    executable = jax.jit(fn).lower(*args).compile().runtime_executable()
    serialized = executable.serialize()
    length, start = read_varint(serialized, 0)
    outer, result = new_executable(), new_result()
    outer.ParseFromString(serialized[start + length :])
    result.ParseFromString(outer.serialized_executable)
    assert len(result.SerializeToString()) == len(outer.serialized_executable)
    return result


def all_slices(sequence):
    for _, kind, body in steps_of(sequence):
        for row in accesses(kind, body):
            yield from row
        for inner in inner_sequences(kind, body):
            yield from all_slices(inner)


def test_a_real_program_with_one_slice_elsewhere_is_refused():
    def fn(x):
        y = jnp.tanh(x @ x)
        return jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c @ y) + i, y) @ jnp.cos(y.T @ y)

    result = read_program(fn, np.ones((16, 16), np.float32))
    old = result.thunk_sequence
    allocations = result.buffer_assignment.buffer_allocations
    given = [
        ((a.index, 0, a.size),) * 2 for a in allocations if a.is_entry_computation_parameter or a.is_constant
    ]
    ends = [((a.index, 0, a.size),) * 2 for a in allocations if a.maybe_live_out and not a.is_tuple]
    assert same_dataflow(old, old, given, ends, lambda name: False, {})
    count = sum(1 for _ in all_slices(old))
    assert count > 10
    for number in range(count):
        new = new_result().thunk_sequence
        new.CopyFrom(old)
        part = list(all_slices(new))[number]
        if part.size >= 64:
            part.offset += 64
            assert not same_dataflow(old, new, given, ends, lambda name: False, {}), number


def test_versions_that_are_not_known_are_left_alone(monkeypatch):
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    assert hook.can_repack(lowered)
    monkeypatch.setattr(jax, "__version__", "1.0.0")
    assert not hook.can_repack(lowered)


def layers(weights, x):
    """The gradient of the first layer reads the weights of the second, which could be overwritten before."""

    def loss(weights):
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return y.sum()

    gradients = jax.grad(loss)(weights)
    return [w - 1e-2 * g for w, g in zip(weights, gradients, strict=True)]


def chained(w, x):
    """The new value is multiplied by the old one, which therefore must be kept."""
    new = jnp.sin(w) + x
    return new, (w @ new).sum()


def turned(w, x):
    """The new value at one place is made of the old one at another place."""
    return jnp.concatenate([w[1:], w[:1]]) + x, w.max()


STATE = np.linspace(-1, 1, 32 * 32, dtype=np.float32).reshape(32, 32)


@pytest.mark.parametrize(("fn", "removed"), [(layers, True), (chained, False), (turned, False)])
def test_copies_of_donated_arguments_are_removed_where_they_are_not_needed(fn, removed):
    state = [STATE, STATE.T, STATE * STATE] if fn is layers else STATE
    lowered = jax.jit(lambda *args: fn(*args), donate_argnums=0).lower(state, STATE)
    plain = hook.compile_recorded(lowered, {}, f"copies {fn.__name__}")
    module = hook.module_of(plain)
    alias, before = program.alias_of(module), program.memory_use(plain)
    own = copies(module)
    elide_copies(module)
    assert own > 0
    assert (copies(module) < own) == removed
    orders = {name: tuple(order) for name, order in orders_of(module).items()}
    schedule = Schedule(fn.__name__, orders, alias, before, 0, 0, "")
    made = program.realise(lowered, {}, schedule).compiled
    after = program.memory_use(made)
    assert after.alias == before.alias > 0
    assert after.total <= before.total
    given = jax.tree.map(jnp.array, state)
    expected = jax.jit(fn)(state, STATE)
    for one, two in zip(jax.tree.leaves(made(given, STATE)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, two)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))


def copies(module):
    (entry,) = (c for c in module.computations if c.id == module.entry_computation_id)
    return sum(i.opcode == "copy" for i in entry.instructions)

"""Analyses of Numba's compiler with the results of Numba's own."""

import copy
import gc

import pytest

from regal_jax.plan import execution

pytest.importorskip("numba")
from numba.core import analysis, compiler, ir, postproc, ssa

from regal_jax.runtime.numba_parts import (
    define_in_scopes,
    live_at_entry,
    one_assignment_each,
    post_processed,
    remembered,
    variables_of,
)


def nothing():
    pass


def turns(x, n):
    total, last = 0, x
    while n > 0:
        for i in range(n):
            if x[i] < total:
                break
            total, last = total + x[i], total
        else:
            n = n - 1
        n = n - 1 if last else n
    return total, last


def sometimes(x):
    if x > 1:
        y = x
    elif x > 0:
        return 0
    while x > 2:
        y, x = x, y - 1
    return y


def counts(n):
    for i in range(n):
        yield i * n


FUNCTIONS = (nothing, turns, sometimes, pytest.param(execution.execute, marks=pytest.mark.slow))


def read(blocks):
    return {label: [str(statement) for statement in block.body] for label, block in blocks.items()}


def copied(blocks):
    """A deep copy, except for the values of constants: Numba changes statements in place."""
    values = [getattr(statement, "value", None) for block in blocks.values() for statement in block.body]
    same = [each.value for each in values if isinstance(each, (ir.Const, ir.Global, ir.FreeVar))]
    return copy.deepcopy(blocks, {id(value): value for value in same})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_same_variables_live_and_the_same_names_are_assigned(function):
    blocks = compiler.run_frontend(function, inline_closures=True).blocks
    cfg, about = analysis.compute_cfg_from_blocks(blocks), analysis.compute_use_defs(blocks)
    expected = analysis.compute_live_map(cfg, blocks, about.usemap, about.defmap)
    assert live_at_entry(cfg, blocks, about.usemap, about.defmap) == expected
    before, expected = read(blocks), read(ssa._run_ssa(copied(blocks)))
    assert read(one_assignment_each(copied(blocks))) == expected
    assert read(blocks) == before
    assert (expected != before) == (function is not nothing)


def test_no_blocks():
    assert one_assignment_each({}) == {}


def test_numba_compiles_with_all_parts_and_keeps_its_own():
    numba = pytest.importorskip("numba")
    from regal_jax.runtime import closures

    own, used = [getattr(where, name) for where, name, _ in closures._PARTS], []

    def noting(name, ours):
        return lambda *arguments, **options: (used.append(name), ours(*arguments, **options))[1]

    with pytest.MonkeyPatch.context() as patch:
        parts = [(where, name, noting(name, ours)) for where, name, ours in closures._PARTS]
        patch.setattr(closures, "_PARTS", parts)
        function = numba.njit(pipeline_class=closures.Compiler)(sometimes)
        assert [function(x) for x in (1, 2, 5)] == [0, 2, 3]
    assert set(used) == {name for _, name, _ in closures._PARTS}
    assert [getattr(where, name) for where, name, _ in closures._PARTS] == own
    assert gc.isenabled()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_all_variables_are_found_and_defined_in_all_scopes(function):
    from numba.core import ir, ir_utils

    blocks = compiler.run_frontend(function, inline_closures=True).blocks
    values = [each for block in blocks.values() for each in block.body]
    values += [each.value for each in values if isinstance(getattr(each, "value", None), ir.Inst)]
    for value in values:
        assert variables_of(value, value.__dict__) == value._rec_list_vars(value.__dict__)
    next(iter(blocks.values())).scope = ir.Scope(None, ir.Loc("here", 1))
    define_in_scopes(blocks)
    found = [set(block.scope.localvars._con) for block in blocks.values()]
    assert found[0]
    ir_utils.fixup_var_define_in_scope(blocks)
    assert [set(block.scope.localvars._con) for block in blocks.values()] == found


def test_only_what_is_told_apart_is_remembered():
    from numba import int64, njit
    from numba.core import types
    from numba.core.registry import cpu_target

    asked = []

    def ask(function, context, args, kws):
        asked.append((function, args, kws))
        return None if args == () else len(asked)

    resolved = remembered(ask)
    cpu_target.typing_context.refresh()  # Nothing may have been compiled in this process.
    ours = cpu_target.typing_context.resolve_value_type(max)
    user = types.Dispatcher(njit(nothing))
    for question in ((ours, (int64,), {}), (ours, (int64, int64), {}), (ours, (), {})):
        function, args, kws = question
        assert resolved(function, None, args, kws) == resolved(function, None, args, kws)
    assert len(asked) == 3
    for function, args, kws in ((user, (int64,), {}), (ours, (int64, 1), {}), (ours, (int64,), {"a": int64})):
        assert resolved(function, None, args, kws) < resolved(function, None, args, kws)
    assert len(asked) == 9


@pytest.mark.parametrize("dels", [False, True])
@pytest.mark.parametrize("function", [*FUNCTIONS, counts])
def test_the_same_blocks_and_deletions_after_a_pass(function, dels):
    found = []
    made = compiler.run_frontend(function, inline_closures=True)
    for block in made.blocks.values():
        block.body = [each for each in block.body if not isinstance(each, ir.Del)]
    blocks = made.blocks
    for run in (postproc.PostProcessor.run, post_processed):
        made.blocks = copied(blocks)
        run(postproc.PostProcessor(made), dels)
        about = made.generator_info and made.generator_info.state_vars
        lifetime = made.variable_lifetime.deadmaps.combined
        found.append((read(made.blocks), about, lifetime))
    assert found[0] == found[1]
    deleted = [text for lines in found[0][0].values() for text in lines if text.startswith("del ")]
    assert bool(deleted) == dels
    assert (found[0][1] is None) == (function is not counts)

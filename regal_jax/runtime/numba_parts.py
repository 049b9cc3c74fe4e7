"""Parts of Numba's compiler with the same results in less time, for functions of many variables.

Numba visits every statement of a function once for each variable that has several assignments, unites
the sets of all variables that may reach a block, and looks up every variable for every block. All three take
time quadratic in the size of the function. The first needs only the blocks in which the variable occurs, sets
of bits are united much faster, and most blocks have the same scope. Numba also finds out anew at every call
of a function which of its variants is called, looks for variables in all that an instruction consists of, and
lists after every pass the variables that live at the entries of blocks, which only generators need.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from numba.core import ir, transforms, types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.postproc import PostProcessor, VariableLifetime
from numba.core.ssa import (
    _CacheListVars,
    _compute_phi_locations,
    _find_defs_violators,
    _fix_ssa_vars,
    _fresh_vars,
    _iterated_domfronts,
)

__all__ = [
    "define_in_scopes",
    "live_at_entry",
    "one_assignment_each",
    "post_processed",
    "remembered",
    "variables_of",
]

_post_process = PostProcessor.run
_Names: TypeAlias = Mapping[Hashable, set[str]]
_PLAIN: Final = frozenset((str, int, bool, float, type(None), ir.Loc, ir.Scope))
"""Kinds of values in which there is no variable."""


def live_at_entry(cfg: Any, blocks: Iterable[Any], used: _Names, defined: _Names) -> dict[Any, set[str]]:
    """The variables that a later statement reads, for the entry of each block.

    Args:
      cfg: Numba's graph of the blocks.
      blocks: Their labels.
      used: Variables that each block reads before it assigns to them.
      defined: Variables that each block assigns to.

    Returns:
      As ``numba.core.analysis.compute_live_map`` does.
    """
    names = list(set().union(*used.values(), *defined.values()))
    bit = {name: 1 << i for i, name in enumerate(names)}
    reads, writes = (
        {label: sum(map(bit.__getitem__, each)) for label, each in given.items()} for given in (used, defined)
    )
    order = cfg.topo_order()
    reach, live = defaultdict(int), {label: reads[label] for label in blocks}
    before = None
    while before != reach:
        before = dict(reach)
        for label in order:
            reach[label] |= reads[label] | writes[label]
            for following, _ in cfg.successors(label):
                reach[following] |= reach[label]
    before = None
    while before != live:
        before = dict(live)
        for label in reversed(order):
            for previous, _ in cfg.predecessors(label):
                live[previous] |= live[label] & reach[previous] & ~writes[previous]
    return {label: _named(bits, names) for label, bits in live.items()}


def _named(bits: int, names: list[str]) -> set[str]:
    """The names whose bits are set."""
    text = f"{bits:b}"[::-1]
    found, i = set(), text.find("1")
    while i >= 0:
        found.add(names[i])
        i = text.find("1", i + 1)
    return found


def one_assignment_each(blocks: dict[Any, Any]) -> dict[Any, Any]:
    """The blocks in static single assignment form, as ``numba.core.ssa.reconstruct_ssa`` makes them.

    Args:
      blocks: Label -> block of Numba's intermediate representation.

    Returns:
      The same, with a new name for each assignment.
    """
    if not blocks:
        return {}
    cfg = compute_cfg_from_blocks(blocks)
    frontiers = _iterated_domfronts(cfg)
    where = defaultdict(set)
    for label, block in blocks.items():
        for statement in block.body:
            for variable in statement.list_vars():
                where[variable.name].add(label)
    blocks, cache = dict(blocks), _CacheListVars()

    def of(labels: set[Any]) -> dict[Any, Any]:
        return {label: block for label, block in blocks.items() if label in labels}

    for name in _find_defs_violators(blocks, cfg):
        fresh, definitions = _fresh_vars(of(where[name]), name)
        blocks.update(fresh)
        labels = where[name] | _compute_phi_locations(frontiers, definitions)
        blocks.update(_fix_ssa_vars(of(labels), name, definitions, cfg, frontiers, cache))
    return blocks


def define_in_scopes(blocks: Mapping[Any, Any]) -> None:
    """Defines all variables in the scope of every block.

    Args:
      blocks: As for `one_assignment_each`.
    """
    used = {
        variable: None for block in blocks.values() for each in block.body for variable in each.list_vars()
    }
    for scope in {id(block.scope): block.scope for block in blocks.values()}.values():
        for variable in used:
            if variable.name not in scope.localvars:
                scope.localvars.define(variable.name, variable)


def post_processed(processor: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """``PostProcessor.run`` without the variables that live at the entries of blocks, which nothing reads.

    Args:
      processor: Numba's, of a function that is no generator; other functions are given to its own method.
      emit_dels: Whether deletions of variables are inserted.
      extend_lifetimes: Whether they come at the ends of blocks.
    """
    function = processor.func_ir
    if function.is_generator:
        _post_process(processor, emit_dels, extend_lifetimes)
        return
    function.blocks = transforms.canonicalize_cfg(function.blocks)
    function.variable_lifetime = VariableLifetime(function.blocks)
    function.generator_info = None
    if emit_dels:
        processor._insert_var_dels(extend_lifetimes=extend_lifetimes)


def variables_of(instruction: Any, value: Any) -> list[Any]:
    """``Inst._rec_list_vars``: all variables in a value, in its order."""
    kind = type(value)
    if kind is dict:
        value = value.values()
    elif kind is ir.Var:
        return [value]
    elif kind is not list and kind is not tuple:
        return value.list_vars() if isinstance(value, ir.Inst) else []
    found = []
    for each in value:
        kind = type(each)
        if kind is ir.Var:
            found.append(each)
        elif kind not in _PLAIN:
            found += variables_of(instruction, each)
    return found


def remembered(ask: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseFunction.get_call_type``, which answers the same question once.

    Only operators and Numba's own functions of types are remembered: asking another function also compiles
    it, and equal constants may have different types.
    """
    answers: dict[Any, Any] = {}

    def asked(function: Any, context: Any, args: Any, kws: Any) -> Any:
        known = isinstance(function, types.Function) and not kws
        if not known or not all(isinstance(each, types.Type) for each in args):
            return ask(function, context, args, kws)
        question = (context, function, tuple(args))
        if question not in answers:
            answers[question] = ask(function, context, args, kws)
        return answers[question]

    return asked

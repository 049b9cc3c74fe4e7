"""Tests of all searchers. A new searcher needs one line in SEARCHERS."""

import concurrent.futures
import dataclasses
import itertools
import math
import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regal_jax.errors import ConfigError
from regal_jax.search import (
    AnnealingConfig,
    AnnealingParams,
    AnnealingSearcher,
    BrkgaConfig,
    BrkgaSearcher,
    Inputs,
    Limits,
    Status,
    Stopping,
    UniformProposal,
    run,
    run_chunk,
    run_traced,
    start,
)

N = 7
SAMPLE = UniformProposal.of({"a": jax.ShapeDtypeStruct((N,), jnp.uint16)})


def distance(problem, genes):
    """A distance that is exact in float32 and so does not depend on compilation."""
    gap = jnp.abs((genes["a"] >> 8).astype(jnp.int32) - problem[:, None])
    return gap.sum(-1).astype(jnp.float32)


SEEN: list[tuple[int, ...]] = []


def counted(problem, genes):
    jax.debug.callback(lambda x: SEEN.append(x.shape[:2]), genes["a"])
    return distance(problem, genes)


SMALL = {"population": 12, "elites": 4, "mutants": 3}
CONFIGS = {
    "classic": BrkgaConfig(**SMALL),
    "everything": BrkgaConfig(
        **SMALL,
        parents=4,
        elite_parents=2,
        bias="quadratic",
        islands=3,
        exchange_every=4,
        exchange_elites=2,
        restart_after=150,
    ),
    "random search": BrkgaConfig(population=12, elites=0, mutants=12),
    "neighbours": BrkgaConfig(**SMALL, islands=2, neighbours=2),
}


@dataclasses.dataclass(frozen=True)
class Redraw:
    """A neighbour: one gene is drawn anew."""

    words: int = 2

    def __call__(self, problem, genes, bits):
        place = jax.lax.broadcasted_iota(jnp.uint32, genes["a"].shape, 2) == (bits[..., :1] % N)
        return {"a": jnp.where(place, (bits[..., 1:] & 0xFFFF).astype(jnp.uint16), genes["a"])}


CHAINS = {
    "annealing": AnnealingConfig(chains=3, initial_temperature=0.1, final_temperature=0.001),
    "cool annealing": AnnealingConfig(chains=2),
    "local search": AnnealingConfig.local_search(chains=4, restart_after=30),
}
SEARCHERS = {name: BrkgaSearcher(distance, SAMPLE, config, Redraw()) for name, config in CONFIGS.items()} | {
    name: AnnealingSearcher(distance, SAMPLE, Redraw(), config) for name, config in CHAINS.items()
}


def searchers(*slow):
    """The searchers as parameters of a test, of which some are slow."""
    return pytest.mark.parametrize(
        "searcher",
        [
            pytest.param(searcher, id=name, marks=pytest.mark.slow if name in slow else ())
            for name, searcher in SEARCHERS.items()
        ],
    )


# "cool annealing" differs from "annealing" in numbers alone. The other two are "classic" without elites and
# "annealing" without a temperature; test_solvers.py searches with them by default.
SPECIAL = ("cool annealing", "random search", "local search")
every_searcher = searchers(*SPECIAL)
most_searchers = searchers("neighbours", *SPECIAL)


def problem(batch, seed=3):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 256, (batch, N)), jnp.int32)


def inputs(batch=3, searcher=None):
    params = None
    if isinstance(searcher, AnnealingSearcher):
        params = AnnealingParams.of(None, searcher.config, 2000, batch)
    return Inputs(problem(batch), params, jax.random.split(jax.random.key(4), batch))


def rows(x, *which):
    return jax.tree.map(lambda leaf: leaf[np.array(which)], x)


def same(a, b):
    np.testing.assert_array_equal(a.genes["a"], b.genes["a"])
    np.testing.assert_array_equal(a.fitness, b.fitness)
    np.testing.assert_array_equal(a.evaluations, b.evaluations)
    np.testing.assert_array_equal(a.history_fitness, b.history_fitness)
    np.testing.assert_array_equal(a.history_evaluations, b.history_evaluations)
    assert a.status == b.status


@every_searcher
def test_genes_fitness_and_history_agree(searcher):
    x = inputs(searcher=searcher)
    result = run(searcher, x, Stopping(700))
    assert result.genes["a"].dtype == np.uint16
    np.testing.assert_array_equal(
        distance(x.problem, {"a": result.genes["a"][:, None]})[:, 0], result.fitness
    )
    assert (np.diff(result.history_fitness, axis=0) <= 0).all()
    np.testing.assert_array_equal(result.history_fitness[-1], result.fitness)
    np.testing.assert_array_equal(result.history_evaluations[-1], result.evaluations)
    assert result.status == (Status.BUDGET,) * 3
    assert (result.fitness < result.history_fitness[0]).all()


def test_some_mutants_are_neighbours_of_elites_of_their_island():
    searcher, x = SEARCHERS["neighbours"], inputs(2)
    state, step = jax.jit(lambda x: searcher.init(x, None))(x), jax.jit(searcher.step)
    for _ in range(3):
        state = step(x, state)
        elites = np.asarray(state.elites["a"]).reshape(2, 2, 4, N)
        mutants = np.asarray(state.newcomers["a"])[:, -6:].reshape(2, 2, 3, N)
        apart = (mutants[:, :, :, None] != elites[:, :, None]).sum(axis=-1).min(axis=-1)
        # The last two of three differ from an elite in at most one gene; the first is a fresh draw.
        assert (apart[..., 1:] <= 1).all()
        assert (apart[..., 0] > 1).any()
    with pytest.raises(ConfigError, match="neighbours need a move_fn"):
        BrkgaSearcher(distance, SAMPLE, CONFIGS["neighbours"])


@pytest.mark.parametrize("spare", [0, 1, 35, 100])
@most_searchers
def test_evaluations_are_counted_and_never_exceed_the_budget(searcher, spare):
    searcher = dataclasses.replace(searcher, fitness_fn=counted)
    budget = searcher.first_evaluations + spare
    SEEN.clear()
    result = run(searcher, inputs(2, searcher), Stopping(budget))
    jax.effects_barrier()
    spent = sum(q for _, q in SEEN)
    assert result.evaluations.tolist() == [spent, spent]
    assert budget - searcher.step_evaluations < spent <= budget
    generations = spare // searcher.step_evaluations
    assert result.history_fitness.shape == (generations + 1, 2)
    expected = searcher.first_evaluations + searcher.step_evaluations * np.arange(generations + 1)
    np.testing.assert_array_equal(result.history_evaluations[:, 1], expected)


@every_searcher
def test_a_budget_below_the_first_population_is_refused(searcher):
    with pytest.raises(ConfigError, match="do not pay for a first population of"):
        run(searcher, inputs(searcher=searcher), Stopping(searcher.first_evaluations - 1))


@every_searcher
def test_chunks_change_nothing(searcher):
    budget = searcher.first_evaluations + 300 * searcher.step_evaluations
    whole = run(searcher, inputs(searcher=searcher), Stopping(budget))
    assert len(whole.history_fitness) == 301
    for chunk in (7, 100, 256):
        same(whole, run(searcher, inputs(searcher=searcher), Stopping(budget), chunk=chunk))


@every_searcher
def test_one_generation_at_a_time_changes_nothing(searcher):
    budget = searcher.first_evaluations + 9 * searcher.step_evaluations
    same(
        run(searcher, inputs(searcher=searcher), Stopping(budget)),
        run(searcher, inputs(searcher=searcher), Stopping(budget), chunk=1),
    )


@most_searchers
def test_company_changes_nothing(searcher):
    x = inputs(searcher=searcher)
    # Each graph has its own target, so that some finish long before the others.
    target = np.array([300, 80, -1], np.float32)
    stopping = Stopping(3000, target=target)
    together = run(searcher, x, stopping)
    assert len(set(together.evaluations.tolist())) > 1
    for which in [(0,), (1,), (2,), (2, 0, 1)]:
        some = run(searcher, rows(x, *which), Stopping(3000, target=target[np.array(which)]))
        for row, b in enumerate(which):
            np.testing.assert_array_equal(some.genes["a"][row], together.genes["a"][b])
            assert some.fitness[row] == together.fitness[b]
            assert some.evaluations[row] == together.evaluations[b]
            assert some.status[row] == together.status[b]
            length = len(some.history_fitness)
            np.testing.assert_array_equal(some.history_fitness[:, row], together.history_fitness[:length, b])


# Execution without jit is slow, so only one searcher is in the default tests.
# By default, `test_traced_form_is_the_same_search` compares two programs.
@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHERS)
def test_jit_changes_nothing(name):
    searcher = SEARCHERS[name]
    x, limits = inputs(2, searcher), Limits.none(2)

    def whole():
        state = start(searcher, x, limits)
        return run_chunk(searcher, x, limits, state, jnp.int32(2), history=4)

    jitted = jax.device_get(jax.jit(whole)())
    with jax.disable_jit():
        plain = jax.device_get(whole())
    chex.assert_trees_all_equal(jitted, plain)


@most_searchers
def test_traced_form_is_the_same_search(searcher):
    x = inputs(searcher=searcher)
    generations = 6
    traced = jax.jit(lambda x, g: run_traced(searcher, x, g).incumbent)(x, generations)
    result = run(searcher, x, Stopping(searcher.first_evaluations + generations * searcher.step_evaluations))
    np.testing.assert_array_equal(traced.genes["a"], result.genes["a"])
    np.testing.assert_array_equal(traced.fitness, result.fitness)
    np.testing.assert_array_equal(traced.evaluations, result.evaluations)


@every_searcher
def test_target_stops_at_the_first_generation_that_reaches_it(searcher):
    free = run(searcher, inputs(searcher=searcher), Stopping(2000))
    target = 250.0
    result = run(searcher, inputs(searcher=searcher), Stopping(2000, target=target))
    for b in range(3):
        reached = int(np.argmax(free.history_fitness[:, b] <= target))
        assert result.status[b] == Status.TARGET
        assert result.fitness[b] == free.history_fitness[reached, b]
        assert result.evaluations[b] == free.history_evaluations[reached, b]


def test_target_met_by_the_first_population():
    result = run(SEARCHERS["classic"], inputs(), Stopping(2000, target=math.inf))
    assert result.evaluations.tolist() == [12] * 3
    assert result.history_fitness.shape == (1, 3)


@every_searcher
def test_stall_stops_when_too_long_without_improvement(searcher):
    free = run(searcher, inputs(searcher=searcher), Stopping(20_000))
    stall = 150
    result = run(searcher, inputs(searcher=searcher), Stopping(20_000, stall=stall))
    for b in range(3):
        fitness, evaluations = free.history_fitness[:, b], free.history_evaluations[:, b]
        improved = evaluations[0]
        for g in range(1, len(fitness)):
            improved = evaluations[g] if fitness[g] < fitness[g - 1] else improved
            if evaluations[g] - improved >= stall:
                break
        assert result.status[b] == Status.STALL
        assert result.evaluations[b] == evaluations[g]
        assert result.fitness[b] == fitness[g]


@every_searcher
def test_interrupt_returns_the_incumbent_so_far(searcher):
    seen = []

    def stop_third(progress):
        seen.append(progress)
        if len(seen) == 3:
            raise KeyboardInterrupt

    full = run(searcher, inputs(searcher=searcher), Stopping(2000))
    result = run(searcher, inputs(searcher=searcher), Stopping(2000), callback=stop_third, chunk=4)
    assert result.status == (Status.INTERRUPTED,) * 3
    assert [p.generation for p in seen] == [0, 4, 8]
    np.testing.assert_array_equal(result.history_fitness, full.history_fitness[:9])
    np.testing.assert_array_equal(result.fitness, full.history_fitness[8])
    np.testing.assert_array_equal(
        distance(problem(3), {"a": result.genes["a"][:, None]})[:, 0], result.fitness
    )


def pressing_ctrl_c(problem, genes):
    def press(fitness):
        signal.raise_signal(signal.SIGINT)
        return fitness

    fitness = distance(problem, genes)
    return jax.pure_callback(press, fitness, fitness)


def test_ctrl_c_inside_a_compiled_chunk():
    result = run(
        dataclasses.replace(SEARCHERS["classic"], fitness_fn=pressing_ctrl_c), inputs(), Stopping(2000)
    )
    assert result.status == (Status.INTERRUPTED,) * 3
    assert result.evaluations[0] in (12, 20)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_runs_off_the_main_thread():
    with concurrent.futures.ThreadPoolExecutor() as pool:
        other = pool.submit(run, SEARCHERS["classic"], inputs(), Stopping(700)).result()
    same(other, run(SEARCHERS["classic"], inputs(), Stopping(700)))


def test_interrupt_before_there_is_anything_passes_through():
    def interrupted(problem, genes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(BrkgaSearcher(interrupted, SAMPLE, BrkgaConfig()), inputs(), Stopping(2000))


def test_interrupt_leaves_a_finished_instance_as_it_ended():
    def stop(progress):
        if progress.generation:
            raise KeyboardInterrupt

    target = np.array([math.inf, -1, -1])
    result = run(SEARCHERS["classic"], inputs(), Stopping(2000, target=target), callback=stop)
    assert result.status == (Status.TARGET, Status.INTERRUPTED, Status.INTERRUPTED)


def test_other_errors_of_the_callback_are_not_swallowed():
    def broken(progress):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(SEARCHERS["classic"], inputs(), Stopping(2000), callback=broken)


def test_time_limit():
    result = run(SEARCHERS["classic"], inputs(), Stopping(2**31 - 1, seconds=0.5))
    assert result.status == (Status.TIME,) * 3
    assert 0.5 <= result.seconds < 10
    assert result.evaluations[0] > 12


def test_progress_tells_the_truth():
    seen = []
    result = run(SEARCHERS["everything"], inputs(), Stopping(2000), callback=seen.append, chunk=20)
    assert [p.generation for p in seen] == [0, 20, 40, 60, 80, 81]
    assert {p.generations for p in seen} == {81}
    for p in seen:
        np.testing.assert_array_equal(p.fitness, result.history_fitness[p.generation])
        np.testing.assert_array_equal(p.evaluations, result.history_evaluations[p.generation])
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(seen))


@pytest.mark.parametrize("chunk", [0, 257, 1.5])
def test_impossible_chunks_are_refused(chunk):
    with pytest.raises(ConfigError, match="run: chunk is"):
        run(SEARCHERS["classic"], inputs(), Stopping(100), chunk=chunk)


def test_targets_must_match_the_instances():
    with pytest.raises(ConfigError, match="2 targets for 3 instances; give one each"):
        run(SEARCHERS["classic"], inputs(), Stopping(100, target=[1.0, 2.0]))


def test_one_trace_serves_every_budget_problem_and_stopping_rule():
    # Once in the first population, once in the loop.
    traced = chex.assert_max_traces(n=2)(lambda problem, genes: distance(problem, genes))
    searcher = BrkgaSearcher(traced, SAMPLE, BrkgaConfig(population=12, elites=4, mutants=3))
    for evaluations, stall, target, seed in [
        (50, None, None, 0),
        (900, 100, 5.0, 1),
        (5000, 7, [1, 2, 3], 2),
    ]:
        x = Inputs(problem(3, seed), None, jax.random.split(jax.random.key(seed), 3))
        run(dataclasses.replace(searcher), x, Stopping(evaluations, stall=stall, target=target))


def test_the_callers_keys_and_problem_survive():
    x = inputs()
    run(SEARCHERS["classic"], x, Stopping(500))
    jax.block_until_ready((x.keys, x.problem))
    run(SEARCHERS["classic"], x, Stopping(500))

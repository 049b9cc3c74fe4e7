"""Annealing and local search, beyond the tests of all searchers (test_search_conformance.py)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from regal_jax.errors import ConfigError
from regal_jax.programs import clear, count
from regal_jax.search import (
    AnnealingConfig,
    AnnealingParams,
    Inputs,
    Status,
    Stopping,
    UniformProposal,
    WarmStart,
    anneal,
    run,
)
from regal_jax.search.local import AnnealingSearcher

N = 6
SAMPLE = UniformProposal.of(jax.ShapeDtypeStruct((N,), jnp.uint16))


def distance(problem, genes):
    gap = jnp.abs((genes >> 8).astype(jnp.int32) - problem[:, None])
    return gap.sum(-1).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Redraw:
    words: int = 2

    def __call__(self, problem, genes, bits):
        place = jax.lax.broadcasted_iota(jnp.uint32, genes.shape, 2) == (bits[..., :1] % N)
        return jnp.where(place, (bits[..., 1:] & 0xFFFF).astype(jnp.uint16), genes)


def problem(batch=2):
    return jnp.asarray(np.random.default_rng(3).integers(0, 256, (batch, N)), jnp.int32)


def search(evaluations=500, batch=2, fitness=distance, **options):
    keys = jax.random.split(jax.random.key(0), batch)
    options = {"sample_fn": SAMPLE, "move_fn": Redraw(), **options}
    return anneal(fitness, problem(batch), keys, Stopping(evaluations), **options)


def accepted(config, evaluations):
    """The fitness of the state of a single chain after each step."""
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Watched(AnnealingSearcher):
        def step(self, inputs, state):
            state = super().step(inputs, state)
            jax.debug.callback(lambda f: seen.append(float(f[0, 0])), state.fitness, ordered=True)
            return state

    searcher = Watched(distance, SAMPLE, Redraw(), config)
    params = AnnealingParams.of(None, config, evaluations, 1)
    run(searcher, Inputs(problem(1), params, jax.random.split(jax.random.key(0), 1)), Stopping(evaluations))
    jax.effects_barrier()
    return np.array(seen)


@pytest.mark.parametrize(
    "config",
    [AnnealingConfig(chains=3), pytest.param(AnnealingConfig(restart_after=5), marks=pytest.mark.slow)],
)
def test_device_count_changes_nothing(config):
    one, two = (
        search(batch=4, config=config, mesh=Mesh(np.array(jax.devices()[:count]), ("graphs",)))
        for count in (1, 2)
    )
    np.testing.assert_array_equal(one.genes, two.genes)
    np.testing.assert_array_equal(one.history_fitness, two.history_fitness)
    np.testing.assert_array_equal(one.evaluations, two.evaluations)
    np.testing.assert_array_equal(search(batch=4, config=config).genes, two.genes)
    assert len(np.unique(two.fitness)) > 1


def test_local_search_never_goes_up_and_annealing_does_while_it_is_hot():
    assert (np.diff(accepted(AnnealingConfig.local_search(), 600)) <= 0).all()
    path = accepted(AnnealingConfig(1, 1.0, 1e-6), 2000)
    up = np.diff(path) > 0
    assert up[:500].sum() > 50
    assert up[-500:].sum() == 0
    assert path[-1] < path[:500].min()


def test_a_hotter_neighbour_is_accepted_by_the_rule_of_metropolis():
    @dataclasses.dataclass(frozen=True)
    class Up:
        """A neighbour that is always worse by one."""

        words: int = 1

        def __call__(self, problem, genes, bits):
            return genes + jnp.uint16(1)

    def level(problem, genes):
        return 1000 + genes.astype(jnp.float32)

    zero = WarmStart(jnp.zeros((1, 400, 1), jnp.uint16), jnp.full(1, 400, jnp.int32))
    sample = UniformProposal.of(jax.ShapeDtypeStruct((1,), jnp.uint16))
    # A temperature of 2 in units of the level: accepted with probability exp(-1 / 2).
    config = AnnealingConfig(400, 0.002, 0.002)
    searcher = AnnealingSearcher(lambda p, g: level(p, g)[..., 0], sample, Up(), config)
    inputs = Inputs(None, AnnealingParams.of(None, config, 10**6, 1), jax.random.key(0)[None])
    state = jax.jit(searcher.init)(inputs, zero)
    step = jax.jit(searcher.step)
    for _ in range(25):
        state = step(inputs, state)
    share = float(state.genes.mean()) / 25
    assert abs(share - np.exp(-0.5)) < 5 * np.sqrt(0.61 * 0.39 / 10_000)


@pytest.mark.parametrize("budget", [1, 100, 256, 300, 511, 512, 1023, 20_000, 2**31 - 1])
def test_the_temperature_falls_over_the_whole_budget(budget):
    config = AnnealingConfig(1, 0.9, 0.1)
    sample = UniformProposal.of(jax.ShapeDtypeStruct((1,), jnp.uint16))
    searcher = AnnealingSearcher(lambda p, g: jnp.ones(g.shape[:2], jnp.float32), sample, None, config)
    inputs = Inputs(None, AnnealingParams.of(None, config, budget, 1), jax.random.key(0)[None])
    state = searcher.init(inputs, None)
    falls = config.temperatures()
    for spent in sorted({0, 1, budget // 3, budget // 2, max(budget - 1, 0), budget}):
        incumbent = dataclasses.replace(state.incumbent, evaluations=jnp.full(1, spent, jnp.int32))
        found = float(searcher._temperature(inputs, dataclasses.replace(state, incumbent=incumbent))[0])
        step = 256 * spent // budget
        assert found in (falls[step], falls[min(step + (budget > 2**23), 256)])  # As float32 rounds.


def test_temperatures_beyond_float32_are_the_largest():
    falls = AnnealingConfig(1, 1e308, 1e-308).temperatures()
    assert falls[0] == np.finfo(np.float32).max
    assert falls[-1] == 0
    assert np.all(np.diff(falls) <= 0)


def test_chains_begin_at_the_warm_starts():
    best = (problem() << 8).astype(jnp.uint16)
    warm = WarmStart(best[:, None], jnp.asarray([1, 0], jnp.int32))
    result = search(1, warm=warm)
    assert result.fitness[0] == 0
    assert result.fitness[1] > 0
    # More than there are chains: the best come first, the others are left out.
    worse = jnp.stack([best, jnp.zeros_like(best)], axis=1)
    result = search(1, warm=WarmStart(worse, jnp.full(2, 2, jnp.int32)))
    assert result.fitness.tolist() == [0, 0]
    none = WarmStart(jnp.zeros((2, 0, N), jnp.uint16), jnp.zeros(2, jnp.int32))
    np.testing.assert_array_equal(search(50, warm=none).genes, search(50).genes)


def test_a_chain_that_is_stuck_starts_afresh():
    flat = []

    def constant(problem, genes):
        jax.debug.callback(lambda g: flat.append(np.array(g[0, 0])), genes, ordered=True)
        return jnp.ones(genes.shape[:2], jnp.float32)

    search(40, batch=1, fitness=constant, config=AnnealingConfig.local_search(restart_after=10))
    jax.effects_barrier()
    differ = (np.diff(np.stack(flat).astype(int), axis=0) != 0).sum(axis=1)
    # Ten neighbours, then a draw in which everything is new.
    assert np.flatnonzero(differ > 1).tolist() == [10, 21, 32]


def test_what_is_no_number_never_wins():
    def sometimes(problem, genes):
        value = distance(problem, genes)
        return jnp.where(genes[..., 0] % 2 == 0, jnp.nan, jnp.where(genes[..., 1] % 2 == 0, jnp.inf, value))

    result = search(800, fitness=sometimes)
    assert np.isfinite(result.fitness).all()
    assert (result.genes[:, :2] % 2 == 1).all()
    result = search(20, fitness=lambda p, g: jnp.full(g.shape[:2], jnp.nan, jnp.float32))
    assert np.isinf(result.fitness).all()


@pytest.mark.parametrize("evaluations", [1, 2, 3, 4, 9])
def test_small_budgets(evaluations):
    result = search(evaluations, config=AnnealingConfig(chains=4))
    assert 1 <= result.evaluations[0] <= evaluations
    assert result.status == (Status.BUDGET,) * 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"chains": 0}, "chains is 0"),
        ({"chains": 1.5}, "chains is 1.5"),
        ({"restart_after": 0}, "restart_after is 0"),
        ({"initial_temperature": float("nan")}, "initial_temperature is nan"),
        ({"final_temperature": -1}, "final_temperature is -1"),
        ({"initial_temperature": 0.1, "final_temperature": 0}, "cannot fall from 0.1 to 0"),
        ({"initial_temperature": 0.1, "final_temperature": 0.2}, "cannot fall from 0.1 to 0.2"),
    ],
)
def test_impossible_settings(settings, said):
    with pytest.raises(ConfigError, match=said):
        AnnealingConfig(**settings)


def test_bad_arguments():
    with pytest.raises(ConfigError, match="one typed key per instance"):
        anneal(distance, problem(), jax.random.key(0), Stopping(5), sample_fn=SAMPLE, move_fn=Redraw())
    with pytest.raises(ConfigError, match="encode them alike"):
        search(warm=WarmStart(jnp.zeros((2, 1, N + 1), jnp.uint16), jnp.ones(2, jnp.int32)))
    with pytest.raises(ConfigError, match=r"fitness_fn: returned float32\[2, 1, 6\]"):
        search(fitness=lambda p, g: g.astype(jnp.float32))
    searcher = AnnealingSearcher(distance, SAMPLE, Redraw(), AnnealingConfig())
    inputs = Inputs(problem(), None, jax.random.split(jax.random.key(0), 2))
    with pytest.raises(ConfigError, match=r"inputs.params must be AnnealingParams"):
        run(searcher, inputs, Stopping(5))


def test_annealing_and_local_search_are_one_program():
    """Settings that are data share programs; a higher temperature gives another result."""
    clear()
    still, warm = search(config=AnnealingConfig.local_search()), search(config=AnnealingConfig(1, 0.5, 0.5))
    assert count() == 2  # A first population and a chunk.
    assert not np.array_equal(still.history_fitness, warm.history_fitness)

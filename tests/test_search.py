"""Tests of BRKGA; test_search_conformance.py has the tests of all searchers."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regal_jax.errors import ConfigError
from regal_jax.search import (
    BiasFunction,
    BrkgaConfig,
    BrkgaSearcher,
    Inputs,
    Limits,
    Status,
    Stopping,
    TransformedProposal,
    UniformProposal,
    WarmStart,
    brkga,
    expand,
    random_keys,
    start,
)
from regal_jax.search.draws import distinct

U16 = jnp.uint16
SMALL = BrkgaConfig(population=12, elites=4, mutants=3)


def keys(batch=1, seed=0):
    return jax.random.split(jax.random.key(seed), batch)


def uniform(*shape):
    return UniformProposal.of(jax.ShapeDtypeStruct(shape, U16))


def distance(problem, genes):
    """Sum of |gene - planted gene| in units of 256: integers, exact in float32."""
    gap = jnp.abs((genes >> 8).astype(jnp.int32) - problem[:, None].astype(jnp.int32))
    return gap.sum(-1).astype(jnp.float32)


def init(searcher, inputs, warm=None):
    return jax.jit(searcher.init)(inputs, warm)


@functools.partial(jax.jit, static_argnums=0)
def population(searcher, state):
    return searcher.population(state)


def planted(batch, n=6):
    return jnp.asarray(np.random.default_rng(5).integers(0, 256, (batch, n)), jnp.int32)


# Draws


def test_expand_is_the_generator_of_jax():
    key = jax.random.key(3)
    words = jax.random.bits(key, (11,), jnp.uint32)
    got = expand(jax.random.key_data(key), (11, 2))
    np.testing.assert_array_equal(got, np.asarray(words).view(np.uint16).reshape(11, 2))


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_expand_padded_begins_with_the_unpadded(n):
    seeds = jax.random.bits(jax.random.key(0), (4, 2), jnp.uint32)
    draw = jax.jit(expand, static_argnums=1)
    assert draw(seeds, (n, 3)).shape == (4, n, 3)
    np.testing.assert_array_equal(draw(seeds, (n, 3)), np.asarray(draw(seeds, (n + 9, 3)))[:, :n])


def test_streams_and_leaves_differ():
    shape = jax.ShapeDtypeStruct((1000,), U16)
    pair = random_keys(jax.random.key(0), {"a": shape, "b": shape})
    assert np.mean(pair["a"] == pair["b"]) < 0.01
    assert abs(np.corrcoef(pair["a"], pair["b"])[0, 1]) < 0.15


def test_uniform_genes_are_uniform():
    genes = np.asarray(random_keys(jax.random.key(1), jax.ShapeDtypeStruct((160_000,), U16)))
    counts = np.bincount(genes >> 12, minlength=16)
    # Chi-square with 15 degrees of freedom: 37.7 is exceeded once in a thousand.
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 37.7


@pytest.mark.parametrize(("picks", "population"), [(1, 5), (2, 5), (3, 5), (5, 5), (1, 1)])
def test_distinct_draws_every_set_equally_often(picks, population):
    rows = 20_000
    got = np.asarray(distinct(jax.random.bits(jax.random.key(2), (rows, picks), jnp.uint32), population))
    assert (np.diff(got, axis=1) > 0).all()
    assert got.min() >= 0
    assert got.max() < population
    _, counts = np.unique(got, axis=0, return_counts=True)
    assert len(counts) == math.comb(population, picks)
    expected = rows / len(counts)
    np.testing.assert_allclose(counts, expected, atol=5 * math.sqrt(expected))


# Configs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"population": 0}, "population is 0; give a whole number from 1 to"),
        ({"population": 2.5}, "population is 2.5; give a whole number from 1"),
        ({"population": True}, "population is True; give a whole number"),
        ({"elites": -1}, "elites is -1; give a whole number from 0 to"),
        (
            {"elites": 100, "mutants": 0},
            "elites is 100, which leaves no newcomers in a population of 100; lower",
        ),
        ({"mutants": 10, "neighbours": 11}, "neighbours is 11 of 10 mutants and 20 elites; lower it"),
        ({"elites": 60, "mutants": 60}, "elites + mutants is 120, more than the population of 100; lower"),
        ({"elites": 0}, "a child needs 1 elite and 1 other parents, but there are 0 and 100; mend"),
        ({"elite_bias": 1.0}, "elite_bias is 1.0; choose a number in [0.5, 1)"),
        ({"elite_bias": 0.4}, "elite_bias is 0.4; choose a number in [0.5, 1)"),
        ({"elite_bias": math.nan}, "elite_bias is nan; choose a number in [0.5, 1)"),
        ({"elite_bias": "0.7"}, "elite_bias is '0.7'; choose a number in [0.5, 1)"),
        ({"parents": 1}, "parents is 1; give a whole number from 2 to"),
        ({"parents": 3}, "3 parents need a bias function; set bias to one of constant, linear"),
        ({"elite_parents": 2}, "elite_parents is 2 of 2 parents; at least one parent must not be elite"),
        (
            {"bias": "sinus"},
            "bias is 'sinus'; use one of constant, linear, quadratic, cubic, exponential, logar",
        ),
        (
            {"parents": 30, "elite_parents": 25, "bias": "linear"},
            "a child needs 25 elite and 5 other parents",
        ),
        ({"islands": 0}, "islands is 0; give a whole number from 1 to"),
        ({"islands": 2**30}, "islands * population is 107374182400; give a whole number from 1 to"),
        ({"islands": None}, "islands is None; give a whole number"),
        ({"exchange_every": 0}, "exchange_every is 0; give a whole number from 1 to"),
        ({"islands": 2, "exchange_every": 1, "exchange_elites": 21}, "can exchange at most 20"),
        ({"restart_after": 0}, "restart_after is 0; give a whole number from 1 to"),
    ],
)
def test_impossible_configs_are_refused(settings, message):
    with pytest.raises(ConfigError) as error:
        BrkgaConfig(**settings)
    assert message in str(error.value)
    assert str(error.value).startswith("BrkgaConfig: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluations": 0}, "evaluations is 0; give a whole number from 1 to"),
        ({"evaluations": 2**31}, "evaluations is 2147483648; give"),
        ({"evaluations": 9, "stall": 0}, "stall is 0; give"),
        ({"evaluations": 9, "seconds": 0}, "seconds is 0; give a number above zero"),
        ({"evaluations": 9, "seconds": math.nan}, "seconds is nan; give a number above zero"),
        ({"evaluations": 9, "seconds": "1"}, "seconds is '1'; give a number above zero"),
        ({"evaluations": 9, "target": math.nan}, "target is nan; give a number"),
        ({"evaluations": 9, "target": "low"}, "target is 'low'; give a number"),
    ],
)
def test_impossible_stopping_is_refused(settings, message):
    with pytest.raises(ConfigError) as error:
        Stopping(**settings)
    assert message in str(error.value)


def test_bias_functions_weigh_as_in_brkga_mp_ipr():
    # Sums over ten parents, from the tests of the authors' library.
    sums = {"logarithmic": 6.554970525044798, "linear": 2.9289682539682538, "quadratic": 1.5497677311665408}
    sums |= {"cubic": 1.197531985674193, "exponential": 0.5819502851677112, "constant": 10.0}
    for name, total in sums.items():
        assert BiasFunction(name).weights(10).sum() == pytest.approx(total)


@pytest.mark.parametrize("evaluations", [1, 7, 99, 100, 250, 299, 300, 10_000])
def test_fit_never_exceeds_the_budget(evaluations):
    config = BrkgaConfig(islands=3, exchange_every=5).fit(evaluations)
    spent = config.first_evaluations + config.generations(evaluations) * config.step_evaluations
    assert spent <= evaluations
    assert spent + config.step_evaluations > evaluations
    if evaluations >= 300:
        assert config.islands == 3


# Breeding


def copies(problem, genes):
    return genes[..., 0].astype(jnp.float32)


def parent_of_each_gene(config, genes=4000):
    """Breeds one generation from constant individuals, in which the value of all genes is the rank."""
    searcher = BrkgaSearcher(copies, uniform(genes), config)
    inputs = Inputs(None, None, keys())
    state = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda: searcher.init(inputs, None))
    )
    value = jnp.arange(config.population, dtype=U16)
    state = dataclasses.replace(
        state,
        bits=jax.random.bits(jax.random.key(9), state.bits.shape, jnp.uint32),
        elites=jnp.broadcast_to(value[None, : config.elites, None], state.elites.shape),
        newcomers=jnp.broadcast_to(value[None, config.elites :, None], state.newcomers.shape),
        fitness=value.astype(jnp.float32)[None, None],
    )
    after = jax.jit(searcher.step)(inputs, state)
    return np.asarray(after.newcomers)[0, : config.children]


@pytest.mark.parametrize("rho", [0.7, *(pytest.param(r, marks=pytest.mark.slow) for r in (0.5, 0.95))])
def test_children_inherit_from_the_elite_with_the_elite_bias(rho):
    children = parent_of_each_gene(BrkgaConfig(elite_bias=rho))
    assert children.shape == (65, 4000)
    for child in children:
        assert len(np.unique(child)) == 2  # exactly two parents, ...
        assert child.min() < 20 <= child.max()  # ... one of them elite
    share = (children < 20).mean(axis=1)
    np.testing.assert_allclose(share, rho, atol=5 * math.sqrt(0.25 / 4000))
    np.testing.assert_allclose(share.mean(), rho, atol=5 * math.sqrt(0.25 / 4000 / 65))
    # Parents are spread over their pools, to both ends.
    assert len(np.unique(children.min(axis=1))) > 15
    assert children.max() > 90


# The weights of the others are checked above; searches take them from the same table.
@pytest.mark.parametrize(
    "bias",
    [pytest.param(bias, marks=() if bias == "exponential" else pytest.mark.slow) for bias in BiasFunction],
)
def test_bias_functions_decide_which_parent_a_gene_comes_from(bias):
    config = BrkgaConfig(parents=5, elite_parents=2, bias=bias)
    weights = bias.weights(5)
    for child in parent_of_each_gene(config):
        values, counts = np.unique(child, return_counts=True)
        assert len(values) == 5
        assert (values < 20).sum() == 2
        np.testing.assert_allclose(counts / 4000, weights / weights.sum(), atol=5 * math.sqrt(0.25 / 4000))


def test_classic_form_is_the_special_case():
    a, b = (
        brkga(distance, planted(1), keys(), Stopping(900), sample_fn=uniform(6), config=c)
        for c in (BrkgaConfig(elite_bias=0.5), BrkgaConfig(bias="constant"))
    )
    np.testing.assert_array_equal(a.genes, b.genes)
    np.testing.assert_array_equal(a.history_fitness, b.history_fitness)


def sum_of_two_leaves(problem, genes):
    return (genes["x"].sum(-1, dtype=jnp.uint32) + genes["y"].sum((-1, -2), dtype=jnp.uint32)).astype(
        jnp.float32
    )


def test_children_never_overwrite_elites_and_elites_never_get_worse():
    sample = UniformProposal.of(
        {"x": jax.ShapeDtypeStruct((5,), U16), "y": jax.ShapeDtypeStruct((3, 2), U16)}
    )
    config = BrkgaConfig(population=20, elites=6, mutants=4, islands=2, exchange_every=3, exchange_elites=2)
    searcher = BrkgaSearcher(sum_of_two_leaves, sample, config)
    inputs = Inputs(None, None, keys(3))
    state = init(searcher, inputs)
    step = jax.jit(searcher.step)
    for generation in range(1, 13):
        old, state = jax.device_get((state, step(inputs, state)))
        old_genes, genes = (jax.device_get(population(searcher, each)) for each in (old, state))
        for b, i in np.ndindex(3, 2):
            fitness = old.fitness[b, i]
            order = np.argsort(fitness, kind="stable")
            pool = [(float(fitness[p]), i, p) for p in order]
            if generation % 3 == 0:
                other = np.argsort(old.fitness[b, 1 - i], kind="stable")[:2]
                guests = [(float(old.fitness[b, 1 - i, p]), 1 - i, p) for p in other]
                known = [guest[0] in fitness for guest in guests]
                last = [
                    native if k else guest for k, native, guest in zip(known, pool[-2:], guests, strict=True)
                ]
                pool = pool[:-2] + last
                pool.sort(key=lambda entry: entry[0])
            for e in range(6):
                value, island, p = pool[e]
                assert state.fitness[b, i, e] == value
                for name in ("x", "y"):
                    np.testing.assert_array_equal(genes[name][b, i, e], old_genes[name][b, island, p])
            assert (np.sort(state.fitness[b, i])[:6] <= np.sort(fitness)[:6]).all()
        # Stored fitness belongs to the stored genes, newcomers included.
        flat = {name: x.reshape(3, 40, *x.shape[3:]) for name, x in genes.items()}
        np.testing.assert_array_equal(sum_of_two_leaves(None, flat).reshape(3, 2, 20), state.fitness)
        np.testing.assert_array_equal(state.incumbent.fitness, state.fitness.min((1, 2)))


def test_first_population_is_neither_zero_nor_repeated():
    searcher = BrkgaSearcher(distance, uniform(50), BrkgaConfig(islands=2))
    state = init(searcher, Inputs(jnp.zeros((3, 50), jnp.int32), None, keys(3)))
    genes = np.asarray(population(searcher, state)).reshape(-1, 50)
    assert len(np.unique(genes, axis=0)) == 600
    means = genes.mean(axis=1) / 65535
    assert abs(means.mean() - 0.5) < 5 * math.sqrt(1 / 12 / genes.size)
    assert means.min() > 0.2
    assert means.max() < 0.8


def test_mutants_are_new_in_every_generation():
    searcher = BrkgaSearcher(distance, uniform(6), SMALL)
    inputs = Inputs(planted(1), None, keys())
    states = [init(searcher, inputs)]
    step = jax.jit(searcher.step)
    for _ in range(5):
        states.append(step(inputs, states[-1]))
    mutants = np.concatenate([np.asarray(population(searcher, s))[0, 0, -3:] for s in states])
    assert len(np.unique(mutants, axis=0)) == 18


def test_proposal_gets_the_parameters_of_its_instance():
    def sample(low, key):
        return random_keys(key, jax.ShapeDtypeStruct((6,), U16)) // U16(2) + low

    low = jnp.array([0, 30_000], U16)
    searcher = BrkgaSearcher(distance, sample, SMALL)
    inputs = Inputs(planted(2), low, keys(2))
    state = jax.jit(searcher.step)(inputs, init(searcher, inputs))
    mutants = np.asarray(population(searcher, state))[:, 0, -3:]
    assert mutants[0].max() <= 32767
    assert mutants[0].min() < 30_000 <= mutants[1].min()


def halve_the_first(low, genes):
    return {"x": genes["x"] // U16(2) + low, "y": genes["y"]}


@pytest.mark.parametrize(
    ("late", "restart_after"),
    [
        ((1,), 60),
        pytest.param((), None, marks=pytest.mark.slow),
        pytest.param((), 60, marks=pytest.mark.slow),
        pytest.param((1,), None, marks=pytest.mark.slow),
    ],
)
def test_drawing_ahead_changes_nothing(late, restart_after):
    uniform = UniformProposal.of(
        {"x": jax.ShapeDtypeStruct((5,), U16), "y": jax.ShapeDtypeStruct((3, 2), U16)}
    )
    config = BrkgaConfig(population=20, elites=5, mutants=4, islands=2, restart_after=restart_after)
    ahead = TransformedProposal(uniform, halve_the_first, late)
    results = [
        brkga(
            sum_of_two_leaves,
            None,
            keys(2),
            Stopping(400),
            sample_fn=sample,
            params=jnp.array([0, 9], U16),
            config=config,
        )
        for sample in (ahead, lambda low, key: halve_the_first(low, uniform(None, key)))
    ]
    np.testing.assert_array_equal(results[0].history_fitness, results[1].history_fitness)
    jax.tree.map(np.testing.assert_array_equal, results[0].genes, results[1].genes)


# Warm starts


@pytest.mark.parametrize("islands", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_warm_starts_lead_the_first_population(islands):
    config = BrkgaConfig(population=4, elites=1, mutants=1, islands=islands)
    searcher = BrkgaSearcher(distance, uniform(6), config)
    inputs = Inputs(planted(2), None, keys(2))
    genes = np.arange(2 * 3 * 6, dtype=np.uint16).reshape(2, 3, 6)
    cold = population(searcher, init(searcher, inputs))
    started = init(searcher, inputs, WarmStart(genes, jnp.array([3, 1], jnp.int32)))
    warm = np.asarray(population(searcher, started))
    expected = np.array(cold)
    for b, count in enumerate((3, 1)):
        for w in range(count):
            expected[b, w % islands, w // islands] = genes[b, w]
    np.testing.assert_array_equal(warm, expected)


def test_result_is_never_worse_than_a_warm_start():
    problem = planted(2)
    best = (problem << 8).astype(U16)[:, None]
    warm = WarmStart(best, jnp.array([1, 0], jnp.int32))
    result = brkga(distance, problem, keys(2), Stopping(1), sample_fn=uniform(6), warm=warm)
    assert result.fitness[0] == 0
    assert result.fitness[1] > 0
    np.testing.assert_array_equal(result.genes[0], best[0, 0])


def test_the_check_of_warm_starts_traces_a_proposal_once():
    sample, traces = uniform(6), []

    def counted(params, key):
        traces.append(key)
        return sample(params, key)

    problem, rows = planted(2), jnp.zeros((2, 1, 6), U16)
    for count in ([1, 0], [1, 1]):
        warm = WarmStart(rows, jnp.array(count, jnp.int32))
        brkga(distance, problem, keys(2), Stopping(12), sample_fn=counted, config=SMALL, warm=warm)
    # For the check, and for the first population and the mutants of the one program.
    assert len(traces) == 2


@pytest.mark.parametrize(
    ("genes", "count", "message"),
    [
        (
            np.zeros((1, 2, 5), np.uint16),
            [2],
            "warm: genes [B, ...] are (1, 5, 'uint16'), the proposal draws",
        ),
        (np.zeros((1, 2, 6), np.int32), [2], "warm: genes [B, ...] are (1, 6, 'int32'), the proposal draws"),
        (
            np.zeros((1, 13, 6), np.uint16),
            [2],
            "warm: [13] individuals per instance; give the same number for",
        ),
        (np.zeros((1, 2, 6), np.uint16), [3], "warm: count is [3]; give one number from 0 to 2 per instance"),
        (np.zeros((1, 2, 6), np.uint16), [1, 1], "warm: count is [1, 1]; give one number from 0 to 2"),
    ],
)
def test_wrong_warm_starts_are_refused(genes, count, message):
    warm = WarmStart(jnp.asarray(genes), jnp.array(count, jnp.int32))
    with pytest.raises(ConfigError) as error:
        brkga(distance, planted(1), keys(), Stopping(50), sample_fn=uniform(6), config=SMALL, warm=warm)
    assert message in str(error.value)


# Fitness


def broken_below(problem, genes):
    """NaN for the individuals that would be best, and for half of the others."""
    value = genes[..., 0].astype(jnp.float32)
    return jnp.where((value < problem) | (genes[..., 1] % U16(2) == 0), jnp.nan, value)


def test_nan_is_never_the_incumbent_nor_ahead_of_a_number():
    searcher = BrkgaSearcher(broken_below, uniform(2), SMALL)
    inputs = Inputs(jnp.float32(20_000), None, keys(2))
    state = init(searcher, inputs)
    step = jax.jit(searcher.step)
    for _ in range(10):
        state = step(inputs, state)
        assert not np.isnan(state.fitness).any()
        assert (state.incumbent.fitness >= 20_000).all()
        assert (state.incumbent.genes[:, 1] % 2 == 1).all()
    elites = np.asarray(population(searcher, state))[:, 0, :4]
    assert (elites[..., 0] >= 20_000).all()
    assert (elites[..., 1] % 2 == 1).all()


def always_nan(problem, genes):
    return jnp.full(genes.shape[:2], jnp.nan, jnp.float32)


def test_no_number_at_all():
    result = brkga(always_nan, None, keys(), Stopping(300), sample_fn=uniform(3))
    assert result.fitness.tolist() == [math.inf]
    assert result.status == (Status.BUDGET,)


def half_precision(problem, genes):
    return genes[..., 0].astype(jnp.float16)


def one_for_all(problem, genes):
    return genes.sum(dtype=jnp.uint32).astype(jnp.float32)


@pytest.mark.parametrize(
    ("fitness", "sample", "message"),
    [
        (half_precision, uniform(3), "fitness_fn: returned float16[1, 100]; return float32[1, 100]"),
        (one_for_all, uniform(3), "fitness_fn: returned float32[]; return float32[1, 100]"),
        (
            distance,
            lambda params, key: jax.random.uniform(key, (6,)),
            "genes is float32; return uint16 genes",
        ),
    ],
)
def test_functions_that_break_the_contract_are_refused(fitness, sample, message):
    with pytest.raises(ConfigError) as error:
        brkga(fitness, planted(1), keys(), Stopping(100), sample_fn=sample)
    assert message in str(error.value)


@pytest.mark.parametrize("wrong", [jnp.zeros((1, 2), jnp.uint32), jax.random.key(0), keys(1)[:0]])
def test_wrong_keys_are_refused(wrong):
    with pytest.raises(ConfigError, match="give one typed key per instance"):
        brkga(distance, planted(1), wrong, Stopping(100), sample_fn=uniform(6))


def test_other_key_types_work():
    a, b = (jax.random.split(jax.random.key(s, impl="rbg"), 2) for s in (0, 1))
    results = [brkga(distance, planted(2), k, Stopping(500), sample_fn=uniform(6)) for k in (a, b)]
    assert (results[0].genes != results[1].genes).any()


# Islands and restarts


def test_exchange_moves_the_best_round_the_ring_without_evaluations():
    config = BrkgaConfig(population=6, elites=2, mutants=4, islands=3, exchange_every=2, exchange_elites=2)
    searcher = BrkgaSearcher(copies, uniform(1), config)
    inputs = Inputs(None, None, keys())
    state = init(searcher, inputs)
    # Island 0 owns values that no draw of this small test reaches.
    elites = np.maximum(state.elites, np.uint16(100))
    elites[:, :2, 0] = 1, 2
    newcomers = np.maximum(state.newcomers, np.uint16(100))
    state = dataclasses.replace(state, elites=elites, newcomers=newcomers)
    fitness = np.asarray(population(searcher, state))[..., 0].astype(np.float32)
    state = dataclasses.replace(state, fitness=fitness)
    holders = []
    step = jax.jit(searcher.step)
    for _ in range(6):
        before = state.incumbent.evaluations
        state = step(inputs, state)
        assert (state.incumbent.evaluations - before).tolist() == [12]
        holders.append([bool((np.sort(x)[:2] == [1, 2]).all()) for x in np.asarray(state.fitness)[0]])
    one, two, three = [True, False, False], [True, True, False], [True, True, True]
    # No island gets a second copy, which would show as 1, 1.
    assert holders == [one, two, two, three, three, three]


def plateau(problem, genes):
    return jnp.ones(genes.shape[:2], jnp.float32)


def test_restart_draws_everyone_afresh_and_keeps_the_incumbent():
    config = BrkgaConfig(population=12, elites=4, mutants=3, restart_after=16, islands=2)
    searcher = BrkgaSearcher(plateau, uniform(9), config)
    inputs = Inputs(None, None, keys(2))
    state = init(searcher, inputs)
    first = np.asarray(state.incumbent.genes)
    step = jax.jit(searcher.step)
    restarted = []
    for _ in range(7):
        old, state = state, step(inputs, state)
        before = {bytes(row) for row in np.asarray(population(searcher, old)).reshape(-1, 9)}
        now = np.asarray(population(searcher, state))[:, :, :4].reshape(-1, 9)
        kept = [bytes(row) in before for row in now]
        assert all(kept) or not any(kept)
        restarted.append(not any(kept))
        np.testing.assert_array_equal(np.isinf(state.fitness[:, :, :4]).all((1, 2)), restarted[-1])
        np.testing.assert_array_equal(state.incumbent.genes, first)
    # 24 evaluations at first, 16 a generation: due after one generation, and then after each.
    assert restarted == [False, True, True, True, True, True, True]
    assert state.incumbent.evaluations.tolist() == [24 + 7 * 16] * 2


# By default, test_search_conformance.py has company.
@pytest.mark.slow
def test_restart_of_one_instance_leaves_the_other_alone():
    config = BrkgaConfig(population=12, elites=4, mutants=3, restart_after=40)
    problem = jnp.stack([planted(1)[0], jnp.zeros(6, jnp.int32)])
    warm = WarmStart(jnp.zeros((2, 1, 6), U16), jnp.array([0, 1], jnp.int32))
    searcher = BrkgaSearcher(distance, uniform(6), config)
    inputs = Inputs(problem, None, keys(2))
    state = init(searcher, inputs, warm)
    step = jax.jit(searcher.step)
    for _ in range(6):
        state = step(inputs, state)
    # The second began at its optimum: 12 evaluations, stalled 40 later, at the sixth generation.
    assert np.isinf(state.fitness[1, 0, :4]).all()
    assert np.isfinite(state.fitness[0]).all()
    assert state.restarted_at.tolist() == [0, 52]
    alone = init(searcher, Inputs(problem[:1], None, keys(2)[:1]))
    for _ in range(6):
        alone = step(Inputs(problem[:1], None, keys(2)[:1]), alone)
    found, wanted = (np.asarray(population(searcher, each)) for each in (alone, state))
    np.testing.assert_array_equal(found[0], wanted[0])


# Quality of the search


def sorting(problem, genes):
    """Pairs out of order when the keys rank the items: a permutation problem, optimum 0."""
    order = jnp.argsort(genes, axis=-1, stable=True)
    placed = jax.vmap(lambda values, o: values[o])(problem, order)
    inverted = placed[..., :, None] > placed[..., None, :]
    return jnp.triu(inverted).sum((-1, -2)).astype(jnp.float32)


def coarse(problem, genes):
    """`distance` in eight steps per gene."""
    return distance(problem, genes >> 13 << 8)


def assignment(problem, genes):
    """Cost of giving job ``argsort(keys)[m]`` to machine ``m``."""
    order = jnp.argsort(genes, axis=-1, stable=True)
    cost = jax.vmap(lambda c, o: c[jnp.arange(c.shape[0])[None], o])(problem, order)
    return cost.sum(-1)


RANDOM_SEARCH = BrkgaConfig(elites=0, mutants=100)


# By default, searches find planted optima below.
@pytest.mark.slow
def test_beats_random_search_on_a_permutation_problem_with_the_same_budget():
    n, seeds = 25, 5
    rng = np.random.default_rng(0)
    # A planted optimum: matching pairs cost 0, all others cost 1 to 2.
    planted_cost = 1 + rng.random((seeds, n, n), np.float32)
    for cost in planted_cost:
        cost[np.arange(n), rng.permutation(n)] = 0
    problem = jnp.asarray(planted_cost)
    ga, rs = (
        brkga(assignment, problem, keys(seeds), Stopping(10_000), sample_fn=uniform(n), config=c).fitness
        for c in (BrkgaConfig(), RANDOM_SEARCH)
    )
    assert (ga < rs - 3).all(), (ga, rs)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_reaches_planted_optima(batch):
    problem = planted(batch, 12) >> 5
    stopping = Stopping(20_000, target=0.0)
    config = BrkgaConfig(islands=2, exchange_every=10)
    result = brkga(coarse, problem, keys(batch), stopping, sample_fn=uniform(12), config=config)
    assert result.status == (Status.TARGET,) * batch
    np.testing.assert_array_equal(result.genes >> 13, problem)
    assert (result.evaluations < 20_000).all()


def test_sorts():
    items = jnp.asarray(np.random.default_rng(1).permuted(np.tile(np.arange(8), (2, 1)), axis=1))
    result = brkga(sorting, items, keys(2), Stopping(20_000, target=0.0), sample_fn=uniform(8))
    for values, genes in zip(np.asarray(items), result.genes, strict=True):
        np.testing.assert_array_equal(values[np.argsort(genes, kind="stable")], np.arange(8))


def test_multi_parent_form_searches_too():
    config = BrkgaConfig(parents=3, elite_parents=2, bias="logarithmic", elites=25, mutants=10)
    result = brkga(distance, planted(2), keys(2), Stopping(10_000), sample_fn=uniform(6), config=config)
    assert (result.fitness < 20).all()


# Padding and tiny sizes


def only_real(problem, genes):
    n = problem.shape[1]
    return distance(problem, genes["keys"][..., :n])


def test_padding_changes_nothing():
    def solve(n):
        shapes = {
            "keys": jax.ShapeDtypeStruct((n,), U16),
            "matrix": jax.ShapeDtypeStruct((n, 3), U16),
        }
        config = BrkgaConfig(islands=2, exchange_every=2, restart_after=200)
        sample = UniformProposal.of(shapes)
        return brkga(only_real, planted(2, 5), keys(2), Stopping(3000), sample_fn=sample, config=config)

    small, large = solve(5), solve(12)
    np.testing.assert_array_equal(small.history_fitness, large.history_fitness)
    for name in ("keys", "matrix"):
        np.testing.assert_array_equal(small.genes[name], large.genes[name][:, :5])


def count_genes(problem, genes):
    return jnp.full(genes.shape[:2], math.prod(genes.shape[2:]), jnp.float32)


# By default, one gene and none; the other shapes without genes are slow.
@pytest.mark.parametrize(
    "shape", [(0, 2), *(pytest.param(s, marks=pytest.mark.slow) for s in ((1,), (0,), (2, 0)))]
)
def test_tiny_chromosomes(shape):
    config = BrkgaConfig(population=5, elites=2, mutants=1, islands=2, exchange_every=1, restart_after=20)
    warm = WarmStart(jnp.zeros((2, 3, *shape), U16), jnp.array([3, 0], jnp.int32))
    result = brkga(
        count_genes, None, keys(2), Stopping(50), sample_fn=uniform(*shape), config=config, warm=warm
    )
    assert result.genes.shape == (2, *shape)
    assert result.fitness.tolist() == [math.prod(shape)] * 2


def test_population_of_one():
    config = BrkgaConfig(population=1, elites=0, mutants=1)
    result = brkga(distance, planted(2), keys(2), Stopping(40), sample_fn=uniform(6), config=config)
    assert result.evaluations.tolist() == [40, 40]
    assert result.history_fitness.shape == (40, 2)
    assert (np.diff(result.history_fitness, axis=0) <= 0).all()
    assert (result.history_fitness[-1] < result.history_fitness[0]).any()


def test_two_is_the_smallest_population_that_mates():
    config = BrkgaConfig(population=2, elites=1, mutants=0)
    result = brkga(distance, planted(1), keys(), Stopping(40), sample_fn=uniform(6), config=config)
    assert result.evaluations.tolist() == [40]


def test_start_is_the_first_population_only():
    searcher, inputs = BrkgaSearcher(distance, uniform(6), SMALL), Inputs(planted(1), None, keys())
    state = jax.jit(start, static_argnums=0)(searcher, inputs, Limits.none(1))
    assert state.incumbent.evaluations.tolist() == [12]
    assert state.generation == 0

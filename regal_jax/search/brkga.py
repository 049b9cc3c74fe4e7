"""Biased random-key genetic algorithm: many instances, all islands and generations in one program."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from regal_jax.errors import ConfigError
from regal_jax.search.checks import check_keys, check_warm, evaluate
from regal_jax.search.config import BrkgaConfig
from regal_jax.search.draws import TransformedProposal, distinct, expand, numbered, seeds_of, words
from regal_jax.search.functions import FitnessFn, MoveFn, SampleFn
from regal_jax.search.loop import Incumbent, Inputs, WarmStart, improve
from regal_jax.search.population import everyone, flat, insert, split, take
from regal_jax.search.run import Progress, SearchResult, Stopping, run

__all__ = ["BrkgaSearcher", "BrkgaState", "brkga"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BrkgaState:
    """State between two generations.

    Attributes:
      elites: ``[B, I * E, ...]`` uint16, island by island; after the first generation the survivors, best
        first.
      newcomers: ``[B, I * (C + M), ...]`` uint16, the children of all islands, then their mutants. They are
        stored apart from the elites and in the shape of their evaluation because XLA would otherwise
        recompute them for every use.
      fitness: ``[B, I, P]`` float32, fitness of an island's elites, children and mutants; ``+inf`` for NaN.
      bits: ``[B, I, C, parents]`` uint32, random words that select the parents of the next generation. They
        are stored because XLA would otherwise draw each word again for every gene that depends on it.
      drawn: ``[B, I, M, words]`` uint32 each, random words of the next generation's mutants if the proposal
        is a `TransformedProposal`, stored for the same reason.
      donors: ``[B, I * C, ...]`` uint16 for each parent of a child, the genes of that parent. They are not
        read; as part of the state they are gathered row by row instead of gene by gene.
      restarted_at: ``[B]`` int32, evaluations at the last restart.
      generation: ``[B]`` int32, equal for all instances.
      incumbent: See `Incumbent`.
    """

    elites: Any
    newcomers: Any
    fitness: jax.Array
    bits: jax.Array
    drawn: Any
    donors: tuple[Any, ...]
    restarted_at: jax.Array
    generation: jax.Array
    incumbent: Incumbent


def _per_instance(flag: jax.Array, like: jax.Array) -> jax.Array:
    return flag.reshape(-1, *[1] * (like.ndim - 1))


@dataclasses.dataclass(frozen=True)
class BrkgaSearcher:
    """BRKGA as a `Searcher` (docs/design.md, part 2).

    Equal searchers share their compiled programs. Functions are compared by identity, so pass the same
    function objects, and pass data through `Inputs`.

    Attributes:
      fitness_fn: ``(problem, genes [B, Q, ...]) -> [B, Q]`` float32, smaller is better.
      sample_fn: The proposal: ``(params of one instance, key) -> genes of one individual``, a pytree of
        uint16 arrays.
      config: See `BrkgaConfig`.
      move_fn: Makes the neighbours of elites, if there are any.

    Raises:
      ConfigError: The config asks for neighbours, and there is no function for them.

    References:
      Gonçalves and Resende 2011, "Biased random-key genetic algorithms for combinatorial optimization",
      J. Heuristics 17, section 2; Andrade, Toso, Gonçalves and Resende 2021, EJOR 289(1), section 3.
    """

    fitness_fn: FitnessFn
    sample_fn: SampleFn
    config: BrkgaConfig
    move_fn: MoveFn | None = None

    def __post_init__(self) -> None:
        if self.config.neighbours and self.move_fn is None:
            raise ConfigError("BrkgaSearcher: neighbours need a move_fn; give one, or set neighbours to 0")

    @property
    def first_evaluations(self) -> int:
        """Evaluations of the first population."""
        return self.config.first_evaluations

    @property
    def step_evaluations(self) -> int:
        """Evaluations of one generation."""
        return self.config.step_evaluations

    def init(self, inputs: Inputs, warm: WarmStart | None) -> BrkgaState:
        """Draw the first population, insert the warm starts, and evaluate all individuals."""
        c, batch = self.config, inputs.keys.shape[0]
        genes = self._first_population(inputs)
        if warm is not None:
            genes = insert(c, genes, warm)
        # With JAX 0.11, XLA compiles for minutes if draws are fused into the decoder. They are stored in any
        # case.
        genes = lax.optimization_barrier(jax.tree.map(flat, genes))
        fitness, incumbent = self._evaluate(inputs, genes, None)
        elites, newcomers = split(c, genes)
        nobody = jax.tree.map(lambda x: jnp.zeros_like(x[:, : c.islands * c.children]), newcomers)
        return BrkgaState(
            elites=elites,
            newcomers=newcomers,
            fitness=fitness.reshape(batch, c.islands, c.population),
            bits=self.bits(inputs, 1),
            drawn=self._next_mutants(inputs, 1),
            donors=(nobody,) * (c.parents if c.children else 0),
            restarted_at=jnp.zeros(batch, jnp.int32),
            generation=jnp.zeros(inputs.keys.shape[0], jnp.int32),
            incumbent=incumbent,
        )

    def step(self, inputs: Inputs, state: BrkgaState) -> BrkgaState:
        """One generation: rank, exchange, keep the elites, breed, mutate, evaluate the newcomers."""
        c, batch = self.config, inputs.keys.shape[0]
        generation = state.generation[0] + 1
        seeds = self.seeds(inputs, generation)
        order, ranked = self.rank(state, generation)
        elites = take(c, state.elites, state.newcomers, order[:, :, : c.elites].reshape(batch, -1))
        elite_fitness = ranked[:, :, : c.elites]
        bred, donors = [], ()
        if c.children:
            children, donors = self.mate(state, order, seeds)
            bred.append(children)
        if c.mutants:
            mutants = self.sample(inputs, seeds[:, :, c.elites + c.children :], state.drawn)
            if c.neighbours:
                mutants = self._with_neighbours(inputs, mutants, elites, generation)
            bred.append(jax.tree.map(flat, mutants))
        new = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *bred)
        restarted_at = state.restarted_at
        if c.restart_after is not None:
            done = state.incumbent.evaluations
            due = done - jnp.maximum(state.incumbent.improved_at, restarted_at) >= c.restart_after
            elites, new = self._restart(inputs, seeds, due, elites, new)
            # Fresh individuals in place of the elites are not evaluated, since the budget is fixed. For one
            # generation they serve as non-elite parents.
            elite_fitness = jnp.where(_per_instance(due, elite_fitness), jnp.inf, elite_fitness)
            restarted_at = jnp.where(due, done, restarted_at)
        # As in `init`.
        new = lax.optimization_barrier(new)
        fitness, incumbent = self._evaluate(inputs, new, state.incumbent)
        fitness_of_children = fitness[:, : c.islands * c.children].reshape(batch, c.islands, c.children)
        fitness_of_mutants = fitness[:, c.islands * c.children :].reshape(batch, c.islands, c.mutants)
        return BrkgaState(
            elites=elites,
            newcomers=new,
            fitness=jnp.concatenate([elite_fitness, fitness_of_children, fitness_of_mutants], axis=2),
            bits=self.bits(inputs, generation + 1),
            drawn=self._next_mutants(inputs, generation + 1),
            donors=donors,
            restarted_at=restarted_at,
            generation=state.generation + 1,
            incumbent=incumbent,
        )

    def population(self, state: BrkgaState) -> Any:
        """``[B, I, P, ...]`` all individuals: an island's elites, then its children, then its mutants."""
        return everyone(self.config, state.elites, state.newcomers)

    def seeds(self, inputs: Inputs, generation: int | jax.Array) -> jax.Array:
        """``[B, I, P, 2]`` uint32 seeds, one for each individual of each generation."""
        c = self.config
        count = c.islands * c.population
        seeds = numbered(seeds_of(inputs.keys), generation * count, count)
        return seeds.reshape(-1, c.islands, c.population, 2)

    @jax.named_scope("randomness")
    def bits(self, inputs: Inputs, generation: int | jax.Array) -> jax.Array:
        """``[B, I, C, parents]`` uint32 words that select parents, from one stream per generation."""
        c = self.config
        count = c.islands * c.children * c.parents
        bits = words(seeds_of(inputs.keys), count, generation)
        return bits.reshape(bits.shape[0], c.islands, c.children, c.parents)

    @jax.named_scope("sampling")
    def _draw_ahead(self, inputs: Inputs, seeds: jax.Array) -> Any:
        """The random words of individuals with these seeds that the proposal draws ahead."""
        proposal = self.sample_fn
        if not isinstance(proposal, TransformedProposal):
            return None
        return self._each(lambda _, key: proposal.ahead(key), inputs, seeds)

    def _next_mutants(self, inputs: Inputs, generation: int | jax.Array) -> Any:
        first = self.config.elites + self.config.children
        return self._draw_ahead(inputs, self.seeds(inputs, generation)[:, :, first:])

    def _first_population(self, inputs: Inputs) -> Any:
        def ahead(seeds: jax.Array) -> Any:
            return self._draw_ahead(inputs, seeds)

        seeds = self.seeds(inputs, 0)
        # The words are not part of the state. A conditional with two equal branches keeps XLA from repeating
        # the draws in every lookup.
        return self.sample(inputs, seeds, lax.cond(jnp.any(seeds != 0), ahead, ahead, seeds))

    @staticmethod
    def _each(function: Callable[..., Any], inputs: Inputs, seeds: jax.Array, *more: Any) -> Any:
        """Applies a function of parameters, a key and ``more [B, I, K, ...]`` to ``seeds [B, I, K, 2]``."""
        batch, islands, each = seeds.shape[:3]
        # Every level of `vmap` traces the function again, so islands are flattened into individuals.
        rows, more = jax.tree.map(flat, (seeds, more))
        keys = jax.random.wrap_key_data(rows, impl="threefry2x32")
        draw = jax.vmap(function, (None, 0, *[0] * len(more)))
        drawn = jax.vmap(draw, (None if inputs.params is None else 0, 0, *[0] * len(more)))(
            inputs.params, keys, *more
        )
        return jax.tree.map(lambda x: x.reshape(batch, islands, each, *x.shape[2:]), drawn)

    @jax.named_scope("sampling")
    def sample(self, inputs: Inputs, seeds: jax.Array, drawn: Any = None) -> Any:
        """``[B, I, K, ...]`` draws from the proposal, from ``seeds [B, I, K, 2]`` and words drawn ahead."""
        genes = self._each(self.sample_fn, inputs, seeds, *[] if drawn is None else [drawn])
        for path, leaf in jax.tree_util.tree_leaves_with_path(genes):
            if leaf.dtype != jnp.uint16:
                name = f"genes{jax.tree_util.keystr(path)}"
                raise ConfigError(f"sample_fn: {name} is {leaf.dtype}; return uint16 genes (key * 65535)")
        return genes

    @jax.named_scope("neighbours")
    def _with_neighbours(self, inputs: Inputs, mutants: Any, elites: Any, generation: jax.Array) -> Any:
        """``mutants [B, I, M, ...]``, the last ones replaced by neighbours of ``elites [B, I * E, ...]``."""
        c, move = self.config, self.move_fn
        if move is None:
            raise AssertionError("checked at construction")
        count = c.islands * c.neighbours
        # Streams of parents are numbered by generations, of which there are fewer.
        stream = generation.astype(jnp.uint32) + jnp.uint32(1 << 31)
        bits = words(seeds_of(inputs.keys), count * (move.words + 1), stream)
        bits = bits.reshape(-1, count, move.words + 1)
        island = lax.broadcasted_iota(jnp.uint32, bits.shape[:2], 1) // c.neighbours
        row = (island * c.elites + bits[..., -1] % c.elites).astype(jnp.int32)
        chosen = jax.tree.map(lambda leaf: jax.vmap(lambda x, i: x[i])(leaf, row), elites)
        moved = move(inputs.problem, chosen, bits[..., :-1])

        def join(old: jax.Array, new: jax.Array) -> jax.Array:
            new = new.reshape(old.shape[0], c.islands, c.neighbours, *old.shape[3:])
            return jnp.concatenate([old[:, :, : c.mutants - c.neighbours], new], axis=2)

        return jax.tree.map(join, mutants, moved)

    def _evaluate(
        self, inputs: Inputs, genes: Any, incumbent: Incumbent | None
    ) -> tuple[jax.Array, Incumbent]:
        """Fitness ``[B, Q]`` of ``genes [B, Q, ...]``, and the new incumbent."""
        fitness = evaluate(self.fitness_fn, inputs.problem, genes)
        return fitness, improve(incumbent, genes, fitness)

    @jax.named_scope("selection")
    def rank(self, state: BrkgaState, generation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """``[B, I, P]`` individuals of each island as indices into all, best first, and their fitness.

        An exchange only rewrites these indices; no gene moves until the next population is written.
        """
        c = self.config
        base = (jnp.arange(c.islands, dtype=jnp.int32) * c.population)[None, :, None]

        def by_fitness(fitness: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
            ranked, index = lax.sort((fitness, index), dimension=2, is_stable=True, num_keys=1)
            return index, ranked

        def exchange(order: jax.Array, ranked: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = c.exchange_elites
            guests, guest_fitness = (jnp.roll(a[:, :, :x], 1, axis=1) for a in (order, ranked))
            # An immigrant as fit as a native may be its copy from the last exchange, and copies would
            # finally replace all elites.
            known = (guest_fitness[:, :, :, None] == ranked[:, :, None, :]).any(axis=3)
            last_order = jnp.where(known, order[:, :, -x:], guests)
            last_ranked = jnp.where(known, ranked[:, :, -x:], guest_fitness)
            order = jnp.concatenate([order[:, :, :-x], last_order], axis=2)
            return by_fitness(jnp.concatenate([ranked[:, :, :-x], last_ranked], axis=2), order)

        rows = lax.broadcasted_iota(jnp.int32, state.fitness.shape, 2) + base
        order, ranked = by_fitness(state.fitness, rows)
        if c.exchange_every is None or c.islands == 1:
            return order, ranked
        return lax.cond(generation % c.exchange_every == 0, exchange, lambda *a: a, order, ranked)

    @jax.named_scope("crossover")
    def mate(self, state: BrkgaState, order: jax.Array, seeds: jax.Array) -> tuple[Any, tuple[Any, ...]]:
        """``[B, I * C, ...]`` children with each gene from a ranked parent by the bias; and the parents."""
        c, bits = self.config, state.bits
        elite = distinct(bits[..., : c.elite_parents], c.elites)
        other = distinct(bits[..., c.elite_parents :], c.population - c.elites) + c.elites
        # Ranks ascend and elites precede all others, so the parents are sorted by fitness.
        ranks = jnp.concatenate([elite, other], axis=3)
        parents = jax.vmap(jax.vmap(lambda o, r: o[r]))(order, ranks)
        thresholds = c.thresholds()
        seeds = flat(seeds[:, :, c.elites : c.elites + c.children])
        parents = flat(parents)
        donors = tuple(
            take(c, state.elites, state.newcomers, parents[..., rank]) for rank in range(c.parents)
        )

        def inherit(stream: int, *leaves: jax.Array) -> jax.Array:
            draw = expand(seeds, leaves[0].shape[2:], stream)
            child = leaves[-1]
            for rank in reversed(range(c.parents - 1)):
                child = jnp.where(draw <= jnp.uint16(thresholds[rank] - 1), leaves[rank], child)
            return child

        each = enumerate(zip(*(jax.tree.leaves(donor) for donor in donors), strict=True))
        children = [inherit(stream, *leaves) for stream, leaves in each]
        return jax.tree.unflatten(jax.tree.structure(donors[0]), children), donors

    def _restart(
        self, inputs: Inputs, seeds: jax.Array, due: jax.Array, elites: Any, new: Any
    ) -> tuple[Any, Any]:
        """Replaces all individuals by fresh ones in the instances that are due for a restart."""

        def fresh(elites: Any, new: Any) -> tuple[Any, Any]:
            def pick(old: Any, drawn: Any) -> Any:
                return jax.tree.map(lambda a, x: jnp.where(_per_instance(due, a), x, a), old, drawn)

            drawn_elites, drawn_new = split(self.config, jax.tree.map(flat, self.sample(inputs, seeds)))
            return pick(elites, drawn_elites), pick(new, drawn_new)

        return lax.cond(jnp.any(due), fresh, lambda *a: a, elites, new)


def brkga(
    fitness_fn: FitnessFn,
    problem: Any,
    keys: jax.Array,
    stopping: Stopping,
    *,
    sample_fn: SampleFn,
    params: Any = None,
    config: BrkgaConfig | None = None,
    move_fn: MoveFn | None = None,
    warm: WarmStart | None = None,
    callback: Callable[[Progress], object] | None = None,
    chunk: int | None = None,
    mesh: Mesh | None = None,
) -> SearchResult:
    """Minimise a function of random keys, for ``B`` instances side by side.

    Args:
      fitness_fn: ``(problem, genes [B, Q, ...]) -> [B, Q]`` float32; smaller is better, NaN and ``+inf``
        never become the incumbent. Traced once for each shape: pass the same function object every time.
      problem: Pytree passed to the fitness function as an argument of the compiled program.
      keys: ``[B]`` typed keys, consumed; an instance's result does not depend on the other instances.
      stopping: When to stop. A budget too small for a population gets a smaller one (`BrkgaConfig.fit`).
      sample_fn: The proposal, ``(params of one instance, key) -> genes of one individual``;
        `UniformProposal.of` makes the uniform one.
      params: Pytree with leading axis ``B`` for the proposal.
      config: ``None`` for the defaults.
      move_fn: Makes neighbours, if the config asks for them.
      warm: At most ``I * P`` individuals per instance; only the first ones if the budget allows fewer.
      callback: See `run`.
      chunk: See `run`.
      mesh: See `run`.

    Raises:
      ConfigError: Keys, warm starts or functions violate the above.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from regal_jax.search import Stopping, UniformProposal, brkga
      >>> sample = UniformProposal.of(jax.ShapeDtypeStruct((4,), jnp.uint16))
      >>> def fitness(problem, genes):
      ...     return jnp.abs(genes.astype(jnp.float32) / 65535 - problem).sum(-1)
      >>> keys = jax.random.split(jax.random.key(0), 1)
      >>> result = brkga(fitness, jnp.full((1, 1, 4), 0.5), keys, Stopping(5000), sample_fn=sample)
      >>> result.evaluations.tolist(), bool(result.fitness[0] < 0.1)
      ([4980], True)
    """
    config = BrkgaConfig() if config is None else config
    check_keys(keys)
    fitted = config.fit(stopping.evaluations)
    if warm is not None:
        check_warm(warm, params, keys, sample_fn, config.first_evaluations)
        w = fitted.first_evaluations
        warm = WarmStart(jax.tree.map(lambda x: x[:, :w], warm.genes), warm.count)
    searcher = BrkgaSearcher(fitness_fn, sample_fn, fitted, move_fn)
    return run(
        searcher,
        Inputs(problem, params, keys),
        stopping,
        warm=warm,
        callback=callback,
        chunk=chunk,
        mesh=mesh,
    )

"""Simulated annealing and local search over random keys: chains of all instances in lockstep."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from regal_jax.checks import check_field, check_setting, real, shown
from regal_jax.errors import ConfigError
from regal_jax.search.checks import check_keys, check_warm, evaluate
from regal_jax.search.config import MAX_EVALUATIONS
from regal_jax.search.draws import numbered, seeds_of, words
from regal_jax.search.functions import FitnessFn, MoveFn, SampleFn
from regal_jax.search.loop import Incumbent, Inputs, WarmStart, improve
from regal_jax.search.run import Progress, SearchResult, Stopping, run

__all__ = ["AnnealingConfig", "AnnealingParams", "AnnealingSearcher", "AnnealingState", "anneal"]

_STEPS: Final = 256
"""Number of steps from the first to the last temperature."""
_DRAWS: Final = 1024
"""Number of quantiles of the exponential distribution from which Metropolis' rule draws."""


@dataclasses.dataclass(frozen=True)
class AnnealingConfig:
    """Settings of simulated annealing, apart from when it stops (see `Stopping`).

    The temperature falls geometrically, in 256 steps, while the budget of evaluations is spent. A search that
    a time limit ends earlier has not cooled down, so choose a budget that can be spent. Temperatures are in
    units of the fitness of the first incumbent: at 0.01, a neighbour worse by 1 % of that is accepted with
    probability ``1 / e``. With both temperatures 0, only neighbours that are not worse are accepted; this is
    local search.

    More chains use accelerators better, but with the same budget each chain takes fewer steps; see
    docs/ablations/host_searches.md.

    Attributes:
      chains: Number of chains ``C`` per instance.
      initial_temperature: First temperature, at least `final_temperature`.
      final_temperature: Last temperature, above 0 unless both are 0.
      restart_after: Number of consecutive neighbours of a chain without a strict improvement after which it
        restarts from the proposal; ``None`` for never.

    Raises:
      ConfigError: A value is invalid.
    """

    chains: int = 1
    initial_temperature: float = 0.003
    final_temperature: float = 0.0003
    restart_after: int | None = None

    def __post_init__(self) -> None:
        check_field(self, "chains", 1, MAX_EVALUATIONS)
        if self.restart_after is not None:
            check_field(self, "restart_after", 1, MAX_EVALUATIONS)
        for name in ("initial_temperature", "final_temperature"):
            given = getattr(self, name)
            value = real(given, 0)
            if value is None:
                raise ConfigError(
                    f"{type(self).__name__}: {name} is {shown(given)}; give a number of 0 or more"
                )
            object.__setattr__(self, name, value)
        first, last = self.initial_temperature, self.final_temperature
        if last > first or (last == 0 < first):
            raise ConfigError(
                f"{type(self).__name__}: the temperature cannot fall from {first:g} to {last:g} by equal "
                "factors; give a final_temperature above 0 and at most initial_temperature, or two zeros"
            )

    @classmethod
    def local_search(cls, *, chains: int = 1, restart_after: int | None = None) -> Self:
        """A config with temperature 0, which accepts neighbours that are not worse."""
        return cls(chains, 0.0, 0.0, restart_after)

    @property
    def first_evaluations(self) -> int:
        """Evaluations of the starts of all chains."""
        return self.chains

    @property
    def step_evaluations(self) -> int:
        """Evaluations of one step of all chains."""
        return self.chains

    def fit(self, evaluations: int) -> Self:
        """This config, or one of fewer chains, whose starts cost at most ``evaluations >= 1``."""
        check_setting(type(self).__name__, "evaluations", evaluations, 1, MAX_EVALUATIONS)
        return self if evaluations >= self.chains else dataclasses.replace(self, chains=evaluations)

    def temperatures(self) -> np.ndarray:
        """``[257]`` float32 relative temperatures, from the first to the last."""
        if not self.initial_temperature:
            return np.zeros(_STEPS + 1, np.float32)
        ends = self.initial_temperature, self.final_temperature
        return np.geomspace(*ends, _STEPS + 1).clip(max=np.finfo(np.float32).max).astype(np.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AnnealingParams:
    """``Inputs.params`` of an `AnnealingSearcher`.

    Attributes:
      proposal: Pytree with leading axis ``B``, or ``None``: parameters of the proposal.
      evaluations: ``[B]`` int32, evaluations after which the temperature is the last one.
      temperatures: ``[B, 257]`` float32, see `AnnealingConfig.temperatures`. They are data,
        so that annealing and local search share a program.
    """

    proposal: Any
    evaluations: jax.Array
    temperatures: jax.Array

    @classmethod
    def of(cls, proposal: Any, config: AnnealingConfig, evaluations: int, batch: int) -> Self:
        """Parameters for ``batch`` instances with this config and budget."""
        temperatures = np.broadcast_to(config.temperatures(), (batch, _STEPS + 1))
        return cls(proposal, *jax.device_put((np.full(batch, evaluations, np.int32), temperatures)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AnnealingState:
    """State between two steps.

    Attributes:
      genes: ``[B, C, ...]`` uint16, current individuals of the chains.
      fitness: ``[B, C]`` float32, their fitness; ``+inf`` for NaN.
      scale: ``[B]`` float32, fitness of the first incumbent, 0 if it was not finite.
      idle: ``[B, C]`` int32, neighbours since the last strict improvement.
      step: ``[B]`` int32, equal for all instances.
      incumbent: See `Incumbent`.
    """

    genes: Any
    fitness: jax.Array
    scale: jax.Array
    idle: jax.Array
    step: jax.Array
    incumbent: Incumbent


@functools.cache
def _exponentials() -> np.ndarray:
    """``[_DRAWS]`` equally likely values; a table because a logarithm's last bit may depend on the batch."""
    return -np.log((np.arange(_DRAWS) + 0.5) / _DRAWS).astype(np.float32)


def _where(flag: jax.Array, yes: Any, no: Any) -> Any:
    """Selects from two pytrees with leading ``[B, C]`` by ``flag [B, C]``."""
    return jax.tree.map(lambda a, b: jnp.where(flag.reshape(*flag.shape, *[1] * (a.ndim - 2)), a, b), yes, no)


@dataclasses.dataclass(frozen=True)
class AnnealingSearcher:
    """Simulated annealing as a `Searcher`; `AnnealingParams` are the parameters of its inputs.

    Each step proposes one neighbour per chain and accepts it by Metropolis' rule.

    Attributes:
      fitness_fn: As in `BrkgaSearcher`.
      sample_fn: The proposal, as in `BrkgaSearcher`, which draws the starts of chains.
      move_fn: See `MoveFn`.
      config: See `AnnealingConfig`; its temperatures are read from `AnnealingParams` instead.

    References:
      Kirkpatrick, Gelatt and Vecchi 1983, "Optimization by simulated annealing", Science 220.
    """

    fitness_fn: FitnessFn
    sample_fn: SampleFn
    move_fn: MoveFn
    config: AnnealingConfig

    @property
    def first_evaluations(self) -> int:
        """Evaluations of the starts of all chains."""
        return self.config.first_evaluations

    @property
    def step_evaluations(self) -> int:
        """Evaluations of one step of all chains."""
        return self.config.step_evaluations

    def init(self, inputs: Inputs, warm: WarmStart | None) -> AnnealingState:
        """Start chain ``w`` from warm start ``w``, and the remaining chains from the proposal."""
        batch, c = inputs.keys.shape[0], self.config.chains
        genes = self._draw(inputs, 0)
        if warm is not None:
            genes = _begin_at(warm, genes)
        # As in `BrkgaSearcher.init`.
        genes = lax.optimization_barrier(genes)
        fitness = evaluate(self.fitness_fn, inputs.problem, genes)
        incumbent = improve(None, genes, fitness)
        finite = jnp.isfinite(incumbent.fitness)
        return AnnealingState(
            genes=genes,
            fitness=fitness,
            scale=jnp.where(finite, jnp.abs(incumbent.fitness), 0),
            idle=jnp.zeros((batch, c), jnp.int32),
            step=jnp.zeros(batch, jnp.int32),
            incumbent=incumbent,
        )

    def step(self, inputs: Inputs, state: AnnealingState) -> AnnealingState:
        """Propose one neighbour per chain, and accept or reject it."""
        c, step = self.config, state.step[0] + 1
        bits = self.bits(inputs, step)
        new = self.move_fn(inputs.problem, state.genes, bits[..., :-1])
        afresh = jnp.zeros(state.fitness.shape, bool)
        if c.restart_after is not None:
            afresh = state.idle >= c.restart_after
            new = lax.cond(
                jnp.any(afresh), lambda g: _where(afresh, self._draw(inputs, step), g), lambda g: g, new
            )
        new = lax.optimization_barrier(new)
        fitness = evaluate(self.fitness_fn, inputs.problem, new)
        better = fitness < state.fitness
        allowance = (
            self._temperature(inputs, state)[:, None] * jnp.asarray(_exponentials())[bits[..., -1] % _DRAWS]
        )
        # Infinity minus infinity is NaN, which must not reject; the first comparison accepts equal fitness.
        accepted = (fitness <= state.fitness) | (fitness - state.fitness <= allowance) | afresh
        return AnnealingState(
            genes=_where(accepted, new, state.genes),
            fitness=jnp.where(accepted, fitness, state.fitness),
            scale=state.scale,
            idle=jnp.where(better | afresh, 0, state.idle + 1),
            step=state.step + 1,
            incumbent=improve(state.incumbent, new, fitness),
        )

    @jax.named_scope("randomness")
    def bits(self, inputs: Inputs, step: int | jax.Array) -> jax.Array:
        """``[B, C, words + 1]`` uint32 random words of the neighbours and, last, of their acceptance."""
        chains, width = self.config.chains, self.move_fn.words + 1
        return words(seeds_of(inputs.keys), chains * width, step).reshape(-1, chains, width)

    @jax.named_scope("sampling")
    def _draw(self, inputs: Inputs, step: int | jax.Array) -> Any:
        """``[B, C, ...]`` draws from the proposal."""
        chains, proposal = self.config.chains, self._params(inputs).proposal
        seeds = numbered(seeds_of(inputs.keys), step * chains, chains)
        keys = jax.random.wrap_key_data(seeds, impl="threefry2x32")
        draw = jax.vmap(self.sample_fn, (None, 0))
        return jax.vmap(draw, (None if proposal is None else 0, 0))(proposal, keys)

    def _temperature(self, inputs: Inputs, state: AnnealingState) -> jax.Array:
        """``[B]`` float32 temperatures, by the evaluations so far."""
        params = self._params(inputs)
        share = jnp.maximum(params.evaluations, 1).astype(jnp.float32) / _STEPS
        now = (state.incumbent.evaluations.astype(jnp.float32) / share).astype(jnp.int32)
        now = jnp.minimum(now, _STEPS)
        return state.scale * jnp.take_along_axis(params.temperatures, now[:, None], axis=1)[:, 0]

    @staticmethod
    def _params(inputs: Inputs) -> AnnealingParams:
        if not isinstance(inputs.params, AnnealingParams):
            raise ConfigError(
                "AnnealingSearcher: inputs.params must be AnnealingParams, which hold the budget"
            )
        return inputs.params


def _begin_at(warm: WarmStart, genes: Any) -> Any:
    """Starts of chains: warm start ``w`` replaces the genes of chain ``w``."""
    chains = jax.tree.leaves(genes)[0].shape[1]
    given = jax.tree.leaves(warm.genes)[0].shape[1]
    if not given:
        return genes
    chain = lax.broadcasted_iota(jnp.int32, (1, chains), 1)
    real = chain < jnp.minimum(warm.count, given)[:, None]
    nearest = jnp.minimum(jnp.arange(chains), given - 1)
    return _where(real, jax.tree.map(lambda x: jnp.take(x, nearest, axis=1), warm.genes), genes)


def anneal(
    fitness_fn: FitnessFn,
    problem: Any,
    keys: jax.Array,
    stopping: Stopping,
    *,
    sample_fn: SampleFn,
    move_fn: MoveFn,
    params: Any = None,
    config: AnnealingConfig | None = None,
    warm: WarmStart | None = None,
    callback: Callable[[Progress], object] | None = None,
    chunk: int | None = None,
    mesh: Mesh | None = None,
) -> SearchResult:
    """Minimise a function of random keys by walking from neighbour to neighbour.

    Args:
      fitness_fn: As in `regal_jax.search.brkga`.
      problem: Pytree passed to the fitness function and the moves.
      keys: ``[B]`` typed keys, consumed.
      stopping: When to stop. The temperature falls over ``stopping.evaluations``, whatever ends the search.
      sample_fn: The proposal, which draws the starts of chains.
      move_fn: Function that makes neighbours, see `MoveFn`.
      params: Pytree with leading axis ``B`` for the proposal.
      config: ``None`` for the defaults. A budget below the number of chains reduces that number.
      warm: Starts of the first chains, the best first; starts beyond the number of chains are left out.
      callback: See `run`.
      chunk: See `run`.
      mesh: See `run`.

    Raises:
      ConfigError: Keys, warm starts or functions violate the above.
    """
    check_keys(keys)
    fitted = (AnnealingConfig() if config is None else config).fit(stopping.evaluations)
    if warm is not None:
        check_warm(warm, params, keys, sample_fn, None)
    cooled = AnnealingParams.of(params, fitted, stopping.evaluations, keys.shape[0])
    still = dataclasses.replace(fitted, initial_temperature=0.0, final_temperature=0.0)
    return run(
        AnnealingSearcher(fitness_fn, sample_fn, move_fn, still),
        Inputs(problem, cooled, keys),
        stopping,
        warm=warm,
        callback=callback,
        chunk=chunk,
        mesh=mesh,
    )

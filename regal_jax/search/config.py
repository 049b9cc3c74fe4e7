"""`BrkgaConfig`: the settings of the genetic algorithm, checked at construction."""

import dataclasses
import enum
import math
from typing import Final, Self

import numpy as np

from regal_jax.checks import check_setting, real, shown
from regal_jax.errors import ConfigError

__all__ = ["MAX_EVALUATIONS", "BiasFunction", "BrkgaConfig"]

MAX_EVALUATIONS: Final = 2**31 - 1
"""Largest number of evaluations, since they are counted in int32 on the accelerator."""


class BiasFunction(enum.StrEnum):
    """Weight of the parent of rank ``r`` (1 is the fittest) when a child inherits a gene.

    Named and defined as in Andrade et al. 2021, "The multi-parent biased random-key genetic algorithm
    with implicit path-relinking", EJOR 289(1), section 3; their library calls the last LOGINVERSE.
    """

    CONSTANT = "constant"
    """``1``"""
    LINEAR = "linear"
    """``1 / r``"""
    QUADRATIC = "quadratic"
    """``r ** -2``"""
    CUBIC = "cubic"
    """``r ** -3``"""
    EXPONENTIAL = "exponential"
    """``exp(-r)``"""
    LOGARITHMIC = "logarithmic"
    """``1 / log(r + 1)``"""

    def weights(self, parents: int) -> np.ndarray:
        """``[parents]`` float64 weights, not normalised."""
        r = np.arange(1, parents + 1, dtype=np.float64)
        match self:
            case BiasFunction.CONSTANT:
                return np.ones(parents)
            case BiasFunction.LINEAR:
                return 1 / r
            case BiasFunction.QUADRATIC:
                return r**-2
            case BiasFunction.CUBIC:
                return r**-3
            case BiasFunction.EXPONENTIAL:
                return np.exp(-r)
            case BiasFunction.LOGARITHMIC:
                return 1 / np.log(r + 1)


@dataclasses.dataclass(frozen=True)
class BrkgaConfig:
    """Settings of BRKGA, apart from when it stops (see `Stopping`).

    The classic form of Gonçalves and Resende (2011) has two parents, one of them elite, and a child
    inherits each gene from the elite one with probability `elite_bias`. With `bias` set, it is the
    multi-parent form of Andrade et al. (2021): of `parents` parents, `elite_parents` are elite, and the
    parent of rank ``r`` among them passes on a gene with a probability proportional to the bias function of
    ``r``. The classic form is the special case of weights ``(elite_bias, 1 - elite_bias)``.

    ``elites=0, mutants=population`` is plain random search.

    Attributes:
      population: Individuals in an island, ``P``.
      elites: Individuals that survive a generation, ``E < P``.
      mutants: Fresh draws from the proposal in each generation; the other ``P - E - mutants`` newcomers are
        children.
      neighbours: Number of the `mutants` that are neighbours of random elites (`MoveFn`) instead of fresh
        draws; not in the papers.
      elite_bias: Probability to inherit from the elite parent, in ``[0.5, 1)``; unused if `bias` is set.
      parents: Number of parents of a child.
      elite_parents: Number of elite parents; at least one parent is elite and at least one is not.
      bias: A `BiasFunction` or its name; needed for more than two parents.
      islands: Independent populations, ``I``.
      exchange_every: Generations between two exchanges of elites; ``None`` for never. The islands form a
        ring: the best `exchange_elites` of each replace the worst of the next, except those that are
        exactly as fit as an individual there. (The library of Andrade et al. sends them to every island,
        including copies. A ring mixes more slowly and keeps the islands different.)
      exchange_elites: Number of individuals that an island sends.
      restart_after: Evaluations without improvement (or since the last restart) after which all islands
        start afresh from the proposal; the incumbent is kept. ``None`` for never.

    Raises:
      ConfigError: A value, or a combination of values, is invalid.
    """

    population: int = 100
    elites: int = 20
    mutants: int = 15
    elite_bias: float = 0.7
    parents: int = 2
    elite_parents: int = 1
    bias: BiasFunction | str | None = None
    islands: int = 1
    exchange_every: int | None = None
    exchange_elites: int = 1
    restart_after: int | None = None
    neighbours: int = 0

    @property
    def _title(self) -> str:
        """Name of the config in messages."""
        return type(self).__name__

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_mating()
        if self.exchange_every is not None and self.islands > 1:
            most = min(self.elites, self.population - self.elites)
            if self.exchange_elites > most:
                raise ConfigError(
                    f"{self._title}: exchange_elites is {self.exchange_elites}, but an island of "
                    f"{self.population} with {self.elites} elites can exchange at most {most}"
                )

    def _check_counts(self) -> None:
        lowest = {
            "population": 1,
            "elites": 0,
            "mutants": 0,
            "neighbours": 0,
            "parents": 2,
            "elite_parents": 1,
            "islands": 1,
        }
        lowest |= {"exchange_every": 1, "exchange_elites": 1, "restart_after": 1}
        for field, low in lowest.items():
            value = getattr(self, field)
            if value is not None or field not in ("exchange_every", "restart_after"):
                count = check_setting(self._title, field, value, low, MAX_EVALUATIONS)
                object.__setattr__(self, field, count)
        product = self.islands * self.population
        check_setting(self._title, "islands * population", product, 1, MAX_EVALUATIONS)
        if self.elites >= self.population:
            raise ConfigError(
                f"{self._title}: elites is {self.elites}, which leaves no newcomers in a population "
                f"of {self.population}; lower elites or raise population"
            )
        if self.elites + self.mutants > self.population:
            raise ConfigError(
                f"{self._title}: elites + mutants is {self.elites + self.mutants}, more than the population "
                f"of {self.population}; lower one of them or raise population"
            )

        if self.neighbours > self.mutants or (self.neighbours and not self.elites):
            raise ConfigError(
                f"{self._title}: neighbours is {self.neighbours} of {self.mutants} mutants and {self.elites} "
                "elites; lower it"
            )

    def _check_mating(self) -> None:
        try:
            bias = None if self.bias is None else BiasFunction(self.bias)
        except ValueError:
            names = ", ".join(BiasFunction)
            raise ConfigError(f"{self._title}: bias is {self.bias!r}; use one of {names}") from None
        object.__setattr__(self, "bias", bias)
        rho = real(self.elite_bias, 0.5, below=1)
        if rho is None:
            raise ConfigError(
                f"{self._title}: elite_bias is {shown(self.elite_bias)}; choose a number in [0.5, 1)"
            )
        object.__setattr__(self, "elite_bias", rho)
        if self.elite_parents >= self.parents:
            raise ConfigError(
                f"{self._title}: elite_parents is {self.elite_parents} of {self.parents} parents; at least "
                "one parent must not be elite"
            )
        if bias is None and self.parents > 2:
            raise ConfigError(
                f"{self._title}: {self.parents} parents need a bias function; set bias to one of "
                f"{', '.join(BiasFunction)}"
            )
        others = self.parents - self.elite_parents
        if self.children and (self.elite_parents > self.elites or others > self.population - self.elites):
            raise ConfigError(
                f"{self._title}: a child needs {self.elite_parents} elite and {others} other parents, but "
                f"there are {self.elites} and {self.population - self.elites}; mend one of them"
            )

    @property
    def children(self) -> int:
        """Number of children per island and generation."""
        return self.population - self.elites - self.mutants

    @property
    def first_evaluations(self) -> int:
        """Evaluations of the first population of all islands."""
        return self.islands * self.population

    @property
    def step_evaluations(self) -> int:
        """Evaluations of one generation of all islands; elites are not evaluated again."""
        return self.islands * (self.population - self.elites)

    def generations(self, evaluations: int) -> int:
        """Number of complete generations after the first population within ``evaluations``."""
        return max(0, evaluations - self.first_evaluations) // self.step_evaluations

    def fit(self, evaluations: int) -> Self:
        """This config, or a smaller one whose first population costs at most ``evaluations >= 1``.

        The number of islands is reduced first. If a single island is still too large, the population is
        ``evaluations`` draws from the proposal (and the warm starts).
        """
        check_setting(self._title, "evaluations", evaluations, 1, MAX_EVALUATIONS)
        if evaluations >= self.first_evaluations:
            return self
        if evaluations >= self.population:
            return dataclasses.replace(self, islands=evaluations // self.population)
        return dataclasses.replace(
            self, islands=1, population=evaluations, elites=0, mutants=evaluations, neighbours=0
        )

    def thresholds(self) -> tuple[int, ...]:
        """``[parents]`` cumulative inheritance probabilities of the ranked parents, in units of ``2**-16``.

        A uniform 16-bit draw ``u`` inherits from the first rank ``r`` with ``u < thresholds[r]``.
        """
        if self.bias is None:
            weights = np.array([self.elite_bias, 1 - self.elite_bias])
        else:
            weights = BiasFunction(self.bias).weights(self.parents)
        total = math.fsum(weights)
        return tuple(round(2**16 * math.fsum(weights[: r + 1]) / total) for r in range(len(weights)))

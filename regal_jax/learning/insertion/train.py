"""Training of an insertion policy: logistic regression on the moves of searches."""

import dataclasses
import io
import itertools
import math
import os
import pathlib
import tokenize
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import Cluster, ComputationGraph, transfer_times
from regal_jax.heuristics import InsertionPolicy, ListSearchConfig, ListSearchRun, save_insertion_policy
from regal_jax.heuristics.insertion_features import MOVE_FEATURES, PLACE_FEATURES
from regal_jax.learning.insertion.config import InsertionTrainConfig
from regal_jax.learning.loop import folder_of_run, progress_bar, run_identity
from regal_jax.learning.sets import load_sets
from regal_jax.runtime.compiling import usable
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt, interruptible
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.json_lines import JsonLines
from regal_jax.storage.paths import folder_path
from regal_jax.storage.reading import check_regular

__all__ = ["InsertionTrainResult", "InsertionValidation", "train_insertion"]

WEIGHTS: Final = "policy.toml"
METRICS: Final = "metrics.jsonl"
_FEATURES: Final = {1: len(MOVE_FEATURES), 0: len(PLACE_FEATURES)}
_WORDS: Final = "train", "validation"
_STEPS: Final = 50
_ENOUGH: Final = 1e-8
_PAUSE: Final = 20.0
"""Seconds after which the moves of a round are saved again."""

Pair = tuple[ComputationGraph, Cluster]


class InsertionValidation(NamedTuple):
    """Metrics of searches on held-out graphs.

    Attributes:
      improvement: Mean share of the makespan saved over the same search without weights.
      matched: Share of pairs of a graph and a cluster on which it was at least as good.
      worst: Smallest improvement of a pair.
      best: Largest improvement of a pair.
      pairs: Number of pairs; the other figures are 0 if there is none.
    """

    improvement: float
    matched: float
    worst: float
    best: float
    pairs: int


@dataclasses.dataclass(frozen=True)
class InsertionTrainResult:
    """The outcome of a run.

    Attributes:
      policy: The weights that did best on the validation graphs.
      best: Metrics of these weights.
      best_step: Round in which they were fitted.
      steps: Number of rounds made.
      finished: Whether all rounds were made.
    """

    policy: InsertionPolicy
    best: InsertionValidation
    best_step: int
    steps: int
    finished: bool


@interruptible()
def train_insertion(
    config: InsertionTrainConfig, out: str | os.PathLike[str], *, progress: bool = True
) -> InsertionTrainResult:
    """Trains an insertion policy.

    In the first round, searches choose their moves uniformly. In later rounds they draw one move of each kind
    and choose by the weights of the round before. The weights are those of a logistic regression on the moves
    of all rounds: whether a move has made the schedule shorter, given its features.

    The folder ``out`` gets ``config.json``, ``metrics.jsonl``, the moves of each round and ``policy.toml``
    (the weights that did best on the validation graphs; without any, the last ones). A run that was killed
    continues with the searches that are saved when it is called again; its result is that of an uninterrupted
    run. Ctrl-C ends the run with the rounds that are made, or raises in the first one.

    Args:
      config: The run's settings.
      out: A new folder, or that of the run to resume.
      progress: Show a progress bar.

    Raises:
      ConfigError: The settings are invalid, no transfer takes time, the folder is that of a run with other
        settings or graphs, or no move has made a schedule shorter.
      FormatError: A set of graphs, or a file of the folder, cannot be read.

    Examples:
      >>> from regal_jax.learning.insertion import InsertionDataConfig, InsertionTrainConfig, train_insertion
      >>> data = InsertionDataConfig(families=("layered",), generated=4, ops=(30,), devices=(2,))
      >>> config = InsertionTrainConfig(rounds=1, evaluations=1000, data=data)
      >>> result = train_insertion(config, "run", progress=False)
      >>> len(result.policy.move), result.finished
      (18, True)

    References:
      Ross, Gordon and Bagnell 2011, "A reduction of imitation learning and structured prediction to no-regret
      online learning", AISTATS: later rounds see the schedules that the policy itself leads to.
    """
    if not usable():
        raise ConfigError("system: the training of insertion policies needs Numba; pip install numba")
    check_kind("config", config, InsertionTrainConfig)
    folder = folder_path(out)
    sets = [_chosen(config, split) for split in _WORDS]
    pairs, held_out = (
        list(_pairs(config, split, graphs)) for split, graphs in zip(_WORDS, sets, strict=True)
    )
    if not any(transfer_times(graph, cluster)[graph.edge_tensor].any() for graph, cluster in pairs):
        raise ConfigError(
            "data.transfer, data.generated_transfer: no transfer takes time, so that there are no insertion "
            "moves; give other links, or graphs whose ops read from one another"
        )
    identity = run_identity({**config.as_document(), "start": ""}, *sets)
    # Only after all checks, since from here on the folder belongs to this run.
    with folder_of_run(folder, identity):
        policy = InsertionPolicy()
        before = _makespans(config, held_out, policy)
        found: list[tuple[float, int, InsertionPolicy, InsertionValidation]] = []
        moves: list[np.ndarray] = []
        metrics = JsonLines(folder / METRICS, "train on")
        metrics.mend()
        known = {record.get("step") for record in metrics.read()}
        for number in range(1, config.rounds + 1):
            one, file = dataclasses.replace(policy, candidates=1), folder / f"moves-{number}.npy"
            try:
                with progress_bar(progress, f"round {number}", len(pairs), 0) as bar:
                    moves.append(_kept(file, config, pairs, one, number, bar.update))
                seen = np.concatenate(moves)
                policy = fit(seen, config.ridge)
                best = _validated(before, _makespans(config, held_out, policy))
            except KeyboardInterrupt:
                if not found:
                    raise
                break
            found.append((best.improvement if held_out else number, number, policy, best))
            if number not in known:
                shorter = float(seen[:, -1].mean(dtype=np.float64))
                metrics.append({"step": number, "moves": len(seen), "shorter": shorter, **best._asdict()})
            _, step, chosen, _ = max(found, key=lambda each: each[0])
            save_insertion_policy(folder / WEIGHTS, chosen, f"Round {step} of {config.rounds}.")
    _, step, policy, best = max(found, key=lambda each: each[0])
    return InsertionTrainResult(policy, best, step, len(found), len(found) == config.rounds)


def fit(moves: np.ndarray, ridge: float) -> InsertionPolicy:
    """The weights that predict which moves make a schedule shorter.

    Args:
      moves: ``[R, SEEN + 1]``: what describes each move, and whether it made the schedule shorter.
      ridge: Weight of the sum of squared weights, for features of unit variance.

    Raises:
      ConfigError: No move of a kind has made a schedule shorter.
    """
    weights = {}
    for kind, count in _FEATURES.items():
        rows = moves[moves[:, 0] == kind]
        features, shorter = rows[:, 1 : 1 + count].astype(np.float64), rows[:, -1] > 0
        if not shorter.any():
            raise ConfigError(
                "data.train, evaluations: no insertion move made a schedule shorter; take another folder, "
                "and give more or larger graphs, or more evaluations"
            )
        weights[kind] = tuple(map(float, _logistic(features, shorter.astype(np.float64), ridge)))
    return InsertionPolicy(weights[1], weights[0])


def _logistic(features: np.ndarray, wanted: np.ndarray, ridge: float) -> np.ndarray:
    """``[F + 1]``, the weights of a logistic regression and its constant, by Newton's method."""
    mean, scale = features.mean(axis=0), features.std(axis=0)
    scale[scale == 0] = 1
    rows = np.column_stack([(features - mean) / scale, np.ones(len(features))])
    penalty = ridge * np.append(np.ones(len(mean)), 0)
    share = wanted.mean()
    weights = np.append(np.zeros(len(mean)), math.log((share + _ENOUGH) / (1 - share + _ENOUGH)))

    def loss_of(weights: np.ndarray) -> float:
        logits = rows @ weights
        return float(np.logaddexp(0, logits).sum() - wanted @ logits + penalty @ weights**2 / 2)

    loss = loss_of(weights)
    for _ in range(_STEPS):
        logits = rows @ weights
        chance = np.exp(-np.logaddexp(0, -logits))
        slope = rows.T @ (chance - wanted) + penalty * weights
        curvature = (rows * (chance * (1 - chance))[:, None]).T @ rows + np.diag(penalty + _ENOUGH)
        step, before = np.linalg.solve(curvature, slope), loss
        for _ in range(_STEPS):
            trial = weights - step
            loss = loss_of(trial)
            if loss - before <= _ENOUGH * abs(loss):
                break
            step = step / 2  # Where few moves succeed, a whole step may lead away from the minimum.
        else:
            break
        weights = trial
        if before - loss <= _ENOUGH * abs(loss):
            break
    inner = weights[:-1] / scale
    return np.append(inner, weights[-1] - inner @ mean)


def _chosen(config: InsertionTrainConfig, split: str) -> list[ComputationGraph]:
    """The graphs of the sets, drawn by the seed."""
    data = config.data
    limit = data.limit if split == "train" else data.validation_limit
    every = dataclasses.replace(data, limit=0)
    graphs: list[ComputationGraph] = []
    random = np.random.default_rng((config.seed, _WORDS.index(split)))
    clusters = [Cluster.uniform(devices) for devices in data.devices]
    for path in getattr(data, split):
        one = dataclasses.replace(every, **{split: (path,)})
        found = load_sets(one, split, clusters, "; or change data.devices")
        order = random.permutation(len(found))[: limit or None]
        graphs += [found[i] for i in order]
    return graphs


def _pairs(config: InsertionTrainConfig, split: str, graphs: Sequence[ComputationGraph]) -> Iterator[Pair]:
    """Every graph with every cluster."""
    data, first = config.data, _WORDS.index(split) * config.data.generated
    count = data.generated if split == "train" else data.generated // 4
    seeds = range(first, first + count)
    kinds = itertools.product(data.families, data.ops, seeds)
    made = [generate(family, ops, seed=seed) for family, ops, seed in kinds]
    for several, transfers in ((graphs, data.transfer), (made, data.generated_transfer)):
        for graph, transfer, devices in itertools.product(several, transfers, data.devices):
            yield graph, Cluster.uniform(devices, transfer=transfer)


def _kept(
    file: pathlib.Path,
    config: InsertionTrainConfig,
    pairs: Sequence[Pair],
    policy: InsertionPolicy,
    number: int,
    done: Callable[[], object],
) -> np.ndarray:
    """``[R, SEEN + 1]`` float32, the moves of a search for each pair, from the file if it is there.

    Until all searches are made, a second file has the moves of those that are, with the number of the search
    in another column.
    """
    if file.exists():
        return _read(file)
    part = file.with_suffix(".part.npy")
    rows = [_read(part, len(pairs))] if part.exists() else []
    made = int(rows[0][-1, -1]) + 1 if rows and len(rows[0]) else 0
    for _ in range(made):
        done()
    pause = Deadline(_PAUSE)
    try:
        for search in range(made, len(pairs)):
            check_interrupt()
            run = ListSearchRun(*pairs[search], (config.seed, number), _descent(policy), describe=True)
            run.run(config.evaluations)
            described = run.described_moves()
            done()
            columns = described[:, :-2], described[:, -1] > 0, np.full(len(described), search)
            rows.append(np.column_stack(columns).astype(np.float32))
            if pause.over:
                _save(part, np.concatenate(rows))
                pause = Deadline(_PAUSE)
    except KeyboardInterrupt:
        if rows:
            _save(part, np.concatenate(rows))
        raise
    whole = np.concatenate(rows)[:, :-1]
    _save(file, whole)
    part.unlink(missing_ok=True)
    return whole


def _save(file: pathlib.Path, moves: np.ndarray) -> None:
    data = io.BytesIO()
    np.save(data, np.ascontiguousarray(moves), allow_pickle=False)
    write_atomically(file, data.getvalue())


def _read(file: pathlib.Path, searches: int = 0) -> np.ndarray:
    """The moves in a file; those of some of ``searches``, if there are any, have a column of their numbers.

    Raises:
      FormatError: The file is damaged, or cannot be read.
    """
    try:
        check_regular(file)
        with open(file, "rb") as data:
            # `numpy.load` would take archives, too.
            moves = np.lib.format.read_array(data, allow_pickle=False)
    except (OSError, EOFError, ValueError, SyntaxError, tokenize.TokenError):
        moves = None
    if moves is None or not _are_moves(moves, searches):
        raise FormatError(f"{file}: is damaged; remove it, and the same command makes its moves again")
    return moves


def _are_moves(rows: np.ndarray, searches: int) -> bool:
    """Whether these can be moves, with the numbers of their searches if there are any ``searches``."""
    # One column says of which kind a move is, and one whether it made the schedule shorter.
    shape = (max(_FEATURES.values()) + 2 + bool(searches),)
    if rows.dtype != np.float32 or rows.shape[1:] != shape or not np.isfinite(rows).all():
        return False
    number = rows[:, -1] if searches else np.zeros(0)
    rising = (np.diff(number, prepend=0) >= 0).all() and number.max(initial=-1) < searches
    return bool(rising and np.isin(rows[:, 0], tuple(_FEATURES)).all())


def _descent(policy: InsertionPolicy) -> ListSearchConfig:
    """List search whose insertion moves make no schedule longer, and take many ops in small graphs, too."""
    return ListSearchConfig(insertion_policy=policy, walk=0, move_share=1.0)


def _makespans(config: InsertionTrainConfig, pairs: Sequence[Pair], policy: InsertionPolicy) -> np.ndarray:
    found = []
    for pair in pairs:
        check_interrupt()
        search = ListSearchRun(*pair, config.seed, _descent(policy))
        search.run(config.evaluations)
        found.append(search.best)
    return np.array(found)


def _validated(before: np.ndarray, after: np.ndarray) -> InsertionValidation:
    if not len(before):
        return InsertionValidation(0.0, 0.0, 0.0, 0.0, 0)
    # A schedule that takes no time cannot be shortened.
    saved = 1 - np.where(before > 0, after / np.where(before > 0, before, 1), 1)
    return InsertionValidation(
        float(saved.mean()), float((saved >= 0).mean()), float(saved.min()), float(saved.max()), len(saved)
    )

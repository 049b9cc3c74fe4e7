"""The loops of `regal_jax.ordering.host`.

An op is ready once each of its entries in the rows of successors has been visited.
"""

import math
from collections import namedtuple
from typing import Any

import numpy as np

from regal_jax.runtime.compiling import part

__all__ = ["Precedence", "Rates", "draw", "total"]

Precedence = namedtuple("Precedence", "begin end successor waiting")
"""The precedence of the ``N`` ops of one graph, without padding.

Attributes:
  begin, end: ``[N]``, bounds of each op's row of successors.
  successor: Successors, row by row; one may be listed several times.
  waiting: ``[N]``, how often each op is listed.
"""

Rates = namedtuple("Rates", "rate mean power twos least slower")
"""The rates of `regal_jax.ordering.race.Clocks` of one graph.

Attributes:
  rate, mean, power: ``[N]``, as in `Clocks`.
  twos: Float32 powers of two; the power with exponent 0 is at `_ONE`.
  least: `regal_jax.ordering.race.LEAST`.
  slower: `regal_jax.ordering.race.MOST_SLOWER`.
"""

_ONE = 126


def draw(graph: Any, rates: Any, left: Any, orders: Any) -> None:
    """Sets the beginnings of ``orders [S, ...]`` to ``S`` draws.

    Args:
      graph: A `Precedence`.
      rates: The `Rates` of its ops.
      left: ``[S, ...]`` float32, times left before the first step.
      orders: ``[S, ...]`` int32; entries after the ops of the graph are unchanged.
    """
    n = len(graph.waiting)
    ready, power = np.empty(n, np.int32), np.empty(n, np.int32)
    time, rate, mean = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32)
    for s in range(len(orders)):
        waiting = graph.waiting.copy()
        count = 0
        for o in range(n):
            if waiting[o] == 0:
                ready[count], power[count], time[count] = o, rates.power[o], left[s, o]
                rate[count], mean[count] = rates.rate[o], rates.mean[o]
                count += 1
        for step in range(n):
            best = _find(rates, count, ready, power, time, mean)
            op, exponent, passed = ready[best], power[best], time[best] * mean[best]
            for i in range(count):
                scale = rates.twos[min(max(power[i] - exponent, -_ONE), _ONE + 1) + _ONE]
                time[i] = max(time[i] - passed * rate[i] * scale, rates.least)
            orders[s, step] = op
            count -= 1
            ready[best], power[best], time[best] = ready[count], power[count], time[count]
            rate[best], mean[best] = rate[count], mean[count]
            for j in range(graph.begin[op], graph.end[op]):
                v = graph.successor[j]
                waiting[v] -= 1
                if waiting[v] == 0:
                    ready[count], power[count], time[count] = v, rates.power[v], left[s, v]
                    rate[count], mean[count] = rates.rate[v], rates.mean[v]
                    count += 1


def _first(rates: Any, count: int, ready: Any, power: Any, time: Any, mean: Any) -> int:
    """The place of the ready op that finishes first; ties go to the lowest index."""
    fastest = power[0]
    for i in range(count):
        fastest = max(fastest, power[i])
    best, least = 0, np.float32(np.inf)
    for i in range(count):
        finish = time[i] * mean[i] * rates.twos[min(fastest - power[i], rates.slower) + _ONE]
        if finish < least or (finish == least and ready[i] < ready[best]):
            best, least = i, finish
    return best


_find = part(_first)


def total(graph: Any, priority: Any, orders: Any, found: Any) -> None:
    """Sets ``found [S]`` to log-probabilities of orders; minus infinity for rows that are not orders.

    Args:
      graph: A `Precedence`.
      priority: ``[N]`` float64.
      orders: ``[S, ...]`` int32.
      found: ``[S]`` float64.
    """
    n = len(graph.waiting)
    most = priority[:n].max() if n > 0 else 0.0
    weight = np.exp(priority[:n] - most)
    ready, place = np.empty(n, np.int32), np.empty(n, np.int32)
    for s in range(len(orders)):
        waiting, count, sum_ = graph.waiting.copy(), 0, 0.0
        place[:] = -1
        for o in range(n):
            if waiting[o] == 0:
                ready[count], place[o] = o, count
                count += 1
        for step in range(n):
            op = orders[s, step]
            if op >= n or place[op] < 0:
                sum_ = -np.inf
                break
            sum_ += priority[op] - _normalise(priority, weight, most, ready, count)
            count -= 1
            ready[place[op]], place[ready[count]] = ready[count], place[op]
            place[op] = -1
            for j in range(graph.begin[op], graph.end[op]):
                v = graph.successor[j]
                waiting[v] -= 1
                if waiting[v] == 0:
                    ready[count], place[v] = v, count
                    count += 1
        found[s] = sum_


def _normaliser(priority: Any, weight: Any, most: float, ready: Any, count: int) -> float:
    """Log-sum-exp of the priorities of the ready ops."""
    sum_ = 0.0
    for i in range(count):
        sum_ += weight[ready[i]]
    if sum_ > 1e-200:
        return most + math.log(sum_)
    # All are much smaller than the largest priority of the graph, so use the largest of the ready ops.
    most = priority[ready[0]]
    for i in range(count):
        most = max(most, priority[ready[i]])
    sum_ = 0.0
    for i in range(count):
        sum_ += math.exp(priority[ready[i]] - most)
    return most + math.log(sum_)


_normalise = part(_normaliser)

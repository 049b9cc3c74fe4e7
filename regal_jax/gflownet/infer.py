"""`sample_schedules`: schedules of one graph from a trained network."""

import math
import warnings
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.checks import check_number, check_whole
from regal_jax.errors import ConfigError
from regal_jax.gflownet.inputs import ScheduleInputs, make_schedule_inputs, padded_ops
from regal_jax.gflownet.networks import SchedulePolicy
from regal_jax.gflownet.trajectories import Trajectories, sample_trajectories
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.ordering.precedence import check_key, check_seconds, run
from regal_jax.programs import program
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt, interruptible
from regal_jax.search.draws import numbered, seeds_of

__all__ = ["TEMPERATURE", "Schedules", "sample_schedules"]

TEMPERATURE: Final = 0.005
"""Temperature at inference in the paper; lower than all temperatures of the training."""
_SCORES: Final = 2**23
"""Largest number of scores of a layer's heads for schedules that are sampled together: 32 MiB."""
_TOGETHER: Final = 128
_CPU_SECONDS: Final = 1.5e-8
"""Seconds of a CPU core for one schedule and one head, divided by the cube of the number of ops."""
_LONG: Final = 30
"""Expected seconds above which a call without a time limit warns."""


class Schedules(NamedTuple):
    """``C`` schedules of one graph.

    Attributes:
      sequence: ``[C, N]`` int32, the ops in the order in which they were scheduled.
      devices: ``[C, N]`` int32, the device of each op.
      speedup: ``[C]`` float32, the work over the makespan with free transfers.
    """

    sequence: np.ndarray
    devices: np.ndarray
    speedup: np.ndarray


@interruptible()
def sample_schedules(
    model: SchedulePolicy,
    graph: ComputationGraph,
    cluster: Cluster,
    key: jax.Array,
    *,
    count: int = 1000,
    temperature: float = TEMPERATURE,
    seconds: float | None = None,
) -> Schedules:
    """Samples schedules of one graph; the network is called once for each op and group of schedules.

    Args:
      model: The network.
      graph: Any graph.
      cluster: At most as many devices as the network has. Neither transfers nor memory are considered.
      key: Typed, consumed.
      count: ``C``, at least 1.
      temperature: The lower, the higher the mean speed-up and the lower the diversity.
      seconds: Time limit, after which no further group of schedules is sampled; ``None`` for no limit.

    Returns:
      At most ``count`` schedules, at least one.

    Raises:
      ConfigError: A cluster of too many devices, a number out of range, or an argument of another kind.
      ClusterError: The cluster does not fit the graph.

    Warns:
      UserWarning: There is no time limit, and the schedules are expected to take long on CPUs. The time grows
        with the cube of the number of ops.

    Examples:
      >>> import jax
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.gflownet import default_gflownet, sample_schedules
      >>> from regal_jax.graph import Cluster
      >>> graph, cluster = generate("chain", 3, 0), Cluster.uniform(4, transfer="free")
      >>> sample_schedules(default_gflownet(), graph, cluster, jax.random.key(0), count=2).sequence.tolist()
      [[0, 1, 2], [0, 1, 2]]

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, sections 3.3 and 5.
    """
    if not isinstance(model, SchedulePolicy):
        raise ConfigError("sample_schedules: give a SchedulePolicy first, such as default_gflownet()")
    count = check_whole("sample_schedules: count", count, 1)
    temperature = check_number("sample_schedules: temperature", temperature, 1e-6, 1e6)
    check_seconds(seconds)
    check_key(key)
    deadline = Deadline(seconds)
    size, config = graph.num_ops, model.config
    inputs = make_schedule_inputs(graph, cluster, ops=padded_ops(size), devices=config.devices)
    inputs = jax.device_put(inputs)
    if seconds is None:
        _warn_if_long(count, size, sum(config.heads))
    scores = max(sum(config.heads), 1) * inputs.shape[0] ** 2
    # Powers of two, so that few programs are needed.
    together = 1 << (max(min(_TOGETHER, count, _SCORES // scores), 1) - 1).bit_length()
    # The time limit is looked at between two groups.
    while seconds is not None and together > 1 and _expected(together, size, sum(config.heads)) > seconds:
        together //= 2
    log_sigma = jnp.float32(math.log(temperature))
    sequence, devices, speedup = [], [], []
    for first in range(0, count, together):
        check_interrupt()
        found = run(_sample, model, inputs, key, jnp.uint32(first), together, log_sigma)
        ops, where, gain = (np.asarray(leaf) for leaf in (found.ops, found.devices, found.speedup))
        sequence.append(ops[:, :size])
        placed = np.zeros((together, size), np.int32)
        np.put_along_axis(placed, ops[:, :size], where[:, :size], axis=1)
        devices.append(placed)
        speedup.append(gain)
        if deadline.over:
            break
    all_of = [np.concatenate(part)[:count] for part in (sequence, devices, speedup)]
    return Schedules(*all_of)


def _expected(count: int, ops: int, heads: int) -> float:
    """Seconds that schedules take on a CPU core; 0 on an accelerator."""
    return _CPU_SECONDS * count * max(heads, 1) * ops**3 if jax.default_backend() == "cpu" else 0.0


def _warn_if_long(count: int, ops: int, heads: int) -> None:
    expected = _expected(count, ops, heads)
    if expected > _LONG:
        warnings.warn(
            f"gflownet: {count} schedules of {ops} ops take about {expected:.0f} s of a CPU core (the time "
            "grows with the cube of the ops); ask for fewer schedules, or set a time limit",
            stacklevel=2,
        )


@program(static=(4,))
def _sample(
    model: SchedulePolicy,
    inputs: ScheduleInputs,
    key: jax.Array,
    first: jax.Array,
    count: int,
    log_sigma: jax.Array,
) -> Trajectories:
    """Trajectories ``first`` to ``first + count``; each depends on the key and its own number."""
    return sample_trajectories(model, inputs, numbered(seeds_of(key), first, count), log_sigma)

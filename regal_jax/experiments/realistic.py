"""The development set of realistic cases: models, links that take time, limits of memory.

A case is a model on a cluster with an objective. There are 20 models (the examples, and graphs of the sample
from families of the training and validation splits; never of the test split), 2, 4 and 8 devices, three
links, and

- the makespan with unlimited memory,
- the makespan with 60 % of the one-device peak on every device,
- the makespan with 1.1 times an even split of the one-device peak, ``1.1 * peak / devices``,
- the peak memory.

The one-device peak is the smallest that any heuristic finds on one device. A limit is never less than
`regal_jax.plan.lower_bound` of the peak: the memory that one op needs, or the kept tensors spread evenly.
"""

import dataclasses
import hashlib
import math
from typing import Final

from regal_jax.datasets import load_sample
from regal_jax.examples import load_example
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.even_split import possible_capacity
from regal_jax.plan import Objective, contract

__all__ = ["DEVICES", "EXAMPLE_MODELS", "LINKS", "MEMORY", "SAMPLE_MODELS", "Case", "realistic_cases"]

LINKS: Final = {
    "nvlink": "latency=5us,bandwidth=300GB/s",
    "pcie": "latency=10us,bandwidth=25GB/s",
    "ethernet": "latency=50us,bandwidth=10GB/s",
}
"""Links of the blocking transfers, by name."""
DEVICES: Final = (2, 4, 8)
MEMORY: Final = ("unlimited", "60 %", "even split")
EXAMPLE_MODELS: Final = {
    "mlp": False, "moe-small": False, "unet": False, "moe": True, "resnet50": True, "gpt2-small": True,
    "lstm-lm": True,
}  # fmt: skip
"""Training steps, and whether each is contracted so that it has at most about 2000 ops."""
SAMPLE_MODELS: Final = (
    "flax/mixer_8.gradient",
    "flax/transformer_2.forward",
    "keras-applications/DenseNet121.forward",
    "keras-applications/InceptionV3.forward",
    "keras-hub/DeiT_6.training-step",
    "keras-hub/T5_6.forward",
    "keras-hub/Whisper_6.forward",
    "timm/crossvit_9_dagger_240.forward",
    "timm/hgnetv2_b4.forward",
    "timm/mvitv2_base.forward",
    "timm/qwen3_vit_88m.forward",
    "transformers/blenderbot-small.forward",
    "transformers/flava.forward",
)
_SHARE: Final = 0.6
_SPARE: Final = 1.1


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with a cluster, a limit of memory and an objective.

    Attributes:
      model: A key of `EXAMPLE_MODELS`, or one of `SAMPLE_MODELS`.
      devices: Number of equal devices.
      link: A key of `LINKS`.
      memory: One of `MEMORY`.
      objective: Objective to minimise; the makespan if memory is limited.
    """

    model: str
    devices: int
    link: str
    memory: str
    objective: Objective

    def cluster(self, graph: ComputationGraph, peak: float) -> Cluster:
        """The cluster on which ``graph``, the model, runs; ``peak`` is its one-device peak."""
        capacity = math.inf
        if self.memory != "unlimited":
            wanted = _SHARE * peak if self.memory == "60 %" else _SPARE * peak / self.devices
            capacity = possible_capacity(graph, self.devices, wanted)
        return Cluster.uniform(self.devices, capacity, f"blocking:{LINKS[self.link]}")


def realistic_cases(count: int = 0) -> list[Case]:
    """The cases, in an order that depends only on their names.

    Args:
      count: Number of cases, taken from the front as a representative sample; 0 for all.
    """
    aims = [(memory, Objective.MAKESPAN) for memory in MEMORY]
    aims.append(("unlimited", Objective.PEAK_MEMORY))
    every = [
        Case(model, devices, link, memory, objective)
        for model in (*EXAMPLE_MODELS, *SAMPLE_MODELS)
        for devices in DEVICES
        for link in LINKS
        for memory, objective in aims
    ]

    def place(case: Case) -> bytes:
        return hashlib.sha256("|".join(map(str, dataclasses.astuple(case))).encode()).digest()

    return sorted(every, key=place)[: count or None]


def load_models(names: set[str]) -> dict[str, ComputationGraph]:
    """The models of these names."""
    found = {
        name: contract(load_example(name)).graph if contracted else load_example(name)
        for name, contracted in EXAMPLE_MODELS.items()
        if name in names
    }
    if names - found.keys():
        # Families of the test split must not be used here.
        for split in ("train", "validation"):
            for record, graph in load_sample(split):
                name = record["path"].removesuffix(".json.gz")
                if name in names:
                    found[name] = graph
    return found

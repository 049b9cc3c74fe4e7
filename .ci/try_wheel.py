"""Try an installed wheel outside of the checkout: version, types, one search, the shipped policies."""

import importlib.metadata
import importlib.resources
import pathlib
import sys

import regal_jax
from regal_jax.policies import default_policy

VERSION, CHECKOUT = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()


def check(holds, what):
    if not holds:
        sys.exit(f"try_wheel: {what}")


def main():
    check(
        CHECKOUT not in pathlib.Path(regal_jax.__file__).resolve().parents,
        f"imported from {regal_jax.__file__}",
    )
    check(regal_jax.__version__ == VERSION, f"__version__ is {regal_jax.__version__}, not {VERSION}")
    check(importlib.metadata.version("regal-jax") == VERSION, "the metadata have another version")
    check(importlib.resources.files("regal_jax").joinpath("py.typed").is_file(), "there is no py.typed")

    builder = regal_jax.GraphBuilder("tiny")
    for name in "abcd":
        builder.add_op(name, runtime=1.0)
    graph = builder.build()
    plan = regal_jax.optimize(graph, regal_jax.Cluster.uniform(2), evaluations=200, seed=0)
    plan.verify(graph)
    check(plan.makespan == 2.0, f"four ops of one second take {plan.makespan} s on two devices")
    for objective in regal_jax.Objective:
        check(default_policy(objective, 2) is not None, f"no policy ships for {objective.value}")
    print(f"regal-jax {VERSION}: the wheel installs, searches and has its policies")


main()

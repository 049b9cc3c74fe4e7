"""The programs that `regal_jax.compile` is measured with: training steps and gradients, from a file."""

import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax

from regal_jax.errors import ConfigError
from regal_jax.examples import EXAMPLES
from regal_jax.examples.training import training_step
from regal_jax.storage.documents import read_toml

__all__ = ["PROGRAMS", "Program", "Settings", "concrete", "read_settings"]

PROGRAMS: Final = pathlib.Path(__file__).with_name("compile_programs.toml")


@dataclasses.dataclass(frozen=True)
class Program:
    """Attributes:
    name: Name of the row.
    fn: The function.
    args: Shapes of its arguments.
    donate: Arguments that are donated.
    run: Whether the program is also run.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate: tuple[int, ...]
    run: bool


@dataclasses.dataclass(frozen=True)
class Settings:
    """Attributes:
    evaluations: As `regal_jax.compile` takes them.
    candidates: See `regal_jax.compile`.
    rounds: Runs of each program.
    programs: Name -> settings from which the program is made.
    """

    evaluations: int
    candidates: int
    rounds: int
    programs: Mapping[str, Callable[[], Program]]


def read_settings(path: pathlib.Path) -> Settings:
    """Reads a file of programs.

    Raises:
      ConfigError: The file is not a file of programs.
    """
    table = read_toml(path)
    programs: dict[str, Callable[[], Program]] = {}
    try:
        for name, row in table.get("models", {}).items():
            programs[f"{name} step"] = lambda name=name, row=row: _step(f"{name} step", row)
            programs[f"{name} gradient"] = lambda name=name, row=row: _gradient(f"{name} gradient", row)
        for name, row in table.get("examples", {}).items():
            EXAMPLES[name]
            programs[f"example {name}"] = lambda name=name, row=row: _example(name, row)
        for name, row in table.get("corpus", {}).items():
            for form in row["forms"]:
                programs[f"{name} {form}"] = lambda name=name, form=form: _corpus(name, form)
        return Settings(table["evaluations"], table["candidates"], table["rounds"], programs)
    except (KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: {error} is missing or unknown; see {PROGRAMS.name}") from None


def _corpus(name: str, form: str) -> Program:
    from regal_jax.corpus.sources import flax_models

    fn, args, donated = flax_models.program(name, form)
    return Program(f"{name} {form}", fn, args, donated, True)


def _example(name: str, row: Mapping[str, Any]) -> Program:
    step = EXAMPLES[name].build(row.get("batch_size"))
    return Program(f"example {name}", step.fn, step.args, step.donate_argnums, row.get("run", True))


def _parts(row: Mapping[str, Any]) -> tuple[Any, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    module, _, name = row["model"].partition(":")
    model = getattr(importlib.import_module(f"regal_jax.examples.{module}"), name)
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in row["settings"].items()}
    kind = jnp.int32 if row.get("tokens") else jnp.float32
    inputs = jax.ShapeDtypeStruct(tuple(row["inputs"]), kind)
    return model(**settings), inputs, jax.ShapeDtypeStruct(tuple(row["labels"]), jnp.int32)


def _step(name: str, row: Mapping[str, Any]) -> Program:
    step = training_step(*_parts(row))
    return Program(name, step.fn, step.args, step.donate_argnums, row.get("run", True))


def _gradient(name: str, row: Mapping[str, Any]) -> Program:
    model, inputs, labels = _parts(row)
    variables = dict(jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), inputs))
    params = variables.pop("params")

    def loss(params: Any, state: Any, inputs: Any, labels: Any) -> Any:
        logits, _ = model.apply({"params": params, **state}, inputs, mutable=list(state))
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

    return Program(
        name, jax.value_and_grad(loss), (params, variables, inputs, labels), (), row.get("run", True)
    )


def concrete(program: Program) -> tuple[Any, ...]:
    """Arguments of the program's shapes: random floats, and whole numbers that are 0."""
    key = jax.random.key(0)

    def make(leaf: Any) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return 0.02 * jax.random.normal(key, leaf.shape, leaf.dtype) ** 2
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(make, program.args)

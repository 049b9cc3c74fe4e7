"""Cheap random draws that do not depend on padding."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

__all__ = [
    "TransformedProposal",
    "UniformProposal",
    "distinct",
    "expand",
    "numbered",
    "random_keys",
    "seeds_of",
    "unpack",
    "words",
]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@jax.jit
def _threefry(k0: jax.Array, k1: jax.Array, stream: jax.Array, counter: jax.Array) -> jax.Array:
    """The words that `jax.random.bits` gives for a threefry key ``(k0, k1)``; operands of one shape.

    On CPUs, JAX lowers its own implementation to a loop over arrays, which costs ten times more. This one
    fuses with the code that uses the draw. It is jitted so that a search, which draws in many places, traces
    its hundred operations once; XLA inlines the calls.
    """
    schedule = (k0, k1, k0 ^ k1 ^ jnp.uint32(0x1BD11BDA))
    x, y = k0 + stream, k1 + counter
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            x = x + y
            y = (y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation))
            y = x ^ y
        x = x + schedule[(block + 1) % 3]
        y = y + schedule[(block + 2) % 3] + jnp.uint32(block + 1)
    return x ^ y


def words(seeds: jax.Array, count: int, stream: int | jax.Array = 0) -> jax.Array:
    """Uniform 32-bit words from seeds by Threefry-2x32 (Salmon et al. 2011).

    Word ``j`` depends only on its seed, the stream and ``j``.

    Args:
      seeds: ``[..., 2]`` uint32, see `seeds_of`.
      count: Number of words per seed.
      stream: int or uint32 scalar; different streams of a seed are independent.

    Returns:
      ``[..., count]`` uint32.
    """
    batch = seeds.shape[:-1]
    counter = lax.broadcasted_iota(jnp.uint32, (*batch, count), len(batch))
    k0, k1 = (jnp.broadcast_to(seeds[..., i, None], counter.shape) for i in (0, 1))
    return _threefry(k0, k1, jnp.full(counter.shape, jnp.asarray(stream).astype(jnp.uint32)), counter)


def expand(seeds: jax.Array, shape: tuple[int, ...], stream: int = 0) -> jax.Array:
    """Uniform 16-bit draws, two from each of the `words` of a seed.

    An array that is padded along its first axis begins with the draws of the unpadded one.

    Args:
      seeds: ``[..., 2]`` uint32.
      shape: Shape of the draws for one seed.
      stream: See `words`.

    Returns:
      ``[..., *shape]`` uint16.
    """
    return unpack(words(seeds, (math.prod(shape) + 1) // 2, stream), shape)


def unpack(packed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``[..., *shape]`` uint16, two from each of ``[..., words]`` uint32; a surplus draw is dropped."""
    batch = packed.shape[:-1]
    halves = lax.bitcast_convert_type(packed, jnp.uint16)
    return halves.reshape(*batch, 2 * packed.shape[-1])[..., : math.prod(shape)].reshape(*batch, *shape)


def seeds_of(keys: jax.Array) -> jax.Array:
    """``[..., 2]`` uint32 seeds from typed keys ``[...]`` of any implementation, consumed."""
    if jax.random.key_impl(keys) == "threefry2x32":
        return jax.random.key_data(keys)
    draw = lambda key: jax.random.bits(key, (2,), jnp.uint32)  # noqa: E731
    return jax.vmap(draw)(keys.reshape(-1)).reshape(*keys.shape, 2)


def numbered(seeds: jax.Array, first: int | jax.Array, count: int) -> jax.Array:
    """Seeds for the individuals ``first``, ``first + 1``, ... of each instance, without a further cipher.

    Threefry is a cipher: keys that differ in any bit give independent streams (Salmon et al. 2011, section
    2). XLA repeats the computation of a seed for every gene that is drawn from it, so it should be short.

    Args:
      seeds: ``[..., 2]`` uint32, see `seeds_of`; their own streams stay unused.
      first: Number of the first individual; ``first + count`` is at most 2**32.
      count: Number of individuals.

    Returns:
      ``[..., count, 2]`` uint32, distinct and different from ``seeds``.
    """
    number = lax.broadcasted_iota(jnp.uint32, (*seeds.shape[:-1], count), seeds.ndim - 1)
    number = number + (jnp.asarray(first).astype(jnp.uint32) + jnp.uint32(1))
    left = seeds[..., 0, None] ^ (number * jnp.uint32(0x9E3779B9))
    return jnp.stack([left, jnp.broadcast_to(seeds[..., 1, None], left.shape)], axis=-1)


def random_keys(key: jax.Array, shapes: Any) -> Any:
    """One individual with uniform genes.

    Args:
      key: Typed key, consumed.
      shapes: Pytree of `jax.ShapeDtypeStruct`.

    Returns:
      The same pytree of uint16 arrays; a gene ``g`` is the random key ``g / 65535``.
    """
    return UniformProposal.of(shapes)(None, key)


def distinct(bits: jax.Array, population: int) -> jax.Array:
    """Draws for each row distinct numbers below ``population``; all sets are equally likely.

    Args:
      bits: ``[..., picks]`` uniform uint32, consumed; ``picks`` is at most ``population``.
      population: Exclusive upper bound of the numbers.

    Returns:
      ``[..., picks]`` int32, ascending.
    """
    chosen: list[jax.Array] = []
    for j in range(bits.shape[-1]):
        # Draw a number among those left, then map it to all numbers: step over each smaller choice.
        pick = (bits[..., j] % jnp.uint32(population - j)).astype(jnp.int32)
        for smaller in chosen:
            pick = pick + (pick >= smaller).astype(jnp.int32)
        # Insertion keeps the choices ascending, which the step above relies on.
        for i, other in enumerate(chosen):
            chosen[i], pick = jnp.minimum(other, pick), jnp.maximum(other, pick)
        chosen.append(pick)
    return jnp.stack(chosen, axis=-1)


@dataclasses.dataclass(frozen=True)
class UniformProposal:
    """The uniform proposal: `random_keys` of fixed shapes. Hashable; made by `of`."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, shapes: Any) -> Self:
        """The proposal for a pytree whose leaves have shapes (arrays, or `jax.ShapeDtypeStruct`)."""
        leaves, tree = jax.tree.flatten(shapes)
        return cls(tree, tuple(tuple(leaf.shape) for leaf in leaves))

    def words(self, key: jax.Array) -> list[jax.Array]:
        """The random words of one individual, leaf by leaf: half as many as genes."""
        seed = seeds_of(key)
        return [words(seed, (math.prod(shape) + 1) // 2, i) for i, shape in enumerate(self.shapes)]

    def genes(self, packed: list[jax.Array]) -> Any:
        """The individual made from these words."""
        leaves = [unpack(word, shape) for word, shape in zip(packed, self.shapes, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)

    def __call__(self, params: Any, key: jax.Array) -> Any:
        """One individual; ``params`` is unused."""
        del params
        return self.genes(self.words(key))


@dataclasses.dataclass(frozen=True)
class TransformedProposal:
    """Uniform keys mapped by a function (inverse transform sampling). Hashable.

    It is called like any other proposal. Because it separates its random words from their transform, a search
    can draw the words ahead; XLA would otherwise repeat the cipher for every lookup of the function.

    Attributes:
      uniform: Proposal of the uniform keys.
      transform: Function ``(params of one instance, uniform genes of one individual) -> genes``.
      late: Leaves that the function does not change, which need not be drawn ahead.
    """

    uniform: UniformProposal
    transform: Callable[[Any, Any], Any]
    late: tuple[int, ...] = ()

    def ahead(self, key: jax.Array) -> list[jax.Array]:
        """The random words of one individual that may be drawn ahead."""
        return [word for i, word in enumerate(self.uniform.words(key)) if i not in self.late]

    def __call__(self, params: Any, key: jax.Array, ahead: list[jax.Array] | None = None) -> Any:
        """One individual; ``ahead`` holds words that are drawn already."""
        packed = self.uniform.words(key)
        if ahead is not None:
            early = iter(ahead)
            packed = [word if i in self.late else next(early) for i, word in enumerate(packed)]
        return self.transform(params, self.uniform.genes(packed))

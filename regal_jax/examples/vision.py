"""Image models."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from regal_jax.examples.registry import TrainingStep
from regal_jax.examples.training import training_step

__all__ = ["MLP", "ResNet50", "UNet", "mlp", "resnet50", "unet"]


class MLP(nn.Module):
    """Dense layers with ReLU between them."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.widths[:-1]:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.widths[-1])(x)


class Bottleneck(nn.Module):
    """Residual block of ResNet-50 (He et al. 2015, figure 5), stride in the 3 x 3 convolution."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = functools.partial(nn.Conv, use_bias=False)
        norm = functools.partial(nn.BatchNorm, use_running_average=False, momentum=0.9)
        strides = (self.stride, self.stride)
        y = nn.relu(norm()(conv(self.features, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.features, (3, 3), strides)(y)))
        y = norm()(conv(4 * self.features, (1, 1))(y))
        if x.shape != y.shape:
            x = norm(name="shortcut_norm")(conv(4 * self.features, (1, 1), strides, name="shortcut")(x))
        return nn.relu(x + y)


class ResNet50(nn.Module):
    """He et al. 2015, table 1, with batch statistics as model state."""

    classes: int = 1000

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(64, (7, 7), (2, 2), use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Bottleneck(64 * 2**stage, stride, name=f"stage{stage + 1}_block{block + 1}")(x)
        return nn.Dense(self.classes)(jnp.mean(x, axis=(1, 2)))


class UNet(nn.Module):
    """Ronneberger et al. 2015, figure 1, with padded convolutions."""

    channels: tuple[int, ...] = (64, 128, 256, 512, 1024)
    classes: int = 2

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        skips = []
        for level, width in enumerate(self.channels):
            x = nn.relu(nn.Conv(width, (3, 3), name=f"down{level}_conv0")(x))
            x = nn.relu(nn.Conv(width, (3, 3), name=f"down{level}_conv1")(x))
            skips.append(x)
            if level < len(self.channels) - 1:
                x = nn.max_pool(x, (2, 2), (2, 2))
        for level in reversed(range(len(self.channels) - 1)):
            width = self.channels[level]
            x = nn.ConvTranspose(width, (2, 2), (2, 2), name=f"up{level}")(x)
            x = jnp.concatenate([skips[level], x], axis=-1)
            x = nn.relu(nn.Conv(width, (3, 3), name=f"up{level}_conv0")(x))
            x = nn.relu(nn.Conv(width, (3, 3), name=f"up{level}_conv1")(x))
        return nn.Conv(self.classes, (1, 1), name="head")(x)


def _images(batch_size: int, size: int, channels: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch_size, size, size, channels), jnp.float32)


def mlp(batch_size: int) -> TrainingStep:
    """Training step of a small `MLP`."""
    images = jax.ShapeDtypeStruct((batch_size, 784), jnp.float32)
    return training_step(MLP((512, 512, 10)), images, jax.ShapeDtypeStruct((batch_size,), jnp.int32))


def resnet50(batch_size: int) -> TrainingStep:
    """Training step of `ResNet50`."""
    labels = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    return training_step(ResNet50(), _images(batch_size, 224, 3), labels)


def unet(batch_size: int) -> TrainingStep:
    """Training step of `UNet`: a class for every pixel."""
    labels = jax.ShapeDtypeStruct((batch_size, 256, 256), jnp.int32)
    return training_step(UNet(), _images(batch_size, 256, 1), labels)

"""Networks with random weights that `torch.onnx` exports: some with branches, some without."""

import itertools
import pathlib
import warnings
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

__all__ = ["NETWORKS", "export"]


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, normalisation, ReLU; the image keeps its size at stride 1."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class _Inception(nn.Module):
    """Blocks of four branches (Szegedy et al. 2015)."""

    def __init__(self, width: int = 64, blocks: int = 4) -> None:
        super().__init__()
        self.stem = _conv(3, width, 7, 2)
        quarter = width // 4
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    _conv(width, quarter, 1),
                    nn.Sequential(_conv(width, 2 * width, 1), _conv(2 * width, quarter)),
                    nn.Sequential(_conv(width, width, 1), _conv(width, 2 * width), _conv(2 * width, quarter)),
                    nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(width, quarter, 1)),
                ]
            )
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.cat([branch(x) for branch in block], 1)  # pyright: ignore[reportGeneralTypeIssues]
        return x.mean((2, 3))


class _Residual(nn.Module):
    """Basic residual blocks (He et al. 2016): a chain but for the sums."""

    def __init__(self, width: int = 32, blocks: int = 6) -> None:
        super().__init__()
        self.stem = _conv(3, width, 7, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(_conv(width, width), _conv(width, width)) for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return x.mean((2, 3))


class _Dense(nn.Module):
    """A dense block (Huang et al. 2017): every layer reads what all before it have made."""

    def __init__(self, growth: int = 16, layers: int = 12) -> None:
        super().__init__()
        self.stem = _conv(3, growth, 7, 2)
        self.layers = nn.ModuleList(
            nn.Sequential(_conv(growth * (i + 1), 4 * growth, 1), _conv(4 * growth, growth))
            for i in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [self.stem(x)]
        for layer in self.layers:
            made.append(layer(torch.cat(made, 1)))
        return torch.cat(made, 1).mean((2, 3))


class _UNet(nn.Module):
    """Encoder and decoder with skips of every scale (Ronneberger et al. 2015)."""

    def __init__(self, width: int = 16, scales: int = 4) -> None:
        super().__init__()
        sizes = [width * 2**k for k in range(scales)]
        self.down = nn.ModuleList(
            nn.Sequential(_conv(a, b), _conv(b, b)) for a, b in zip([3, *sizes], sizes, strict=False)
        )
        self.up = nn.ModuleList(_conv(b + a, a) for a, b in itertools.pairwise(sizes))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for k, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if k else x)
            skips.append(x)
        for block, skip in zip(reversed(self.up), reversed(skips[:-1]), strict=True):
            x = block(torch.cat([functional.interpolate(x, scale_factor=2.0), skip], 1))
        return self.head(x)


class _Wired(nn.Module):
    """Convolutions on a random directed graph, their sums weighted (Xie et al. 2019)."""

    def __init__(self, width: int = 24, nodes: int = 32, seed: int = 0) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.stem = _conv(3, width, 3, 2)
        # A small world: edges to the two nearest nodes on a ring, of which one in four is rewired.
        pairs: set[tuple[int, int]] = set()
        for i in range(nodes):
            for step in (1, 2):
                j = int(rng.integers(nodes)) if rng.random() < 0.25 else (i + step) % nodes
                if i != j:
                    pairs.add((min(i, j), max(i, j)))
        self.reads = [sorted(a for a, b in pairs if b == i) for i in range(nodes)]
        self.last = [i for i in range(nodes) if all(a != i for a, _ in pairs)]
        self.convs = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1, groups=width), nn.Conv2d(width, width, 1)
            )
            for _ in range(nodes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stem = self.stem(x)
        made: list[torch.Tensor] = []
        for reads, conv in zip(self.reads, self.convs, strict=True):
            total = made[reads[0]] if reads else stem
            for i in reads[1:]:
                total = total + made[i]
            made.append(conv(total))
        total = made[self.last[0]]
        for i in self.last[1:]:
            total = total + made[i]
        return total.mean((2, 3))


class _Cell(nn.Module):
    """A cell of five blocks over the two cells before it, its results concatenated (Zoph et al. 2018)."""

    def __init__(self, before: int, last: int, width: int) -> None:
        super().__init__()
        self.adapt = nn.ModuleList([_conv(before, width, 1), _conv(last, width, 1)])
        self.first = nn.ModuleList(_conv(width, width, size, groups=width) for size in (5, 5, 3, 3, 5))
        self.second = nn.ModuleList(_conv(width, width, size, groups=width) for size in (3, 3, 1, 3, 3))

    def forward(self, before: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        h0, h1 = self.adapt[0](before), self.adapt[1](last)
        left, right = (h1, h0, h1, h0, h1), (h0, h1, h0, h0, h1)
        a = [conv(x) for conv, x in zip(self.first, left, strict=True)]
        b = [conv(x) for conv, x in zip(self.second, right, strict=True)]
        return torch.cat([h0, *(p + q for p, q in zip(a, b, strict=True))], 1)


class _Cells(nn.Module):
    """A chain of such cells."""

    def __init__(self, width: int = 16, cells: int = 4) -> None:
        super().__init__()
        self.stem = _conv(3, width, 3, 2)
        sizes = [width, width, *[6 * width] * cells]
        self.cells = nn.ModuleList(_Cell(a, b, width) for a, b in itertools.pairwise(sizes[:-1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = last = self.stem(x)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return last.mean((2, 3))


class _Pyramid(nn.Module):
    """Dilated branches and pooled ones over one map, computed breadth first (Chen et al. 2017)."""

    def __init__(self, width: int = 32, branches: int = 6) -> None:
        super().__init__()
        self.stem = _conv(3, width, 7, 2)
        self.wide = nn.ModuleList(nn.Conv2d(width, 3 * width, 3, 1, 1 + b, 1 + b) for b in range(branches))
        self.narrow = nn.ModuleList(nn.Conv2d(3 * width, width // 4, 1) for _ in range(branches))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        made = [conv(x) for conv in self.wide]
        made = [torch.relu(each) for each in made]
        return torch.cat([conv(each) for conv, each in zip(self.narrow, made, strict=True)], 1)


class _Transformer(nn.Module):
    """Blocks of attention with one product a head, and of experts that all run (Vaswani et al. 2017)."""

    def __init__(self, width: int = 128, heads: int = 8, experts: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(blocks))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(blocks))
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
                for _ in range(experts)
            )
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for project, out, gate, experts in zip(
            self.projections, self.outs, self.gates, self.experts, strict=True
        ):
            parts = [part.chunk(self.heads, -1) for part in project(x).chunk(3, -1)]
            scores = [q @ k.transpose(-1, -2) for q, k in zip(parts[0], parts[1], strict=True)]
            scores = [functional.softmax(s * 0.25, -1) for s in scores]
            x = x + out(torch.cat([s @ v for s, v in zip(scores, parts[2], strict=True)], -1))
            shares = functional.softmax(gate(x), -1)
            made = [expert(x) for expert in experts]  # pyright: ignore[reportGeneralTypeIssues]
            for e, each in enumerate(made):
                x = x + shares[..., e : e + 1] * each
        return x


_IMAGE: Final = (1, 3, 128, 128)
_TOKENS: Final = (1, 512, 128)

NETWORKS: Final[dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]]] = {
    "residual": (_Residual, _IMAGE, False),
    "dense": (_Dense, _IMAGE, False),
    "unet": (_UNet, _IMAGE, False),
    "inception": (_Inception, _IMAGE, True),
    "cells": (_Cells, _IMAGE, True),
    "wired": (_Wired, _IMAGE, True),
    "pyramid": (_Pyramid, _IMAGE, True),
    "transformer": (_Transformer, _TOKENS, True),
}
"""Name to module, shape of its input, and whether it has branches that can run one after another."""


def export(name: str, path: pathlib.Path, *, batch: int = 1) -> None:
    """Writes the network ``name`` to ``path`` as ONNX, weights drawn with a fixed seed."""
    make, shape, _ = NETWORKS[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        # The exporter that needs no package beside PyTorch is deprecated.
        warnings.simplefilter("ignore")
        torch.onnx.export(make().eval(), (torch.zeros(batch, *shape[1:]),), str(path), dynamo=False)

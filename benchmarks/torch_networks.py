"""PyTorch modules whose gradients and training steps are ordered; see also `benchmarks.onnx_networks`."""

import itertools
from collections.abc import Callable
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from benchmarks import onnx_networks

__all__ = ["MODULES", "build"]


class _Perceptron(nn.Module):
    """Wide layers and few rows: weights are larger than activations."""

    def __init__(self, width: int = 1024, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = functional.relu(layer(x))
        return x


class _Experts(nn.Module):
    """A mixture of experts that all run (Jacobs et al. 1991)."""

    def __init__(self, width: int = 256, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        parts = [expert(x) * weights[:, i : i + 1] for i, expert in enumerate(self.experts)]
        return torch.stack(parts).sum(0)


class _Recommender(nn.Module):
    """Tables of embeddings, products of pairs, two perceptrons (Naumov et al. 2019)."""

    def __init__(self, tables: int = 16, rows: int = 1000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width))
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = len(self.tables)
        index = (x[:, :count].abs() * 100).long() % 1000
        dense = self.bottom(x[:, :13])
        rows = torch.stack([dense, *(table(index[:, i]) for i, table in enumerate(self.tables))], 1)
        products = rows @ rows.transpose(1, 2)
        above = torch.triu_indices(count + 1, count + 1, 1)
        return self.top(torch.cat([products[:, above[0], above[1]], dense], 1))


class _Tasks(nn.Module):
    """A trunk with a head for each of several tasks."""

    def __init__(self, width: int = 512, heads: int = 6) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 10))
            for _ in range(heads)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        shared = self.trunk(x)
        return [head(shared) for head in self.heads]


class _Towers(nn.Module):
    """An anchor, a positive and a negative through one network (Schroff et al. 2015)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.Conv2d(3, width, 5, 2, 2), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, p, n = (self.tower(part) for part in (x, x.flip(-1), x.flip(-2)))
        return functional.relu((a - p).square().sum(1) - (a - n).square().sum(1) + 1.0).mean()


class _Patches(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021)."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class _Mixer(nn.Module):
    """Perceptrons over tokens and over channels in turn (Tolstikhin et al. 2021)."""

    def __init__(self, tokens: int = 64, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.tokens = nn.ModuleList(self._perceptron(tokens) for _ in range(layers))
        self.channels = nn.ModuleList(self._perceptron(width) for _ in range(layers))

    @staticmethod
    def _perceptron(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for tokens, channels in zip(self.tokens, self.channels, strict=True):
            x = x + tokens(x.transpose(1, 2)).transpose(1, 2)
            x = x + channels(x)
        return x.mean(1)


class _Translator(nn.Module):
    """An encoder and a decoder (Vaswani et al. 2017)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.model = nn.Transformer(width, 4, 2, 2, 4 * width, 0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, x[:, ::2])


class _Language(nn.Module):
    """A causal language model whose output layer is its embedding (Press and Wolf 2017)."""

    def __init__(self, words: int = 4000, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x.abs() * 1000).long() % self.embed.num_embeddings
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        y = self.embed(tokens)
        for block in self.blocks:
            y = block(y, src_mask=mask)
        logits = y @ self.embed.weight.t()
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class _Tagger(nn.Module):
    """A recurrence in both directions, with a class for each step."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0])


class _Mobile(nn.Module):
    """Inverted residuals (Sandler et al. 2018)."""

    def __init__(self, width: int = 24, blocks: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, 6 * width, 1), nn.BatchNorm2d(6 * width), nn.ReLU6(),
                nn.Conv2d(6 * width, 6 * width, 3, 1, 1, groups=6 * width), nn.BatchNorm2d(6 * width),
                nn.ReLU6(),
                nn.Conv2d(6 * width, width, 1), nn.BatchNorm2d(width),
            )
            for _ in range(blocks)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return x.mean((2, 3))


class _Autoencoder(nn.Module):
    """Convolutions down to a code and up again (Hinton and Salakhutdinov 2006)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in itertools.pairwise(sizes))
        self.narrow = nn.Linear(4 * width * 64, 128)
        self.back = nn.Linear(128, 4 * width * 64)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 4, 2, 1) for a, b in zip(sizes[-2::-1], sizes[:0:-1], strict=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for layer in self.down:
            y = functional.relu(layer(y))
        y = self.back(self.narrow(y.flatten(1))).reshape(y.shape)
        for layer in self.up:
            y = layer(functional.relu(y))
        return functional.mse_loss(y, x)


def _exported(name: str) -> tuple[Callable[[], nn.Module], tuple[int, ...]]:
    make, shape, _ = onnx_networks.NETWORKS[name]
    return make, (4, *shape[1:])


MODULES: Final[dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]] = {
    **{name: _exported(name) for name in onnx_networks.NETWORKS},
    "perceptron": (_Perceptron, (8, 1024)),
    "experts": (_Experts, (64, 256)),
    "recommender": (_Recommender, (64, 16)),
    "tasks": (_Tasks, (32, 512)),
    "towers": (_Towers, (4, 3, 64, 64)),
    "patches": (_Patches, (4, 3, 128, 128)),
    "mixer": (_Mixer, (4, 64, 128)),
    "translator": (_Translator, (4, 32, 128)),
    "language": (_Language, (2, 48)),
    "tagger": (_Tagger, (4, 32, 96)),
    "mobile": (_Mobile, (4, 3, 64, 64)),
    "autoencoder": (_Autoencoder, (4, 3, 64, 64)),
}
"""Name to module and shape of its input."""


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """The module ``name`` in training mode, and an input, both drawn with a fixed seed."""
    make, shape = MODULES[name]
    torch.manual_seed(0)
    return make().train(), torch.randn(shape)

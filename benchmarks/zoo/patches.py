"""Models of image patches: Transformers, MLP-Mixer, ConvNeXt."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.images import Made, classifier, images
from benchmarks.zoo.model import adamw, classes, model
from benchmarks.zoo.sequences import Block


class Vit(nn.Module):
    """A small vision Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 96, 4, 4)
        self.places = nn.Parameter(torch.zeros(1, 64, 96))
        self.blocks = nn.Sequential(*(Block(96, 3) for _ in range(4)))
        self.head = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.blocks(x).mean(1))


@model("ViT 96, four blocks, 32 x 32, batch 8", optimizer=adamw)
def _vit() -> Made:
    return Vit(), images(8, 3, 32), classes(8, 10)


class Mixer(nn.Module):
    """MLP-Mixer's block."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = self._mlp(tokens)
        self.along = self._mlp(width)

    @staticmethod
    def _mlp(n: int) -> nn.Module:
        return nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, then channels."""
        x = x + self.across(self.a(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.b(x))


@model("MLP-Mixer 128, four blocks, 49 tokens, batch 4", optimizer=adamw)
def _mixer() -> Made:
    net = nn.Sequential(*(Mixer(49, 128) for _ in range(4)), nn.Flatten())
    net.append(nn.Linear(49 * 128, 10))
    return net, (torch.randn(4, 49, 128),), classes(4, 10)


class ConvNext(nn.Module):
    """ConvNeXt's block."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm, self.a, self.b = (
            nn.LayerNorm(c),
            nn.Linear(c, 4 * c),
            nn.Linear(4 * c, c),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Filter, then transform each pixel."""
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        return x + self.b(F.gelu(self.a(y))).permute(0, 3, 1, 2)


@model("ConvNeXt-like, 64 x 64, batch 2", optimizer=adamw)
def _convnext() -> Made:
    parts = [nn.Conv2d(3, 48, 4, 4), *(ConvNext(48) for _ in range(3))]
    return classifier(nn.Sequential(*parts), 48), images(2, 3, 64), classes(2, 10)


class Window(nn.Module):
    """Swin's block: attention in windows, every other time of shifted ones."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.block = Block(width, heads)

    def forward(self, x: Tensor) -> Tensor:
        """Images of channels last, as long and wide as windows fit."""
        n, h, w, c = x.shape
        m = self.window
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = x.view(n, h // m, m, w // m, m, c).transpose(2, 3).reshape(-1, m * m, c)
        x = self.block(x).view(n, h // m, w // m, m, m, c).transpose(2, 3)
        return torch.roll(x.reshape(n, h, w, c), (self.shift, self.shift), (1, 2))


class Merge(nn.Module):
    """Swin's way to half the resolution: four neighbours become one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Join pixels, then halve their channels."""
        rows = (x[:, i::2, j::2] for j in (0, 1) for i in (0, 1))
        return self.reduce(self.norm(torch.cat(list(rows), -1)))


class Swin(nn.Module):
    """A small Swin Transformer of two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 4, 4)
        self.blocks = nn.Sequential(
            *(Window(48, 3, 7, shift) for shift in (0, 3)),
            Merge(48),
            *(Window(96, 6, 7, shift) for shift in (0, 3)),
        )
        self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.blocks(self.patches(x).permute(0, 2, 3, 1))
        return self.head(self.norm(x).mean((1, 2)))


@model("Swin-like, 112 x 112, batch 2", optimizer=adamw)
def _swin() -> Made:
    return Swin(), images(2, 3, 112), classes(2, 10)

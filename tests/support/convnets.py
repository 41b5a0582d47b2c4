"""Small networks of many families, and how many of their convolutions are ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import contract
import torch
import torch.nn.functional as F
from torch import Tensor, nn

OPS = ("conv2d", "conv2d_backward")

Shape = tuple[int, int, int, int, int]
"""Images, channels in and out, height and width."""

SHAPES: list[Shape] = [(2, 16, 24, 20, 17), (1, 33, 40, 9, 50), (3, 64, 32, 8, 8)]

MOST = 3
"""Errors of ours in stock's, as root mean squares: what a layer's may be."""


@lru_cache(2)
def case(
    shape: Shape,
    padding: int = 1,
    bias: bool = True,
    size: int = 3,
    is_transposed: bool = False,
) -> contract.Case:
    """A convolution and its gradients; the same object for rows one after the other."""
    n, c, k, h, w = shape
    weights, function = (k, c, size, size), F.conv2d
    if is_transposed:
        weights, function = (c, k, size, size), F.conv_transpose2d

    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(n, c, h, w, dtype=dtype).requires_grad_()
        scale = 1 / (size * math.sqrt(c))
        weight = contract.draw(*weights, dtype=dtype, scale=scale).requires_grad_()
        b = contract.draw(k, dtype=dtype).requires_grad_() if bias else None
        y = function(x, weight, b, padding=padding)
        y.backward(contract.draw(*y.shape, dtype=dtype))
        found = {"y": y, "x": x.grad, "weight": weight.grad}
        return found | ({} if b is None else {"bias": b.grad})

    return run


def conv(c: int, k: int, size: int = 3, **options: int) -> nn.Conv2d:
    return nn.Conv2d(c, k, size, padding=size // 2, **options)


def unit(c: int, k: int, size: int = 3, **options: int) -> nn.Sequential:
    """A convolution, a norm and an activation."""
    plain = nn.Conv2d(c, k, size, padding=size // 2, bias=False, **options)
    return nn.Sequential(plain, nn.BatchNorm2d(k), nn.ReLU())


class Around(nn.Module):
    """Some layers, and a way around them."""

    def __init__(self, inner: nn.Module, around: nn.Module | None = None):
        super().__init__()
        self.inner, self.around = inner, around or nn.Identity()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.inner(x) + self.around(x))


class Branches(nn.ModuleList):
    """Layers side by side, whose channels are put together."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], 1)


class Dense(nn.ModuleList):
    """Each layer sees the channels of all before."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = torch.cat([x, layer(x)], 1)
        return x


class Twice(nn.Module):
    """One convolution with its weights in two places."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv, self.act = conv(channels, channels), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.act(self.conv(x)))


def vgg() -> nn.Module:
    layers = [conv(3, 16), nn.ReLU(), conv(16, 16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [conv(16, 32), nn.ReLU(), conv(32, 32), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def basic_blocks() -> nn.Module:
    def two(c: int, k: int, stride: int) -> nn.Sequential:
        last = nn.Sequential(conv(k, k, bias=False), nn.BatchNorm2d(k))
        return nn.Sequential(unit(c, k, stride=stride), last)

    smaller = Around(two(16, 32, 2), conv(16, 32, 1, stride=2))
    return nn.Sequential(unit(3, 16), Around(two(16, 16, 1)), smaller)


def bottlenecks() -> nn.Module:
    def inner() -> nn.Sequential:
        return nn.Sequential(unit(32, 16, 1), unit(16, 16), conv(16, 32, 1))

    return nn.Sequential(conv(3, 32), Around(inner()), Around(inner()))


def unet() -> nn.Module:
    """Two scales; what the upper one has found goes around the lower."""
    low = nn.Sequential(
        nn.MaxPool2d(2), unit(16, 32), unit(32, 32), nn.Upsample(None, 2)
    )
    both = Branches([nn.Identity(), low])
    return nn.Sequential(unit(3, 16), unit(16, 16), both, unit(48, 16), conv(16, 2, 1))


def densenet() -> nn.Module:
    def layer(c: int) -> nn.Sequential:
        return nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), conv(c, 12, bias=False))

    dense = Dense([layer(16), layer(28), layer(40)])
    return nn.Sequential(
        conv(3, 16, bias=False), dense, unit(52, 24, 1), nn.AvgPool2d(2)
    )


def inception() -> nn.Module:
    three = nn.Sequential(unit(32, 16, 1), unit(16, 24))
    five = nn.Sequential(unit(32, 8, 1), unit(8, 16, 5))
    pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), unit(32, 8, 1))
    branches = Branches([unit(32, 8, 1), three, five, pooled])
    return nn.Sequential(conv(3, 32), nn.ReLU(), branches)


def separable() -> nn.Module:
    def layer(c: int, k: int) -> nn.Sequential:
        return nn.Sequential(unit(c, c, groups=c), unit(c, k, 1))

    return nn.Sequential(unit(3, 16), layer(16, 24), layer(24, 32))


def autoencoder() -> nn.Module:
    return nn.Sequential(
        *(conv(3, 16), nn.ReLU()),
        *(conv(16, 32, stride=2), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.ReLU()),
        nn.ConvTranspose2d(16, 3, 3, padding=1),
    )


def shared() -> nn.Module:
    return nn.Sequential(conv(3, 24), nn.ReLU(), Twice(24), nn.ReLU(), Twice(24))


class Family(NamedTuple):
    """How many convolutions of a network are ours, and why the others are not."""

    make: Callable[[], nn.Module]
    served: int
    forwarded: dict[str, int]


FAMILIES = {
    family.make.__name__: family
    for family in (
        Family(vgg, 4, {}),
        Family(basic_blocks, 4, {"shape": 2}),
        Family(bottlenecks, 3, {"shape": 4}),
        Family(unet, 5, {"shape": 1}),
        Family(densenet, 4, {"shape": 1}),
        Family(inception, 2, {"shape": 5}),
        Family(separable, 1, {"shape": 2}),
        Family(autoencoder, 3, {"shape": 2}),
        Family(shared, 5, {}),
    )
}


def smoothed(net: nn.Module) -> nn.Module:
    """Without kinks, at which a rounding decides between two gradients."""
    if isinstance(net, nn.ReLU):
        return nn.SiLU()
    if isinstance(net, nn.MaxPool2d):
        return nn.AvgPool2d(net.kernel_size, net.stride, net.padding)
    for name, child in net.named_children():
        setattr(net, name, smoothed(child))
    return net


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(4, 3, 16, 16).to(dtype).requires_grad_()


def rms(t: Tensor) -> float:
    return float(t.double().square().mean().sqrt())


def allowed(stock: Tensor, exact: Tensor) -> float:
    """The error against float64 that ours may have where stock has its."""
    rounding = torch.finfo(torch.float32).eps * rms(exact)
    return MOST * (rms(stock - exact) + rounding)

"""Models of images: convolution networks of many kinds."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.model import classes, model, sgd

Made = tuple[nn.Module, tuple[Tensor, ...], Tensor]


def conv(c: int, n: int, kernel: int = 3, stride: int = 1, **options: Any) -> nn.Module:
    """A convolution with its norm and ReLU."""
    pad = kernel // 2
    return nn.Sequential(
        nn.Conv2d(c, n, kernel, stride, pad, bias=False, **options),
        nn.BatchNorm2d(n),
        nn.ReLU(),
    )


def images(n: int, channels: int, size: int) -> tuple[Tensor]:
    """A batch of random images."""
    return (torch.randn(n, channels, size, size),)


def classifier(features: nn.Module, channels: int, n_classes: int = 10) -> nn.Module:
    """Features, their mean over the image, scores."""
    head = nn.Linear(channels, n_classes)
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


@model("LeNet-5, batch 64", optimizer=sgd)
def _lenet() -> Made:
    net = nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh()),
        nn.Linear(84, 10),
    )
    return net, images(64, 1, 28), classes(64, 10)


class Functions(nn.Module):
    """The usual first network: layers as attributes, functions between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.c, self.d = nn.Linear(400, 120), nn.Linear(120, 84)
        self.e = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = F.max_pool2d(F.relu(self.a(x)), 2)
        x = F.max_pool2d(F.relu(self.b(x)), 2).flatten(1)
        return self.e(F.relu(self.d(F.relu(self.c(x)))))


@model("CIFAR tutorial net, batch 4", optimizer=sgd)
def _tutorial() -> Made:
    return Functions(), images(4, 3, 32), classes(4, 10)


@model("VGG of four convolutions, batch 16", optimizer=sgd)
def _vgg() -> Made:
    parts = [conv(3, 32), conv(32, 32), nn.MaxPool2d(2)]
    parts += [conv(32, 64), conv(64, 64), nn.MaxPool2d(2)]
    return classifier(nn.Sequential(*parts), 64), images(16, 3, 32), classes(16, 10)


class Residual(nn.Module):
    """Two convolutions and a short cut."""

    def __init__(self, c: int, n: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.a = conv(c, n, 3, stride, groups=groups)
        self.b = nn.Sequential(
            nn.Conv2d(n, n, 3, padding=1, bias=False), nn.BatchNorm2d(n)
        )
        same = stride == 1 and c == n
        self.cut = nn.Identity() if same else nn.Conv2d(c, n, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add to what comes in."""
        return F.relu(self.b(self.a(x)) + self.cut(x))


def resnet(width: int, blocks: int) -> nn.Module:
    """A ResNet for small images."""
    parts, c = [conv(3, width)], width
    for i in range(3):
        for j in range(blocks):
            n = width << i
            parts.append(Residual(c, n, 2 if i and not j else 1))
            c = n
    return classifier(nn.Sequential(*parts), c)


@model("ResNet-20, 32 x 32, batch 8", optimizer=sgd)
def _resnet20() -> Made:
    return resnet(16, 3), images(8, 3, 32), classes(8, 10)


@model("ResNet of width 64, 32 x 32, batch 4", optimizer=sgd)
def _resnet64() -> Made:
    return resnet(64, 2), images(4, 3, 32), classes(4, 10)


@model("ResNet of width 32, channels last, batch 8", optimizer=sgd)
def _channels_last() -> Made:
    last = torch.channels_last
    [x] = images(8, 3, 32)
    x = x.contiguous(memory_format=last)
    return resnet(32, 2).to(memory_format=last), (x,), classes(8, 10)


@model("ResNeXt-like, eight groups, batch 4", optimizer=sgd)
def _resnext() -> Made:
    parts = [conv(3, 64, 3, 2), *(Residual(64, 64, 1, groups=8) for _ in range(3))]
    return classifier(nn.Sequential(*parts), 64), images(4, 3, 64), classes(4, 10)


class Inverted(nn.Module):
    """MobileNetV2's block; with squeeze, EfficientNet's."""

    def __init__(self, c: int, n: int, stride: int, squeeze: bool, act: Any) -> None:
        super().__init__()
        m, self.adds = 4 * c, stride == 1 and c == n
        self.wide = nn.Sequential(nn.Conv2d(c, m, 1), nn.BatchNorm2d(m), act())
        self.deep = nn.Sequential(
            nn.Conv2d(m, m, 3, stride, 1, groups=m), nn.BatchNorm2d(m), act()
        )
        self.gate = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(m, c, 1), act()),
            *(nn.Conv2d(c, m, 1), nn.Sigmoid()),
        )
        self.squeeze = squeeze
        self.narrow = nn.Sequential(nn.Conv2d(m, n, 1), nn.BatchNorm2d(n))

    def forward(self, x: Tensor) -> Tensor:
        """Widen, filter, gate, narrow, add."""
        y = self.deep(self.wide(x))
        y = self.narrow(y * self.gate(y) if self.squeeze else y)
        return x + y if self.adds else y


def mobile(squeeze: bool, act: Any) -> nn.Module:
    """A few inverted blocks."""
    sizes = [(16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 64, 2)]
    parts = [conv(3, 16, 3, 2), *(Inverted(*s, squeeze, act) for s in sizes)]
    return classifier(nn.Sequential(*parts), 64)


@model("MobileNetV2-like, 96 x 96, batch 4", optimizer=sgd)
def _mobilenet() -> Made:
    return mobile(False, nn.ReLU6), images(4, 3, 96), classes(4, 10)


@model("MobileNetV2-like, channels last, 96 x 96, batch 4", optimizer=sgd)
def _mobilenet_last() -> Made:
    last = torch.channels_last
    [x] = images(4, 3, 96)
    net = mobile(False, nn.ReLU6).to(memory_format=last)
    return net, (x.contiguous(memory_format=last),), classes(4, 10)


@model("EfficientNet-like, 96 x 96, batch 4")
def _efficientnet() -> Made:
    return mobile(True, nn.SiLU), images(4, 3, 96), classes(4, 10)


class Dense(nn.Module):
    """DenseNet's block: everything before is an input."""

    def __init__(self, c: int, growth: int, layers: int) -> None:
        super().__init__()
        sizes = [c + i * growth for i in range(layers)]
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, growth, 3, padding=1)
            )
            for n in sizes
        )

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


@model("DenseNet-like, 32 x 32, batch 4", optimizer=sgd)
def _densenet() -> Made:
    net = classifier(nn.Sequential(conv(3, 24), Dense(24, 12, 6)), 96)
    return net, images(4, 3, 32), classes(4, 10)


class UNet(nn.Module):
    """Down, up, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(1, 16), conv(16, 32)
        self.up, self.c = nn.ConvTranspose2d(32, 16, 2, 2), conv(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of each pixel."""
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        return self.head(self.c(torch.cat([a, self.up(b)], 1)))


@model("U-Net, 64 x 64, batch 4")
def _unet() -> Made:
    return UNet(), images(4, 1, 64), torch.randint(0, 2, (4, 64, 64))


@model("DCGAN generator, batch 16", F.mse_loss)
def _generator() -> Made:
    parts: list[nn.Module] = [nn.ConvTranspose2d(64, 128, 4, 1, 0, bias=False)]
    for c, n in ((128, 64), (64, 32)):
        parts += [nn.BatchNorm2d(c), nn.ReLU(), nn.ConvTranspose2d(c, n, 4, 2, 1)]
    parts += [nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1)]
    net = nn.Sequential(*parts, nn.Tanh())
    return net, (torch.randn(16, 64, 1, 1),), torch.randn(16, 3, 32, 32)


@model("DCGAN discriminator, batch 16", F.binary_cross_entropy)
def _discriminator() -> Made:
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2)]
    for c, n in ((32, 64), (64, 128)):
        parts += [nn.Conv2d(c, n, 4, 2, 1), nn.BatchNorm2d(n), nn.LeakyReLU(0.2)]
    net = nn.Sequential(*parts, nn.Conv2d(128, 1, 4), nn.Sigmoid(), nn.Flatten())
    return net, images(16, 3, 32), torch.rand(16, 1)


@model("convolutional autoencoder, batch 16", F.mse_loss)
def _autoencoder() -> Made:
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 16, 3, 2, 1, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(16, 1, 3, 2, 1, 1), nn.Sigmoid()),
    )
    return net, images(16, 1, 28), torch.rand(16, 1, 28, 28)


@model("super-resolution by PixelShuffle, 48 x 48, batch 2", F.mse_loss)
def _superresolution() -> Made:
    net = nn.Sequential(
        *(nn.Conv2d(1, 64, 5, padding=2), nn.ReLU(), nn.Conv2d(64, 32, 3, padding=1)),
        *(nn.ReLU(), nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3)),
    )
    return net, images(2, 1, 48), torch.randn(2, 1, 144, 144)


@model("style transfer with InstanceNorm, 64 x 64, batch 1", F.mse_loss)
def _style() -> Made:
    parts: list[nn.Module] = []
    for c, n, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 1)):
        pad = nn.ReflectionPad2d(1)
        parts += [pad, nn.Conv2d(c, n, 3, stride), nn.InstanceNorm2d(n), nn.ReLU()]
    parts += [nn.Upsample(scale_factor=2), nn.Conv2d(64, 3, 3, padding=1)]
    return nn.Sequential(*parts), images(1, 3, 64), torch.randn(1, 3, 64, 64)


@model("Atari DQN, batch 1", F.smooth_l1_loss)
def _atari() -> Made:
    return atari(), images(1, 4, 84), torch.randn(1, 6)


@model("Atari DQN, batch 32", F.smooth_l1_loss)
def _atari_batch() -> Made:
    return atari(), images(32, 4, 84), torch.randn(32, 6)


def atari() -> nn.Module:
    """The network of the DQN paper."""
    return nn.Sequential(
        *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512)),
        *(nn.ReLU(), nn.Linear(512, 6)),
    )


@model("three-dimensional convolutions, 8 x 32 x 32, batch 2")
def _volumes() -> Made:
    net = nn.Sequential(
        *(nn.Conv3d(1, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU()),
        *(nn.MaxPool3d(2), nn.Conv3d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 5)),
    )
    return net, (torch.randn(2, 1, 8, 32, 32),), classes(2, 5)

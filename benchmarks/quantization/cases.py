"""What is measured: one layer or one model, and its input.

The grid of linear layers is M of 1, 8, 32, 128 and 512 rows by eight weights. Five are
inner layers, of 512 and more outputs: a square one, both of BERT's feed-forward, one of
BERT-small's, and one that is larger than most caches. One tells 1000 classes apart, two
tell ten. Inputs are normal, those of convolutions after a ReLU. Weights are as torch
initialises them, but for those of models that say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from pai_torchacc.bench.workloads import WORKLOADS, BertSmall, ResNet18

LINEAR, CONVOLUTION, MODEL = "linear", "convolution", "model"

ROWS = (1, 8, 32, 128, 512)
SHAPES = (
    (512, 512),
    (768, 3072),
    (3072, 768),
    (512, 2048),
    (4096, 4096),
    (512, 1000),
    (1000, 10),
    (128, 10),
)
"""Inputs and outputs of linear layers."""

THIN, MANY = 16, 32
"""Outputs up to which a layer is in no mean; rows from which it is in the main one."""

LINEAR_MEAN = "Linear, M >= 32, N >= 512"
LINEAR_ALL = "Linear, N >= 512"

FLOOR_DB = {LINEAR: 40.0, CONVOLUTION: 40.0, MODEL: 25.0}
FEW_DB = 38.0
"""Least signal-to-noise ratio of outputs for a row to count; of layers with few.

A deep model adds up the noise of its layers: with 51 dB each, bfloat16 leaves 38 dB of
ResNet-18's scores, and 8 bits, with 43 dB each, 30 dB.
"""


@dataclass(frozen=True)
class Case:
    """A module, how to build it and its input, and the means that it belongs to."""

    name: str
    part: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    means: tuple[str, ...] = ()
    is_quick: bool = True
    is_thin: bool = False
    n_operations: float = 0.0
    """Of one call, a product and a sum counted each; 0 for models."""

    @property
    def floor_db(self) -> float:
        """Below this, numbers are wrong."""
        return FEW_DB if self.is_thin else FLOOR_DB[self.part]

    def build(self) -> tuple[nn.Module, Tensor]:
        """Build the module, in eval mode, and its input, the same at each call."""
        torch.manual_seed(0)
        module = self.make().eval()
        return module, self.inputs()


def _linear() -> Iterator[Case]:
    for k, n in SHAPES:
        for m in ROWS:
            means: tuple[str, ...] = ()
            if n > THIN:
                means = (LINEAR_MEAN, LINEAR_ALL) if m >= MANY else (LINEAR_ALL,)
            yield Case(
                f"Linear {m}x{k} to {n}",
                LINEAR,
                partial(nn.Linear, k, n),
                partial(torch.randn, m, k),
                means,
                m in (1, 32, 128) and n * k < 1 << 22,
                n <= THIN,
                2.0 * m * n * k,
            )


CONVOLUTIONS = (
    (3, 224, 64, 7, 2),
    *((c, width, c, 3, 1) for c, width in ((64, 56), (128, 28), (256, 14), (512, 7))),
    (64, 56, 128, 3, 2),
    *((c, width, 2 * c, 1, 2) for c, width in ((64, 56), (128, 28))),
)
"""Of ResNet-18: channels, width, channels out, kernel size, stride."""

STEM = 7
"""Kernel size of the first one, which is in no mean."""


def _relu_of_normal(*shape: int) -> Tensor:
    return torch.randn(shape).relu_()


def _convolutions() -> Iterator[Case]:
    for n in (1, 16):
        for channels, width, outputs, kernel, stride in CONVOLUTIONS:
            size = f"{kernel}x{kernel}" + ("" if stride == 1 else f"/{stride}")
            taps, pixels = kernel * kernel, (width // stride) ** 2
            yield Case(
                f"{size} of {channels}@{width} to {outputs}, batch {n}",
                CONVOLUTION,
                partial(
                    nn.Conv2d,
                    channels,
                    outputs,
                    kernel,
                    stride,
                    kernel // 2,
                    bias=False,
                ),
                partial(_relu_of_normal, n, channels, width, width),
                ()
                if kernel == STEM
                else (f"{kernel}x{kernel} convolutions, batch {n}",),
                n == 1,
                False,
                2.0 * n * channels * taps * outputs * pixels,
            )


def _workload(name: str) -> nn.Module:
    return WORKLOADS[name].task().model


def _tokens(n: int, t: int) -> Tensor:
    return torch.randint(0, 30522, (n, t))


def _models() -> Iterator[Case]:
    def case(
        name: str,
        make: Callable[[], nn.Module],
        inputs: Callable[[], Tensor],
        is_quick: bool = True,
    ) -> Case:
        return Case(name, MODEL, make, inputs, is_quick=is_quick)

    for n in (1, 8):
        images = partial(torch.randn, n, 3, 224, 224)
        yield case(f"ResNet-18@224, batch {n}", ResNet18, images, n == 1)
    yield case("BERT-small, 1x32 tokens", BertSmall, partial(_tokens, 1, 32))
    yield case("BERT-small, 8x128 tokens", BertSmall, partial(_tokens, 8, 128), False)
    encoder = partial(_workload, "W4")
    yield case("W4, batch 8", encoder, partial(torch.randn, 8, 128, 256))
    mlp, cnn = partial(_workload, "MLP64"), partial(_workload, "SimpleCNN")
    for n in (1, 64):
        yield case(f"MLP64, batch {n}", mlp, partial(torch.randn, n, 64))
        yield case(f"SimpleCNN, batch {n}", cnn, partial(torch.randn, n, 1, 28, 28))


CASES = (*_linear(), *_convolutions(), *_models())
"""In the order in which they are measured."""

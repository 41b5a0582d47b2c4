"""What only GPUs have rows for: 16 bits, norms, softmax, ReLU with pooling, layers.

Layers are measured as float32, by TF32 and without, and in 16 bits; from what the host
takes longer for than the device to what keeps a large GPU busy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pai_torchacc.bench.cases import pool
from pai_torchacc.bench.cases.case import Call, Case, Gradient

FLOATS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

ROWS = ((32, 64), (512, 96), (64, 1000), (2048, 1024), (4096, 4096), (4096, 32000))
"""Rows and their elements."""

LONG, LONG_LOSS = 1024, 96
"""Beyond so many elements a row is long, to norms and to softmax with the losses."""

LAYERS = (
    (64, 64, 64),
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 1024, 4096),
    (2048, 2048, 2048),
    (4096, 4096, 1024),
    (4096, 4096, 4096),
    (16384, 4096, 4096),
)
"""Products as (rows of x, terms, rows of the weight)."""

BLOCKS = (
    (32, 64, 128),
    (64, 128, 512),
    (256, 256, 1024),
    (512, 512, 2048),
    (1024, 768, 3072),
    (4096, 1024, 4096),
    (8192, 4096, 16384),
)
"""Two layers as (rows of x, inputs and outputs, what lies between)."""

EPILOGUES: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    partial(nn.GELU, approximate="tanh"),
)
KERNELS: tuple[Callable[[], nn.Module], ...] = (nn.GELU, nn.SiLU)


def cases() -> Iterator[Case]:
    """Cases of rows along the last dimension, of pooling, of layers and of blocks."""
    for dtype in FLOATS:
        for image in pool.IMAGES:
            yield from _pooled(dtype, image)
        for n, width in ROWS:
            yield from _norms(dtype, n, width)
            yield from _losses(dtype, n, width)
    for dtype, suffix in (*((dtype, "") for dtype in FLOATS), ("float32", "_tf32")):
        for sizes in LAYERS:
            yield from _layers(dtype, suffix, sizes)
        for sizes in BLOCKS:
            yield from _blocks(dtype, suffix, sizes)


def _norms(dtype: str, n: int, width: int) -> Iterator[Case]:
    kind = "long" if width > LONG else "short"

    def layer_norm(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(x, (width,), w, torch.zeros_like(w))

    def rms_norm(x: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(x, (width,), w)

    def forward(norm: Callable[[Tensor, Tensor], Tensor]) -> Call:
        x, w = _draw(dtype, n, width), _draw(dtype, width)
        return lambda: norm(x, w)

    def backward(norm: Callable[[Tensor, Tensor], Tensor]) -> Call:
        x, w = _draw(dtype, n, width), _draw(dtype, width)
        return Gradient(lambda: norm(x, w), [x, w])

    for op, norm in (("layer_norm", layer_norm), ("rms_norm", rms_norm)):
        yield Case(op, kind, dtype, n * width, (partial(forward, norm),))
        makes = (partial(backward, norm),)
        yield Case(f"{op}_backward", kind, dtype, n * width, makes, (op,))


def _losses(dtype: str, n: int, width: int) -> Iterator[Case]:
    """Those of float32 are there for CPUs, but for softmax."""
    kind, work = "long" if width > LONG_LOSS else "short", n * width

    def forward(of: Callable[[Tensor, int], Tensor]) -> Call:
        x = _draw(dtype, n, width)
        return lambda: of(x, 1)

    def backward(of: Callable[[Tensor, int], Tensor]) -> Call:
        x = _draw(dtype, n, width)
        return Gradient(lambda: of(x, 1), [x])

    def loss() -> Call:
        x, target = _draw(dtype, n, width), torch.randint(0, width, (n,))
        x.requires_grad_()
        return lambda: torch.autograd.grad(F.cross_entropy(x, target), x)

    functions = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
    for op, of in functions.items():
        if dtype != "float32" or op == "softmax":
            yield Case(op, kind, dtype, work, (partial(forward, of),))
            makes = (partial(backward, of),)
            yield Case(f"{op}_backward", kind, dtype, work, makes, (op,))
    if dtype != "float32":
        op, rivals = "cross_entropy", ("log_softmax", "log_softmax_backward")
        yield Case(op, kind, dtype, work, (loss,), (f"{op}_backward",), rivals)


def _pooled(dtype: str, image: pool.Image) -> Iterator[Case]:
    """Max pooling of ReLU, by modules; the work of backward is what was pooled."""

    def make(window: pool.Window, last: bool, is_training: bool) -> Call:
        net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(*window))
        x = _draw(dtype, *image)
        x = x.to(memory_format=torch.channels_last) if last else x
        return Gradient(lambda: net(x), [x]) if is_training else lambda: net(x)

    n, c, height, width = image
    for op, work, is_training in (
        ("relu_max_pool2d", n * c * height * width, False),
        ("relu_max_pool2d_backward", n * c * (height // 2) * (width // 2), True),
    ):
        makes = tuple(
            partial(make, window, last, is_training)
            for window in (pool.TILED, pool.OVERLAPPING)
            for last in (False, True)
        )
        others = (op.removesuffix("_backward"),) if is_training else ()
        rivals = "max_pool2d", "max_pool2d_backward"
        yield Case(op, "any", dtype, work, makes, others, (), rivals)


def _draw(dtype: str, *sizes: int) -> Tensor:
    return torch.randn(*sizes).to(FLOATS[dtype])


def _layers(dtype: str, suffix: str, sizes: tuple[int, int, int]) -> Iterator[Case]:
    m, k, n = sizes
    for kind, activations, is_training in (
        ("infer_act", EPILOGUES, False),
        ("train_act", EPILOGUES, True),
        ("train_kernel", KERNELS, True),
    ):
        makes = tuple(
            partial(_net, dtype, m, (k, n), act, is_training) for act in activations
        )
        op, others = "linear_act", ("linear_act_backward",)
        yield Case(
            op, kind + suffix, dtype, sizes, makes, others, allows_tf32=bool(suffix)
        )


def _blocks(dtype: str, suffix: str, sizes: tuple[int, int, int]) -> Iterator[Case]:
    """The work is as a product's whose terms are the inputs and then the outputs."""
    m, n, hidden = sizes
    for kind, activations in (("act", EPILOGUES), ("kernel", KERNELS)):
        makes = tuple(
            partial(_net, dtype, m, (n, hidden, n), act, True) for act in activations
        )
        work, others = (m, 2 * n, hidden), ("mlp_backward",)
        rivals = "linear_act", "linear_act_backward"
        of = kind + suffix, dtype, work, makes, others, (), rivals, bool(suffix)
        yield Case("mlp", *of)


def _net(
    dtype: str,
    m: int,
    widths: tuple[int, ...],
    activation: Callable[[], nn.Module],
    is_training: bool,
) -> Call:
    """Layers with an activation behind the first; forward, or with all gradients."""
    first, *others = (nn.Linear(k, n) for k, n in itertools.pairwise(widths))
    net = nn.Sequential(first, activation(), *others).to(FLOATS[dtype])
    x = _draw(dtype, m, widths[0])
    if not is_training:
        net.requires_grad_(False)
        return lambda: net(x)
    x.requires_grad_()
    grad, wanted = _draw(dtype, m, widths[-1]), [x, *net.parameters()]
    return lambda: torch.autograd.grad(net(x), wanted, grad)

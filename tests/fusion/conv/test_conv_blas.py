"""1x1 convolutions of batches, as BLAS's products of weights and images."""

from __future__ import annotations

import math
from pathlib import Path

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from toggling import hold_in_threads
from torch import Tensor, nn

OPS = ("conv2d", "conv2d_backward")

pytestmark = pytest.mark.usefixtures("one_thread")
"""Batches are served that threads share evenly, of however many this machine has."""

SIZES = {
    "images": (4, 24, 40, (14, 14)),
    "images of odd places": (6, 33, 17, (7, 5)),
    "many": (17, 8, 5, (3, 3)),
    "many channels in": (8, 700, 3, (6, 7)),
    "many channels out": (8, 3, 700, (6, 7)),
    "channels alone": (8, 1, 9, (6, 7)),
    "points": (8, 30, 20, (1, 1)),
    "signals": (8, 30, 20, (57,)),
    "volumes": (4, 12, 20, (3, 5, 7)),
}
"""Batch, channels in and out, places."""


def convolution(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    function = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    result: Tensor = function(x, w, bias)
    return result


def drawn(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    n, n_in, n_out, places = SIZES[name]
    ones = (1,) * len(places)
    return (
        contract.draw(n, n_in, *places, dtype=dtype),
        contract.draw(n_out, n_in, *ones, dtype=dtype, scale=1 / math.sqrt(n_in)),
        contract.draw(n_out, dtype=dtype),
    )


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_contract(name: str, with_bias: bool, n_threads: int) -> None:
    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        x, w, bias = drawn(name, dtype)
        leaves = [x, w, bias] if with_bias else [x, w]
        y = convolution(*[t.requires_grad_() for t in leaves])
        y.backward(contract.draw(*y.shape, dtype=dtype))
        grads = {f"gradient {i}": t.grad for i, t in enumerate(leaves)}
        return {"y": y, **{k: g for k, g in grads.items() if g is not None}}

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(n_threads)
        with switching.accelerated(*OPS, row="blas"):
            forward, backward = (switching.hits(op) for op in OPS)
            contract.hold(run)
            assert backward.accelerated == 2 * forward.accelerated > 0
    finally:
        torch.set_num_threads(before)


def library_goes_by_columns(x: Tensor, w: Tensor) -> bool:
    """Whether a product of torch's rounds columns otherwise beside others.

    MKL's does on AMD's CPUs, where its kernels are others for few columns.
    """
    weight = w.flatten(1)
    images = x.flatten(2)
    together = torch.mm(weight, torch.cat(list(images), 1))
    alone = torch.cat([torch.mm(weight, image) for image in images], 1)
    return not torch.equal(together, alone)


@pytest.mark.parametrize("name", SIZES)
def test_images_depend_neither_on_others_nor_on_threads(name: str) -> None:
    x, w, bias = drawn(name, torch.float32)
    before = torch.get_num_threads()
    try:
        with switching.accelerated(*OPS, row="blas"):
            torch.set_num_threads(1)
            alone = torch.cat([convolution(one[None], w, bias) for one in x])
            for n_threads in (1, 2):
                torch.set_num_threads(n_threads)
                together = convolution(x, w, bias)
                if library_goes_by_columns(x, w):
                    torch.testing.assert_close(together, alone)
                else:
                    assert torch.equal(together, alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("act", [None, nn.ReLU(), nn.ReLU6()])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_norm", [False, True])
def test_chains_end_in_the_epilogue(
    act: nn.Module | None, with_bias: bool, with_norm: bool
) -> None:
    layers: list[nn.Module] = [nn.Conv2d(24, 40, 1, bias=with_bias)]
    layers += [nn.BatchNorm2d(40)] if with_norm else []
    layers += [act] if act else []
    net = nn.Sequential(*layers)
    net(torch.randn(8, 24, 9, 9))
    net.eval().requires_grad_(False)
    x = 4 * torch.randn(4, 24, 9, 9)
    x[1, 3, 4, 5] = torch.nan
    stock = net(x)
    with switching.accelerated("conv2d", row="blas"):
        hits = switching.hits("conv2d")
        ours = net(x)
        assert hits.accelerated == 1
    assert torch.equal(ours.isnan(), stock.isnan())
    torch.testing.assert_close(ours, stock, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "options", "why"),
    [
        ((4, 24, 9, 9), {"stride": 2}, "shape"),
        ((4, 24, 9, 9), {"padding": 1}, "shape"),
        ((4, 24, 9, 9), {"groups": 2}, "shape"),
        ((3, 24, 9, 9), {}, "shape"),  # two threads would wait for one
    ],
)
def test_others_are_stocks(
    sizes: tuple[int, ...], options: dict[str, int], why: str
) -> None:
    groups = options.get("groups", 1)
    x, w = torch.randn(sizes), torch.randn(40, 24 // groups, 1, 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        stock = F.conv2d(x, w, **options)
        with switching.accelerated(*OPS, row="blas"):
            hits = switching.hits("conv2d")
            assert torch.equal(F.conv2d(x, w, **options), stock)
            assert hits.forwarded == {why: 1}
            last = x.to(memory_format=torch.channels_last)
            served = F.conv2d(last, torch.randn(40, 24, 1, 1))
            assert hits.forwarded[why] == 1
            assert hits.forwarded["layout"] == 1
            assert served.is_contiguous(memory_format=torch.channels_last)
    finally:
        torch.set_num_threads(before)


def test_modes_and_transforms_see_stocks_operator() -> None:
    layer, x = nn.Conv2d(8, 12, 1), torch.randn(4, 8, 5, 5)

    def loss(x: Tensor) -> Tensor:
        return layer(x).tanh().square().sum()

    stock = torch.func.grad(loss)(x), torch.vmap(loss)(x[:, None])
    with switching.accelerated(*OPS, row="blas"):
        torch.testing.assert_close(
            (torch.func.grad(loss)(x), torch.vmap(loss)(x[:, None])), stock
        )
        with torch.inference_mode():
            hits = switching.hits("conv2d")
            layer(x)
            assert hits.accelerated == 1


def test_toggled_while_in_use() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    hold_in_threads(net, torch.randn(4, 3, 20, 20), OPS, "blas")


@pytest.mark.parametrize(
    ("n_in", "n_out", "served"),
    [(8, 512, [1, 2]), (8, 513, [0, 2]), (513, 8, [1, 1])],
)
def test_a_table_chooses_it_for_results_that_a_cache_holds(
    n_in: int, n_out: int, served: list[int], tmp_path: Path
) -> None:
    """Of 32 x 32 places; gradients of weights are small whatever the image is."""
    x = torch.randn(4, n_in, 32, 32, requires_grad=True)
    layer = nn.Conv2d(n_in, n_out, 1)
    with switching.named(tmp_path, OPS, "blas"):
        hits = [switching.hits(op) for op in OPS]
        layer(x).sum().backward()
        assert [h.accelerated for h in hits] == served


def test_who_allows_products_less_than_float32_gets_stocks() -> None:
    """As stock has it: a permission for products reaches some convolutions."""
    layer, x = nn.Conv2d(32, 32, 1), torch.randn(4, 32, 9, 9)
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    try:
        settings.fp32_precision = "bf16"
        stock = layer(x)
        with switching.accelerated(*OPS, row="blas"):
            hits = switching.hits("conv2d")
            contract.exactly(layer(x), stock)
            assert hits.forwarded == {"mode or transform active": 1}
    finally:
        settings.fp32_precision = before

"""Convolutions of 3x3 and 5x5 kernels and both their gradients, at level close."""

from __future__ import annotations

import copy
from typing import Any

import contract
import convnets
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

OPS = ("conv2d", "conv2d_backward")
SHAPES = [*convnets.SHAPES, (6, 20, 24, 16, 17), (4, 3, 40, 14, 60), (6, 1, 20, 28, 28)]

ROWS = sorted({row for op in OPS for row in switching.runnable_rows(op)})


def takes(row: str, shape: convnets.Shape) -> bool:
    if row.startswith("direct"):
        return shape[1] <= 4
    if "of_5x5" in row:
        return False
    if row.startswith("winograd_4x4_weight"):
        return shape[0] * (shape[3] - 2) * (shape[4] - 2) >= 1024
    return row.startswith("winograd")


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contract(row: str, shape: convnets.Shape, padding: int) -> None:
    ops = [op for op in OPS if row in switching.runnable_rows(op)]
    with switching.accelerated(*ops, row=row):
        hits = [switching.hits(op) for op in ops]
        contract.hold(convnets.case(shape, padding, padding != 1))
    if takes(row, shape):
        assert all(h.accelerated >= 1 for h in hits)


@pytest.mark.parametrize("row", [r for r in ROWS if "5x5" in r or "direct" in r])
@pytest.mark.parametrize("padding", [0, 2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contract_of_5x5(row: str, shape: convnets.Shape, padding: int) -> None:
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        contract.hold(convnets.case(shape, padding, padding != 2, 5))
        if shape[1] >= 4 if "5x5" in row else shape[1] < 4:
            assert all(h.accelerated >= 1 for h in hits)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_same_bits_each_time(threads: int) -> None:
    before = torch.get_num_threads()
    shapes = [(3, 40, 70, 13, 21), (1, 256, 256, 7, 7), (5, 3, 32, 30, 30)]
    try:
        torch.set_num_threads(threads)
        for shape in shapes:
            with switching.accelerated(*OPS):
                case = convnets.case(shape)
                results = []
                for _ in range(3):
                    torch.manual_seed(0)
                    results.append(case(torch.float32))
            for other in results[1:]:
                contract.exactly(other, results[0])
    finally:
        torch.set_num_threads(before)


def test_threads_change_sums_over_the_batch_only() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with switching.accelerated(*OPS):
                torch.manual_seed(0)
                found.append(convnets.case((5, 48, 40, 12, 19))(torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert contract.same_bits(other["y"], found[0]["y"])
        assert contract.same_bits(other["x"], found[0]["x"])


def conv(
    x: tuple[int, ...] = (1, 4, 9, 9),
    weight: tuple[int, ...] = (4, 4, 3, 3),
    *,
    to: Any = torch.float32,
    **options: Any,
) -> Any:
    """A call of F.conv2d."""

    def call() -> Tensor:
        return F.conv2d(torch.randn(x).to(to), torch.randn(weight).to(to), **options)

    return call


def mixed(x: Any, weight: Any) -> Any:
    """The same with a layout or dtype for each."""

    def call() -> Tensor:
        return F.conv2d(x(torch.randn(1, 4, 9, 9)), weight(torch.randn(4, 4, 3, 3)))

    return call


def same(x: Tensor) -> Tensor:
    return x


def every_second(x: Tensor) -> Tensor:
    return torch.cat([x, x], 3)[..., ::2]


FORWARDED: dict[str, tuple[Any, str]] = {
    "double": (conv(to=torch.double), "dtype"),
    "bfloat16": (conv(to=torch.bfloat16), "dtype"),
    "1x1": (conv(weight=(4, 4, 1, 1)), "shape"),
    "stride": (conv(stride=2), "shape"),
    "dilation": (conv(dilation=2), "shape"),
    "groups": (conv(weight=(4, 2, 3, 3), groups=2), "shape"),
    "conv1d": (lambda: F.conv1d(torch.ones(1, 4, 9), torch.ones(4, 4, 3)), "shape"),
    "transposed, stride": (
        lambda: F.conv_transpose2d(
            torch.ones(1, 4, 9, 9), torch.ones(4, 4, 3, 3), stride=2
        ),
        "shape",
    ),
    "conv3d": (
        lambda: F.conv3d(torch.ones(1, 4, 5, 5, 5), torch.ones(4, 4, 3, 3, 3)),
        "shape",
    ),
    "not contiguous": (mixed(every_second, same), "layout"),
    "lopsided": (conv(x=(1, 160, 9, 9), weight=(16, 160, 3, 3)), "shape"),
    "no image": (conv(x=(0, 4, 9, 9)), "empty"),
}


@pytest.mark.parametrize("name", FORWARDED)
def test_is_forwarded_with_its_reason(name: str) -> None:
    program, reason = FORWARDED[name]
    torch.manual_seed(0)
    stock = program()
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d")
        torch.manual_seed(0)
        ours = program()
        assert hits.forwarded == {reason: 1}
        assert hits.accelerated == 0
    contract.exactly(ours, stock)


WRONG: dict[str, Any] = {
    "channels": conv(weight=(4, 5, 3, 3)),
    "bias": conv(bias=torch.ones(5)),
    "too small": conv(x=(1, 4, 2, 2)),
    "negative padding": conv(padding=-1),
    "no stride": conv(stride=0),
    "output padding": lambda: torch.convolution(
        torch.ones(1, 4, 9, 9),
        torch.ones(4, 4, 3, 3),
        None,
        [1, 1],
        [1, 1],
        [1, 1],
        False,
        [-1, -1],
        1,
    ),
    "dtypes": mixed(same, Tensor.double),
}


@pytest.mark.parametrize("name", WRONG)
def test_complaints_are_torchs(name: str) -> None:
    def complaint() -> str:
        with pytest.raises((RuntimeError, ValueError)) as caught:
            WRONG[name]()
        return str(caught.value)

    stock = complaint()
    with switching.accelerated(*OPS):
        assert complaint() == stock


def near(mine: Tensor, theirs: Tensor) -> None:
    """Of sums of some hundred terms; test_contract is exact about it."""
    assert (mine - theirs).abs().max() <= 2e-6 * theirs.abs().max()


@pytest.mark.parametrize("which", range(1, 8))
def test_gradients_of_some_only(which: int) -> None:
    def program() -> list[Tensor | None]:
        torch.manual_seed(0)
        conv = nn.Conv2d(20, 24, 3, padding=1)
        x = torch.randn(2, 20, 12, 12, requires_grad=bool(which & 1))
        conv.weight.requires_grad_(bool(which & 2))
        conv.bias.requires_grad_(bool(which & 4))
        conv(x).square().sum().backward()
        return [x.grad, conv.weight.grad, conv.bias.grad]

    stock = program()
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d_backward")
        ours = program()
        assert hits.accelerated == bool(which & 1) + bool(which & 2)
    for i, (mine, theirs) in enumerate(zip(ours, stock, strict=True)):
        assert (mine is None) == (theirs is None) == (not which & 1 << i)
        if mine is not None:
            assert mine.stride() == theirs.stride()
            near(mine, theirs)


def test_gradient_that_is_expanded() -> None:
    x = torch.randn(2, 20, 12, 12, requires_grad=True)
    weight = torch.randn(24, 20, 3, 3)
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d_backward")
        F.conv2d(x, weight, padding=1).sum().backward()
        assert hits.accelerated == 1
    expected = torch.autograd.grad(F.conv2d(x, weight, padding=1).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("function", [F.conv2d, F.conv_transpose2d])
def test_double_backward(function: Any) -> None:
    shape = (20, 18, 3, 3) if function is F.conv2d else (18, 20, 3, 3)

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(2, 18, 9, 9, dtype=dtype).requires_grad_()
        weight = contract.draw(*shape, dtype=dtype, scale=0.1).requires_grad_()
        y = function(x, weight, padding=1)
        grads = torch.autograd.grad(y.tanh().sum(), (x, weight), create_graph=True)
        total = grads[0].square().sum() + grads[1].square().sum() / 100
        return dict(zip("xw", torch.autograd.grad(total, (x, weight)), strict=True))

    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d_backward")
        contract.hold(case)
        assert hits.accelerated >= 2


def test_weights_are_read_at_each_call() -> None:
    """Whatever way they change: no transformed weight outlives its call."""
    conv, x = nn.Conv2d(32, 32, 3, padding=1), torch.randn(2, 32, 14, 14)

    def in_place() -> None:
        with torch.no_grad():
            conv.weight.mul_(2)

    def by_data() -> None:
        conv.weight.data = torch.randn(32, 32, 3, 3)

    def by_numpy() -> None:
        conv.weight.detach().numpy()[:] *= -1

    def loaded() -> None:
        conv.load_state_dict(nn.Conv2d(32, 32, 3, padding=1).state_dict())

    with torch.no_grad(), switching.accelerated(*OPS):
        hits = switching.hits("conv2d")
        for change in (in_place, by_data, by_numpy, loaded):
            change()
            with torch.no_grad():
                expected = F.conv2d(x.double(), conv.weight.double(), padding=1)
            expected += conv.bias.double().view(-1, 1, 1)
            torch.testing.assert_close(conv(x).double(), expected, rtol=0, atol=1e-4)
            torch.testing.assert_close(copy.deepcopy(conv)(x), conv(x), rtol=0, atol=0)
        assert hits.accelerated == 12


def test_no_grad_and_inference_mode() -> None:
    x, weight = torch.randn(2, 20, 12, 12), torch.randn(24, 20, 3, 3)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), switching.accelerated(*OPS):
            hits = switching.hits("conv2d")
            y = F.conv2d(x, weight, padding="same")
            assert hits.accelerated == 1
        assert y.is_contiguous()


def test_a_batch_of_no_dimension() -> None:
    x, weight = torch.randn(20, 12, 12), torch.randn(24, 20, 3, 3)
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d")
        y = F.conv2d(x, weight, padding=1)
        assert hits.accelerated == 1
    torch.testing.assert_close(y, F.conv2d(x, weight, padding=1), rtol=1e-4, atol=1e-4)


def test_transforms_and_modes() -> None:
    x, weight = torch.randn(3, 2, 20, 12, 12), torch.randn(24, 20, 3, 3)

    def loss(w: Tensor) -> Tensor:
        return F.conv2d(x[0], w, padding=1).square().mean()

    def program() -> list[Tensor]:
        return [
            torch.func.vmap(lambda image: F.conv2d(image, weight, padding=1))(x),
            torch.func.grad(loss)(weight),
            torch.func.jvp(loss, (weight,), (weight,))[1],
        ]

    stock = program()
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d")
        ours = program()
        assert hits.accelerated >= 2
    for mine, theirs in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_a_trace_records_the_convolution() -> None:
    """As stock's kernel has it record, which therefore serves the call."""
    conv = nn.Conv2d(16, 24, 3, padding=1)
    x, other = torch.randn(2, 2, 16, 12, 12)
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d")
        traced = torch.jit.trace(conv, x, check_trace=False)
        assert hits.forwarded == {"mode or transform active": 1}
        ours = traced(other)
    assert "aten::_convolution" in str(traced.graph)
    torch.testing.assert_close(ours, conv(other), rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_who_allows_less_than_float32_gets_stocks(precision: str) -> None:
    """And with it what oneDNN makes of the permission on this CPU."""
    x, weight = torch.randn(2, 20, 12, 12), torch.randn(24, 20, 3, 3)
    settings = torch.backends.mkldnn.conv
    before = settings.fp32_precision
    try:
        settings.fp32_precision = precision
        stock = F.conv2d(x, weight)
        with switching.accelerated(*OPS):
            hits = switching.hits("conv2d")
            ours = F.conv2d(x, weight)
            assert hits.forwarded == {"mode or transform active": 1}
    finally:
        settings.fp32_precision = before
    contract.exactly(ours, stock)
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d")
        F.conv2d(x, weight)
        assert hits.accelerated == 1

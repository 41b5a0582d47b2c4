"""GELU, tanh, sigmoid, SiLU, Hardswish, Hardsigmoid and their gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
}
HAS_GRADIENT = ("gelu", "gelu_tanh", "silu", "elu", "hardswish", "hardsigmoid")
FORWARD = tuple(dict.fromkeys(name.removesuffix("_tanh") for name in CURVES))
BACKWARD = ("gelu_backward", "silu_backward", "hardswish_backward")
BACKWARD = (*BACKWARD, "hardsigmoid_backward", "elu_backward")
OPS = FORWARD + BACKWARD

SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0]
SPECIAL += [1e-40, -1e-40, 1e-30, 1e10, -1e10, 1e38, -1e38, 3.0, -3.0]


def op_of(name: str) -> str:
    return name.removesuffix("_tanh")


def both(name: str, n: int, scale: float, away: float = 0) -> contract.Case:
    """A curve and its gradient."""

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(n, dtype=dtype, scale=scale) + away
        y = CURVES[name](x.requires_grad_())
        (grad,) = torch.autograd.grad(y, x, contract.draw(n, dtype=dtype))
        return {"y": y, "grad": grad}

    return case


@pytest.mark.parametrize(
    ("n", "scale", "away"),
    [(7, 1, 0), (40000, 1, 0), (5000, 1e-4, 0), (5000, 8, 0), (3000, 0.5, -4)],
)
@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("row", switching.runnable_rows("gelu"))
def test_curves_are_close(
    row: str, name: str, n: int, scale: float, away: float
) -> None:
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op_of(name))]
        if name in HAS_GRADIENT:
            hits.append(switching.hits(f"{op_of(name)}_backward"))
        contract.hold(both(name, n, scale, away))
        assert all(h.accelerated for h in hits)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("row", switching.runnable_rows("gelu"))
def test_special_numbers(row: str, name: str) -> None:
    """What is not finite has stock's place and kind, and zeros their signs."""
    x = torch.cat([torch.linspace(-200, 200, 4003), torch.tensor(SPECIAL * 3)])

    def run() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = CURVES[name](leaf)
        found = [y.detach()]
        if name in HAS_GRADIENT and name != "hardswish":
            found += torch.autograd.grad(y, leaf, torch.ones_like(y))
        return found

    stock = run()
    with switching.accelerated(*OPS, row=row):
        ours = run()
    for a, b in zip(ours, stock, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6, equal_nan=True)
    zeros = torch.tensor([0.0, -0.0] * 20)
    expected = CURVES[name](zeros)
    with switching.accelerated(*OPS, row=row):
        assert contract.same_bits(CURVES[name](zeros), expected)


@pytest.mark.parametrize("row", switching.runnable_rows("sigmoid"))
def test_sigmoid_far_below_is_zero(row: str) -> None:
    """As in stock, which gives no number that others would take for more than that."""
    x = torch.tensor([-float("inf"), -3e38, -1e10, -200.0, -104.0, -103.0, -88.0] * 9)
    stock = torch.sigmoid(x)
    with switching.accelerated("sigmoid", row=row):
        hits = switching.hits("sigmoid")
        ours = torch.sigmoid(x)
        assert hits.accelerated == 1
    assert (ours[stock == 0] < 1e-44).all()
    assert (ours[x < -104] == 0).all()
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-44)


@pytest.mark.parametrize("row", switching.runnable_rows("gelu"))
def test_gelu_without_onednn(row: str) -> None:
    """Then GELU by erf of infinity is not NaN."""
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 1.0, -2.0] * 9)
    with torch.backends.mkldnn.flags(enabled=False):
        stock = F.gelu(x)
        with switching.accelerated("gelu", row=row):
            hits = switching.hits("gelu")
            ours = F.gelu(x)
            assert hits.accelerated == 1
    torch.testing.assert_close(ours, stock, rtol=2e-6, atol=1e-6, equal_nan=True)
    assert stock[0] == float("inf")


@pytest.mark.parametrize("row", switching.runnable_rows("elu"))
def test_elu_in_place_with_a_negative_slope(row: str) -> None:
    x = torch.linspace(-2, 2, 1000).requires_grad_()

    def run() -> None:
        F.elu(x * 1, -1.0, inplace=True).backward(torch.ones(1000))

    stock = contract.said(run)
    with switching.accelerated("elu", "elu_backward", row=row):
        assert contract.said(run) == stock
    assert "negative slope" in stock


@pytest.mark.parametrize("row", switching.runnable_rows("elu"))
def test_relatives_of_elu(row: str) -> None:
    """Other scales, and a gradient by the result, as ELU in place has it."""
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "selu": F.selu,
        "celu": lambda x: F.celu(x, 1.7),
        "elu": lambda x: F.elu(x, 0.3),
        "elu_": lambda x: F.elu(x * 1, inplace=True),
    }

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x, found = contract.draw(3000, dtype=dtype, scale=2).requires_grad_(), {}
        for name, call in calls.items():
            y = call(x)
            found[name] = y
            (found[f"{name} grad"],) = torch.autograd.grad(y.sin().sum(), x)
        return found

    with switching.accelerated("elu", "elu_backward", row=row):
        hits = [switching.hits(op) for op in ("elu", "elu_backward")]
        contract.hold(case)
        assert [h.accelerated for h in hits] == [4, 4]
        assert torch.autograd.gradgradcheck(
            F.elu, (torch.randn(9).double() - 1).requires_grad_()
        )


def exact_rows() -> list[tuple[str, str]]:
    """Operators and their rows that claim stock's bits."""
    return [
        (op, row[0])
        for op, _, rows in _C.operators()
        for row in rows
        if op in OPS and row[1] == "exact" and row[2]
    ]


@pytest.mark.parametrize(("op", "row"), exact_rows())
def test_exact_rows_give_the_bits_of_nan(op: str, row: str) -> None:
    patterns = torch.arange(-(2**31), 2**31, 49_999).int()
    x, grad = patterns.view(torch.float32), torch.linspace(-9, 9, len(patterns))

    def run() -> Tensor:
        found: Tensor
        if op in BACKWARD:
            found = getattr(torch.ops.aten, op)(grad, x)
        else:
            found = CURVES[op](x)
        return found.view(torch.int32)

    stock = run()
    with switching.accelerated(op, row=row):
        hits = switching.hits(op)
        assert torch.equal(run(), stock)
        assert hits.accelerated == 1


GRADIENTS: list[Callable[[Tensor], Tensor]] = [
    lambda grad: grad,
    lambda grad: grad.to(memory_format=torch.channels_last),
    lambda grad: grad.transpose(2, 3).contiguous().transpose(2, 3),
    lambda grad: torch.cat([grad, grad], 3)[..., ::2],
    lambda grad: grad[:1, :1, :1, :1].expand(grad.shape),
    lambda grad: grad[:1, :, :1, :1].expand(grad.shape),
    lambda grad: grad.transpose(2, 3).contiguous().transpose(2, 3)[:1].expand_as(grad),
]


@pytest.mark.parametrize("number", range(len(GRADIENTS)))
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_gelu_gradients_lie_as_stocks(number: int, is_channels_last: bool) -> None:
    grad, x = GRADIENTS[number](torch.randn(2, 3, 4, 5)), torch.randn(2, 3, 4, 5)
    if is_channels_last:
        x = x.to(memory_format=torch.channels_last)
    backward = torch.ops.aten.gelu_backward
    stock = backward(grad, x)
    with switching.accelerated("gelu_backward"):
        hits = switching.hits("gelu_backward")
        ours = backward(grad, x)
        assert hits.accelerated == (stock.stride() == x.stride())
    assert ours.stride() == stock.stride()
    torch.testing.assert_close(ours, stock, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("row", switching.runnable_rows("gelu"))
def test_nan_in_hardswish_backward_is_stocks(row: str) -> None:
    """Behind the last vector stock hands the gradient on."""
    x = torch.randn(1003)
    x[0] = x[-1] = float("nan")
    grad, backward = torch.randn(1003), torch.ops.aten.hardswish_backward
    stock = backward(grad, x)
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("hardswish_backward")
        contract.exactly(backward(grad, x), stock)
        assert hits.forwarded == {"values": 1}


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x[:1],
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x[0, 0, 0, 0],
    lambda x: x[:, :, 0, 0],
    lambda x: x.transpose(2, 3),
    lambda x: x[:, :, ::2],
    lambda x: x[:, :, :1].expand(x.shape),
    lambda x: x[:0],
    lambda x: x.double(),
    lambda x: x.bfloat16(),
    lambda x: x.half(),
]
SERVED = {0, 1, 2, 3}


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
@pytest.mark.parametrize("name", CURVES)
def test_layouts_and_dtypes(name: str, number: int) -> None:
    x = LAYOUTS[number](torch.randn(3, 6, 7, 9))

    def run() -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = CURVES[name](leaf)
        return [y.detach(), *torch.autograd.grad(y, leaf, torch.cos(y.detach()))]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(op_of(name))
        ours = run()
        assert hits.accelerated == (number in SERVED)
    for a, b in zip(ours, stock, strict=True):
        assert a.stride() == b.stride()
        if number in SERVED:
            torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6)
        else:
            contract.exactly(a, b)


def test_out_is_stocks() -> None:
    x, out = torch.randn(50, 7), torch.empty(50, 7)
    calls: list[Callable[[], Tensor]] = [
        lambda: torch.tanh(x, out=out),
        lambda: torch.sigmoid(x, out=out).clone(),
    ]
    stock = [call() for call in calls]
    with switching.accelerated(*OPS):
        contract.exactly([call() for call in calls], stock)


def test_errors_are_torchs() -> None:
    aten, x = torch.ops.aten, torch.randn(2, 3)
    calls: list[Callable[[], object]] = [
        lambda: F.gelu(x, approximate="erf"),
        lambda: F.gelu(x, approximate=""),
        lambda: F.gelu(x.int()),
        lambda: aten.gelu_backward(x, x, approximate="tan"),
        lambda: aten.gelu_backward(x[:1], x),
        lambda: aten.silu_backward(x.double(), x),
        lambda: F.hardswish(x.int()),
        lambda: torch.tanh(x.int()),
    ]

    stock = [contract.said(call) for call in calls]
    with switching.accelerated(*OPS):
        ours = [contract.said(call) for call in calls]
    for a, b in zip(ours, stock, strict=True):
        contract.exactly(a, b)


@pytest.mark.parametrize("name", [n for n in CURVES if n.find("hard")])
def test_derivatives_and_transforms(name: str) -> None:
    curve = CURVES[name]
    x = torch.linspace(-3, 3, 24).reshape(4, 6)

    def run() -> list[Tensor]:
        second = torch.func.jacrev(torch.func.jacrev(curve))(torch.tensor(0.7))
        each = torch.func.vmap(torch.func.grad(lambda x: curve(x).sum()))(x)
        forward = torch.func.jvp(curve, (x,), (x,))
        return [second, each, *forward]

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock, rtol=1e-5, atol=1e-5)
        leaf = x.double().requires_grad_()
        assert torch.autograd.gradgradcheck(curve, leaf)


def test_modules_copies_autocast_threads_and_toggling() -> None:
    parts = nn.GELU(), nn.Tanh(), nn.SiLU(), nn.ELU(), nn.Hardswish(), nn.Sigmoid()
    model = nn.Sequential(*parts)
    x = torch.randn(16, 8, 30, 30)

    def run(model: nn.Module) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        model(leaf).square().sum().backward()
        assert leaf.grad is not None
        return [leaf.grad]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        stock_cast = model(x.bfloat16())
    stock = run(model)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS if "hardsigmoid" not in op]
        torch.testing.assert_close(run(copy.deepcopy(model)), stock)
        assert all(h.accelerated == 1 for h in hits)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            contract.exactly(model(x.bfloat16()), stock_cast)
        results = switching.in_threads(lambda: model(x))
    expected = model(x)
    for y in results():
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_threads_do_not_change_bits(n_threads: int) -> None:
    x, grad = torch.randn(100_003), torch.randn(100_003)
    before = torch.get_num_threads()

    def run() -> list[Tensor]:
        aten = torch.ops.aten
        return [F.gelu(x), aten.gelu_backward(grad, x), aten.silu_backward(grad, x)]

    with switching.accelerated(*OPS):
        one = run()
        torch.set_num_threads(n_threads)
        try:
            contract.exactly(run(), one)
        finally:
            torch.set_num_threads(before)
        with ptac.disabled():
            assert len(run()) == len(one)

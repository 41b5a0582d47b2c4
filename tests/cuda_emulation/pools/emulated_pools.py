"""Average pooling on CUDA, plain and adaptive, with gradients.

Stock's kernel here is the CPU's, of which the bits differ: results are compared with
those of float64. ``checkrows`` compares bits with the arithmetic of ATen's on CUDA.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import emulation
import internals
import pytest
import torch
import torch.nn.functional as F
from opinfo import samples
from switching import FUSION, hits
from torch import Tensor

import pai_torchacc as ptac

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
PLAIN: dict[str, dict[str, Any]] = {
    "halves": {"kernel_size": 2},
    "overlapping": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    "padded": {"kernel_size": 3, "stride": (1, 2), "padding": 1},
    "padding does not count": {
        "kernel_size": (2, 3), "padding": (0, 1), "count_include_pad": False
    },
    "a divisor": {"kernel_size": (3, 2), "divisor_override": -5},
}  # fmt: skip
SIZES = {"even": (3, 4), "overlapping": (5, 7), "larger": (11, 3), "a row": (1, 4)}
ROUNDINGS = 8
"""Of a result: a window's sizes, their reciprocals and product, quotients or a product,
and what is stored; each to the dtype."""


def sampled() -> list[Any]:
    """Pools in torch's database, which asks a device that is there what it can do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db if "avg_pool" in op.name and "3d" not in op.name]


def served_by_stock() -> list[str]:
    return [name for name in emulation.stock_calls() if "avg_pool" in name]


def image(*sizes: int, dtype: torch.dtype, channels_last: bool) -> Tensor:
    x = torch.randn(sizes).to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def weights_of(y: Tensor) -> Tensor:
    weights = torch.arange(y.numel(), dtype=torch.float32).view(y.shape).sin()
    return weights.to("cpu", y.dtype)


def assert_near(
    found: Tensor, expected: Tensor, size: Tensor, terms: int, dtype: torch.dtype
) -> None:
    """``terms`` of that size were added up in float32, or in float64."""
    unit, least = torch.finfo(dtype).eps / 2, torch.finfo(dtype).tiny
    sums = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    allowed = ROUNDINGS * unit * (size + least) + terms * sums * size
    assert found.dtype == dtype
    assert bool(((found.cpu().double() - expected).abs() <= allowed).all())


def check(pool: Callable[[Tensor], Tensor], x: Tensor, terms: int) -> None:
    """The pool's results on CUDA, beside float64's, and the CPU's layout."""
    here = x.cuda().requires_grad_()
    y = pool(here)
    weights = weights_of(y)
    y.backward(weights.cuda())
    with ptac.disabled():
        # Of numbers without a sign: what errors are relative to.
        wide = [t.to(torch.float64, copy=True).requires_grad_() for t in (x, x.abs())]
        exact, size = (pool(t) for t in wide)
        exact.backward(weights.double())
        size.backward(weights.double().abs())
        narrow = x.clone().requires_grad_()
        stock = pool(narrow)
        stock.backward(weights)
    assert_near(y.detach(), exact.detach(), size.detach().abs(), terms, x.dtype)
    grads = [t.grad for t in (here, narrow, *wide)]
    assert all(g is not None for g in grads)
    assert_near(grads[0], grads[2], grads[3].abs(), terms, x.dtype)
    assert y.stride() == stock.stride()
    assert grads[0].stride() == grads[1].stride()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
def test_plain(
    on: Any, dtype: torch.dtype, channels_last: bool, options: dict[str, Any]
) -> None:
    x = image(2, 8, 9, 12, dtype=dtype, channels_last=channels_last)
    forward, backward = hits("avg_pool2d"), hits("avg_pool2d_backward")
    check(lambda t: F.avg_pool2d(t, **options), x, 9)
    assert forward.accelerated == 1
    if channels_last and "padding" in options:
        # Stock's numbers there depend on torch's version.
        assert backward.forwarded["layout"] == 1
        assert served_by_stock() == ["aten::avg_pool2d_backward"]
    else:
        assert backward.accelerated == 1
        assert served_by_stock() == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_adaptive(
    on: Any, dtype: torch.dtype, channels_last: bool, size: tuple[int, int]
) -> None:
    x = image(2, 8, 9, 12, dtype=dtype, channels_last=channels_last)
    counted = hits("adaptive_avg_pool2d"), hits("adaptive_avg_pool2d_backward")
    check(lambda t: F.adaptive_avg_pool2d(t, size), x, 36)
    assert [c.accelerated for c in counted] == [1, 1]
    assert served_by_stock() == []


@pytest.mark.parametrize("op", sampled(), ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_own_samples(on: Any, op: Any, dtype: torch.dtype) -> None:
    """In one dimension too: torch makes two of it."""
    name = "adaptive_avg_pool2d" if "adaptive" in op.name else "avg_pool2d"
    counted = hits(name), hits(f"{name}_backward")
    given = list(samples(op, dtype))
    for sample in given:
        x = sample.input.detach()

        def pool(t: Tensor, sample: Any = sample) -> Tensor:
            return op.op(t, *sample.args, **sample.kwargs)

        check(pool, x, terms=x.numel())
    for counts in counted:
        assert counts.accelerated > len(given) / 3


def test_an_image_without_a_batch(on: Any) -> None:
    x = torch.randn(3, 7, 9)
    counted = [
        hits(op + part)
        for op in ("avg_pool2d", "adaptive_avg_pool2d")
        for part in ("", "_backward")
    ]
    check(lambda t: F.avg_pool2d(t, 3, 1, 1), x, 9)
    check(lambda t: F.adaptive_avg_pool2d(t, (None, 2)), x, 9)
    assert [c.accelerated for c in counted] == [1, 1, 1, 1]


def test_channels_travel_by_sixteen_bytes(on: Any) -> None:
    """Where they can."""

    def launched(x: Tensor) -> list[str]:
        since = len(emulation.launches())
        F.avg_pool2d(x.cuda().requires_grad_(), 2).sum().backward()
        return [line.split()[0] for line in emulation.launches()[since:]]

    x = image(1, 8, 4, 4, dtype=torch.float16, channels_last=True)
    assert launched(x) == ["avg_pool2d_packs_f16", "avg_pool2d_backward_packs_f16"]
    for other in (x[:, :7], x.contiguous()):
        assert launched(other) == ["avg_pool2d_f16", "avg_pool2d_backward_f16"]


def test_one_output_is_a_mean_and_stays_stocks(on: Any) -> None:
    """Torch's own decomposition, above the operators."""
    counted = hits("adaptive_avg_pool2d")
    x = torch.randn(2, 3, 5, 5)
    y = F.adaptive_avg_pool2d(x.cuda(), 1)
    torch.testing.assert_close(y.cpu(), x.mean((2, 3), keepdim=True))
    assert (counted.accelerated, counted.forwarded) == (0, {})


def test_views_with_gaps_are_made_dense(on: Any) -> None:
    counted = hits("avg_pool2d"), hits("avg_pool2d_backward")
    x = torch.randn(2, 3, 8, 12, device="cuda")[:, :, :, ::2].requires_grad_()
    y = F.avg_pool2d(x, 2)
    [grad] = torch.autograd.grad(y.sum(), x)  # of one number, expanded
    assert [c.accelerated for c in counted] == [1, 1]
    with ptac.disabled():
        torch.testing.assert_close(y.cpu(), F.avg_pool2d(x.cpu(), 2))
    assert torch.equal(grad.cpu(), torch.full((2, 3, 8, 6), 0.25))


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_gradient_of_the_other_layout(on: Any, channels_last: bool) -> None:
    """As a flattened image has it. On CUDA the layout of x decides."""
    x = image(2, 4, 8, 8, dtype=torch.float32, channels_last=channels_last)
    grad = image(2, 4, 2, 4, dtype=torch.float32, channels_last=not channels_last)
    backward = torch.ops.aten._adaptive_avg_pool2d_backward
    counted = hits("adaptive_avg_pool2d_backward")
    found = backward(grad.cuda(), x.cuda())
    assert counted.accelerated == 1
    assert found.stride() == x.stride()
    with ptac.disabled():
        torch.testing.assert_close(found.cpu(), backward(grad, x))


def test_calls_come_as_cpp_makes_them(on: Any) -> None:
    names = {
        f"cuda:{op}{part}"
        for op in ("avg_pool2d", "adaptive_avg_pool2d")
        for part in ("", "_backward")
    }
    assert names <= set(internals.override_typed())


# --- why not ---


def test_what_is_refused(on: Any) -> None:
    counted = hits("avg_pool2d"), hits("adaptive_avg_pool2d")
    x = torch.randn(2, 3, 4, 4, device="cuda")
    F.avg_pool2d(x, 2, divisor_override=1 << 40)
    F.avg_pool2d(x[:0], 2)
    F.adaptive_avg_pool2d(x[:0], 2)
    with ptac.disabled():
        F.avg_pool2d(x, 2)
    assert counted[0].forwarded == {
        "argument": 1, "empty": 1, "disabled in this thread": 1
    }  # fmt: skip
    assert counted[1].forwarded == {"empty": 1}
    assert len(served_by_stock()) == 4


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.avg_pool2d(x, 2, padding=2),
        lambda x: F.avg_pool2d(x, 2, divisor_override=0),
        lambda x: F.avg_pool2d(x, 9),
        lambda x: torch.ops.aten._adaptive_avg_pool2d(x, [1, 2, 3]),
    ],
    ids=["padding", "divisor", "kernel", "size"],
)
def test_stocks_exceptions_pass_through(
    on: Any, call: Callable[[Tensor], Tensor]
) -> None:
    def fail(device: str) -> str:
        with pytest.raises(RuntimeError) as error:
            call(torch.randn(1, 1, 4, 4, device=device))
        return str(error.value)

    assert fail("cuda") == fail("cpu")


def test_exact_leaves_overlapping_sums_alone() -> None:
    """Stock adds those up in any order, or rounds each."""
    x = torch.randn(1, 2, 6, 6).cuda().requires_grad_()
    with ptac.enable(FUSION, numerics="exact"):
        counted = hits("adaptive_avg_pool2d_backward")
        F.adaptive_avg_pool2d(x, 3).sum().backward()
        assert counted.accelerated == 1
        F.adaptive_avg_pool2d(x, 4).sum().backward()
        assert (counted.accelerated, counted.forwarded) == (1, {"numerics level": 1})
    assert served_by_stock() == ["aten::_adaptive_avg_pool2d_backward"]


def test_without_machine_code_stock_does_the_call(on: Any) -> None:
    x = torch.randn(1, 2, 6, 6, device="cuda")
    counted = hits("avg_pool2d")
    with emulation.without_machine_code():
        F.avg_pool2d(x, 2)
    assert counted.forwarded == {"kernel not compiled yet": 1}
    assert served_by_stock() == ["aten::avg_pool2d"]


# --- what lies above and around ---


def test_a_shadow_check_finds_wrong_numbers() -> None:
    """Of windows of four positions, whose means are exact whoever computes them."""
    x = torch.randn(1, 2, 6, 6).cuda()
    try:
        with ptac.enable(FUSION, verify=1):
            counted = hits("avg_pool2d")
            expected = F.avg_pool2d(x, 2).cpu()
            assert (counted.accelerated, counted.forwarded) == (1, {})
            emulation.load().emulated_skip_launch()
            assert torch.equal(F.avg_pool2d(x, 2).cpu(), expected)
            F.avg_pool2d(x, 2)
            assert counted.forwarded == {"quarantined": 1}
    finally:
        internals.reset_quarantine()


def test_a_captured_stream_takes_our_launches(on: Any) -> None:
    x = torch.randn(1, 2, 6, 6, device="cuda").requires_grad_()
    stream = torch.Stream("cuda")

    def step() -> None:
        F.adaptive_avg_pool2d(F.avg_pool2d(x, 2), 2).sum().backward()

    step()  # kernels are loaded outside
    x.grad = None
    since = len(emulation.launches())
    emulation.stock_calls()
    with emulation.capturing(stream):
        step()
    launched = [line.split() for line in emulation.launches()[since:]]
    names = ["avg_pool2d_f32"] * 2 + ["avg_pool2d_backward_f32"] * 2
    assert [line[0] for line in launched] == names
    assert {line[2] for line in launched} == {str(stream.stream_id)}
    assert served_by_stock() == []


def test_deterministic_algorithms_are_served(on: Any) -> None:
    """Ours adds up in one order, where stock on CUDA has none and says so."""
    x = torch.randn(2, 3, 7, 7, device="cuda").requires_grad_()
    counted = hits("adaptive_avg_pool2d_backward")
    torch.use_deterministic_algorithms(True)
    try:
        y = F.adaptive_avg_pool2d(x, 3)
        grads = [torch.autograd.grad(y.sum(), x, retain_graph=True) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted.accelerated == 2
    assert torch.equal(grads[0][0], grads[1][0])


def test_modules_with_hooks_autocast_and_copies(on: Any) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.AvgPool2d(2), torch.nn.AdaptiveAvgPool2d(2)
    ).cuda()
    seen: list[torch.Size] = []
    model[1].register_forward_hook(lambda module, args, y: seen.append(y.shape))
    counted = hits("avg_pool2d"), hits("adaptive_avg_pool2d")
    x = torch.randn(2, 3, 10, 10, device="cuda")
    expected = model(x)
    assert torch.equal(copy.deepcopy(model)(x), expected)
    with torch.autocast("cuda", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    assert seen == [torch.Size((2, 8, 4, 4))] * 3
    assert [c.accelerated for c in counted] == [3, 3]


def test_functional_transforms(on: Any) -> None:
    x = torch.randn(3, 2, 4, 6, 6)
    counted = hits("avg_pool2d"), hits("avg_pool2d_backward")

    def loss(t: Tensor) -> Tensor:
        return F.avg_pool2d(t, 2).square().sum()

    found = torch.func.vmap(torch.func.grad(loss))(x.cuda())
    assert [c.accelerated for c in counted] == [1, 1]
    with ptac.disabled():
        expected = torch.func.vmap(torch.func.grad(loss))(x)
    torch.testing.assert_close(found.cpu(), expected)


def test_second_derivatives(on: Any) -> None:
    def second(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = F.adaptive_avg_pool2d(F.avg_pool2d(x.exp(), 2), 3)
        [first] = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    x = torch.randn(1, 2, 8, 8)
    found = second(x.cuda())
    with ptac.disabled():
        torch.testing.assert_close(found.cpu(), second(x), rtol=1e-4, atol=1e-5)

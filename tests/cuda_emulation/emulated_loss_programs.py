"""Programs with F.cross_entropy on CUDA: memory, graphs, hooks, faults, our own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import emulation
import internals
import pytest
import torch
import torch.nn.functional as F
from switching import FUSION, hits
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac
from pai_torchacc import _C, ops

FORWARD, BACKWARD = OPS = ("cross_entropy", "cross_entropy_backward")
ALLOWED = {
    *("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent"),
    *("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamIsCapturing"),
    *("cuLibraryGetKernel", "cuLaunchKernel"),
}
"""What a call of ours may ask of the driver: nothing that waits or allocates."""


def logits(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    sizes = sizes or (4, 9)
    return torch.randn(sizes).to("cuda", dtype).requires_grad_()


def indices(n: int = 4, classes: int = 9) -> Tensor:
    return torch.arange(n, device="cuda") % classes


def stock_computes() -> bool:
    names = emulation.stock_calls()
    return any("softmax" in name or "nll" in name for name in names)


def autocasting(enabled: bool = True) -> Any:
    return torch.autocast("cuda", torch.bfloat16, enabled=enabled)


def equal_to_stock(program: Callable[[], Any], **near: float) -> Any:
    """Its results, which are stock's too."""
    ours = program()
    with ptac.disabled():
        torch.testing.assert_close(ours, program(), **near)
    return ours


# --- memory, launches, streams ---


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory(on: Any, dtype: torch.dtype, autocast: bool) -> None:
    """Of the logits' size there is but their gradient; stock has three such tensors."""
    n, classes = 32, 20000
    target = indices(n, classes)
    size = n * classes * dtype.itemsize

    def train() -> None:
        x = torch.zeros(n, classes, device="cuda", dtype=dtype).requires_grad_()
        with autocasting(autocast):
            loss = F.cross_entropy(x, target)
        loss.backward()

    train()  # what stays for good
    ours = emulation.most_bytes(train)
    with ptac.disabled():
        stock = emulation.most_bytes(train)
    assert ours < 2 * size + 10000
    assert ours - size < (stock - size) / 2
    assert ours <= 0.51 * stock
    print(f"{dtype}, autocast {autocast}: {ours} bytes, by stock {stock}")


def test_a_loss_without_gradients_makes_none(on: Any) -> None:
    x, target = logits(32, 20000).detach(), indices(32, 20000)
    assert emulation.most_bytes(lambda: F.cross_entropy(x, target)) < 10000


def test_launches(on: Any) -> None:
    """Two for the loss, of which one adds up, and one for the gradient."""
    x, target = logits(), indices()
    F.cross_entropy(x, target).backward()
    since = len(emulation.launches())
    emulation.calls()
    emulation.stock_calls()
    x.grad = None
    F.cross_entropy(x, target).backward()
    assert set(emulation.calls()) <= ALLOWED
    assert emulation.launches()[since:] == [
        "cross_entropy_short_f32 0 0",
        "cross_entropy_reduce_f32 0 0",
        "cross_entropy_backward_short_f32 0 0",
    ]
    assert not stock_computes()


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
def test_a_captured_step(on: Any, autocast: bool) -> None:
    """Memory comes from torch's allocator; nobody waits, also where checks are on."""
    x, target = logits(dtype=torch.bfloat16), indices()

    def step() -> Tensor:
        x.grad = None
        with autocasting(autocast):
            loss = F.cross_entropy(x, target)
        loss.backward()
        return loss

    step()  # kernels are loaded
    stream = torch.Stream("cuda")
    with ptac.enable(FUSION, verify=1):
        counted = [hits(op) for op in OPS]
        before = emulation.load().emulated_blocks_ever()
        since = len(emulation.launches())
        emulation.calls()
        with emulation.capturing(stream):
            step()
        made = emulation.load().emulated_blocks_ever() - before
    assert [c.accelerated for c in counted] == [1, 1]
    assert set(emulation.calls()) <= ALLOWED
    # Loss, saved, work; the gradient of the loss, that of the logits.
    assert made == 5
    assert {line.split()[2] for line in emulation.launches()[since:]} == {
        str(stream.stream_id)
    }


def test_a_capture_that_comes_first_is_stocks(on: Any) -> None:
    x = logits(2, 3000, dtype=torch.float16)
    target, counted = torch.rand(2, 3000).cuda().half(), hits(FORWARD)
    with emulation.capturing(torch.Stream("cuda")):
        F.cross_entropy(x, target, reduction="none")
    assert counted.forwarded == {"kernel not compiled yet": 1}
    F.cross_entropy(x, target, reduction="none")
    assert (counted.accelerated, counted.failed) == (1, 0)


def test_streams_and_devices(on: Any) -> None:
    """Those of the logits, whichever are current; backward goes where forward went."""
    x, target = torch.randn(4, 9).to("cuda:1").requires_grad_(), indices().to("cuda:1")
    stream = torch.Stream("cuda:1")
    since = len(emulation.launches())
    with stream:
        loss = F.cross_entropy(x, target)
    loss.backward()
    places = [line.split()[1:] for line in emulation.launches()[since:]]
    assert places == [["1", str(stream.stream_id)]] * 3
    assert x.grad is not None
    assert loss.device == x.grad.device == torch.device("cuda:1")
    assert emulation.load().emulated_device() == 0


# --- gradients ---


def gradients(loss_of: Callable[[Tensor], Tensor], **options: Any) -> Tensor:
    torch.default_generator.manual_seed(0)
    x = logits(**options)
    loss_of(x).backward()
    assert x.grad is not None
    return x.grad


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": lambda x: F.cross_entropy(x, indices(), reduction="none").sum(),
    "of rows": lambda x: (
        F.cross_entropy(x, indices(), reduction="none") * indices()
    ).sum(),
    "scaled": lambda x: F.cross_entropy(x, indices(), reduction="sum") * 0.25,
    "also used": lambda x: F.cross_entropy(x, indices()) + (x * x).mean(),
    "twice": lambda x: (
        F.cross_entropy(x, indices()) + F.cross_entropy(x, indices() + 1)
    ),
    "rows of a batch": lambda x: F.cross_entropy(x.view(2, 2, 9).view(4, 9), indices()),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(on: Any, name: str) -> None:
    counted = hits(BACKWARD)
    equal_to_stock(lambda: gradients(PROGRAMS[name]))
    assert counted.accelerated == (2 if name == "twice" else 1)


def test_the_logits_are_not_written_over(on: Any) -> None:
    x, target = logits(), indices()
    before = x.detach().clone()
    loss = F.cross_entropy(x, target)
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.equal(x, before)
    assert x._version == 0


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
def test_second_derivatives(on: Any, soft: bool, autocast: bool) -> None:
    weight = torch.rand(9).cuda()
    target = torch.rand(4, 9).cuda().softmax(1) if soft else indices()

    def second() -> tuple[Tensor, ...]:
        torch.default_generator.manual_seed(0)
        x = logits()
        with autocasting(autocast):
            loss = F.cross_entropy(x, target, weight, label_smoothing=0.1)
        [first] = torch.autograd.grad(loss, x, create_graph=True)
        return first.detach(), *torch.autograd.grad(first.pow(3).sum(), x)

    counted = hits(FORWARD), hits(BACKWARD)
    equal_to_stock(second, rtol=1e-4, atol=1e-6)
    assert [c.accelerated for c in counted] == [1, 0]
    assert counted[1].forwarded == {"gradient not supported": 1}


def test_an_overwritten_tensor_is_autograds_error(on: Any) -> None:
    """Of the targets stock's; of the logits ours, for they are read again."""
    x, target = logits(), indices()
    z = x * 1
    for overwritten in (z, target):
        loss = F.cross_entropy(z, target)
        with torch.no_grad():
            overwritten.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward(retain_graph=True)


def test_hooks(on: Any) -> None:
    x, seen = logits(), []
    z = x * 1
    z.register_hook(lambda grad: seen.append(grad.shape) or grad * 2)
    counted = hits(BACKWARD)
    F.cross_entropy(z, indices()).backward()
    doubled = x.grad
    with ptac.disabled():
        expected = torch.autograd.grad(F.cross_entropy(x, indices()), x)[0] * 2
    torch.testing.assert_close(doubled, expected)
    assert seen == [(4, 9)]
    assert counted.accelerated == 1


def test_saved_tensors_through_hooks_are_stocks(on: Any) -> None:
    counted = hits(FORWARD)
    equal_to_stock(
        lambda: gradients(
            lambda x: checkpoint(F.cross_entropy, x, indices(), use_reentrant=False)
        )
    )
    assert counted.accelerated == 0
    assert "hooks" in counted.forwarded


def test_modules_are_copied(on: Any) -> None:
    module = torch.nn.CrossEntropyLoss(label_smoothing=0.1).cuda()
    x, counted = logits(), hits(FORWARD)
    assert torch.equal(copy.deepcopy(module)(x, indices()), module(x, indices()))
    assert counted.accelerated == 2


def test_transforms_are_stocks(on: Any) -> None:
    def grad(x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: F.cross_entropy(x, indices()))(x)

    x, counted = logits().detach(), hits(FORWARD)
    equal_to_stock(lambda: grad(x))
    assert counted.accelerated == 0


# --- switches, faults ---


@pytest.mark.parametrize("is_on_first", [True, False])
def test_switching_between_forward_and_backward(is_on_first: bool) -> None:
    """Whoever computes, the gradient is the same."""
    target = indices()

    def program(*switched: bool) -> Tensor:
        torch.default_generator.manual_seed(0)
        x = logits()
        with ptac.enable(FUSION) if switched[0] else ptac.disabled():
            loss = F.cross_entropy(x, target, label_smoothing=0.1)
        with ptac.enable(FUSION) if switched[1] else ptac.disabled():
            loss.backward()
        assert x.grad is not None
        return x.grad

    counted = [hits(op) for op in OPS]
    found = program(is_on_first, not is_on_first)
    assert [c.accelerated for c in counted] == [int(is_on_first), 0]
    torch.testing.assert_close(found, program(False, False))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_that_breaks(on: Any, op: str, dtype: torch.dtype) -> None:
    """Stock does the rest, and the next calls."""
    counted = hits(op)
    internals.inject_failure(op)
    near = {"rtol": 4 * torch.finfo(dtype).eps, "atol": torch.finfo(dtype).eps}

    def program() -> Tensor:
        return gradients(lambda x: F.cross_entropy(x, indices()), dtype=dtype)

    equal_to_stock(program, **near)
    equal_to_stock(program, **near)
    assert (counted.failed, counted.accelerated) == (1, 0)
    assert counted.forwarded.get("quarantined", 0) >= (op == BACKWARD)


@pytest.mark.parametrize("function", ["cuLaunchKernel", "cuCtxGetCurrent"])
def test_a_driver_that_fails(on: Any, function: str) -> None:
    x, target, counted = logits().detach(), indices(), hits(FORWARD)
    emulation.load().emulated_fail(function.encode())
    equal_to_stock(lambda: F.cross_entropy(x, target))
    assert counted.failed == (function == "cuLaunchKernel")
    assert counted.forwarded.get("device", 0) == (function == "cuCtxGetCurrent")


def test_kernels_that_are_not_compiled_yet(on: Any) -> None:
    counted = hits(FORWARD)
    with emulation.without_machine_code():
        equal_to_stock(lambda: F.cross_entropy(logits().detach() * 0, indices()))
    assert counted.forwarded["kernel not compiled yet"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_verify_compares(dtype: torch.dtype) -> None:
    try:
        with ptac.enable(FUSION, verify=1):
            counted = [hits(op) for op in OPS]
            gradients(lambda x: F.cross_entropy(x, indices()), dtype=dtype)
            assert [(c.accelerated, c.failed) for c in counted] == [(1, 0)] * 2
            assert stock_computes()
            emulation.load().emulated_skip_launch()
            x = logits(dtype=dtype)
            assert F.cross_entropy(x, indices()).isfinite()
            F.cross_entropy(x, indices())
            assert counted[0].forwarded == {"quarantined": 1}
            assert "numbers that stock does not give" in _C.counters(FORWARD)[-1]
    finally:
        internals.reset_quarantine()


# --- our own operator ---


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_operator_compiled(on: Any, dtype: torch.dtype, autocast: bool) -> None:
    """By the kernel, of whose results the compiler knows the dtypes."""
    torch.compiler.reset()
    weight = torch.rand(9).cuda().to(dtype)

    def program(x: Tensor, target: Tensor) -> Tensor:
        with autocasting(autocast):
            return ops.cross_entropy(x, target, weight, label_smoothing=0.1)

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    x, counted = logits(dtype=dtype), hits(FORWARD)
    emulation.stock_calls()
    loss = compiled(x, indices())
    assert counted.accelerated == 1
    assert not stock_computes()
    [found] = torch.autograd.grad(loss, x)
    with ptac.disabled(), autocasting(autocast):
        expected = F.cross_entropy(x, indices(), weight, label_smoothing=0.1)
    near = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
    torch.testing.assert_close(loss, expected, **near)
    torch.testing.assert_close(found, torch.autograd.grad(expected, x)[0], **near)


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
@pytest.mark.parametrize("in_float32", [False, True])
def test_the_operator_and_its_fake(is_on: bool, soft: bool, in_float32: bool) -> None:
    x = logits(dtype=torch.bfloat16)
    target = torch.rand(4, 9).cuda().softmax(1) if soft else indices()
    operator = torch.ops.pai_torchacc.cross_entropy.default
    with ptac.enable(FUSION) if is_on else ptac.disabled():
        for reduction in range(3):
            args = x, target, None, reduction, -100, 0.1, in_float32
            counted = hits(FORWARD)
            loss, kept = operator(*args)
            assert counted.accelerated == is_on
            torch.library.opcheck(
                operator, args, test_utils=("test_schema", "test_faketensor")
            )
            with autocasting(in_float32), ptac.disabled():
                expected = F.cross_entropy(
                    x, target, reduction=ops.REDUCTIONS[reduction], label_smoothing=0.1
                )
            assert loss.dtype == expected.dtype
            torch.testing.assert_close(loss, expected, rtol=3e-2, atol=3e-2)
            wide = x.detach().float()
            total = torch.logsumexp(wide, 1)
            torch.testing.assert_close(kept.sum(0), total)


def test_second_derivatives_of_the_operator(on: Any) -> None:
    def second(loss_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        torch.default_generator.manual_seed(0)
        x = logits()
        [first] = torch.autograd.grad(loss_of(x), x, create_graph=True)
        return first.detach(), *torch.autograd.grad(first.pow(3).sum(), x)

    found = second(lambda x: torch.ops.pai_torchacc.cross_entropy(x, indices())[0])
    with ptac.disabled():
        expected = second(lambda x: F.cross_entropy(x, indices()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)

"""Overrides at the key CUDA: results, counters, switches, streams, devices, faults."""

from __future__ import annotations

import copy
import faulthandler
import os
import signal
import threading
from typing import Any

import emulation
import internals
import pytest
import torch
import torch.nn.functional as F
from switching import FUSION, hits
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc import _C

OPERATORS = ("log_softmax", "max_pool2d")
ALLOWED = {
    *("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent"),
    *("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamIsCapturing"),
    *("cuLibraryGetKernel", "cuLaunchKernel"),
}
"""What a call of ours may ask of the driver: nothing that waits or allocates."""


def stock_was_called(op: str) -> bool:
    return any(op in name for name in emulation.stock_calls())


def image(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """With ties, infinities and NaN, as pooling has to tell them apart."""
    x = torch.randn(sizes).mul(4).round().div(4)
    x.view(-1)[::17] = torch.nan
    x.view(-1)[::23] = -torch.inf
    return x.to(dtype)


def pooled(x: Tensor, **options: Any) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y, indices = F.max_pool2d(x, return_indices=True, **options)
    weights = torch.arange(y.numel(), dtype=torch.float32).view(y.shape).sin()
    y.backward(weights.to(y))
    assert x.grad is not None
    return [y.detach(), indices, x.grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": (2, 3), "stride": (1, 2), "dilation": (2, 1)},
    ],
    ids=["halves", "overlapping", "dilated"],
)
def test_pooling_has_the_bits_of_the_cpu(
    on: Any, dtype: torch.dtype, channels_last: bool, options: dict[str, Any]
) -> None:
    x = image(2, 3, 9, 11, dtype=dtype)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    forward, backward = hits("max_pool2d"), hits("max_pool2d_backward")
    with ptac.disabled():
        expected = pooled(x, **options)
    before = forward.accelerated, backward.accelerated
    found = pooled(x.cuda(), **options)
    assert (forward.accelerated, backward.accelerated) == (before[0] + 1, before[1] + 1)
    assert not stock_was_called("max_pool2d")
    for ours, stock in zip(found, expected, strict=True):
        assert ours.device == torch.device("cuda", 0)
        assert ours.stride() == stock.stride()
        assert torch.equal(torch.nan_to_num(ours.cpu(), 7), torch.nan_to_num(stock, 7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pooling_of_16_bits_has_the_bits_of_the_cpu(
    on: Any, dtype: torch.dtype
) -> None:
    """Windows that do not overlap: of those that do, the CPU adds up in 16 bits."""
    x = image(2, 3, 8, 8, dtype=dtype)
    counted = hits("max_pool2d_backward")
    found = pooled(x.cuda(), kernel_size=2)
    assert counted.accelerated == 1
    with ptac.disabled():
        for ours, stock in zip(found, pooled(x, kernel_size=2), strict=True):
            assert torch.equal(
                torch.nan_to_num(ours.cpu(), 7), torch.nan_to_num(stock, 7)
            )


@pytest.mark.parametrize("width", [1, 5, 32, 1000, 3001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_log_softmax(on: Any, width: int, dtype: torch.dtype) -> None:
    """To half of the last place where float32 is rounded to 16 bits, else to a few."""
    x = (torch.randn(3, 7, width) * 3).to(dtype)
    weights = torch.randn(3, 7, width).to(dtype)
    counted = hits("log_softmax"), hits("log_softmax_backward")
    here = x.cuda().requires_grad_()
    y = F.log_softmax(here, -1)
    y.backward(weights.cuda())
    assert [c.accelerated for c in counted] == [1, 1]
    assert not stock_was_called("softmax")
    assert here.grad is not None
    assert y.dtype == here.grad.dtype == dtype
    exact = F.log_softmax(x.double(), -1)
    rounded = y.detach().cpu().double()
    # Of the output that it is given, which it has rounded.
    gradient = weights.double() - rounded.exp() * weights.double().sum(-1, True)
    eps = torch.finfo(dtype).eps
    size = max(1.0, float(exact.abs().max()))
    torch.testing.assert_close(rounded, exact, rtol=eps, atol=4 * 2**-23 * size)
    near = {"rtol": eps, "atol": 1e-5 * float(weights.abs().sum(-1).max())}
    torch.testing.assert_close(here.grad.cpu().double(), gradient, **near)


def test_a_program_trains(on: Any) -> None:
    """The same losses as on the CPU, by rows that are close."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(36, 5), torch.nn.LogSoftmax(-1),
    )  # fmt: skip
    x, target = torch.randn(6, 1, 8, 8), torch.arange(6) % 5

    def losses(device: str) -> list[float]:
        here = copy.deepcopy(model).to(device)
        optimizer = torch.optim.Adam(here.parameters(), lr=0.01)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.nll_loss(here(x.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    counted = [hits(op + part) for op in OPERATORS for part in ("", "_backward")]
    on_cuda = losses("cuda")
    assert [c.accelerated for c in counted] == [3, 3, 3, 3]
    with ptac.disabled():
        assert on_cuda == pytest.approx(losses("cpu"), rel=1e-5)


def test_calls_ask_the_driver_for_launches_alone(on: Any) -> None:
    driver = emulation.load()
    x = torch.randn(2, 3, 8, 8).cuda()
    before = driver.emulated_blocks_ever()
    emulation.calls()
    pooled_x, indices = F.max_pool2d(x, 2, return_indices=True)
    y = F.log_softmax(x, -1)
    assert driver.emulated_blocks_ever() == before + 3  # the outputs
    assert set(emulation.calls()) <= ALLOWED
    assert emulation.launches()[-2:] == [
        "max_pool2d_f32 0 0",
        "log_softmax_kept_32_f32 0 0",
    ]
    del pooled_x, indices, y


def test_the_host_cannot_read_the_device() -> None:
    """What all these tests rest on."""
    address = torch.zeros(4, device="cuda").data_ptr()
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        _ = (emulation.ctypes.c_char * 4).from_address(address).raw
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV


def test_calls_come_as_cpp_makes_them(on: Any) -> None:
    names = {f"cuda:{op}{part}" for op in OPERATORS for part in ("", "_backward")}
    assert {n for n in _C.override_installed() if n.startswith("cuda:")} >= names
    assert names <= set(internals.override_typed())


# --- why not ---


def test_what_is_refused(on: Any) -> None:
    x = torch.randn(4, 6, device="cuda")
    counted = hits("log_softmax")
    F.log_softmax(x, 0)
    F.log_softmax(x.double(), -1)
    F.log_softmax(x[:0], -1)
    F.log_softmax(x.half(), -1, dtype=torch.float32)
    with ptac.disabled():
        F.log_softmax(x, -1)
    assert counted.forwarded == {
        "argument": 2, "dtype": 1, "empty": 1, "disabled in this thread": 1
    }  # fmt: skip
    assert counted.accelerated == 0
    assert len([n for n in emulation.stock_calls() if "log_softmax" in n]) == 5


def test_tensors_of_two_devices_are_stocks(on: Any) -> None:
    """Stock's own kernel says what it thinks of them."""
    x = torch.randn(1, 1, 4, 4).cuda()
    y, indices = F.max_pool2d(x, 2, return_indices=True)
    counted = hits("max_pool2d_backward")
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    args = x, [2, 2], [2, 2], [0, 0], [1, 1], False
    backward(y, *args, indices.to("cuda:1"))
    backward(y, *args, indices.cpu())
    assert counted.forwarded == {"device": 2}
    assert counted.accelerated == 0


def test_exact_leaves_log_softmax_alone() -> None:
    x = torch.randn(4, 6, device="cuda")
    with ptac.enable(FUSION, numerics="exact"):
        assert "cuda:log_softmax" not in _C.override_installed()
        counted = hits("max_pool2d")
        F.max_pool2d(torch.randn(1, 1, 4, 4).cuda(), 2)
        F.log_softmax(x, -1)
    assert counted.accelerated == 1
    assert stock_was_called("log_softmax")


def test_excluded_operators_are_not_registered() -> None:
    with ptac.enable(FUSION, exclude=["max_pool2d"]):
        names = _C.override_installed()
    assert "cuda:log_softmax" in names
    assert not any(name.startswith("cuda:max_pool2d") for name in names)


def test_a_kernel_without_machine_code_is_stocks_until_it_has_some(on: Any) -> None:
    x = torch.randn(4, 6, device="cuda")
    counted = hits("log_softmax")
    with emulation.without_machine_code():
        F.log_softmax(x, -1)
    assert counted.forwarded == {"kernel not compiled yet": 1}
    assert stock_was_called("log_softmax")
    F.log_softmax(x, -1)
    assert counted.accelerated == 1


def test_stocks_exceptions_pass_through(on: Any) -> None:
    def fail(device: str) -> str:
        with pytest.raises(RuntimeError) as error:
            F.max_pool2d(torch.randn(1, 1, 4, 4, device=device), 2, padding=3)
        return str(error.value)

    assert fail("cuda") == fail("cpu")


# --- switches ---


def test_switching_leaves_torchs_own_kernels() -> None:
    x = torch.randn(4, 6, device="cuda")

    def registered() -> list[str]:
        lines = torch._C._dispatch_dump("aten::_log_softmax").splitlines()
        return [line for line in lines if line.startswith("CUDA")]

    before = registered()
    for _ in range(3):
        with ptac.enable(FUSION):
            assert registered() != before
            assert ptac.status()[FUSION]["cuda"] == f"{count()} operators"
            F.log_softmax(x, -1)
        assert registered() == before
        assert "cuda" not in ptac.status()[FUSION]
    assert not stock_was_called("log_softmax")
    counted = hits("log_softmax")
    F.log_softmax(x, -1)
    assert (counted.accelerated, counted.forwarded) == (0, {})
    assert stock_was_called("log_softmax")


def count() -> int:
    return sum(name.startswith("cuda:") for name in _C.override_installed())


def test_the_report_names_cuda(on: Any) -> None:
    assert f"on CUDA {count()} operators" in ptac.report()


def test_a_kernel_of_others_is_left_alone() -> None:
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("_log_softmax", lambda x, dim, half: x.clone(), "CUDA")
        with ptac.enable(FUSION):
            assert "cuda:log_softmax" not in _C.override_installed()
            assert "log_softmax on CUDA: overridden by" in ptac.report()
            x = torch.randn(4, 6, device="cuda")
            assert torch.equal(torch.log_softmax(x, -1), x)
    finally:
        library._destroy()


# --- streams, devices, threads ---


def test_launches_follow_the_current_stream(on: Any) -> None:
    x = torch.randn(4, 6, device="cuda").requires_grad_()
    first, second = torch.Stream("cuda"), torch.Stream("cuda")
    with first:
        y = F.log_softmax(x, -1)
    with second:
        F.max_pool2d(torch.randn(1, 1, 4, 4).cuda(), 2)
    y.sum().backward()  # by the stream of forward, as autograd has it
    assert emulation.launches()[-3:] == [
        f"log_softmax_kept_32_f32 0 {first.stream_id}",
        f"max_pool2d_f32 0 {second.stream_id}",
        f"log_softmax_backward_kept_32_f32 0 {first.stream_id}",
    ]


def test_calls_are_made_on_their_tensors_device(on: Any) -> None:
    """Whichever is current, and it stays so."""
    driver = emulation.load()
    x = torch.randn(4, 6)
    with torch.device("cuda:0"):
        results = [F.log_softmax(x.to(f"cuda:{i}"), -1) for i in (1, 0, 1)]
    assert [r.device.index for r in results] == [1, 0, 1]
    assert [line.split()[1] for line in emulation.launches()[-3:]] == ["1", "0", "1"]
    assert driver.emulated_device() == 0
    with ptac.disabled():
        expected = F.log_softmax(x, -1)
    for result in results:
        torch.testing.assert_close(result.cpu(), expected)


def test_gradients_of_two_devices(on: Any) -> None:
    x = [torch.randn(4, 6, device=f"cuda:{i}").requires_grad_() for i in range(2)]
    counted = hits("log_softmax_backward")
    (F.log_softmax(x[0], -1).sum() + F.log_softmax(x[1], -1).sum().to(x[0])).backward()
    assert counted.accelerated == 2
    assert [i.grad.device.index for i in x if i.grad is not None] == [0, 1]


def test_threads_that_have_no_context(on: Any) -> None:
    driver = emulation.load()
    x = torch.randn(4, 6, device="cuda:1")
    expected = F.log_softmax(x, -1).cpu()
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(20):
            has_one = driver.emulated_has_context()
            result = F.log_softmax(x, -1)
            if driver.emulated_has_context() != has_one:
                wrong.append("a context was left behind")
            if not torch.equal(result.cpu(), expected):
                wrong.append(result)

    counted = hits("log_softmax")
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert counted.accelerated == 80


def test_a_captured_stream_takes_our_launches() -> None:
    """Also where checks are on, which would wait for the device."""
    x = torch.randn(4, 6, device="cuda")
    stream = torch.Stream("cuda")
    with ptac.enable(FUSION):
        F.log_softmax(x, -1)
    with ptac.enable(FUSION, verify=1):
        counted = hits("log_softmax")
        with emulation.capturing(stream):
            y = F.log_softmax(x, -1)
            with pytest.raises(RuntimeError, match="capturing"):
                y.cpu()
        assert counted.accelerated == 1
        assert not stock_was_called("log_softmax")
        assert emulation.launches()[-1].endswith(f" {stream.stream_id}")


def test_no_kernel_is_loaded_into_a_capture(on: Any) -> None:
    """Stock's is captured; afterwards the kernel is, and may be captured too."""
    x = torch.randn(2, 40000, device="cuda", dtype=torch.bfloat16)  # no other test has
    stream, counted = torch.Stream("cuda"), hits("log_softmax")
    since = len(emulation.launches())
    with emulation.capturing(stream):
        F.log_softmax(x, -1)
    assert counted.forwarded == {"kernel not compiled yet": 1}
    assert stock_was_called("log_softmax")
    assert len(emulation.launches()) == since
    F.log_softmax(x, -1)
    with emulation.capturing(stream):
        F.log_softmax(x, -1)
    assert (counted.accelerated, counted.failed) == (2, 0)


# --- faults ---


def test_a_shadow_check_finds_wrong_numbers() -> None:
    x = torch.randn(4, 6, device="cuda")
    with ptac.disabled():
        expected = F.log_softmax(x.cpu(), -1)
    try:
        with ptac.enable(FUSION, verify=1):
            counted = hits("log_softmax")
            torch.testing.assert_close(F.log_softmax(x, -1).cpu(), expected)
            assert stock_was_called("log_softmax")
            assert counted.accelerated == 1
            emulation.load().emulated_skip_launch()
            assert torch.equal(F.log_softmax(x, -1).cpu(), expected)
            F.log_softmax(x, -1)
            assert counted.forwarded == {"quarantined": 1}
            assert "numbers that stock does not give" in _C.counters("log_softmax")[-1]
    finally:
        internals.reset_quarantine()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_shadow_checks_of_16_bits(dtype: torch.dtype) -> None:
    x = torch.randn(4, 6).to("cuda", dtype)
    with ptac.enable(FUSION, verify=1):
        counted = hits("log_softmax")
        F.log_softmax(x, -1)
        F.log_softmax(x, -1)
        assert counted.accelerated == 2
        assert stock_was_called("log_softmax")


@pytest.mark.parametrize("function", ["cuLaunchKernel", "cuCtxGetCurrent"])
def test_a_driver_that_fails(on: Any, function: str) -> None:
    """Stock does the call; a kernel that could not be launched is not asked again."""
    x = torch.randn(4, 6, device="cuda")
    counted = hits("log_softmax")
    emulation.load().emulated_fail(function.encode())
    y = F.log_softmax(x, -1)
    with ptac.disabled():
        torch.testing.assert_close(y.cpu(), F.log_softmax(x.cpu(), -1))
    F.log_softmax(x, -1)
    if function == "cuLaunchKernel":
        assert counted.failed == 1
        assert counted.forwarded["quarantined"] == 1
        assert "log_softmax_kept_32_f32" in _C.counters("log_softmax")[-1]
    else:
        assert counted.forwarded["device"] == 1
        assert counted.accelerated == 1


# --- what lies above ---


def test_autocast(on: Any) -> None:
    """Its dtypes. Torch has one kernel widen float16 and compute, which we have not."""
    x = torch.randn(2, 3, 8, 8, device="cuda").half()
    counted = hits("log_softmax"), hits("max_pool2d")
    with torch.autocast("cuda", torch.float16):
        y = F.log_softmax(x, -1)
        assert F.max_pool2d(x, 2).dtype == torch.float16
        assert F.log_softmax(x.float(), -1).dtype == torch.float32
    assert y.dtype == torch.float32
    assert [c.accelerated for c in counted] == [1, 1]
    assert counted[0].forwarded == {"argument": 1}
    with ptac.disabled():
        torch.testing.assert_close(y.cpu(), F.log_softmax(x.cpu().float(), -1))


def test_functional_transforms(on: Any) -> None:
    x = torch.randn(3, 4, 6, device="cuda")
    counted = hits("log_softmax")
    mapped = torch.func.vmap(lambda row: F.log_softmax(row, -1))(x)
    assert counted.accelerated == 1
    gradient = torch.func.grad(lambda row: F.log_softmax(row, -1).square().sum())(x)
    assert counted.accelerated == 2
    with ptac.disabled():
        here = x.cpu()
        torch.testing.assert_close(mapped.cpu(), F.log_softmax(here, -1))
        expected = torch.func.grad(lambda r: F.log_softmax(r, -1).square().sum())(here)
        torch.testing.assert_close(gradient.cpu(), expected)


def test_modules_are_copied(on: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LogSoftmax(-1)).cuda()
    x = torch.randn(3, 6, device="cuda")
    counted = hits("log_softmax")
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    assert counted.accelerated == 2


def test_second_derivatives(on: Any) -> None:
    def second(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        [first] = torch.autograd.grad(
            F.log_softmax(x, -1).pow(3).sum(), x, create_graph=True
        )
        return torch.autograd.grad(first.square().sum(), x)[0]

    x = torch.randn(4, 6)
    found = second(x.cuda())
    with ptac.disabled():
        torch.testing.assert_close(found.cpu(), second(x), rtol=1e-4, atol=1e-4)


def test_views_with_gaps_are_made_dense(on: Any) -> None:
    x = torch.randn(4, 12, device="cuda")
    counted = hits("log_softmax")
    y = F.log_softmax(x[:, ::2], -1)
    assert counted.accelerated == 1
    assert y.is_contiguous()
    with ptac.disabled():
        torch.testing.assert_close(y.cpu(), F.log_softmax(x.cpu()[:, ::2], -1))

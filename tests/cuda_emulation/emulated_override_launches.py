"""Overrides at the key CUDA: the driver, streams, devices, captures and faults."""

from __future__ import annotations

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
from overridden import OPERATORS, stock_was_called
from switching import FUSION, hits

import pai_torchacc as ptac
from pai_torchacc import _C

ALLOWED = {
    *("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent"),
    *("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamIsCapturing"),
    *("cuLibraryGetKernel", "cuLaunchKernel"),
}
"""What a call of ours may ask of the driver: nothing that waits or allocates."""


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

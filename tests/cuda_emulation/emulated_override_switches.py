"""Overrides at the key CUDA: what they leave to stock, and going on and off."""

from __future__ import annotations

from typing import Any

import emulation
import pytest
import torch
import torch.nn.functional as F
from overridden import stock_was_called
from switching import FUSION, hits

import pai_torchacc as ptac
from pai_torchacc import _C


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

"""pai_torchacc.ops.relu_max_pool2d on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import emulation
import internals
import pytest
import torch
from opinfo import samples
from relu_pooling import (
    NAMES,
    WINDOWS,
    assert_same,
    counted,
    image,
    in_steps,
    served,
    with_gradient,
)
from switching import FUSION
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

import pai_torchacc as ptac
from pai_torchacc import ops

SIZES = {"even": (2, 8, 8, 12), "odd": (3, 5, 9, 11), "no batch": (4, 7, 10)}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_bits_are_stocks(
    on: Any,
    window: dict[str, Any],
    dtype: torch.dtype,
    channels_last: bool,
    sizes: tuple[int, ...],
) -> None:
    x = image(*sizes, dtype=dtype)
    if channels_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    counts = counted()
    found = with_gradient(ops.relu_max_pool2d, x.cuda(), **window)
    assert served(counts) == [1, 1]
    assert emulation.stock_calls() == []
    with ptac.disabled():
        assert_same(found, with_gradient(in_steps, x, **window))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_bits_of_16_bits(on: Any, dtype: torch.dtype, channels_last: bool) -> None:
    """Windows that do not overlap: of those that do, the CPU adds up in 16 bits."""
    x = image(2, 16, 8, 8, dtype=dtype)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    counts = counted()
    found = with_gradient(ops.relu_max_pool2d, x.cuda(), kernel_size=2)
    assert served(counts) == [1, 1]
    with ptac.disabled():
        assert_same(found, with_gradient(in_steps, x, kernel_size=2))
    overlapping = {"kernel_size": 3, "stride": 2}
    found = with_gradient(ops.relu_max_pool2d, x.cuda(), **overlapping)
    with ptac.disabled():
        y, grad = with_gradient(in_steps, x.float(), **overlapping)
    weights_eps = torch.finfo(dtype).eps  # the gradients given are rounded, too
    assert torch.equal(found[0].cpu().float().nan_to_num(7), y.nan_to_num(7))
    torch.testing.assert_close(
        found[1].cpu().float(), grad, rtol=weights_eps, atol=4 * weights_eps
    )


def pool_samples() -> list[Any]:
    """Torch's own of max pooling, without those that ask for indices."""
    (op,) = (op for op in op_db if op.name == "nn.functional.max_pool2d")
    given = islice(samples(op, torch.float32), 0, None, 13)
    return [s for s in given if not s.kwargs.pop("return_indices", False)]


@pytest.mark.filterwarnings("ignore")
def test_torchs_samples_of_max_pooling(on: Any) -> None:
    counts, given = counted(), pool_samples()
    for sample in given:
        x = sample.input.detach()
        found = with_gradient(ops.relu_max_pool2d, x.cuda(), **sample.kwargs)
        with ptac.disabled():
            assert_same(found, with_gradient(in_steps, x, **sample.kwargs))
    assert served(counts) == [len(given)] * 2


# --- who does the call ---


def test_what_is_left_to_torch(on: Any) -> None:
    x = torch.randn(2, 4, 20, 20, device="cuda")
    counts = counted()
    calls: list[tuple[Tensor, dict[str, Any]]] = [
        (x[..., ::2], {"kernel_size": 2}),
        (x, {"kernel_size": 16}),
        (x[:0], {"kernel_size": 2}),
        (x, {"kernel_size": [2], "stride": (2,)}),
    ]
    for given, window in calls:
        found = ops.relu_max_pool2d(given, **window)
        assert torch.equal(found.cpu(), in_steps(given.cpu(), **window))
    assert counts[0].accelerated == 0
    assert counts[0].forwarded == {"layout": 1, "shape": 1, "empty": 1, "argument": 1}


def test_elsewhere_it_is_torchs(on: Any) -> None:
    x = torch.randn(2, 4, 8, 8)
    counts = counted()
    expected = in_steps(x, kernel_size=3, stride=2, padding=1)
    assert torch.equal(ops.relu_max_pool2d(x, 3, 2, 1), expected)
    assert (served(counts), counts[0].forwarded) == ([0, 0], {})


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_size": 2, "padding": 3},
        {"kernel_size": 2, "stride": -1},
        {"kernel_size": 9},
        {"kernel_size": "x"},
        {"kernel_size": None},
    ],
    ids=str,
)
def test_exceptions_are_torchs(on: Any, window: dict[str, Any]) -> None:
    def fail(device: str, pool: Callable[..., Tensor]) -> str:
        with pytest.raises((RuntimeError, TypeError)) as error:
            pool(torch.randn(1, 1, 4, 4, device=device), **window)
        return str(error.value)

    assert fail("cuda", ops.relu_max_pool2d) == fail("cpu", in_steps)


def test_under_autocast(on: Any) -> None:
    """Neither of the two is cast."""
    x = image(2, 4, 8, 8, dtype=torch.bfloat16)
    counts = counted()
    with torch.autocast("cuda", torch.bfloat16):
        found = with_gradient(ops.relu_max_pool2d, x.cuda(), kernel_size=2)
    assert served(counts) == [1, 1]
    with ptac.disabled():
        assert_same(found, with_gradient(in_steps, x, kernel_size=2))


def test_exact_has_it() -> None:
    with ptac.enable(FUSION, numerics="exact"):
        counts = counted()
        with_gradient(ops.relu_max_pool2d, image(2, 4, 8, 8).cuda(), kernel_size=2)
        assert served(counts) == [1, 1]


def test_without_machine_code_torch_does_it(on: Any) -> None:
    x = image(2, 4, 8, 8)
    counts = counted()
    with emulation.without_machine_code():
        y = ops.relu_max_pool2d(x.cuda(), 2)
    assert counts[0].forwarded == {"kernel not compiled yet": 1}
    assert torch.equal(y.cpu().nan_to_num(7), in_steps(x, kernel_size=2).nan_to_num(7))


def test_shadow_checks_find_wrong_numbers() -> None:
    x = image(2, 4, 8, 8).cuda()
    try:
        with ptac.enable(FUSION, verify=1):
            counts = counted()
            expected = with_gradient(ops.relu_max_pool2d, x, kernel_size=2)[0]
            assert served(counts) == [1, 1]
            assert not ptac.status()[FUSION].get("quarantined")
            emulation.load().emulated_skip_launch()
            found = ops.relu_max_pool2d(x, 2)
            assert torch.equal(found.cpu().nan_to_num(7), expected.cpu().nan_to_num(7))
            ops.relu_max_pool2d(x, 2)
            assert counts[0].forwarded == {"quarantined": 1}
    finally:
        internals.reset_quarantine()


def test_a_captured_stream_takes_our_launches(on: Any) -> None:
    x = image(2, 4, 8, 8).cuda().requires_grad_()
    stream = torch.Stream("cuda")

    def step() -> None:
        ops.relu_max_pool2d(x, 2).sum().backward()

    step()  # kernels are loaded outside
    x.grad = None
    since = len(emulation.launches())
    emulation.calls()
    with emulation.capturing(stream):
        step()
    launched = [line.split() for line in emulation.launches()[since:]]
    assert [line[0] for line in launched] == [f"{name}_f32" for name in NAMES]
    assert {line[2] for line in launched} == {str(stream.stream_id)}
    assert not {c for c in emulation.calls() if "Synchronize" in c or "Mem" in c}


@pytest.mark.parametrize("sizes", [(2, 1, 8, 8), (1, 4, 1, 1), (1, 1, 4, 4)], ids=str)
def test_layout_where_both_hold(on: Any, sizes: tuple[int, ...]) -> None:
    """Torch's ReLU gives NCHW strides to what is contiguous, whatever x has."""
    _, channels, height, width = sizes
    strides = (channels * height * width, 1, width * channels, channels)
    x = image(*sizes)
    here = torch.empty_strided(sizes, strides, device="cuda").copy_(x)
    assert here.is_contiguous()
    window = {"kernel_size": 1 if sizes[2] == 1 else 2}
    counts = counted()
    found = with_gradient(ops.relu_max_pool2d, here, **window)
    assert served(counts) == [1, 1]
    with ptac.disabled():
        assert_same(found, with_gradient(in_steps, here.cpu(), **window))


def test_bool_is_no_size(on: Any) -> None:
    with pytest.raises(TypeError, match="kernel_size"):
        ops.relu_max_pool2d(torch.randn(1, 1, 4, 4).cuda(), True)

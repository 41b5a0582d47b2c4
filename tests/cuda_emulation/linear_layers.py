"""Layers, and blocks of two, on emulated CUDA devices; the fixtures of their tests."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import contract
import emulation
import pytest
import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.extension import function

FORWARD, BACKWARD = "linear_act", "linear_act_backward"
MLP, MLP_BACKWARD = "mlp", "mlp_backward"
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu tanh": lambda: nn.GELU(approximate="tanh"),
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
IN_EPILOGUE = ("relu", "gelu tanh")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SEEDS = 8
PLAIN, RELU, BIAS, RELU_BIAS, GELU_BIAS, GELU_AUX_BIAS, BGRADB = (
    f"product_{number}" for number in (1, 2, 4, 6, 36, 164, 512)
)
DRELU_BGRAD, DGELU_BGRAD = (f"product_{number}" for number in (152, 208))
"""Products as the emulation calls them, by cuBLASLt's numbers of epilogues."""


LEAST, LEAST_OF_BLOCKS = 1 << 34, 1 << 31
"""Multiply-adds from which on a layer with gradients is ours, and a block of two."""

LAUNCHES = {
    f"aten::{name}"
    for name in (
        *("addmm", "mm", "sum", "sum.dim_IntList", "relu", "gelu", "silu", "tanh"),
        *("threshold_backward", "gelu_backward", "silu_backward", "tanh_backward"),
    )
}
"""What a step of a block calls of stock, each a launch at least."""

ALLOWED = {
    *("cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"),
    "cuStreamIsCapturing",
}
"""What a product asks the driver itself."""


def from_work(least: int, of_blocks: int | None = None) -> None:
    """Have layers and blocks from so many multiply-adds on be ours in training."""
    of_blocks = least if of_blocks is None else of_blocks
    function("ptac_linear_cuda_set_least", None, ctypes.c_int64)(least)
    function("ptac_mlp_cuda_set_least", None, ctypes.c_int64)(of_blocks)


@pytest.fixture(autouse=True)
def of_any_size() -> Iterator[None]:
    """Each test begins with layers of any size being ours."""
    from_work(0)
    yield
    from_work(LEAST, LEAST_OF_BLOCKS)
    emulation.cublaslt().emulated_refuse(0)
    emulation.cublaslt().emulated_break(0)
    function("ptac_lt_plan_clear", None)()


def layer(
    k: int,
    n: int,
    activation: str = "relu",
    *,
    bias: bool = True,
    dtype: torch.dtype = torch.float32,
    device: str = "cuda",
) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(k, n, bias=bias), ACTIVATIONS[activation]())
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p) / k**0.5)
    return net.to(device, dtype)


def block(
    k: int,
    hidden: int,
    n: int,
    activation: str = "relu",
    *,
    bias: bool = True,
    dtype: torch.dtype = torch.float32,
    device: str = "cuda",
) -> nn.Sequential:
    net = nn.Sequential(
        nn.Linear(k, hidden, bias=bias),
        ACTIVATIONS[activation](),
        nn.Linear(hidden, n, bias=bias),
    )
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p) / p.shape[-1] ** 0.5)
    return net.to(device, dtype)


def batch(activation: str) -> tuple[nn.Sequential, Tensor]:
    """A block whose rows can be read in packs, and an input that wants a gradient."""
    net = block(16, 64, 8, activation, dtype=torch.bfloat16)
    x = torch.randn(8, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return net, x


def launched(since: int) -> list[str]:
    """Kernels of ours and products since then."""
    return emulation.launched(since)


def multiplied_by_stock() -> bool:
    return any(n in ("aten::addmm", "aten::mm") for n in emulation.stock_calls())


def step(net: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """Results and gradients, on the CPU."""
    net.zero_grad()
    x = x.detach().requires_grad_()
    y = net(x)
    y.backward(grad.to(y))
    found = {"y": y, "x": x.grad, **{n: p.grad for n, p in net.named_parameters()}}
    return {name: t.detach().cpu() for name, t in found.items() if t is not None}


def hold(
    make: Callable[[], nn.Module],
    draw: Callable[[], Tensor],
    dtype: torch.dtype,
    seeds: int = SEEDS,
) -> None:
    """Level close: beside stock on the device, and float64 of the same numbers."""
    runs: list[list[dict[str, Tensor]]] = [[], [], []]
    for seed in range(seeds):
        torch.default_generator.manual_seed(seed)
        net, x = make().to("cuda", dtype), draw()
        grad = torch.randn(*x.shape[:-1], net(x.cuda().to(dtype)).shape[-1]).to(dtype)
        x = x.to(dtype)
        on_cuda = torch.empty_strided(x.size(), x.stride(), dtype=dtype, device="cuda")
        on_cuda.copy_(x)
        runs[0].append(step(net, on_cuda, grad))
        with ptac.disabled():
            runs[1].append(step(net, on_cuda, grad))
            exact = copy.deepcopy(net).double().cpu()
            runs[2].append(step(exact, x.double(), grad.double()))
    for name in runs[0][0]:
        contract.judge(name, *([r[name] for r in run] for run in runs))


def autocasting(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    return torch.autocast("cuda", dtype, **options)


def casts(calls: list[str] | None = None) -> int:
    """Copies to another dtype among calls, or since the last look."""
    calls = emulation.counted_stock_calls() if calls is None else calls
    return sum(name == "aten::copy_" for name in calls)


def autocast_step_launches(
    net: nn.Module, x: Tensor, n: int
) -> tuple[list[str], list[str]]:
    """Of a step under autocast to n outputs: what is launched, and calls of stock's."""
    grad = torch.ones(len(x), n, device="cuda", dtype=torch.bfloat16)
    emulation.stock_calls()
    since = len(emulation.launches())
    with autocasting():
        y = net(x)
    y.backward(grad)
    return launched(since), emulation.counted_stock_calls()


def step_under_autocast(
    net: nn.Module, x: Tensor, grad: Tensor, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Results and gradients, on the CPU, with backward outside of the block."""
    net.zero_grad()
    x = x.detach().requires_grad_()
    with autocasting(dtype):
        y = net(x)
    y.backward(grad.to(y))
    found = {"y": y, "x": x.grad, **{n: p.grad for n, p in net.named_parameters()}}
    return {name: t.detach().cpu() for name, t in found.items() if t is not None}


def hold_autocast(
    make: Callable[[], nn.Module], draw: Callable[[], Tensor], dtype: torch.dtype
) -> None:
    """Level close under autocast: dtypes are stock's, too."""
    runs: list[list[dict[str, Tensor]]] = [[], [], []]
    for seed in range(contract.SEEDS_OF_LARGE):
        torch.default_generator.manual_seed(seed)
        net, x = make(), draw()
        n = [p.shape[0] for p in net.parameters()][-1]
        grad = torch.randn(*x.shape[:-1], n).to(dtype)
        on_cuda = torch.empty_strided(
            x.size(), x.stride(), dtype=x.dtype, device="cuda"
        ).copy_(x)
        runs[0].append(step_under_autocast(net, on_cuda, grad, dtype))
        with ptac.disabled():
            runs[1].append(step_under_autocast(net, on_cuda, grad, dtype))
            exact = copy.deepcopy(net).double().cpu()
            runs[2].append(step(exact, x.double(), grad.double()))
    for name in runs[0][0]:
        contract.judge(name, *([r[name] for r in run] for run in runs))

"""Blocks of two layers on CUDA that are trained under autocast."""

from __future__ import annotations

import contextlib
import copy
from functools import partial
from typing import Any

import contract
import emulation
import linear_layers
import pytest
import switching
import torch
from linear_layers import (
    ACTIVATIONS,
    BGRADB,
    BIAS,
    DGELU_BGRAD,
    GELU_AUX_BIAS,
    IN_EPILOGUE,
    PLAIN,
    autocast_step_launches,
    autocasting,
    block,
    casts,
    hold_autocast,
    step_under_autocast,
)
from linear_layers import MLP as FORWARD
from linear_layers import MLP_BACKWARD as BACKWARD
from switching import FUSION, hits
from torch import Tensor, nn

import pai_torchacc as ptac

of_any_size = linear_layers.of_any_size

BF16 = torch.bfloat16
LOWER = pytest.mark.parametrize("to", [torch.float16, BF16], ids=str)


def drawn(m: int = 8, k: int = 16) -> Tensor:
    return torch.randn(m, k, device="cuda")


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {
        n: p.grad.cpu() for n, p in net.named_parameters() if p.grad is not None
    }  # fmt: skip


@LOWER
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_training(on: Any, activation: str, bias: bool, to: torch.dtype) -> None:
    forward, backward = hits(FORWARD), hits(BACKWARD)
    hold_autocast(
        lambda: block(13, 24, 19, activation, bias=bias),
        lambda: torch.randn(55, 13),
        to,
    )
    n = contract.SEEDS_OF_LARGE * (bias or activation in IN_EPILOGUE)
    assert (forward.accelerated, backward.accelerated) == (n, n)
    assert emulation.cublaslt().emulated_misuse() is None


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("version", ["", "_backward"])
def test_autocast_leaves_activations_alone(activation: str, version: str) -> None:
    """What lies between the layers is of the dtype that a layer gives."""
    name = {"gelu tanh": "gelu", "relu": ("relu", "threshold")[bool(version)]}.get(
        activation, activation
    )
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has("aten::linear", "AutocastCUDA")
    assert not has(f"aten::{name}{version}", "AutocastCUDA")


def test_a_step_launches_less(on: Any) -> None:
    """And makes stock's casts, on the way there and back."""
    net, x = block(16, 64, 8, "gelu tanh"), drawn()
    launches = partial(autocast_step_launches, net, x, 8)
    launches()  # gradients are there to be added to
    ours, others = launches()
    with ptac.disabled():
        none, stock = launches()
    assert not none
    assert ours == [GELU_AUX_BIAS, BIAS, DGELU_BGRAD, BGRADB, PLAIN]
    assert casts(others) == casts(stock) == 9
    rest = [n for n in stock if n in linear_layers.LAUNCHES]
    assert len(rest) == 9  # without the gradient of x
    assert not linear_layers.LAUNCHES & set(others)


@pytest.mark.parametrize("ours_first", [True, False])
def test_casts(on: Any, ours_first: bool) -> None:
    """Once in a block of autocast, whoever goes first, for layers as for blocks."""
    net, x, counted = block(16, 64, 8), drawn(), hits(FORWARD)
    orders = (contextlib.nullcontext, ptac.disabled)
    with autocasting():
        for context, n in zip(
            orders if ours_first else orders[::-1], (5, 1), strict=True
        ):
            emulation.stock_calls()
            with context():
                net(x)
            assert casts() == n
        with torch.no_grad():  # by linear_act and a layer
            net(x)
        assert casts() == 1
    assert counted.accelerated == 1


@pytest.mark.parametrize("kind", ["layer", "all"])
def test_shared_weights(on: Any, kind: str) -> None:
    """Gradients meet at the cast, in 16 bits, as stock's do."""
    first = block(16, 64, 16, "gelu tanh")
    second = first if kind == "all" else block(16, 64, 16, "gelu tanh")
    second[0] = first[0]
    net, grad = nn.Sequential(nn.Sequential(*first), nn.Sequential(*second)), drawn()
    counted, x = hits(BACKWARD), drawn()
    found = step_under_autocast(net, x, grad, BF16)
    assert counted.accelerated == 2
    with ptac.disabled():
        expected = step_under_autocast(net, x, grad, BF16)
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, rtol=0.05, atol=0.05)


@LOWER
def test_a_scaled_loop(on: Any, to: torch.dtype) -> None:
    """As with GradScaler: a batch that overflows is left out, by stock and by us."""
    torch.manual_seed(0)
    scale = 256.0
    start, xs = block(16, 64, 8, "gelu"), [drawn() for _ in range(4)]
    xs[2] = xs[2] * torch.inf

    def trained() -> dict[str, Tensor]:
        net = copy.deepcopy(start)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in xs:
            optimizer.zero_grad()
            with autocasting(to):
                loss = net(x).float().square().mean()
            (loss * scale).backward()
            grads = [p.grad for p in net.parameters()]
            assert all(g.dtype == torch.float32 for g in grads)
            if all(g.isfinite().all() for g in grads):
                for g in grads:
                    g.div_(scale)
                optimizer.step()
        return {n: p.detach().cpu() for n, p in net.named_parameters()}

    counted = hits(BACKWARD)
    found = trained()
    assert counted.accelerated == len(xs)
    with ptac.disabled():
        expected = trained()
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, rtol=2e-2, atol=2e-3)


def test_modes_of_autocast(on: Any) -> None:
    """Off within on, on within off, without its cache, by a function's decorator."""
    net, x, counted = block(16, 64, 8), drawn(), hits(FORWARD)
    with autocasting():
        with autocasting(enabled=False):
            assert net(x).dtype == torch.float32
            with autocasting(torch.float16):
                assert net(x).dtype == torch.float16
        assert net(x).dtype == BF16
    with autocasting(cache_enabled=False):
        for _ in range(2):
            emulation.stock_calls()
            net(x)
            assert casts() == 5
    assert torch.autocast("cuda", dtype=BF16)(net.forward)(x).dtype == BF16
    assert counted.accelerated == 6
    assert counted.forwarded == {}


def test_backward_within_autocast(on: Any) -> None:
    """Gradients that the block would cast are stock's, others ours."""
    net, x, backward = block(16, 64, 8), drawn(), hits(BACKWARD)

    def found(outer: torch.dtype, inner: torch.dtype | None) -> dict[str, Tensor]:
        net.zero_grad()
        with autocasting(inner or BF16, enabled=inner is not None):
            loss = net(x).square().sum()
        with autocasting(outer):
            loss.backward()
        return gradients(net)

    cases = ((BF16, BF16, {}), (torch.float16, BF16, {"autocast": 1}),
             (BF16, None, {"autocast": 1}))  # fmt: skip
    for outer, inner, forwarded in cases:
        backward = hits(BACKWARD)
        ours = found(outer, inner)
        assert backward.forwarded == forwarded
        assert backward.accelerated == (not forwarded)
        with ptac.disabled():
            stock = found(outer, inner)
        for name, t in stock.items():
            torch.testing.assert_close(ours[name], t, rtol=0.05, atol=0.2)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(on: Any, reentrant: bool) -> None:
    """The recomputation is under the same autocast; hooks leave it to stock."""
    net, x = block(16, 64, 8, "gelu tanh"), drawn().requires_grad_()

    def found() -> dict[str, Tensor]:
        net.zero_grad()
        x.grad = None
        with autocasting():
            y = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=reentrant)
        y.float().sum().backward()
        assert x.grad is not None
        return {"x": x.grad.cpu(), **gradients(net)}

    counted = hits(FORWARD)
    ours = found()
    assert counted.accelerated == reentrant
    with ptac.disabled():
        stock = found()
    for name, t in stock.items():
        torch.testing.assert_close(ours[name], t, rtol=0.05, atol=0.05)


def test_hooks_leave_it_to_stock_before_a_cast(on: Any) -> None:
    net, x, counted = block(16, 64, 8), drawn(), hits(FORWARD)
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda t: t.cpu(), lambda t: t.cuda()), autocasting():
        emulation.stock_calls()
        net(x)
        assert casts() == 5
    assert counted.forwarded == {"hooks": 1}


def test_after_no_grad_in_the_same_block(on: Any) -> None:
    """Autocast keeps casts that have no gradient, and stock trains nothing then."""
    net, x = block(16, 64, 8), drawn().requires_grad_()

    def found() -> dict[str, Tensor]:
        net.zero_grad()
        x.grad = None
        with autocasting():
            with torch.no_grad():
                net(x)
            net(x).float().sum().backward()
        assert x.grad is not None
        return {"x": x.grad.cpu(), **gradients(net)}

    ours = found()
    with ptac.disabled():
        stock = found()
    assert ours.keys() == stock.keys()
    for name, t in stock.items():
        torch.testing.assert_close(ours[name], t, rtol=0.05, atol=0.05)


def test_second_derivatives(on: Any) -> None:
    net, x = block(16, 64, 8, "gelu"), drawn().requires_grad_()

    def second() -> list[Tensor]:
        inputs = [x, *net.parameters()]
        with autocasting():
            y = net(x)
        first = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)[0]
        found = torch.autograd.grad(first.square().sum(), inputs, allow_unused=True)
        return [t.cpu() for t in found if t is not None]

    counted = hits(FORWARD)
    ours = second()
    assert counted.accelerated == 1
    with ptac.disabled():
        stock = second()
    for a, b in zip(ours, stock, strict=True):
        assert a.dtype == b.dtype
        assert (a - b).norm() <= 0.03 * b.norm()


def test_float64_is_stocks(on: Any) -> None:
    net, x, counted = block(16, 64, 8).double(), drawn().double(), hits(FORWARD)
    with autocasting():
        assert net(x).dtype == torch.float64
    assert counted.forwarded == {"dtype": 1}


WITHOUT_ITS_FUNCTION = """
import emulation
emulation.load()
import torch
import linear_layers, pai_torchacc as ptac
from switching import hits

emulation.give_machine_code()
linear_layers.from_work(0)
with ptac.enable("operator_fusion"), linear_layers.autocasting():
    counted = hits("mlp")
    y = linear_layers.block(16, 64, 8)(torch.randn(8, 16, device="cuda"))
    assert y.dtype == torch.bfloat16
    print(counted.accelerated, counted.forwarded)
"""


@pytest.mark.parametrize("hidden", ["autocast_cast", "autocast_dtype"])
def test_a_torch_that_lends_no_casts(hidden: str) -> None:
    emulation.load().emulated_bytes()  # a device is not emulated in a child
    hide = {"PTAC_HIDE_SYMBOLS": hidden}
    said = switching.python(WITHOUT_ITS_FUNCTION, fresh=True, **hide)
    assert said.strip() == "0 {'autocast': 1}"


def test_switching_and_copies(on: Any) -> None:
    """Modules are as they were; a graph is walked through after a switch."""
    net, x = block(16, 64, 8), drawn()
    with autocasting():
        losses = [n(x).float().sum() for n in (net, copy.deepcopy(net))]
    ptac.disable(FUSION)
    losses[1].backward()
    ptac.enable(FUSION)
    counted = hits(BACKWARD)
    losses[0].backward()
    assert counted.accelerated == 1
    assert all(p.dtype == torch.float32 for p in net.parameters())


def test_transformer_layers(on: Any) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).cuda()
    x, grad = torch.randn(2, 5, 16, device="cuda"), torch.randn(2, 5, 16)
    counted = hits(BACKWARD)
    found = step_under_autocast(layer, x, grad, BF16)
    assert counted.accelerated == 1
    with ptac.disabled():
        expected = step_under_autocast(layer, x, grad, BF16)
    for name, t in expected.items():
        assert found[name].dtype == t.dtype
        assert (found[name] - t).norm() <= 0.02 * t.norm()


def test_checks(on: Any) -> None:
    """Stock repeats forward and backward on what was cast."""
    with ptac.enable(FUSION, verify=1):
        net, x = block(16, 64, 8, "gelu"), drawn()
        forward, backward = hits(FORWARD), hits(BACKWARD)
        for _ in range(2):
            with autocasting():
                net(x).sum().backward()
        assert (forward.accelerated, backward.accelerated) == (2, 2)


def test_verify(on: Any) -> None:
    """verify() of a module that autocasts itself."""

    class Autocasting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = block(16, 64, 8)

        def forward(self, x: Tensor) -> Tensor:
            with autocasting(enabled=x.dtype != torch.float64):
                return self.net(x)

    counted = hits(FORWARD)
    result = ptac.verify(Autocasting(), drawn())
    assert counted.accelerated > 0
    assert result, str(result)

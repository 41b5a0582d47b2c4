"""Sums, gates, norms and convolutions by name, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from switching import FUSION, Hits, accelerated, hits
from torch import Tensor
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac
from pai_torchacc import _C, ops

Call = Callable[..., Tensor]
SIZES = {
    "gated_act": ((4, 5, 64), (4, 5, 64)),
    "add_act": ((4, 5, 64), (4, 5, 64)),
    "bias_act": ((4, 5, 64), (64,)),
    "add_norm": ((4, 5, 64), (4, 5, 64), (64,), (64,)),
    "rms": ((4, 5, 64), (4, 5, 64), (64,)),
    "dropout_add": ((4, 5, 64), (4, 5, 64)),
}
OURS: dict[str, Call] = {
    "gated_act": ops.swiglu,
    "add_act": ops.add_act,
    "bias_act": ops.bias_gelu,
    "add_norm": lambda x, r, w, b: ops.add_norm(x, r, 64, w, b)[0],
    "rms": lambda x, r, w: ops.add_norm(x, r, 64, w, eps=None, norm="rms_norm")[0],
    "dropout_add": ops.dropout_add,
}
STOCK: dict[str, Call] = {
    "gated_act": lambda a, b: F.silu(a) * b,
    "add_act": lambda a, b: F.relu(a + b),
    "bias_act": lambda a, b: F.gelu(a + b),
    "add_norm": lambda x, r, w, b: F.layer_norm(x + r, (64,), w, b),
    "rms": lambda x, r, w: F.rms_norm(x + r, (64,), w),
    "dropout_add": lambda x, r: F.dropout(x) + r,
}
ACTIVATIONS = ops.ACTIVATIONS[1:]
DRAWS_NOTHING = [name for name in OURS if name != "dropout_add"]


def operator(name: str) -> str:
    return "add_norm" if name == "rms" else name


def gradient(name: str) -> str:
    forward = operator(name)
    return "dropout_backward" if forward == "dropout_add" else f"{forward}_backward"


def inputs(name: str, requires_grad: bool = True, **options: Any) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s, **options, requires_grad=requires_grad) for s in SIZES[name]]


@pytest.fixture(params=["off", "on"])
def is_on(request: pytest.FixtureRequest) -> Iterator[bool]:
    ops_of = {f(name) for name in OURS for f in (operator, gradient)} | {"conv2d"}
    with accelerated(*ops_of) if request.param == "on" else nullcontext():
        yield request.param == "on"


def both(name: str) -> tuple[Hits, Hits]:
    return hits(operator(name)), hits(gradient(name))


@pytest.mark.parametrize("name", OURS)
def test_values_and_gradients(name: str, is_on: bool) -> None:
    x, grad = inputs(name), torch.randn(4, 5, 64)
    counted = both(name)
    torch.manual_seed(1)
    ours = OURS[name](*x)
    found = torch.autograd.grad(ours, x, grad)
    assert [c.accelerated for c in counted] == [int(is_on)] * 2
    with ptac.disabled():
        torch.manual_seed(1)
        stock = STOCK[name](*x)
        expected = torch.autograd.grad(stock, x, grad)
    exactly = {"rtol": 0, "atol": 0} if name in ("dropout_add", "add_act") else {}
    torch.testing.assert_close(ours, stock, **exactly)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OURS)
def test_without_a_gradient(name: str, is_on: bool) -> None:
    x, counted = inputs(name), both(name)
    with torch.no_grad():
        torch.manual_seed(1)
        ours = OURS[name](*x)
        assert [c.accelerated for c in counted] == [int(is_on), 0]
        torch.manual_seed(1)
        with ptac.disabled():
            torch.testing.assert_close(ours, STOCK[name](*x))
    with torch.inference_mode():
        assert OURS[name](*x).is_inference()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("op", ["gated_act", "add_act", "bias_act"])
def test_every_activation(op: str, activation: str, is_on: bool) -> None:
    x, grad = inputs(op), torch.randn(4, 5, 64)
    with torch.no_grad():
        x[0][0, 0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 0])
        x[1].view(-1)[:4] = torch.tensor([1.0, 1, 1, 0])
    function = getattr(F, activation.removesuffix("_tanh"))
    how = {"approximate": "tanh"} if activation == "gelu_tanh" else {}

    def stock(a: Tensor, b: Tensor) -> Tensor:
        if op == "gated_act":
            return function(a, **how) * b
        z: Tensor = function(a + b, **how)
        return z

    ours = getattr(ops, op)(*x, activation)
    with ptac.disabled():
        theirs = stock(*x)
    found, expected = (torch.autograd.grad(y, x, grad) for y in (ours, theirs))
    # Of infinities GELU is what its limits are, not oneDNN's NaN: see bias_act.h.
    ordinary = theirs.isfinite() & ours.isfinite()
    assert ordinary.sum() >= ordinary.numel() - 3
    torch.testing.assert_close(ours[ordinary], theirs[ordinary])
    rest = ordinary & expected[0].isfinite() & found[0].isfinite()
    assert rest.sum() >= rest.numel() - 3
    torch.testing.assert_close(found[0][rest], expected[0][rest], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DRAWS_NOTHING)
def test_differentiated_twice(name: str, is_on: bool) -> None:
    small = [t[..., :6] if t.dim() == 1 else t[:2, :1, :6] for t in inputs(name, False)]
    x = [t.double().requires_grad_() for t in small]

    def call(*args: Tensor) -> Tensor:
        if name in ("add_norm", "rms"):
            norm = {"norm": "rms_norm"} if name == "rms" else {}
            return ops.add_norm(*args[:2], 6, *args[2:], **norm)[0]
        return OURS[name](*args)

    assert torch.autograd.gradcheck(call, x)
    assert torch.autograd.gradgradcheck(call, x)
    # And in float32, where a row has computed forward.
    x = inputs(name)
    curvatures = []
    for f in (OURS[name], STOCK[name]):
        first = torch.autograd.grad(f(*x).pow(3).sum(), x[0], create_graph=True)
        curvatures.append(torch.autograd.grad(first[0].pow(2).sum(), x))
    torch.testing.assert_close(*curvatures, rtol=1e-3, atol=1e-2)


CHECKED: dict[str, Callable[[], tuple[Any, ...]]] = {
    "gated_act": lambda: (*inputs("gated_act"), 4),
    "add_act": lambda: (*inputs("add_act"), 1),
    "bias_act": lambda: (*inputs("bias_act"), 2),
    "add_norm": lambda: with_options(*inputs("add_norm")),
    "dropout_add": lambda: (*inputs("dropout_add"), 0.0),
}


def with_options(x: Tensor, residual: Tensor, *weights: Tensor) -> tuple[Any, ...]:
    return x, residual, 1, *weights, 1e-5, False


@pytest.mark.parametrize("op", CHECKED)
def test_proper_operators(op: str, is_on: bool) -> None:
    opcheck(getattr(torch.ops.pai_torchacc, op).default, CHECKED[op]())


def test_rms_norm_is_a_proper_operator(is_on: bool) -> None:
    x, residual, weight = inputs("rms")
    args = x, residual, 1, weight, None, 1e-6, True
    opcheck(torch.ops.pai_torchacc.add_norm.default, args)


@pytest.mark.parametrize("op", CHECKED)
def test_kernels_in_the_dispatcher(op: str) -> None:
    """They are served below autograd, which has their gradients."""
    args = CHECKED[op]()
    if op == "dropout_add":
        args = (*args[:2], 0.25)
    with accelerated(op), torch.no_grad():
        counted = hits(op)
        getattr(torch.ops.pai_torchacc, op)(*args)
        assert counted.accelerated == 1


@pytest.mark.parametrize("name", DRAWS_NOTHING)
def test_compiles_whole(name: str, is_on: bool) -> None:
    x = inputs(name)
    compiled = torch.compile(OURS[name], fullgraph=True, backend="aot_eager")
    found = compiled(*x)
    torch.testing.assert_close(found, STOCK[name](*x))
    grads = [torch.autograd.grad(y.sum(), x) for y in (found, STOCK[name](*x))]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DRAWS_NOTHING)
def test_transforms(name: str, is_on: bool) -> None:
    x = inputs(name, False)
    in_dims = tuple(0 if t.dim() == 3 else None for t in x)
    mapped, expected = (
        torch.vmap(torch.func.grad(lambda *a, f=f: f(*a).sin().sum()), in_dims)(*x)
        for f in (OURS[name], STOCK[name])
    )
    torch.testing.assert_close(mapped, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OURS)
def test_under_autocast(name: str, is_on: bool) -> None:
    x = inputs(name)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(1)
        ours = OURS[name](*x)
        with ptac.disabled():
            torch.manual_seed(1)
            stock = STOCK[name](*x)
    torch.testing.assert_close(ours, stock, rtol=0, atol=0)


@pytest.mark.parametrize("name", OURS)
def test_recomputed_when_the_switch_is_off(name: str) -> None:
    """Checkpoints compare what is saved: with a switch in between it is the same."""
    x = inputs(name)
    with accelerated(operator(name)) as handle:
        counted = hits(operator(name))
        y = checkpoint(OURS[name], *x, use_reentrant=False)
        assert counted.forwarded == {"hooks": 1}
        handle.disable()
        y.sum().backward()
    assert x[0].grad is not None


@pytest.mark.parametrize("name", OURS)
def test_what_is_left_to_torch(name: str) -> None:
    """Other layouts and dtypes; the results are stock's own."""
    x = inputs(name, False)
    turned = [t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else t
              for t in x]  # fmt: skip
    with accelerated(operator(name)):
        counted = hits(operator(name))
        for args in (turned, [t.double() for t in x]):
            torch.manual_seed(1)
            ours = OURS[name](*args)
            torch.manual_seed(1)
            assert torch.equal(ours, STOCK[name](*args))
            assert ours.stride() == STOCK[name](*args).stride()
    assert counted.accelerated == 0
    assert set(counted.forwarded) == {"layout", "dtype"}


@pytest.mark.parametrize("name", ["gated_act", "bias_act", "add_norm", "rms"])
def test_changed_before_backward(name: str) -> None:
    x = inputs(name)
    with accelerated(operator(name)):
        leaf = x[0] * 1
        y = OURS[name](leaf, *x[1:])
        saved = leaf
        if operator(name) == "add_norm":
            y, saved = ops.add_norm(*x[:2], 64)
        with torch.no_grad():
            saved.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_verified(caplog: pytest.LogCaptureFixture) -> None:
    with accelerated(*{operator(n) for n in DRAWS_NOTHING}, verify=1):
        counted = {name: hits(operator(name)) for name in DRAWS_NOTHING}
        for name in DRAWS_NOTHING:
            OURS[name](*inputs(name)).sum().backward()
        assert all(c.accelerated and not c.failed for c in counted.values())
        assert not any(bad for *_, rows in _C.operators() for *_, bad in rows)
    assert not caplog.records


CONVOLUTIONS = {
    "image": ((2, 4, 12, 12), (8, 4, 3, 3), {"padding": 1}),
    "strided": ((2, 4, 13, 12), (8, 2, 3, 3), {"stride": (2, 1), "groups": 2}),
    "depthwise": ((2, 16, 12, 12), (16, 1, 3, 3), {"padding": (1, 1), "groups": 16}),
    "sequence": ((2, 4, 30), (8, 4, 3), {"dilation": 2}),
    "volume": ((1, 2, 6, 7, 8), (4, 2, 3, 3, 3), {"padding": [1, 0, 1]}),
    "one image": ((4, 12, 12), (8, 4, 3, 3), {}),
    "same": ((2, 4, 12, 12), (8, 4, 3, 3), {"padding": "same"}),
}
BY_DIMS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}


def conv_inputs(kind: str, **options: Any) -> tuple[list[Tensor], dict[str, Any]]:
    torch.manual_seed(0)
    size, weight, how = CONVOLUTIONS[kind]
    return [torch.randn(s, **options) for s in (size, weight, weight[:1])], how


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "sigmoid"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("is_trained", [False, True])
def test_conv_act(kind: str, activation: str, is_trained: bool, is_on: bool) -> None:
    args, how = conv_inputs(kind, requires_grad=is_trained)
    conv = BY_DIMS[args[1].dim()]
    act = getattr(F, activation) if activation != "none" else unchanged
    counted = hits("conv2d")
    ours = ops.conv_act(*args, **how, activation=activation)
    took = counted.accelerated
    with ptac.disabled():
        stock = act(conv(*args, **how))
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)
    if kind == "image":
        assert took == int(is_on)
    if is_trained:
        grads = [torch.autograd.grad(y.sin().sum(), args) for y in (ours, stock)]
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


def unchanged(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("kind", ["image", "strided", "sequence", "volume"])
def test_conv_act_is_a_proper_operator(kind: str, activation: str, is_on: bool) -> None:
    args, how = conv_inputs(kind, requires_grad=True)
    n = args[1].dim() - 2
    sizes = [
        [v] * n if isinstance(v, int) else list(v)
        for v in (how.get(k, d) for k, d in DEFAULTS.items())
    ]
    rest = *sizes, how.get("groups", 1), ops.ACTIVATIONS.index(activation)
    opcheck(torch.ops.pai_torchacc.conv_act.default, (*args, *rest))


DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1}


def test_conv_act_compiles_and_differentiates() -> None:
    args, how = conv_inputs("image", requires_grad=True)
    compiled = torch.compile(ops.conv_act, fullgraph=True, backend="aot_eager")
    with accelerated("conv2d"), torch.no_grad():
        counted = hits("conv2d")
        found = compiled(*args, **how)
        assert counted.accelerated == 1
    torch.testing.assert_close(found, F.relu(F.conv2d(*args, **how)))
    doubles = [t[:1, :2, :4, :4].double() if t.dim() > 1 else t.double() for t in args]
    doubles[1] = args[1][:2, :2].double()
    doubles[2] = args[2][:2].double()
    leaves = [t.detach().requires_grad_() for t in doubles]

    def by_name(*given: Tensor) -> Tensor:
        y: Tensor = torch.ops.pai_torchacc.conv_act(
            *given, [1, 1], [1, 1], [1, 1], 1, ops.ACTIVATIONS.index("gelu")
        )[0]
        return y

    assert torch.autograd.gradcheck(by_name, leaves)
    assert torch.autograd.gradgradcheck(by_name, leaves)


class Module(torch.nn.Module):
    def __init__(self, how: dict[str, Any]) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return ops.conv_act(x, w, activation="gelu", **self.how)


def test_conv_act_is_exported_as_it_is() -> None:
    """Where torch is given other numbers than Python's, it is torch's operators."""
    (x, w, _), how = conv_inputs("image")
    kept = torch.export.export(Module(how), (x, w))
    called = [str(n.target) for n in kept.graph.nodes if n.op == "call_function"]
    assert "pai_torchacc.conv_act.default" in called
    torch.testing.assert_close(kept.module()(x, w), F.gelu(F.conv2d(x, w, padding=1)))
    y = ops.conv_act(x, w, padding=np.int64(1), activation="gelu")
    torch.testing.assert_close(y, F.gelu(F.conv2d(x, w, padding=1)))


def test_biases_of_one_dimension_and_more(is_on: bool) -> None:
    x, b = (torch.randn(6, requires_grad=True) for _ in range(2))
    y = ops.bias_gelu(x, b)
    (of_x,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    found = torch.autograd.grad(of_x.sin().sum(), (x, b))
    (of_x,) = torch.autograd.grad(F.gelu(x + b).pow(2).sum(), x, create_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(of_x.sin().sum(), (x, b)))
    operator = torch.ops.pai_torchacc.bias_act
    for sizes in ((6,), (1, 6), (3, 6)):
        x, b = (
            torch.randn(3, 6, requires_grad=True),
            torch.randn(sizes).requires_grad_(),
        )
        found, expected = (
            torch.autograd.grad(y.sum(), (x, b))
            for y in (operator(x, b, RELU), F.relu(x + b))
        )
        torch.testing.assert_close(found, expected)


RELU = ops.ACTIVATIONS.index("relu")


def test_a_sum_wants_no_more_gradients_than_torchs(is_on: bool) -> None:
    x, r, w, b = inputs("add_norm")
    with torch.no_grad():
        x, r = x.clone(), r.clone()
    y, total = ops.add_norm(x, r, 64, w, b)
    below = torch.ops.pai_torchacc.add_norm(x, r, 1, w, b, 1e-5, False)
    assert y.requires_grad
    assert below[0].requires_grad
    assert not total.requires_grad
    assert not below[1].requires_grad
    grads = [torch.autograd.grad(v.sin().sum(), (w, b)) for v in (y, below[0])]
    torch.testing.assert_close(*grads)


def test_one_image_and_its_gradient_by_the_operator() -> None:
    args, _ = conv_inputs("one image", requires_grad=True)
    options = [1, 1], [0, 0], [1, 1], 1, RELU
    y, _ = torch.ops.pai_torchacc.conv_act(*args, *options)
    expected = F.relu(F.conv2d(*args))
    found = [torch.autograd.grad(v.sin().sum(), args) for v in (y, expected)]
    torch.testing.assert_close(*found)


def test_dropping_nothing_draws_nothing(is_on: bool) -> None:
    x, r = inputs("dropout_add", False)
    for call in (ops.dropout_add, torch.ops.pai_torchacc.dropout_add):
        for p in (0.0, 1.0):
            state = torch.get_rng_state()
            y = call(x, r, p)
            y = y[0] if isinstance(y, tuple) else y
            assert torch.equal(y, F.dropout(x, p) + r)
            assert torch.equal(torch.get_rng_state(), state)
        with pytest.raises(ValueError, match=r"p=2\.0"):
            call(x, r, 2.0)


def test_wrong_use_of_the_dispatchers() -> None:
    x, w = torch.randn(3, 6), torch.randn(6)
    with accelerated("add_norm"):
        with pytest.raises(RuntimeError):
            ops.add_norm(x, x, 6, torch.empty(0))
        with pytest.raises(ValueError, match="no bias"):
            torch.ops.pai_torchacc.add_norm(x, x, 1, w, w, 1e-5, True)
    for op in ("gated_act", "add_act", "bias_act"):
        for code in (-1, 0, len(ops.ACTIVATIONS)):
            with pytest.raises(ValueError, match="they are 1 to 6"):
                getattr(torch.ops.pai_torchacc, op)(
                    x, w if op == "bias_act" else x, code
                )


def test_wrong_use() -> None:
    x, w = torch.randn(2, 4, 12, 12), torch.randn(8, 4, 3, 3)
    with pytest.raises(ValueError, match="there are: relu"):
        ops.gated_act(x, x, "none")
    with pytest.raises(ValueError, match="there are: none, relu"):
        ops.conv_act(x, w, activation="swish")
    with pytest.raises(ValueError, match="3 to 5 dimensions"):
        ops.conv_act(x, w[0, 0])
    with pytest.raises(ValueError, match="approximate='erf'"):
        ops.bias_gelu(x, x[0, 0, 0], "erf")
    for bias in (x[0, 0, 0, :5], x[0], torch.ones(())):
        with pytest.raises(ValueError, match="bias of sizes"):
            ops.bias_gelu(x, bias)
    with ptac.enable(FUSION):
        for bad in ({"stride": 0}, {"padding": -1}, {"dilation": 0}, {"groups": 3},
                    {"stride": 1 << 70}):  # fmt: skip
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                ops.conv_act(x, w, **bad)
        for args in ((x, w[:, :3]), (x, w, w[:3, 0, 0, 0])):
            with pytest.raises(RuntimeError):
                ops.conv_act(*args)

"""nn.Linear, alone and with its activation in nn.Sequential, at level close."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from layers import OPS, linear, off_and_on, pair, run
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
HAS_TF32 = torch.cpu.get_capabilities().get("amx_fp16", True)
SIZES = [(64, 33, 17), (40, 30, 50), (130, 64, 256)]


class Tagged(Tensor):
    pass


@lru_cache(2)
def layer_case(
    size: tuple[int, int, int],
    activation: Callable[[], nn.Module],
    bias: bool,
    lead: tuple[int, ...] = (),
) -> contract.Case:
    m, k, n = size

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        net = nn.Sequential(nn.Linear(k, n, bias=bias), activation())
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn_like(p))
        net.to(dtype)
        x = contract.draw(*lead, m, k, dtype=dtype).requires_grad_()
        y = net(x)
        y.backward(contract.draw(*lead, m, n, dtype=dtype))
        grads = {name: p.grad for name, p in net.named_parameters()}
        return {"y": y, "x": x.grad, **grads}

    return case


@pytest.mark.parametrize("row", switching.runnable_rows("linear_act"))
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_contract(
    activation: str, size: tuple[int, int, int], bias: bool, row: str
) -> None:
    with switching.accelerated(*OPS, row=row):
        hits, back = (switching.hits(op) for op in OPS)
        contract.hold(layer_case(size, ACTIVATIONS[activation], bias))
        if row == "blas" or size[0] > 64:
            assert hits.accelerated >= 1
        assert back.accelerated == hits.accelerated


@pytest.mark.parametrize("lead", [(3,), (2, 5)], ids=str)
def test_more_dimensions(lead: tuple[int, ...]) -> None:
    with switching.accelerated(*OPS, row="blas"):
        hits = switching.hits(OPS[1])
        contract.hold(layer_case((16, 32, 40), nn.GELU, True, lead))
        assert hits.accelerated >= 1


def test_plain() -> None:
    off_and_on(lambda: run(pair()), 1)


@pytest.mark.parametrize("which", range(8))
def test_gradients_of_some_only(which: int) -> None:
    def program() -> Any:
        net = pair()
        torch.manual_seed(1)
        x = torch.randn(40, 20, requires_grad=bool(which & 1))
        net[0].weight.requires_grad_(bool(which & 2))
        net[0].bias.requires_grad_(bool(which & 4))
        return run(net, x)

    off_and_on(program, 1)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: (torch.randn(4, 20).double(), torch.float64), "dtype"),
        (lambda: (torch.randn(4, 20).bfloat16(), torch.bfloat16), "dtype"),
        (lambda: (torch.randn(20), None), "shape"),
        (lambda: (torch.randn(40, 40)[:, ::2], None), "layout"),
        (lambda: (torch.randn(4, 21), None), "argument"),
        (lambda: (torch.randn(4, 20).as_subclass(Tagged), None), "tensor subclass"),
    ],
)
def test_is_forwarded_with_its_reason(make: Any, reason: str) -> None:
    x, dtype = make()
    net = pair().to(dtype) if dtype else pair()

    def program() -> Any:
        try:
            return net(x).detach()
        except RuntimeError as error:
            return str(error)

    stock = program()
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        ours = program()
        assert hits.accelerated == 0
        assert hits.forwarded == {reason: 1}
    contract.exactly(ours, stock)


@pytest.mark.parametrize(("k", "n"), [(20, 15), (15, 20)])
def test_thin_products_are_forwarded(k: int, n: int) -> None:
    layer, x = nn.Linear(k, n), torch.randn(64, k)
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        layer(x)
        assert hits.forwarded == {"shape": 1}


def transposed(weight: bool) -> Any:
    net = pair()
    if weight:
        net[0].weight = nn.Parameter(torch.randn(20, 30).t())
    torch.manual_seed(1)
    wide = torch.randn(40, 25, requires_grad=True)[:, :20]
    return [run(net, torch.randn(20, 40).t()), run(net, wide)]


def test_transposed_inputs() -> None:
    """Their gradient has their order with stock: only inference is ours."""
    off_and_on(lambda: transposed(weight=False), 1)
    turned = torch.randn(20, 40, requires_grad=True)
    off_and_on(lambda: run(pair(), turned.t()), 0)
    with torch.no_grad():
        off_and_on(lambda: run(pair(), turned.t()), 1)


@pytest.mark.parametrize("verify", [0, 1])
def test_transposed_weights(verify: int) -> None:
    """Their gradient has their order with stock: only inference is ours."""
    x, w = torch.randn(40, 20), torch.randn(20, 30).t()
    off_and_on(lambda: transposed(weight=True), 0)
    with torch.no_grad():
        off_and_on(lambda: linear(x, w), 1, verify=verify)


@pytest.mark.parametrize("m", [32, 64, 100])
@pytest.mark.parametrize("activation", ["none", *ACTIVATIONS])
@pytest.mark.parametrize("row", switching.runnable_rows("linear_act"))
def test_numbers_that_are_none(row: str, activation: str, m: int) -> None:
    """NaN and infinity go on as with stock, whatever pieces the product has."""
    torch.manual_seed(0)
    layers = [nn.Linear(48, 64)]
    if activation != "none":
        layers.append(ACTIVATIONS[activation]())
    net, x = nn.Sequential(*layers), torch.randn(m, 48)
    x[7, 3] = torch.nan
    if activation != "gelu":  # of +inf oneDNN makes NaN and we, as stock's other, +inf
        x[11, 3], x[13, 3] = torch.inf, -torch.inf

    def program() -> Any:
        with torch.no_grad():
            y = net(x)
        return [y, *run(net, x.clone().requires_grad_())]

    stock = program()
    with switching.accelerated(*OPS, row=row):
        hits, back = (switching.hits(op) for op in OPS)
        ours = program()
        assert (hits.accelerated, back.accelerated) == (2, 1)
    assert stock[0].isnan().any()
    for o, s in zip(ours, stock, strict=True):
        torch.testing.assert_close(o, s, equal_nan=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_double_backward(activation: str) -> None:
    def program() -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 30), ACTIVATIONS[activation]())
        x = torch.randn(40, 20, requires_grad=True)
        (g,) = torch.autograd.grad(net(x).sin().sum(), x, create_graph=True)
        wanted = [x, *net.parameters()]
        second = torch.autograd.grad(g.square().sum(), wanted, allow_unused=True)
        return [g.detach(), *(s for s in second if s is not None)]

    off_and_on(program, 1)


def test_autocast_is_left_alone() -> None:
    def program() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return pair()(torch.ones(40, 20)).detach()

    stock = program()
    assert stock.dtype is torch.bfloat16
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        ours = program()
        assert hits.forwarded.keys() == {"mode or transform active"}
    contract.exactly(ours, stock)


IN_CHILDREN = """
import os, sys, torch
import pai_torchacc as ptac
from pai_torchacc import _C

torch.set_num_threads(1)
net, x = torch.nn.Linear(64, 64), torch.randn(64, 64)
ptac.enable("operator_fusion")
_C.pin("linear_act", "blas")
for setting in sys.argv[1:]:
    if os.fork() == 0:  # torch keeps some of the settings for good
        exec(setting)
        with torch.no_grad():
            net(x)
        served, _, forwarded, *_ = _C.counters("linear_act")
        print(served, forwarded, flush=True)
        os._exit(0)
    os.wait()
"""
NARROW = "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'"
SETTINGS: dict[str, bool] = {  # whether they lower the precision of products here
    "torch.backends.cuda.matmul.allow_tf32 = True": False,
    "torch.backends.cudnn.allow_tf32 = True": False,
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": False,
    "torch.backends.fp32_precision = 'ieee'": False,
    "torch.set_float32_matmul_precision('high')": HAS_TF32,
    "torch.set_float32_matmul_precision('medium')": True,
    "torch.backends.fp32_precision = 'bf16'": True,
    NARROW: True,
    f"{NARROW}; torch.backends.cuda.matmul.fp32_precision = 'ieee'": True,
}


def test_only_the_precision_of_this_cpu_counts() -> None:
    said = switching.python(IN_CHILDREN, *SETTINGS).splitlines()
    expected = {False: "1 {}", True: "0 {'lowered precision': 1}"}
    assert dict(zip(SETTINGS, said, strict=True)) == {
        setting: expected[is_lowered] for setting, is_lowered in SETTINGS.items()
    }


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_onednn_can_be_switched_off() -> None:
    net, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(64, 64)

    def program() -> Any:
        with torch.backends.mkldnn.flags(enabled=False):
            return run(net, x)

    stock = program()
    with switching.accelerated(*OPS, row="onednn"):
        hits, back = (switching.hits(op) for op in OPS)
        torch.testing.assert_close(program(), stock)
        assert (hits.accelerated, back.accelerated) == (0, 0)
        assert hits.forwarded.keys() == {"mode or transform active"}
        y = net(x)
        assert hits.accelerated == 1
        with torch.backends.mkldnn.flags(enabled=False):
            y.sum().backward()
        assert (back.accelerated, back.forwarded) == (
            0,
            {"mode or transform active": 1},
        )
    with switching.accelerated(*OPS, row="blas"):
        hits = switching.hits(OPS[0])
        program()
        assert hits.accelerated == 1


def test_lone_linear() -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(40, 20), torch.randn(30, 20), torch.randn(30)
    layer, other = nn.Linear(20, 30), nn.Bilinear(20, 20, 3)
    calls: list[Callable[[], Tensor]] = [
        lambda: linear(x, w),
        lambda: linear(x, w, b),
        lambda: layer(input=x).detach(),
        lambda: other(x, x).detach(),
    ]
    off_and_on(lambda: [call() for call in calls], 3)


def test_functional_linear_stays_itself() -> None:
    """Handlers of tensor subclasses, made before or after, know it by identity."""
    stock = F.linear
    seen = []

    class Watched(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, *rest: Any) -> Any:
            seen.append(func)
            return super().__torch_function__(func, *rest)

    layer = nn.Linear(20, 30)
    with switching.accelerated(*OPS):
        layer(torch.randn(40, 20).as_subclass(Watched))
        assert F.linear is stock
    assert seen == [stock]
    assert pickle.loads(pickle.dumps(F.linear)) is stock


def test_who_replaces_functional_linear_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, x = nn.Linear(20, 30), torch.randn(40, 20)
    stock = F.linear
    with switching.accelerated(*OPS):
        monkeypatch.setattr(F, "linear", lambda *args: stock(*args) + 1)
        found = layer(x)
    monkeypatch.undo()
    torch.testing.assert_close(found, layer(x) + 1)


@pytest.mark.parametrize("create_graph", [False, True])
def test_setting_data_between_forward_and_backward(create_graph: bool) -> None:
    """The gradient belongs to the weight that forward used, as with stock."""

    def work() -> Any:
        torch.manual_seed(0)
        layer, x = nn.Linear(20, 30), torch.randn(40, 20, requires_grad=True)
        y = layer(x).sin()
        layer.weight.data = torch.zeros(30, 20)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=create_graph)
        assert bool(first.abs().sum() > 0)
        if not create_graph:
            return first
        second = torch.autograd.grad(first.square().sum(), (x, layer.weight))
        return [first.detach(), *second]

    off_and_on(work, 1)


def test_kept_weights_are_freed_with_the_graph() -> None:
    """Whether or not the gradient itself can be differentiated."""
    with switching.accelerated(*OPS):
        for create_graph in (False, True):
            layer = nn.Linear(20, 30)
            y = layer(torch.randn(40, 20, requires_grad=True))
            node = y.grad_fn
            assert node.w_as_it_was is not None
            torch.autograd.grad(
                y.sum(), layer.weight, create_graph=create_graph, retain_graph=False
            )
            assert node.w_as_it_was is None


NEW_DATA: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": lambda t: torch.empty(0),
    "fewer rows": lambda t: t[:2].clone(),
    "fewer columns": lambda t: t[:, :2].clone(),
    "other order": lambda t: t.t().contiguous().t(),
    "gaps": lambda t: t.repeat(1, 2)[:, ::2],
    "one row": lambda t: t[:1].clone().expand(t.shape),
    "a vector": lambda t: t.flatten().clone(),
}


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("what", ["x", "w", "y"])
@pytest.mark.parametrize("new", NEW_DATA)
def test_data_of_other_shapes_between_forward_and_backward(
    new: str, what: str, activation: str
) -> None:
    def program() -> Any:
        torch.manual_seed(0)
        x = torch.randn(40, 20, requires_grad=True)
        net = nn.Sequential(nn.Linear(20, 30), ACTIVATIONS[activation]())
        y = net(x)
        loss = y.sum()
        tensor = {"x": x, "w": net[0].weight, "y": y}[what]
        tensor.data = NEW_DATA[new](tensor.detach())
        try:
            loss.backward()
        except RuntimeError:
            return "an error"
        return [t.grad for t in (x, *net.parameters())]

    stock = program()
    with switching.accelerated(*OPS):
        ours = program()
    if stock != "an error" or ours != "an error":
        torch.testing.assert_close(ours, stock)


def test_many_dimensions() -> None:
    x = torch.randn(2, *[1] * 18, 20)
    off_and_on(lambda: run(pair(), x), 0)


def test_writing_over_the_result() -> None:
    """ReLU's gradient needs the result: stock's own error comes."""
    for activation in (nn.ReLU, nn.Sigmoid, nn.Tanh):
        net = nn.Sequential(nn.Linear(20, 30), activation())
        for accelerate in (False, True):
            with switching.accelerated(*OPS) if accelerate else torch.enable_grad():
                hits = switching.hits(OPS[0])
                y = net(torch.randn(40, 20))
                assert hits.accelerated == int(accelerate)
                with torch.no_grad():
                    y.add_(1)
                with pytest.raises(RuntimeError, match="modified by an inplace"):
                    y.sum().backward()

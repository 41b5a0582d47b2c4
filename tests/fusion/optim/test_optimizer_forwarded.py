"""Optimizer steps that go to stock: counted with their reason, and stock's result."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RMSprop

OPERATOR = {
    SGD: "sgd_step",
    Adam: "adam_step",
    AdamW: "adamw_step",
    Adadelta: "adadelta_step",
    RMSprop: "rmsprop_step",
    Adagrad: "adagrad_step",
    NAdam: "nadam_step",
}
CLASSES = pytest.mark.parametrize("cls", OPERATOR)


class Tagged(Tensor):
    """A tensor of a type that we do not know."""


class MySGD(SGD):
    pass


class MyAdam(Adam):
    pass


class MyAdamW(AdamW):
    pass


class MyAdadelta(Adadelta):
    pass


class MyRMSprop(RMSprop):
    pass


class MyAdagrad(Adagrad):
    pass


class MyNAdam(NAdam):
    pass


MINE = [MySGD, MyAdam, MyAdamW, MyAdadelta, MyRMSprop, MyAdagrad, MyNAdam]


def numbers(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4).to(dtype)


def parameter(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    p = nn.Parameter(numbers(dtype))
    p.grad = numbers(dtype).flip(0)
    return p


def option(**options: Any) -> Callable[[type], Any]:
    return lambda cls: cls([parameter()], **{"lr": 0.1} | options)


def differentiable(cls: type) -> Any:
    p = parameter().detach().requires_grad_()
    clone = p.clone()
    clone.grad = numbers().flip(0)
    return cls([clone], lr=0.1, differentiable=True)


def subclass(cls: type) -> Any:
    (mine,) = (c for c in MINE if c.__base__ is cls)
    return mine([parameter()], lr=0.1)


def meta(cls: type) -> Any:
    p = nn.Parameter(torch.empty(3, device="meta"))
    p.grad = torch.empty(3, device="meta")
    return cls([parameter(), p], lr=0.1)


def tagged(cls: type) -> Any:
    p = numbers().as_subclass(Tagged).requires_grad_()
    p.grad = numbers().as_subclass(Tagged)
    return cls([p], lr=0.1)


def of_dtype(dtype: torch.dtype) -> Callable[[type], Any]:
    return lambda cls: cls([parameter(dtype)], lr=0.1)


def mixed_dtypes(cls: type) -> Any:
    return cls([parameter(), parameter(torch.float64)], lr=0.1)


def tensor_lr(cls: type) -> Any:
    return cls([parameter()], lr=torch.tensor(0.1))


def gaps(cls: type) -> Any:
    p = numbers().repeat(2, 2)[::2].requires_grad_()
    p.grad = torch.ones_like(p)
    return cls([p], lr=0.1)


def other_strides(cls: type) -> Any:
    p = parameter()
    p.grad = numbers().t().contiguous().t()
    return cls([p], lr=0.1)


def expanded_gradient(cls: type) -> Any:
    p = parameter()
    p.grad = torch.ones(()).expand(3, 4)
    return cls([p], lr=0.1)


def with_inference(cls: type) -> Any:
    p = parameter()
    with torch.inference_mode():
        p.grad = numbers() * 2
    return cls([p], lr=0.1)


FORWARDED: dict[str, tuple[Callable[[type], Any], str]] = {
    "differentiable": (differentiable, "differentiable"),
    "optimizer subclass": (subclass, "optimizer subclass"),
    "meta": (meta, "device"),
    "tensor subclass": (tagged, "tensor subclass"),
    "bfloat16": (of_dtype(torch.bfloat16), "dtype"),
    "complex64": (of_dtype(torch.complex64), "dtype"),
    "mixed dtypes": (mixed_dtypes, "dtype"),
    "tensor lr": (tensor_lr, "argument"),
    "gaps": (gaps, "layout"),
    "other strides": (other_strides, "layout"),
    "expanded gradient": (expanded_gradient, "layout"),
}


def stepped(make: Callable[[type], Any], cls: type) -> list[Any]:
    opt = make(cls)
    opt.step()
    opt.step()
    params = [p.detach() for p in opt.param_groups[0]["params"] if not p.is_meta]
    return [params, [opt.state[p] for p in params if p in opt.state]]


@pytest.mark.parametrize("case", FORWARDED)
@CLASSES
def test_is_forwarded_with_its_reason(cls: type, case: str) -> None:
    make, reason = FORWARDED[case]
    op = OPERATOR[cls]
    stock = stepped(make, cls)
    with switching.accelerated(*OPERATOR.values()):
        hits = switching.hits(op)
        ours = stepped(make, cls)
        assert (hits.accelerated, hits.forwarded) == (0, {reason: 2})
    contract.exactly(ours, stock)


@CLASSES
def test_gradients_made_in_inference_mode_are_read(cls: type) -> None:
    stock = stepped(with_inference, cls)
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = stepped(with_inference, cls)
        assert hits.accelerated == 2
    contract.exactly(ours, stock)


@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_capturable_is_torchs_own_error(cls: type) -> None:
    with pytest.raises(AssertionError) as stock:
        stepped(option(capturable=True), cls)
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        with pytest.raises(AssertionError) as ours:
            stepped(option(capturable=True), cls)
        assert hits.forwarded == {"capturable": 1}
    assert str(ours.value) == str(stock.value)


def sparse_steps() -> Tensor:
    torch.manual_seed(5)
    table = nn.Embedding(10, 4, sparse=True)
    opt = SGD(table.parameters(), lr=0.1)
    for _ in range(2):
        opt.zero_grad()
        table(torch.tensor([1, 3, 3])).pow(2).sum().backward()
        opt.step()
    return table.weight


def same_as_stock(
    program: Callable[[], Any], op: str, accelerated: int, forwarded: dict[str, int]
) -> None:
    """The program's results are stock's, and its steps are counted so."""
    stock = program()
    with switching.accelerated(op):
        hits = switching.hits(op)
        ours = program()
        assert (hits.accelerated, hits.forwarded) == (accelerated, forwarded)
    contract.exactly(ours, stock)


def test_sparse_gradients() -> None:
    same_as_stock(sparse_steps, "sgd_step", 0, {"sparse": 2})


@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_sparse_gradients_of_adam_are_torchs_own_error(cls: type) -> None:
    p = nn.Parameter(numbers())
    p.grad = numbers().to_sparse()
    with (
        switching.accelerated(OPERATOR[cls]),
        pytest.raises(RuntimeError, match="does not support sparse gradients"),
    ):
        cls([p]).step()


@CLASSES
def test_one_group_to_stock_the_other_ours(cls: type) -> None:
    """A step is whole even where its groups go different ways."""

    def make(cls: type) -> Any:
        late = {"params": [parameter()], "lr": torch.tensor(0.1)}
        groups = [{"params": [parameter()]}, late]
        return cls(groups, lr=0.1)

    def program() -> list[Any]:
        opt = make(cls)
        opt.step()
        opt.step()
        return [g["params"][0].detach() for g in opt.param_groups]

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        assert (hits.accelerated, hits.forwarded) == (2, {"argument": 2})
    contract.exactly(ours, stock)


@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_tampered_state_is_left_to_stock(cls: type) -> None:
    def program() -> list[Any]:
        p = parameter()
        opt = cls([p], lr=0.1)
        opt.step()
        opt.state[p]["exp_avg"] = opt.state[p]["exp_avg"].double()
        try:
            opt.step()
        except RuntimeError as error:
            return [str(error), opt.state[p]["step"]]
        return [p.detach(), opt.state[p]]

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        assert hits.forwarded == {"optimizer state": 1}
    contract.exactly(ours, stock)


def test_wrapped_by_torch_compile() -> None:
    """Its first use wraps _init_group of every optimizer, ours with it, for good."""
    program = """
import torch, pai_torchacc as ptac, switching
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RMSprop
from torch._dynamo.eval_frame import TorchPatcher

CLASSES = SGD, Adam, AdamW, Adadelta, RMSprop, Adagrad, NAdam

def steps(cls, **options):
    hits = switching.hits(cls.__name__.lower() + "_step")
    p = torch.nn.Parameter(torch.ones(5))
    p.grad = torch.ones(5)
    opt = cls([p], lr=0.1, **options)
    opt.register_step_pre_hook(lambda *_: None)
    opt.step()
    opt.step()
    return hits.accelerated, hits.forwarded

with switching.accelerated():
    TorchPatcher.patch()
    for cls in CLASSES:
        assert steps(cls) == (2, {}), cls
        assert steps(cls, foreach=True) == (2, {}), cls
for cls in CLASSES:
    assert steps(cls) == (0, {}), cls
    assert steps(cls, foreach=True) == (0, {}), cls
for _ in range(2):
    with switching.accelerated():
        for cls in CLASSES:
            assert steps(cls) == (2, {}), cls
            assert steps(cls, foreach=True) == (2, {}), cls
print("whole")
"""
    assert switching.python(program) == "whole\n"


@CLASSES
def test_parameters_without_elements(cls: type) -> None:
    def program() -> list[Any]:
        sizes = ((0,), (3,), (0, 2), ())
        params = [nn.Parameter(torch.ones(size)) for size in sizes]
        opt = cls(params, lr=0.1)
        for _ in range(2):
            for p in params:
                p.grad = torch.ones_like(p)
            opt.step()
        return params

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        assert (hits.accelerated, hits.forwarded) == (2, {})
    contract.exactly(ours, stock)


FUNCTIONS = (
    "sgd.sgd",
    "adam.adam",
    "sgd._single_tensor_sgd",
    "adam._single_tensor_adam",
    "adadelta.adadelta",
    "adadelta._single_tensor_adadelta",
    "rmsprop.rmsprop",
    "adagrad._single_tensor_adagrad",
    "nadam.nadam",
)


def spied(cls: type, module: Any, name: str, *, hooked: bool) -> tuple[int, list[Any]]:
    """How often a function that was patched after ``enable`` is called in two steps."""
    calls: list[str] = []
    original = vars(module)[name]

    def spy(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    opt = option()(cls)
    if hooked:
        opt.register_step_pre_hook(lambda *_: None)
    setattr(module, name, spy)
    try:
        opt.step()
        opt.step()
    finally:
        setattr(module, name, original)
    opt.step()
    return len(calls), [p.detach() for p in opt.param_groups[0]["params"]]


@pytest.mark.parametrize("hooked", [False, True], ids=["short way", "long way"])
@pytest.mark.parametrize("function", [*FUNCTIONS, "adamw.adamw"])
@CLASSES
def test_updates_that_others_patch_later_are_called(
    cls: type, function: str, hooked: bool
) -> None:
    where, _, name = function.partition(".")
    module = sys.modules[f"torch.optim.{where}"]
    stock = spied(cls, module, name, hooked=hooked)
    is_used = function in FUNCTIONS and OPERATOR[cls].startswith(where)
    assert stock[0] == (2 if is_used else 0)
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = spied(cls, module, name, hooked=hooked)
        forwarded = {"overridden by others": 2} if is_used else {}
        assert (hits.accelerated, hits.forwarded) == (1 if is_used else 3, forwarded)
    contract.exactly(ours, stock)


@pytest.mark.parametrize("place", ["instance", "class"])
@CLASSES
def test_ways_of_collecting_that_others_patch_later_are_called(
    cls: type, place: str
) -> None:
    def program() -> Any:
        calls: list[int] = []
        opt = cls([{"params": [parameter()]}, {"params": [parameter()]}], lr=0.1)
        original = cls._init_group  # type: ignore[attr-defined]

        def mine(self: Any, group: Any, *lists: Any) -> Any:
            calls.append(len(group["params"]))
            return original(self, group, *lists)

        with pytest.MonkeyPatch.context() as patch:
            if place == "instance":
                patch.setitem(vars(opt), "_init_group", types.MethodType(mine, opt))
            else:
                patch.setattr(cls, "_init_group", mine)
            opt.step()
        opt.step()
        return calls, [g["params"][0].detach() for g in opt.param_groups]

    stock = program()
    assert stock[0] == [1, 1]
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        assert hits.accelerated == 2
        assert hits.forwarded == {"overridden by others": 2}
    contract.exactly(ours, stock)


ODD_NUMBERS: dict[str, tuple[dict[str, Any], str]] = {
    "first beta 1": ({"betas": (1.0, 0.999)}, "argument"),
    "first beta huge": ({"betas": (1e200, 0.9)}, "argument"),
    "first beta negative": ({"betas": (-1.0, 0.9)}, "argument"),
    "second beta above 1": ({"betas": (0.9, 1.5)}, "argument"),
    "second beta nan": ({"betas": (0.9, float("nan"))}, "argument"),
    "step -1": ({"step": -1}, "optimizer state"),
    "step -2": ({"step": -2}, "optimizer state"),
    "lr that is no float": ({"lr": 1e39}, "argument"),
    "lr whose step is no float": ({"lr": 3e38, "betas": (0.999, 0.999)}, "argument"),
    "lr infinite": ({"lr": float("inf")}, "argument"),
    "eps too long": ({"eps": 1 << 70}, "argument"),
    "weight decay that is no float": ({"weight_decay": -1e200}, "argument"),
}


def edited(cls: type, edit: dict[str, Any]) -> list[Any]:
    """A step, an edit, two steps; what was raised and what was left."""
    opt = option()(cls)
    opt.step()
    (p,) = opt.param_groups[0]["params"]
    errors: list[Any] = []
    for key, value in edit.items():
        if key == "step":
            opt.state[p]["step"].fill_(value)
        else:
            opt.param_groups[0][key] = value
    for _ in range(2):
        try:
            opt.step()
        except (ArithmeticError, RuntimeError) as error:
            errors.append((type(error), str(error)))
    return [errors, p.detach(), opt.state[p]]


@pytest.mark.parametrize("case", ODD_NUMBERS)
@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_numbers_that_torch_may_refuse_are_left_to_it(cls: type, case: str) -> None:
    edit, reason = ODD_NUMBERS[case]
    stock = edited(cls, edit)
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = edited(cls, edit)
        # Stock counts before it refuses: the second step starts from 0.
        n_odd = 1 if case == "step -1" else 2
        assert (hits.accelerated, hits.forwarded) == (3 - n_odd, {reason: n_odd})
    contract.exactly(ours, stock)


@pytest.mark.parametrize("name", ["lr", "momentum", "dampening", "weight_decay"])
def test_numbers_of_sgd_that_torch_refuses(name: str) -> None:
    def program() -> Any:
        opt = SGD([parameter()], lr=0.1, momentum=0.5)
        opt.step()
        opt.param_groups[0] |= {"nesterov": True, name: 1e39}
        with pytest.raises(RuntimeError) as error:
            opt.step()
        return str(error.value), opt.state_dict()["state"]

    same_as_stock(program, "sgd_step", 1, {"argument": 1})


@pytest.mark.parametrize("count", [0.5, 16_777_215, 16_777_216, 3e38])
@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_counts_are_rounded_as_stock_rounds_them(cls: type, count: float) -> None:
    edit = {"step": count, "betas": (1 - 1e-7, 1 - 1e-7)}
    stock = edited(cls, edit)
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = edited(cls, edit)
        assert (hits.accelerated, hits.forwarded) == (3, {})
    contract.exactly(ours, stock)


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_steps_that_are_to_be_compiled_are(cls: type) -> None:
    """PyTorch's recipe; there is a graph break in torch's own step."""

    def program() -> tuple[int, list[Tensor]]:
        graphs = []

        def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
            graphs.append(graph)
            return graph

        torch._dynamo.reset()
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(50, 5)) for _ in range(3)]
        opt = cls(params, lr=0.01)

        def work() -> None:
            opt.step()

        step = torch.compile(work, backend=backend)
        for i in range(3):
            for p in params:
                p.grad = torch.sin(p.detach() + i)
            step()
        return len(graphs), params

    n_graphs, stock = program()
    with switching.accelerated():
        hits = [switching.hits(op) for op in ("sgd_step", "adam_step", "adamw_step")]
        ours = program()
        assert not any(h.accelerated for h in hits)
    assert ours[0] == n_graphs > 0
    for a, b in zip(ours[1], stock, strict=True):
        assert torch.equal(a, b)

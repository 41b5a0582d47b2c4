"""Groups that ask for ``foreach`` or ``fused`` get the bits of that way of torch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RMSprop

from pai_torchacc import _C, _host
from pai_torchacc.fusion.optim import proof

OPERATOR = {
    SGD: "sgd_step",
    Adam: "adam_step",
    AdamW: "adamw_step",
    Adadelta: "adadelta_step",
    RMSprop: "rmsprop_step",
    Adagrad: "adagrad_step",
    NAdam: "nadam_step",
}
FUSED = [SGD, Adam, AdamW, Adagrad]
SCALED = [SGD, Adam, AdamW]  # since 2.13 Adagrad, too
STEPS = 3


def sgd_options() -> list[dict[str, Any]]:
    """All that torch's constructor takes; nesterov's foreach writes gradients."""
    found: list[dict[str, Any]] = [
        {"momentum": 0},
        {"momentum": 0, "weight_decay": 0.1},
    ]
    for decay, maximize in itertools.product((0, 0.01), (False, True)):
        both = {"momentum": 0.9, "weight_decay": decay, "maximize": maximize}
        found += [both, both | {"dampening": 0.1}, both | {"nesterov": True}]
    return [{"lr": 0.01, **options} for options in found]


def adam_options() -> list[dict[str, Any]]:
    combinations = itertools.product((False, True), (0, 0.01), (False, True))
    options = [
        {"lr": 0.003, "amsgrad": a, "weight_decay": w, "maximize": m}
        for a, w, m in combinations
    ]
    return [*options, {"lr": 0.1, "betas": (0.3, 0.9), "eps": 1e-3}]


MORE: dict[type, dict[str, Any]] = {
    SGD: {"momentum": 0.9},
    Adam: {"amsgrad": True},
    AdamW: {"amsgrad": True},
}
"""Options by which an optimizer keeps all that it can of a parameter."""


def cases() -> list[tuple[type, dict[str, Any]]]:
    found: list[tuple[type, dict[str, Any]]] = []
    for cls, options in ((SGD, sgd_options()), (Adam, adam_options())):
        for way in ("foreach", "fused"):
            found += [(cls, o | {way: True}) for o in options]
    found += [(AdamW, o | {"fused": True}) for o in adam_options()]
    found += [(AdamW, {"foreach": True}), (Adadelta, {"foreach": True})]
    decayed = {"weight_decay": 0.01, "maximize": True}
    for way in ("foreach", "fused"):
        found += [(Adagrad, {way: True}), (Adagrad, decayed | {way: True})]
        found += [(Adagrad, {"lr": 1, "lr_decay": 0.3, way: True})]
    for options in ({}, decayed, {"momentum": 0.9, "centered": True}):
        found.append((RMSprop, options | {"foreach": True}))
    for options in ({}, decayed, {"weight_decay": 0.1, "decoupled_weight_decay": True}):
        found.append((NAdam, options | {"foreach": True}))
    return found


def name_of(case: Any) -> str | None:
    if isinstance(case, dict):
        return ",".join(f"{k}={v}" for k, v in case.items() if v)
    return getattr(case, "__name__", None)


def writes_gradients(cls: type, options: dict[str, Any]) -> bool:
    is_nesterov = options.get("nesterov") and options.get("foreach")
    others = options.get("weight_decay") or options.get("maximize")
    return cls is SGD and bool(is_nesterov and not others)


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    """With and without elements beyond the last vector, and those alone."""
    sizes = ((), (7,), (0, 3), (8,), (16, 4), (5, 13), (40_011,))
    return [nn.Parameter(torch.randn(size, dtype=dtype)) for size in sizes]


def train(cls: type, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    torch.manual_seed(1)
    params = parameters(dtype)
    opt = cls(params, **options)
    for step in range(STEPS):
        for i, p in enumerate(params):
            p.grad = torch.randn_like(p) * 10.0 ** (i - 3)
        if step == 1:
            params[1].grad[:3] = params[5].grad[2, 10:] = torch.tensor(
                [float("inf"), float("nan"), 1e-30]
            )
        opt.step()
    return [[p, p.grad, opt.state[p]] for p in params]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("row", switching.runnable_rows("sgd_step"))
@pytest.mark.parametrize(("cls", "options"), cases(), ids=name_of)
def test_bits_of_what_is_asked_for(
    cls: type, options: dict[str, Any], row: str, dtype: torch.dtype
) -> None:
    op = OPERATOR[cls]
    stock = train(cls, dtype, options)
    with switching.accelerated(op, row=row):
        hits = switching.hits(op)
        ours = train(cls, dtype, options)
        if writes_gradients(cls, options):
            assert (hits.accelerated, hits.forwarded) == (0, {"foreach": STEPS})
        else:
            assert (hits.accelerated, hits.forwarded) == (STEPS, {})
    contract.exactly(ours, stock)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
@pytest.mark.parametrize("cls", FUSED)
def test_fused_at_any_number_of_threads(cls: type, n_threads: int) -> None:
    """Torch's kernel divides a parameter among threads at whole cache lines."""
    options = {"lr": 0.01, "fused": True} | ({"momentum": 0.9} if cls is SGD else {})
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        stock = train(cls, torch.float32, options)
        with switching.accelerated(OPERATOR[cls]):
            hits = switching.hits(OPERATOR[cls])
            ours = train(cls, torch.float32, options)
            assert hits.accelerated == STEPS
    finally:
        torch.set_num_threads(before)
    contract.exactly(ours, stock)


def walk(opt: Any, params: list[nn.Parameter], steps: int) -> None:
    for _ in range(steps):
        for p in params:
            p.grad = p.detach() * 0.5 + 0.1
        opt.step()


@pytest.mark.parametrize("way", ["foreach", "fused"])
@pytest.mark.parametrize("cls", FUSED)
def test_autograd_hears_of_the_writes_that_torch_tells_it_of(
    cls: type, way: str
) -> None:
    """Of fused steps' to parameters of none: a graph from before goes backward."""

    def program() -> Any:
        torch.manual_seed(5)
        w, x = nn.Parameter(torch.randn(9, 9)), torch.randn(9, 9, requires_grad=True)
        opt: Any = cls([w], lr=0.01, **MORE.get(cls, {}), **{way: True})
        walk(opt, [w], 1)
        tensors = [w, *opt.state[w].values()]
        versions = [t._version for t in tensors]
        y = (x @ w).sum()
        walk(opt, [w], 1)
        is_told = [t._version > v for t, v in zip(tensors, versions, strict=True)]
        try:
            return is_told, *torch.autograd.grad(y, x)
        except RuntimeError as error:
            return is_told, "modified by an inplace operation" in str(error)

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        assert (hits.accelerated, hits.forwarded) == (2, {})
    contract.exactly(ours, stock)


def counting(update: Callable[..., None]) -> Callable[..., None]:
    """An update of torch's that tells autograd of its writes to parameters."""

    def counted(params: list[Tensor], *rest: Any, **options: Any) -> None:
        update(params, *rest, **options)
        for p in params:
            torch.autograd.graph.increment_version(p)

    return counted


def test_fused_steps_of_a_torch_that_counts_their_writes_are_stocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = import_module("torch.optim.sgd")
    c = _host.load()
    with switching.accelerated(*OPERATOR.values()):
        with monkeypatch.context() as patched:
            patched.setattr(module, "_fused_sgd", counting(module._fused_sgd))
            assert proof.prove(c, torch) == {}
        hits = switching.hits("sgd_step")
        train(SGD, torch.float32, {"fused": True})
        assert (hits.accelerated, hits.forwarded) == (0, {"fused": STEPS})
        assert proof.prove(c, torch) == {}


WAYS: tuple[dict[str, Any], ...] = (
    {"foreach": True},
    {"fused": True},
    {"foreach": False},
)


@pytest.mark.parametrize("hooked", [False, True], ids=["short way", "long way"])
@pytest.mark.parametrize("cls", FUSED)
def test_states_go_from_way_to_way(cls: type, hooked: bool) -> None:
    """By loading them, and by editing the group; enabled in the middle."""

    def program(switch: Any) -> Any:
        torch.manual_seed(2)
        params = parameters(torch.float32)
        more = MORE.get(cls, {})
        opt: Any = cls(params, lr=0.01, **more)
        walk(opt, params, 1)
        with switch:
            hits = switching.hits(OPERATOR[cls])
            for way in WAYS * 2:
                state = opt.state_dict()
                opt = cls(params, lr=0.01, **more)
                opt.load_state_dict(state)
                opt.param_groups[0].update({"fused": None, "foreach": None, **way})
                if hooked:
                    opt.register_step_pre_hook(lambda *_: None)
                walk(opt, params, 2)
            served = hits.accelerated, hits.forwarded
        walk(opt, params, 1)
        return served, params, opt.state_dict()["state"]

    stock = program(torch.enable_grad())
    ours = program(switching.accelerated(OPERATOR[cls]))
    assert ours[0] == (12, {})
    contract.exactly(ours[1:], stock[1:])


@pytest.mark.parametrize("found_inf", [False, True])
@pytest.mark.parametrize("cls", SCALED)
def test_steps_that_a_scaler_leaves_its_scale_to(cls: type, found_inf: bool) -> None:
    """Torch's fused kernel divides the gradients, or leaves all as it was."""

    def program() -> Any:
        torch.manual_seed(3)
        p = nn.Parameter(torch.randn(21))
        opt = cls([p], lr=0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(3):
            opt.zero_grad()
            scaler.scale((p * p).sum()).backward()
            if found_inf and step == 1:
                p.grad[3] = float("inf")
            scaler.step(opt)
            scaler.update()
        opt.step()
        return p, opt.state_dict(), scaler.get_scale()

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        assert (hits.accelerated, hits.forwarded) == (1, {"fused": 3})
    contract.exactly(ours, stock)


def both(cls: type, opt: Any) -> None:
    opt.param_groups[0].update(foreach=True, fused=True)


def some_new(cls: type, opt: Any) -> None:
    opt.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    late = opt.param_groups.pop()["params"]
    late[0].grad = torch.ones(3)
    opt.param_groups[0]["params"] += late


def half_a_count(cls: type, opt: Any) -> None:
    for state in opt.state.values():
        state["step"] += 0.5


def count_in_float64(cls: type, opt: Any) -> None:
    for state in opt.state.values():
        state["step"] = state["step"].double()


@pytest.mark.parametrize(
    ("cls", "edit", "reason"),
    [
        (Adam, both, "fused"),
        (SGD, both, "fused"),
        (SGD, some_new, "fused"),
        (AdamW, half_a_count, "optimizer state"),
        (Adam, count_in_float64, "optimizer state"),
    ],
    ids=name_of,
)
def test_fused_groups_that_are_left_to_stock(
    cls: type, edit: Callable[..., None], reason: str
) -> None:
    def program() -> Any:
        torch.manual_seed(4)
        p = nn.Parameter(torch.randn(21))
        more = {"momentum": 0.9} if cls is SGD else {}
        opt: Any = cls([p], lr=0.01, fused=True, **more)
        p.grad = torch.ones(21)
        opt.step()
        edit(cls, opt)
        try:
            opt.step()
        except (RuntimeError, TypeError) as error:
            return type(error), p
        return p, opt.state_dict()["state"]

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        assert hits.forwarded == {reason: 1}
    contract.exactly(ours, stock)


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_a_way_whose_bits_are_others_is_stocks(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the operators that it is proved of; the loop over tensors stays ours."""
    module = import_module("torch.optim.adam")
    name = "_multi_tensor_adam" if way == "foreach" else "_fused_adam"
    original = getattr(module, name)

    def other(params: list[Tensor], *rest: Any, **options: Any) -> None:
        original(params, *rest, **options)
        if params:
            params[0].nextafter_(torch.full((), torch.inf))

    c = _host.load()
    with switching.accelerated(*OPERATOR.values()):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, other)
            assert proof.prove(c, torch) == {}
        hits = switching.hits("adamw_step")
        train(AdamW, torch.float32, {way: True})
        assert (hits.accelerated, hits.forwarded) == (0, {way: STEPS})
        train(AdamW, torch.float32, {})
        assert hits.accelerated == STEPS
        assert proof.prove(c, torch) == {}
        hits = switching.hits("adamw_step")
        train(AdamW, torch.float32, {way: True})
        assert (hits.accelerated, hits.forwarded) == (STEPS, {})


def test_tables_tell_the_ways_apart() -> None:
    kinds = {op: kinds for op, kinds, _ in _C.operators()}
    assert kinds["adamw_step"] == ["dense", "foreach", "fused"]
    assert kinds["adadelta_step"] == ["dense", "foreach"]

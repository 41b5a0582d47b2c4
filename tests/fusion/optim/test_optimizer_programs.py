"""Everything around an optimizer's step works as with stock.

What the rows do not take goes to stock and is counted with its reason.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adam, AdamW, lr_scheduler, optimizer
from torch.overrides import TorchFunctionMode

from pai_torchacc import _C

OPERATOR = {
    SGD: "sgd_step",
    Adam: "adam_step",
    AdamW: "adamw_step",
    Adadelta: "adadelta_step",
}
KIND = {SGD: "sgd", Adam: "adam", AdamW: "adam", Adadelta: "adadelta"}
CLASSES = pytest.mark.parametrize("cls", OPERATOR)


def model_and_data() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return model, torch.randn(8, 6)


def results(model: nn.Module, opt: Any) -> list[Any]:
    """Everything that a training leaves, comparable."""
    return [list(model.parameters()), opt.state_dict(), opt.param_groups]


def same(program: Callable[[], Any], op: str, n_steps: int) -> None:
    """Run a training program by stock and accelerated; same bits, every step ours."""
    stock = program()
    with switching.accelerated(op, "zero_grad"):
        hits = switching.hits(op)
        ours = program()
        assert (hits.accelerated, hits.forwarded) == (n_steps, {})
    contract.exactly(ours, stock)


def one_step(model: nn.Module, x: Tensor, opt: Any) -> None:
    opt.zero_grad()
    model(x).pow(2).sum().backward()
    opt.step()


@CLASSES
def test_edits_of_param_groups(cls: type) -> None:
    def program() -> Any:
        model, x = model_and_data()
        opt = cls(model[0].parameters(), lr=0.1)
        for step in range(6):
            one_step(model, x, opt)
            group = opt.param_groups[0]
            group["lr"] *= 0.7
            if step == 1:
                group["weight_decay"] = 0.2
            if step == 2:
                opt.add_param_group({"params": model[2].parameters(), "lr": 0.01})
            if step == 3:
                group["maximize"] = True
            if step == 4:
                opt.state.pop(group["params"].pop(1), None)
        return results(model, opt)

    # Six steps of the first group, three of the second.
    same(program, OPERATOR[cls], 9)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 2),
    "OneCycle": lambda opt: lr_scheduler.OneCycleLR(
        opt, 0.1, total_steps=10, cycle_momentum=not isinstance(opt, Adadelta)
    ),
    "Cosine": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 5),
    "Plateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=0),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@CLASSES
def test_learning_rate_schedulers(cls: type, scheduler: str) -> None:
    """They wrap the step; their warning about the order of calls stays away."""

    def program() -> Any:
        model, x = model_and_data()
        opt = cls(model.parameters(), lr=0.01)
        schedule = SCHEDULERS[scheduler](opt)
        rates = []
        for _ in range(5):
            one_step(model, x, opt)
            schedule.step(*([1.0] if scheduler == "Plateau" else []))
            rates.append(opt.param_groups[0]["lr"])
        return results(model, opt), rates

    same(program, OPERATOR[cls], 5)


@CLASSES
def test_scheduler_made_before_enable(cls: type) -> None:
    def program(switch: Any) -> Any:
        model, x = model_and_data()
        opt = cls(model.parameters(), lr=0.01)
        schedule = lr_scheduler.StepLR(opt, 2)
        hits = None
        for step in range(6):
            if step == 2:
                switch.__enter__()
                hits = switching.hits(OPERATOR[cls])
            one_step(model, x, opt)
            schedule.step()
            if step == 4:
                switch.__exit__(None, None, None)
        return results(model, opt), hits

    stock, _ = program(torch.enable_grad())
    ours, hits = program(switching.accelerated(OPERATOR[cls]))
    assert hits.accelerated == 3
    contract.exactly(ours, stock)


@CLASSES
def test_gradient_scaler(cls: type) -> None:
    """Unscales, and skips a step with infinite gradients."""

    def program() -> Any:
        model, x = model_and_data()
        opt = cls(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        scales = []
        for step in range(4):
            opt.zero_grad()
            loss = model(x).pow(2).sum()
            scaler.scale(loss).backward()
            if step == 2:
                model[0].weight.grad[0, 0] = float("inf")
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            scales.append(scaler.get_scale())
        return results(model, opt), scales

    same(program, OPERATOR[cls], 3)


@CLASSES
@pytest.mark.parametrize("scope", ["instance", "global"])
def test_step_hooks(cls: type, scope: str) -> None:
    def program() -> Any:
        model, x = model_and_data()
        opt = cls(model.parameters(), lr=0.01)
        seen: list[Any] = []

        def before(opt: Any, args: Any, kwargs: Any) -> None:
            seen.append(("before", len(args), model[0].weight.detach().clone()))

        def after(opt: Any, args: Any, kwargs: Any) -> None:
            seen.append(("after", len(args), model[0].weight.detach().clone()))

        if scope == "instance":
            pre, post = (
                opt.register_step_pre_hook(before),
                opt.register_step_post_hook(after),
            )
        else:
            pre = optimizer.register_optimizer_step_pre_hook(before)
            post = optimizer.register_optimizer_step_post_hook(after)
        try:
            one_step(model, x, opt)
            one_step(model, x, opt)
        finally:
            pre.remove()
            post.remove()
        one_step(model, x, opt)
        # What a hook is given as arguments differs by torch's version, not by ours.
        assert [s[0] for s in seen] == ["before", "after"] * 2
        return results(model, opt), [s[1:] for s in seen]

    same(program, OPERATOR[cls], 3)


@CLASSES
def test_closures(cls: type) -> None:
    """The closure runs once, with gradients, and its loss comes back."""

    def program() -> Any:
        model, x = model_and_data()
        opt = cls(model.parameters(), lr=0.01)
        calls = []

        def closure() -> Tensor:
            calls.append(torch.is_grad_enabled())
            opt.zero_grad()
            loss = model(x).pow(2).sum()
            loss.backward()
            return loss

        losses = [opt.step(closure), opt.step(closure=closure)]
        return results(model, opt), losses, calls

    same(program, OPERATOR[cls], 2)


@CLASSES
def test_returns_nothing_and_warns_as_stock(cls: type) -> None:
    model, x = model_and_data()
    with switching.accelerated(OPERATOR[cls]):
        opt = cls(model.parameters(), lr=0.01)
        assert opt.step() is None
        model(x).sum().backward()
        assert opt.step() is None


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none: bool) -> None:
    model, x = model_and_data()
    with switching.accelerated("zero_grad"):
        hits = switching.hits("zero_grad")
        opt = SGD(model.parameters(), lr=0.01)
        model(x).sum().backward()
        held = model[0].weight.grad
        before = held.clone()
        opt.zero_grad(set_to_none=set_to_none)
        assert hits.accelerated == int(set_to_none)
        if set_to_none:
            assert all(p.grad is None for p in model.parameters())
            assert torch.equal(held, before)
        else:
            assert model[0].weight.grad is held
            assert not held.any()


def test_zero_grad_of_a_model_is_left_alone() -> None:
    model, x = model_and_data()
    with switching.accelerated("zero_grad"):
        model(x).sum().backward()
        model.zero_grad()
        assert all(p.grad is None for p in model.parameters())


def written(opt: Any) -> list[Tensor]:
    states = [v for s in opt.state.values() for v in s.values()]
    return [*opt.param_groups[0]["params"], *(s for s in states if s is not None)]


@CLASSES
def test_versions_of_what_is_written_count_up(cls: type) -> None:
    model, x = model_and_data()
    extra = {SGD: {"momentum": 0.9}, Adadelta: {}}.get(cls, {"amsgrad": True})
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        opt = cls(model.parameters(), lr=0.01, **extra)
        one_step(model, x, opt)
        tensors = written(opt)
        assert len(tensors) == 4 * {SGD: 2, Adadelta: 4}.get(cls, 5)
        versions = [t._version for t in tensors]
        one_step(model, x, opt)
        assert hits.accelerated == 2
        for tensor, version in zip(tensors, versions, strict=True):
            assert tensor._version > version


def test_versions_of_a_first_step_of_sgd() -> None:
    """A momentum buffer starts as any new tensor does."""

    def program() -> list[int]:
        model, x = model_and_data()
        opt = SGD(model.parameters(), lr=0.01, momentum=0.9)
        one_step(model, x, opt)
        return [t._version for t in written(opt)]

    stock = program()
    with switching.accelerated("sgd_step"):
        hits = switching.hits("sgd_step")
        assert program() == stock
        assert hits.accelerated == 1


class Refusing(collections.defaultdict[Tensor, dict[str, Any]]):
    """States that cannot be made for parameters of one element."""

    def __missing__(self, param: Tensor) -> dict[str, Any]:
        if param.numel() == 1:
            raise LookupError("no state")
        return super().__missing__(param)


def test_states_are_as_before_when_one_cannot_be_made() -> None:
    params = [nn.Parameter(torch.ones(n)) for n in (2, 3, 1, 4)]
    for p in params:
        p.grad = torch.ones_like(p)

    def program() -> list[Any]:
        opt = SGD(params, lr=0.1, momentum=0.9)
        opt.state = Refusing(dict)
        for p in params[1], params[3]:
            opt.state[p]["momentum_buffer"] = None
        with pytest.raises(LookupError, match="no state"):
            opt.step()
        return [opt.state.get(p) for p in params]

    stock = program()
    assert stock == [{}, {"momentum_buffer": None}, None, {"momentum_buffer": None}]
    with switching.accelerated("sgd_step"):
        assert program() == stock
    assert all(torch.equal(p, torch.ones_like(p)) for p in params)


def test_tensors_whose_memory_was_given_away_are_left_to_stock() -> None:
    program = """
import switching, torch
from pai_torchacc import _C

def group(p, g):
    p.grad = g
    return {"params": [p], "lr": 0.1, "momentum": 0.9, "dampening": 0.0,
            "weight_decay": 0.0, "nesterov": False, "maximize": False,
            "foreach": None, "fused": None, "differentiable": False}

def gone():
    t = torch.ones(5)
    t.untyped_storage().resize_(0)
    return t

op = "sgd_step"
with switching.accelerated(op):
    hits = switching.hits(op)
    for p, g, b in ((gone(), torch.ones(5), torch.ones(5)),
                    (torch.ones(5), gone(), torch.ones(5)),
                    (torch.ones(5), torch.ones(5), gone())):
        states = {p: {"momentum_buffer": b}}
        assert _C.optimizer_group("sgd", states, group(p, g), 1.0, None) == 0
    assert hits.accelerated == 0
    assert hits.forwarded == {"dtype": 2, "optimizer state": 1}, hits.forwarded
print("refused")
"""
    assert switching.python(program) == "refused\n"


@CLASSES
def test_stale_graphs_are_noticed(cls: type) -> None:
    """Backward through weights that a step has changed is torch's own error."""
    model, x = model_and_data()
    x.requires_grad_()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        opt = cls(model.parameters(), lr=0.01)
        loss = model(x).pow(2).sum()
        loss.backward(retain_graph=True)
        opt.step()
        assert hits.accelerated == 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


class Quiet(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


@CLASSES
def test_steps_under_a_function_mode_are_stock(cls: type) -> None:
    model, x = model_and_data()
    with switching.accelerated(*OPERATOR.values()):
        hits = switching.hits(OPERATOR[cls])
        opt = cls(model.parameters(), lr=0.01)
        model(x).sum().backward()
        with Quiet():
            opt.step()
        assert hits.accelerated == 0
        assert hits.forwarded == {"mode or transform active": 1}


def tuple_of_params(opt: Any) -> None:
    opt.param_groups[0]["params"] = tuple(opt.param_groups[0]["params"])


def other_mapping(opt: Any) -> None:
    opt.param_groups[0] = collections.UserDict(opt.param_groups[0])


def subclass_of_dict(opt: Any) -> None:
    opt.param_groups[0] = collections.OrderedDict(opt.param_groups[0])


def tuple_of_groups(opt: Any) -> None:
    opt.param_groups = tuple(opt.param_groups)


@pytest.mark.parametrize(
    "change", [tuple_of_params, other_mapping, subclass_of_dict, tuple_of_groups]
)
@CLASSES
def test_groups_of_other_types(cls: type, change: Callable[[Any], None]) -> None:
    def program() -> list[Any]:
        params = [nn.Parameter(torch.ones(3)) for _ in range(3)]
        opt = cls([{"params": params[:1]}, {"params": params[1:]}], lr=0.1)
        change(opt)
        for p in params:
            p.grad = torch.ones(3)
        opt.step()
        opt.zero_grad()
        assert all(p.grad is None for p in params)
        return params

    stock = program()
    with switching.accelerated(OPERATOR[cls], "zero_grad"):
        hits, steps = switching.hits("zero_grad"), switching.hits(OPERATOR[cls])
        ours = program()
        assert (hits.accelerated, hits.forwarded) == (0, {"argument": 1})
        if change is tuple_of_groups:
            assert (steps.accelerated, steps.forwarded) == (2, {})
        else:
            assert (steps.accelerated, steps.forwarded) == (1, {"argument": 1})
    contract.exactly(ours, stock)


class Unruly:
    """A parameter whose gradient makes havoc of the groups when it is asked for."""

    def __init__(self, groups: list[Any]):
        self.groups = groups

    @property
    def grad(self) -> None:
        self.groups[0]["params"] = []
        del self.groups[1:]
        self.groups.extend({"params": []} for _ in range(200))


@CLASSES
def test_groups_that_change_while_they_are_read(cls: type) -> None:
    opt = cls([nn.Parameter(torch.ones(3))], lr=0.1)
    with switching.accelerated(OPERATOR[cls]):
        for at in (0, 1):
            params = [nn.Parameter(torch.ones(3)) for _ in range(2)]
            opt.param_groups = [{**opt.param_groups[0], "params": params}]
            params.insert(at, Unruly(opt.param_groups))
            del params
            _C.optimizer_step(KIND[cls], opt, 1.0, None)
            _C.zero_grads(opt.param_groups)


HOOKS_RUN = """
import sys, torch, pai_torchacc as ptac
from torch.optim import SGD, Adadelta, Adam, AdamW

class Calls(SGD):
    def step(self, closure=None):
        return super().step(closure)

class Inherits(SGD):
    pass

orders = {
    "base last": [Calls, Inherits, SGD, Inherits, Adam, AdamW],
    "base first": [AdamW, Adam, SGD, Calls, Inherits],
}
if sys.argv[2] == "ours":
    assert ptac.enable()
made, counts = [], []
for cls in orders[sys.argv[1]]:
    p, n = torch.nn.Parameter(torch.ones(3)), []
    p.grad = torch.ones(3)
    made.append((cls([p], lr=0.1), n))
    made[-1][0].register_step_pre_hook(lambda *a, n=n: n.append(1))
    made[-1][0].step()
ptac.disable()
for opt, n in made:
    opt.step()
    counts.append(len(n))
wrapped = [vars(cls).get("step") for cls in (SGD, Calls, Inherits, Adam, AdamW)]
print(counts, [(s is not None, getattr(s, "hooked", None)) for s in wrapped])
"""


@pytest.mark.parametrize("order", ["base last", "base first"])
def test_step_hooks_run_as_often_as_with_stock(order: str) -> None:
    """Torch wraps ``step`` of classes when their first instance is made."""
    stock, ours = (switching.python(HOOKS_RUN, order, who) for who in ("stock", "ours"))
    assert ours == stock


def test_zero_grad_is_seen_by_function_modes() -> None:
    class Watching(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    param = nn.Parameter(torch.ones(3))
    opt = torch.optim.SGD([param], lr=0.1)
    for on in (False, True):
        param.grad = torch.ones(3)
        with switching.accelerated() if on else torch.enable_grad(), Watching():
            hits = switching.hits("zero_grad")
            opt.zero_grad()
        assert param.grad is None
        if not on:
            stock = list(seen)
            seen.clear()
    assert hits.forwarded == {"mode or transform active": 1}
    assert seen == stock

"""Optimizer steps give the bits of torch's own for-loop, whatever the options.

The reference is made in the same process by stock with ``foreach=False``.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RMSprop

import pai_torchacc as ptac
from pai_torchacc import _host
from pai_torchacc.fusion.optim import proof

STEPS = 4
OPERATOR = {
    SGD: "sgd_step",
    Adam: "adam_step",
    AdamW: "adamw_step",
    Adadelta: "adadelta_step",
    RMSprop: "rmsprop_step",
    Adagrad: "adagrad_step",
    NAdam: "nadam_step",
}


def sgd_options() -> list[dict[str, Any]]:
    """All combinations that SGD's constructor accepts."""
    options = []
    for momentum, dampening, nesterov, weight_decay, maximize in itertools.product(
        (0, 0.9), (0, 0.1), (False, True), (0, 0.01), (False, True)
    ):
        if nesterov and (momentum == 0 or dampening != 0):
            continue
        options.append(
            {
                "lr": 0.01,
                "momentum": momentum,
                "dampening": dampening,
                "nesterov": nesterov,
                "weight_decay": weight_decay,
                "maximize": maximize,
            }
        )
    return options


def adam_options() -> list[dict[str, Any]]:
    combinations = itertools.product((False, True), (0, 0.01), (False, True))
    options = [
        {"lr": 0.003, "amsgrad": a, "weight_decay": w, "maximize": m}
        for a, w, m in combinations
    ]
    return [*options, {"lr": 1, "betas": (0.5, 0.9), "eps": 1e-3}]


def adadelta_options() -> list[dict[str, Any]]:
    combinations = itertools.product((0, 0.01), (False, True))
    options = [{"lr": 0.7, "weight_decay": w, "maximize": m} for w, m in combinations]
    return [*options, {"lr": 1, "rho": 1}, {"rho": 0.25, "eps": 1e-3}]


def rmsprop_options() -> list[dict[str, Any]]:
    """Of all that torch takes those that differ in what they compute."""
    combinations = itertools.product((0, 0.9), (False, True), (0, 0.01))
    options = [
        {"momentum": m, "centered": c, "weight_decay": w} for m, c, w in combinations
    ]
    return [*options, {"lr": 1, "alpha": 0.25, "centered": True, "maximize": True}]


def adagrad_options() -> list[dict[str, Any]]:
    combinations = itertools.product((0, 0.01), (False, True))
    options = [{"weight_decay": w, "maximize": m} for w, m in combinations]
    return [*options, {"lr": 1, "lr_decay": 0.3, "initial_accumulator_value": 0.1}]


def nadam_options() -> list[dict[str, Any]]:
    combinations = itertools.product((0, 0.01), (False, True), (False, True))
    options = [
        {"weight_decay": w, "maximize": m, "decoupled_weight_decay": d}
        for w, m, d in combinations
    ]
    return [*options, {"lr": 1, "betas": (0.3, 0.9), "momentum_decay": 0.1}]


CASES = (
    [(SGD, o) for o in sgd_options()]
    + [(cls, o) for cls in (Adam, AdamW) for o in adam_options()]
    + [(Adadelta, o) for o in adadelta_options()]
    + [(RMSprop, o) for o in rmsprop_options()]
    + [(Adagrad, o) for o in adagrad_options()]
    + [(NAdam, o) for o in nadam_options()]
)


def name_of(case: Any) -> str | None:
    if isinstance(case, dict):
        return ",".join(f"{k}={v}" for k, v in case.items() if v) or "plain"
    return getattr(case, "__name__", None)


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    """Odd sizes, dense layouts of every kind, and more than one thread's share."""
    tensors = [
        torch.randn((), dtype=dtype),
        torch.randn(1, dtype=dtype),
        torch.randn(7, dtype=dtype),
        torch.randn(0, 3, dtype=dtype),
        torch.randn(17, 40, dtype=dtype).t(),
        torch.randn(5, 3, 9, 11, dtype=dtype).to(memory_format=torch.channels_last),
        torch.randn(3, 33, dtype=dtype)[1:],
        torch.randn(70_001, dtype=dtype),
    ]
    return [nn.Parameter(t) for t in tensors]


def gradient(param: Tensor, step: int, index: int) -> Tensor | None:
    """Numbers of all magnitudes; sometimes none at all, as of a branch not taken."""
    if (step + index) % 5 == 4:
        return None
    grad = torch.randn_like(param) * 10.0 ** (index - 4)
    if index == 7:
        grad[::97] = 0
    if index == 4 and step == 2:
        grad[0, :3] = torch.tensor([float("inf"), float("nan"), 1e-40])
    return grad


def train(
    cls: type, dtype: torch.dtype, options: dict[str, Any]
) -> tuple[list[Tensor], Any]:
    """Some steps; the parameters and the optimizer."""
    torch.manual_seed(1)
    params = parameters(dtype)
    optimizer = cls(params, **options)
    for step in range(STEPS):
        for i, p in enumerate(params):
            p.grad = gradient(p, step, i)
        optimizer.step()
    return params, optimizer


def assert_same_bits(ours: Any, stock: Any) -> None:
    """Same parameters, and same states under the same keys in the same order."""
    for a, b in zip(ours[0], stock[0], strict=True):
        assert contract.same_bits(a.detach(), b.detach())
        mine, theirs = ours[1].state[a], stock[1].state[b]
        assert list(mine) == list(theirs)
        for key, value in mine.items():
            if isinstance(value, Tensor):
                assert contract.same_bits(value, theirs[key]), key
            else:
                assert value == theirs[key], key


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("row", switching.runnable_rows("sgd_step"))
@pytest.mark.parametrize(("cls", "options"), CASES, ids=name_of)
def test_bits_of_stock(
    cls: type, options: dict[str, Any], row: str, dtype: torch.dtype
) -> None:
    stock = train(cls, dtype, options | {"foreach": False})
    op = OPERATOR[cls]
    with switching.accelerated(op, row=row):
        hits = switching.hits(op)
        ours = train(cls, dtype, options)
        assert hits.accelerated == STEPS, hits
    assert_same_bits(ours, stock)


@pytest.mark.parametrize("row", switching.runnable_rows("adam_step"))
def test_bits_for_second_moments_of_any_size(row: str) -> None:
    # All exponents in order: vectors inside, outside and across the range of root.h.
    bits = torch.arange(0, 0x7F900000, 0x0000C0DE, dtype=torch.int32)
    second = bits.view(torch.float32)

    def step(**options: Any) -> tuple[list[Tensor], Any]:
        param = nn.Parameter(torch.zeros_like(second))
        optimizer = Adam([param], lr=1.0, betas=(0.5, 0.999), eps=1e-30, **options)
        param.grad = torch.zeros_like(second)
        optimizer.state[param] = {
            "step": torch.tensor(1000.0),
            "exp_avg": torch.ones_like(second),
            "exp_avg_sq": second.clone(),
        }
        optimizer.step()
        return [param], optimizer

    stock = step(foreach=False)
    with switching.accelerated("adam_step", row=row):
        hits = switching.hits("adam_step")
        ours = step()
        assert hits.accelerated == 1, hits
    assert_same_bits(ours, stock)


@pytest.mark.parametrize("numerics", ["exact", "close", "fast"])
@pytest.mark.parametrize("cls", OPERATOR)
def test_bits_at_every_level(cls: type, numerics: str) -> None:
    options = {"lr": 0.01, "weight_decay": 0.1}
    stock = train(cls, torch.float32, options | {"foreach": False})
    with switching.accelerated(OPERATOR[cls], numerics=numerics):
        ours = train(cls, torch.float32, options)
    assert_same_bits(ours, stock)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("cls", OPERATOR)
def test_bits_at_any_number_of_threads(cls: type, n_threads: int) -> None:
    stock = train(cls, torch.float32, {"foreach": False, "lr": 0.01})
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        with switching.accelerated(OPERATOR[cls]):
            ours = train(cls, torch.float32, {"lr": 0.01})
    finally:
        torch.set_num_threads(before)
    assert_same_bits(ours, stock)


@pytest.mark.parametrize("cls", OPERATOR)
@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("fused", [None, False])
def test_unset_and_false_are_accelerated(
    cls: type, foreach: bool | None, fused: bool | None
) -> None:
    op = OPERATOR[cls]
    asked = (
        {"foreach": foreach}
        if cls in (Adadelta, RMSprop, NAdam)
        else {"foreach": foreach, "fused": fused}
    )
    with switching.accelerated(op):
        hits = switching.hits(op)
        train(cls, torch.float32, {"lr": 0.01, **asked})
        assert (hits.accelerated, hits.forwarded) == (STEPS, {})


def walk(
    params: list[nn.Parameter], optimizer: Any, steps: int, seed: int
) -> tuple[list[nn.Parameter], Any]:
    torch.manual_seed(seed)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("cls", OPERATOR)
def test_built_before_enable_and_used_after_disable(cls: type) -> None:
    """States pass between stock and ours in the middle of a training."""

    def start() -> tuple[list[nn.Parameter], Any]:
        torch.manual_seed(2)
        params = parameters(torch.float32)
        momentum = {"momentum": 0.9}
        extra: dict[type, dict[str, Any]] = {SGD: momentum, RMSprop: momentum}
        extra |= {cls: {"amsgrad": True} for cls in (Adam, AdamW)}
        return params, cls(params, lr=0.01, **extra.get(cls, {}))

    stock = start()
    for seed in range(3):
        walk(*stock, 3, seed)
    ours = start()
    walk(*ours, 3, 0)
    op = OPERATOR[cls]
    with switching.accelerated(op):
        hits = switching.hits(op)
        walk(*ours, 3, 1)
        assert hits.accelerated == 3
    walk(*ours, 3, 2)
    assert hits.accelerated == 3
    assert_same_bits(ours, stock)


def round_trip(optimizer: Any, params: list[nn.Parameter]) -> Any:
    """A new optimizer over the same parameters with the loaded state."""
    fresh = type(optimizer)(params, lr=123.0)
    fresh.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    return fresh


def deep_copied(optimizer: Any, params: list[nn.Parameter]) -> Any:
    memo = {id(p): p for p in params}
    return copy.deepcopy(optimizer, memo)


def no_copy(optimizer: Any, params: list[nn.Parameter]) -> Any:
    return optimizer


@pytest.mark.parametrize("how", [round_trip, deep_copied])
@pytest.mark.parametrize("cls", OPERATOR)
def test_copies_go_on_as_the_original(cls: type, how: Callable[..., Any]) -> None:
    def run(copier: Callable[..., Any]) -> tuple[list[nn.Parameter], Any]:
        torch.manual_seed(3)
        params = parameters(torch.float32)
        optimizer = cls(params, lr=0.01, weight_decay=0.1)
        walk(params, optimizer, 2, 4)
        return walk(params, copier(optimizer, params), 2, 5)

    stock = run(no_copy)
    op = OPERATOR[cls]
    with switching.accelerated(op):
        hits = switching.hits(op)
        ours = run(how)
        assert hits.accelerated == 4
    assert_same_bits(ours, stock)


@pytest.mark.parametrize("cls", OPERATOR)
def test_pickled_with_its_model(cls: type) -> None:
    """torch.save of whole objects works while enabled, and loads without us."""

    def train_one() -> tuple[nn.Module, Any]:
        torch.manual_seed(6)
        model = nn.Linear(5, 3)
        optimizer = cls(model.parameters(), lr=0.01)
        walk(list(model.parameters()), optimizer, 2, 7)
        model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
        # torch's own pickles keep the parameters of both together.
        assert optimizer.param_groups[0]["params"][0] is model.weight
        walk(list(model.parameters()), optimizer, 2, 8)
        return model, optimizer

    model, optimizer = train_one()
    stock = list(model.parameters()), optimizer
    with switching.accelerated(OPERATOR[cls]):
        model, optimizer = train_one()
    assert_same_bits((list(model.parameters()), optimizer), stock)


@pytest.mark.parametrize("cls", OPERATOR)
@pytest.mark.parametrize("n", [0, 1, 14, 255])
def test_steps_below_the_least_measured_size_are_served(cls: type, n: int) -> None:
    """By every table: they gain as the least measured ones do."""

    def program(foreach: bool | None) -> Tensor:
        p = nn.Parameter(torch.linspace(-1, 1, n))
        opt = cls([p], lr=0.1, foreach=foreach)
        for _ in range(STEPS):
            p.grad = p.detach() * 3
            opt.step()
        return p.detach()

    stock = program(foreach=False)
    with ptac.enable("operator_fusion", numerics="exact"):
        hits = switching.hits(OPERATOR[cls])
        ours = program(foreach=None)
        assert (hits.accelerated, hits.forwarded) == (STEPS, {})
    contract.exactly(ours, stock)


@pytest.mark.parametrize(
    "name", ["sgd", "adam", "adadelta", "rmsprop", "adagrad", "nadam"]
)
def test_a_torch_whose_update_gives_other_bits_is_not_trusted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(f"torch.optim.{name}")
    original = getattr(module, f"_single_tensor_{name}")

    def other(params: list[Tensor], *rest: Any, **options: Any) -> None:
        original(params, *rest, **options)
        params[0].nextafter_(torch.full((), torch.inf))

    ops = [op for op in OPERATOR.values() if op in (f"{name}_step", f"{name}w_step")]
    c = _host.load()
    with switching.accelerated(*OPERATOR.values()):
        assert proof.prove(c, torch) == {}
        monkeypatch.setattr(module, f"_single_tensor_{name}", other)
        said = "torch's own update gives other bits"
        assert proof.prove(c, torch) == dict.fromkeys(ops, said)
        monkeypatch.delattr(module, f"_single_tensor_{name}")
        doubts = proof.prove(c, torch)
        monkeypatch.undo()
        assert proof.prove(c, torch) == {}  # and other ways are trusted again
    assert list(doubts) == ops
    assert all("could not be run" in doubt for doubt in doubts.values())

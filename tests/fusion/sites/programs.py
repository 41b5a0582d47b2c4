"""Random programs of modules and functions that follow each other, as source code.

All tensors have one shape, so that any module may follow any other. ``run`` calls a
program several times, since the interpreter specialises what is repeated, and gives all
that it left: results, kept references, pictures of its variables, gradients, running
statistics, errors.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SHAPE = (2, 4, 8, 8)
N_RUNS = 7

_MODULES = [
    *("self.conv", "self.conv", "self.bn", "self.bn", "self.bn2", "self.point"),
    *("self.relu", "self.relu", "self.relu_in", "self.same", "self.drop"),
    *("self.silu", "self.fc", "self.gelu", "self.inner.bn", "OUTSIDE", "self.six"),
    *("self.listed[0]", "self.block", "local_bn", "self.tanh"),
]
_FUNCTIONS = [
    *("F.relu({})", "F.relu({}, inplace=True)", "F.relu({}, True)", "torch.relu({})"),
    *("{}.relu()", "F.silu({})", "torch.nn.functional.relu({})", "relu({})"),
    *("functools.partial(self.bn, {})()", "list(map(self.conv, [{}]))[0]"),
    *("self.bn(*({},))", "self.bn(input={})", "sum(map(self.conv, [{0}, {0}]))"),
    *("(lambda t: self.relu(t))({})", "functools.partial(self.conv)({})"),
    *("helper(self.conv, {})", "self.bn(**{{'input': {}}})", "[self.bn({})][0]"),
]
_IN_PLACE = [
    *("self.relu_in({})", "F.relu({}, inplace=True)", "F.relu({}, False)"),
    *("F.relu({})", "F.relu({}, True)"),
]
_VARIABLES = "abcd"


def norm() -> nn.Module:
    """One that does not make much of little: its channels may be nearly constant."""
    return nn.BatchNorm2d(4, eps=0.1)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn = norm()


class Base(nn.Module):
    """What programs call; ``forward`` is theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.point = nn.Conv2d(4, 4, 1)
        self.bn, self.bn2, self.inner = norm(), norm(), Pair()
        self.relu, self.relu_in = nn.ReLU(), nn.ReLU(inplace=True)
        self.same, self.drop = nn.Identity(), nn.Dropout(0.0)
        self.silu, self.gelu, self.tanh = nn.SiLU(), nn.GELU(), nn.Tanh()
        self.six = nn.ReLU6()
        self.fc = nn.Linear(8, 8)
        self.listed = nn.ModuleList([norm()])
        self.kept: list[Tensor] = []

    def block(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.bn(x)
        return F.relu(x, inplace=True)


def helper(module: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    y = module(x)
    y = F.relu(y)
    return y + 1


def snapshot(variables: dict[str, Any]) -> dict[str, Tensor]:
    """Copy tensors of a function's ``locals()``."""
    return {
        name: value.detach().clone()
        for name, value in variables.items()
        if isinstance(value, Tensor) and name in _VARIABLES
    }


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def source(self) -> str:
        """Give ``forward``."""
        start = ["local_bn = self.bn2", "b = x * 2", "c = x + 1", "d = x - 1"]
        start += ["a = self.conv(x)", "held = []"]
        if self._random.random() < 0.15:  # a variable of two functions
            start.append("see = lambda: a")
        body = [s for _ in range(self._random.randint(4, 12)) for s in self._any(0)]
        lines = [*start, *body, self._last()]
        return "def forward(self, x, flag):\n" + "\n".join(f"    {s}" for s in lines)

    def _variable(self) -> str:
        return self._random.choice("aaab" + _VARIABLES)

    def _call(self, depth: int = 0) -> str:
        inner = (
            self._call(depth + 1)
            if depth < 2 and self._random.random() < 0.35
            else self._variable()
        )
        if self._random.random() < 0.3:
            return self._random.choice(_FUNCTIONS).format(inner)
        return f"{self._random.choice(_MODULES)}({inner})"

    def _chain(self) -> list[str]:
        """What networks are made of."""
        v = self._variable()
        norm = self._random.choice(["bn", "bn2", "inner.bn"])
        act = self._random.choice(
            [
                *("self.relu({})", "self.relu_in({})", "F.relu({})", "torch.relu({})"),
                *("F.relu({}, inplace=True)", "self.silu({})"),
            ]
        )
        lines = [f"{v} = self.conv({v})", f"{v} = self.{norm}({v})"]
        return [*lines, f"{v} = {act.format(v)}"][self._random.randint(0, 1) :]

    def _any(self, depth: int) -> list[str]:
        v, w, call = self._variable(), self._variable(), self._call()
        flat = [
            [f"{v} = {call}"],
            [f"{v} = {self._call()}"],
            self._chain(),
            self._chain(),
            [f"{v} = {call}; {v} = self.relu({v})"],
            [f"{v} = self.bn({w}); {self._variable()} = self.relu({v})"],
            [f"{v} = self.conv({w}); {self._variable()} = F.relu({v})"],
            [f"{v} = self.bn({w}); {self._random.choice(_IN_PLACE).format(v)}"],
            [f"{v} += {w}"],
            [f"{v} = {v} + {w}; {v} = self.relu({v})"],
            [f"held.append({v})"],
            ["self.kept.append(snapshot(locals()))"],
            [f"{v} = self.relu(({w} := {call}))"],
            [f"{v} = {w} = {call}"],
            [f"{v}, {w} = {call}, {self._call()}"],
            [f"{v} = self.relu(self.bn({w}) if flag else self.conv({w}))"],
            [f"{v} = self.bn({w}); held.append({v}); {v} = self.relu({v})"],
            [f"{call}"],
            [f"{v} = [{call} for _ in range(2)][1]"],
            [f"{v} = next(self.relu(self.bn(t)) for t in [{w}])"],
        ]
        nested: list[Callable[[int], list[str]]] = [
            lambda k: ["if flag:", *self._inside(k), "else:", *self._inside(k)],
            lambda k: ["for i in range(2):", *self._inside(k)],
            lambda k: ["with torch.no_grad():", *self._inside(k)],
            lambda k: ["with torch.enable_grad():", *self._inside(k)],
            lambda k: [
                *("try:", *self._inside(k), "    raise ValueError('planned')"),
                *("except ValueError:", *self._inside(k)),
            ],
            lambda k: [
                *("try:", f"    {v} = self.conv({v}); {v} = self.wrong({v})"),
                *("except RuntimeError as error:", f"    held.append({v})"),
            ],
        ]
        if depth < 2 and self._random.random() < 0.25:
            return self._random.choice(nested)(depth + 1)
        return self._random.choice(flat)

    def _inside(self, depth: int) -> list[str]:
        lines = [s for _ in range(self._random.randint(1, 3)) for s in self._any(depth)]
        return [f"    {s}" for s in lines]

    def _last(self) -> str:
        v = self._variable()
        result = self._random.choice([f"F.relu({v})", v, f"self.relu(self.bn({v}))"])
        return f"self.kept.append(held); return {result}"


def build(source: str) -> nn.Module:
    """Make the network of a program, always with the same numbers."""
    torch.manual_seed(0)
    outside = nn.ReLU()
    names = {
        **{"torch": torch, "F": F, "functools": functools, "snapshot": snapshot},
        **{"OUTSIDE": outside, "helper": helper, "relu": F.relu},
    }
    exec(compile(source, "<program>", "exec"), names)
    net = type("Net", (Base,), {"forward": names["forward"]})()
    net.wrong = nn.BatchNorm2d(5)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean):
                torch.nn.init.normal_(tensor)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    return net


def _numbers(left: Any) -> Iterator[Tensor]:
    if isinstance(left, Tensor):
        yield left.detach().clone()
    elif isinstance(left, dict):
        yield from itertools.chain.from_iterable(map(_numbers, left.values()))
    elif isinstance(left, (list, tuple)):
        yield from itertools.chain.from_iterable(map(_numbers, left))


def run(source: str, is_training: bool, with_grad: bool) -> list[list[Any]]:
    """Give numbers and errors of each run, in a fixed order."""
    net = build(source).train(is_training)
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    return [_once(net, x, k % 2 == 0, with_grad) for k in range(N_RUNS)]


def _once(net: nn.Module, x: Tensor, flag: bool, with_grad: bool) -> list[Any]:
    x = x.clone().requires_grad_(with_grad)
    try:
        with torch.set_grad_enabled(with_grad):
            y = net(x, flag)
        if y.requires_grad:
            y.square().mean().backward()
        left: list[Any] = [y._version, y.detach().clone()]
    except RuntimeError as error:
        left = [str(error)]
    left += _numbers([net.kept, x.grad, list(net.buffers())])
    left += _numbers([p.grad for p in net.parameters()])
    net.kept.clear()
    net.zero_grad()
    return left


def differences(ours: list[list[Any]], stock: list[list[Any]]) -> list[str]:
    """What is not the same, or of numbers, not close.

    But for runs in which stock misses what was changed in place: nodes of ours need
    less than torch's.
    """
    found = []
    for k, (left, expected) in enumerate(zip(ours, stock, strict=True)):
        if "modified by an inplace operation" in str(expected[0]):
            continue
        if len(left) != len(expected):
            found.append(f"run {k}: {len(left)} things are left, not {len(expected)}")
            continue
        for i, (a, b) in enumerate(zip(left, expected, strict=True)):
            if not _are_same(a, b):
                found.append(f"run {k}, {i}: {a} instead of {b}")
    return found


def _are_same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.allclose(a, b, 2e-3, 2e-4, True)
    return type(a) is type(b) and bool(a == b)

"""Random programs of plain expressions, as source code.

All tensors are 4x4. ``run`` gives all that a program left, of several runs, since the
interpreter specialises what is repeated.
"""

from __future__ import annotations

import functools
import operator
import random
import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_RUNS = 7
_NUMBERS = ["0.5", "2", "-1.5", "3.0", "True", "1e300", "0", "float('nan')", "k"]
_MADE = [
    *("torch.matmul({}, {})", "torch.mm({}, {})", "({} @ {})", "{}.matmul({})"),
    *("torch.add({}, {})", "({} + {})", "({} * {})", "torch.sub({}, {})"),
    *("torch.matmul({}, other={})", "operator.add({}, {})", "torch.mul({}, {})"),
    *("functools.reduce(torch.matmul, [{}, {}])", "twice({}, {})"),
    *("list(map(torch.add, [{}], [{}]))[0]", "torch.add({}, {}, alpha=2)"),
    *("torch.add(*({}, {}))", "functools.partial(torch.mm, {})({})"),
]
_DONE = [
    *("torch.relu({})", "torch.relu({})", "F.relu({})", "F.relu({}, inplace=True)"),
    *("({} + {n})", "({} * {n})", "({n} + {})", "({} / {n})", "({} - {n})"),
    *("({n} * {})", "({n} - {})", "ACT({})", "torch.relu(input={})", "-{}"),
    *("torch.relu_({})", "torch.add({}, {n})", "relu({})", "{}.relu()"),
    *("torch.clamp({}, min=0)", "(lambda t: t + 1)({})", "torch.sigmoid({})"),
]
_VARIABLES = "abcd"


def twice(x: Tensor, y: Tensor) -> Tensor:
    z = x @ y
    z = z + 1
    return torch.relu(z)


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def source(self) -> str:
        """Give ``program(x, y, k, flag, held)``."""
        start = ["a = x * 2", "b = y + 1", "c = x - y", "d = x @ y"]
        if self._random.random() < 0.15:
            start.append("see = lambda: a")
        body = [s for _ in range(self._random.randint(4, 12)) for s in self._any(0)]
        lines = [*start, *body, f"return {self._expression()}"]
        text = "\n".join(f"    {s}" for s in lines)
        return f"def program(x, y, k, flag, held):\n{text}"

    def _variable(self) -> str:
        return self._random.choice("aaab" + _VARIABLES + "xy")

    def _target(self) -> str:
        return self._random.choice("aaab" + _VARIABLES)

    def _made(self) -> str:
        return self._random.choice(_MADE).format(self._variable(), self._variable())

    def _expression(self, depth: int = 0) -> str:
        if depth > 2 or self._random.random() < 0.35:
            return self._made()
        number = self._random.choice(_NUMBERS)
        inner = (
            self._variable()
            if self._random.random() < 0.2
            else self._expression(depth + 1)
        )
        return self._random.choice(_DONE).format(inner, n=number)

    def _any(self, depth: int) -> list[str]:
        r = self._random
        v, w, e = self._target(), self._variable(), self._expression()
        number = r.choice(_NUMBERS)
        flat = [
            [f"{v} = {e}"],
            [f"{v} = {e}"],
            [f"{v} = {self._made()}; {v} = {v} + {number}; {v} = torch.relu({v})"],
            [f"{v} = {self._made()}; {self._target()} = torch.relu({v})"],
            [f"{v} = {w} @ {w}; {v} += {number}; {v} = F.relu({v})"],
            [f"{v} = {e}; held.append({v}); {v} = torch.relu({v})"],
            [f"held.append(dict(locals())); {v} = {e}"],
            [f"{v} = torch.relu(({self._target()} := {self._made()}))"],
            [f"{v} = {self._target()} = {self._made()}"],
            [f"{v}, {self._target()} = {e}, {self._made()}"],
            [f"{v} = torch.relu({self._made()} if flag else {e})"],
            [f"{v} = [{e} for _ in range(2)][1]"],
            [f"{v} = next(torch.relu(t @ {w}) for t in [{w}])"],
            [f"{v} = {e} if flag else {w}"],
        ]
        if depth == 2 or r.random() > 0.25:
            return r.choice(flat)
        n = r.randint(1, 3)
        inside = [f"    {s}" for _ in range(n) for s in self._any(depth + 1)]
        more = [f"    {s}" for s in self._any(depth + 1)]
        return r.choice(
            [
                ["if flag:", *inside, "else:", *more],
                ["for i in range(2):", *inside],
                ["with torch.enable_grad():", *inside],
                [
                    *("try:", *inside, "    raise ValueError('planned')"),
                    *("except ValueError:", *more),
                ],
                [
                    *("try:", f"    {v} = {self._made()}; {v} = {v} + 'no'"),
                    *("except TypeError as error:", f"    held.append({v})"),
                ],
            ]
        )


def _numbers(left: Any) -> list[Any]:
    if isinstance(left, Tensor):
        return [left.detach().clone(), left._version]
    if isinstance(left, dict):
        left = [v for name, v in sorted(left.items()) if name in _VARIABLES]
    if isinstance(left, (list, tuple)):
        return [number for item in left for number in _numbers(item)]
    return []


def build(source: str) -> Any:
    """Give the function of a program."""
    names = {
        **{"torch": torch, "F": F, "functools": functools, "relu": F.relu},
        **{"ACT": nn.ReLU(), "twice": twice, "operator": operator},
    }
    exec(compile(source, "<program>", "exec"), names)
    return names["program"]


def run(source: str, with_grad: bool, n_threads: int = 1) -> list[list[Any]]:
    """Give what each run left: numbers, versions, gradients, errors."""
    program, left = build(source), []
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(4, 4, generator=generator) for _ in range(2))

    def call(k: int) -> list[Any]:
        inputs = [t.clone().requires_grad_(with_grad) for t in (x, y)]
        held: list[Any] = []
        try:
            with torch.set_grad_enabled(with_grad):
                out = program(*inputs, 1.25, k % 2 == 0, held)
                if out.requires_grad:
                    out.square().sum().backward()
            found = _numbers(out)
        except RuntimeError as error:
            found = [str(error)]
        grads = [t.grad for t in inputs if t.grad is not None]
        return [*found, *_numbers(held), *_numbers(inputs), *_numbers(grads)]

    def work() -> None:
        left.extend(call(k) for k in range(N_RUNS))

    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(left, key=len) if n_threads > 1 else left


def differences(ours: list[list[Any]], expected: list[list[Any]]) -> list[str]:
    """What does not have the same bits."""
    found = []
    for k, (left, right) in enumerate(zip(ours, expected, strict=True)):
        if len(left) != len(right):
            found.append(f"run {k}: {len(left)} things are left, not {len(right)}")
            continue
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            if isinstance(a, Tensor) and isinstance(b, Tensor):
                same = a.shape == b.shape and torch.equal(_bits(a), _bits(b))
            else:
                same = type(a) is type(b) and bool(a == b)
            if not same:
                found.append(f"run {k}, {i}: {a} instead of {b}")
    return found


def _bits(x: Tensor) -> Tensor:
    """The bits, but for those of a NaN."""
    return x.contiguous().nan_to_num(nan=12345.0).view(torch.int32)

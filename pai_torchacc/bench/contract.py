"""``python -m pai_torchacc verify``: every row of this machine, held to its contract.

Each row is made to serve a few calls of its operator, forward and backward. Rows of
level ``exact`` must give stock's bits; others are judged against float64 as
:func:`pai_torchacc.verify` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _host, verification
from pai_torchacc.calibration import LEVELS

if TYPE_CHECKING:
    from pai_torchacc.bench.progress import Steps

Sample = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Verdict:
    """One row: how often it ran, how many tensors were compared, what was wrong."""

    op: str
    row: str
    level: str
    calls: int
    tensors: int
    broken: list[str]


def run(numerics: str) -> tuple[Any, int]:
    """Check all rows up to this level; the document and the exit status."""
    from rich.console import Console
    from rich.table import Table

    from pai_torchacc.bench.progress import Steps

    with Steps(total=1.0) as steps:
        verdicts = list(verdicts_of_all(numerics, steps))
    table = Table(title=f"rows of this machine, level {numerics} and stricter")
    for column in ("operator", "row", "level", "calls", "tensors", "verdict"):
        table.add_column(
            column, justify="right" if column in ("calls", "tensors") else "left"
        )
    for v in verdicts:
        verdict = "; ".join(v.broken) or ("kept" if v.calls else "took none of these")
        table.add_row(v.op, v.row, v.level, str(v.calls), str(v.tensors), verdict)
    Console(width=120).print(table)
    n_broken = sum(bool(v.broken) for v in verdicts)
    print(f"{len(verdicts)} rows, {n_broken} outside their contract")
    return [asdict(v) for v in verdicts], 1 if n_broken else 0


def verdicts_of_all(
    numerics: str = "close", steps: Steps | None = None
) -> Iterator[Verdict]:
    """One verdict for each row that this CPU can run."""
    c = _host.load()
    asked = [
        (op, row, level)
        for op, _, rows in c.operators()
        for row, level, can_run, _ in rows
        if can_run and LEVELS.index(level) <= LEVELS.index(numerics)
    ]
    for op, row, level in asked:
        if steps:
            steps.begin(f"{op} {row}")
        yield _check(c, op, row, level)
        if steps:
            steps.end(1 / len(asked))


def _check(c: Any, op: str, row: str, level: str) -> Verdict:
    rows = {name: {r[0] for r in rows} for name, _, rows in c.operators()}
    pair = [o for o in (op, _partner(op)) if o in rows]
    pinned = [o for o in pair if row in rows[o]]
    before = c.counters(op)[0]
    tensors, broken = 0, []
    for o in pinned:
        c.pin(o, row)
    try:
        # The name of a forward operator includes its gradient.
        others = [o for o in pair if o.endswith("_backward") and o not in pinned]
        with ptac.enable(
            "operator_fusion", include=pinned, exclude=others, numerics=level
        ):
            for i, (function, inputs) in enumerate(_samples(op)):
                torch.manual_seed(i)
                found = verification.verify(function, inputs)
                tensors += len(found.rows)
                broken += [
                    f"call {i}, {r.name} {r.note}".rstrip()
                    for r in found.rows
                    if not r.passes or r.note
                ]
    finally:
        for o in pinned:
            c.pin(o, None)
    return Verdict(op, row, level, c.counters(op)[0] - before, tensors, broken)


def _partner(op: str) -> str:
    """The operator that a call of this one needs beside it."""
    return (
        op.removesuffix("_backward") if op.endswith("_backward") else f"{op}_backward"
    )


def _samples(op: str) -> Iterator[Sample]:
    """Calls that reach an operator, and their inputs."""
    name = op.removesuffix("_backward")
    if name.endswith("_step"):
        yield from _optimizer_samples(name)
    elif name.endswith("pool2d"):
        yield from _pool_samples(name)
    elif name == "conv2d":
        yield from _conv_samples()
    elif name == "depthwise_conv2d":
        yield from _depthwise_samples()
    elif name == "attention":
        yield from _attention_samples()
    elif name == "linear_act":
        yield from _linear_samples()
    elif name in LISTS:
        yield from _list_samples(name)
    elif name in ("scatter_reduce", "scatter"):
        yield from _reduction_samples(name)
    else:
        yield from _loss_samples(name)


def _pool_samples(name: str) -> Iterator[Sample]:
    function = getattr(F, name)
    windows = ((3,), (5,)) if name.startswith("adaptive") else ((2, 2), (3, 2, 1))
    for shape in ((2, 16, 14, 14), (3, 32, 9, 23)):
        for layout in (torch.contiguous_format, torch.channels_last):
            for dtype in (torch.float32, torch.bfloat16, torch.float64):
                for window in windows:
                    x = torch.randn(shape).to(dtype, memory_format=layout)
                    yield (
                        lambda x, w=window: function(x, *w),
                        (x.requires_grad_(),),
                    )


def _conv_samples() -> Iterator[Sample]:
    """Small enough for the row "scalar", and of enough terms for the others."""
    shapes = ((2, 24, 40, 13, 11), (4, 32, 16, 16, 20), (6, 3, 16, 24, 24))
    for n, c, k, h, w in shapes:
        for size in (3, 5):
            x = torch.randn(n, c, h, w, requires_grad=True)
            weight = torch.randn(k, c, size, size) / (size * c**0.5)
            bias = torch.randn(k, requires_grad=True)
            call = partial(F.conv2d, padding=size // 2)
            yield call, (x, weight.requires_grad_(), bias)


def _depthwise_samples() -> Iterator[Sample]:
    for c, h, w in ((24, 13, 21), (40, 7, 7)):
        for layout in (torch.contiguous_format, torch.channels_last):
            for size, stride in ((3, 1), (3, 2), (5, 1), (7, 1)):
                x = torch.randn(2, c, h, w).to(memory_format=layout)
                weight = torch.randn(c, 1, size, size) / size
                bias = torch.randn(c, requires_grad=True)
                call = partial(F.conv2d, stride=stride, padding=size // 2, groups=c)
                yield call, (x.requires_grad_(), weight.requires_grad_(), bias)


def _attention_samples() -> Iterator[Sample]:
    for heads, n, d in ((4, 40, 32), (6, 130, 64)):
        for causal in (False, True):
            qkv = tuple(torch.randn(2, heads, n, d, requires_grad=True) for _ in "qkv")
            yield partial(F.scaled_dot_product_attention, is_causal=causal), qkv


def _loss_samples(name: str) -> Iterator[Sample]:
    for n, classes in ((64, 10), (33, 1000)):
        x = torch.randn(n, classes, requires_grad=True)
        if name == "log_softmax":
            yield partial(F.log_softmax, dim=1), (x,)
            continue
        for target in (
            torch.randint(0, classes, (n,)),
            torch.randn(n, classes).softmax(1),
        ):
            for smoothing in (0.0, 0.1):
                yield partial(F.cross_entropy, label_smoothing=smoothing), (x, target)


def _linear_samples() -> Iterator[Sample]:
    for m, k, n in ((64, 128, 64), (48, 300, 96)):
        for activation in (
            nn.ReLU(),
            nn.GELU(),
            nn.GELU("tanh"),
            nn.SiLU(),
            nn.Tanh(),
            nn.Sigmoid(),
        ):
            model = nn.Sequential(nn.Linear(k, n), activation)
            yield model, (torch.randn(m, k, requires_grad=True),)


def _clip(grads: Sequence[Tensor]) -> None:
    parameters = [nn.Parameter(torch.empty_like(grad)) for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
    nn.utils.clip_grad_norm_(parameters, 0.5)


def _unscale(grads: Sequence[Tensor]) -> None:
    scale, found = torch.tensor(1 / 128), torch.zeros(1)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)


LISTS: dict[str, Callable[[Sequence[Tensor]], None]] = {
    "clip_grad_norm": _clip,
    "unscale_grads": _unscale,
    "foreach_clamp": lambda x: torch._foreach_clamp_min_(x, -0.5),
    "foreach_lerp": lambda x: torch._foreach_lerp_(x, [t.flip(0) for t in x], 0.1),
}
"""Operators that write to lists of tensors."""


def _list_samples(name: str) -> Iterator[Sample]:
    def written(*tensors: Tensor) -> list[Tensor]:
        copies = [t.clone() for t in tensors]
        LISTS[name](copies)
        return copies

    for sizes in ((3, 1000, 17), (70000,), (5, 8, 256, 4101)):
        yield written, tuple(torch.randn(n) for n in sizes)


def _reduction_samples(name: str) -> Iterator[Sample]:
    def reduced(table: Tensor, x: Tensor, index: Tensor, how: str) -> Tensor:
        if name == "scatter":
            return table.scatter(0, index, 1.5)
        return table.scatter_reduce(0, index, x, how, include_self=how == "sum")

    for width in (1, 8, 64):
        index = torch.randint(0, 40, (300, 1)).expand(300, width)
        for how in ("sum", "mean", "amax", "amin"):
            call = partial(reduced, index=index, how=how)
            yield call, (torch.randn(50, width), torch.randn(300, width))


def _optimizer_samples(name: str) -> Iterator[Sample]:
    sgd = (
        {"momentum": 0.9},
        {"weight_decay": 0.01},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "foreach": True},
        {"momentum": 0.9, "fused": True},
    )
    adam = (
        {},
        {"amsgrad": True},
        {"weight_decay": 0.01, "maximize": True},
        {"foreach": True},
        {"amsgrad": True, "fused": True},
    )
    adadelta = ({}, {"weight_decay": 0.01, "maximize": True}, {"rho": 0.5})
    rmsprop = ({}, {"momentum": 0.9, "weight_decay": 0.01}, {"centered": True})
    adagrad = ({}, {"lr_decay": 0.1, "weight_decay": 0.01}, {"fused": True})
    nadam = ({}, {"weight_decay": 0.01}, {"foreach": True})
    cls, choices = {
        "sgd_step": (torch.optim.SGD, sgd),
        "zero_grad": (torch.optim.SGD, sgd),
        "adam_step": (torch.optim.Adam, adam),
        "adamw_step": (torch.optim.AdamW, adam),
        "adadelta_step": (torch.optim.Adadelta, adadelta),
        "rmsprop_step": (torch.optim.RMSprop, rmsprop),
        "adagrad_step": (torch.optim.Adagrad, adagrad),
        "nadam_step": (torch.optim.NAdam, nadam),
    }[name]

    def three_steps(p: Tensor, grads: Tensor, options: dict[str, Any]) -> Tensor:
        parameter = nn.Parameter(p.detach().clone())
        optimizer = cls([parameter], lr=0.01, **options)
        for grad in grads:
            parameter.grad = grad.clone()
            optimizer.step()
        return parameter.detach()

    for options in choices:
        for n in (3, 1000):
            for dtype in (torch.float32, torch.float64):
                p, grads = torch.randn(n, dtype=dtype), torch.randn(3, n, dtype=dtype)
                yield partial(three_steps, options=options), (p, grads)

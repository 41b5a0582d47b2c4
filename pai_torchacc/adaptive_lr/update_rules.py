"""The directions in which optimizers of torch step, as far as Polyak's rate asks.

For each class: how much one step of rate 1 would lower the loss to first order, the sum
of gradient times direction; and by which factor its rate stands to Polyak's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import torch

from pai_torchacc import _C

Group = dict[str, Any]
Numbers = tuple[float, float, float, float, float]


@dataclass(frozen=True)
class Direction:
    """What is to be known of an optimizer class."""

    average: str | None
    square: str | None
    """Names in the optimizer's state of averages: of gradients, of their squares."""
    numbers: Callable[[Group, float], Numbers] | None
    """Of a group and the count of the coming step: the coefficients of
    ``_C.descent_sum``; None where the direction is the gradient."""
    factor: Callable[[Group], float]
    """Of a group: by what its rate is multiplied when compared with Polyak's."""
    most_exponent: float
    """The multiplier's logarithm lies within +- this."""
    falls_by_evidence: bool
    """Whether the rate is lowered only while losses rise. Of directions that are scaled
    by element, Polyak's rate says too little to lower one that works."""


def _momentum(group: Group) -> float:
    """Rates with momentum compare by the root of what the gradients add up to."""
    if not group.get("momentum"):  # dampening is of momentum alone
        return 1.0
    return (1 - float(group.get("dampening", 0))) / sqrt(_rest(group))


def _rest(group: Group) -> float:
    return 1 - min(max(float(group.get("momentum") or 0), 0.0), 0.9999)


def caution(group: Group) -> float:
    """By how much less rates are raised than their factor asks for.

    Beyond momentum 0.9 the root goes over into the sum itself, which it is from 0.99
    on: losses of ten steps do not show what higher rates lead to.
    """
    rest = _rest(group)
    return min(max(1, 0.1 / rest), 1 / sqrt(rest))


def _adam(group: Group, count: float) -> Numbers:
    beta1, beta2 = map(float, group["betas"])
    first, second = 1 - beta1**count, 1 - beta2**count
    return (
        beta1 / first,
        (1 - beta1) / first,
        beta2 / second,
        (1 - beta2) / second,
        float(group["eps"]),
    )


_SHORTEST = 5
"""Length of the average of squares, in steps, up to which RAdam does not use it."""


def _radam(group: Group, count: float) -> Numbers:
    """Adam's, rectified; in the first steps the average alone, divided by one."""
    keep, add, keep_square, add_square, eps = _adam(group, count)
    beta2 = float(group["betas"][1])
    second = 1 - beta2**count
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * count * beta2**count / second
    if length <= _SHORTEST:
        return keep, add, 0.0, 0.0, 1.0
    rectified = sqrt(
        (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    )
    eps /= sqrt(second)
    return keep * rectified, add * rectified, keep_square, add_square, eps


def _rmsprop(group: Group, count: float) -> Numbers:
    alpha = float(group["alpha"])
    return 0.0, 1.0, alpha, 1 - alpha, float(group["eps"])


def _adagrad(group: Group, count: float) -> Numbers:
    return 0.0, 1.0, 1.0, 1.0, float(group["eps"])


def _averaged(group: Group) -> float:
    """Of averaged directions that are scaled by element: a fifth of Polyak's.

    This and the next were measured on a Transformer, a convolutional network, and
    regressions by several losses.
    """
    return 5.0


def _unaveraged(group: Group) -> float:
    """Of directions scaled by element that are not averages: half of Polyak's."""
    return 2 / sqrt(_rest(group))


_ADAM = Direction("exp_avg", "exp_avg_sq", _adam, _averaged, log(8), True)

_BY_NAME = {
    "SGD": Direction(None, None, None, _momentum, log(1e9), False),
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "NAdam": _ADAM,
    "RAdam": Direction("exp_avg", "exp_avg_sq", _radam, _averaged, log(8), True),
    "RMSprop": Direction(None, "square_avg", _rmsprop, _unaveraged, log(8), True),
    "Adagrad": Direction(None, "sum", _adagrad, _unaveraged, log(8), True),
}

FUNCTIONS = {name: name.lower() for name in _BY_NAME if name != "AdamW"}
"""By class, the function (and the module) of ``torch.optim`` that makes its update."""

unserved: dict[str, str] = {}
"""Names of classes whose updates cannot have another rate, and why."""


def direction_of(optimizer: Any) -> Direction | str:
    """What is known of this optimizer, or why it is left alone."""
    from torch import optim

    cls = type(optimizer)
    known = _BY_NAME.get(cls.__name__)
    if known is None or getattr(optim, cls.__name__, None) is not cls:
        if cls is optim.LBFGS:
            return "LBFGS searches its steps itself, by closures"
        return f"the direction of {cls.__name__} is not known here"
    for group in optimizer.param_groups:
        if any(p.device.type != "cpu" for p in group["params"]):
            return "parameters on a device other than the CPU"
    return unserved.get(cls.__name__) or reason_to_leave(optimizer) or known


def reason_to_leave(optimizer: Any) -> str | None:
    """What may have become of its groups since it was made."""
    for group in optimizer.param_groups:
        if group.get("maximize"):
            return "it maximizes"
        if group.get("differentiable"):
            return "its steps are differentiated"
    return None


def moves(optimizer: Any) -> bool:
    """Steps at a rate of zero, as warm-ups begin with, change no loss."""
    return any(float(group["lr"]) != 0 for group in optimizer.param_groups)


def highest_rates(optimizer: Any, so_far: list[float]) -> list[float]:
    """``so_far``, by now: what each group has had, or a scheduler has announced."""
    groups = optimizer.param_groups
    if len(so_far) != len(groups):
        del so_far[len(groups) :]
        so_far += [0.0] * (len(groups) - len(so_far))
    for i, group in enumerate(groups):
        for key in ("lr", "initial_lr", "max_lr"):
            rate = group.get(key)
            if rate is not None and _is_rate(rate) and rate > so_far[i]:
                so_far[i] = float(rate)
    return so_far


def _is_rate(value: Any) -> bool:
    """Users may keep what they like under the names of schedulers."""
    if isinstance(value, (float, int)):
        return True
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return getattr(value, "ndim", 1) == 0


def with_gradients(optimizer: Any) -> list[int]:
    """The places of the groups of which any parameter has a gradient."""
    return [
        i
        for i, group in enumerate(optimizer.param_groups)
        if any(param.grad is not None for param in group["params"])
    ]


def descent(
    known: Direction, optimizer: Any, group: Group, scale: float
) -> float | None:
    """The sum of gradient times direction over one group.

    Without weight decay and amsgrad's maximum. ``scale`` is what gradients are to be
    multiplied by first. None where a gradient is not a dense tensor of real numbers.
    """
    params = [p for p in group["params"] if p.grad is not None]
    if known.numbers is None:
        return sum_of([[p.grad for p in params], None, None], scale, None)
    alike: dict[tuple[float, bool], list[Any]] = {}
    for p in params:
        state = optimizer.state.get(p) or {}
        alike.setdefault((float(state.get("step", 0)), bool(state)), []).append(p)
    total = 0.0
    for (count, _), some in alike.items():
        states = [optimizer.state.get(p) or {} for p in some]
        of_state = [
            [state[name] for state in states] if name in states[0] else None
            for name in (known.average, known.square)
        ]
        grads = [p.grad for p in some]
        found = sum_of([grads, *of_state], scale, known.numbers(group, count + 1))
        if found is None:
            return None
        total += found
    return total


def sum_of(lists: list[Any], scale: float, numbers: Any) -> float | None:
    """``_C.descent_sum`` of any floating dtype and order; None of sparse tensors."""
    found = _C.descent_sum(*lists, scale, numbers)
    if found is None:
        found = _C.descent_sum(*map(_plain, lists), scale, numbers)
    return found


def _plain(tensors: list[Any] | None) -> list[Any] | None:
    """Copies in float32 or float64 and one order of memory, where there can be such."""
    if tensors is None or not all(map(_is_dense, tensors)):
        return tensors
    real = [
        torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors
    ]
    return [
        t.detach().to(torch.promote_types(t.dtype, torch.float32)).contiguous()
        for t in real
    ]


def _is_dense(tensor: Any) -> bool:
    """Whether its elements lie in the CPU's memory."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and (tensor.is_floating_point() or tensor.is_complex())
        and (not tensor.numel() or tensor.untyped_storage().nbytes() > 0)
    )


def distance(params: list[Any], begin: list[Any]) -> float:
    """How far parameters are from where they began."""
    with torch.no_grad():
        moved = torch._foreach_sub([p.detach() for p in params], begin)
        return sqrt(sum(float(n) ** 2 for n in torch._foreach_norm(moved)))

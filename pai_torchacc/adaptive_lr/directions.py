"""The directions in which optimizers of torch step, as far as Polyak's rate asks.

For each class: how much one step of rate 1 would lower the loss to first order, the sum
of gradient times direction; and by which factor its rate stands to Polyak's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

Group = dict[str, Any]
Numbers = tuple[float, float, float, float, float]


@dataclass(frozen=True)
class Direction:
    """What is to be known of an optimizer class.

    Attributes
    ----------
    average, square : str or None
        Names in the optimizer's state of the averages of gradients and of their
        squares.
    numbers : callable
        Of a group and the count of the coming step: the coefficients of
        ``_C.descent_sum``; None where the direction is the gradient.
    factor : callable
        Of a group: by what its rate is multiplied when compared with Polyak's.
    most : float
        The multiplier lies between its inverse and this.
    """

    average: str | None
    square: str | None
    numbers: Callable[[Group, float], Numbers] | None
    factor: Callable[[Group], float]
    most: float


def _momentum(group: Group) -> float:
    """Rates with momentum compare by the root of what the gradients add up to."""
    momentum = min(max(float(group["momentum"]), 0.0), 0.9999)
    return (1 - float(group.get("dampening", 0))) / sqrt(1 - momentum)


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


def _rmsprop(group: Group, count: float) -> Numbers:
    alpha = float(group["alpha"])
    return 0.0, 1.0, alpha, 1 - alpha, float(group["eps"])


def _adagrad(group: Group, count: float) -> Numbers:
    return 0.0, 1.0, 1.0, 1.0, float(group["eps"])


def _averaged(group: Group) -> float:
    """Of averaged directions that are scaled by element: a fifth of Polyak's.

    This and the next were measured on a Transformer and a convolutional network.
    """
    return 5.0


def _unaveraged(group: Group) -> float:
    """Of directions scaled by element that are not averages."""
    momentum = min(max(float(group.get("momentum", 0)), 0.0), 0.9999)
    return 0.6 / sqrt(1 - momentum)


_ADAM = Direction("exp_avg", "exp_avg_sq", _adam, _averaged, 8.0)

_BY_NAME = {
    "SGD": Direction(None, None, None, _momentum, 1e9),
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "NAdam": _ADAM,
    "RAdam": _ADAM,
    "RMSprop": Direction(None, "square_avg", _rmsprop, _unaveraged, 8.0),
    "Adagrad": Direction(None, "sum", _adagrad, _unaveraged, 8.0),
}

FUNCTIONS = {"SGD": "sgd", "Adam": "adam", "NAdam": "nadam", "RAdam": "radam"} | {
    "RMSprop": "rmsprop",
    "Adagrad": "adagrad",
}
"""By class, the function (and the module) of ``torch.optim`` that makes its update."""


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
        if group.get("maximize"):
            return "it maximizes"
        if any(p.device.type != "cpu" for p in group["params"]):
            return "parameters on a device other than the CPU"
        if group.get("differentiable"):
            return "its steps are differentiated"
    return known


def descent(
    c: Any, known: Direction, optimizer: Any, group: Group, scale: float
) -> float | None:
    """The sum of gradient times direction over one group.

    ``scale`` is what gradients are to be multiplied by first. None where a gradient is
    not a plain dense tensor.
    """
    params = [p for p in group["params"] if p.grad is not None]
    grads = [p.grad for p in params]
    if not grads:
        return 0.0
    if known.numbers is None:
        return squares(c, grads, scale)
    states = [optimizer.state.get(p) for p in params]
    count = float((states[0] or {}).get("step", 0)) + 1
    averages = _named(states, known.average)
    moments = _named(states, known.square)
    return c.descent_sum(grads, averages, moments, scale, known.numbers(group, count))


def _named(states: list[Any], name: str | None) -> list[Any] | None:
    """These averages; None where the direction has none, or before the first step."""
    if name is None or any(not state or name not in state for state in states):
        return None
    return [state[name] for state in states]


def squares(c: Any, grads: list[Any], scale: float) -> float | None:
    """The sum of squares, of any dtype or layout in memory; None of sparse tensors."""
    import torch

    found = c.descent_sum(grads, None, None, scale, None)
    if found is not None:
        return found
    if any(g.is_sparse or g.device.type != "cpu" for g in grads):
        return None
    with torch.no_grad():
        norms = torch._foreach_norm([g.detach() for g in grads])
        return sum(float(n) ** 2 for n in norms) * scale * scale


def distance(params: list[Any], begin: list[Any]) -> float:
    """How far parameters are from where they began."""
    import torch

    with torch.no_grad():
        moved = torch._foreach_sub([p.detach() for p in params], begin)
        return sqrt(sum(float(n) ** 2 for n in torch._foreach_norm(moved)))


def most_exponent(known: Direction) -> float:
    """Bound of the multiplier's logarithm."""
    return log(known.most)

"""Whether a module may be divided: a first batch whole, and divided, compared.

A module whose rows do not depend on each other gives the same outputs, gradients and
buffers both ways, but for rounding, and keeps the same in its attributes. The losses
that follow do not matter, for they are computed from whole batches. So gradients are
those of the outputs times random numbers, which stand for any loss. A difference that
may be rounding is judged in float64.
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from pai_torchacc.data_parallelism import randomness
from pai_torchacc.data_parallelism.batches import Call
from pai_torchacc.data_parallelism.dividing import Undividable, device_of, divided
from pai_torchacc.data_parallelism.group import Group

BOUND = 1e-6
"""Norm of the difference over norm, of all tensors of a kind together."""

_WHAT = ("outputs", "gradients", "buffers", "attributes")


@dataclass(frozen=True)
class Verdict:
    """Whether calls are divided; alike on all ranks.

    Attributes
    ----------
    is_divided : bool
    reason : str
        The measured difference, or what is in the way.
    error : float
        The largest difference, as it is and not in float64. NaN where a run failed.
    """

    is_divided: bool
    reason: str
    error: float = math.nan


@dataclass
class _Found:
    outputs: list[Tensor]
    gradients: list[Tensor | None]
    buffers: list[Tensor]
    attributes: list[Tensor]
    strangers: list[Tensor]


def check(module: nn.Module, call: Call, group: Group) -> Verdict:
    """Compare on copies; module, arguments and random numbers stay as they are."""
    watched = sorted({type(m).__name__ for m in module.modules() if is_watched(m)})
    if not group.all_agree(not watched):
        who = " and ".join(watched) or "a layer, in another process,"
        return Verdict(False, f"{who} has a hook, which would see some rows alone")
    call = call.changed(lambda t: t.detach().clone())
    with randomness.left_alone():
        first = _compared(module, call, group, is_double=False)
        if first.is_divided or math.isnan(first.error):
            return first
        with torch.autocast(device_of(module).type, enabled=False):
            again = _compared(module, call.changed(_doubled), group, is_double=True)
    if math.isnan(again.error):
        return Verdict(False, f"{first.reason}; in float64 {again.reason}")
    if not again.is_divided:
        return again
    return Verdict(True, f"{first.reason}; in float64 {again.reason}", first.error)


def _compared(module: nn.Module, call: Call, group: Group, is_double: bool) -> Verdict:
    """The verdict on one batch; its error is NaN where a run failed."""
    failure, whole, divisible = "", None, module
    before = call.digest(with_values=True)
    try:
        one, divisible = (_copied(module, is_double) for _ in range(2))
        whole = _found(one, lambda: _called(one, call))
        if call.digest(with_values=True) != before:
            whole, failure = None, "it changes its arguments in place"
    except Undividable as error:
        failure = str(error)
    except Exception as error:
        failure = f"a copy of it raised {type(error).__name__}: {error}"
    if not group.all_agree(whole is not None) or whole is None:
        return Verdict(False, failure or "a copy of it failed in another process")
    found = None
    try:
        found = _found(divisible, lambda: divided(divisible, call, group))
        # A call makes its own tensors; those of two calls are from outside.
        if set(map(id, whole.strangers)) & set(map(id, found.strangers)):
            found, failure = None, "it learns a tensor that is none of its parameters"
    except Exception as error:
        kind = "" if isinstance(error, Undividable) else f"{type(error).__name__}: "
        failure = f"{kind}{error}"
    if not group.all_agree(found is not None) or found is None:
        return Verdict(False, failure or "dividing it failed in another process")
    return _judged(whole, found, group, module)


def _copied(module: nn.Module, is_double: bool) -> nn.Module:
    copied = copy.deepcopy(module)
    return copied.double() if is_double else copied


def _doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _called(module: nn.Module, call: Call) -> Any:
    call = call.on(device_of(module))
    args, kwargs = call.with_tensors(call.tensors)
    return module(*args, **kwargs)


def _found(module: nn.Module, run: Callable[[], Any]) -> _Found:
    with randomness.left_alone(), randomness.Certain():
        leaves = pytree.tree_leaves(run())
        outputs = [t for t in leaves if isinstance(t, Tensor)]
        parameters = list(module.parameters())
        for parameter in parameters:
            parameter.grad = None
        roots = [t for t in outputs if t.requires_grad]
        strangers = _strangers(roots, parameters)
        if roots:
            _backward(roots, strangers)
        gradients = [p.grad for p in parameters if p.is_leaf]
    buffers, attributes = list(module.buffers()), _attributes(module)
    outputs = [t.detach() for t in outputs]
    return _Found(outputs, gradients, buffers, attributes, strangers)


def _strangers(roots: Iterable[Tensor], own: Iterable[Tensor]) -> list[Tensor]:
    """What gets a gradient and is no parameter of the module."""
    known = set(map(id, own))
    found, seen, to_see = [], set(), [t.grad_fn for t in roots]
    while to_see:
        node: Any = to_see.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().endswith("AccumulateGrad") and id(node.variable) not in known:
            found.append(node.variable)
        to_see += [following for following, _ in node.next_functions]
    return found


def _backward(roots: Sequence[Tensor], strangers: Iterable[Tensor]) -> None:
    """Gradients of the outputs times random numbers; others keep what they have."""
    before = [(tensor, tensor.grad) for tensor in strangers]
    for tensor, _ in before:
        tensor.grad = None
    try:
        # Not torch.autograd.grad, which leaves out what a checkpoint recomputes.
        torch.autograd.backward(roots, _weights(roots))
    finally:
        for tensor, gradient in before:
            tensor.grad = gradient


def _attributes(module: nn.Module) -> list[Tensor]:
    """What the script's layers keep beside parameters and buffers, for others to see.

    Raises
    ------
    Undividable
        A result with gradients is kept, such as an auxiliary loss: of some rows alone.
    """
    kept, numbers, torchs_own = [], [], vars(nn.Module())
    for m in module.modules():
        names = (
            [] if _is_of(m, "torch") else [n for n in vars(m) if n not in torchs_own]
        )
        for name in names:
            for leaf in pytree.tree_leaves(vars(m)[name]):
                if isinstance(leaf, (int, float)):
                    numbers.append(float(leaf))
                elif isinstance(leaf, Tensor):
                    if leaf.grad_fn is not None:
                        what = f"{type(m).__name__}.{name}"
                        raise Undividable(f"{what} keeps a result of the call")
                    kept.append(leaf)
    return [*kept, torch.tensor(numbers, dtype=torch.float64)]


def _is_of(what: Any, *packages: str) -> bool:
    module = getattr(what, "__module__", None) or ""
    return module.partition(".")[0] in packages


def is_watched(layer: nn.Module) -> bool:
    """Whether hooks see what the layer takes or gives; not those of torch and ours."""
    for kind in ("forward", "forward_pre", "backward", "backward_pre"):
        hooks = getattr(layer, f"_{kind}_hooks", None) or {}
        if not all(_is_of(hook, "torch", "pai_torchacc") for hook in hooks.values()):
            return True
    return False


def _weights(roots: Iterable[Tensor]) -> list[Tensor]:
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(t.shape, generator=draws).to(t) for t in roots]


def _judged(whole: _Found, found: _Found, group: Group, module: nn.Module) -> Verdict:
    mine = (
        _difference(whole.outputs, found.outputs),
        _difference(whole.gradients, found.gradients),
        _difference(whole.buffers, found.buffers),
        _difference(whole.attributes, found.attributes),
    )
    # Bits of numbers that are not negative have the order of the numbers.
    rows = group.exchange([struct.unpack("q", struct.pack("d", d))[0] for d in mine])
    columns = [max(column) for column in zip(*rows, strict=True)]
    worst = [struct.unpack("d", struct.pack("q", bits))[0] for bits in columns]
    parts = zip(_WHAT, worst, strict=True)
    text = ", ".join(f"{what} differ by {difference:.1g}" for what, difference in parts)
    reason = f"first batch divided, beside whole: {text}"
    if max(worst) > BOUND:
        return Verdict(False, reason + _culprits(module), max(worst))
    return Verdict(True, reason, max(worst))


def _difference(
    wanted: Sequence[Tensor | None], found: Sequence[Tensor | None]
) -> float:
    """Norm of the difference over norm, of all numbers together; inf if not alike."""
    if len(wanted) != len(found):
        return math.inf
    difference = norm = 0.0
    for a, b in zip(wanted, found, strict=True):
        if a is None or b is None:
            difference += 0 if a is b else math.inf
        elif a.shape != b.shape or a.dtype != b.dtype:
            difference = math.inf
        elif not (a.is_floating_point() or a.is_complex()):
            difference += 0 if torch.equal(a, b) else math.inf
        elif not torch.equal(a.isfinite(), b.isfinite()):
            difference = math.inf
        else:
            x, y = _exact(a), _exact(b)
            difference += float((x - y).norm()) ** 2
            norm += float(x.norm()) ** 2
    return math.sqrt(difference / (norm or 1.0))


def _exact(tensor: Tensor) -> Tensor:
    """In double precision; 0 for what is not finite."""
    kind = torch.complex128 if tensor.is_complex() else torch.float64
    return torch.where(tensor.isfinite(), tensor, 0).to(kind)


def _culprits(module: nn.Module) -> str:
    """Layers that are known to look at a whole batch."""
    found = {
        type(m).__name__
        for m in module.modules()
        if isinstance(m, _BatchNorm) and (m.training or not m.track_running_stats)
    }
    names = " and ".join(sorted(found))
    return f"; {names} takes its statistics over the batch" if names else ""

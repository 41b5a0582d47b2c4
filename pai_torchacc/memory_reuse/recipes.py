"""How to compute a saved tensor again from what other nodes save anyway.

The node that made a tensor tells what it saved and with which arguments it was called.
Only cheap operators are here, whose every element follows from its own arguments. Each
is computed again before its result is forgotten: where the bits are not those at hand,
the tensor is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from pai_torchacc.memory_reuse import float_mode
from pai_torchacc.memory_reuse.packing import Form

SMALL = 256 << 10
"""Bytes of inputs that are copied, so that nobody can change them."""

DEEPEST = 4

VIEWS = frozenset(
    f"{name}Backward0"
    for name in (
        "View", "UnsafeView", "ReshapeAlias", "Transpose", "T", "Permute", "Expand",
        "Squeeze", "Unsqueeze", "Slice", "Select", "Split", "SplitWithSizes", "Unbind",
        "AsStrided", "Alias", "Detach",
    )
)  # fmt: skip
"""Nodes whose output lies in the memory of their input."""

_UNARY: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "GeluBackward0": (
        lambda x, approximate: F.gelu(x, approximate=approximate),
        ("approximate",),
    ),
    "SiluBackward0": (F.silu, ()),
    "MishBackward0": (F.mish, ()),
    "HardswishBackward0": (F.hardswish, ()),
    "SoftplusBackward0": (F.softplus, ("beta", "threshold")),
    "LeakyReluBackward0": (F.leaky_relu, ("negative_slope",)),
    "HardtanhBackward0": (F.hardtanh, ("min_val", "max_val")),
}
"""Operators that save their input, and the arguments that their nodes tell."""

_PRODUCERS = frozenset((*_UNARY, "NativeLayerNormBackward0", "MulBackward0"))


class _NotPossible(Exception):
    """No recipe."""


class _NotYet(Exception):
    """A recipe would do, but somebody still has an input of it, which is in a box."""


class Expression:
    """A call of an operator on holders, copies of small inputs and other calls."""

    def __init__(self, call: Callable[..., Tensor], *args: Any):
        self.call, self.args = call, args

    def value(self) -> Tensor:
        """Compute it."""
        return self.call(*map(_value, self.args))

    def gives(self, c: Any, flat: Tensor) -> bool:
        """Whether it is what lies in ``flat``, to the bit."""
        again = _flat(self.value(), flat.numel())
        return again.dtype == flat.dtype and c.pack_equal(
            again.data_ptr(), flat.data_ptr(), flat.nbytes
        )

    def note_inputs(self) -> None:
        """Have the memory of its inputs never be computed again in its turn."""
        for arg in self.args:
            if isinstance(arg, Expression):
                arg.note_inputs()
            elif _is_holder(arg):
                arg.box.is_input = True


class _LayerNorm(Expression):
    """In one pass of ours if that gave the bits at hand, else in three of torch's."""

    _apply: Callable[..., bool] | None = None

    def gives(self, c: Any, flat: Tensor) -> bool:
        """See :class:`Expression`."""
        if c.layer_norm_matches(*map(_value, self.args), flat):
            self._apply = c.layer_norm_apply
            return True
        return super().gives(c, flat)

    def value(self) -> Tensor:
        """See :class:`Expression`."""
        if self._apply is None:
            return super().value()
        x, *others = map(_value, self.args)
        out = torch.empty_like(x)
        if not self._apply(x, *others, out):
            raise RuntimeError("this CPU is not the one that computed before")
        return out


def _value(arg: Any) -> Any:
    if isinstance(arg, Expression):
        return arg.value()
    return arg.box.tensor_of(arg) if _is_holder(arg) else arg


MECHANISM = "recompute"


def _flat(tensor: Tensor, n: int) -> Tensor:
    if tensor.untyped_storage().nbytes() != n * tensor.element_size():
        raise _NotPossible
    return tensor.as_strided((n,), (1,), 0)


def _is_holder(thing: Any) -> bool:
    return type(thing).__name__ == "Held"


def behind_views(node: Any) -> Any:
    """The node that filled the memory of what this one gave."""
    while node is not None and type(node).__name__ in VIEWS:
        node = node.next_functions[0][0]
    return node


def producer(node: Any) -> Any:
    """The node that computed this memory, if there may be a recipe for it."""
    node = behind_views(node)
    return node if _name(node) in _PRODUCERS else None


def _name(node: Any) -> str:
    """The name of torch's own node; nodes of Python functions may have the same."""
    return "" if isinstance(node, BackwardCFunction) else type(node).__name__


def find(c: Any, box: Any, flat: Tensor) -> Any:
    """A form for the box whose memory is ``flat``; None; or the box to wait for."""
    if box.node is None or box.is_input:
        return None
    try:
        expression = _expression(box.node, 0, box)
        return _proven(c, expression, box, flat)
    except _NotPossible:
        return None
    except _NotYet as waiting:  # it would keep frames, so it is not handed on
        return waiting.args[0]
    except (RuntimeError, MemoryError):  # the node has been used up, or memory has
        return None


def _proven(c: Any, expression: Expression, box: Any, flat: Tensor) -> Form | None:
    """The form, if computing again gives what is there, to the bit, now.

    Each time anew: a program may have changed the memory since the node filled it,
    under no_grad or by way of ``.data``, of which no version tells.
    """
    if not float_mode.alone(
        lambda: float_mode.here(c) == box.float_mode and expression.gives(c, flat)
    ):
        return None
    expression.note_inputs()
    n = flat.numel()
    return Form(MECHANISM, 0, lambda: _flat(expression.value(), n))


def _expression(node: Any, depth: int, box: Any) -> Expression:
    name = _name(node)
    if depth > DEEPEST:
        raise _NotPossible
    if name in _UNARY:
        call, names = _UNARY[name]
        arguments = [getattr(node, f"_saved_{n}") for n in names]
        return Expression(call, _saved(node, "self", box), *arguments)
    if name == "NativeLayerNormBackward0":
        # The results are mean and rstd.
        arguments = "input", "result1", "result2", "weight", "bias"
        return _LayerNorm(_normalized, *(_saved(node, n, box) for n in arguments))
    if name == "MulBackward0":
        return _product(node, depth, box)
    raise _NotPossible


def _raw(node: Any, name: str) -> Any:
    return getattr(node, f"_raw_saved_{name}").data


def _saved(node: Any, name: str, box: Any) -> Any:
    """What a node saved, if it is and stays ours."""
    holder = _raw(node, name)
    if not _is_holder(holder):
        raise _NotPossible
    if holder.box is None:
        tensor = holder.tensor
        if tensor.nbytes > SMALL or tensor._version != holder.version:
            raise _NotPossible
        return tensor.detach().clone()  # so that it stays as it was
    if holder.box is box or holder.box.float_mode != box.float_mode:
        raise _NotPossible
    if holder.box.form is not None and holder.box.form.mechanism == MECHANISM:
        raise _NotPossible  # a chain of them would be computed as a whole
    if not holder.box.is_ours():
        raise _NotYet(holder.box)
    return holder


def _product(node: Any, depth: int, box: Any) -> Expression:
    factors = [
        _output(edge, depth + 1, box)
        if _raw(node, name) is None
        else _saved(node, name, box)
        for name, edge in zip(("self", "other"), node.next_functions, strict=True)
    ]
    return Expression(torch.mul, *factors)


def _output(edge: tuple[Any, int], depth: int, box: Any) -> Any:
    """What a node gave, from what it saved."""
    node, number = edge
    if node is None or number != 0:
        raise _NotPossible
    if hasattr(type(node), "_raw_saved_result"):
        return _saved(node, "result", box)
    return _expression(node, depth, box)


def _normalized(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """((x - mean) * rstd) * weight + bias, as torch's kernel rounds it.

    Whose eps is not known here, and not needed.
    """
    out = torch.sub(x, mean).mul_(rstd)
    return torch.addcmul(bias, out, weight, out=out)

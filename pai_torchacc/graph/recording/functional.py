"""Operators in place, as operators that make new tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pai_torchacc.graph.ir import Function, Node, Value

_aten = torch.ops.aten

_FUNCTIONAL = {
    _aten.bernoulli_.float: _aten.bernoulli.p,
    _aten.pow_.Scalar: _aten.pow.Tensor_Scalar,
}
"""Of operators in place whose other form is called otherwise."""


def form_of(func: Any) -> Any:
    """The overload that gives a new tensor of the same arguments; None without one."""
    other = _FUNCTIONAL.get(func) or _namesake(func)
    return other if other is not None and _are_alike(other, func) else None


def completed(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with what an operator in place has by default and its form not."""
    if func in _FUNCTIONAL and not args[1:]:
        return (*args, func._schema.arguments[1].default_value)
    return args


def _namesake(func: Any) -> Any:
    name = func._schema.name.removeprefix("aten::")
    packet = getattr(_aten, name.removesuffix("_"), None)
    overload = func._schema.overload_name or "default"
    return getattr(packet, overload, None) if name.endswith("_") else None


def _are_alike(a: Any, b: Any) -> bool:
    """Whether two overloads take the same arguments, and give a new tensor."""
    kinds = [
        [(argument.name, str(argument.type)) for argument in func._schema.arguments]
        for func in (a, b)
    ]
    returns = a._schema.returns
    return kinds[0] == kinds[1] and all(one.alias_info is None for one in returns)


def result_of(node: Node) -> Tensor:
    """What a node will give: a tensor without data."""
    with torch._C._DisableTorchDispatch():
        made: Tensor = node.op(*_on_meta(node.args), **_on_meta(node.kwargs))
    return made


def _with_part(
    base: Tensor, part: Tensor, sizes: Any, strides: Any, offset: int
) -> Tensor:
    """A copy of a tensor that has other numbers in one of its views."""
    whole = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype)
    whole.copy_(base)
    whole.as_strided(sizes, strides, offset).copy_(part)
    return whole


WITH_PART = Function("with_part", _with_part, True)


def on_a_copy(func: Any) -> Function:
    """An operator in place that writes to a copy, which lies as its tensor does."""

    def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made: Tensor = func(tensor.clone(), *args, **kwargs)
        return made

    name = func._schema.name.removeprefix("aten::")
    is_pure = torch.Tag.nondeterministic_seeded not in func.tags
    return Function(name, call, is_pure, tuple(func.tags))


def _on_meta(arguments: Any) -> Any:
    """The same arguments with tensors that have no data."""
    if isinstance(arguments, Value):
        return torch.empty_strided(
            arguments.sizes, arguments.strides, dtype=arguments.dtype, device="meta"
        )
    if isinstance(arguments, dict):
        return {name: _on_meta(value) for name, value in arguments.items()}
    if isinstance(arguments, list | tuple):
        return type(arguments)(_on_meta(item) for item in arguments)
    return arguments

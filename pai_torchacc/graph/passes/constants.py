"""What depends on no argument, and no parameter that may change, is computed once."""

from __future__ import annotations

from typing import Any

import torch

from pai_torchacc.graph.ir import Graph, Node, Value, values_in

_MOST_BYTES = 1 << 24
"""That a plan keeps for a constant."""


def run(graph: Graph) -> None:
    """Compute them now, and hold them; results are new tensors in each call."""
    results = graph.result_roots()
    known: dict[Value, Any] = dict(graph.constants)
    kept = []
    for node in graph.nodes:
        read = list(node.inputs())
        is_small = sum(_bytes(value) for value in node.outputs if value) <= _MOST_BYTES
        if (
            not node.is_pure()
            or not is_small
            or not (_asks_geometry_alone(node) or all(v.root in known for v in read))
            or any(value in results for value in node.outputs)
            or node.name.startswith("empty")
        ):
            kept.append(node)
            continue
        with torch.no_grad(), torch.inference_mode(False):
            made = node.op._op(*_given(node.args, known), **_named(node.kwargs, known))
        outputs = made if isinstance(made, list | tuple) else [made]
        pairs = [
            (v, t) for v, t in zip(node.outputs, outputs, strict=True) if v is not None
        ]
        if all(_looks_like(tensor, value) for value, tensor in pairs):
            known.update(pairs)
        else:
            kept.append(node)
    graph.nodes = kept
    used = results | {value.root for node in kept for value in values_in(node.args)}
    used |= {v.root for node in kept for v in values_in(tuple(node.kwargs.values()))}
    graph.constants = {value: t for value, t in known.items() if value in used}


_OF_GEOMETRY = {
    *("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"),
}
"""Operators whose results do not depend on what is in their tensor."""


def _asks_geometry_alone(node: Node) -> bool:
    return node.name.split(".")[0] in _OF_GEOMETRY


def _looks_like(tensor: Any, value: Value) -> bool:
    geometry = tuple(tensor.shape), tensor.stride(), tensor.dtype
    return geometry == (value.sizes, value.strides, value.dtype)


def _bytes(value: Value) -> int:
    return value.numel * value.dtype.itemsize


def _given(argument: Any, known: dict[Value, Any]) -> Any:
    if isinstance(argument, Value):
        tensor = known.get(argument.root)
        if tensor is None:
            return torch.empty_strided(
                argument.sizes, argument.strides, dtype=argument.dtype
            )
        if argument.base is None:
            return tensor
        offset = tensor.storage_offset() + argument.offset
        return tensor.as_strided(argument.sizes, argument.strides, offset)
    if isinstance(argument, list | tuple):
        return type(argument)(_given(item, known) for item in argument)
    return argument


def _named(kwargs: dict[str, Any], known: dict[Value, Any]) -> dict[str, Any]:
    return {name: _given(value, known) for name, value in kwargs.items()}

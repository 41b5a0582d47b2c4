"""Whether two recordings of a call are the same: else it depends on what nobody saw."""

from __future__ import annotations

from typing import Any

import torch

from pai_torchacc.graph.ir import Graph, Node, Value


def agree(a: Graph, b: Graph) -> bool:
    """The same operators compute the same things of the same tensors, in order."""
    return _Comparison().graphs(a, b)


class _Comparison:
    def __init__(self) -> None:
        self._twins: dict[Value, Value] = {}

    def graphs(self, a: Graph, b: Graph) -> bool:
        return (
            self._are_given_alike(a, b)
            and len(a.nodes) == len(b.nodes)
            and all(self._nodes(x, y) for x, y in zip(a.nodes, b.nodes, strict=True))
            and self._arguments(a.results, b.results)
        )

    def _are_given_alike(self, a: Graph, b: Graph) -> bool:
        """Arguments, modules' tensors, those held, and constants."""
        sizes = [
            (len(g.inputs), len(g.places), len(g.held), len(g.constants))
            for g in (a, b)
        ]
        return (
            sizes[0] == sizes[1]
            and all(map(self._pair, a.inputs, b.inputs))
            and a.places.keys() == b.places.keys()
            and all(self._pair(value, b.places[p]) for p, value in a.places.items())
            and all(
                x is y and self._pair(v, w)
                for (x, v), (y, w) in zip(a.held, b.held, strict=True)
            )
            and all(
                _are_equal(a.constants[v], b.constants[w]) and self._pair(v, w)
                for v, w in zip(a.constants, b.constants, strict=True)
            )
        )

    def _pair(self, a: Value, b: Value) -> bool:
        self._twins[a] = b
        return a.looks_like(b)

    def _nodes(self, a: Node, b: Node) -> bool:
        if not (
            _operator(a) == _operator(b)
            and self._arguments(a.args, b.args)
            and self._arguments(a.kwargs, b.kwargs)
            and len(a.outputs) == len(b.outputs)
        ):
            return False
        for x, y in zip(a.outputs, b.outputs, strict=True):
            if (x is None) != (y is None):
                return False
            if x is not None and y is not None and not self._pair(x, y):
                return False
        return True

    def _arguments(self, a: Any, b: Any) -> bool:
        if isinstance(a, Value) and isinstance(b, Value):
            return self._values(a, b)
        if type(a) is not type(b):
            return False
        if isinstance(a, list | tuple):
            return len(a) == len(b) and all(map(self._arguments, a, b))
        if isinstance(a, dict):
            return list(a) == list(b) and all(
                self._arguments(a[key], b[key]) for key in a
            )
        if isinstance(a, torch.Tensor):
            return a is b
        return bool(a == b or (a != a and b != b))  # noqa: PLR0124

    def _values(self, a: Value, b: Value) -> bool:
        if (a.base is None) != (b.base is None):
            return False
        if a.base is None or b.base is None:
            return self._twins.get(a) is b
        is_same = self._twins.get(a.base) is b.base
        return is_same and a.offset == b.offset and a.looks_like(b)


def _operator(node: Node) -> Any:
    """An operator of torch's is one object; of others the name has to do."""
    return (
        node.name
        if isinstance(node.op, str) or hasattr(node.op, "is_pure")
        else node.op
    )


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """To the bit."""
    return a.dtype is b.dtype and a.shape == b.shape and _bits(a) == _bits(b)


def _bits(tensor: torch.Tensor) -> list[int]:
    flat = tensor.detach().contiguous().reshape(-1)
    return list(flat.view(torch.uint8).tolist()) if flat.numel() else []

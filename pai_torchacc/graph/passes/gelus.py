"""GELU that a program writes out in elementary operators, run as one.

By its definition, ``x / 2 (1 + erf(x / sqrt(2)))``, or the approximation
``x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``; D. Hendrycks and K. Gimpel,
Gaussian Error Linear Units, 2016.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from pai_torchacc.graph.ir import Graph, Node, Value
from pai_torchacc.graph.passes.chains import Merger, Readers

_aten = torch.ops.aten

_CUBIC = 0.044715
_MOST_POWER = 3


@dataclass
class _Product:
    """A number times values, and the operators that multiply them."""

    number: float = 1.0
    factors: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def is_of(self, number: float, *factors: Value) -> bool:
        """Whether it is that product, the number within rounding."""
        return (
            math.isclose(self.number, number, rel_tol=1e-6)
            and len(self.factors) == len(factors)
            and all(map(_is_same, self.factors, factors))
        )


def run(graph: Graph) -> None:
    """Merge the operators of each, where none of what they make is read by others."""
    readers, merger = Readers(graph), Merger(graph)
    places = {id(node): i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        found = _gelu_of(node, readers) if node.op is _aten.mul.Tensor else None
        if found is None:
            continue
        x, approximate, nodes = found
        parts = sorted(nodes, key=lambda part: places[id(part)])
        if readers.are_soon(parts):
            merger.merge("gelu", parts, about=(x, approximate))
    merger.finish()


def _gelu_of(node: Node, readers: Readers) -> tuple[Value, str, list[Node]] | None:
    """What that is of which a node ends, how it is approximated, and its operators."""
    outer = _product_by(node, readers)
    for i, factor in enumerate(outer.factors):
        rest = [*outer.factors[:i], *outer.factors[i + 1 :]]
        plus_one = _made_by(factor, _aten.add.Tensor, readers)
        if len(rest) != 1 or plus_one is None or not outer.is_of(0.5, *outer.factors):
            continue
        curve = _curve_of(plus_one, rest[0], readers)
        if curve is not None and rest[0].dtype is torch.float32:
            approximate, nodes = curve
            return rest[0], approximate, [*outer.nodes, plus_one, *nodes]
    return None


def _curve_of(
    plus_one: Node, x: Value, readers: Readers
) -> tuple[str, list[Node]] | None:
    """Of ``1 + curve``: whether it is that of GELU at x, and by what."""
    if plus_one.kwargs or plus_one.args[1:] != (1,):
        return None
    curve = plus_one.args[0]
    by_erf = _made_by(curve, _aten.erf.default, readers)
    if by_erf is not None:
        inner = _product_of(by_erf.args[0], readers)
        if inner.is_of(math.sqrt(0.5), x):
            return "none", [by_erf, *inner.nodes]
    by_tanh = _made_by(curve, _aten.tanh.default, readers)
    if by_tanh is None:
        return None
    inner = _product_of(by_tanh.args[0], readers)
    total = _made_by(inner.factors[0], _aten.add.Tensor, readers)
    if total is None or not inner.is_of(math.sqrt(2 / math.pi), *inner.factors[:1]):
        return None
    for linear, cubic in _both_ways(total):
        found = _product_of(cubic, readers)
        if _is_same(linear, x) and found.is_of(_CUBIC, x, x, x):
            return "tanh", [by_tanh, *inner.nodes, total, *found.nodes]
    return None


def _both_ways(total: Node) -> Iterator[tuple[Value, Value]]:
    a, b, *_ = total.args
    if not total.kwargs and isinstance(a, Value) and isinstance(b, Value):
        yield a, b
        yield b, a


def _product_of(value: Value, readers: Readers) -> _Product:
    """A value as a product, as far as nobody else reads what is multiplied."""
    for op in (_aten.mul.Tensor, _aten.div.Tensor, _aten.pow.Tensor_Scalar):
        node = _made_by(value, op, readers)
        if node is not None:
            return _product_by(node, readers)
    return _Product(1.0, [value])


def _product_by(node: Node, readers: Readers) -> _Product:
    product = _Product(nodes=[node])
    first, second = node.args[0], node.args[1]
    if node.op is _aten.pow.Tensor_Scalar:
        if second not in range(2, _MOST_POWER + 1):
            return _Product(1.0, [node.output])
        product.factors = [first] * int(second)
    elif node.op is _aten.div.Tensor:
        if not _is_number(second) or second == 0:
            return _Product(1.0, [node.output])
        product.number = 1 / second
        _multiply(product, first, readers)
    else:
        _multiply(product, first, readers)
        _multiply(product, second, readers)
    return product


def _multiply(product: _Product, factor: Any, readers: Readers) -> None:
    if _is_number(factor):
        product.number *= factor
        return
    other = _product_of(factor, readers)
    product.number *= other.number
    product.factors += other.factors
    product.nodes += other.nodes


def _made_by(value: Any, op: Any, readers: Readers) -> Node | None:
    """What makes a value that only one other operator reads, where it is that one."""
    if not isinstance(value, Value) or value.base is not None:
        return None
    node = value.made_by
    is_read_once = node is not None and readers.only(value, at_any_time=True)
    return node if node is not None and is_read_once and node.op is op else None


def _is_number(argument: Any) -> bool:
    return isinstance(argument, int | float) and not isinstance(argument, bool)


def _is_same(a: Value, b: Value) -> bool:
    """They are one tensor, or views of one memory that look alike."""
    one, other = ((v.root, v.sizes, v.strides, v.offset) for v in (a, b))
    return one == other

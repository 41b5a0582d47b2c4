"""A plan of the extension while it is described: values by their numbers, and steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.graph.dtypes import DTYPE_CODES
from pai_torchacc.graph.ir import Function, Graph, Node, Value
from pai_torchacc.graph.passes import convolutions, linears
from pai_torchacc.graph.steps import Step
from pai_torchacc.graph.storage import Storage

_aten = torch.ops.aten

_FIXED, _GIVEN, _MADE, _VIEW = range(4)
"""Kinds of values, as ``csrc/bind/python/graph/graph.h`` numbers them."""


def _roots(graph: Graph) -> Iterator[Value]:
    """All that have memory: given, held and made ones, within merged nodes too."""
    yield from graph.inputs
    yield from graph.places.values()
    yield from (value for _, value in graph.held)
    yield from graph.constants
    for node in graph.nodes:
        for part in [*node.parts, node]:
            yield from (value for value in part.outputs if value is not None)
            yield from part.writes


def views_in(graph: Graph, steps: list[Step]) -> list[Value]:
    """All views that are read, each geometry of a memory once."""
    found: dict[Any, Value] = {}
    read = [value for step in steps for value in step.inputs]
    read += [v for step in steps for node in step.otherwise for v in node.inputs()]
    for value in [*read, *graph.results]:
        if value.base is not None:
            found.setdefault(_geometry(value), value)
    return list(found.values())


def _geometry(value: Value) -> Any:
    return id(value.base), value.sizes, value.strides, value.offset


class Plan:
    """A plan of the extension while it is described."""

    def __init__(self, graph: Graph, c: Any, views: list[Value], storage: Storage):
        self._c = c
        self._constants = graph.constants
        self._numbers: dict[Any, int] = {}
        described = []
        given = [*graph.inputs, *graph.places.values(), *(v for _, v in graph.held)]
        is_given = {id(value) for value in given}
        for value in dict.fromkeys(_roots(graph)):
            self._numbers[id(value)] = len(described)
            if id(value) in is_given:
                described.append(_described(_GIVEN, value))
            elif value in storage.lies_on:
                continue  # a view, below
            elif (tensor := graph.constants.get(value)) is not None or (
                tensor := storage.tensor(value)
            ) is not None:
                described.append(_described(_FIXED, value, tensor=tensor))
            else:
                described.append(_described(_MADE, value))
        for value in storage.lies_on:
            base = self._numbers[id(storage.home(value))]
            if value.over is not None:  # one tensor
                self._numbers[id(value)] = base
                continue
            self._numbers[id(value)] = len(described)
            described.append(_described(_VIEW, value, base))
        for value in views:
            assert value.base is not None
            self._numbers[_geometry(value)] = len(described)
            base = self._numbers[id(storage.home(value.base))]
            described.append(_described(_VIEW, value, base, value.offset))
        self.plan = c.plan_make(
            described,
            tuple(self._numbers[id(value)] for value in given),
            tuple(self.number(value) for value in graph.results),
        )

    def number(self, value: Value) -> int:
        """What the extension calls it."""
        if value.base is None:
            return self._numbers[id(value)]
        return self._numbers[_geometry(value)]

    def add(self, step: Step) -> str | None:
        """Add a step; why it cannot be, where a row does not take it."""
        outputs = tuple(None if v is None else self.number(v) for v in step.outputs)
        ends = tuple(self.number(value) for value in step.ends)
        reason: str | None = getattr(self, f"_add_{step.kind}")(step, outputs, ends)
        writes = [value for part in step.parts for value in part.writes]
        if reason is None and (writes or any(part.is_random() for part in step.parts)):
            is_call = step.kind == "call"
            counted = [v for part in step.parts if _counts(part) for v in part.writes]
            numbers = () if is_call else tuple(map(self.number, counted))
            op = step.parts[0].op
            is_foreign = isinstance(op, Function) and op.is_foreign
            self._c.plan_has_effects(self.plan, numbers, is_foreign)
        return reason

    def add_otherwise(self, step: Step) -> None:
        """Have the step added last be done by torch where its row gives back."""
        for node in step.otherwise:
            outputs = tuple(None if v is None else self.number(v) for v in node.outputs)
            self._add_call(Step("call", [node], [], []), outputs, ())
        if step.otherwise:
            self._c.plan_otherwise(self.plan, len(step.otherwise))

    def _add_linear_gradients(self, step: Step, outputs: Any, ends: Any) -> str | None:
        found = step.about
        tensors = (found.grad, found.saved, found.x, found.weight)
        numbers = tuple(None if v is None else self.number(v) for v in tensors)
        return self._c.plan_linear_backward(
            self.plan, numbers, found.activation, outputs, ends
        )

    def _add_cross_entropy(self, step: Step, outputs: Any, ends: Any) -> str | None:
        softmax, loss = step.parts
        _, target, weight, reduction, ignored = loss.args
        tensors = (softmax.args[0], target, weight)
        numbers = tuple(None if v is None else self.number(v) for v in tensors)
        return self._c.plan_cross_entropy(
            self.plan, numbers, reduction, ignored, outputs, ends
        )

    def _add_cross_entropy_gradient(
        self, step: Step, outputs: Any, ends: Any
    ) -> str | None:
        grad, _, target, weight, reduction, ignored, _ = step.parts[0].args
        tensors = (step.about, target, weight, grad)
        numbers = tuple(None if v is None else self.number(v) for v in tensors)
        return self._c.plan_cross_entropy(
            self.plan, numbers, reduction, ignored, outputs, ends
        )

    def _add_norm_training(self, step: Step, outputs: Any, ends: Any) -> str | None:
        x, weight, bias, mean, variance, _, momentum, eps = step.parts[0].args
        tensors = (x, weight, bias, mean, variance)
        numbers = tuple(None if v is None else self.number(v) for v in tensors)
        return self._c.plan_norm_training(
            *(self.plan, numbers, float(momentum), float(eps)),
            *(step.activation, outputs, ends),
        )

    def _add_norm_gradients(self, step: Step, outputs: Any, ends: Any) -> str | None:
        kept, row = step.about
        _, x, weight = step.parts[-1].args[:3]
        tensors = (kept.grad, x, weight, kept.numbers)
        numbers = tuple(None if v is None else self.number(v) for v in tensors)
        return self._c.plan_norm_gradients(
            self.plan, row, numbers, step.activation, outputs, ends
        )

    def _add_gradients(self, step: Step, outputs: Any, ends: Any) -> str | None:
        (node,) = step.parts
        pairs = tuple(
            (self.number(parameter), -1 if grad is None else self.number(grad))
            for parameter, grad in zip(*node.args, strict=True)
        )
        self._c.plan_gradients(self.plan, pairs, ends)
        return None

    def last_row(self) -> tuple[str | None, bool]:
        """Of the step added last: its row, and whether it is told where to write."""
        row: tuple[str | None, bool] = self._c.plan_last_row(self.plan)
        return row

    def _add_row(self, step: Step, outputs: Any, ends: Any) -> str | None:
        (node,) = step.parts
        arguments = None if isinstance(node.op, Function) else self._arguments(node)
        if arguments is None or None in outputs:
            return "argument"
        return self._c.plan_row(self.plan, node.name, arguments, outputs, ends)

    def _add_conv(self, step: Step, outputs: Any, ends: Any) -> str | None:
        norm, with_pool = None, False
        for part in step.parts[1:]:
            if part.op in convolutions.NORMS:
                norm = self._norm(part)
            with_pool |= part.op is _aten.max_pool2d_with_indices.default
        arguments = self._arguments(step.parts[0])
        others = [v for part in step.parts for v in _but_the_first(part)]
        are_frozen = all(value.root in self._constants for value in others)
        return self._c.plan_conv(
            *(self.plan, arguments, norm, step.activation, with_pool),
            *(outputs, ends, are_frozen),
        )

    def _add_norm(self, step: Step, outputs: Any, ends: Any) -> str | None:
        node = step.parts[0]
        x = self.number(node.args[0])
        return self._c.plan_norm(
            self.plan, x, self._norm(node), step.activation, outputs, ends
        )

    def _add_linear(self, step: Step, outputs: Any, ends: Any) -> str | None:
        tensors = linear_of(step)
        numbers = tuple(None if v is None else self.number(v) for v in tensors)
        is_frozen = tensors[1].root in self._constants
        return self._c.plan_linear(
            self.plan, numbers, step.activation, outputs[0], ends, is_frozen
        )

    def _add_sum(self, step: Step, outputs: Any, ends: Any) -> str | None:
        tensors = tuple(self.number(value) for value in step.inputs)
        return self._c.plan_sum(self.plan, tensors, step.activation, outputs, ends)

    def _add_recurrent(self, step: Step, outputs: Any, ends: Any) -> str | None:
        found = step.about
        are_frozen = all(value.root in self._constants for value in found.weights)
        numbers = [None if v is None else self.number(v) for v in found.tensors]
        weights = tuple(map(self.number, found.weights))
        return self._c.plan_recurrent(
            *(self.plan, found.options, tuple(numbers), weights),
            *(outputs, ends, are_frozen),
        )

    def _add_squeeze_excite(self, step: Step, outputs: Any, ends: Any) -> str | None:
        numbers = tuple(map(self.number, step.inputs))
        found = step.about
        return self._c.plan_squeeze_excite(
            *(self.plan, numbers, found.activation, found.is_hard, outputs, ends)
        )

    def _add_call(self, step: Step, outputs: Any, ends: Any) -> str | None:
        (node,) = step.parts
        args = [*node.args, *node.kwargs.values()]
        holes = []
        for i, argument in enumerate(args):
            if isinstance(argument, Value):
                args[i] = None
                holes.append((i, -1, self.number(argument)))
            elif isinstance(argument, list | tuple):
                args[i] = [None if isinstance(a, Value) else a for a in argument]
                holes += [
                    (i, k, self.number(a))
                    for k, a in enumerate(argument)
                    if isinstance(a, Value)
                ]
        names = tuple(node.kwargs) or None
        function = node.op._op
        return self._c.plan_call(
            self.plan, function, tuple(args), names, tuple(holes), outputs, ends
        )

    def _norm(self, node: Node) -> tuple[Any, ...]:
        tensors = node.args[1:5]
        eps = node.args[-1]
        numbers = (None if v is None else (self.number(v),) for v in tensors)
        return (*numbers, float(eps))

    def _arguments(self, node: Node) -> tuple[Any, ...] | None:
        """All arguments by the schema, as ``graph/arguments.h`` wants them."""
        given = []
        for i, argument in enumerate(node.op._schema.arguments):
            value = argument.default_value
            if i < len(node.args):
                value = node.args[i]
            value = node.kwargs.get(argument.name, value)
            if isinstance(value, Value):
                value = (self.number(value),)
            elif isinstance(value, torch.dtype):
                value = DTYPE_CODES.get(value, -1)
            elif isinstance(value, list | tuple):
                if any(isinstance(item, Value) for item in value):
                    return None
                value = list(value)
            given.append(value)
        return tuple(given)


def _described(
    kind: int, value: Value, of: int = 0, offset: int = 0, tensor: Tensor | None = None
) -> tuple[Any, ...]:
    code, size = DTYPE_CODES.get(value.dtype, -1), value.dtype.itemsize
    return kind, of, offset, value.sizes, value.strides, code, size, tensor


def _but_the_first(node: Node) -> Iterator[Value]:
    """Of an operator on images: weights, and what a norm has of channels."""
    return (value for value in node.args[1:] if isinstance(value, Value))


def linear_of(step: Step) -> tuple[Value, Value, Value | None]:
    """The operands of a product: x, the weight as Linear has it, and the bias."""
    node = step.parts[0]
    bias = node.args[0] if node.op is _aten.addmm.default else None
    return node.args[-2], linears.weight_of(node), bias


def _counts(node: Node) -> bool:
    """Torch counts the versions of what it writes."""
    return not isinstance(node.op, str | Function) and node.op._schema.is_mutable

"""Which steps do what a graph's nodes say: rows of ours where there are, else torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from pai_torchacc.graph.describing import Plan, linear_of, views_in
from pai_torchacc.graph.ir import GRADIENTS, Graph, Node, Value
from pai_torchacc.graph.passes import convolutions, linear_gradients
from pai_torchacc.graph.passes.activations import (
    BEHIND_CONVOLUTIONS,
    BEHIND_NORMS,
    BEHIND_PRODUCTS,
    RELU,
    activation_of,
)
from pai_torchacc.graph.recurrences import recurrence_of
from pai_torchacc.graph.steps import RowsChanged, Step
from pai_torchacc.graph.storage import Storage

_aten = torch.ops.aten


class Chooser:
    """Asks the extension which steps it can do, on a plan that is thrown away."""

    def __init__(self, graph: Graph, c: Any):
        self._graph = graph
        # What has drawn random numbers cannot be given back and be made again; nor can
        # what has effects, but no step gives back that was chosen here.
        self._has_effects = graph.has_effects()
        self._is_random = not self._has_effects and any(
            node.is_random() for node in graph.nodes
        )
        every = [
            Step("call", [part], list(part.inputs()), [])
            for node in graph.nodes
            for part in node.parts or [node]
        ]
        every += [
            Step(
                "linear",
                node.parts,
                list(linear_of(Step("", node.parts, [], [])))[:2],
                [],
            )
            for node in graph.nodes
            if node.op == "linear"
        ]
        every += [
            Step("call", [part], list(part.inputs()), [])
            for node in graph.nodes
            if node.op == "linear"
            for part in _unmerged(node)
        ]
        every += [
            Step("", node.parts, _read_by(node.args[0]), [])
            for node in graph.nodes
            if node.op == "linear_gradients"
        ]
        self._has_kept: set[Value] = set()
        self._rows: dict[Value, str | None] = {}
        self._scratch = Plan(graph, c, views_in(graph, every), Storage(graph, []))

    def steps(self) -> list[Step]:
        """All of them, in order."""
        return [step for node in self._graph.nodes for step in self._of(node)]

    def _of(self, node: Node) -> Iterator[Step]:
        ways: dict[str, Callable[[Node], Iterator[Step]]] = {
            "conv": self._of_conv,
            "squeeze_excite": self._of_squeeze_excite,
            "norm": self._of_norm,
            "linear": self._of_linear,
            "gelu": self._of_gelu,
            "add_act": self._of_sum,
            "linear_gradients": self._of_linear_gradients,
            "cross_entropy": self._of_loss,
            "cross_entropy_gradient": self._of_loss_gradient,
            "norm_training": self._of_norm_training,
            "norm_gradients": self._of_norm_gradients,
        }
        # A norm's row gives back where its statistics are not finite.
        depends = self._has_effects and any(convolutions.is_norm(p) for p in node.parts)
        if isinstance(node.op, str) and (self._is_random or depends):
            yield from map(self._alone, _unmerged(node))
        elif isinstance(node.op, str):
            yield from ways[node.op](node)
        else:
            yield self._alone(node)

    def _takes(self, step: Step) -> bool:
        reason = self._scratch.add(step)
        step.why_stock = reason or ""
        if reason is None:
            step.row, step.is_told_where = self._scratch.last_row()
            if self._has_effects:
                step.otherwise = _by_torch(step)
        return reason is None

    def _alone(self, node: Node) -> Step:
        """One operator, by a row of ours or else by torch."""
        inputs = list(node.inputs())
        if node.op is GRADIENTS:
            return Step("gradients", [node], inputs, [])
        recurrence = None if self._is_random else recurrence_of(node)
        if recurrence is not None:
            step = Step("recurrent", [node], inputs, node.outputs, about=recurrence)
            if self._takes(step):
                return step
        step = Step("row", [node], inputs, node.outputs)
        if not self._is_random and self._takes(step):
            return step
        return replace(step, kind="call")

    def _of_conv(self, node: Node) -> Iterator[Step]:
        least = 1 if convolutions.is_frozen(node.parts[0], self._graph) else 2
        for n in range(len(node.parts), least - 1, -1):
            parts = node.parts[:n]
            acts = [activation_of(part, BEHIND_CONVOLUTIONS) for part in parts[1:]]
            step = Step(
                "conv",
                parts,
                [value for part in parts for value in _outer(part, parts)],
                parts[-1].outputs[:1],
                sum(acts),
            )
            if self._takes(step):
                yield step
                yield from map(self._alone, node.parts[n:])
                return
        yield self._alone(node.parts[0])
        yield from self._rest(node.parts[1:])

    def _of_squeeze_excite(self, node: Node) -> Iterator[Step]:
        (found,) = node.args
        inputs = found.inputs()
        step = Step("squeeze_excite", node.parts, inputs, node.outputs, about=found)
        if self._takes(step):
            yield step
            return
        mean, first, *between, second, gate, product = node.parts
        yield self._alone(mean)
        goes_along = [a for a in between if activation_of(a, BEHIND_CONVOLUTIONS)]
        for parts in ([first, *goes_along], [second]):
            yield from self._of_conv(Node("conv", (), {}, parts[-1].outputs, "", parts))
            if parts[0] is first and not goes_along:
                yield from map(self._alone, between)
        yield self._alone(gate)
        yield self._alone(product)

    def _rest(self, parts: list[Node]) -> Iterator[Step]:
        """What stands behind a convolution that stays alone."""
        if parts and parts[0].op in convolutions.NORMS:
            n = 1 + any(activation_of(part, BEHIND_NORMS) for part in parts[1:2])
            yield from self._of_norm(Node("norm", (), {}, [], "", parts[:n]))
            parts = parts[n:]
        yield from map(self._alone, parts)

    def _of_norm(self, node: Node) -> Iterator[Step]:
        for n in range(len(node.parts), 0, -1):
            parts = node.parts[:n]
            activation = activation_of(parts[1], BEHIND_NORMS) if n > 1 else 0
            inputs = list(parts[0].inputs())
            step = Step("norm", parts, inputs, parts[-1].outputs[:1], activation)
            if self._takes(step):
                yield step
                yield from map(self._alone, node.parts[n:])
                return
        yield from map(self._alone, node.parts)

    def _of_linear(self, node: Node) -> Iterator[Step]:
        activation = sum(activation_of(p, BEHIND_PRODUCTS) for p in node.parts[1:])
        step = Step("linear", node.parts, [], [node.output], activation)
        step.inputs = [value for value in linear_of(step) if value is not None]
        if self._takes(step):
            yield step
            return
        yield from map(self._alone, _unmerged(node))

    def _of_gelu(self, node: Node) -> Iterator[Step]:
        """As one, where a kernel of ours might do it: its numbers are not stock's."""
        ((x, approximate),) = node.args
        kwargs = {"approximate": approximate}
        one = Node(_aten.gelu.default, (x,), kwargs, node.outputs, node.where)
        step = self._alone(one)
        if step.row is not None or step.why_stock == "not measured faster":
            yield step
            return
        yield from map(self._alone, node.parts)

    def _of_sum(self, node: Node) -> Iterator[Step]:
        total, act = node.parts
        step = Step("sum", node.parts, list(total.inputs()), act.outputs, RELU)
        if self._takes(step):
            yield step
            return
        yield from map(self._alone, node.parts)

    def _of_linear_gradients(self, node: Node) -> Iterator[Step]:
        (found,) = node.args
        inputs = _read_by(found)
        step = Step("linear_gradients", node.parts, inputs, node.outputs, about=found)
        if self._takes(step):
            yield step
            return
        for part in node.parts:
            yield self._alone(_summed(part, found.of_bias))

    def _of_norm_training(self, node: Node) -> Iterator[Step]:
        (kept,) = node.args
        step = Step(
            "norm_training",
            node.parts,
            _given(*node.parts[0].args[:5]),
            node.outputs,
            kept.activation,
        )
        row = self._takes(step) and step.row
        if row and self._takes(_gradients_step(kept.gradients, row)):
            self._rows[kept.numbers] = row
            yield step
        else:
            yield from map(self._alone, node.parts)

    def _of_norm_gradients(self, node: Node) -> Iterator[Step]:
        (kept,) = node.args
        row = self._rows.get(kept.numbers)
        if row is None:
            yield from map(self._alone, node.parts)
            return
        step = _gradients_step(node, row)
        if not self._takes(step):
            raise RowsChanged("a norm was taken, and its gradient is not")
        yield step

    def _of_loss(self, node: Node) -> Iterator[Step]:
        softmax, loss = node.parts
        inputs = _given(softmax.args[0], *loss.args[1:3])
        step = Step("cross_entropy", node.parts, inputs, node.outputs)
        if self._takes(step):
            self._has_kept.add(node.outputs[1])
            yield step
        else:
            yield from map(self._alone, node.parts)

    def _of_loss_gradient(self, node: Node) -> Iterator[Step]:
        (p,) = node.args
        back = node.parts[0]
        inputs = _given(p, back.args[0], *back.args[2:4])
        step = Step("cross_entropy_gradient", node.parts, inputs, node.outputs, about=p)
        if p not in self._has_kept:
            yield from map(self._alone, node.parts)
        elif self._takes(step):
            yield step
        else:
            raise RowsChanged("a loss was taken, and its gradient is not")


def _gradients_step(node: Node, row: str) -> Step:
    """Of a normalization by the batch, by the row that has made its numbers."""
    (kept,) = node.args
    inputs = _given(kept.grad, *node.parts[-1].args[1:3], kept.numbers)
    step = Step("norm_gradients", node.parts, inputs, node.outputs, kept.activation)
    step.about = kept, row
    return step


def _by_torch(step: Step) -> list[Node]:
    """The operators that make the step's outputs, in order."""
    if step.kind == "linear":
        output = step.outputs[0]
        return _unmerged(Node("linear", (), {}, [output], "", step.parts))
    if step.kind == "linear_gradients":
        return [_summed(part, step.about.of_bias) for part in step.parts]
    if step.kind == "cross_entropy":
        logs = step.parts[0].output
        return [*step.parts, Node(_aten.exp.default, (logs,), {}, [step.outputs[1]])]
    has_none = ("cross_entropy_gradient", "norm_training", "norm_gradients")
    return [] if step.kind in has_none else list(step.parts)


def _summed(part: Node, bias: Value | None) -> Node:
    """A sum that gives a vector, as was merged, in place of a matrix of one row."""
    if part.op is not _aten.sum.dim_IntList:
        return part
    return replace(part, args=(*part.args[:2], False), outputs=[bias])


def _given(*values: Value | None) -> list[Value]:
    return [value for value in values if value is not None]


def _read_by(found: linear_gradients.Found) -> list[Value]:
    return _given(found.grad, found.saved, found.x, found.weight)


def _unmerged(node: Node) -> list[Node]:
    """The operators, so that the last one makes what the node makes."""
    parts = list(node.parts)
    if node.op == "linear" and parts[1:]:
        # Element by element, on the product itself.
        act = parts[1]
        args = (parts[0].output, *act.args[1:])
        parts[1] = Node(act.op, args, act.kwargs, node.outputs, act.where)
    return parts


def _outer(part: Node, parts: list[Node]) -> Iterator[Value]:
    """What a part reads that no other of them has made."""
    made = {value for other in parts for value in other.outputs}
    return (value for value in part.inputs() if value not in made)

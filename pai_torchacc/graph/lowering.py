"""From a graph to a plan of the extension: which steps, and where values lie.

A node becomes a step that runs a row of ours where the chooser has one for it now, with
as much of what it merges as the row takes; else a call of torch's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.graph.arena import Lifetime, place
from pai_torchacc.graph.ir import Function, Graph, Node, Value
from pai_torchacc.graph.passes import convolutions
from pai_torchacc.graph.passes.activations import (
    BEHIND_CONVOLUTIONS,
    BEHIND_NORMS,
    BEHIND_PRODUCTS,
    RELU,
    activation_of,
)

_aten = torch.ops.aten

_FIXED, _GIVEN, _MADE, _VIEW = range(4)
"""Kinds of values, as ``csrc/bind/python/graph/graph.h`` numbers them."""

DTYPE_CODES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}
"""Torch's own numbers of them."""

_ELEMENTWISE = {
    *("relu", "relu6", "hardtanh", "leaky_relu", "elu", "gelu", "silu", "mish"),
    *("sigmoid", "tanh", "hardsigmoid", "hardswish", "exp", "neg", "sqrt", "rsqrt"),
    *("add", "sub", "mul", "div", "clamp", "clamp_min", "clamp_max", "abs"),
}
"""Operators whose result may lie on their first argument."""


@dataclass
class Step:
    """How one node, or a part of one, is run."""

    kind: str
    """``row``, ``conv``, ``norm``, ``linear``, ``sum`` or ``call``."""
    parts: list[Node]
    inputs: list[Value]
    outputs: list[Value | None]
    activation: int = 0
    ends: list[Value] = field(default_factory=list)
    """Values that torch's allocator gave memory, and that nobody reads any more."""
    row: str | None = None
    """The kernel of ours that it runs."""
    is_told_where: bool = False
    """It writes into the arena; others allocate what they make."""
    why_stock: str = ""
    """Of a call: why no row of ours does it."""

    @property
    def name(self) -> str:
        """For people: ``conv + native_batch_norm + relu``."""
        return " + ".join(part.name for part in self.parts)


class RowsChanged(RuntimeError):
    """A plan was begun under other circumstances than it was ended."""


@dataclass
class Lowered:
    """A plan that can be run, and what it is made of."""

    plan: Any
    steps: list[Step]
    arena_bytes: int
    live_peak_bytes: int
    """Of the values in the arena: the most that are alive at a time."""


def lower(graph: Graph, c: Any) -> Lowered:
    """Decide how each node runs, and make the plan.

    Raises
    ------
    RowsChanged
        Meanwhile another thread has switched what the steps were chosen by.
    """
    steps = _Chooser(graph, c).steps()
    storage = _Storage(graph, steps)
    plan = _Plan(graph, c, _views(graph, steps), storage)
    for step in steps:
        reason = plan.add(step)
        if reason is not None:
            raise RowsChanged(f"{step.name} was taken and is not any more: {reason}")
    return Lowered(plan.plan, steps, storage.arena_bytes, storage.live_peak_bytes)


# --- values by their numbers


def _roots(graph: Graph) -> Iterator[Value]:
    """All that have memory: given, held and made ones, within merged nodes too."""
    yield from graph.inputs
    yield from graph.places.values()
    yield from (value for _, value in graph.held)
    yield from graph.constants
    for node in graph.nodes:
        for part in [*node.parts, node]:
            yield from (value for value in part.outputs if value is not None)


def _views(graph: Graph, steps: list[Step]) -> list[Value]:
    """All views that are read, each geometry of a memory once."""
    found: dict[Any, Value] = {}
    read = [value for step in steps for value in step.inputs]
    for value in [*read, *graph.results]:
        if value.base is not None:
            found.setdefault(_geometry(value), value)
    return list(found.values())


def _geometry(value: Value) -> Any:
    return id(value.base), value.sizes, value.strides, value.offset


class _Plan:
    """A plan of the extension while it is described."""

    def __init__(self, graph: Graph, c: Any, views: list[Value], storage: _Storage):
        self._c = c
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
            self._numbers[id(value)] = len(described)
            base = self._numbers[id(storage.home(value))]
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
        return getattr(self, f"_add_{step.kind}")(step, outputs, ends)

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
        return self._c.plan_conv(
            self.plan, arguments, norm, step.activation, with_pool, outputs, ends
        )

    def _add_norm(self, step: Step, outputs: Any, ends: Any) -> str | None:
        node = step.parts[0]
        x = self.number(node.args[0])
        return self._c.plan_norm(
            self.plan, x, self._norm(node), step.activation, outputs, ends
        )

    def _add_linear(self, step: Step, outputs: Any, ends: Any) -> str | None:
        x, weight, bias = (None if v is None else self.number(v) for v in _linear(step))
        return self._c.plan_linear(
            self.plan, (x, weight, bias), step.activation, outputs[0], ends
        )

    def _add_sum(self, step: Step, outputs: Any, ends: Any) -> str | None:
        tensors = tuple(self.number(value) for value in step.inputs)
        return self._c.plan_sum(self.plan, tensors, step.activation, outputs, ends)

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


def _linear(step: Step) -> tuple[Value, Value, Value | None]:
    """The operands of a product: x, the weight as its layer has it, and the bias."""
    node = step.parts[0]
    bias = node.args[0] if node.op is _aten.addmm.default else None
    x, weight = node.args[-2:]
    return x, weight.root, bias


# --- which steps


class _Chooser:
    """Asks the extension which steps it can do, on a plan that is thrown away."""

    def __init__(self, graph: Graph, c: Any):
        self._graph = graph
        # What has drawn random numbers cannot be given back and be made again.
        self._is_random = any(node.is_random() for node in graph.nodes)
        every = [
            Step("call", [part], list(part.inputs()), [])
            for node in graph.nodes
            for part in node.parts or [node]
        ]
        every += [
            Step(
                "linear",
                node.parts,
                list(_linear(Step("", node.parts, [], [])))[:2],
                [],
            )
            for node in graph.nodes
            if node.op == "linear"
        ]
        self._scratch = _Plan(graph, c, _views(graph, every), _Storage(graph, []))

    def steps(self) -> list[Step]:
        """All of them, in order."""
        return [step for node in self._graph.nodes for step in self._of(node)]

    def _of(self, node: Node) -> Iterator[Step]:
        ways: dict[str, Callable[[Node], Iterator[Step]]] = {
            "conv": self._of_conv,
            "norm": self._of_norm,
            "linear": self._of_linear,
            "add_act": self._of_sum,
        }
        if isinstance(node.op, str) and self._is_random:
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
        return reason is None

    def _alone(self, node: Node) -> Step:
        """One operator, by a row of ours or else by torch."""
        inputs = list(node.inputs())
        step = Step("row", [node], inputs, node.outputs)
        if not self._is_random and self._takes(step):
            return step
        return replace(step, kind="call")

    def _of_conv(self, node: Node) -> Iterator[Step]:
        for n in range(len(node.parts), 1, -1):
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
        step.inputs = [value for value in _linear(step) if value is not None]
        if self._takes(step):
            yield step
            return
        yield from map(self._alone, _unmerged(node))

    def _of_sum(self, node: Node) -> Iterator[Step]:
        total, act = node.parts
        step = Step("sum", node.parts, list(total.inputs()), act.outputs, RELU)
        if self._takes(step):
            yield step
            return
        yield from map(self._alone, node.parts)


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


# --- where values lie


class _Storage:
    """Which values lie in the arena, which on others, and which torch allocates."""

    def __init__(self, graph: Graph, steps: list[Step]):
        self.lies_on: dict[Value, Value] = {}
        """A result that is written over the input that it is computed from."""
        self.arena_bytes = self.live_peak_bytes = 0
        self._tensors: dict[Value, Tensor] = {}
        self._given = {
            *graph.inputs,
            *graph.places.values(),
            *(value for _, value in graph.held),
            *graph.constants,
        }
        self._results = graph.result_roots()
        last = self._last_reads(steps)
        for i, step in enumerate(steps):
            self._write_over(i, step, last)
        self._put(steps, self._last_reads(steps))

    def home(self, value: Value) -> Value:
        """The value in whose memory this one lies."""
        while value in self.lies_on:
            value = self.lies_on[value]
        return value

    def tensor(self, value: Value) -> Tensor | None:
        """Where it lies in the arena."""
        return self._tensors.get(value)

    def _last_reads(self, steps: list[Step]) -> dict[Value, int]:
        """The last step that reads or writes what lies in each memory."""
        last: dict[Value, int] = {}
        for i, step in enumerate(steps):
            for value in [*step.inputs, *(v for v in step.outputs if v is not None)]:
                last[self.home(value.root)] = i
        return last

    def _write_over(self, i: int, step: Step, last: dict[Value, int]) -> None:
        """Have an elementwise step write over its first input, if that ends here."""
        output = step.outputs[0] if len(step.outputs) == 1 else None
        if output is None or output in self._given or step.kind in ("conv", "linear"):
            return
        names = {part.name.split(".")[0] for part in step.parts}
        if step.kind in ("row", "call") and not names <= _ELEMENTWISE:
            return
        firsts = step.parts[0].args[: 2 if step.kind == "sum" else 1]
        for x in firsts:
            if not isinstance(x, Value):
                continue
            home = self.home(x.root)
            others = [v for v in step.inputs if v is not x]
            if (
                x.base is None
                and x is not output
                and home not in self._given
                and not {x, home} & self._results
                and self._ends_at(home, i, last)
                and x.looks_like(output)
                and all(self.home(v.root) is not home for v in others)
            ):
                if step.kind == "call" and not _call_in_place(step):
                    return
                self.lies_on[output] = x
                if output in self._results:
                    self._results.add(home)
                last[home] = max(last.get(home, i), last.get(output, i))
                return

    def _ends_at(self, home: Value, i: int, last: dict[Value, int]) -> bool:
        return last.get(home) == i

    def _put(self, steps: list[Step], last: dict[Value, int]) -> None:
        lifetimes = []
        for i, step in enumerate(steps):
            for value in step.outputs:
                if value is None or value in self.lies_on or value in self._results:
                    continue
                if not step.is_told_where:
                    steps[last[value]].ends.append(value)
                else:
                    n_bytes = value.numel * value.dtype.itemsize
                    lifetimes.append(Lifetime(value, n_bytes, i, last[value]))
        placed = place(lifetimes)
        self.arena_bytes = placed.n_bytes
        self.live_peak_bytes = placed.live_peak_bytes
        arena = torch.empty(placed.n_bytes, dtype=torch.uint8, device="cpu")
        for value, offset in placed.offsets.items():
            n_bytes = value.numel * value.dtype.itemsize
            flat = arena[offset : offset + n_bytes].view(value.dtype)
            self._tensors[value] = flat.as_strided(
                value.sizes, value.strides, flat.storage_offset()
            )


def _call_in_place(step: Step) -> bool:
    """Have a call be that of the operator that writes to its first argument."""
    (node,) = step.parts
    packet = getattr(_aten, f"{node.name.split('.')[0]}_", None)
    overload = getattr(packet, node.op._schema.overload_name or "default", None)
    if overload is None:
        return False
    step.parts = [replace(node, op=overload)]
    step.outputs = [None]
    return True

"""Which values lie in the arena, which on others, and which torch allocates."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pai_torchacc.graph.arena import Lifetime, place
from pai_torchacc.graph.ir import Graph, Value
from pai_torchacc.graph.steps import Step

_aten = torch.ops.aten

_ELEMENTWISE = {
    *("relu", "relu6", "hardtanh", "leaky_relu", "elu", "gelu", "silu", "mish"),
    *("sigmoid", "tanh", "hardsigmoid", "hardswish", "exp", "neg", "sqrt", "rsqrt"),
    *("add", "sub", "mul", "div", "clamp", "clamp_min", "clamp_max", "abs"),
}
"""Operators whose result may lie on their first argument."""


class Storage:
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
        for node in graph.nodes:
            self.lies_on.update((value, value.over) for value in node.writes)
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
        if output is None or output in self._given:
            return
        if step.kind not in ("row", "call", "norm", "sum", "squeeze_excite"):
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

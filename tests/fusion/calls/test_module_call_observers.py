"""Modes, profilers, tracers and debuggers see the calls that torch would make."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from calling import STOCK, Functions, Operators, n_leaves, network, on
from torch import nn


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    assert vars(nn.Module)["__call__"] is STOCK


@pytest.mark.parametrize("mode", [Functions, Operators])
def test_modes_see_what_they_see_in_stock(mode: Callable[[], Any]) -> None:
    def program() -> list[Any]:
        net = network()
        with mode() as seeing:
            net(torch.ones(1, 4, 7, 7))
        return seeing.seen

    stock = program()
    with on():
        assert program() == stock


def test_profiler_sees_the_operators() -> None:
    def program() -> list[str]:
        net, x = network(), torch.ones(1, 4, 7, 7)
        with torch.no_grad(), torch.profiler.profile() as seen:
            net(x)
        return sorted({e.name for e in seen.events() if e.name.startswith("aten::")})

    stock = program()
    with on():
        ours = program()
    assert [n for n in ours if n not in stock] == []
    assert "aten::linear" in ours


@pytest.mark.parametrize("setting", ["setprofile", "settrace"])
def test_debuggers_and_profilers_see_torchs_functions(setting: str) -> None:
    def program() -> set[str]:
        seen: set[str] = set()

        def note(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_globals.get("__name__") != __name__:
                seen.add(frame.f_code.co_name)

        net, x = network(), torch.ones(1, 4, 7, 7)
        getattr(sys, setting)(note)
        try:
            net(x)
        finally:
            getattr(sys, setting)(None)
        return seen

    stock = program()
    assert {"_call_impl", "forward", "relu"} <= stock
    with on():
        assert stock - {"__iter__"} <= program()
        assert n_leaves(lambda: nn.ReLU()(torch.ones(2))) == 1


def test_tracing_keeps_scopes() -> None:
    def program() -> tuple[str, list[float]]:
        net, x = network(), torch.ones(1, 4, 7, 7)
        traced = torch.jit.trace(net, x)
        names = [n.scopeName() for n in traced.inlined_graph.nodes()]
        return "\n".join(names), traced(x).flatten().tolist()

    stock = program()
    with on():
        assert program() == stock


def test_after_a_symbolic_trace_it_is_still_ours() -> None:
    with on():
        ours = vars(nn.Module)["__call__"]
        graph = torch.fx.symbolic_trace(network())
        assert [n.op for n in graph.graph.nodes].count("call_module") == 7
        assert vars(nn.Module)["__call__"] is ours
        assert n_leaves(lambda: nn.ReLU()(torch.ones(2))) == 1


@pytest.mark.parametrize("observer", ["profiler", "dispatch", "function"])
def test_a_dropout_that_drops_nothing_is_seen(observer: str) -> None:
    net, x = nn.Dropout().eval(), torch.ones(3)

    def program() -> list[str]:
        with torch.inference_mode():
            if observer == "profiler":
                with torch.profiler.profile() as seen:
                    net(x)
                return [e.name for e in seen.events() if "dropout" in e.name]
            with (Operators if observer == "dispatch" else Functions)() as seeing:
                net(x)
            return [str(f) for f in seeing.seen]

    stock = program()
    assert stock
    with on():
        assert program() == stock

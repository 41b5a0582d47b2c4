"""Small programs by CUDA graphs: eager, by ``optimize()``, and captured by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.gpu.models import Block
from benchmarks.gpu.rows import Row, failed, named, row
from benchmarks.gpu.timing import Setting, alternate, stock
from pai_torchacc.bench.measure_cuda import is_emulated

SECTION = "graphs"

N_WARM_UP = 5
"""Calls before the one that is replayed first."""

Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Program:
    """A model, a batch and what is done with them."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    trains: bool
    dtype: torch.dtype = torch.float32


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def _rows(n: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(n, 64), torch.randint(10, (n,)))


def _tokens() -> tuple[Tensor, Tensor]:
    return torch.randn(1, 128, 256), torch.zeros(1)


PROGRAMS = (
    Program("tiny MLP 64-64-64-10, batch 1, inference", _mlp, _rows(1), False),
    Program("tiny MLP 64-64-64-10, batch 32, a step of Adam", _mlp, _rows(32), True),
    Program(
        "GPT block of 256, 1 x 128, inference", lambda: Block(256, 4), _tokens, False
    ),
)


def rows(setting: Setting) -> Iterator[Row]:
    """Each program in three ways."""
    stock()
    for program in PROGRAMS:
        try:
            yield from _measure(program, setting)
        except RuntimeError as error:
            yield failed(SECTION, program.name, named(program.dtype), error)
    stock()


def _measure(program: Program, setting: Setting) -> Iterator[Row]:
    eager, x = _made(program)
    planned, _ = _made(program)
    planned = ptac.optimize(planned, on_refusal="ignore")
    variants: dict[str, tuple[Callable[[], None], Callable[[], Any]]] = {
        "stock": (_nothing, lambda: eager(*x)),
        "ours": (_nothing, lambda: planned(*x)),
    }
    if not is_emulated():
        by_hand = _captured(*_made(program))
        variants["by hand"] = _nothing, lambda: by_hand(*x)
    for _ in range(N_WARM_UP + 1):
        planned(*x)
    timings = alternate(variants, setting)
    for variant, timing in timings.items():
        yield row(
            (SECTION, program.name, program.dtype, variant),
            _served(planned) if variant == "ours" else "",
            timing, timings["stock"], 0, 0, setting,
        )  # fmt: skip


def _nothing() -> None:
    """All variants run under the same switches: graph_optimization alone."""


def _served(planned: Any) -> str:
    counts = planned.__ptac_planned__.counts()
    if counts["graphs"]:
        return f"yes, {counts['planned_calls']} replays"
    return ", ".join(counts["reasons"]) or "not captured"


def _made(program: Program) -> tuple[Call, tuple[Tensor, ...]]:
    """A function of the program, and its arguments; the same each time."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = program.make()
        x, y = program.batch()
    if not program.trains:
        return _inference(model), (x,)
    return _training(model), (x, y)


def _inference(model: nn.Module) -> Call:
    model.eval()

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(x)

    return call


def _training(model: nn.Module) -> Call:
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-3, capturable=not is_emulated()
    )

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _captured(call: Call, args: tuple[Tensor, ...]) -> Call:
    """As torch's documentation has it: static inputs, and a copy of the result."""
    static = tuple(tensor.clone() for tensor in args)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(N_WARM_UP):
            call(*static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(*static)

    def replay(*given: Tensor) -> Tensor:
        for to, tensor in zip(static, given, strict=True):
            to.copy_(tensor)
        graph.replay()
        return result.clone()

    return replay

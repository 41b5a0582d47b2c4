"""Steps of optimizers beside torch's: its default, foreach, and fused=True."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.rows import Row, failed, row
from benchmarks.gpu.timing import Call, Setting, alternate, ours, served, stock
from pai_torchacc.bench.measure_cuda import is_emulated

SECTION = "optimizer"


@dataclass(frozen=True)
class Parameters:
    """So many tensors of so many elements."""

    name: str
    n: int
    elements: int


SETS = (
    Parameters("1000 tensors of 1024", 1000, 1024),
    Parameters("62 tensors of 200 k", 62, 200_000),
    Parameters("32 tensors of 4 M", 32, 4 << 20),
    Parameters("16 tensors of 64 M", 16, 64 << 20),
)
TINY = (Parameters("5 tensors of 40", 5, 40),)


@dataclass(frozen=True)
class Kind:
    """An optimizer, and how often a step has to move the size of its parameters."""

    op: str
    make: Callable[..., torch.optim.Optimizer]
    options: dict[str, Any]
    passes: int


KINDS = (
    Kind("adamw_step", torch.optim.AdamW, {}, 7),
    Kind("adam_step", torch.optim.Adam, {}, 7),
    Kind("adam_step", torch.optim.Adam, {"capturable": True}, 7),
    Kind("sgd_step", torch.optim.SGD, {"momentum": 0.9}, 5),
    Kind("sgd_step", torch.optim.SGD, {}, 3),
)

RIVALS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def rows(setting: Setting) -> Iterator[Row]:
    """All kinds at the first set, then at the others, while time is left."""
    for chosen in TINY if is_emulated() else SETS:
        for kind in KINDS:
            if setting.budget.left < 0:
                return
            yield from measure(kind, chosen, setting)
        yield from _zero_grad(chosen, setting)


def _parameters(chosen: Parameters) -> list[torch.nn.Parameter]:
    made = [torch.randn(chosen.elements, device="cuda") for _ in range(chosen.n)]
    for p in (found := [torch.nn.Parameter(t) for t in made]):
        p.grad = torch.randn_like(p)
    return found


def measure(kind: Kind, chosen: Parameters, setting: Setting) -> Iterator[Row]:
    """Rows of a step; states are made anew for each variant."""
    options = ", ".join(f"{k}={v}" for k, v in kind.options.items())
    name = f"{kind.make.__name__}({options}), {chosen.name}"
    try:
        params = _parameters(chosen)

        def step(**more: Any) -> Call:
            return kind.make(params, lr=1e-6, **kind.options, **more).step

        variants = {"stock": (stock, step()), "ours": (ours, step())}
        if not is_emulated():  # which has no kernels of torch's for them
            variants |= {k: (stock, step(**more)) for k, more in RIVALS.items()}
        found = served((kind.op,), variants["ours"][1])
        timings = alternate(variants, setting)
        n_bytes = 4.0 * chosen.n * chosen.elements * kind.passes
        for variant, timing in timings.items():
            yield row(
                (SECTION, name, torch.float32, variant),
                found if variant == "ours" else "",
                timing, timings["stock"], n_bytes, 0, setting,
            )  # fmt: skip
    except RuntimeError as error:
        yield failed(SECTION, name, "float32", error)


def _zero_grad(chosen: Parameters, setting: Setting) -> Iterator[Row]:
    name = f"zero_grad(set_to_none=False), {chosen.name}"
    try:
        optimizer = torch.optim.SGD(_parameters(chosen), lr=0.1)

        def call() -> None:
            optimizer.zero_grad(set_to_none=False)

        found = served(("zero_grad",), call)
        timings = alternate({"stock": (stock, call), "ours": (ours, call)}, setting)
        for variant, timing in timings.items():
            yield row(
                (SECTION, name, torch.float32, variant),
                found if variant == "ours" else "",
                timing, timings["stock"], 4.0 * chosen.n * chosen.elements, 0, setting,
            )  # fmt: skip
    except RuntimeError as error:
        yield failed(SECTION, name, "float32", error)

"""What is measured: kernels, steps, whole workloads, overheads.

A figure is a function of a :class:`Setting` that yields :class:`Result` rows. Every
row is a ratio (rival's time divided by ours, 1 and more is faster) or, where ``unit``
says so, an overhead.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import pai_torchacc as ptac
from pai_torchacc.bench.measure import Timing, alternate
from pai_torchacc.bench.workloads import WORKLOADS, Task

Call = Callable[[], Any]


@dataclass(frozen=True)
class Setting:
    """How to measure."""

    n_threads: int
    blocks: int
    block_s: float
    against_compile: bool = False


@dataclass(frozen=True)
class Result:
    """One row. ``rival`` is what ours is compared with: stock or a way to tune it."""

    figure: str
    rival: str
    n_threads: int
    value: float
    unit: str
    rival_us: float = 0.0
    our_us: float = 0.0
    rival_median_us: float = 0.0
    our_median_us: float = 0.0
    passes_gate: bool = True


Figure = Callable[[Setting], Iterator[Result]]
FIGURES: dict[str, Figure] = {}
"""By name, in the order in which they are measured."""


def figure(name: str) -> Callable[[Figure], Figure]:
    """Put a figure on the list."""

    def add(function: Figure) -> Figure:
        FIGURES[name] = function
        return function

    return add


def _off() -> None:
    ptac.disable()


def _on() -> None:
    ptac.enable()


def compare(
    name: str,
    setting: Setting,
    rivals: dict[str, Call],
    ours: Call,
    gate: bool = True,
    switch: Call = _on,
) -> Iterator[Result]:
    """Time ours against each rival, all in turn."""
    variants: dict[str, tuple[Call, Call]] = {
        r: (_off, call) for r, call in rivals.items()
    }
    variants["ptac"] = (switch, ours)
    try:
        timings = alternate(variants, setting.blocks, setting.block_s)
    finally:
        ptac.disable()
    best = timings.pop("ptac")
    for rival, timing in timings.items():
        yield _ratio(name, rival, setting, timing, best, gate)


def _ratio(
    name: str, rival: str, setting: Setting, slow: Timing, fast: Timing, gate: bool
) -> Result:
    return Result(
        name,
        rival,
        setting.n_threads,
        slow.best / fast.best,
        "ratio",
        slow.best * 1e6,
        fast.best * 1e6,
        slow.median * 1e6,
        fast.median * 1e6,
        gate,
    )


def _pool(name: str, window: tuple[int, int, int], with_backward: bool) -> None:
    @figure(name)
    def measure(setting: Setting) -> Iterator[Result]:
        x = torch.randn(64, 32, 28, 28, requires_grad=with_backward)
        y = F.max_pool2d(x, *window)
        grad = torch.randn_like(y)

        def forward() -> None:
            F.max_pool2d(x, *window)

        def both() -> None:
            torch.autograd.grad(F.max_pool2d(x, *window), x, grad)

        call = both if with_backward else forward
        yield from compare(name, setting, {"stock": call}, call)


_pool("max_pool2d 2x2/2, forward", (2, 2, 0), False)
_pool("max_pool2d 2x2/2, forward+backward", (2, 2, 0), True)
_pool("max_pool2d 3x3/2 pad 1, forward", (3, 2, 1), False)
_pool("max_pool2d 3x3/2 pad 1, forward+backward", (3, 2, 1), True)


def _cross_entropy(n: int, n_classes: int) -> None:
    name = f"cross_entropy {n}x{n_classes}, forward+backward"

    @figure(name)
    def measure(setting: Setting) -> Iterator[Result]:
        x = torch.randn(n, n_classes, requires_grad=True)
        y = torch.randint(0, n_classes, (n,))

        def call() -> None:
            F.cross_entropy(x, y).backward()
            x.grad = None

        yield from compare(name, setting, {"stock": call}, call)


_cross_entropy(128, 10)
_cross_entropy(256, 10000)


def _linear(m: int, k: int, n: int, with_backward: bool) -> None:
    way = "forward+backward" if with_backward else "forward"
    name = f"Sequential(Linear, ReLU) {m}x{k}->{n}, {way}"

    @figure(name)
    def measure(setting: Setting) -> Iterator[Result]:
        net, x = nn.Sequential(nn.Linear(k, n), nn.ReLU()), torch.randn(m, k)
        grad, wanted = torch.randn(m, n), list(net.parameters())

        def forward() -> None:
            with torch.no_grad():
                net(x)

        def both() -> None:
            torch.autograd.grad(net(x), wanted, grad)

        call = both if with_backward else forward
        yield from compare(name, setting, {"stock": call}, call)


for _shape in ((64, 1000, 64), (64, 784, 512), (1024, 256, 1024)):
    _linear(*_shape, with_backward=False)
    _linear(*_shape, with_backward=True)


def _small() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(64, 64)) for _ in range(20)] + [
        nn.Parameter(torch.randn(64)) for _ in range(20)
    ]


def _large() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(1024, 1024)) for _ in range(8)]


def _mnist() -> list[nn.Parameter]:
    """The parameters of the CNN of PyTorch's MNIST example."""
    sizes = ((32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,))
    sizes += ((128, 9216), (128,), (10, 128), (10,))
    return [nn.Parameter(torch.randn(size)) for size in sizes]


def _optimizer(
    name: str,
    cls: type[torch.optim.Optimizer],
    make: Callable[[], list[nn.Parameter]],
    way: str | None = None,
    **options: Any,
) -> None:
    """Against the loop over tensors and ``fused``, or one way against itself."""

    @figure(name)
    def measure(setting: Setting) -> Iterator[Result]:
        def step(**asked: bool) -> Call:
            parameters = make()
            for p in parameters:
                p.grad = torch.randn_like(p)
            return cls(parameters, lr=1e-4, **options, **asked).step

        asked = {way: True} if way else {}
        rivals = {"stock": step(**asked)}
        if not way and cls is not torch.optim.Adadelta:
            rivals["fused=True"] = step(fused=True)
        yield from compare(name, setting, rivals, step(**asked))


_optimizer("SGD with momentum, 40 small tensors", torch.optim.SGD, _small, momentum=0.9)
_optimizer("Adam, 40 small tensors", torch.optim.Adam, _small)
_optimizer("AdamW, 40 small tensors", torch.optim.AdamW, _small)
_optimizer("Adam, 8 M parameters", torch.optim.Adam, _large)
_optimizer("SGD with momentum, 8 M parameters", torch.optim.SGD, _large, momentum=0.9)
for _name, _make in (
    ("40 small tensors", _small),
    ("8 M parameters", _large),
    ("MNIST's CNN", _mnist),
):
    _optimizer(f"Adadelta, {_name}", torch.optim.Adadelta, _make)
    for _way in ("foreach", "fused"):
        _optimizer(f"AdamW {_way}=True, {_name}", torch.optim.AdamW, _make, _way)


def gate(task: Task, switch: Call = _on) -> bool:
    """Whether this workload's model keeps the numbers' contract on its batch."""
    x, _ = next(task.batches)
    switch()
    try:
        return bool(ptac.verify(task.model, x))
    finally:
        _off()


def _training(name: str) -> None:
    title = f"{name}, training step"

    @figure(title)
    def measure(setting: Setting) -> Iterator[Result]:
        workload = WORKLOADS[name]
        passes = gate(workload.task())
        rivals = {
            "stock": workload.task().train_step,
            "fused=True": workload.task(fused=True).train_step,
        }
        if setting.against_compile:
            compiled = workload.task()
            compiled.model = torch.compile(compiled.model)
            rivals["torch.compile"] = compiled.train_step
        yield from compare(title, setting, rivals, workload.task().train_step, passes)


def _inference(name: str) -> None:
    title = f"{name}, inference"

    @figure(title)
    def measure(setting: Setting) -> Iterator[Result]:
        def infer(change: Callable[[nn.Module], Any] = nn.Module.eval) -> Call:
            task = WORKLOADS[name].task()
            task.model = change(task.model.eval())
            return task.infer

        task = WORKLOADS[name].task()
        task.model.eval()
        rivals = {"stock": infer()}
        if setting.against_compile:
            rivals["torch.compile"] = infer(torch.compile)
        yield from compare(title, setting, rivals, infer(), gate(task))


for _name, _workload in WORKLOADS.items():
    if _workload.trains:
        _training(_name)
    _inference(_name)


@figure("forwarded max_pool2d, added")
def _forwarded_pool(setting: Setting) -> Iterator[Result]:
    x = torch.randint(0, 9, (1, 1, 4, 4))
    aten = torch.ops.aten.max_pool2d_with_indices

    def call() -> None:
        for _ in range(100):
            aten(x, [2, 2], [2, 2], [0, 0], [1, 1], False)

    yield _added("forwarded max_pool2d, added", setting, call, 100)


@figure("forwarded nn.Linear, added")
def _forwarded_linear(setting: Setting) -> Iterator[Result]:
    layer, x = nn.Linear(4, 4), torch.randn(4, 4)

    def call() -> None:
        for _ in range(100):
            layer(x)

    yield _added("forwarded nn.Linear, added", setting, call, 100)


def _added(name: str, setting: Setting, call: Call, calls: int) -> Result:
    timings = alternate(
        {"stock": (_off, call), "ptac": (_on, call)}, setting.blocks, setting.block_s
    )
    ptac.disable()
    stock, ours = (timings[k].best * 1e6 / calls for k in ("stock", "ptac"))
    return Result(name, "stock", setting.n_threads, ours - stock, "us", stock, ours)


@figure("forwarded step with foreach=True, added")
def _forwarded_foreach(setting: Setting) -> Iterator[Result]:
    name = "forwarded step with foreach=True, added"
    parameters = _small()
    for p in parameters:
        p.grad = torch.randn_like(p)
    step = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, foreach=True).step
    row = _added(name, setting, step, 1)
    percent = 100 * (row.our_us / row.rival_us - 1)
    yield replace(row, value=percent, unit="%")


_FIRST_STEP = """
import time, torch
from pai_torchacc.bench.workloads import WORKLOADS
import pai_torchacc as ptac
torch.set_num_threads({threads})
task = WORKLOADS["SimpleCNN"].task()
task.train_step()
start = time.perf_counter(); task.train_step(); stock = time.perf_counter() - start
start = time.perf_counter(); ptac.enable(); task.train_step()
print((time.perf_counter() - start - stock) * 1e3)
"""

_IMPORT = """
import time, torch
start = time.perf_counter()
import pai_torchacc
print((time.perf_counter() - start) * 1e3)
"""


@figure("first accelerated step beyond a stock step")
def _first_step(setting: Setting) -> Iterator[Result]:
    program = _FIRST_STEP.format(threads=setting.n_threads)
    yield _in_fresh_processes(
        "first accelerated step beyond a stock step", setting, program
    )


@figure("import pai_torchacc beyond import torch")
def _import(setting: Setting) -> Iterator[Result]:
    yield _in_fresh_processes(
        "import pai_torchacc beyond import torch", setting, _IMPORT
    )


def _in_fresh_processes(name: str, setting: Setting, program: str) -> Result:
    times = []
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        times.append(float(done.stdout.split()[-1]))
    return Result(name, "stock", setting.n_threads, sorted(times)[2], "ms")

"""The scripts of examples/, by stock and accelerated in one run, held against float64.

Figures (time per step both ways) are printed, by ``pytest -s`` and this file's name.
They assert nothing.
"""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import native
import pytest
import switching
import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

EXAMPLES = native.ROOT / "examples"
MEMORY, QUANTIZATION, RATES = "memory_pool", "model_quantization", "adaptive_lr"
ELSEWHERE = {
    *("batch_size", "custom_fusion", "data_parallel", "data_pipeline", "distributed"),
    *("custom_pass", "graph_optimization", "training_step"),
}
"""Their tests are beside those of what they show."""

SCRIPTS = sorted(
    {p.stem for p in EXAMPLES.glob("*.py")} - {MEMORY, QUANTIZATION, RATES} - ELSEWHERE
)

# The contract pools scalars over at least 32 seeds: one rounding says nothing.
SEEDS = range(32)
STEPS = 2
BLOCKS = 3


Work = tuple[Callable[[], object], int]
"""Something to time, and how many steps it does."""


@cache
def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def accelerated(numerics: str, *, by_table: bool) -> Iterator[None]:
    """Enabled; unless the table of this machine decides, with a row for every call."""
    rows = {op: switching.best_row(op) for op in switching.operators_with_rows()}
    with ptac.enable(numerics=numerics) as handle:
        assert handle, handle.reason
        try:
            for op, row in {} if by_table else rows.items():
                _C.pin(op, row)
            yield
        finally:
            for op in rows:
                _C.pin(op, None)


def as_dtype(batches: Any, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    return [(x.to(dtype), y) for x, y in batches]


def linear_loop(dtype: torch.dtype, seed: int, batch: int = 32) -> list[Tensor]:
    s = script("linear_loop")
    model = s.make_model(seed).to(dtype)
    batches = as_dtype(s.make_batches(STEPS, batch, seed), dtype)
    return [torch.tensor(s.train(model, batches), dtype=torch.float64)]


def linear_loop_steps(batch: int = 32) -> Work:
    s = script("linear_loop")
    model, batches = s.make_model(), s.make_batches(50, batch)
    return lambda: s.train(model, batches), len(batches)


@cache
def digits() -> Any:
    return script("simple_cnn").load_digits()


def simple_cnn(dtype: torch.dtype, seed: int) -> list[Tensor]:
    s = script("simple_cnn")
    training, (images, _) = digits()
    model = s.make_model(seed).to(dtype)
    batches = as_dtype(s.make_batches(training, seed=seed)[:STEPS], dtype)
    losses = s.train(model, batches)
    scores = s.classify(model, images[:64].to(dtype))
    return [torch.tensor(losses, dtype=torch.float64), scores]


def simple_cnn_steps() -> Work:
    s = script("simple_cnn")
    model, batches = s.make_model(), s.make_batches(digits()[0])[:4]
    return lambda: s.train(model, batches), len(batches)


def make_layer(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(1000, 64), nn.ReLU())


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    layer.zero_grad()
    layer(x).square().sum().backward()
    return [p.grad for p in layer.parameters() if p.grad is not None]


def operator_fusion(dtype: torch.dtype, seed: int) -> list[Tensor]:
    """The script's chain, and a layer with its activation."""
    chain, layer = script("operator_fusion").chain, make_layer(seed).to(dtype)
    pairs = [torch.randn(2, n, k).to(dtype) for n, k in ((128, 128), (200, 32))]
    x = torch.randn(64, 1000).to(dtype)
    with torch.no_grad():
        results = [*(chain(*pair) for pair in pairs), layer(x)]
    return [*results, *gradients(layer, x)]


def operator_fusion_steps() -> Work:
    layer, x = make_layer(), torch.randn(64, 1000)
    return lambda: gradients(layer, x), 1


@dataclass(frozen=True)
class Case:
    """A script's work for one seed, what its steps are, and what must be counted."""

    run: Callable[[torch.dtype, int], list[Tensor]]
    steps: Callable[[], Work]
    hits: dict[str, int]


TRAINING = {"sgd_step": STEPS, "zero_grad": STEPS}
LOSS = {"cross_entropy": STEPS, "cross_entropy_backward": STEPS}
CASES = {
    "linear_loop": Case(linear_loop, linear_loop_steps, {**TRAINING, **LOSS}),
    "linear_loop, batch 64": Case(
        partial(linear_loop, batch=64),
        partial(linear_loop_steps, 64),
        {**TRAINING, **LOSS},
    ),
    "simple_cnn": Case(
        simple_cnn,
        simple_cnn_steps,
        {
            **TRAINING,
            **LOSS,
            "conv2d": 2 * STEPS + 2,
            "conv2d_backward": 3 * STEPS,  # the image needs no gradient
            "max_pool2d": 2 * STEPS + 2,
            "max_pool2d_backward": 2 * STEPS,
            "linear_act": STEPS + 2,  # in training the other layer is too thin
            "linear_act_backward": STEPS,
        },
    ),
    "operator_fusion": Case(
        operator_fusion,
        operator_fusion_steps,
        {"linear_act": 2, "linear_act_backward": 1},
    ),
}
EXACT = {"sgd_step", "zero_grad", "max_pool2d", "max_pool2d_backward"}


def results(case: Case, dtype: torch.dtype) -> list[Tensor]:
    """Each of the case's results, of all seeds in one tensor."""
    by_seed = [case.run(dtype, seed) for seed in SEEDS]
    return [torch.stack(of_all) for of_all in zip(*by_seed, strict=True)]


@cache
def stock(name: str) -> list[Tensor]:
    assert not ptac.is_enabled("operator_fusion")
    return results(CASES[name], torch.float32)


@cache
def reference(name: str) -> list[Tensor]:
    assert not ptac.is_enabled("operator_fusion")
    return results(CASES[name], torch.float64)


def counters() -> dict[str, tuple[int, int, int]]:
    """Accelerated, failed and forwarded calls by operator."""
    counted = {name: _C.counters(name) for name, _, _ in _C.operators()}
    return {op: (n[0], n[1], sum(n[2].values())) for op, n in counted.items()}


INNER = {"copy", "index", "mm", "addmm", "bmm", "baddbmm", "small_pointwise"}
"""How often torch and the scripts copy, multiply and add is their own affair."""


def outer(hits: dict[str, int]) -> dict[str, int]:
    return {op: n for op, n in hits.items() if n and op not in INNER}


def since(before: dict[str, tuple[int, int, int]], which: int) -> dict[str, int]:
    return {op: n[which] - before[op][which] for op, n in counters().items()}


def assert_close(ours: Tensor, plain: Tensor, exact: Tensor, is_trained: bool) -> None:
    """Level close: error against float64 within a multiple of stock's own.

    Twice for the root mean square, three times for the largest, and two units in the
    last place of the result's magnitude besides. The results of a second step start
    from weights that carry such errors already, on both sides, and in one seed of many
    a ReLU's input lies so near to 0, or two of a pool's inputs so near to each other,
    that rounding, of either side, decides which one passes: of training, an error is
    the median of the seeds'.
    """
    ulp = torch.finfo(torch.float32).eps

    def rms(x: Tensor) -> Tensor:
        by_seed = x.square().flatten(1).mean(1)
        return (by_seed.median() if is_trained else by_seed.mean()).sqrt()

    def largest(x: Tensor) -> Tensor:
        by_seed = x.abs().flatten(1).amax(1)
        return by_seed.median() if is_trained else by_seed.amax()

    ours, plain = (x.double() - exact for x in (ours, plain))
    assert rms(ours) <= 2 * rms(plain) + 2 * ulp * rms(exact)
    assert largest(ours) <= 3 * largest(plain) + 2 * ulp * largest(exact)


@pytest.mark.parametrize("name", CASES)
def test_rows_keep_level_close(name: str) -> None:
    plain, exact = stock(name), reference(name)
    with accelerated("close", by_table=False):
        before = counters()
        ours = results(CASES[name], torch.float32)
        hits, failed = since(before, 0), since(before, 1)
    wanted = {op: n * len(SEEDS) for op, n in CASES[name].hits.items()}
    assert outer(hits) == wanted
    assert not any(failed.values())
    for a, b, c in zip(ours, plain, exact, strict=True):
        assert_close(a, b, c, is_trained="sgd_step" in CASES[name].hits)


@pytest.mark.parametrize("name", CASES)
def test_rows_keep_level_exact(name: str) -> None:
    plain = stock(name)
    with accelerated("exact", by_table=False):
        before = counters()
        ours = results(CASES[name], torch.float32)
        hits = since(before, 0)
    wanted = {op: n for op, n in CASES[name].hits.items() if op in EXACT}
    hits = outer(hits)
    assert {op: n // len(SEEDS) for op, n in hits.items()} == wanted
    for a, b in zip(ours, plain, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_by_this_machines_table(name: str) -> None:
    plain, exact = stock(name), reference(name)
    with accelerated("close", by_table=True):
        before = counters()
        ours = results(CASES[name], torch.float32)
        hits, failed, forwarded = (since(before, i) for i in range(3))
        print(f"\n{name}: {time_per_step(CASES[name])}")
    for op, n in CASES[name].hits.items():
        assert hits[op] + forwarded[op] >= n or op.endswith("_backward"), op
    assert not any(failed.values())
    for a, b, c in zip(ours, plain, exact, strict=True):
        assert_close(a, b, c, is_trained="sgd_step" in CASES[name].hits)


def time_per_step(case: Case) -> str:
    """Stock's and the time of what is enabled now, in blocks in turn; the best of each.

    ``disabled()`` keeps the stand-ins, at most a microsecond a call, on stock's side.
    """
    work, n_steps = case.steps()
    blocks: tuple[list[float], list[float]] = ([], [])
    for _ in range(BLOCKS):
        for is_ours, elapsed in enumerate(blocks):
            with nullcontext() if is_ours else ptac.disabled():
                start = time.perf_counter()
                work()
                elapsed.append((time.perf_counter() - start) / n_steps * 1e6)
    plain, ours = map(min, blocks)
    return (
        f"stock {plain:.0f} us, accelerated {ours:.0f} us a step, {plain / ours:.2f}x"
    )


def test_accuracy_is_stocks() -> None:
    s = script("simple_cnn")
    training, (images, classes) = digits()

    def accuracy() -> float:
        model = s.make_model()
        for epoch in range(3):
            s.train(model, s.make_batches(training, seed=epoch))
        found = s.classify(model, images).argmax(1)
        return (found == classes).double().mean().item()

    plain = accuracy()
    with accelerated("close", by_table=False):
        ours = accuracy()
    print(f"\naccuracy {plain:.4f}, accelerated {ours:.4f}")
    assert plain > 0.3, "nothing was learnt"
    assert abs(ours - plain) <= 0.01


def run_script(name: str, *options: str) -> str:
    short = {"simple_cnn": ("--epochs", "1"), "operator_fusion": ("--rounds", "2")}
    command = [str(EXAMPLES / f"{name}.py"), *options]
    if name not in (MEMORY, QUANTIZATION, RATES):
        command += short.get(name, ("--steps", "5"))
    # A fork has page faults of its own, where it writes what it shares with its parent.
    run = switching.run_python if name == MEMORY else switching.forked
    done = run(command, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs_as_it_is(name: str) -> None:
    plain, ours = run_script(name, "--stock"), run_script(name)
    assert "operator_fusion" not in plain
    assert "operator_fusion: on since" in ours


def multiplies_int8() -> bool:
    """Whether this CPU has an instruction for it (VNNI)."""
    rows = {name: rows for name, _, rows in _C.operators()}["int8_linear"]
    return any(can_run for name, _, can_run, _ in rows if "vnni" in name)


def test_quantization_example() -> None:
    """Float, int8 and float again: a quarter of the bytes, the same digits read."""

    def figures(text: str) -> list[tuple[float, int]]:
        rows = re.findall(r"^accuracy ([\d.]+), (\d+) bytes", text, re.M)
        return [(float(accuracy), int(n)) for accuracy, n in rows]

    plain, ours = run_script(QUANTIZATION, "--stock"), run_script(QUANTIZATION)
    print(ours)
    [stock], [before, int8, after] = figures(plain), figures(ours)
    assert stock == before and after[1] == before[1]
    assert abs(int8[0] - before[0]) <= 0.003 >= abs(after[0] - before[0])
    coded = re.search(r"^coded file: (\d+) bytes", ours, re.M)
    assert coded and int(coded[1]) < int8[1] < before[1]
    if multiplies_int8():  # elsewhere layers may stay float, being faster so
        assert int8[1] < 0.27 * before[1]
        assert int(coded[1]) < 0.25 * before[1]


def test_memory_example() -> None:
    """The same bits, and no page faults once it runs."""

    def steps(text: str) -> list[tuple[str, int]]:
        rows = re.findall(r"^cpu \d+: ([\d.]+), (\d+) faults", text, re.M)
        return [(loss, int(n)) for loss, n in rows]

    plain, ours = run_script(MEMORY, "--stock"), run_script(MEMORY)
    assert [loss for loss, _ in steps(plain)] == [loss for loss, _ in steps(ours)]
    assert len(steps(plain)) == 20
    assert max(n for _, n in steps(ours)[-5:]) <= 5
    assert "memory_pool: on since" in ours
    assert "Reserved memory" in ours
    assert len((EXAMPLES / f"{MEMORY}.py").read_text().splitlines()) <= 40


def test_rates_example() -> None:
    """Rates that are far too small, or too large, end where the good one does."""

    def losses(text: str) -> list[float]:
        return [
            float(x) for x in re.findall(r"^lr [\d.e-]+: loss ([\d.]+|nan)", text, re.M)
        ]

    plain, ours = run_script(RATES, "--stock"), run_script(RATES)
    print(ours)
    stock, adapted = losses(plain), losses(ours)
    assert len(stock) == len(adapted) == 4
    assert min(stock[0], stock[3]) > 1 > adapted[3]
    assert max(adapted[:3]) < 0.05 and adapted[2] <= 1.5 * stock[2]
    assert ours.count("by losses") == 4


def test_every_script_is_compared() -> None:
    assert {name.partition(",")[0] for name in CASES} == set(SCRIPTS)

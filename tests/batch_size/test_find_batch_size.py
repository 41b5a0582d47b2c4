"""find_batch_size(): what it gives, what it leaves as it was, what it refuses.

Trials are real child processes. No test says how fast anything is: what is chosen is
held against the trials that the result itself lists.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pai_torchacc as ptac
from pai_torchacc.batch_size.result import BatchSize

SHORT: dict[str, Any] = {"seconds": 0.01, "timeout": 120}


class Training:
    """A model that has been trained already, so that it has gradients and state."""

    def __init__(self) -> None:
        layers = nn.Linear(64, 96), nn.BatchNorm1d(96), nn.Dropout(), nn.Linear(96, 4)
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.step(self.make_batch(32))

    def make_batch(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        random.random()
        return torch.randn(n, 64), torch.randint(4, (n,))

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        x, y = batch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state(self) -> list[Any]:
        grads = [p.grad for p in self.model.parameters()]
        return [
            copy.deepcopy(self.model.state_dict()),
            copy.deepcopy(self.optimizer.state_dict()["state"]),
            copy.deepcopy(grads),
            torch.get_rng_state(),
            random.getstate(),
            torch.get_num_threads(),
        ]


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def assert_chosen_by_its_own_table(found: BatchSize) -> None:
    fitting = [t for t in found.trials if not t.trouble]
    best = max(t.throughput for t in fitting)
    enough = [t.batch for t in fitting if t.throughput >= 0.95 * best]
    assert found.batch == min(enough)
    # A batch of some KiB may find its place in what the process has already.
    assert all(0 <= t.need_bytes <= found.limit_bytes for t in fitting)


@pytest.mark.parametrize("is_on", [False, True], ids=["stock", "accelerated"])
def test_program_is_left_bit_for_bit(is_on: bool) -> None:
    """The next step gives the same bits as without a search, and switches stay."""
    if is_on:
        assert ptac.enable()
    try:
        training = Training()
        before, status = training.state(), ptac.status()
        found = ptac.find_batch_size(
            training.step, training.make_batch, largest=256, **SHORT
        )
        assert equal(before, training.state())
        assert ptac.status() == status
        after = training.step(training.make_batch(32))
        untouched = Training.__new__(Training)
        untouched.model = nn.Sequential(*copy.deepcopy(list(training.model)))
        untouched.model.load_state_dict(before[0])
        untouched.optimizer = torch.optim.Adam(untouched.model.parameters())
        untouched.optimizer.load_state_dict(
            {**training.optimizer.state_dict(), "state": before[1]}
        )
        torch.set_rng_state(before[3])
        assert untouched.step(untouched.make_batch(32)) == after
    finally:
        ptac.disable()
    assert_chosen_by_its_own_table(found)
    assert found.accumulation == found.world_size == 1
    assert [t.batch for t in found.trials][:3] == [2, 4, 8]


def test_inference_under_the_callers_modes() -> None:
    """The trial runs in the caller's modes: here without gradients, in bfloat16."""
    model, x = nn.Linear(256, 256), torch.randn(64, 256)

    def step(batch: torch.Tensor) -> None:
        y = model(batch)
        if y.requires_grad or y.dtype is not torch.bfloat16:
            raise AssertionError(f"{y.requires_grad}, {y.dtype}")

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = ptac.find_batch_size(step, lambda n: x[:n], largest=64, **SHORT)
    assert_chosen_by_its_own_table(found)


def test_after_parallel_work_and_from_another_thread() -> None:
    """Workers of OpenMP do not survive a fork; trials start their own."""
    a = torch.randn(512, 512)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    found: list[BatchSize] = []

    def search() -> None:
        stock = a @ a
        results = ptac.find_batch_size(
            lambda batch: batch @ a, lambda n: torch.randn(n, 512), largest=512, **SHORT
        )
        assert torch.equal(a @ a, stock)
        found.append(results)

    try:
        a @ a
        search()
        thread = threading.Thread(target=search)
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(before)
    assert len(found) == 2
    for result in found:
        assert_chosen_by_its_own_table(result)


def test_effective_batch_is_kept() -> None:
    training = Training()
    found = ptac.find_batch_size(
        training.step, training.make_batch, keep_effective=360, **SHORT
    )
    assert found.batch * found.accumulation == 360
    assert all(360 % t.batch == 0 for t in found.trials)
    assert_chosen_by_its_own_table(found)


def test_prime_effective_batch_has_one_candidate() -> None:
    training = Training()
    found = ptac.find_batch_size(
        training.step, training.make_batch, keep_effective=127, **SHORT
    )
    assert (found.batch, found.accumulation) == (127, 1)


def nothing(*_: Any) -> None:
    raise AssertionError("a trial has run")


WRONG: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    "no step": (TypeError, {"step": 3}, "step is a function, not int"),
    "budget": (ValueError, {"budget": 1.5}, "above 0 and at most 1"),
    "no budget": (ValueError, {"budget": 0}, "above 0 and at most 1"),
    "text": (TypeError, {"budget": "0.9"}, "budget is a number, not str"),
    "fraction": (TypeError, {"keep_effective": 2.5}, "keep_effective is an integer"),
    "bool": (TypeError, {"smallest": True}, "smallest is an integer, not bool"),
    "zero": (ValueError, {"largest": 0}, "largest=0; it is 1 or more"),
    "endless": (ValueError, {"timeout": float("inf")}, "above 0, and finite"),
    "empty": (ValueError, {"smallest": 9, "largest": 8}, "from 9 to 8"),
    "no divisor": (
        ValueError,
        {"keep_effective": 14, "smallest": 3, "largest": 6},
        r"no batch size is from 3 to 6 among the divisors of 14: \[1, 2, 7, 14\]",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case: str) -> None:
    kind, arguments, text = WRONG[case]
    step = arguments.pop("step", nothing) if "step" in arguments else nothing
    with pytest.raises(kind, match=text):
        ptac.find_batch_size(step, nothing, **arguments)


def test_data_that_ends_is_no_larger_batch() -> None:
    x = torch.randn(21, 8)
    with pytest.raises(ValueError, match=r"make_batch\(32\) gave 21 samples"):
        ptac.find_batch_size(grows, lambda n: {"x": x[:n], "y": [x[:n, 0]]}, **SHORT)


def grows(batch: Any) -> None:
    """A step that takes as long whatever the batch, so that larger ones are better."""
    for _ in range(20_000):
        pass


@pytest.mark.parametrize("n_samples", [0, 32])
def test_make_batch_that_ignores_its_argument(n_samples: int) -> None:
    """Else the largest batch of all would seem to be the fastest."""
    x = torch.randn(n_samples, 8)
    with pytest.raises(ValueError, match=r"as many samples as make_batch\(2\)"):
        ptac.find_batch_size(grows, lambda n: x, **SHORT)


def test_numbers_of_numpy() -> None:
    found = ptac.find_batch_size(
        grows,
        torch.zeros,
        budget=np.float64(0.5),
        keep_effective=np.int64(8),
        **SHORT,
    )
    assert found.batch * found.accumulation == 8
    assert type(found.batch) is type(found.accumulation) is int


def test_first_size_that_is_asked_for() -> None:
    """Batch normalization refuses one sample; its own error says so."""
    training = Training()
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        ptac.find_batch_size(training.step, training.make_batch, smallest=1, **SHORT)


def result_with(**options: Any) -> BatchSize:
    return ptac.find_batch_size(grows, torch.zeros, largest=32, **SHORT, **options)


def test_table_says_what_was_found() -> None:
    found = result_with()
    text = str(found)
    assert text.startswith(f"batch {found.batch}: ")
    assert text.count("chosen") == 1
    assert f"a step may need {found.limit_bytes / 2**20:.0f}" in text
    for trial in found.trials:
        assert f"{trial.throughput:.5g}" in text


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = tmp_path / f"plot.{ending}"
    result_with(keep_effective=32).plot(file)
    beginning: Callable[[bytes], bool] = {
        "png": lambda content: content.startswith(b"\x89PNG"),
        "svg": lambda content: b"samples a second" in content or b"<svg" in content,
    }[ending]
    assert beginning(file.read_bytes())


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install pai-torchacc\[bench\]"):
        result_with().plot("never.png")
    assert not Path("never.png").exists()

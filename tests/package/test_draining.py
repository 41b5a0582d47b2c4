"""Switching while others calculate: kernels stop at once, entries leave later.

The dispatcher must not be changed under a running backward pass or call of ours.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import contract
import footprint
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C, fusion
from pai_torchacc._switch import quiescence, state

FUSION = "operator_fusion"


def network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU())
    return model, torch.randn(4, 1, 10, 10)


def gradients(during: Callable[[], None]) -> list[Tensor]:
    """Pool, pool again and call ``during`` between the two in the backward pass."""
    model, x = network()
    y = model(x)

    def hook(grad: Tensor) -> None:
        during()

    y.register_hook(hook)
    F.max_pool2d(y, 2).sum().backward()
    return [p.grad for p in model.parameters()]


def nothing() -> None:
    pass


def end(*threads: threading.Thread) -> None:
    """Wait for the system's threads too, which after ``join`` have some way to go.

    What runs without the interpreter's lock keeps the entries.
    """
    for thread in threads:
        thread.join()
        while Path(f"/proc/self/task/{thread.native_id}").exists():
            os.sched_yield()


def test_disable_inside_backward() -> None:
    stock = gradients(nothing)
    seen: dict[str, Any] = {}
    before = footprint.take()

    def during() -> None:
        ptac.disable()
        seen["status"] = ptac.status()[FUSION]
        seen["count"] = len(_C.override_installed())
        seen["hits"] = switching.hits("max_pool2d_backward")

    ptac.enable()
    with switching.pins(switching.operators_with_rows()):
        start = switching.hits("max_pool2d_backward")
        ours = gradients(during)
        assert start.accelerated == 1
    assert seen["status"]["active"] is False
    assert seen["status"]["draining"] == seen["count"] > 0
    # Off means off: what came after in the same pass was stock, and not counted.
    assert seen["hits"].accelerated == 0
    assert seen["hits"].forwarded == {}
    # Nobody had to call anything for the entries to leave.
    assert not _C.override_installed()
    assert "draining" not in ptac.status()[FUSION]
    footprint.assert_same(before, footprint.take())
    contract.exactly(ours, stock)


def test_disable_inside_a_backward_within_a_backward() -> None:
    """The end of the inner pass is no quiet moment: the outer one goes on."""
    stock = gradients(nothing)
    counts: list[int] = []

    def inner() -> None:
        with torch.enable_grad():
            gradients(ptac.disable)
        counts.append(len(_C.override_installed()))

    ptac.enable()
    ours = gradients(inner)
    assert counts[0] > 0
    F.max_pool2d(torch.ones(1, 1, 4, 4), 2)
    assert not _C.override_installed()
    contract.exactly(ours, stock)


def test_enable_inside_backward() -> None:
    stock = gradients(nothing)
    with switching.pins(["max_pool2d_backward"]):
        hits = switching.hits("max_pool2d_backward")
        ours = gradients(lambda: _enable_pinned(hits))
        assert hits.accelerated == 1
        ptac.disable()
    contract.exactly(ours, stock)


def _enable_pinned(hits: switching.Hits) -> None:
    assert hits.accelerated == 0
    assert ptac.enable()
    for op in switching.operators_with_rows():
        _C.pin(op, switching.best_row(op))
    for op in switching.operators_with_rows():
        if op != "max_pool2d_backward":
            _C.pin(op, None)


def test_off_and_on_again_inside_backward() -> None:
    stock = gradients(nothing)

    def during() -> None:
        ptac.disable()
        assert _C.override_installed()
        ptac.enable()
        assert "draining" not in ptac.status()[FUSION]

    with switching.accelerated("max_pool2d", "max_pool2d_backward"):
        hits = switching.hits("max_pool2d_backward")
        ours = gradients(during)
        assert hits.accelerated == 2
        assert _C.override_installed()
    contract.exactly(ours, stock)


def test_a_block_that_ends_inside_backward() -> None:
    stock = gradients(nothing)
    handle = ptac.enable()
    handle.__enter__()
    ours = gradients(lambda: handle.__exit__(None, None, None))
    assert not ptac.is_enabled(FUSION)
    assert not _C.override_installed()
    contract.exactly(ours, stock)


def test_disable_while_another_thread_is_in_backward() -> None:
    stock = gradients(nothing)
    inside, go_on = threading.Event(), threading.Event()
    found: list[Any] = []

    def during() -> None:
        inside.set()
        assert go_on.wait(60)

    thread = threading.Thread(target=lambda: found.append(gradients(during)))
    with switching.accelerated():
        thread.start()
        assert inside.wait(60)
        ptac.disable()
        assert ptac.status()[FUSION]["draining"] > 0
        go_on.set()
        end(thread)
    assert "draining" not in ptac.status()[FUSION]
    assert not _C.override_installed()
    contract.exactly(found[0], stock)


def test_forwarded_calls_take_the_entries_along() -> None:
    """After the other thread's backward, any call of ours notices the quiet."""
    inside, go_on = threading.Event(), threading.Event()

    def during() -> None:
        inside.set()
        assert go_on.wait(60)

    thread = threading.Thread(target=lambda: gradients(during))
    with switching.accelerated():
        thread.start()
        assert inside.wait(60)
        ptac.disable()
        assert _C.override_installed()
        go_on.set()
        end(thread)
        F.max_pool2d(torch.ones(1, 1, 4, 4), 2)
        # The interpreter runs what the call asked for before the next line.
        assert not _C.override_installed()


def test_a_full_queue_of_the_interpreter_only_delays_it() -> None:
    """It fills up in one call of C, after which the interpreter empties it."""
    add = ctypes.pythonapi.Py_AddPendingCall
    add.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    harmless = ctypes.cast(ctypes.pythonapi.PyErr_CheckSignals, ctypes.c_void_p)
    x = torch.ones(1, 1, 4, 4)
    calls = [(add, harmless, None)] * 1000 + [(torch.max_pool2d, x, 2)]

    inside, go_on = threading.Event(), threading.Event()

    def wait(grad: Tensor) -> None:
        inside.set()
        assert go_on.wait(60)

    def backward_without_calls_of_ours() -> None:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        y.register_hook(wait)
        torch.autograd.grad(y.sum(), x)  # nothing is copied, as into a .grad

    backward = threading.Thread(target=backward_without_calls_of_ours)
    with switching.accelerated():
        backward.start()
        assert inside.wait(60)
        ptac.disable()
        go_on.set()
        end(backward)
        answers = list(itertools.starmap(operator.call, calls))
        if answers[-2] != -1 and sys.version_info >= (3, 14):
            pytest.skip("Python emptied its queue in the midst of a call, as 3.14 may")
        assert answers[-2] == -1
        assert _C.override_installed()
        F.max_pool2d(x, 2)
        assert not _C.override_installed()


def overridden() -> set[str]:
    return set(_C.override_installed())


def test_a_block_takes_its_own_entries_along() -> None:
    with ptac.enable(include=["zero_grad"]):  # which has no entry
        assert overridden() == set()
        with ptac.enable(
            include=["max_pool2d", "log_softmax"],
            exclude=["max_pool2d_backward", "log_softmax_backward"],
        ):
            assert overridden() == {"max_pool2d", "log_softmax"}
            with ptac.enable(exclude=["max_pool2d"]):
                assert "avg_pool2d" in overridden()
                assert "max_pool2d" not in overridden()
            assert overridden() == {"max_pool2d", "log_softmax"}
        assert overridden() == set()


def test_entries_that_a_block_brought_wait_for_the_backward_pass() -> None:
    def during() -> None:
        with ptac.enable(exclude=["log_softmax"]):
            pass
        assert len(overridden()) > 1

    with ptac.enable(include=["log_softmax"], exclude=["log_softmax_backward"]):
        gradients(during)
        assert overridden() == {"log_softmax"}


def test_nothing_is_taken_out_in_the_midst_of_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that was forwarded before may ask for it at any moment."""
    with ptac.enable():
        before = overridden()
    with monkeypatch.context() as patch:
        patch.setattr(quiescence, "is_outside_backward", lambda *_: False)
        ptac.enable()
        ptac.disable()
        assert "draining" in ptac.status()[FUSION]
    with monkeypatch.context() as patch:
        install = fusion._install_overrides

        def and_drain(*args: Any) -> Any:
            result = install(*args)
            state._drain_quietly()
            return result

        patch.setattr(fusion, "_install_overrides", and_drain)
        ptac.enable()
    assert overridden() == before
    ptac.disable()
    assert overridden() == set()


def test_a_change_in_the_midst_of_another_follows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As from a signal handler."""
    install = fusion._install_overrides

    def and_disable(*args: Any) -> Any:
        monkeypatch.undo()
        ptac.disable()
        return install(*args)

    monkeypatch.setattr(fusion, "_install_overrides", and_disable)
    before = footprint.take()
    assert not ptac.enable()
    footprint.assert_same(before, footprint.take())
    assert overridden() == set()


def test_entries_stay_while_another_thread_runs_without_the_interpreters_lock() -> None:
    """It may be on its way from the dispatcher's table to our kernel."""
    libc, held = ctypes.CDLL(None), ctypes.byref(ctypes.c_int())
    libc.pthread_spin_init(held, 0)
    libc.pthread_spin_lock(held)
    thread = threading.Thread(target=libc.pthread_spin_lock, args=(held,))
    with switching.accelerated():
        thread.start()
        stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "R":
            pass
        try:
            ptac.disable()
            assert _C.override_installed()
            assert ptac.status()[FUSION]["draining"] > 0
        finally:
            libc.pthread_spin_unlock(held)
            end(thread)
    ptac.disable()
    assert not _C.override_installed()


@pytest.mark.parametrize("n_threads", [3])
def test_switching_under_load(n_threads: int) -> None:
    """Threads train while the switch goes on and off; every number stays stock's."""

    def train() -> list[Tensor]:
        torch.manual_seed(9)
        model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(25, 4))
        weights = [torch.linspace(-1, 1, p.numel()) for p in model.parameters()]
        with torch.no_grad():
            for p, w in zip(model.parameters(), weights, strict=True):
                p.copy_(w.reshape(p.shape))
        x = torch.linspace(-2, 2, 300).sin().reshape(3, 1, 10, 10)
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            opt.zero_grad()
            model(x).square().sum().backward()
            opt.step()
        return [p.detach() for p in model.parameters()]

    stock = train()
    before = footprint.take()
    stop = threading.Event()
    wrong: list[Any] = []
    rounds = [0] * n_threads

    def work(index: int) -> None:
        try:
            while not stop.is_set():
                contract.exactly(train(), stock)
                rounds[index] += 1
        except BaseException as error:
            wrong.append(error)
            raise

    ops = ("max_pool2d", "max_pool2d_backward", "sgd_step", "zero_grad")
    total = switching.hits("sgd_step")
    threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for thread in threads:
            thread.start()
        for _ in range(60):
            with switching.accelerated(*ops):
                hits = switching.hits("sgd_step")
                while hits.accelerated < 5 and not wrong:
                    pass
    finally:
        stop.set()
        end(*threads)
        sys.setswitchinterval(interval)
    assert not wrong
    assert all(rounds)
    assert total.accelerated >= 300
    assert "draining" not in ptac.status()[FUSION]
    footprint.assert_same(before, footprint.take())


def test_frames_of_all_threads_are_counted() -> None:
    inside, leave = threading.Barrier(3), threading.Event()

    def waits(depth: int) -> None:
        if depth:
            waits(depth - 1)
        else:
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=waits, args=(depth,)) for depth in (0, 2)]
    assert _C.frames_of(waits.__code__) == 0
    for thread in threads:
        thread.start()
    inside.wait()
    found = _C.frames_of(waits.__code__)
    leave.set()
    for thread in threads:
        thread.join()
    assert found == 1 + 3
    assert _C.frames_of(waits.__code__) == 0

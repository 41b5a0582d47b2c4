"""Interrupts while switching: what is on is known afterwards, and can be switched off.

Each program runs in a process of its own, since what is tested for is also a hang.
"""

from __future__ import annotations

import _thread
import faulthandler
import gc
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import internals
import pytest
import switching
import torch
from interrupting import Interrupt, interrupted

import pai_torchacc as ptac
from pai_torchacc import _C, _host, _lock
from pai_torchacc.commands import info

FEATURES = ("memory_pool", "memory_reuse")

INTERRUPTS = 150
STUCK_S = 60


def places() -> list[Any]:
    """Where the process is changed while features are on."""
    autograd = torch._C._autograd
    found = [
        threading.Thread._bootstrap_inner,
        autograd._saved_tensors_hooks_disable,
        autograd._saved_tensors_hooks_enable,
        autograd._top_saved_tensors_default_hooks(True),
    ]
    return (
        found if _C.pool_state()[0] == "draining" else [*found, internals.pool_slots()]
    )


def check(stock: list[Any]) -> None:
    """What the status says is so, and nothing is left once it is switched off."""
    on = [name for name in FEATURES if ptac.is_enabled(name)]
    assert (_C.pool_state()[0] == "on") == bool(on), (_C.pool_state(), on)
    assert _C.saved_is_on() == ("memory_reuse" in on)
    ptac.disable()
    assert _C.pool_state()[0] in ("off", "draining")
    assert not _C.saved_is_on()
    assert places() == stock[: len(places())]
    assert ptac.enable(*FEATURES)
    ptac.disable()


def begin() -> list[Any]:
    """Everything has been on once; the places of a process where nothing is."""
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    _host.load()
    stock = places()
    assert ptac.enable(*FEATURES)
    check(stock)
    return stock


def end() -> None:
    ptac.disable()
    gc.collect()
    assert _C.pool_state() == ("off", 0), _C.pool_state()
    print("well")


def by_signals(feature: str) -> None:
    """Interrupted at random times, as Ctrl-C does."""

    def interrupt(*_: Any) -> None:
        raise Interrupt

    def switch() -> None:
        ptac.enable(feature)
        ptac.disable(feature)

    stock = begin()
    signal.signal(signal.SIGALRM, interrupt)
    started = time.perf_counter()
    for _ in range(20):
        switch()
    usual = (time.perf_counter() - started) / 20
    n_interrupts, moments = 0, random.Random(0)
    for _ in range(INTERRUPTS):
        try:
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, usual))
            switch()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            n_interrupts += 1
        check(stock)
    assert n_interrupts > 10
    end()


CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "enable pool": (ptac.disable, ptac.enable_memory_pool),
    "change options": (
        ptac.enable_memory_pool,
        lambda: ptac.enable_memory_pool(policy="first_fit"),
    ),
    "disable pool": (ptac.enable_memory_pool, ptac.disable_memory_pool),
    "enable reuse": (ptac.disable, ptac.enable_memory_reuse),
    "disable reuse": (ptac.enable_memory_reuse, ptac.disable_memory_reuse),
}


def at_each_moment() -> None:
    stock = begin()
    for name, (before, change) in CHANGES.items():
        for k in itertools.count(1):
            ptac.disable()
            before()
            if not interrupted(change, k):
                break
            check(stock)
        assert k > 10, name
    end()


@pytest.mark.parametrize(
    "program", ["at_each_moment()", *(f"by_signals({name!r})" for name in FEATURES)]
)
def test_interrupts(program: str) -> None:
    assert switching.python(f"import {__name__}; {__name__}.{program}") == "well\n"


@pytest.mark.skipif(
    sys.version_info < (3, 14), reason="before 3.14 no interrupt comes before a block"
)
@pytest.mark.parametrize("lock", [_lock.switch, _lock.saved_storage])
def test_no_interrupt_leaves_a_lock_held(lock: Any) -> None:
    def hold_twice() -> None:
        with lock, lock:
            pass

    for k in itertools.count(1):
        was_interrupted = interrupted(hold_twice, k, where="")
        assert lock._recursion_count() == 0
        if not was_interrupted:
            break
    assert k > 4


@pytest.mark.parametrize(
    ("error", "expected"),
    [(RuntimeError, _host.NotNow), (KeyError, KeyError), (Interrupt, Interrupt)],
)
def test_what_is_raised_aside(
    error: type[BaseException], expected: type[BaseException]
) -> None:
    def ask(*_: Any) -> None:
        raise error("so")

    with pytest.raises(expected, match="so"):
        _host.aside(ask, _C)


def test_aside_everything_is_ordinary() -> None:
    def ask(_: Any, torch: Any) -> tuple[Any, ...]:
        return _top_hooks(), torch.is_grad_enabled(), threading.active_count()

    n_threads = threading.active_count()
    with ptac.enable_memory_reuse(), torch.no_grad():
        assert _top_hooks() is not None
        assert _host.aside(ask, _C) == (None, True, n_threads)


def _top_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    reason = "torch could not be asked how it works: can't start new thread"
    before = _C.pool_state()[0]  # "draining" while other tests keep their tensors
    assert before != "on"
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", fail)
        for learnt in ("lean", "rounding"):
            patch.delitem(_host._state, learnt, raising=False)
        for feature in ("operator_fusion", *FEATURES):
            assert ptac.enable(feature).reason == reason
            ptac.disable()
            assert _C.pool_state()[0] == before
        assert info.document()["unavailable"] == reason
    with ptac.enable(*FEATURES) as handle:
        assert handle

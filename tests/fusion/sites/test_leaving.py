"""What answers calls leaves once, whoever switches or calls meanwhile."""

from __future__ import annotations

import ctypes
import operator
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from test_sites import X
from test_windows import between
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc._switch import state
from pai_torchacc.fusion import calls
from pai_torchacc.fusion.calls import entries


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    ptac.disable()
    assert _C.windows_open() == 0


def nothing() -> None:
    pass


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def switch_off_between(
    net: nn.Module, patch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> int:
    """How often we leave, where that is put off; and call something in its midst."""
    original, times = entries.remove, []

    def remove(c: object) -> None:
        times.append(True)
        if len(times) == 1:
            meanwhile()
        original(c)

    patch.setattr(entries, "remove", remove)
    net(X, ptac.disable)
    patch.setattr(entries, "remove", original)
    return len(times)


def hits(net: nn.Module) -> int:
    ptac.report(reset=True)
    net(X, nothing)
    return sum(hits for *_, hits, _, _ in _C.sites_list())


def test_calls_of_other_threads_while_we_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    net, other = between(), between()
    wanted = net(X, nothing)
    ptac.enable_operator_fusion()
    found: list[Tensor] = []

    def call() -> None:
        in_thread(lambda: found.append(other(X, nothing)))
        in_thread(_C.windows_look)  # as a call does that was on its way meanwhile

    assert switch_off_between(net, monkeypatch, call) == 1
    torch.testing.assert_close(found, [wanted])
    assert not ptac.status()["operator_fusion"]["active"]


def test_switched_on_in_the_midst(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal's handler may do it: it is on right after that."""
    net = between()
    wanted = net(X, nothing)
    ptac.enable_operator_fusion()
    assert hits(net) == 1
    switch_off_between(net, monkeypatch, ptac.enable_operator_fusion)
    assert ptac.status()["operator_fusion"]["active"]
    assert hits(net) == 1
    torch.testing.assert_close(net(X, nothing), wanted)
    ptac.disable()
    assert hits(net) == 0


def test_switched_on_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    net = between()
    ptac.enable_operator_fusion()
    thread = threading.Thread(target=ptac.enable_operator_fusion)
    switch_off_between(net, monkeypatch, thread.start)
    thread.join(60)
    assert ptac.status()["operator_fusion"]["active"]
    assert hits(net) == 1


def has_left() -> bool:
    return not len(calls._ledger) and not _C.windows_open()


@pytest.mark.parametrize("looks", [True, False])
def test_the_lock_is_held_as_the_last_window_closes(looks: bool) -> None:
    """By a thread that switches, which may look after it when it is done."""
    net, is_held, go = between(), threading.Event(), threading.Event()
    ptac.enable_operator_fusion()

    def hold() -> None:
        with state.locked():
            ptac.disable()
            is_held.set()
            go.wait(60)
        if looks:
            ptac.status()

    thread = threading.Thread(target=hold)
    net(X, lambda: (thread.start(), is_held.wait(60)))
    assert not has_left()
    go.set()
    thread.join(60)
    if not looks:
        nn.Identity()(X)  # the next call of any module
    assert has_left()


def test_interrupted_before_it_begins() -> None:
    """The next look leaves."""
    net = between()
    ptac.enable_operator_fusion()
    raise_signal = partial(ctypes.CDLL(None)["raise"], signal.SIGINT)
    looks = []

    def hold() -> None:
        with state.locked():
            ptac.disable()
            looks.append(True)
            done.wait(60)

    done = threading.Event()
    thread = threading.Thread(target=hold)

    def switch_off() -> None:
        thread.start()
        while not looks:
            pass

    net(X, switch_off)
    done.set()
    thread.join(60)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # In one step of the interpreter, so that the signal comes to what is called.
        with pytest.raises(KeyboardInterrupt):
            list(map(operator.call, [raise_signal, _C.windows_look]))
    finally:
        signal.signal(signal.SIGINT, before)
    _C.windows_look()
    assert has_left()


def test_an_error_in_the_midst(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal's handler raises: we leave after the next call."""
    net = between()
    wanted = net(X, nothing)
    ptac.enable_operator_fusion()

    def fail() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        switch_off_between(net, monkeypatch, fail)
    monkeypatch.undo()
    torch.testing.assert_close(net(X, nothing), wanted)
    assert not ptac.status()["operator_fusion"]["active"]
    ptac.enable_operator_fusion()
    assert hits(net) == 1

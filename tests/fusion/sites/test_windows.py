"""Between two calls that run as one: threads, forks, signals, errors, odd callers."""

from __future__ import annotations

import _thread
import contextlib
import gc
import json
import os
import signal
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_sites import Block, X, block, patterns
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    ptac.disable()
    assert _C.windows_open() == 0


class Between(Block):
    """Calls something while ``out`` loses what it had, between two calls."""

    def forward(self, x: Tensor, call: Callable[[], object]) -> Tensor:
        out = torch.zeros(1)
        weakref.finalize(out, call)
        out = self.bn(x)
        return self.act(out)


def between(is_training: bool = True) -> nn.Module:
    net = block(Between, is_training)
    net.act = nn.SiLU()  # of its own result it would give another
    return net


def test_more_threads_than_windows() -> None:
    n_threads = 80
    all_there = threading.Barrier(n_threads)

    net, results = between(False), []
    with torch.no_grad():
        wanted = net(X, lambda: None)

    def work() -> None:
        with torch.no_grad():
            results.append(net(X, lambda: all_there.wait(60)))

    with ptac.enable_operator_fusion():
        threads = [threading.Thread(target=work) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == n_threads
    for result in results:
        torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("call", ["disable", "status", "report", "enable"])
def test_a_thread_between_asks_while_another_switches(call: str) -> None:
    switched = threading.Event()

    def ask() -> None:
        thread = threading.Thread(target=lambda: (ptac.disable(), switched.set()))
        thread.start()
        assert switched.wait(30)
        getattr(ptac, call)()

    net = between()
    wanted = net(X, lambda: None)
    ptac.enable_operator_fusion()
    torch.testing.assert_close(net(X, ask), wanted)
    assert switched.is_set()


def test_switched_off_by_a_signal_in_the_first_call() -> None:
    """Which trains, so that Python runs in it: its node is made there."""

    def off(*_: object) -> None:
        ptac.disable()

    net = between()
    wanted = net(X, lambda: None)
    before = signal.signal(signal.SIGALRM, off)
    try:
        for k in range(60):
            ptac.enable_operator_fusion()
            signal.setitimer(signal.ITIMER_REAL, 1e-5 * (k + 1))
            for _ in range(8):
                torch.testing.assert_close(net(X, lambda: None), wanted)
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_handler_that_switches_off_and_raises() -> None:
    class Stop(Exception):
        pass

    def off(*_: object) -> None:
        heard.append(True)
        ptac.disable()
        raise Stop

    net = between()
    wanted = net(X, lambda: None)
    heard: list[bool] = []
    n_raised = 0
    before = signal.signal(signal.SIGALRM, off)
    try:
        for k in range(40):
            ptac.enable_operator_fusion()
            heard.clear()
            # Python drops what a handler raises in a finalizer, as with stock torch.
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (k + 1))
                while not heard:
                    net(X, lambda: None)
            except Stop:
                n_raised += 1
            assert not ptac.status()["operator_fusion"]["active"]
            ptac.enable_operator_fusion()
            torch.testing.assert_close(net(X, lambda: None), wanted)
            assert ptac.status()["operator_fusion"]["active"]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert n_raised > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_of_a_fork_switches_off() -> None:
    net, stop = block(is_training=True), threading.Event()

    def train() -> None:
        while not stop.is_set():
            net(X)

    ptac.enable_operator_fusion()
    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if not child:
                signal.alarm(20)
                ptac.disable()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            time.sleep(0.003)
    finally:
        stop.set()
        thread.join()


def test_threads_without_a_function_of_pythons() -> None:
    done = threading.Event()

    def begin() -> None:
        x = X.clone()
        weakref.finalize(x, done.set)
        _thread.start_new_thread(torch.relu, (x,))

    with torch.no_grad(), ptac.enable_operator_fusion():
        between(False)(X, begin)
        assert done.wait(20)


class Wrong(Block):
    """Calls with an argument that is one too many."""

    def forward(self, x: Tensor, how: str = "") -> Tensor:
        out = self.bn(x)
        with contextlib.suppress(TypeError):
            out = torch.relu(out, True) if how == "function" else self.relu(out, True)
        return out


@pytest.mark.parametrize("how", ["module", "function"])
def test_one_argument_too_many(how: str) -> None:
    net = block(Wrong)
    with torch.no_grad():
        wanted = net(X, how)
        with ptac.enable_operator_fusion():
            torch.testing.assert_close(net(X, how), wanted)


class Two(Block):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        z = self.bn(y)
        return y, z


def test_inplace_means_something_of_activations_alone() -> None:
    net = block(Two)
    net.bn.inplace = True
    with torch.no_grad():
        wanted = net(X)
        with ptac.enable_operator_fusion():
            torch.testing.assert_close(net(X), wanted)


def test_other_code_in_torchs_function_runs() -> None:
    class Net(Block):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.bn(x))

    def other(input: Tensor, inplace: bool = False) -> Tensor:
        return torch.sigmoid(input)

    def changed() -> types.CodeType:
        return other.__code__.replace(co_freevars=())

    net, before = block(Net), F.relu.__code__
    with torch.no_grad(), ptac.enable_operator_fusion():
        net(X)
        F.relu.__code__ = changed()
        try:
            got = net(X)
        finally:
            F.relu.__code__ = before
        wanted = torch.sigmoid(net.bn(X))
    torch.testing.assert_close(got, wanted)


def test_report_when_another_module_comes_to_a_place() -> None:
    def sites() -> list[Any]:
        return json.loads(ptac.report("json"))["sites"]

    def run(act: nn.Module) -> None:
        net.act = act
        net(X, lambda: None)

    net = between()
    ptac.enable_operator_fusion()
    run(nn.ReLU())
    ptac.report(reset=True)
    run(nn.SiLU())
    assert [(s["pattern"], s["hits"]) for s in sites()] == [("BatchNorm2d, SiLU", 1)]
    ptac.disable()
    assert [s["hits"] for s in sites()] == [1]
    ptac.report(reset=True)
    assert sites() == []


def test_functions_that_are_made_and_forgotten() -> None:
    def made(k: int) -> Any:
        names: dict[str, Any] = {"torch": torch}
        exec(f"def f(x):\n    return torch.relu(x @ x + {k}.5)", names)
        return names["f"]

    x, gone = torch.randn(3, 3), []
    with torch.no_grad(), ptac.enable_operator_fusion():
        for k in range(20):
            f = made(k)
            f(x)
            gone.append(weakref.ref(f.__code__))
        del f
        assert len(patterns()) == 20
    gc.collect()
    assert all(ref() is None for ref in gone)


def test_errors_of_a_handler_in_the_planner_are_raised() -> None:
    lines = "\n".join(f"    a{k} = {k}" for k in range(20000))
    names: dict[str, Any] = {"torch": torch}
    exec(f"def f(x):\n{lines}\n    return torch.relu(x @ x + 0.5)", names)

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    try:
        with torch.no_grad(), ptac.enable_operator_fusion():
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(TimeoutError) as caught:
                for _ in range(2000):
                    names["f"](torch.ones(2, 2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "plans" in [entry.name for entry in caught.traceback]

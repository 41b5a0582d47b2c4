"""Modules that follow each other run as one, and only where nobody could notice."""

from __future__ import annotations

import copy
import ctypes
import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C


class Block(nn.Module):
    """As networks have it: nobody but the next module gets what one gives."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        out = self.bn(out)
        out = self.relu(out)
        return out + 1


class Nested(Block):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class Functional(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(x)
        return F.relu(x, inplace=True)


class Kept(Block):
    """Somebody has the norm's result."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.bn(x)
        z = torch.relu(y)
        return y, z


class Pooled(Block):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.bn(x)
        x = self.relu(x)
        return self.pool(x)


class Alone(Block):
    """A norm behind a convolution that is stock's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 1, bias=False)
        self.bn = nn.BatchNorm2d(64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.bn(x)


def block(kind: type[nn.Module] = Block, is_training: bool = False) -> nn.Module:
    torch.manual_seed(0)
    made = kind()
    nn.init.normal_(made.bn.weight)
    nn.init.normal_(made.bn.bias)
    nn.init.normal_(made.bn.running_mean)
    return made.train(is_training)


X = torch.randn(2, 16, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_window_is_left() -> Iterator[None]:
    yield
    assert _C.windows_open() == 0
    assert not _C.sites_list()


def patterns() -> list[str]:
    """What ran as one since the switch went on."""
    return sorted(
        "+".join(kinds) for _, _, _, kinds, hits, *_ in _C.sites_list() if hits
    )


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize(
    ("kind", "is_training", "expected"),
    [
        (Block, False, ["Conv2d+BatchNorm2d+ReLU"]),
        (Nested, False, ["Conv2d+BatchNorm2d+ReLU"]),
        (Functional, False, ["BatchNorm2d+ReLU"]),
        (Pooled, False, ["Conv2d+BatchNorm2d+ReLU+MaxPool2d"]),
        (Block, True, ["BatchNorm2d+ReLU"]),
        (Nested, True, ["BatchNorm2d+ReLU"]),
        (Functional, True, ["BatchNorm2d+ReLU"]),
        (Kept, False, []),
        (Kept, True, []),
    ],
)
def test_what_runs_as_one(
    kind: type[nn.Module], is_training: bool, expected: list[str]
) -> None:
    stock, net = block(kind, is_training), block(kind, is_training)
    with torch.set_grad_enabled(is_training):
        wanted = stock(X)
        with ptac.enable_operator_fusion():
            for _ in range(3):
                got = net(X)
            assert patterns() == expected
    torch.testing.assert_close(got, wanted)


@pytest.mark.usefixtures("_one_thread")
def test_a_norm_works_in_place_where_nobody_has_what_it_gets() -> None:
    """Then it is batch_norm_act's; a norm alone is otherwise torch's operator."""

    def in_place(net: nn.Module) -> int:
        before = _C.counters("batch_norm_act")[0]
        torch.testing.assert_close(net(x), wanted)
        return int(_C.counters("batch_norm_act")[0] - before)

    x = torch.randn(1, 64, 56, 56)
    net, heard = block(Alone), block(Alone)
    heard.conv.register_forward_hook(lambda m, args, y: None)  # which may keep it
    with torch.no_grad():
        wanted = net(x)
        with switching.accelerated("batch_norm_act"):
            assert (in_place(net), in_place(heard)) == (1, 0)


def test_int8_layers_run_as_one() -> None:
    net = block()
    with torch.no_grad(), ptac.enable():
        ptac.quantize_model(net)
        wanted = net.relu(net.bn(net.conv(X))) + 1
        torch.testing.assert_close(net(X), wanted)
        assert "Int8Conv2d+BatchNorm2d+ReLU" in patterns()


def test_gradients_of_what_runs_as_one() -> None:
    def gradients(net: nn.Module) -> list[Tensor]:
        x = X.clone().requires_grad_()
        net(x).square().sum().backward()
        assert x.grad is not None
        return [x.grad, *(p.grad for p in net.parameters())]

    wanted = gradients(block(is_training=True))
    with ptac.enable_operator_fusion():
        got = gradients(block(is_training=True))
        assert patterns() == ["BatchNorm2d+ReLU"]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)


def test_writes_are_counted_as_in_stock() -> None:
    def version(net: nn.Module) -> int:
        with torch.no_grad():
            return int(net(X)._version)

    wanted = version(block(Functional))
    with ptac.enable_operator_fusion():
        assert version(block(Functional)) == wanted == 1


@pytest.mark.parametrize("module", ["bn", "relu"])
def test_hooks_are_called(module: str) -> None:
    def seen(net: nn.Module) -> list[Tensor]:
        found: list[Tensor] = []
        getattr(net, module).register_forward_hook(
            lambda m, args, y: found.append(y.clone())
        )
        net(X)
        return found

    with torch.no_grad():
        wanted = seen(block())
        with ptac.enable_operator_fusion():
            got = seen(block())
    assert len(got) == len(wanted) == 1
    torch.testing.assert_close(got, wanted)


class Doubled(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize("change", ["subclass", "own forward", "attribute", "property"])
def test_modules_of_the_program_are_called(change: str) -> None:
    def changed() -> nn.Module:
        net = block()
        if change == "subclass":
            net.relu = Doubled()
        elif change == "own forward":
            net.relu.forward = lambda x: x - 1  # type: ignore[method-assign]
        elif change == "attribute":
            net.__dict__["relu"] = lambda x: x * 3
        else:
            kind = type("WithProperty", (Block,), {"relu": property(lambda s: F.silu)})
            net.__class__ = kind
        return net

    with torch.no_grad():
        wanted = changed()(X)
        with ptac.enable_operator_fusion():
            got = changed()(X)
            assert patterns() == ["Conv2d+BatchNorm2d"]
    torch.testing.assert_close(got, wanted)


def test_a_module_put_in_later_is_called() -> None:
    net = block()
    with torch.no_grad(), ptac.enable_operator_fusion():
        net(X)
        net.relu = nn.Hardswish()
        got = net(X)
    with torch.no_grad():
        torch.testing.assert_close(got, net(X))


def test_other_threads_may_switch_in_mid_loop() -> None:
    nets = [block(), block(Nested), block(Functional)]
    with torch.no_grad():
        wanted = [net(X) for net in nets]
    stop = threading.Event()

    def switch() -> None:
        while not stop.is_set():
            with ptac.enable_operator_fusion():
                stop.wait(0.002)

    thread = threading.Thread(target=switch)
    thread.start()
    try:
        with torch.no_grad():
            for _ in range(150):
                for net, expected in zip(nets, wanted, strict=True):
                    torch.testing.assert_close(net(X), expected)
    finally:
        stop.set()
        thread.join()


def test_threads_share_a_module() -> None:
    net, failed = block(), []
    with torch.no_grad():
        wanted = net(X)

    def work() -> None:
        try:
            with torch.no_grad():
                for _ in range(50):
                    torch.testing.assert_close(net(X), wanted)
        except AssertionError as error:
            failed.append(error)

    with ptac.enable_operator_fusion():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert patterns() == ["Conv2d+BatchNorm2d+ReLU"]
    assert not failed


class Interrupted(Block):
    """Something of the program runs when ``out`` loses what it had."""

    def forward(self, x: Tensor, call: Callable[[], None]) -> Tensor:
        out = torch.zeros(1)
        weakref.finalize(out, call)
        out = self.bn(x)
        return self.activation(out)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU])
def test_switched_off_between_two_that_run_as_one(
    act: type[nn.Module], is_training: bool
) -> None:
    def off() -> None:
        seen.append(_C.windows_open())
        ptac.disable()

    seen: list[int] = []
    net = block(Interrupted, is_training)
    net.activation = act()
    with torch.set_grad_enabled(is_training):
        wanted = net(X, lambda: None)
        ptac.enable_operator_fusion()
        got = net(X, off)
    assert seen == [1]
    assert not ptac.status()["operator_fusion"]["active"]
    torch.testing.assert_close(got, wanted)


def test_a_window_that_was_cut_off_is_found_dead() -> None:
    class Cut(Block):
        def forward(self, x: Tensor, call: Any = None) -> Tensor:
            out = torch.zeros(1)
            self.ref = weakref.ref(out, call)
            out = self.bn(x)
            return self.relu(out)

    interrupt = ctypes.PyDLL(None).PyErr_SetInterrupt  # raises when Python goes on
    interrupt.argtypes, interrupt.restype = [ctypes.py_object], None
    net = block(Cut)
    # A process that a shell runs beside itself ignores it otherwise.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with torch.no_grad(), ptac.enable_operator_fusion():
            _C.module_getattr_close()  # torch's function, where signals are looked for
            with pytest.raises(KeyboardInterrupt):
                net(X, interrupt)
            assert _C.windows_open() == 1
            got = net(X)
    finally:
        signal.signal(signal.SIGINT, before)
    with torch.no_grad():
        torch.testing.assert_close(got, net(X))


def test_nothing_of_a_window_stays_alive() -> None:
    net, x = block(), X.clone()
    with torch.no_grad(), ptac.enable_operator_fusion():
        y = net(x)
        gone = [weakref.ref(x), weakref.ref(y)]
        del x, y
        assert [ref() for ref in gone] == [None, None]
    known = weakref.ref(net)
    del net
    gc.collect()
    assert known() is None


def test_copies_are_as_good() -> None:
    with torch.no_grad(), ptac.enable_operator_fusion():
        net = block()
        wanted = net(X)
        torch.testing.assert_close(copy.deepcopy(net)(X), wanted)
        hits = max(hits for _, _, _, _, hits, *_ in _C.sites_list())
    assert hits == 2


def test_report_tells_sites() -> None:
    import json

    net = block()
    with torch.no_grad(), ptac.enable_operator_fusion():
        ptac.report(reset=True)
        for _ in range(3):
            net(X)
        text = ptac.report()
    (site,) = json.loads(ptac.report("json"))["sites"]
    assert site["place"].startswith(__file__)
    assert (site["pattern"], site["hits"]) == ("Conv2d, BatchNorm2d, ReLU", 3)
    assert site["fallbacks"] == {}
    assert site["function"] == "Block.forward"
    assert "Conv2d, BatchNorm2d, ReLU" in text
    ptac.report(reset=True)
    assert json.loads(ptac.report("json"))["sites"] == []


def fused_by(call: Callable[[], Any]) -> list[str]:
    with torch.no_grad(), ptac.enable_operator_fusion():
        call()
        return patterns()


def test_who_looks_on_sees_torchs_calls() -> None:
    import sys

    from torch.utils._python_dispatch import TorchDispatchMode

    class See(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    def under_mode() -> None:
        with See():
            block()(X)

    def under_profiler() -> None:
        with torch.profiler.profile() as p:
            block()(X)
        seen.extend(e.name for e in p.events())

    def under_tracer() -> None:
        sys.settrace(lambda *_: None)
        try:
            block()(X)
        finally:
            sys.settrace(None)

    seen: list[str] = []
    assert fused_by(under_mode) == []
    assert "relu_" in seen
    assert fused_by(under_profiler) == []
    assert "aten::relu_" in seen
    assert fused_by(under_tracer) == []
    assert fused_by(lambda: torch.jit.trace(block(), X, check_trace=False)) == []
    assert fused_by(lambda: torch.fx.symbolic_trace(block())) == []
    assert fused_by(lambda: torch.func.vmap(block())(X[None])) == []


def test_compiled_programs_are_whole() -> None:
    torch._dynamo.reset()
    with torch.no_grad(), ptac.enable_operator_fusion():
        compiled = torch.compile(block(), backend="eager", fullgraph=True)
        got = compiled(X)
        exported = torch.export.export(block(), (X,)).module()(X)
    with torch.no_grad():
        wanted = block()(X)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(exported, wanted)

"""What is read by functions that ask others' attributes, or that C calls."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from unasked import by_plan, unedited

import pai_torchacc as ptac

TABLE = {"scale": 1.0}
take = TABLE.get
LOG: list[int] = []
note = LOG.append


class Config:
    """Of a model."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.inner = SimpleNamespace(v=1.0)


class Net(nn.Module):
    """A layer whose result a number is read for."""

    def __init__(self, read: Callable[[Any], float]):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.cfg = Config()
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        """Scaled."""
        scale = self.read(self)
        return self.lin(x) * scale


def default(net: Any) -> Any:
    return getattr(net.cfg, "scale", 1.0)


def nested(net: Any) -> Any:
    return getattr(getattr(net, "cfg"), "scale")  # noqa: B009


def reduced(net: Any) -> Any:
    return functools.reduce(getattr, ["cfg", "scale"], net)


def mapped(net: Any) -> Any:
    return next(iter(map(getattr, [net.cfg], ["scale"])))


def formatted(net: Any) -> Any:
    return float(next(iter(map("{0.scale}".format, [net.cfg]))))


def taken(net: Any) -> Any:
    return take("scale")


def handed(net: Any) -> Any:
    return next(iter(map(take, ["scale"])))


def change(net: Any) -> None:
    net.cfg.scale = TABLE["scale"] = 3.0


@pytest.mark.parametrize(
    "read", [default, nested, reduced, mapped, formatted, taken, handed]
)
def test_what_is_read_elsewhere_takes_effect(read: Callable[[Any], float]) -> None:
    TABLE["scale"] = 1.0
    net, x = Net(read).eval(), torch.randn(2, 4)
    with unedited(), torch.no_grad():
        for _ in range(8):
            before = net(x)
        change(net)
        after = [net(x) for _ in range(8)]
        with ptac.disabled():
            torch.testing.assert_close(after[0], net(x))
    for one in after:
        torch.testing.assert_close(one, 3 * before)


def test_methods_that_were_taken_from_lists_have_effects() -> None:
    def read(net: Any) -> float:
        note(1)
        return 1.0

    LOG.clear()
    net, x = Net(read).eval(), torch.randn(2, 4)
    with unedited(), torch.no_grad():
        for _ in range(9):
            net(x)
    assert len(LOG) == 9


def test_threads_are_a_number_of_the_program_s() -> None:
    net, x = Net(lambda net: torch.get_num_threads()).eval(), torch.randn(2, 4)
    n_threads = torch.get_num_threads()
    try:
        with unedited(), torch.no_grad():
            for n in (1, 2, 1, 2):
                torch.set_num_threads(n)
                for _ in range(6):
                    ours = net(x)
                torch.testing.assert_close(ours, net.lin(x) * n)
    finally:
        torch.set_num_threads(n_threads)


def test_another_class_takes_effect() -> None:
    class Other(Config):
        pass

    net, x = Net(lambda net: len(type(net.cfg).__name__)).eval(), torch.randn(2, 4)
    with unedited(), torch.no_grad():
        for _ in range(7):
            net(x)
        net.cfg.__class__ = Other
        torch.testing.assert_close(net(x), net.lin(x) * len("Other"))


def test_the_collector_is_no_part_of_a_call() -> None:
    """Nor does a recording leave it off."""
    calls = []

    def callback(phase: str, info: Any) -> None:
        calls.append(phase)

    def read(net: Any) -> float:
        return float(len([[i] for i in range(3000)]))  # which sets it off

    net, x = Net(read).eval(), torch.randn(2, 4)
    gc.callbacks.append(callback)
    try:
        with unedited(), torch.no_grad():
            for _ in range(7):
                net(x)
            by_plan(net, lambda: net(x))
    finally:
        gc.callbacks.remove(callback)
    assert gc.isenabled()

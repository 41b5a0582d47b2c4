"""Changes that programs make to classes and functions while modules are called by C."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from calling import IMAGES, ROWS, SIGNALS, STOCK, Block, n_leaves, on
from torch import Tensor, nn

from pai_torchacc import _C


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    assert vars(nn.Module)["__call__"] is STOCK


CHANGES: dict[str, tuple[Any, str, Any]] = {
    "forward of the class": (nn.ReLU, "forward", lambda self, x: x - 1),
    "forward of a block": (Block, "forward", lambda self, x: x - 1),
    "the function": (F, "relu", lambda x, inplace=False: x - 2),
    "torch's function": (torch, "relu", lambda x: x - 3),
    "how modules are called": (nn.Module, "_call_impl", lambda self, x: x - 4),
    "how a block is called": (Block, "_call_impl", lambda self, x: x - 4),
    "how all are called": (nn.Module, "__call__", lambda self, x: x - 5),
    "how relu is called": (nn.ReLU, "__call__", lambda self, x: x - 6),
    "what is compiled": (nn.ReLU, "_compiled_call_impl", lambda self, x: x - 7),
    "how attributes are found": (
        nn.Module,
        "__getattr__",
        lambda self, name: lambda x: x - 8,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("make", [nn.ReLU, Block])
def test_changes_of_classes_are_seen_at_once(
    name: str, make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, value = CHANGES[name]

    def program() -> list[Any]:
        torch.manual_seed(0)
        net, x = make(), torch.randn(2, 4)
        found = [net(x).tolist() for _ in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, value, raising=False)
            found += [net(x).tolist() for _ in range(3)]
        return [*found, net(x).tolist()]

    stock = program()
    with on():
        assert program() == stock


INSIDE: dict[str, tuple[Any, str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "softmax": (Tensor, "softmax", lambda: nn.Softmax(1), ROWS),
    "log softmax": (Tensor, "log_softmax", lambda: nn.LogSoftmax(1), ROWS),
    "flatten": (Tensor, "flatten", nn.Flatten, IMAGES),
    "conv2d of torch": (torch, "conv2d", lambda: nn.Conv2d(4, 2, 3), IMAGES),
    "conv1d of torch": (torch, "conv1d", lambda: nn.Conv1d(4, 2, 3), SIGNALS),
    "conv2d": (F, "conv2d", lambda: nn.Conv2d(4, 2, 3), IMAGES),
    "softmax of torch": (torch, "softmax", lambda: nn.Softmax(1), ROWS),
    "flatten of torch": (torch, "flatten", nn.Flatten, IMAGES),
    "gelu of C": (torch._C._nn, "gelu", nn.GELU, ROWS),
    "linear of C": (torch._C._nn, "linear", lambda: nn.Linear(4, 2), ROWS),
    "avg pool of C": (torch._C._nn, "avg_pool2d", lambda: nn.AvgPool2d(2), IMAGES),
    "max pool inside": (F, "_max_pool2d", lambda: nn.MaxPool2d(2), IMAGES),
    "sizes of pools": (
        *(F, "_list_with_default", lambda: nn.AdaptiveAvgPool2d((1, 1))),
        IMAGES,
    ),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", INSIDE)
def test_functions_inside_that_a_program_replaces(
    name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, make, shape = INSIDE[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(shape)

    def replaced(*args: Any, **keywords: Any) -> str:
        return "replaced"

    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, replaced, raising=False)
        try:
            stock = net(x)
        except Exception as error:
            stock = type(error)
        if when == "before":
            with on():
                ours = _outcome(net, x)
    if when == "after":
        with on():
            _outcome(net, x)
            with monkeypatch.context() as patch:
                patch.setattr(owner, attribute, replaced, raising=False)
                ours = _outcome(net, x)
    if isinstance(stock, Tensor):
        torch.testing.assert_close(ours, stock)
    else:
        assert ours == stock


def _outcome(net: nn.Module, x: Tensor) -> Any:
    try:
        return net(x)
    except Exception as error:
        return type(error)


PROPERTIES: dict[str, tuple[type, Callable[[], nn.Module], tuple[int, ...], Any]] = {
    "training": (nn.Dropout, lambda: nn.Dropout(0.9).eval(), (50,), True),
    "negative_slope": (nn.LeakyReLU, nn.LeakyReLU, ROWS, 0.7),
    "alpha": (nn.ELU, nn.ELU, ROWS, 0.3),
    "inplace": (nn.ReLU, nn.ReLU, ROWS, True),
    "dim": (nn.Softmax, lambda: nn.Softmax(1), ROWS, 0),
    "eps": (nn.LayerNorm, lambda: nn.LayerNorm(4), ROWS, 0.5),
    "stride": (nn.Conv2d, lambda: nn.Conv2d(4, 2, 3), IMAGES, (2, 2)),
    "kernel_size": (nn.MaxPool2d, lambda: nn.MaxPool2d(2), IMAGES, 3),
    "approximate": (nn.GELU, nn.GELU, ROWS, "tanh"),
    "_forward_hooks": (nn.Identity, nn.Identity, ROWS, {0: lambda *_: torch.ones(1)}),
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_of_classes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls, make, shape, value = PROPERTIES[name]

    def program() -> list[Any]:
        torch.manual_seed(0)
        net, x = make(), torch.randn(shape)
        found = [net(x.clone()).tolist() for _ in range(2)]
        with monkeypatch.context() as patch:
            answer = property(lambda self: value, lambda self, v: None)
            patch.setattr(cls, name, answer, raising=False)
            try:
                found += [net(x.clone()).tolist() for _ in range(2)]
            except Exception as error:
                found.append(type(error))
        return found

    stock = program()
    with on():
        assert program() == stock


def test_what_is_put_back_after_the_end_is_torchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call(self: nn.Module, *args: Any, **keywords: Any) -> Any:
        return STOCK(self, *args, **keywords)

    with on():
        ours = vars(nn.Module)["__call__"]
        nn.Module.__call__ = call
    try:
        nn.Module.__call__ = ours  # as mock.patch does, who found it there
        before = _C.leaves_called()
        assert torch.equal(nn.ReLU()(torch.ones(2)), torch.ones(2))
        assert _C.leaves_called() == before
        with on():
            assert n_leaves(lambda: nn.ReLU()(torch.ones(2))) == 1
        assert vars(nn.Module)["__call__"] is STOCK
    finally:
        nn.Module.__call__ = STOCK


FIRST_SWITCHED_ON_WHILE_PATCHED = """
import torch
from torch import nn
import pai_torchacc as ptac

class Tracing(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        with ptac.enable_operator_fusion():
            pass
        return self.relu(x) + 1

stock = nn.Module.__call__
torch.fx.symbolic_trace(Tracing())
nn.Module.__call__ = lambda self, *args: stock(self, *args)
with ptac.enable_operator_fusion():
    pass
nn.Module.__call__ = stock
with ptac.enable_operator_fusion():
    assert vars(nn.Module)["__call__"] is not stock
    assert nn.Module.__call__ is stock
    net = nn.Linear(2, 2)
    net.register_forward_hook(lambda *_: torch.zeros(1))
    assert net(torch.ones(2)).tolist() == [0]
    assert nn.ReLU().__call__(torch.ones(1)).tolist() == [1]
assert vars(nn.Module)["__call__"] is stock
"""


def test_first_switched_on_while_somebody_patches() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_SWITCHED_ON_WHILE_PATCHED],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

"""What is proved plain, and what is refused, with the reason and the place."""

from __future__ import annotations

import dis
import functools
import random
import sys
import time
import types
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from unasked import by_plan, called, refusals, unedited

from pai_torchacc.graph.unedited import instructions, trusted

SCALE = 2.0
TABLE = {"scale": 2.0, "more": [1.0, 2.0]}
SETTINGS = SimpleNamespace(scale=2.0)
SEEN: list[int] = []
COUNT = 0
OTHER = types.ModuleType("other")
OTHER.__dict__["SCALE"] = 2.0


class Config:
    scale = 2.0

    def __init__(self) -> None:
        self.bias = 1.0

    def twice(self) -> float:
        return 2 * self.bias


class Pair(NamedTuple):
    a: float
    b: float


PAIR = Pair(1.0, 2.0)


class Layer(nn.Module):
    """A linear layer, and what a function makes of it."""

    def __init__(self, function: Callable[[Any, Tensor], Any]):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function
        self.config = Config()
        self.sizes = [1, 2]
        self.n = 0
        self.name = "linear"
        self.register_buffer("other", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.linear(x))


def _counts(self: Any, x: Tensor) -> Tensor:
    self.n += 1
    return x * 2


def _appends(self: Any, x: Tensor) -> Tensor:
    self.sizes.append(len(x))
    return x * 2


def _appends_to_a_global(self: Any, x: Tensor) -> Tensor:
    SEEN.append(1)
    return x * 2


def _counts_globally(self: Any, x: Tensor) -> Tensor:
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return x * 2


def _draws(self: Any, x: Tensor) -> Tensor:
    return x * random.random()


def _looks_at_the_clock(self: Any, x: Tensor) -> Tensor:
    return x * time.time()


def _sorts_by_the_clock(self: Any, x: Tensor) -> Tensor:
    return x * max(map(time.ctime, [0.0]), default="").count(":")


def _prints(self: Any, x: Tensor) -> Tensor:
    print(end="")
    return x * 2


def _warns(self: Any, x: Tensor) -> Tensor:
    warnings.warn("again", stacklevel=1)
    return x * 2


def _branches(self: Any, x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


def _asks_autograd(self: Any, x: Tensor) -> Tensor:
    return x * 2 if x.requires_grad else x * 3


def _imports(self: Any, x: Tensor) -> Tensor:
    import math

    return x * math.pi


def _catches(self: Any, x: Tensor) -> Tensor:
    try:
        return x * self.linear.missing
    except AttributeError:
        return x * 2


def _asks_a_tensor(self: Any, x: Tensor) -> Tensor:
    return x * 2 if hasattr(x, "scale") else x * 3


def _looks_at_addresses(self: Any, x: Tensor) -> Tensor:
    return x * 2 if x.data_ptr() % 2 else x * 3


def _looks_at_all_globals(self: Any, x: Tensor) -> Tensor:
    return x * globals()["SCALE"]


def _asks_a_dictionary(self: Any, x: Tensor) -> Tensor:
    return x * self.__dict__["n"]


def _sets(self: Any, x: Tensor) -> Tensor:
    setattr(self, "n", 0)  # noqa: B010
    return x * 2


def _seeds(self: Any, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return x * 2


def _reads_numbers(self: Any, x: Tensor) -> Tensor:
    return x * x.tolist()[0][0]


REFUSED = {
    "_counts": "sets the attribute n",
    "_appends": "appends to a list of the module's",
    "_appends_to_a_global": "appends to a container that outlives the call",
    "_counts_globally": "sets the global name COUNT",
    "_draws": "random",
    "_looks_at_the_clock": "time.time",
    "_sorts_by_the_clock": "time.ctime is a function that is not plain",
    "_prints": "print() is called",
    "_warns": "warn",
    "_branches": "number is read in Python",
    "_asks_autograd": "asks what autograd knows",
    "_imports": "imports math",
    "_catches": "catches exceptions",
    "_asks_a_tensor": "hasattr() asks what is no module",
    "_looks_at_addresses": "data_ptr",
    "_looks_at_all_globals": "globals() is called",
    "_asks_a_dictionary": "__dict__",
    "_sets": "setattr() is called",
    "_seeds": "torch's own",
    "_reads_numbers": "tolist",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_place(name: str) -> None:
    layer = Layer(globals()[name]).eval()
    with unedited(), torch.no_grad():
        called(layer, torch.ones(2, 4))
        (told,) = [why for who, why in refusals() if who == "Layer"]
    assert REFUSED[name] in told
    assert f"{__file__}:" in told


def _reads_everything(self: Any, x: Tensor) -> Tensor:
    x = F.relu(x) * SCALE + TABLE["scale"] + TABLE["more"][1] + SETTINGS.scale
    x = x * self.config.scale + self.config.bias + self.config.twice() + OTHER.SCALE
    x = x * self.n + len(self.sizes) + self.sizes[0] + PAIR.a
    return x + sum(i for i in range(self.other.shape[0]))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a global number": lambda layer: globals().__setitem__("SCALE", 3.0),
    "an item": lambda layer: TABLE.__setitem__("scale", 3.0),
    "an inner item": lambda layer: TABLE["more"].__setitem__(1, 5.0),
    "a namespace": lambda layer: setattr(SETTINGS, "scale", 3.0),
    "another module's": lambda layer: setattr(OTHER, "SCALE", 3.0),
    "a class's attribute": lambda layer: setattr(Config, "scale", 3.0),
    "an object's instead": lambda layer: setattr(layer.config, "scale", 4.0),
    "an object's": lambda layer: setattr(layer.config, "bias", 3.0),
    "all of an object's": lambda layer: setattr(
        layer.config, "__dict__", {"bias": 5.0}
    ),
    "a method": lambda layer: setattr(Config, "twice", lambda self: 7.0),
    "a module's": lambda layer: setattr(layer, "n", 3),
    "a module's list": lambda layer: layer.sizes.append(3),
    "an item of it": lambda layer: layer.sizes.__setitem__(0, 9),
    "a buffer that is only measured": lambda layer: setattr(
        layer, "other", torch.ones(7)
    ),
    "a function of torch's": lambda layer: setattr(F, "relu", lambda x: x + 1),
    "a builtin function": lambda layer: globals().__setitem__("len", lambda x: 100),
    "another class": lambda layer: setattr(layer.config, "__class__", _Other),
}


class _Other(Config):
    def twice(self) -> float:
        return 11.0


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_call_reads_may_change(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for home, name in (
        *((SETTINGS, "scale"), (OTHER, "SCALE"), (Config, "scale"), (Config, "twice")),
        (F, "relu"),
    ):
        monkeypatch.setattr(home, name, getattr(home, name))
    monkeypatch.setitem(TABLE, "scale", 2.0)
    monkeypatch.setitem(TABLE, "more", [1.0, 2.0])
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    monkeypatch.setitem(globals(), "len", len)
    globals().pop("len")
    layer = Layer(_reads_everything).eval()
    layer.n = 1
    x = torch.randn(2, 4)
    with unedited(), torch.no_grad():
        called(layer, x)
        before = by_plan(layer, lambda: layer(x))
        torch.testing.assert_close(before, layer._call_impl(x))
        CHANGES[what](layer)
        after = layer(x)
        torch.testing.assert_close(after, layer._call_impl(x))
        assert not torch.equal(before, after)
        called(layer, x)
        again = by_plan(layer, lambda: layer(x))
        torch.testing.assert_close(again, after)


def _keeps_shape(self: Any, x: Tensor) -> Tensor:
    shape = list(x.shape)
    shape.append(1)
    shape[0] = -1
    parts = {f"part{i}": part for i, part in enumerate(x.chunk(2, -1))}
    parts.update(last=x[:, :2])
    ys = [part * 2 for part in parts.values() if isinstance(part, Tensor)]
    mask = torch.zeros(2, 2)
    mask[0] = 1
    name = getattr(self, "name")  # noqa: B009
    assert name == "linear", "{} differs".format(self.name)  # noqa: UP032
    return torch.cat(ys, 1).reshape(shape) * mask.sum() + float(name == "linear")


def _closes_over() -> Callable[[Any, Tensor], Tensor]:
    scale, bias = 2.0, functools.partial(F.relu, inplace=False)

    def function(self: Any, x: Tensor, more: float = 1.0) -> Tensor:
        inner = lambda y: y * scale + more  # noqa: E731
        return bias(inner(x))

    return function


@pytest.mark.parametrize("function", [_keeps_shape, _closes_over()])
def test_what_a_call_makes_it_may_change(function: Any) -> None:
    layer = Layer(function).eval()
    x = torch.randn(2, 4)
    with unedited(), torch.no_grad():
        called(layer, x)
        ours = by_plan(layer, lambda: layer(x))
        torch.testing.assert_close(ours, layer._call_impl(x))


def test_the_tables_name_instructions_that_there_are() -> None:
    version = sys.version_info[:2]
    accepted = instructions._ACCEPTED.get(version)
    if accepted is None:
        pytest.skip(f"no instructions of Python {version} are accepted")
    assert accepted <= dis.opmap.keys()
    for name in ("STORE_ATTR", "STORE_GLOBAL", "IMPORT_NAME", "STORE_DEREF"):
        assert name in dis.opmap
        assert name not in accepted


def test_functions_that_only_compute() -> None:
    assert all(map(trusted.may_call, (len, torch.relu, F.gelu, torch.Tensor.view, max)))
    t = torch.ones(1)
    refused = (
        print,
        time.time,
        torch.from_numpy,
        t.numpy,
        t.tolist,
        t.data_ptr,
        id,
        open,
    )
    assert not any(map(trusted.may_call, refused))


def test_functions_of_the_same_text_have_names_of_their_own() -> None:
    """Two files with one text: Python says that their functions' codes are equal."""
    text = "def function(self, x):\n    return x * FACTOR\n"
    homes: list[dict[str, Any]] = [{"FACTOR": 2.0}, {"FACTOR": 3.0}]
    for home in homes:
        exec(compile(text, "same.py", "exec"), home)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (Layer(home["function"]) for home in homes)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    both, x = Both().eval(), torch.randn(2, 4)
    with unedited(), torch.no_grad():
        called(both, x)
        before = by_plan(both, lambda: both(x))
        homes[1]["FACTOR"] = 6.0
        torch.testing.assert_close(both(x), before * 2)

"""Attributes of modules are found in C, and nn.Module.__getattr__ is torch's own."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from calling import on
from torch import Tensor, nn

from pai_torchacc import _C

STOCK = vars(nn.Module)["__getattr__"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
        self.register_parameter("nothing", None)
        self.register_buffer("seen", torch.zeros(2))
        self.plain = 3


class Asking(Model):
    """Has attributes of its own making, and asks torch for others."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("made_"):
            return name[5:]
        return super().__getattr__(name)


NAMES = ("layer", "scale", "nothing", "seen", "plain", "training")


@pytest.mark.parametrize("kind", [Model, Asking])
def test_attributes_are_the_same_objects(kind: Callable[[], nn.Module]) -> None:
    model = kind()
    stock = [getattr(model, name) for name in NAMES]
    with on():
        ours = [getattr(model, name) for name in NAMES]
        other = getattr(model, "made_up", None)
        copied = copy.deepcopy(model).layer.weight
    assert all(a is b for a, b in zip(ours, stock, strict=True))
    assert other == ("up" if kind is Asking else None)
    assert torch.equal(copied, model.layer.weight)


def python_calls(call: Callable[[], Any]) -> int:
    """How many functions of Python a call runs, by frames that are made for it."""
    seen: list[str] = []

    sys.setprofile(lambda frame, event, _: seen.append(event))
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen.count("call")


def test_function_is_torchs_own() -> None:
    with on():
        assert vars(nn.Module)["__getattr__"] is STOCK
        assert inspect.signature(STOCK) == inspect.signature(nn.Module.__getattr__)
        assert STOCK(Model(), "nothing") is None
        assert _C.module_getattr_open(STOCK)  # it is already
    model = Model()
    assert python_calls(lambda: model.layer) == 2  # the lambda, and torch's function


def test_profilers_see_torchs_function() -> None:
    model = Model()
    with on():
        assert python_calls(lambda: model.layer) == 2


def test_errors_are_torchs() -> None:
    def error(model: Any) -> tuple[str, str | None, Any]:
        with pytest.raises(AttributeError) as caught:
            model.absent  # noqa: B018
        return str(caught.value), caught.value.name, caught.traceback[-1].name

    stock = error(Model())
    with on():
        assert error(Model()) == stock
    bare = nn.Module.__new__(nn.Module)
    with on(), pytest.raises(AttributeError):
        bare.layer  # noqa: B018


def test_dictionaries_of_other_kinds_are_asked() -> None:
    class Shouting(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            return name == "loud"

        def __getitem__(self, name: str) -> Any:
            return name.upper()

    model = Model()
    model.__dict__["_buffers"] = Shouting()
    with on():
        assert model.loud == "LOUD"
        assert model.scale is model._parameters["scale"]


def test_scripted_modules_keep_their_attributes() -> None:
    with on():
        scripted = torch.jit.script(nn.Linear(2, 2))
        assert isinstance(scripted.weight, Tensor)


def test_compiled_whole() -> None:
    torch._dynamo.reset()
    model = Model()
    with on(), torch.no_grad():
        compiled = torch.compile(
            lambda x: model.layer(x) * model.scale, backend="eager", fullgraph=True
        )
        got = compiled(torch.ones(1, 2))
    torch.testing.assert_close(got, model.layer(torch.ones(1, 2)).detach())

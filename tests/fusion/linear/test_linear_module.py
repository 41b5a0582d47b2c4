"""nn.Linear.forward finds weight and bias as stock does, and forwards as stock does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import switching
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

Change = Callable[[nn.Linear, pytest.MonkeyPatch], Any]


class Doubled(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return 2 * w


class Renamed(nn.Linear):
    @property
    def scale(self) -> Tensor:
        return self.weight

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return found * 3 if name == "weight" else found


def _replaced_getattr(net: nn.Linear, patch: pytest.MonkeyPatch) -> None:
    stock = nn.Module.__getattr__

    def found(self: nn.Module, name: str) -> Any:
        value = stock(self, name)
        return value * 5 if name == "bias" else value

    patch.setattr(nn.Module, "__getattr__", found)


CHANGES: dict[str, Change] = {
    "nothing": lambda net, patch: None,
    "the parameter": lambda net, patch: setattr(
        net, "weight", nn.Parameter(torch.ones_like(net.weight))
    ),
    "an instance attribute": lambda net, patch: net.__dict__.update(
        weight=torch.ones(net.out_features, 20)
    ),
    "no bias": lambda net, patch: net.register_parameter("bias", None),
    "a property of the class": lambda net, patch: patch.setattr(
        nn.Linear,
        "weight",
        property(lambda self: torch.ones(self.out_features, 20)),
        raising=False,
    ),
    "a property of nn.Module": lambda net, patch: patch.setattr(
        nn.Module,
        "bias",
        property(lambda self: torch.ones(self.out_features)),
        raising=False,
    ),
    "how attributes are found": _replaced_getattr,
    "another class": lambda net, patch: setattr(net, "__class__", Renamed),
    "another dictionary": lambda net, patch: net.__dict__.update(
        _parameters=OrderedDict(net._parameters)
    ),
    "no dictionary": lambda net, patch: net.__dict__.pop("_parameters"),
    "no weight": lambda net, patch: delattr(net, "weight"),
    "a parametrization": lambda net, patch: parametrize.register_parametrization(
        net, "weight", Doubled()
    ),
    "a norm of the weight": lambda net, patch: parametrizations.weight_norm(net),
}


@pytest.mark.parametrize("step", [2, 1], ids=["forwarded", "served"])
@pytest.mark.parametrize("change", CHANGES)
def test_parameters_are_found_as_stock_finds_them(
    change: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(20, 30), torch.randn(40, 20 * step)[:, ::step]

    def result() -> Any:
        with torch.no_grad():
            try:
                return net(x)
            except AttributeError as error:
                return str(error)

    with switching.accelerated("linear_act"):
        hits = switching.hits("linear_act")
        before = result()
        assert (hits.accelerated, hits.forwarded) == (
            (0, {"layout": 1}) if step == 2 else (1, {})
        )
        CHANGES[change](net, monkeypatch)
        ours = result()
    stock = result()
    if isinstance(stock, str):
        assert ours == stock
    else:
        torch.testing.assert_close(ours, stock)
        assert change in ("nothing", "another dictionary") or not ours.equal(before)


def test_functional_call_and_tracing() -> None:
    net, x = nn.Sequential(nn.Linear(20, 30)), torch.randn(40, 20)
    swapped = {name: torch.ones_like(p) for name, p in net.named_parameters()}

    class Deep(torch.fx.Tracer):
        def is_leaf_module(self, *_: Any) -> bool:
            return False

    def results() -> tuple[Any, ...]:
        graph = Deep().trace(net)
        traced = torch.jit.trace(net, x)
        called = torch.func.functional_call(net, swapped, (x,))
        return [(n.op, n.name) for n in graph.nodes], traced(x), called

    with switching.accelerated("linear_act"):
        ours = results()
    stock = results()
    assert ours[0] == stock[0]
    torch.testing.assert_close(ours[1:], stock[1:])

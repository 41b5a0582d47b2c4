"""nn.Sequential calls its modules wherever somebody could notice that it does not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import switching
import torch
import torch.nn.functional as F
from layers import OPS, close, off_and_on, pair, run
from torch import Tensor, nn
from torch.nn.utils import prune


def test_modules_that_somebody_listens_to_are_called() -> None:
    seen: list[str] = []

    def listening(how: str) -> Callable[[], Any]:
        def program() -> Any:
            net = pair()
            for module in net if how != "outer" else [net]:
                match how:
                    case "pre":
                        module.register_forward_pre_hook(
                            lambda m, a: seen.append("pre")
                        )
                    case "forward" | "outer":
                        module.register_forward_hook(lambda m, a, y: seen.append("fwd"))
                    case "backward":
                        module.register_full_backward_hook(
                            lambda m, a, g: seen.append("bwd")
                        )
            return run(net)

        return program

    for how, n in (("pre", 4), ("forward", 4), ("outer", 2), ("backward", 4)):
        seen.clear()
        off_and_on(listening(how), 1 if how in ("pre", "forward", "outer") else None)
        assert len(seen) == n, how


def test_global_hooks() -> None:
    def program() -> Any:
        seen = []
        hook = nn.modules.module.register_module_forward_hook(
            lambda m, a, y: seen.append(type(m).__name__)
        )
        try:
            return [run(pair()), torch.tensor(len(seen))]
        finally:
            hook.remove()

    off_and_on(program, None)


class Meddling(nn.Module):
    """Does something before the modules behind it are called."""

    def __init__(self, change: Callable[[], object]):
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return x


def test_what_a_module_changes_holds_for_those_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linear, seen = F.linear, []
    hooks = []

    def listen() -> None:
        hook = nn.modules.module.register_module_forward_hook(
            lambda m, a, y: seen.append(type(m).__name__)
        )
        hooks.append(hook)

    def program(change: Callable[[], object]) -> list[Any]:
        seen.clear()
        try:
            y = nn.Sequential(Meddling(change), *pair())(torch.ones(40, 20))
        finally:
            while hooks:
                hooks.pop().remove()
            monkeypatch.undo()
        return [y.detach(), list(seen)]

    def replace() -> None:
        monkeypatch.setattr(F, "linear", lambda *args: linear(*args) + 1)

    def override() -> None:
        weight = property(lambda self: 2 * self._parameters["weight"])
        monkeypatch.setattr(nn.Linear, "weight", weight, raising=False)

    for change, accelerated in ((listen, 1), (replace, 0), (override, 1)):
        stock = program(change)
        with switching.accelerated(*OPS):
            hits = switching.hits(OPS[0])
            ours = program(change)
            assert hits.accelerated == accelerated
        close(ours[0], stock[0])
        assert ours[1] == stock[1]
        assert change is not listen or ours[1] == ["Linear", "ReLU"]


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Halved(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


class Reversed(nn.Sequential):
    def __iter__(self) -> Any:
        return reversed(list(self._modules.values()))


def test_subclasses_are_called() -> None:
    def program() -> Any:
        torch.manual_seed(0)
        return [
            run(nn.Sequential(Doubled(20, 30), nn.ReLU())),
            run(nn.Sequential(nn.Linear(20, 30), Halved())),
            run(Reversed(nn.ReLU(), nn.Linear(20, 30))),
        ]

    off_and_on(program, None, 3)


def test_replaced_forwards_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_instance() -> Any:
        net = pair()
        net[1].forward = lambda x: x - 1
        other = pair()
        other[0].forward = lambda x: torch.ones(40, 30, requires_grad=True)
        return [run(net), other(torch.ones(40, 20)).detach()]

    off_and_on(of_instance, 1)
    with monkeypatch.context() as patch:
        patch.setattr(nn.ReLU, "forward", lambda self, x: x + 1)
        off_and_on(lambda: run(pair()), 1)
    with monkeypatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda self, x: x @ self.weight.t())
        stock = pair()(torch.ones(40, 20))
        with switching.accelerated(*OPS):
            close(pair()(torch.ones(40, 20)), stock)


def test_parametrized_and_pruned_layers() -> None:
    def program() -> Any:
        weighted = pair()
        nn.utils.parametrizations.weight_norm(weighted[0])
        pruned = pair()
        prune.l1_unstructured(pruned[0], "weight", amount=0.3)
        return [run(weighted), run(pruned)]

    off_and_on(program, None)


def test_empty_nested_and_odd() -> None:
    def program() -> Any:
        torch.manual_seed(0)
        x = torch.randn(40, 20)
        empty = nn.Sequential()
        assert empty(x) is x
        nested = nn.Sequential(pair(), nn.Sequential(nn.Linear(30, 40), nn.Tanh()))
        mixed = nn.Sequential(nn.Linear(20, 30), nn.Dropout(0.0), nn.ReLU(), nn.Tanh())
        return [run(nested), run(mixed)]

    off_and_on(program, 3)


def test_errors_leave_as_with_stock() -> None:
    def fail(x: Tensor) -> Tensor:
        raise KeyError("mine")

    net = nn.Sequential(nn.Linear(20, 30), nn.ReLU())
    net.append(type("Fails", (nn.Module,), {"forward": lambda self, x: fail(x)})())
    with switching.accelerated(*OPS), pytest.raises(KeyError, match="mine"):
        net(torch.ones(40, 20))
    with pytest.raises(TypeError), switching.accelerated(*OPS):
        net(torch.ones(40, 20), torch.ones(2))


def buffer_as_bias(layer: nn.Linear) -> None:
    del layer.bias
    layer.register_buffer("bias", torch.full((30,), 100.0))


def attribute_as_bias(layer: nn.Linear) -> None:
    del layer.bias
    layer.bias = torch.full((30,), 100.0)


def attribute_over_bias(layer: nn.Linear) -> None:
    layer.__dict__["bias"] = torch.full((30,), 100.0)


def attribute_over_weight(layer: nn.Linear) -> None:
    layer.__dict__["weight"] = torch.ones(30, 20)


@pytest.mark.parametrize(
    "change",
    [buffer_as_bias, attribute_as_bias, attribute_over_bias, attribute_over_weight],
)
def test_bias_and_weight_that_are_no_parameters(
    change: Callable[[nn.Linear], None],
) -> None:
    def program() -> Any:
        net = pair()
        change(net[0])
        with torch.no_grad():
            return run(net)

    off_and_on(program, 1)


def test_layers_without_a_bias() -> None:
    net = nn.Sequential(nn.Linear(20, 30, bias=False), nn.ReLU())
    off_and_on(lambda: run(net), 1)
    with switching.accelerated(*OPS), pytest.raises(AttributeError, match="bias"):
        net = pair()
        del net[0].bias
        net(torch.ones(40, 20))


def test_a_gelu_that_torch_refuses() -> None:
    net = nn.Sequential(nn.Linear(20, 30), nn.GELU())
    net[1].approximate = "none of these"
    with switching.accelerated(*OPS), pytest.raises(RuntimeError, match="approximate"):
        net(torch.ones(40, 20))


PATCHED = {
    "F.linear": (torch.nn.functional, "linear", nn.ReLU),
    "F.relu": (torch.nn.functional, "relu", nn.ReLU),
    "torch.relu": (torch, "relu", nn.ReLU),
    "F.gelu": (torch.nn.functional, "gelu", nn.GELU),
    "F.silu": (torch.nn.functional, "silu", nn.SiLU),
    "torch.tanh": (torch, "tanh", nn.Tanh),
    "torch.sigmoid": (torch, "sigmoid", nn.Sigmoid),
    "Linear.forward": (nn.Linear, "forward", nn.ReLU),
    "ReLU.forward": (nn.ReLU, "forward", nn.ReLU),
    "Linear.__call__": (nn.Linear, "__call__", nn.ReLU),
    "ReLU.__call__": (nn.ReLU, "__call__", nn.ReLU),
    "Module.__call__": (nn.Module, "__call__", nn.ReLU),
    "Linear._call_impl": (nn.Linear, "_call_impl", nn.ReLU),
    "Module._call_impl": (nn.Module, "_call_impl", nn.ReLU),
    "Module.__getattr__": (nn.Module, "__getattr__", nn.ReLU),
}


@pytest.mark.parametrize("is_first", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("name", PATCHED)
def test_patches_of_users_are_called(
    name: str, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, activation = PATCHED[name]
    net = nn.Sequential(nn.Linear(20, 30), activation())
    x = torch.ones(40, 20)
    stock = net(x)
    if is_first:
        calls = switching.count_calls(monkeypatch, owner, attribute)
    with switching.accelerated(*OPS):
        if not is_first:
            calls = switching.count_calls(monkeypatch, owner, attribute)
        close(net(x), stock)
        seen = len(calls)
        assert seen > 0
        monkeypatch.undo()
        close(net(x), stock)
    close(net(x), stock)
    assert len(calls) == seen
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        close(net(x), stock)
        assert hits.accelerated == 1
        assert len(calls) == seen


class _Swapping(nn.Module):
    """Puts another module in a place of a Sequential while that runs."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.inside: list[nn.Sequential] = []

    def forward(self, x: Tensor) -> torch.Tensor:
        self.inside[0][self.at] = nn.Tanh()
        return x * 2


@pytest.mark.parametrize("at", range(2, 8))
def test_modules_that_are_replaced_while_it_runs(at: int) -> None:
    x = torch.randn(32, 64)

    def program() -> Tensor:
        torch.manual_seed(0)
        swapping = _Swapping(at)
        net = nn.Sequential(nn.Linear(64, 64), swapping)
        for _ in range(2):
            net.extend([nn.Linear(64, 64), nn.GELU(), nn.ReLU()])
        swapping.inside.append(net)
        return net(x)

    stock = program()
    with switching.accelerated("linear_act"):
        hits = switching.hits("linear_act")
        ours = program()
        assert hits.accelerated >= 1
    torch.testing.assert_close(ours, stock)


@pytest.mark.parametrize("at", [0, -1])
def test_a_sequential_that_grows_while_it_runs(at: int) -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    net[at].register_forward_hook(lambda *_: net.append(nn.Linear(10, 3)) and None)
    with pytest.raises(RuntimeError, match="changed size") as stock:
        net(torch.randn(4, 64))
    with switching.accelerated(), pytest.raises(RuntimeError) as ours:
        net(torch.randn(4, 64))
    assert str(ours.value) == str(stock.value)


class _Backwards(dict[str, nn.Module]):
    def values(self) -> Any:
        return reversed(list(super().values()))


@pytest.mark.parametrize("kind", [_Backwards, OrderedDict])
def test_children_in_an_order_of_their_own(kind: type) -> None:
    net = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
    net._modules = kind(net._modules)
    if kind is OrderedDict:
        net._modules.move_to_end("0")
    x = torch.randn(4, 16)
    stock = net(x)
    with switching.accelerated():
        torch.testing.assert_close(net(x), stock)

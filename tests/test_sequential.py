"""nn.Sequential calls its modules wherever somebody could notice that it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import switching
import torch
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

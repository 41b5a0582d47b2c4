"""Unedited programs run by plans, and are left as they were."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from unasked import by_plan, called, hits, plans_of, refusals, unedited

import pai_torchacc as ptac
from benchmarks.zoo.packages import import_torchvision


class Net(nn.Module):
    """Two layers and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        self.drop = nn.Dropout(0.5)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.second(torch.relu(self.first(x)))) * self.scale


class Odd(nn.Module):
    """Counts its calls; what is within is plain."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = Net(), Net()
        self.n_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        return self.inner(x) + self.other(x)


X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


def _net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_module_is_planned_unasked(mode: Callable[[], Any]) -> None:
    net = _net()
    with mode():
        expected = net(X)
        with unedited():
            for _ in range(4):
                assert torch.equal(net(X), expected)
                assert hits(net) == 0
            ours = by_plan(net, lambda: net(X))
            assert "Net (unedited): 1 calls by 1 plans, 2 eager" in ptac.report()
    torch.testing.assert_close(ours, expected)
    assert plans_of(net) is None


def test_only_the_function_of_that_name_has_it_so() -> None:
    net, other = _net(), _net()
    ptac.enable()
    ptac.optimize(other)
    with torch.no_grad():
        called(net, X)
    assert plans_of(net) is None
    ptac.enable_graph_optimization()
    ptac.enable()  # which leaves it as it is
    with torch.no_grad():
        called(net, X)
    assert hits(net) == 1
    ptac.disable("graph_optimization")
    assert plans_of(net) is None
    ptac.optimize(other)
    net = _net()
    with torch.no_grad():
        called(net, X)
    assert plans_of(net) is None


def test_undone_by_identity() -> None:
    net, compiled = _net(), _net()
    with unedited(), torch.no_grad():
        called(net, X)
        called(compiled, X)
        mine = lambda x: x  # noqa: E731
        compiled._compiled_call_impl = mine
        assert compiled(X) is X
    assert plans_of(net) is None
    assert compiled._compiled_call_impl is mine
    assert vars(nn.Module)["__call__"] is nn.Module._wrapped_call_impl


def test_nothing_is_kept_alive() -> None:
    with unedited(), torch.no_grad():
        net, odd = _net(), Odd().eval()
        called(net, X)
        called(odd, X)
        assert hits(net) == 1
        gone = [weakref.ref(net), weakref.ref(odd), weakref.ref(odd.inner)]
        del net, odd
        gc.collect()
        assert [reference() for reference in gone] == [None] * 3


def test_of_a_module_that_is_refused_those_within_are_planned() -> None:
    odd = Odd().eval()
    with unedited(), torch.no_grad():
        expected = odd(X)
        for _ in range(20):
            ours = odd(X)
        assert (hits(odd), odd.n_calls) == (0, 21)
        assert hits(odd.inner) > 5
        assert hits(odd.other) > 5
        (why,) = [why for name, why in refusals() if name == "Odd"]
        assert why.startswith(f"{__file__}:")
        assert why.endswith("forward sets the attribute n_calls")
        assert f"Odd is not planned: {why}" in ptac.report()
    torch.testing.assert_close(ours, expected)


def test_training_in_between_leaves_the_proof() -> None:
    net, twin = _net(), _net()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (net, twin)]
    with unedited():
        with torch.no_grad():
            called(net, X)
        for one, optimizer in zip((net, twin), optimizers, strict=True):
            torch.manual_seed(1)
            one.train()
            optimizer.zero_grad()
            one(X).sum().backward()
            optimizer.step()
            one.eval()
        assert hits(net) == 1
        with torch.no_grad():
            ours = by_plan(net, lambda: net(X))
            torch.testing.assert_close(ours, twin._call_impl(X))
        assert net(X).requires_grad


def test_surgery_and_hooks_take_effect() -> None:
    net = _net()
    seen: list[Any] = []
    with unedited(), torch.no_grad():
        called(net, X)
        net.second = nn.Linear(8, 2)
        assert net(X).shape == (3, 2)
        called(net, X)
        assert hits(net) >= 2
        hook = net.register_forward_hook(lambda *_: seen.append(1))
        net(X)
        hook.remove()
        inner = net.first.register_forward_hook(lambda *_: seen.append(2))
        net(X)
        inner.remove()
        assert seen == [1, 2]
        net.first.weight = nn.Parameter(torch.zeros(8, 8))
        torch.testing.assert_close(net(X), net._call_impl(X))


def test_copies_are_modules_of_their_own() -> None:
    net = _net()
    with unedited(), torch.no_grad():
        called(net, X)
        copies = [
            copy.deepcopy(net),
            copy.copy(net),
            pickle.loads(pickle.dumps(net)),
        ]
        for one in copies:
            assert plans_of(one) is None
            torch.testing.assert_close(one(X), net(X))
        file = io.BytesIO()
        torch.save(net.state_dict(), file)
        other = Net().eval()
        file.seek(0)
        other.load_state_dict(torch.load(file))
        torch.testing.assert_close(other(X), net(X))


def test_what_the_user_asks_for_wins() -> None:
    net = _net()
    with unedited(), torch.no_grad():
        called(net, X)
        ptac.optimize(net)
        assert plans_of(net) is None
        for _ in range(3):
            net(X)
        ptac.unoptimize(net)
        other = _net()
        called(other, X)
        ptac.unoptimize(other)
        called(other, X)
        assert plans_of(other) is None


def test_other_surroundings() -> None:
    net = _net()
    with unedited(), torch.no_grad():
        called(net, X)
        expected = net._call_impl(X)
        before = hits(net)
        with torch.autocast("cpu", torch.bfloat16):
            assert net(X).dtype is torch.bfloat16
        torch.testing.assert_close(torch.func.vmap(net)(X), expected)
        torch.testing.assert_close(torch.jit.trace(net, X)(X), expected)
        torch.testing.assert_close(torch.export.export(net, (X,)).module()(X), expected)
        torch.testing.assert_close(torch.fx.symbolic_trace(net)(X), expected)
        torch.testing.assert_close(nn.DataParallel(net)(X), expected)
        with ptac.disabled():
            torch.testing.assert_close(net(X), expected)
        weights = {name: w * 2 for name, w in net.named_parameters()}
        called_with = torch.func.functional_call(net, weights, (X,))
        torch.testing.assert_close(called_with, _doubled(net)._call_impl(X))
        torch.testing.assert_close(by_plan(net, lambda: net(X)), expected)
        assert hits(net) > before


def _doubled(net: Net) -> Net:
    twin = copy.deepcopy(net)
    for parameter in twin.parameters():
        parameter.mul_(2)
    return twin


def test_several_shapes_and_threads() -> None:
    net = _net()
    wrong: list[int] = []

    def run(n: int) -> None:
        with torch.no_grad():
            for i in range(40):
                x = torch.full((1 + (n + i) % 10, 8), float(i))
                if not torch.allclose(net(x), net._call_impl(x), 1e-4, 1e-5):
                    wrong.append(i)

    with unedited():
        threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = plans_of(net)
        assert found is not None
        assert 1 <= found.counts()["plans"] <= 8 + 2  # recorded at the same time
    assert not wrong


def test_an_exception_passes_and_leaves_others_be() -> None:
    net, other = _net(), _net()
    with unedited(), torch.no_grad():
        for _ in range(6):
            with pytest.raises(RuntimeError, match="shapes"):
                net(torch.ones(2, 3))
        called(other, X)
        by_plan(other, lambda: other(X))


def test_random_numbers_are_drawn_as_ever() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) + torch.rand_like(x[:, :4])

    noisy = Noisy().eval()
    with unedited(), torch.no_grad():
        called(noisy, X)
        torch.manual_seed(3)
        ours = [by_plan(noisy, lambda: noisy(X)) for _ in range(3)]
        torch.manual_seed(3)
        for one in ours:
            torch.testing.assert_close(one, noisy._call_impl(X))


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), (3, 8)),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2
        ),
        (2, 5, 16),
    ),
    "Transformer block": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, norm_first=True),
        (2, 5, 16),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_containers_of_torch(name: str) -> None:
    make, sizes = LAYERS[name]
    net, x = make().eval(), torch.randn(*sizes)
    with unedited(), torch.no_grad():
        called(net, x)
        ours = by_plan(net, lambda: net(x))
        torch.testing.assert_close(ours, net._call_impl(x), rtol=1e-4, atol=1e-5)


VISION = ("resnet18", "mobilenet_v2", "densenet121", "convnext_tiny", "swin_t")


@pytest.mark.parametrize("name", VISION)
def test_networks_of_torchvision(name: str) -> None:
    try:
        models = import_torchvision().models
    except ImportError:
        pytest.skip("torchvision is not installed")
    net, x = getattr(models, name)().eval(), torch.randn(1, 3, 64, 64)
    twin = copy.deepcopy(net)
    with unedited(), torch.no_grad():
        called(net, x)
        ours = by_plan(net, lambda: net(x))
        ptac.optimize(twin)
        twin(x)
        assert torch.equal(ours, twin(x))


def test_calls_come_to_c_as_long_as_a_switch_needs_it() -> None:
    def is_torchs() -> bool:
        return vars(nn.Module)["__call__"] is nn.Module._wrapped_call_impl

    assert is_torchs()
    for first, second in (
        ("operator_fusion", "graph_optimization"),
        ("graph_optimization", "operator_fusion"),
    ):
        ptac.enable_graph_optimization()
        ptac.enable_operator_fusion()
        assert not is_torchs()
        ptac.disable(first)
        assert not is_torchs()
        ptac.disable(second)
        assert is_torchs()
    ptac.enable_graph_optimization()
    net = _net()
    with torch.no_grad():
        called(net, X)
        assert hits(net) == 1

"""A module that is planned unasked is left as it is, and goes with its last owner."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from unasked import by_plan, called, hits, plans_of, refusals, unedited

import pai_torchacc as ptac


class Net(nn.Module):
    """A layer and what follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) * 2.0


class Stateful(Net):
    """Hands its attributes out."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)


class Reduced(Net):
    """Likewise, and has them be taken."""

    def __reduce__(self) -> Any:
        return _made, (dict(vars(self)),)


class Circular(Net):
    """A layer of it knows it."""

    def __init__(self) -> None:
        super().__init__()
        vars(self.layer)["parents"] = [self]


def _made(attributes: dict[str, Any]) -> Reduced:
    made = Reduced.__new__(Reduced)
    vars(made).update(attributes)
    return made


X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad(), unedited():
        yield


def _planned(cls: type[Net] = Net) -> Net:
    net = cls().eval()
    called(net, X)
    assert hits(net) == 1, refusals()
    return net


def _by_attributes(net: Net) -> Net:
    clone = Net.__new__(Net)
    clone.__dict__ = net.__dict__.copy()
    return clone


def _by_update(net: Net) -> Net:
    clone = Net().eval()
    clone.__dict__.update(net.__dict__)
    return clone


CLONES: dict[str, Callable[[Any], Any]] = {
    "attributes": _by_attributes,
    "update": _by_update,
    "replica": lambda net: net._replicate_for_data_parallel(),
    "copy": copy.copy,
}


@pytest.mark.parametrize("how", CLONES)
def test_a_clone_runs_its_own_layers(how: str) -> None:
    net = _planned()
    clone = CLONES[how](net)
    clone._modules = {"layer": nn.Linear(8, 8)}
    expected = torch.tanh(clone.layer(X)) * 2.0
    torch.testing.assert_close(clone(X), expected)
    assert plans_of(clone) is None
    called(clone, X)
    torch.testing.assert_close(by_plan(clone, lambda: clone(X)), expected)
    torch.testing.assert_close(by_plan(net, lambda: net(X)), net._call_impl(X))


def test_attributes_are_as_before() -> None:
    net = Net().eval()
    before = list(vars(net).items())
    called(net, X)
    assert hits(net) == 1
    now = list(vars(net).items())
    assert all(a == b for a, b in zip(before, now, strict=True))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_scripts() -> None:
    net = _planned()
    scripted = torch.jit.script(net)
    torch.testing.assert_close(scripted(X), net._call_impl(X))
    parent = torch.jit.script(nn.Sequential(net))
    torch.testing.assert_close(parent(X), net._call_impl(X))
    called(net, X)  # torch has changed its class
    by_plan(net, lambda: net(X))


@pytest.mark.parametrize("cls", [Stateful, Reduced])
def test_modules_that_hand_their_attributes_out(cls: type[Net]) -> None:
    net = _planned(cls)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(other(X), net(X))
        assert plans_of(other) is None


@pytest.fixture
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_collector")
def test_a_model_goes_with_its_last_owner() -> None:
    net = _planned()
    gone = [weakref.ref(one) for one in (net, net.layer, net.layer.weight)]
    del net
    assert [reference() for reference in gone] == [None] * 3
    for _ in range(3):  # of which each may lie where the one before has lain
        net = _planned()
        torch.testing.assert_close(net(X), net._call_impl(X))
        del net


@pytest.mark.usefixtures("_without_collector")
def test_a_model_goes_whose_plans_have_been_given_up() -> None:
    net = _planned()
    ptac.unoptimize(net)
    gone = [weakref.ref(one) for one in (net, net.layer, net.layer.weight)]
    del net
    assert [reference() for reference in gone] == [None] * 3


def test_a_model_that_is_known_to_what_it_holds_is_not_planned() -> None:
    net = Circular().eval()
    called(net, X)
    assert plans_of(net) is None
    assert ("Circular", "what it holds leads back to it") in refusals()
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_an_entry_whose_module_is_gone() -> None:
    net = _planned()
    found = plans_of(net)
    assert found is not None
    del net
    with pytest.raises(RuntimeError, match="gone"):
        found.entry(X)
    with pytest.raises(RuntimeError, match="gone"):
        found.eager(X)


@pytest.mark.parametrize("is_asked", [False, True])
def test_torch_compile_of_a_planned_module(is_asked: bool) -> None:
    torch._dynamo.reset()
    net = Net().eval()
    if is_asked:
        ptac.optimize(net)
    called(net, X)
    compiled = torch.compile(net, backend="eager")
    for n in (3, 5, 3, 7):
        x = torch.randn(n, 8)
        torch.testing.assert_close(compiled(x), net._call_impl(x))
    entry = net._compiled_call_impl if is_asked else plans_of(net).entry  # type: ignore[union-attr]
    c = ptac._host.loaded()
    assert c is not None
    called(net, X)  # torch has changed its class
    before = c.planned_counts(entry)[1]
    net(X)
    assert c.planned_counts(entry)[1] == before + 1
    torch._dynamo.reset()


def test_dynamo_is_imported_for_a_candidate_alone() -> None:
    program = """
import sys, torch, pai_torchacc as ptac
ptac.enable_graph_optimization()
torch.nn.Linear(8, 8)(torch.ones(1, 8))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)

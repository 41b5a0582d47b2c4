"""Adaptive rates: who is left alone, options, and what checkpoints bring."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import switching
import torch
from adapting import linear, network, report, train, weights
from torch import Tensor, nn, optim

import pai_torchacc as ptac
from pai_torchacc import _C

pytestmark = pytest.mark.usefixtures("adaptive")


# Being left alone


@pytest.mark.parametrize("how", ["policy", "maximize", "toggled"])
def test_left_alone_whatever_a_checkpoint_says(how: str) -> None:
    net, optimizer = linear(1e-4)
    train(net, optimizer, 30)
    saved = copy.deepcopy(optimizer.state_dict())
    assert report(optimizer).multiplier > 2
    ends = []
    for is_on in (True, False):
        if not is_on:
            ptac.disable()
        other, second = linear(1e-4, maximize=how == "maximize")
        if is_on and how == "policy":
            ptac.enable_adaptive_lr(second, policy="off")
        second.load_state_dict(saved)
        second.param_groups[0]["maximize"] = how != "policy"
        train(other, second, 2)
        ends.append(weights(other))
        if is_on:
            assert (report(second).mode, report(second).multiplier) == ("off", 1.0)
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


def test_scales_on_devices_are_not_read_of_optimizers_left_alone() -> None:
    class Read(Tensor):
        def __bool__(self) -> bool:
            raise AssertionError("a read")

        __float__ = __bool__

    p = nn.Parameter(torch.ones(3))
    optimizer = optim.Adam([p], lr=0.1, fused=True)
    ptac.enable_adaptive_lr(optimizer, policy="off")
    p.grad = torch.ones(3)
    optimizer.found_inf = torch.zeros(()).as_subclass(Read)
    optimizer.grad_scale = torch.ones(()).as_subclass(Read)
    optimizer.step()


@pytest.mark.usefixtures("with_fusion")
def test_disabled_threads_have_the_users_rate() -> None:
    net, optimizer = linear(1e-4)
    train(net, optimizer, 30)
    before = report(optimizer)
    old = net.bias.detach().clone()
    with ptac.disabled():
        train(net, optimizer, 1)
    moved = old - net.bias.detach()
    torch.testing.assert_close(moved, 1e-4 * net.bias.grad, rtol=1e-2, atol=1e-7)
    assert report(optimizer).steps == 30 and before.multiplier > 2
    train(net, optimizer, 3)
    assert report(optimizer).steps == 33


def test_skipped_steps_of_several_groups_take_no_sums() -> None:
    """Of fused optimizers, which skip by themselves what GradScaler tells them."""
    net = network()[0]
    groups = [{"params": [p]} for p in net.parameters()]
    optimizer = optim.Adam(groups, lr=1e-3, fused=True)
    train(net, optimizer, 20)
    for _ in range(20):  # until a step comes whose loss does not jump
        train(net, optimizer, 1)
        latest = optimizer.state_dict()["pai_torchacc.adaptive_lr"]["latest"]
        if latest is not None:
            break
    assert latest is not None
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    del optimizer.found_inf
    assert optimizer.state_dict()["pai_torchacc.adaptive_lr"]["latest"] == latest


def test_an_opt_out_holds_beside_a_feature_that_cannot_be_had() -> None:
    assert not ptac.enable_memory_pool("cuda")
    net, optimizer = linear(1e-4)
    ptac.enable_adaptive_lr(optimizer, policy="off")
    train(net, optimizer, 30)
    assert report(optimizer).reason == "policy='off'"


def test_being_verbose_forgets_nothing() -> None:
    net, optimizer = linear(1e-4)
    train(net, optimizer, 30)
    before = report(optimizer).multiplier
    ptac.enable_adaptive_lr(verbose=True)
    assert (report(optimizer).multiplier, report(optimizer).steps) == (before, 30)


def wrap(stock: Callable[..., Any]) -> Callable[..., Any]:
    """As a program of others would."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return stock(*args, **kwargs)

    return wrapped


def test_without_backward_there_is_nothing_to_go_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ptac.disable()
    wrapped = wrap(torch.autograd.backward)
    monkeypatch.setattr(torch.autograd, "backward", wrapped)
    handle = ptac.enable_adaptive_lr()
    assert not handle and "changed by others" in handle.reason


def test_updates_that_others_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    ptac.disable()
    module = __import__("torch.optim.sgd", fromlist=["sgd"])
    monkeypatch.setattr(module, "sgd", wrap(module.sgd))
    assert ptac.enable_adaptive_lr()
    net, optimizer = linear()
    train(net, optimizer, 3)
    assert "sgd was changed by others" in report(optimizer).reason
    assert report(optim.Adam(net.parameters())).mode == "loss"


# Checkpoints


def test_states_from_before_the_first_step_begin_anew() -> None:
    net, optimizer = linear(1e-4, momentum=0.9)
    start = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    ends = []
    for _ in range(3):
        net.load_state_dict(start[0])
        optimizer.load_state_dict(start[1])
        train(net, optimizer, 30)
        ends.append(weights(net)[0])
        assert report(optimizer).steps == 30
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


def test_states_of_some_parameters_only() -> None:
    """One is as before its first step, another has none."""
    params = [torch.nn.Parameter(torch.randn(5)) for _ in range(2)]
    optimizer = optim.Adam(params, lr=1e-2)
    zeros = {name: torch.zeros(5) for name in ("exp_avg", "exp_avg_sq")}
    optimizer.state[params[0]] = {"step": torch.tensor(0.0)} | zeros
    sum(p.square().sum() for p in params).backward()
    optimizer.step()
    assert report(optimizer).steps == 1


def test_a_checkpoint_does_not_change_the_policy() -> None:
    net, optimizer = linear(1e-4)
    train(net, optimizer, 30)
    state = copy.deepcopy(optimizer.state_dict())
    _, second = linear(1e-4)
    ptac.enable_adaptive_lr(second, policy="loss_free")
    second.load_state_dict(state)
    assert report(second).mode == "loss_free"


@pytest.mark.parametrize("cls", [optim.SGD, optim.AdamW])
@pytest.mark.usefixtures("with_fusion")
def test_checkpoints_after_a_rate_of_zero(cls: type) -> None:
    """As at the end of a schedule: nothing in them is not a number."""
    net, optimizer = network(cls, lr=1e-3)
    train(net, optimizer, 30)
    optimizer.param_groups[0]["lr"] = 0.0
    train(net, optimizer, 2)
    before = report(optimizer)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert report(optimizer).multiplier == before.multiplier
    net[0].weight.grad.fill_(math.inf)
    optimizer.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("multiplier", math.nan),
        ("multiplier", -1.0),
        ("multiplier", 1e30),
        ("numbers", [math.nan] * len(_C.rate_fields())),
        ("references", [math.inf]),
        ("last_loss", "x"),
        ("latest", [1.0, 2.0]),
        ("counts", [1]),
        ("begin", "abc"),
    ],
)
def test_damaged_numbers_are_refused(key: str, value: Any) -> None:
    net, optimizer = linear(1e-4)
    train(net, optimizer, 30)
    state = copy.deepcopy(optimizer.state_dict())
    state["pai_torchacc.adaptive_lr"][key] = value
    before = report(optimizer).multiplier
    with pytest.raises(ValueError, match="adaptive_lr"):
        optimizer.load_state_dict(state)
    assert report(optimizer).multiplier == before


# Copies


@pytest.mark.parametrize("policy", ["auto", "loss_free"])
@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_go_on_as_their_originals(
    how: Callable[[Any], Any], policy: Any
) -> None:
    net, optimizer = network(lr=1e-4, momentum=0.9)
    ptac.enable_adaptive_lr(optimizer, policy=policy, max_growth=1.2)
    train(net, optimizer, 100)
    assert report(optimizer).multiplier > 1
    other, second = how((net, optimizer))
    assert report(second).steps == 100
    assert not set(vars(second)) - set(vars(optimizer))
    for n in (net, other):
        train(n, optimizer if n is net else second, 10)
    for a, b in zip(weights(net), weights(other), strict=True):
        assert torch.equal(a, b)
    assert report(second).multiplier == report(optimizer).multiplier


def test_copies_of_those_left_alone_are_left_alone() -> None:
    net, optimizer = network(lr=1e-4)
    ptac.enable_adaptive_lr(optimizer, policy="off")
    other, second = copy.deepcopy((net, optimizer))
    train(other, second, 30)
    assert report(second).reason == "policy='off'"
    assert report(second).multiplier == 1


def test_pickles_load_where_the_switch_is_off() -> None:
    net, optimizer = network(lr=1e-4, momentum=0.9)
    train(net, optimizer, 30)
    pickled = pickle.dumps((net, optimizer))
    ptac.disable()
    other, second = pickle.loads(pickled)
    train(net, optimizer, 3)
    train(other, second, 3)
    for a, b in zip(weights(net), weights(other), strict=True):
        assert torch.equal(a, b)


def test_pickles_load_without_the_package(tmp_path: Path) -> None:
    net, optimizer = network(lr=1e-4, momentum=0.9)
    ptac.enable_adaptive_lr(optimizer, policy="loss_free", max_growth=1.2)
    train(net, optimizer, 30)
    path = tmp_path / "optimizer.pickle"
    path.write_bytes(pickle.dumps(optimizer))
    program = """
import pickle, sys
sys.modules["pai_torchacc"] = None
with open(sys.argv[1], "rb") as file:
    optimizer = pickle.load(file)
optimizer.step()
print(optimizer.param_groups[0]["lr"])
"""
    assert switching.python(program, str(path)).strip() == "0.0001"


def test_a_state_that_torch_refuses_changes_nothing() -> None:
    net, optimizer = network(lr=1e-4, momentum=0.9)
    train(net, optimizer, 10)
    saved = optimizer.state_dict()
    train(net, optimizer, 30)
    before = report(optimizer)
    with pytest.raises(ValueError):
        optimizer.load_state_dict(saved | {"param_groups": []})
    assert report(optimizer) == before and len(before.history) == 40


def test_a_pickle_does_not_outlive_a_checkpoint() -> None:
    """Loaded while the switch is off, it is no news for what is loaded later."""
    net, optimizer = network(lr=1e-4, momentum=0.9)
    train(net, optimizer, 10)
    pickled = pickle.dumps((net, optimizer))
    train(net, optimizer, 30)
    saved = optimizer.state_dict()
    ptac.disable()
    _, second = pickle.loads(pickled)
    ptac.enable_adaptive_lr()
    second.load_state_dict(saved)
    assert report(second).steps == 40
    ptac.enable_adaptive_lr(second, policy="off")
    second.load_state_dict(saved)
    assert report(second).mode == "off"


def test_copies_of_another_version_begin_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net, optimizer = network(lr=1e-4)
    train(net, optimizer, 10)
    made = optimizer.__getstate__()
    for entry in (
        {"options": None, "state": {"version": 1}},
        {},
        {"options": {"x": 1}},
    ):
        second = optim.SGD.__new__(optim.SGD)
        second.__setstate__(made | {"pai_torchacc.adaptive_lr": entry})
        assert report(second).steps == 0
        assert "begins anew" in caplog.text
        caplog.clear()

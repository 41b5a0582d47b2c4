"""The switch adaptive_lr: what it does to training, and what it leaves as it is."""

from __future__ import annotations

import copy
import io
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import footprint
import pytest
import torch
from adapting import assert_same, closure_of, network, train, weights
from torch import nn, optim

import pai_torchacc as ptac
from pai_torchacc.adaptive_lr import registry

KNOWN = [
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Adagrad,
]
UNKNOWN = [optim.Adadelta, optim.Adamax, optim.ASGD, optim.Rprop, optim.LBFGS]


@pytest.fixture(autouse=True)
def everything_off() -> Iterator[None]:
    yield
    ptac.disable()


def end(losses: list[float]) -> float:
    """The mean loss of the last six batches."""
    return sum(losses[-6:]) / 6


@pytest.fixture(params=["alone", "with fusion"])
def switched_on(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "with fusion":
        assert ptac.enable()
    assert ptac.enable_adaptive_lr()
    yield


@pytest.mark.parametrize("cls", KNOWN)
def test_small_rates_grow(cls: type, switched_on: None) -> None:
    net, optimizer = network(cls, lr=1e-4)
    ours = end(train(net, optimizer, 150))
    report = ptac.adaptive_lr_report(optimizer)
    assert report.mode == "loss" and report.reason is None
    assert max(moment.multiplier for moment in report.history) > 4
    assert optimizer.param_groups[0]["lr"] == 1e-4
    ptac.disable()
    assert ours < end(train(*network(cls, lr=1e-4), 150))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_large_rates_shrink(momentum: float, switched_on: None) -> None:
    """Where stock's loss becomes infinite."""
    net, optimizer = network(lr=30.0, momentum=momentum)
    ours = train(net, optimizer, 60)
    history = ptac.adaptive_lr_report(optimizer).history
    assert min(moment.multiplier for moment in history) < 0.2
    assert sum(ours) < 60 * ours[0] and end(ours) < 0.1
    ptac.disable()
    stock = train(*network(lr=30.0, momentum=momentum), 60)
    assert not sum(stock) < 1e6


def test_good_rates_are_left_to_the_bit(switched_on: None) -> None:
    net, optimizer = network(lr=1.0)
    train(net, optimizer, 40)
    history = ptac.adaptive_lr_report(optimizer).history
    assert len(history) == 40
    assert all(moment.multiplier == 1 for moment in history)
    ptac.disable("adaptive_lr")
    expected, plain = network(lr=1.0)
    train(expected, plain, 40)
    assert_same(weights(net), weights(expected))


def test_with_and_without_fusion_is_the_same() -> None:
    found = []
    for cls, options in ((optim.SGD, {"momentum": 0.9}), (optim.AdamW, {})):
        ends = []
        for fused in (False, True):
            handle = ptac.enable("operator_fusion", numerics="exact") if fused else None
            ptac.enable_adaptive_lr()
            net, optimizer = network(cls, lr=1e-3, **options)
            train(net, optimizer, 60)
            assert ptac.adaptive_lr_report(optimizer).multiplier != 1
            ends.append(weights(net))
            if handle:
                steps = json.loads(ptac.report("json"))["ops"]
                name = f"{cls.__name__.lower()}_step"
                assert steps[name]["accelerated"] >= 60
            ptac.disable()
        found.append(ends)
    for ends in found:
        for a, b in zip(*ends, strict=True):
            # Sums are taken in another order, before or in the step; and AdamW's decay,
            # 1 - (lr * m) * (decay / m), rounds otherwise than 1 - lr * decay.
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", UNKNOWN)
def test_others_are_left_alone_and_told(cls: type) -> None:
    ptac.enable_adaptive_lr()
    net, optimizer = network(cls, lr=0.01)
    closure = closure_of(net, optimizer)
    for _ in range(3):
        optimizer.step(closure)
    report = ptac.adaptive_lr_report(optimizer)
    assert report.mode == "off"
    word = "closures" if cls is optim.LBFGS else cls.__name__
    assert word in report.reason and word in str(report)
    ours = weights(net)
    ptac.disable()
    net, optimizer = network(cls, lr=0.01)
    closure = closure_of(net, optimizer)
    for _ in range(3):
        optimizer.step(closure)
    assert_same(ours, weights(net))


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"fused": True}, {"nesterov": True}, {}]
)
def test_every_implementation_gives_the_same(options: dict[str, Any]) -> None:
    ptac.enable_adaptive_lr()
    net, optimizer = network(lr=1e-3, momentum=0.9, **options)
    train(net, optimizer, 60)
    assert ptac.adaptive_lr_report(optimizer).multiplier != 1
    if not options.get("nesterov"):
        expected, plain = network(lr=1e-3, momentum=0.9, foreach=False)
        train(expected, plain, 60)
        for a, b in zip(weights(net), weights(expected), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_rates_as_tensors() -> None:
    ptac.enable_adaptive_lr()
    rate = torch.tensor(1e-4)
    net, optimizer = network(optim.Adam, lr=rate, foreach=False)
    train(net, optimizer, 60)
    assert ptac.adaptive_lr_report(optimizer).multiplier > 4
    assert optimizer.param_groups[0]["lr"] is rate and rate == torch.tensor(1e-4)


def test_resuming_is_the_same_to_the_bit(switched_on: None) -> None:
    def fresh() -> tuple[nn.Module, Any]:
        return network(lr=1e-3, momentum=0.9)

    net, optimizer = fresh()
    train(net, optimizer, 30)
    file = io.BytesIO()
    torch.save((net.state_dict(), optimizer.state_dict()), file)
    train(net, optimizer, 30)
    file.seek(0)
    state, rates = torch.load(file, weights_only=True)
    again, second = fresh()
    again.load_state_dict(state)
    second.load_state_dict(rates)
    train(again, second, 30)
    assert_same(weights(again), weights(net))
    assert ptac.adaptive_lr_report(second).steps == 60
    ptac.disable()
    plain, third = fresh()
    plain.load_state_dict(state)
    third.load_state_dict(rates)
    assert list(third.state_dict()) == ["state", "param_groups"]
    train(plain, third, 3)


def test_resuming_without_losses() -> None:
    def fresh() -> tuple[nn.Module, Any]:
        return network(lr=1e-4)

    ptac.enable_adaptive_lr(policy="loss_free")
    net, optimizer = fresh()
    train(net, optimizer, 40)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    train(net, optimizer, 40)
    report = ptac.adaptive_lr_report(optimizer)
    assert report.mode == "loss_free" and report.multiplier > 3
    again, second = fresh()
    again.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    train(again, second, 40)
    assert_same(weights(again), weights(net))


def test_damaged_states_are_refused() -> None:
    ptac.enable_adaptive_lr()
    net, optimizer = network(lr=1e-3)
    train(net, optimizer, 3)
    state = optimizer.state_dict()
    for wrong in (
        {"version": 1},
        {"version": 2, "numbers": [1.0], "multiplier": 1},
        None,
    ):
        second = network(lr=0.5)[1]
        with pytest.raises(ValueError, match="adaptive_lr"):
            second.load_state_dict({**state, "pai_torchacc.adaptive_lr": wrong})
        assert second.param_groups[0]["lr"] == 0.5
    second = network(lr=0.5)[1]
    with pytest.raises(ValueError, match="parameter group"):
        second.load_state_dict({**state, "param_groups": []})
    assert ptac.adaptive_lr_report(second).steps == 0


def test_switching_off_in_the_middle_is_stock_from_then_on(switched_on: None) -> None:
    net, optimizer = network(lr=1e-3, momentum=0.9)
    train(net, optimizer, 30)
    ptac.disable("adaptive_lr")
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    train(net, optimizer, 30)
    ours = weights(net)
    expected, plain = network(lr=1e-3, momentum=0.9)
    expected.load_state_dict(saved[0])
    plain.load_state_dict(saved[1])
    train(expected, plain, 30)
    ptac.disable()
    assert_same(ours, weights(expected))


def test_nothing_is_left_behind() -> None:
    before = footprint.take()
    with ptac.enable_adaptive_lr():
        net, optimizer = network(lr=1e-3)
        train(net, optimizer, 3)
        assert not ptac.is_enabled("operator_fusion")
    footprint.assert_same(before, footprint.take())
    assert not ptac.is_enabled("adaptive_lr")
    assert "adaptive_lr is off" in str(ptac.adaptive_lr_report(optimizer))
    assert not ptac.enable().status().keys() & {"adaptive_lr"}


def sgd_steps() -> dict[str, Any]:
    """What has become of them in this process so far."""
    return json.loads(ptac.report("json"))["ops"]["sgd_step"]


@pytest.mark.parametrize("first", ["adaptive_lr", "operator_fusion"])
def test_either_switch_may_go_first(first: str) -> None:
    before = footprint.take()
    other = {"adaptive_lr": "operator_fusion", "operator_fusion": "adaptive_lr"}[first]
    ptac.enable(first)
    ptac.enable(other)
    net, optimizer = network(lr=1e-4)
    earlier = sgd_steps()
    train(net, optimizer, 20)
    assert sgd_steps()["accelerated"] >= earlier["accelerated"] + 20
    assert sgd_steps()["forwarded"] == earlier["forwarded"]
    ptac.disable(first)
    train(net, optimizer, 3)
    ptac.disable(other)
    footprint.assert_same(before, footprint.take())


def test_one_optimizer_alone_and_all_but_one() -> None:
    ptac.enable_adaptive_lr(network(lr=1e-4)[1])
    net, optimizer = network(lr=1e-4)
    train(net, optimizer, 20)
    assert ptac.adaptive_lr_report(optimizer).mode == "off"
    named_net, named = network(lr=1e-4)
    ptac.enable_adaptive_lr(named)
    train(named_net, named, 60)
    assert ptac.adaptive_lr_report(named).multiplier > 3
    ptac.disable()
    ptac.enable_adaptive_lr()
    left_net, left = network(lr=1e-4)
    ptac.enable_adaptive_lr(left, policy="off")
    train(left_net, left, 20)
    assert ptac.adaptive_lr_report(left).mode == "off"
    train(net, optimizer, 60)
    assert ptac.adaptive_lr_report(optimizer).mode == "loss"


class _Meta(type):
    pass


class _Derived(optim.Adam, metaclass=_Meta):
    pass


def test_optimizers_that_exist_are_found_beside_threads_that_make_tuples() -> None:
    failures: list[BaseException] = []
    stop = threading.Event()

    def make_tuples() -> None:
        try:
            while not stop.is_set():
                tuple(i for i in range(1000))
        except BaseException as error:
            failures.append(error)

    optimizers = [network(lr=1e-4)[1], _Derived(network(lr=1e-4)[0].parameters())]
    other = threading.Thread(target=make_tuples)
    other.start()
    for _ in range(5):
        with ptac.enable_adaptive_lr():
            assert all(registry.known_tuner(o) is not None for o in optimizers)
    stop.set()
    other.join()
    assert failures == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"policy": "fast"}, ValueError),
        ({"policy": 1}, TypeError),
        ({"floor": "low"}, TypeError),
        ({"floor": float("nan")}, ValueError),
        ({"max_growth": 1}, ValueError),
        ({"max_growth": None}, TypeError),
        ({"verbose": 1}, TypeError),
        ({"optimizer": 3}, TypeError),
    ],
)
def test_wrong_options(wrong: dict[str, Any], kind: type) -> None:
    with pytest.raises(kind):
        ptac.enable_adaptive_lr(**wrong)
    assert not ptac.is_enabled("adaptive_lr")
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer"):
        ptac.adaptive_lr_report(object())


def test_not_part_of_a_bare_enable() -> None:
    ptac.enable()
    assert not ptac.is_enabled("adaptive_lr")


def test_growth_is_limited() -> None:
    ptac.enable_adaptive_lr(max_growth=1.05)
    net, optimizer = network(lr=1e-4)
    train(net, optimizer, 60)
    moments = ptac.adaptive_lr_report(optimizer).history
    for a, b in itertools.pairwise(moments):
        assert b.multiplier <= 1.0500001 * a.multiplier
    assert moments[-1].multiplier > 2

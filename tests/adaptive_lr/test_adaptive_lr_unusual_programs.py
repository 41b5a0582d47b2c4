"""Adaptive rates in programs that do unusual things, beside stock."""

from __future__ import annotations

import copy
import gc
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from adapting import (
    backward,
    data,
    linear,
    losses_of,
    multipliers_of,
    network,
    report,
    train,
)
from torch import Tensor, nn, optim
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.adaptive_lr import registry, update_rules

pytestmark = pytest.mark.usefixtures("adaptive")

# Threads


def test_threads_that_train_at_the_same_time() -> None:
    """Each looks at gradients of its own alone, while the other's are written."""
    nets = [network(lr=1e-3) for _ in range(2)]
    threads = [threading.Thread(target=train, args=(*pair, 200)) for pair in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected, optimizer = network(lr=1e-3)
    train(expected, optimizer, 200)
    for _, other in nets:
        # The first step's loss is not known: the optimizer was made elsewhere.
        assert report(other).mode == "loss", report(other)
        assert report(other).multiplier > 10
        assert losses_of(other)[-1] == pytest.approx(losses_of(optimizer)[-1], abs=0.05)


def test_a_step_inside_the_backward_pass_of_another_thread() -> None:
    (a, of_a), (b, of_b) = linear(), linear()
    own = backward(a)
    a.zero_grad()

    def train_a() -> None:
        of_a.zero_grad()
        backward(a)
        of_a.step()

    def elsewhere(_: Tensor) -> None:
        thread = threading.Thread(target=train_a)
        thread.start()
        thread.join()

    x, y = data()
    for _ in range(3):
        of_b.zero_grad()
        loss = 10 * F.cross_entropy(b(x), y)
        loss.register_hook(elsewhere)
        loss.backward()
        of_b.step()
    known = [v for v in losses_of(of_a) if v is not None]
    assert known == pytest.approx([own] * len(known), rel=0.1)


# Losses, and whose they are


def test_two_models_that_both_go_backward_before_both_step() -> None:
    (a, of_a), (b, of_b) = linear(), linear()
    for _ in range(3):
        first = backward(a, 100), backward(b)
        of_a.step()
        of_b.step()
        of_a.zero_grad()
        of_b.zero_grad()
        assert (losses_of(of_a)[-1], losses_of(of_b)[-1]) == pytest.approx(first)


def test_what_optimizers_before_left_is_nobodys() -> None:
    old, gone = linear()
    backward(old, 100)
    gone.step()
    net, optimizer = linear()
    own = backward(net)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    assert losses_of(optimizer) == [pytest.approx(own)]


@pytest.mark.parametrize("has_stepped", [False, True])
def test_an_optimizer_that_does_not_step_any_more(has_stepped: bool) -> None:
    """Of the same parameters: it takes no share, nor works against the other."""
    net, before = network(optim.Adam, lr=1e-4)
    if has_stepped:
        train(net, before, 5)
    optimizer = optim.SGD(net.parameters(), lr=1e-3)
    own = train(net, optimizer, 30)
    assert report(optimizer).mode == "loss" and report(optimizer).multiplier > 2
    assert losses_of(optimizer) == pytest.approx(own)


def test_asking_for_a_report_changes_nothing() -> None:
    ends = []
    for asks in (False, True):
        net, optimizer = network(lr=1e-3)
        other = optim.Adadelta(net[2].parameters(), lr=0.0)
        for i in range(30):
            train(net, optimizer, 1)
            if asks and i == 5:
                report(other)
        ends.append(losses_of(optimizer))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("to_none", [True, False])
def test_batches_that_are_skipped(to_none: bool) -> None:
    net, optimizer = linear()
    for i in range(12):
        optimizer.zero_grad(set_to_none=to_none)
        own = backward(net)
        if i % 4 == 3:
            optimizer.step()
            assert losses_of(optimizer)[-1] == pytest.approx(own)


@pytest.mark.parametrize(
    ("to_none", "freezes"), [(True, False), (False, False), (True, True)]
)
def test_generator_and_discriminator(to_none: bool, freezes: bool) -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 2), nn.Linear(2, 1)
    make, tell = (optim.SGD(m.parameters(), lr=0.01) for m in (maker, judge))
    for _ in range(12):
        noise, real = torch.randn(16, 4), torch.randn(16, 2)
        tell.zero_grad(set_to_none=to_none)
        F.softplus(-judge(real)).mean().backward()
        F.softplus(judge(maker(noise).detach())).mean().backward()
        tell.step()
        make.zero_grad(set_to_none=to_none)
        judge.requires_grad_(not freezes)
        F.softplus(-judge(maker(noise))).mean().backward()
        make.step()
        judge.requires_grad_(True)
    for optimizer in (make, tell):
        assert report(optimizer).mode == "loss_free"
        assert ("frozen" if freezes else "throws away") in report(optimizer).reason


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
@pytest.mark.usefixtures("with_fusion")
def test_steps_without_gradients_do_not_count(cls: type) -> None:
    net, optimizer = network(cls, lr=1e-4)
    for _ in range(5):
        optimizer.step()
    train(net, optimizer, 20)
    assert (report(optimizer).mode, report(optimizer).steps) == ("loss", 20)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_while_accumulating(reentrant: bool) -> None:
    net, optimizer = network(lr=1e-4)
    x, y = data()
    x = x.clone().requires_grad_()
    for _ in range(6):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(2):
            loss = F.cross_entropy(checkpoint(net, x, use_reentrant=reentrant), y)
            loss.backward()
            total += loss.item()
        optimizer.step()
        assert losses_of(optimizer)[-1] == pytest.approx(total)


def test_gradients_that_are_replaced_while_accumulating() -> None:
    """As create_graph does: a new one may lie where the old one lay."""
    for n in range(1, 7):
        params = [nn.Parameter(torch.ones(3)) for _ in range(n)]
        optimizer = optim.SGD(params, lr=1e-4)
        for _ in range(10):
            optimizer.zero_grad()
            for _ in range(3):
                loss = sum((p**2).sum() for p in params)
                loss.backward(create_graph=True)
            optimizer.step()
            for p in params:
                p.grad = None
        assert all(v == pytest.approx(9 * n, rel=0.1) for v in losses_of(optimizer))


def test_losses_of_subclasses_and_with_a_weight() -> None:
    class Loss(Tensor):
        pass

    for call, times in (
        (lambda loss: loss.as_subclass(Loss).backward(), 1.0),
        (lambda loss: loss.backward(torch.tensor(1.0)), 1.0),
        (lambda loss: torch.autograd.backward([loss], [torch.tensor(2.0)]), 2.0),
    ):
        net, optimizer = linear()
        x, y = data()
        loss = F.cross_entropy(net(x), y)
        call(loss)
        optimizer.step()
        assert losses_of(optimizer) == [pytest.approx(times * loss.item())]


# Rates


def outlier_at(step: int) -> Callable[[int, float], float]:
    return lambda i, loss: loss * (1e5 if i == step else 1.0)


@pytest.mark.parametrize(
    "times",
    [
        outlier_at(5),
        lambda i, loss: loss * (0.01 if i == 0 else 1.0),
        lambda i, loss: loss * (1.0 if i < 20 else 30.0),
    ],
    ids=["an outlier", "a small first one", "another term later"],
)
@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
def test_losses_that_rise_for_other_reasons(times: Any, cls: type) -> None:
    """They never take the rate below a user's that is no higher than Polyak's."""
    net, optimizer = network(cls, lr=1e-3)
    x, y = data()
    for i in range(120):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        scale = float(times(i, 1.0))
        (loss * scale).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    assert min(multipliers_of(optimizer)) >= 0.999
    assert report(optimizer).mode == "loss"


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_clipping_does_not_raise_the_highest_rate(clip: str) -> None:
    highest = []
    for clips in (False, True):
        torch.manual_seed(0)
        net = nn.Linear(64, 1)
        optimizer = optim.SGD(net.parameters(), lr=1e-2)
        x = torch.randn(256, 64)
        for _ in range(60):
            optimizer.zero_grad()
            F.mse_loss(net(x), 3 * x.sum(1, keepdim=True)).backward()
            if clips and clip == "norm":
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            elif clips:
                nn.utils.clip_grad_value_(net.parameters(), 0.5)
            optimizer.step()
        highest.append(max(multipliers_of(optimizer)))
    assert 1 < highest[1] <= highest[0]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_growth_is_limited_below_the_users_rate_too(momentum: float) -> None:
    ptac.enable_adaptive_lr(max_growth=1.01)
    net, optimizer = network(lr=30.0, momentum=momentum)
    train(net, optimizer, 150)
    found = multipliers_of(optimizer)
    assert min(found) < 1
    assert all(b <= a * 1.0100001 for a, b in itertools.pairwise(found))


def test_a_base_rate_that_is_never_used() -> None:
    """Noam's: the rate comes from the schedule, and 1 is only what it multiplies."""
    net, optimizer = network(optim.Adam, lr=1.0)
    schedule = optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: 0.1 * min((i + 1) ** -0.5, (i + 1) * 20**-1.5)
    )
    train(net, optimizer, 80, after=schedule.step)
    assert set(multipliers_of(optimizer)) == {1.0}


def test_a_warm_up_is_not_lowered() -> None:
    net, optimizer = network(optim.AdamW, lr=1.0)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=100)
    train(net, optimizer, 100, after=schedule.step)
    assert min(multipliers_of(optimizer)) == 1.0


def test_ordinary_steps_take_their_own_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over the gradients is for first steps, and for losses that jump."""
    calls: list[int] = []
    real = update_rules.descent
    monkeypatch.setattr(
        update_rules, "descent", lambda *args: calls.append(1) or real(*args)
    )
    with ptac.enable("operator_fusion"):
        net, optimizer = network(lr=1e-3, momentum=0.9)
        x, y = data()
        counts = []
        for i in range(40):
            calls.clear()
            optimizer.zero_grad()
            (F.cross_entropy(net(x), y) * (1e4 if i == 30 else 1.0)).backward()
            optimizer.step()
            counts.append(len(calls))
    assert counts == [1] * 20 + [0] * 10 + [1] + [0] * 9
    assert max(multipliers_of(optimizer)) > 2


# Kinds of gradients and optimizers


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam, optim.RMSprop])
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64]
)
def test_dtypes(cls: type, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(8, 3).to(dtype))
    optimizer = cls([weight], lr=1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        (weight.abs() ** 2).float().mean().backward()
        optimizer.step()
    assert report(optimizer).mode == "loss" and report(optimizer).multiplier > 1


def test_other_orders_of_memory() -> None:
    net = nn.Conv2d(4, 8, 3)
    optimizer = optim.AdamW(net.parameters(), lr=1e-4)
    for i in range(30):
        if i == 3:
            net.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        net(torch.ones(2, 4, 8, 8)).square().mean().backward()
        optimizer.step()
    assert report(optimizer).mode == "loss" and report(optimizer).multiplier > 1


@pytest.mark.parametrize("cls", [optim.Adam, optim.RAdam, optim.RMSprop])
def test_descent_is_that_of_the_step(
    cls: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a parameter that joins late, with a count of its own."""
    seen: list[float] = []
    real = update_rules.descent
    monkeypatch.setattr(
        update_rules, "descent", lambda *args: seen.append(real(*args)) or seen[-1]
    )
    torch.manual_seed(0)
    late, p = (nn.Parameter(torch.randn(100, dtype=torch.float64)) for _ in range(2))
    optimizer = cls([late, p], lr=1e-3)
    for i in range(19):
        optimizer.zero_grad()
        loss = (p - torch.randn(100)).square().sum()
        if i >= 10:
            loss = loss + (late - torch.randn(100)).square().sum()
        loss.backward()
        before = weights_of(late, p)
        optimizer.step()
        rate = 1e-3 * report(optimizer).multiplier
        moved = zip(before, weights_of(late, p), (late.grad, p.grad), strict=True)
        did = sum(float((g * (a - b)).sum()) for a, b, g in moved if g is not None)
        assert seen[-1] == pytest.approx(did / rate, rel=1e-6)


def weights_of(*params: Tensor) -> list[Tensor]:
    return [p.detach().clone() for p in params]


def test_gradients_of_inference_mode() -> None:
    net, optimizer = linear()
    with torch.inference_mode():
        for p in net.parameters():
            p.grad = torch.ones_like(p)
    other, _ = linear()
    backward(other)
    optimizer.step()


def test_gradients_whose_memory_is_given_back() -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    optimizer = optim.SGD([weight], lr=1e-4)
    n_bytes = weight.untyped_storage().nbytes()

    def give_back(p: Tensor) -> None:
        p.grad.untyped_storage().resize_(0)

    weight.register_post_accumulate_grad_hook(give_back)
    weight.square().mean().backward()
    weight.grad.untyped_storage().resize_(n_bytes)
    weight.grad.fill_(1.0)
    optimizer.step()


def test_fake_tensors() -> None:
    with FakeTensorMode():
        net = nn.Linear(4, 2)
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("key", ["max_lr", "initial_lr"])
@pytest.mark.parametrize("value", [None, "high", [0.1, 0.2], torch.ones(2)])
def test_other_things_in_groups(key: str, value: Any) -> None:
    net = nn.Linear(8, 3)
    optimizer = optim.SGD([{"params": net.parameters(), key: value}], lr=0.1)
    backward(net)
    optimizer.step()
    assert report(optimizer).steps == 1


def test_optimizers_that_cannot_be_hashed() -> None:
    class Named(optim.SGD):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named)

        __hash__ = None

    net = nn.Linear(8, 3)
    optimizer = Named(net.parameters(), lr=0.1)
    backward(net)
    optimizer.step()
    assert "Named" in report(optimizer).reason


@pytest.mark.parametrize("policy", ["auto", "loss_free"])
def test_parameters_that_are_exchanged(policy: Any) -> None:
    ptac.enable_adaptive_lr(policy=policy)
    net, optimizer = linear()
    train(net, optimizer, 4)
    old = weakref.ref(net.weight)
    net = nn.Linear(8, 5)
    optimizer.param_groups[0]["params"] = list(net.parameters())
    optimizer.state.clear()
    train(net, optimizer, 4)
    gc.collect()
    assert old() is None


def test_optimizers_that_share_losses_are_freed() -> None:
    net, _ = linear()
    gone = []
    for _ in range(5):
        z = torch.randn(1, 8, requires_grad=True)
        optimizer = optim.SGD([z], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(z).square().mean().backward()
            optimizer.step()
        gone.append(weakref.ref(z))
        del z, optimizer
    gc.collect()
    assert [ref() for ref in gone] == [None] * 5


# Arguments of the extension


class Emptying:
    """A number that empties lists when it is read."""

    def __init__(self, *lists: list[Any]) -> None:
        self.lists = lists

    def __float__(self) -> float:
        for some in self.lists:
            some.clear()
        return 1.0


def test_numbers_that_empty_lists() -> None:
    grads, averages = [torch.ones(3)] * 9, [torch.ones(3)] * 9
    bad = (1.0, 1.0, Emptying(grads, averages), 1.0, 1.0)
    assert _C.descent_sum(grads, averages, None, 1.0, bad) == 0.0
    with pytest.raises(TypeError, match="tuple"):
        _C.descent_sum([], None, None, 1.0, [1.0] * 5)


def test_loss_free_rates_fall_at_once() -> None:
    """As DoG's: tiny gradients at a kink, and then one that is not."""
    ptac.enable_adaptive_lr(policy="loss_free")
    p = torch.zeros(1, requires_grad=True)
    optimizer = optim.SGD([p], lr=0.1)
    for i in range(301):
        p.grad = torch.tensor([1.0 if i == 300 else (i % 2 - 0.5) * 2e-6])
        before = p.item()
        optimizer.step()
    assert abs(p.item() - before) <= 0.1


def test_trackers_know_those_that_existed_and_copies() -> None:
    ptac.disable()
    _, before = linear()
    ptac.enable_adaptive_lr()
    _, later = linear()
    copied = copy.deepcopy(later)
    for optimizer in (before, later, copied):
        assert registry.known_tuner(optimizer) is not None


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
def test_function_modes_see_what_they_see_of_stock(cls: type) -> None:
    """A default device is one; it takes microseconds for each function it is told."""
    seen: list[Any] = []

    class Seeing(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    def last_step_of(n_steps: int) -> list[Any]:
        net, optimizer = network(cls, lr=1e-3)
        train(net, optimizer, n_steps - 1)
        seen.clear()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(data()[0]), data()[1])
        with Seeing():
            loss.backward()
            optimizer.step()
        return [str(function) for function in seen]

    ours = [last_step_of(n) for n in (2, 30)]
    ptac.disable()
    assert ours == [last_step_of(n) for n in (2, 30)] and min(map(len, ours)) > 8


def test_nested_losses_of_one_element() -> None:
    net, optimizer = network(lr=1e-3)
    loss = sum(p.square().sum() for p in net.parameters())
    torch.nested.as_nested_tensor([loss.reshape(1)]).backward()
    optimizer.step()
    assert losses_of(optimizer) == [None]

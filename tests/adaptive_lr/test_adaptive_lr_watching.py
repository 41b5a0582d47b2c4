"""What backward passes look at: costs go by the parameters that take part."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from adapting import backward, linear, losses_of, report, train
from torch import nn, optim
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac
from pai_torchacc.adaptive_lr import registry

pytestmark = pytest.mark.usefixtures("adaptive")

N_IDLE = 400


def n_calls(work: Callable[[], Any]) -> int:
    """Python functions and functions of C that are called."""
    found = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def is_idle(optimizer: Any) -> bool:
    return registry.tuner_of(optimizer).is_idle


def idle_one() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A net whose optimizer has become idle beside another's training."""
    (net, optimizer), other = linear(), linear()
    train(*other, 30)
    return net, optimizer


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
def test_idle_optimizers_cost_nothing(cls: type) -> None:
    """As many calls a step as without them, also where others are made."""
    counts = []
    for n_idle in (0, N_IDLE):
        idle = [cls([nn.Parameter(torch.ones(2))], lr=0.1) for _ in range(n_idle)]
        net, optimizer = linear()
        train(net, optimizer, 40)

        def work(net: Any = net, optimizer: Any = optimizer) -> None:
            train(net, optimizer, 5)
            another = linear()
            train(*another, 5)

        work()
        counts.append(n_calls(work))
        assert all(map(is_idle, idle)) and not is_idle(optimizer)
    assert counts[1] == counts[0]


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
def test_optimizers_of_the_same_parameters_cost_nothing(cls: type) -> None:
    """While another one steps them; one that steps again is looked at again."""
    counts = []
    for n_idle in (0, N_IDLE):
        net, optimizer = linear()
        idle = [cls(net.parameters(), lr=0.1) for _ in range(n_idle)]
        train(net, optimizer, 40)
        counts.append(n_calls(lambda n=net, o=optimizer: train(n, o, 5)))
        assert all(map(is_idle, idle)) and not is_idle(optimizer)
    assert counts[1] == counts[0]
    train(net, idle[0], 20)
    assert not is_idle(idle[0]) and is_idle(optimizer)
    assert None not in losses_of(idle[0])[1:]


@pytest.mark.parametrize("more", [0, 1])
def test_parameters_that_nobody_else_steps_stay_looked_at(more: int) -> None:
    """Many passes go by between its steps, whose losses another one steps by."""
    net, optimizer = linear()
    own = [nn.Parameter(torch.ones(3)) for _ in range(more)]
    other = optim.SGD([*net.parameters(), *own][more - 1 :], lr=0.1)
    train(net, other, 20)
    assert is_idle(optimizer) == (more == 1)


def trained(checks: bool, n_alone: int, freezes: bool = False) -> tuple[Any, Any]:
    """An optimizer that waits while another one trains, and then goes on."""
    torch.manual_seed(3)
    (net, optimizer), (other, of_other) = linear(lr=1e-3), linear()
    train(net, optimizer, 3)
    backward(net, 10)  # by which nobody steps
    net.zero_grad()
    net.requires_grad_(not freezes)
    train(other, of_other, n_alone)
    net.requires_grad_(True)
    if checks:
        assert is_idle(optimizer)
    train(net, optimizer, 20)
    assert not is_idle(optimizer)
    return net, optimizer


def test_waiting_changes_no_bit() -> None:
    """Idle or not, it has the same losses and makes the same steps."""
    (a, of_a), (b, of_b) = trained(False, 2), trained(True, 50)
    assert losses_of(of_a) == losses_of(of_b)
    assert all(map(torch.equal, a.parameters(), b.parameters()))
    assert report(of_a).multiplier > 1.5


def test_parameters_that_were_frozen_meanwhile() -> None:
    """Hooks do not tell of these; the first step has no loss, all others have."""
    _, optimizer = trained(True, 50, freezes=True)
    assert report(optimizer).mode == "loss"
    assert all(loss is not None for loss in losses_of(optimizer)[4:])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_reach_idle_optimizers(reentrant: bool) -> None:
    net, optimizer = idle_one()
    assert is_idle(optimizer)
    x = torch.randn(4, next(net.parameters()).shape[1], requires_grad=True)
    loss = checkpoint(net, x, use_reentrant=reentrant).square().mean()
    loss.backward()
    optimizer.step()
    assert losses_of(optimizer) == [loss.item()]


def test_a_failed_pass_reaches_nobody() -> None:
    """What an idle optimizer's loss is comes from the pass that succeeds."""
    net, optimizer = idle_one()
    x = torch.randn(4, next(net.parameters()).shape[1])
    for fails in (True, False):
        optimizer.zero_grad()
        seen = net(x)
        loss = seen.square().mean()
        if fails:
            seen.register_hook(lambda grad: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                loss.backward()
        else:
            loss.backward()
    optimizer.step()
    assert losses_of(optimizer) == [loss.item()]


def test_other_threads_do_not_wake_and_may_take_over() -> None:
    net, optimizer = idle_one()
    thread = threading.Thread(target=train, args=(net, optimizer, 5))
    thread.start()
    thread.join()
    assert not is_idle(optimizer)
    assert [loss is None for loss in losses_of(optimizer)] == [True] + [False] * 4


def test_idle_optimizers_are_freed_and_copied() -> None:
    net, optimizer = idle_one()
    assert is_idle(optimizer)
    copied = copy.deepcopy((net, optimizer))
    train(*copied, 1)
    parameter = weakref.ref(next(net.parameters()))
    tuner = weakref.ref(registry.tuner_of(optimizer))
    del net, optimizer
    gc.collect()
    assert parameter() is None and tuner() is None


def test_no_hook_is_left_behind() -> None:
    net, optimizer = idle_one()
    hooks = [
        handle.hooks_dict_ref() for _, handle in registry.tuner_of(optimizer).hooks
    ]
    assert len(hooks) == len(list(net.parameters())) and all(hooks)
    ptac.disable()
    assert not any(hooks)

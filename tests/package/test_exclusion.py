"""``ptac.exclude(module)``: one module runs stock, the others do not."""

import copy
import pickle
import threading

import pytest
import switching
import torch
from torch import nn

import pai_torchacc as ptac


def model() -> nn.Sequential:
    return nn.Sequential(nn.MaxPool2d(2), nn.Sequential(nn.MaxPool2d(2)))


def pooled(net: nn.Module) -> int:
    """Accelerated calls of max pooling in one forward pass."""
    hits = switching.Hits("max_pool2d")
    net(torch.randn(4, 8, 32, 32))
    return hits.accelerated


def test_one_module_runs_stock_until_removed() -> None:
    net = model()
    with switching.accelerated("max_pool2d"):
        assert pooled(net) == 2
        excluded = ptac.exclude(net[1])
        assert pooled(net) == 1
        excluded.remove()
        excluded.remove()
        assert pooled(net) == 2
        with ptac.exclude(net):
            assert pooled(net) == 0
        assert pooled(net) == 2


def test_of_a_fused_chain() -> None:
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    x = torch.randn(512, 512)
    hits = switching.Hits("linear_act")
    with switching.accelerated("linear_act"), torch.no_grad(), ptac.exclude(net[0]):
        ours = net[0](x)
        assert hits.accelerated == 0
        net(x)
        assert hits.accelerated == 1
    assert torch.equal(ours, nn.functional.linear(x, net[0].weight, net[0].bias))


def test_an_error_in_the_module_leaves_nothing() -> None:
    net = model()
    net[1].register_forward_hook(lambda *_: 1 / 0)
    with switching.accelerated("max_pool2d"), ptac.exclude(net[1]):
        with pytest.raises(ZeroDivisionError):
            net(torch.randn(4, 8, 32, 32))
        assert pooled(nn.MaxPool2d(2)) == 1
        with pytest.raises(RuntimeError):
            net[1](torch.randn(3, 3, 1, 1))
        assert pooled(nn.MaxPool2d(2)) == 1


def test_other_threads_are_not_touched() -> None:
    net, inside, done = model(), threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        inside.set()
        assert done.wait(60)

    net[1].register_forward_hook(wait)
    with switching.accelerated("max_pool2d"), ptac.exclude(net[1]):
        other = threading.Thread(target=net, args=(torch.randn(4, 8, 32, 32),))
        other.start()
        assert inside.wait(60)
        count = pooled(nn.MaxPool2d(2))
        done.set()
        other.join()
    assert count == 1


def test_copies_are_excluded_too() -> None:
    net = model()
    ptac.exclude(net[1])
    with switching.accelerated("max_pool2d"):
        for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert pooled(copied) == 1


def test_only_modules() -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, not str"):
        ptac.exclude("layer1")


class _Interrupted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt


@pytest.mark.parametrize("after", ["remove", "enable", "another"])
def test_an_interrupted_forward_pass_is_over(after: str) -> None:
    net = nn.Sequential(_Interrupted())
    other = nn.MaxPool2d(2)
    with switching.accelerated("max_pool2d"):
        excluded, others = ptac.exclude(net), ptac.exclude(other)
        with pytest.raises(KeyboardInterrupt):
            net(torch.ones(1))
        assert pooled(nn.MaxPool2d(2)) == 0
        if after == "remove":
            excluded.remove()
        elif after == "enable":
            ptac.enable_operator_fusion()
        else:
            assert pooled(other) == 0
        others.remove()
        assert pooled(nn.MaxPool2d(2)) == 1
        excluded.remove()


def test_removed_while_the_module_runs() -> None:
    net = nn.Sequential(nn.MaxPool2d(2))
    with switching.accelerated("max_pool2d"):
        excluded = ptac.exclude(net)
        net[0].register_forward_hook(lambda *_: excluded.remove())
        assert pooled(net) == 0
        assert pooled(net) == 1


def test_two_exclusions_of_one_module() -> None:
    net = nn.Sequential(nn.MaxPool2d(2), nn.MaxPool2d(2))
    with switching.accelerated("max_pool2d"):
        first, second = ptac.exclude(net), ptac.exclude(net)
        hook = net[0].register_forward_hook(lambda *_: first.remove())
        assert pooled(net) == 0
        hook.remove()
        assert pooled(net) == 0
        net[0].register_forward_hook(lambda *_: ptac.exclude(net).remove())
        assert pooled(net) == 0
        net[0].register_forward_hook(lambda *_: second.remove())
        assert pooled(net) == 1


@pytest.mark.parametrize("by", ["one", "two"])
def test_removed_while_another_thread_runs_the_module(by: str) -> None:
    net, inside, go_on = model(), threading.Event(), threading.Event()
    counts = []

    def wait(*_: object) -> None:
        inside.set()
        assert go_on.wait(60)

    def run() -> None:
        counts.append(pooled(net))

    net[1].register_forward_pre_hook(wait)
    with switching.accelerated("max_pool2d"):
        whole = ptac.exclude(net)
        excluded = ptac.exclude(net[1])
        other = threading.Thread(target=run)
        other.start()
        assert inside.wait(60)
        excluded.remove()
        if by == "two":
            whole.remove()
        go_on.set()
        other.join()
        assert counts == [0 if by == "one" else 1]
        assert pooled(net[1]) == 1


def test_copied_while_it_runs() -> None:
    net, copies = model(), []

    def copy_it(*_: object) -> None:
        hook.remove()
        copies.append(copy.deepcopy(net))

    hook = net[1].register_forward_hook(copy_it)
    with switching.accelerated("max_pool2d"):
        with ptac.exclude(net):
            assert pooled(net) == 0
        assert pooled(net) == 2
        assert pooled(copies[0]) == 0
        assert pooled(nn.MaxPool2d(2)) == 1

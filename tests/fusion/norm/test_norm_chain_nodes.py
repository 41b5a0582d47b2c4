"""A BatchNorm2d in training and its activation as one node of autograd's graph."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import contract
import internals
import pytest
import switching
import torch
from norm_training import ACTIVATIONS, OPS, agree, both, chain, trained
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac
from pai_torchacc import _C


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_second_derivatives(act: str) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        net = chain(12, act).to(dtype)
        x = contract.draw(6, 12, 5, 5, dtype=dtype).requires_grad_()
        wanted = [x, *net.parameters()]
        y = net(x)
        grad = contract.draw(*y.shape, dtype=dtype).requires_grad_()
        first = torch.autograd.grad(y, wanted, grad, create_graph=True)
        loss = sum((g * torch.cos(3 * g)).sum() for g in first)
        second = torch.autograd.grad(loss, [*wanted, grad], allow_unused=True)
        names = ("x", "weight", "bias", "grad")
        found = {f"second of {n}": g for n, g in zip(names, second, strict=True)}
        firsts = {f"first of {n}": g for n, g in zip(names, first, strict=False)}
        return {n: g for n, g in (found | firsts).items() if g is not None}

    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        contract.hold(case)
        assert hits[0].accelerated
        assert set(hits[1].forwarded) == {"gradient not supported"}


def test_second_derivatives_are_of_the_values_that_forward_had() -> None:
    def program() -> Any:
        net = chain(5, "silu_")
        x = torch.randn(4, 5, 6, 6, requires_grad=True)
        y = net(x)
        with torch.no_grad():
            net[0].bias.add_(1)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        wanted = [x, *net.parameters()]
        return first, torch.autograd.grad(first.square().sum(), wanted)

    agree(program, 1, 0)


def test_changes_between_forward_and_backward() -> None:
    def program(change: Callable[[nn.Sequential, Tensor], Any], act: str) -> Any:
        net = chain(6, act)
        leaf = torch.randn(4, 6, 5, 5, requires_grad=True)
        x = leaf * 1
        y = net(x)
        with torch.no_grad():
            change(net, x)
        try:
            y.sum().backward()
        except RuntimeError as error:
            return str(error)
        return leaf.grad, [p.grad for p in net.parameters()]

    def in_place(net: nn.Sequential, x: Tensor) -> None:
        x.add_(1)

    def of_weight(net: nn.Sequential, x: Tensor) -> None:
        net[0].weight.add_(1)

    def of_bias(net: nn.Sequential, x: Tensor) -> None:
        net[0].bias.add_(1)

    def weight_data(net: nn.Sequential, x: Tensor) -> None:
        net[0].weight.data = 2 * net[0].weight.data

    def x_data(net: nn.Sequential, x: Tensor) -> None:
        x.data = torch.randn(4, 6, 5, 10)[..., ::2]

    for change, backward in (
        (in_place, 0),
        (of_weight, 0),
        (of_bias, 1),
        (weight_data, 1),
    ):
        for act in ACTIVATIONS:
            expected, result = both(
                lambda change=change, act=act: program(change, act), 1, backward
            )
            assert isinstance(result, str) == isinstance(expected, str)
            if isinstance(result, str):
                assert result == expected
            else:
                torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    with switching.accelerated(*OPS):
        assert not isinstance(program(x_data, "relu6"), str)
        assert "dtype" not in switching.hits(OPS[1]).forwarded


def test_backward_twice() -> None:
    def program() -> Any:
        net = chain(6, "silu_")
        x = torch.randn(4, 6, 5, 5, requires_grad=True)
        y = net(x)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        with pytest.raises(RuntimeError, match="a second time"):
            y.sum().backward()
        return x.grad, [p.grad for p in net.parameters()]

    agree(program, 1, 2)


def test_batched_gradients() -> None:
    def program() -> Any:
        net = chain(3, "hardswish")
        x = torch.randn(4, 3, 5, 5, requires_grad=True)
        y = net(x)
        grads = torch.randn(2, *y.shape)
        return torch.autograd.grad(y, x, grads, is_grads_batched=True)

    agree(program, 1, 0)


def test_hooks() -> None:
    def program() -> Any:
        seen: list[Any] = []
        net = chain(6)
        x = torch.randn(4, 6, 5, 5, requires_grad=True)
        y = net(x)
        x.register_hook(lambda g: 2 * g)
        y.register_hook(lambda g: 3 * g)
        net[0].weight.register_hook(lambda g: seen.append(g.clone()))
        y.sum().backward()
        return x.grad, [p.grad for p in net.parameters()], seen

    agree(program)

    def listened(which: int, name: str) -> Any:
        seen: list[Any] = []
        net = chain(6)
        getattr(net[which], name)(lambda *args: seen.append(len(args)))
        return trained(net, torch.randn(4, 6, 5, 5)), seen

    for which in (0, 1):
        for name in (
            "register_forward_hook",
            "register_forward_pre_hook",
            "register_full_backward_hook",
        ):
            agree(lambda w=which, n=name: listened(w, n), 0)


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("inplace", [True, False])
def test_nodes_have_torchs_names(act: str, inplace: bool) -> None:
    def program() -> Any:
        net = chain(6, act)
        net[1].inplace = inplace
        y = net(torch.randn(2, 6, 5, 5))
        assert y.is_leaf is False
        assert y._base is None
        return y.grad_fn.name(), repr(y).partition("grad")[2]

    expected, result = both(program, 1, 0)
    assert result == expected


def test_modules_that_are_called() -> None:
    x = torch.randn(4, 12, 5, 5)

    def unlike(change: Callable[[nn.Sequential], Any]) -> nn.Sequential:
        net = chain(12)
        change(net)
        return net

    for i, net in enumerate(
        (
            nn.Sequential(nn.BatchNorm2d(12)),
            nn.Sequential(nn.BatchNorm2d(12), nn.LeakyReLU()),
            nn.Sequential(nn.BatchNorm2d(12), nn.Hardtanh(0.0, 6.0)),
            nn.Sequential(nn.InstanceNorm2d(12), nn.ReLU()),
            unlike(lambda net: setattr(net[1], "max_val", 4.0)),
            unlike(lambda net: setattr(net[0], "running_var", None)),
            unlike(lambda net: net[0].running_mean.requires_grad_()),
            unlike(lambda net: setattr(net[0], "training", 1)),
        )
    ):

        def program(net: nn.Sequential = net) -> Any:
            try:
                return trained(copy.deepcopy(net), x)
            except (RuntimeError, ValueError) as error:
                return str(error)

        expected, result = both(program, 0)
        assert type(result) is type(expected), i
        if isinstance(result, str):
            assert result == expected, i
        else:
            torch.testing.assert_close(result, expected)
    with torch.no_grad():
        agree(lambda: chain(12)(x), 0)


def test_errors_are_torchs() -> None:
    for x in (
        torch.randn(3, 12, 5),
        torch.randn(3, 7, 5, 5),
        torch.randn(1, 12, 1, 1),
        torch.randn(0, 12, 5, 5),
    ):
        outcomes = []
        for on in (False, True):
            net = chain(12)
            error = None
            with switching.accelerated(*OPS) if on else ptac.disabled():
                try:
                    net(x)
                except (ValueError, RuntimeError) as raised:
                    error = type(raised), str(raised)
            outcomes.append((error, int(net[0].num_batches_tracked)))
        assert outcomes[0] == outcomes[1]


def test_toggling_and_modes() -> None:
    def program() -> Any:
        net = chain(6, "silu_")
        x = torch.randn(4, 6, 5, 5)
        seen = []
        for training in (True, False, True, False):
            net.train(training)
            seen += trained(net, x)
        return seen

    agree(program, 2)
    net, x = chain(6), torch.randn(4, 6, 5, 5, requires_grad=True)
    twin = copy.deepcopy(net)
    expected = trained(twin, x)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        y = net(x)
        ptac.disable()
        y.backward(torch.cos(3 * y.detach()))
        assert [h.accelerated for h in hits] == [1, 0]
    torch.testing.assert_close([y.detach(), x.grad], expected[:2])
    agree(_autocast, 0)
    with switching.accelerated(*OPS):
        traced = torch.jit.trace(chain(6), x, check_trace=False)
    assert "hardtanh" in str(traced.inlined_graph)


def _autocast() -> Any:
    net, x = chain(6), torch.randn(4, 6, 5, 5)
    with torch.autocast("cpu"):
        y = net(x)
    y.sum().backward()
    return y.detach(), [p.grad for p in net.parameters()]


def test_excluded_gradients_take_forward_with_them() -> None:
    net, x = chain(6), torch.randn(4, 6, 5, 5)
    with switching.accelerated(*OPS, include=OPS, exclude=OPS[1:]):
        hits = switching.hits(OPS[0])
        net(x)
        assert hits.accelerated == 0


def test_transforms() -> None:
    net, x = chain(6, "hardswish"), torch.randn(4, 6, 5, 5)
    net[0].track_running_stats = False
    params = dict(net.named_parameters())

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(net, params, (x,))
        return y.square().sum()

    agree(lambda: torch.func.grad(loss)(params, x), 0)
    agree(lambda: torch.func.vmap(net)(torch.stack([x, 2 * x])).detach(), 0)
    agree(lambda: torch.func.jvp(net, (x,), (x.cos(),)), 0)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant: bool) -> None:
    def program() -> Any:
        net = nn.Sequential(nn.Conv2d(6, 6, 1), *chain(6, "silu_"))
        x = torch.randn(4, 6, 5, 5, requires_grad=True)
        y = checkpoint(net, x, use_reentrant=reentrant)
        y.square().sum().backward()
        return y.detach(), x.grad, [p.grad for p in net.parameters()], [*net.buffers()]

    agree(program, int(reentrant))


def test_rows_that_fail() -> None:
    net, x = chain(6), torch.randn(4, 6, 5, 5)
    expected = trained(copy.deepcopy(net), x)
    for op in OPS:
        with switching.accelerated(*OPS):
            internals.inject_failure(op)
            try:
                result = trained(copy.deepcopy(net), x)
                hits = switching.hits(OPS[0])
                again = trained(copy.deepcopy(net), x)
                assert hits.accelerated == 0  # where the gradient's row is quarantined
            finally:
                internals.reset_quarantine()
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-5)


def test_extension_refuses_what_is_not_a_gradient() -> None:
    x, numbers = torch.randn(2, 3, 4, 4), torch.rand(4, 3)
    wants = True, True, True
    with switching.accelerated(*OPS):
        row = switching.best_row(OPS[0])
        assert _C.batch_norm_act_backward(row, 1, x, x, numbers, None, wants)
        for grad, given, of, weight in (
            (x.double(), x, numbers, None),
            (x[:1], x, numbers, None),
            (x, x[..., ::2], numbers, None),
            (x, x, numbers[:3], None),
            (x, x, numbers.t().contiguous().t(), None),
            (x, x, numbers, torch.rand(2)),
        ):
            done = _C.batch_norm_act_backward(row, 1, grad, given, of, weight, wants)
            assert done is None
        with pytest.raises(ValueError, match="activation"):
            _C.batch_norm_act_backward(row, 2, x, x, numbers, None, wants)
        with pytest.raises(TypeError, match="three"):
            _C.batch_norm_act_backward(row, 1, x, x, numbers, None, (True,))


def test_threads_of_a_program() -> None:
    torch.manual_seed(0)
    nets, x = [chain(6, act) for act in ACTIVATIONS], torch.randn(4, 6, 5, 5)
    expected = [trained(copy.deepcopy(net), x, 5) for net in nets]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        found[i] = trained(nets[i], x, 5)

    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[1])
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(nets))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert hits.accelerated == 5 * len(nets)
    for i, of_stock in enumerate(expected):
        torch.testing.assert_close(found[i], of_stock, rtol=1e-4, atol=1e-5)

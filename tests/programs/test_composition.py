"""Autograd in all its ways, transforms and hooks work with every switch on."""

from __future__ import annotations

from typing import Any

import pytest
import switching
import torch
import torch.nn.functional as F
from composing import TRAINING, Cases, batch, check, gradients, model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

case = Cases()


@case(*TRAINING, "sgd_step")
def plain_training() -> Any:
    net, (x, y) = model(), batch()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    return list(net.parameters())


@case("max_pool2d")
def autocast() -> Any:
    net, (x, y) = model(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        out = net(x)
        loss = F.cross_entropy(out, y)
    loss.backward()
    return out, loss, gradients(net)


@case("conv2d", "linear_act", "cross_entropy")
def inference_mode() -> Any:
    net, (x, y) = model(), batch()
    with torch.inference_mode():
        out = net(x)
        assert out.is_inference()
        return out.clone(), F.cross_entropy(out, y).clone()


@case("conv2d", "linear_act", "cross_entropy")
def no_grad() -> Any:
    net, (x, y) = model(), batch()
    with torch.no_grad():
        return net(x), F.cross_entropy(net(x), y)


@case("max_pool2d", "linear_act")
def evaluation_with_gradient_of_the_input() -> Any:
    net, (x, _) = model().requires_grad_(False), batch()
    x.requires_grad_()
    net(x).square().sum().backward()
    return x.grad


@case()
def vmap() -> Any:
    net, (x, _) = model(), batch()
    return torch.func.vmap(net)(x.reshape(4, 4, 1, 8, 8))


@case()
def per_sample_gradients() -> Any:
    net, (x, y) = model(), batch()
    params = {k: v.detach() for k, v in net.named_parameters()}

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = torch.func.functional_call(net, params, (x[None],))
        return F.cross_entropy(out, y[None])

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)


@case()
def func_grad() -> Any:
    net, (x, y) = model(), batch()
    return torch.func.grad(lambda x: F.cross_entropy(net(x), y))(x)


@case()
def func_jvp() -> Any:
    net, (x, y) = model(), batch()
    return torch.func.jvp(
        lambda x: F.cross_entropy(net(x), y), (x,), (torch.ones_like(x),)
    )


@case("max_pool2d", "linear_act", "cross_entropy")
def double_backward() -> Any:
    net, (x, y) = model(), batch()
    x.requires_grad_()
    loss = F.cross_entropy(net(x), y)
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    g.square().sum().backward()
    return g, x.grad, [p.grad for p in net.parameters()]


@case(*TRAINING)
def backward_twice() -> Any:
    net, (x, y) = model(), batch()
    loss = F.cross_entropy(net(x), y)
    loss.backward(retain_graph=True)
    first = gradients(net)
    loss.backward()
    return first, gradients(net)


@case(*TRAINING)
def checkpointed() -> Any:
    net, (x, y) = model(), batch()
    results = []
    for reentrant in (False, True):
        x.requires_grad_(reentrant)
        out = checkpoint(net, x, use_reentrant=reentrant)
        F.cross_entropy(out, y).backward()
        results.append(gradients(net))
    return results, x.grad


@case("max_pool2d", "cross_entropy")
def module_hooks() -> Any:
    net, (x, y) = model(), batch()
    seen: list[Any] = []
    for module in net:
        module.register_forward_hook(lambda m, i, o: seen.append(o.detach().clone()))
        module.register_full_backward_hook(lambda m, i, o: seen.append(o[0].clone()))
    F.cross_entropy(net(x), y).backward()
    assert len(seen) == 2 * len(net)
    return seen, gradients(net)


@case(*TRAINING)
def tensor_hooks() -> Any:
    """Between parameters torch promises no order."""
    net, (x, y) = model(), batch()
    seen: dict[str, list[Tensor]] = {}
    for name, p in net.named_parameters():
        mine = seen.setdefault(name, [])
        p.register_hook(lambda g, mine=mine: mine.append(g.clone()))
        p.register_post_accumulate_grad_hook(
            lambda p, mine=mine: mine.append(p.grad.clone())
        )
    out = net(x)
    out.register_hook(lambda g: g * 2)
    F.cross_entropy(out, y).backward()
    return seen, gradients(net)


@case("max_pool2d", "max_pool2d_backward")
def saved_tensors_hooks() -> Any:
    net, (x, y) = model(), batch()
    packed: list[int] = []

    def pack(t: Tensor) -> Any:
        packed.append(t.numel())
        return t.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = F.cross_entropy(net(x), y)
    loss.backward()
    assert packed
    return gradients(net)


@case("max_pool2d", "max_pool2d_backward")
def saved_on_cpu() -> Any:
    net, (x, y) = model(), batch()
    with torch.autograd.graph.save_on_cpu():
        loss = F.cross_entropy(net(x), y)
    loss.backward()
    return gradients(net)


@case(*TRAINING)
def anomaly_mode() -> Any:
    net, (x, y) = model(), batch()
    with torch.autograd.detect_anomaly(check_nan=True):
        F.cross_entropy(net(x), y).backward()
    return gradients(net)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", case)
def test_composes(name: str) -> None:
    check(*case[name])


def test_stale_graphs_are_noticed() -> None:
    """Writing over what a node has saved is torch's own error."""
    with switching.accelerated():
        w = nn.Parameter(torch.randn(16, 8))
        layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        layers[0].weight = w
        y = layers(torch.randn(4, 8, requires_grad=True))
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_results_do_not_alias_what_is_saved() -> None:
    """In-place consumers of a result: the gradient is right, or an error comes."""

    def program() -> Any:
        net, (x, _) = model(), batch()
        y = net(x)
        y *= 2
        y.sum().backward()
        return gradients(net)

    stock = program()
    with switching.accelerated():
        ours = program()
    torch.testing.assert_close(ours, stock)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", ["network", "Linear", "cross_entropy"])
def test_forward_mode(name: str, needs_grad: bool) -> None:
    """Tangents show in no key set; losing them would be silent."""
    net, (x, y) = model(), batch()
    x.requires_grad_(needs_grad)
    net.requires_grad_(needs_grad)
    programs = {
        "network": net,
        "Linear": nn.Linear(64, 32).requires_grad_(needs_grad),
        "cross_entropy": lambda x: F.cross_entropy(x.flatten(1), y),
    }
    if name == "Linear":
        x = x.detach().flatten(1).requires_grad_(needs_grad)

    def program() -> Any:
        ad = torch.autograd.forward_ad
        with ad.dual_level():
            dual = ad.make_dual(x, torch.ones_like(x))
            results = ad.unpack_dual(programs[name](dual))
            assert results.tangent is not None
            return [t.detach() for t in results]

    check(program, ())
    with switching.accelerated():
        hits = switching.hits("linear_act")
        nn.Linear(64, 32)(x.flatten(1))
        assert hits.accelerated == 1, "after the level, as ever"

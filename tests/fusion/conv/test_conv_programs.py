"""What programs do with networks of convolutions, ours like stock's.

They are copied, stored, checkpointed, hooked into, trained against each other, and put
into another layout or precision.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from convnets import (
    FAMILIES,
    OPS,
    allowed,
    basic_blocks,
    conv,
    images,
    rms,
    smoothed,
    vgg,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac


def trained(net: nn.Module, steps: int = 2) -> nn.Module:
    """After a few steps from any seed, so that optimizers and norms have a past."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        net(images()).square().mean().backward()
        optimizer.step()
    net.zero_grad()
    return net


def answer(net: nn.Module) -> list[Tensor]:
    """Output and all gradients, of the same images each time."""
    torch.manual_seed(1)
    x = images()
    y = net(x)
    parameters = list(net.parameters())
    return [y.detach(), *torch.autograd.grad(y.square().mean(), [x, *parameters])]


def copied(net: nn.Module) -> nn.Module:
    return copy.deepcopy(net)


def pickled(net: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(net))


def loaded(net: nn.Module) -> nn.Module:
    other = basic_blocks()
    other.load_state_dict(net.state_dict())
    return other


def assigned(net: nn.Module) -> nn.Module:
    with torch.device("meta"):
        other = basic_blocks()
    other.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)
    return other


@pytest.mark.parametrize("copy_of", [copied, pickled, loaded, assigned])
def test_copies_give_the_same_bits(
    copy_of: Callable[[nn.Module], nn.Module],
) -> None:
    with switching.accelerated(*OPS):
        net = trained(basic_blocks())
        copied = copy_of(net)
        hits = switching.hits("conv2d")
        contract.exactly(answer(copied), answer(net))
        assert hits.accelerated == 2 * FAMILIES["basic_blocks"].served


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(use_reentrant: bool) -> None:
    """What is convolved again in backward has the same bits."""
    inner, last = nn.Sequential(*vgg()[:5]), conv(16, 8)

    def run(middle: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        x = images()
        y = last(middle(x))
        y.backward(torch.randn(y.shape))
        parameters = [*inner.parameters(), *last.parameters()]
        found = [y.detach(), x.grad, *(p.grad for p in parameters)]
        inner.zero_grad()
        last.zero_grad()
        return found

    with switching.accelerated(*OPS):
        expected = run(inner)
        forward, backward = map(switching.hits, OPS)
        ours = run(lambda x: checkpoint(inner, x, use_reentrant=use_reentrant))
        assert forward.accelerated == 3 + 2
        assert backward.accelerated == 6
    contract.exactly(ours, expected)


def test_graphs_that_are_kept() -> None:
    with switching.accelerated(*OPS):
        torch.manual_seed(0)
        net, x = vgg(), images()
        hits = switching.hits("conv2d_backward")
        y = net(x).square().sum()
        y.backward(retain_graph=True)
        once = [x.grad.clone(), *(p.grad.clone() for p in net.parameters())]
        y.backward()
        assert hits.accelerated == 2 * 8
    twice = [x.grad, *(p.grad for p in net.parameters())]
    contract.exactly(twice, [2 * g for g in once])


def test_gradients_that_are_accumulated() -> None:
    """Over parts of a batch, into .grad that is there already, is over the batch."""

    def program(n_parts: int, dtype: torch.dtype) -> dict[str, Tensor]:
        torch.manual_seed(0)
        net, x = smoothed(vgg()).to(dtype), torch.randn(8, 3, 16, 16).to(dtype)
        for part in x.chunk(n_parts):
            net(part).square().sum().backward()
        return {name: p.grad for name, p in net.named_parameters()}

    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d_backward")
        ours = program(4, torch.float32)
        assert hits.accelerated == 4 * (2 * 4 - 1)
    stock, exact = program(4, torch.float32), program(1, torch.float64)
    for name, truth in exact.items():
        assert rms(ours[name] - truth) <= allowed(stock[name], truth), name


def generator() -> nn.Module:
    return nn.Sequential(
        *(nn.ConvTranspose2d(8, 32, 4), nn.SiLU()),
        *(nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.SiLU()),
        *(nn.ConvTranspose2d(16, 16, 3, padding=1), nn.SiLU()),
        *(conv(16, 1), nn.Tanh()),
    )


def discriminator() -> nn.Module:
    return nn.Sequential(
        *(conv(1, 16), nn.SiLU(), conv(16, 24, stride=2), nn.SiLU()),
        *(conv(24, 24), nn.SiLU(), nn.Flatten(), nn.Linear(384, 1)),
    )


def adversaries(steps: int, dtype: torch.dtype) -> list[Tensor]:
    """Two networks that learn from each other, each by its own optimizer."""
    torch.manual_seed(0)
    draws, judges = generator().to(dtype), discriminator().to(dtype)
    two = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (draws, judges)]
    for _ in range(steps):
        noise, real = torch.randn(6, 8, 1, 1), torch.randn(6, 1, 8, 8).sign()
        drawn = draws(noise.to(dtype))
        two[1].zero_grad()
        scores = judges(torch.cat([real.to(dtype), drawn.detach()]))
        wanted = torch.ones(6, 1, dtype=dtype)
        truth = torch.cat([wanted, 0 * wanted])
        F.binary_cross_entropy_with_logits(scores, truth).backward()
        two[1].step()
        two[0].zero_grad()
        F.binary_cross_entropy_with_logits(judges(drawn), wanted).backward()
        two[0].step()
    return [p.detach() for net in (draws, judges) for p in net.parameters()]


def test_two_networks_with_two_optimizers() -> None:
    steps = 4
    with switching.accelerated(*OPS):
        forward, backward = map(switching.hits, OPS)
        ours = adversaries(steps, torch.float32)
        # Each step asks the generator once and its judge twice.
        # Its last layer leaves one channel of many, which is stock's.
        assert forward.accelerated == 5 * steps
        assert forward.forwarded == {"shape": 5 * steps}
        assert backward.accelerated == 9 * steps
        assert backward.forwarded == {"shape": 9 * steps}
    stock = adversaries(steps, torch.float32)
    exact = adversaries(steps, torch.float64)
    for mine, theirs, truth in zip(ours, stock, exact, strict=True):
        assert rms(mine - truth) <= allowed(theirs, truth)


def heard(net: nn.Sequential, x: Tensor) -> list[Any]:
    """What hooks of each kind are given, in order."""
    found: list[Any] = []

    def hear(kind: str) -> Callable[..., None]:
        def hook(module: nn.Module, *given: Any) -> None:
            parts = [[p] if isinstance(p, Tensor) else p for p in given]
            tensors = [t for part in parts for t in part]
            shapes = [None if t is None else tuple(t.shape) for t in tensors]
            found.append((kind, type(module).__name__, shapes))

        return hook

    for layer in net:
        layer.register_forward_pre_hook(hear("before forward"))
        layer.register_forward_hook(hear("forward"))
        layer.register_full_backward_pre_hook(hear("before backward"))
        layer.register_full_backward_hook(hear("backward"))
    net(x).square().sum().backward()
    return found


def test_hooks_hear_what_stocks_do() -> None:
    def program() -> list[Any]:
        torch.manual_seed(0)
        return heard(vgg(), images())

    stock = program()
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d_backward")
        assert program() == stock
        assert hits.accelerated == 8


def test_hooks_may_change_what_passes() -> None:
    def program(dtype: torch.dtype) -> dict[str, Tensor]:
        net, x = conv(20, 24).to(dtype), contract.draw(2, 20, 12, 12, dtype=dtype)
        x.requires_grad_()
        net.register_forward_pre_hook(lambda _, given: (given[0] + 1,))
        net.register_forward_hook(lambda *given: given[2] * 2)
        net.register_full_backward_pre_hook(lambda _, grads: (grads[0] / 2,))
        net.register_full_backward_hook(lambda _, grads, __: (grads[0] * 3,))
        y = net(x)
        y.backward(contract.draw(*y.shape, dtype=dtype))
        return {"y": y, "x": x.grad, "weight": net.weight.grad}

    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d_backward")
        contract.hold(program)
        assert hits.accelerated == 2


def test_channels_last_stays_so() -> None:
    def program() -> list[Tensor]:
        torch.manual_seed(0)
        net = smoothed(basic_blocks()).to(memory_format=torch.channels_last)
        x = torch.randn(4, 3, 16, 16).to(memory_format=torch.channels_last)
        y = net(x.requires_grad_())
        assert y.is_contiguous(memory_format=torch.channels_last)
        y.square().sum().backward()
        return [y.detach(), x.grad, *(p.grad for p in net.parameters())]

    stock = program()
    with switching.accelerated(*OPS):
        forward, backward = map(switching.hits, OPS)
        ours = program()
        assert (forward.accelerated, forward.forwarded) == (4, {"shape": 2})
        assert (backward.accelerated, backward.forwarded) == (8, {"shape": 4})
    for mine, theirs in zip(ours, stock, strict=True):
        assert mine.stride() == theirs.stride()
        assert rms(mine - theirs) <= 1e-4 * rms(theirs)


def test_autocast_is_stocks_and_what_is_around_it_ours() -> None:
    first, inner = conv(3, 16), vgg()[2:-1]

    def program() -> list[Tensor]:
        torch.manual_seed(0)
        x = images()
        y = first(x)
        with torch.autocast("cpu", torch.bfloat16):
            z = inner(y)
        assert z.dtype == torch.bfloat16
        z.float().square().sum().backward()
        grads = [p.grad for p in [*first.parameters(), *inner.parameters()]]
        first.zero_grad()
        inner.zero_grad()
        return [y.detach(), z.detach(), x.grad, *grads]

    stock = program()
    with switching.accelerated(*OPS):
        forward, backward = map(switching.hits, OPS)
        ours = program()
        assert forward.accelerated == 1
        assert forward.forwarded == {"dtype": 3}
        assert backward.accelerated == 2
        assert backward.forwarded == {"dtype": 6}
    # A rounding of the first layer's may be one of bfloat16 behind it.
    for mine, theirs in zip(ours, stock, strict=True):
        assert mine.dtype == theirs.dtype
        assert rms(mine - theirs) <= 2 * torch.finfo(torch.bfloat16).eps * rms(theirs)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_switch_and_shadow_checks(name: str) -> None:
    """The memory switches change no bits, and a check against stock finds nothing."""
    net = FAMILIES[name].make()
    with switching.accelerated(*OPS):
        expected = answer(net)
    every = ("operator_fusion", "memory_pool", "memory_reuse")
    with ptac.enable(*every, include=OPS), switching.pins(OPS):
        contract.exactly(answer(net), expected)
    with switching.accelerated(*OPS, verify=1):
        hits = [switching.hits(op) for op in OPS]
        contract.exactly(answer(net), expected)
        assert [h.accelerated for h in hits] == [
            n * FAMILIES[name].served for n in (1, 2)
        ]
        assert [h.failed for h in hits] == [0, 0]


def moved(t: Tensor, n: int) -> Tensor:
    """A copy that begins so many elements behind an aligned address."""
    flat = torch.empty(t.numel() + n)
    flat[n:] = t.flatten()
    return flat[n:].view(t.shape)


@pytest.mark.parametrize("row", sorted(switching.runnable_rows("conv2d")))
def test_addresses_do_not_matter(row: str) -> None:
    size, c = (5 if "5x5" in row else 3), (3 if "direct" in row else 20)
    n_images = 2
    if row == "blas":  # an image a thread
        size, n_images = 1, torch.get_num_threads()
    if "packed" in row:
        size = 1
    drawn = [torch.randn(n_images, c, 15, 31), torch.randn(24, c, size, size)]
    drawn += [torch.randn(24), torch.randn(n_images, 24, 15, 31)]

    def results(n: int) -> list[Tensor]:
        *inputs, grad = [moved(t, n).requires_grad_() for t in drawn]
        y = F.conv2d(*inputs, padding=size // 2)
        return [y.detach(), *torch.autograd.grad(y, inputs, grad)]

    ops = [op for op in OPS if row in switching.runnable_rows(op)]
    with switching.accelerated(*ops, row=row):
        hits = switching.hits("conv2d")
        expected = results(0)
        for n in (1, 2, 3, 5, 9):
            contract.exactly(results(n), expected)
        assert hits.accelerated == 6

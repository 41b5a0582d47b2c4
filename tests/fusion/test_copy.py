"""Copies between tensors that lie differently, behind whatever makes them."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor, nn

import pai_torchacc as ptac

SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 3e38, -3e38]
SERVED = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16),
)
OTHERS = (torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn)
HAS_NAMES = hasattr(Tensor, "rename")
"""Whether dimensions may have names, as before torch 2.13."""

LAST, LAST_3D = torch.channels_last, torch.channels_last_3d

rows = pytest.mark.parametrize("row", switching.runnable_rows("copy"))


def draw(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(sum(sizes))
    x = torch.randn(sizes) * 1000
    n = min(len(SPECIAL), x.numel()) if dtype.is_floating_point else 0
    x.view(-1)[:n] = torch.tensor(SPECIAL)[:n]
    return x.to(dtype)


def laid_out(rand: random.Random, sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Dimensions in any order, often with gaps."""
    order = rand.sample(range(len(sizes)), len(sizes))
    gaps = [rand.choice((0, 0, 1, 3)) if rand.random() < 0.4 else 0 for _ in order]
    whole = draw(*(sizes[d] + gap for d, gap in zip(order, gaps, strict=True)))
    part = whole.to(dtype)[tuple(slice(sizes[d]) for d in order)]
    return part.permute([order.index(d) for d in range(len(sizes))])


@pytest.mark.parametrize("dtype", SERVED, ids=str)
@rows
def test_any_two_arrangements(row: str, dtype: torch.dtype) -> None:
    """What lies between the elements of the destination stays as it was."""
    rand = random.Random(str(dtype))
    with switching.accelerated("copy", row=row):
        hits = switching.hits("copy")
        for _ in range(100):
            sizes = [rand.choice((1, 2, 3, 4, 5, 8, 9, 17, 40, 70)) for _ in range(4)]
            sizes = sizes[: rand.randint(1, 3 if max(sizes) > 20 else 4)]
            src = laid_out(rand, sizes, dtype)
            if rand.random() < 0.3:
                d = rand.randrange(len(sizes))
                src = src.narrow(d, 0, 1)
                src = src if rand.random() < 0.5 else src.expand(sizes)
            ours = laid_out(rand, sizes, dtype)
            with ptac.disabled():
                whole = ours if ours._base is None else ours._base
                stock_whole = whole.clone()
                stock = stock_whole.as_strided(ours.shape, ours.stride())
                stock.copy_(src)
            before = ours._version
            assert ours.copy_(src) is ours
            assert ours._version == before + 1
            contract.exactly(whole, stock_whole)
        assert hits.accelerated > 20, hits


def shapes_of_models(dtype: torch.dtype) -> list[Callable[[], Tensor]]:
    images, few = draw(2, 24, 9, 10, dtype=dtype), draw(2, 3, 32, 48, dtype=dtype)
    heads, volumes = draw(2, 17, 4, 32, dtype=dtype), draw(2, 9, 4, 5, 6, dtype=dtype)
    windows = draw(2, 14, 14, 6, dtype=dtype).view(2, 2, 7, 2, 7, 6)
    patches = few.view(2, 3, 2, 16, 3, 16)
    last = images.to(memory_format=LAST)
    return [
        lambda: heads.transpose(1, 2).contiguous(),
        lambda: heads.transpose(1, 2).clone(memory_format=torch.contiguous_format),
        lambda: heads.permute(0, 2, 3, 1).contiguous(),
        lambda: heads.permute(0, 2, 3, 1).clone(),
        lambda: images.contiguous(memory_format=LAST),
        lambda: images.to(memory_format=LAST),
        lambda: few.contiguous(memory_format=LAST),
        lambda: few.contiguous(memory_format=LAST).contiguous(),
        lambda: volumes.contiguous(memory_format=LAST_3D),
        lambda: volumes.contiguous(memory_format=LAST_3D).contiguous(),
        last.clone,
        last[:, :9].clone,
        last[:, :9].contiguous,
        lambda: last.flatten(1),
        lambda: heads.view(34, -1).t().contiguous(),
        lambda: windows.permute(0, 1, 3, 2, 4, 5).contiguous(),
        lambda: patches.permute(0, 2, 4, 3, 5, 1).reshape(2, 6, -1),
        lambda: patches.permute(0, 2, 4, 1, 3, 5).reshape(2, 6, -1),
        lambda: images.view(2, 4, 6, 9, 10).transpose(1, 2).reshape(images.shape),
        lambda: images[:, :1].expand(-1, 5, -1, -1).reshape(10, 9, 10),
        lambda: heads[0, 0, 0].expand(40, 32).clone(),
        lambda: heads.T.contiguous() if heads.dim() < 3 else heads.mT.contiguous(),
        lambda: torch.stack(heads.unbind(1)),
        lambda: nn.functional.pad(images, (1, 2, 1, 1)),
        lambda: nn.functional.pad(images, (1, 2, 1, 1), mode="circular"),
        lambda: torch.roll(images, (2, 3), (2, 3)),
        lambda: heads.unfold(1, 5, 2).contiguous(),
        images[:, :, ::2, 1::3].contiguous,
        lambda: images[:0].transpose(1, 2).contiguous(),
        images[0, 0, 0, 0].clone,
    ]


@pytest.mark.parametrize("dtype", (*SERVED, *OTHERS), ids=str)
def test_what_models_do(dtype: torch.dtype) -> None:
    calls = shapes_of_models(dtype)
    stock = [call() for call in calls]
    with switching.accelerated("copy"):
        hits = switching.hits("copy")
        ours = [call() for call in calls]
        if dtype in SERVED:
            assert hits.accelerated > 15, hits
        else:
            assert hits.accelerated == 0, hits
    if dtype is torch.float8_e4m3fn:
        ours, stock = ([y.view(torch.int8) for y in found] for found in (ours, stock))
    contract.exactly(ours, stock)


def turned_with_names(x: Tensor) -> list[Any]:
    y = x.rename("a", "b").t().contiguous()
    return [y.names, y.rename(None)]


def others() -> list[Callable[[], Any]]:
    """Copies that are stock's, and its errors."""
    x = draw(40, 30)
    whole = draw(40, 60)

    def into(to: Tensor, src: Tensor) -> Callable[[], Tensor]:
        """A function that copies into a fresh copy of what ``to`` is part of."""

        def call() -> Tensor:
            base = to if to._base is None else to._base
            fresh = base.clone()
            target = fresh.as_strided(to.shape, to.stride(), to.storage_offset())
            source = src
            if src._base is base:
                source = fresh.as_strided(src.shape, src.stride(), src.storage_offset())
            return target.copy_(source)

        return call

    return [
        into(x, x.double().t().contiguous().t()),
        into(x, x.bfloat16()),
        into(x, x),
        into(x, x.view(30, 40).t()),
        into(whole[:, 1:31], whole[:, :30]),
        into(whole[:, 1::2], whole[:, ::2]),
        into(
            whole.view(-1)[:1600].view(40, 40), whole.view(-1)[:1600].view(40, 40).t()
        ),
        into(x, torch._neg_view(x.t().contiguous().t())),
        into(x, draw(41, 30)),
        into(x, draw(2, 40, 30)),
        into(x, draw(30)[:29]),
        into(x[:0], x[:0]),
        lambda: torch.empty(7, 0, 5).copy_(torch.empty(5, 0, 7).transpose(0, 2)),
        lambda: torch.empty(7, 0, 5).copy_(draw(7, 1, 1)),
        lambda: torch.empty(7, 3, 5).copy_(torch.empty(7, 0, 5)),
        lambda: turned_with_names(x) if HAS_NAMES else None,
        lambda: x[:1].expand(40, 30).copy_(x),
        lambda: whole.as_strided((10, 10), (5, 1)).copy_(draw(10, 10).t()),
        lambda: torch.zeros(30, 40, dtype=torch.complex64).copy_(x.t()),
        lambda: torch.view_as_complex(draw(8, 9, 2)).t().conj().contiguous(),
        lambda: torch.view_as_complex(draw(8, 9, 2)).conj().imag.t().contiguous(),
        lambda: torch._efficientzerotensor((40, 30)).t().clone(),
        lambda: x.to_sparse().clone().to_dense(),
        lambda: torch.zeros(40, 30).copy_(x.to_sparse()),
        lambda: (
            torch.quantize_per_tensor(whole.nan_to_num(), 1.0, 0, torch.qint8)
            .t()
            .contiguous()
            .int_repr()
        ),
        lambda: torch.zeros(40, 30, device="meta").copy_(x).shape,
        lambda: torch.zeros(40, 30).copy_(x.to("meta")),
        lambda: x.mT.to("meta").contiguous().shape,
    ]


@pytest.mark.parametrize("number", range(len(others())))
def test_what_is_stocks(number: int) -> None:
    call = others()[number]

    stock = contract.said(call)
    with switching.accelerated("copy"):
        hits = switching.hits("copy")
        ours = contract.said(call)
        assert not hits.accelerated, hits
    contract.exactly(ours, stock)


def derivatives(x: Tensor) -> list[Any]:
    leaf = x.detach().requires_grad_()
    y = leaf.transpose(1, 2).contiguous()
    found: list[Any] = [y.grad_fn.name(), y.detach()]
    (grad,) = torch.autograd.grad(y.pow(3).sum(), leaf, create_graph=True)
    found += [grad.detach(), *torch.autograd.grad(grad.square().sum(), leaf)]
    target = torch.zeros(x.mT.shape)
    view = target[:]
    view.copy_(leaf.transpose(1, 2))
    found += [view.grad_fn.name(), target.grad_fn.name(), target.detach()]
    found += torch.autograd.grad(target.square().sum(), leaf)
    return found


def test_derivatives() -> None:
    x = torch.linspace(-2, 2, 2 * 40 * 33).view(2, 40, 33)
    stock = derivatives(x)
    with switching.accelerated("copy"):
        hits = switching.hits("copy")
        contract.exactly(derivatives(x), stock)
        assert hits.accelerated >= 3, hits


def test_a_changed_tensor_is_noticed() -> None:
    """Autograd's error for what was saved and then written to."""
    with switching.accelerated("copy"):
        x = torch.ones(40, 40, requires_grad=True)
        y = x * 1
        z = y.square()
        hits = switching.hits("copy")
        with torch.no_grad():
            y.copy_(torch.zeros(40, 40).t())
        assert not hits.failed
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


def test_transforms() -> None:
    x = torch.linspace(-2, 2, 3 * 24 * 40).view(3, 24, 40)

    def turned(x: Tensor) -> Tensor:
        return x.t().contiguous().square()

    def all_of_them() -> list[Tensor]:
        return [
            torch.func.vmap(turned)(x),
            torch.func.vmap(torch.func.grad(lambda x: turned(x).sum()))(x),
            torch.func.jvp(turned, (x[0],), (x[1],))[1],
            torch.func.functionalize(turned)(x[0]),
            torch.utils.checkpoint.checkpoint(turned, x[0], use_reentrant=False),
        ]

    stock = all_of_them()
    with switching.accelerated("copy"):
        hits = switching.hits("copy")
        contract.exactly(all_of_them(), stock)
        assert hits.accelerated, hits


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 64 * 64).view(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        heads = (x @ self.weight).view(*x.shape[:2], 4, 16).transpose(1, 2)
        return heads.contiguous().mT.contiguous()


def test_copies_autocast_threads_and_toggling() -> None:
    model, x = Heads(), torch.randn(2, 40, 64)
    stock = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stock_cast = model(x)
    with switching.accelerated("copy"):
        hits = switching.hits("copy")
        contract.exactly(copy.deepcopy(model)(x), stock)
        assert hits.accelerated >= 1, hits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            contract.exactly(model(x), stock_cast)
        accelerated = hits.accelerated
        with ptac.disabled():
            contract.exactly(model(x), stock)
        assert hits.accelerated == accelerated
        results = switching.in_threads(lambda: model(x))
    for y in results():
        contract.exactly(y, stock)


@pytest.mark.parametrize("threads", [1, 2])
@rows
def test_threads_share_large_copies(row: str, threads: int) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with switching.accelerated("copy", row=row):
            hits = switching.hits("copy")
            for sizes in ((1, 300, 500), (7, 129, 130), (2, 3, 40000), (2, 40000, 3)):
                x = draw(*sizes)
                y = x.mT.contiguous()
                assert torch.equal(y.view(torch.int32), x.view(torch.int32).mT)
            assert hits.accelerated == 4, hits
    finally:
        torch.set_num_threads(before)


def test_shadow_checks_leave_many_dimensions_out() -> None:
    src = draw(40, 30).t()[(None,) * 40]
    to = torch.zeros(src.shape)
    with switching.accelerated("copy", verify=1):
        hits = switching.hits("copy")
        to.copy_(src)
        assert (hits.accelerated, hits.failed) == (1, 0), hits
    contract.exactly(to, src.contiguous())


def test_shadow_checks_compare_and_agree() -> None:
    """Of tensors with gaps and of numbers that are none, too."""
    with switching.accelerated("copy", verify=1):
        for dtype, gap in itertools.product(SERVED, (0, 1)):
            src = draw(40, 30, dtype=dtype).t()
            to = torch.zeros(30, 40 + gap, dtype=dtype)[:, gap:]
            hits = switching.hits("copy")
            to.copy_(src)
            assert (hits.accelerated, hits.failed) == (1, 0), hits
            with ptac.disabled():
                contract.exactly(to.contiguous(), src.contiguous())
        entry = json.loads(ptac.report("json"))["ops"]["copy"]
        assert not entry.get("trouble"), entry

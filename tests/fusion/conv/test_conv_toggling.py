"""Convolutions while things change: switches, threads, forks, errors, memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import contract
import internals
import leaking
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

OPS = ("conv2d", "conv2d_backward")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.SiLU()),
        *(nn.Conv2d(16, 20, 3, padding=1), nn.SiLU()),
        nn.Conv2d(20, 24, 3, padding=1),
    )


def step(
    model: nn.Sequential, between: Callable[[], object] = lambda: None
) -> list[Tensor]:
    """Output and gradients; something happens between forward and backward."""
    torch.manual_seed(1)
    x = torch.randn(2, 3, 14, 14, requires_grad=True)
    y = model(x)
    grad = torch.randn(y.shape)
    between()
    model.zero_grad()
    y.backward(grad)
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def near(ours: list[Tensor], stock: list[Tensor]) -> None:
    """Of sums of some hundred terms each; structure is what is tested here."""
    for mine, theirs in zip(ours, stock, strict=True):
        assert mine.stride() == theirs.stride()
        assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def enable() -> None:
    ptac.enable(include=OPS)


def test_disabled_between_forward_and_backward() -> None:
    """Gradients of a single layer depend on nothing that forward computes."""
    layer = net()[2:3]
    x, grad = torch.randn(2, 16, 14, 14), torch.randn(2, 20, 14, 14)

    def gradients(between: Callable[[], object]) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        between()
        return list(torch.autograd.grad(y, [leaf, *layer.parameters()], grad))

    stock = gradients(lambda: None)
    with switching.accelerated(*OPS):
        ours = gradients(lambda: None)
        hits = [switching.hits(op) for op in OPS]
        contract.exactly(gradients(ptac.disable), stock)
        assert [h.accelerated for h in hits] == [1, 0]
        contract.exactly(gradients(enable), ours)
        assert [h.accelerated for h in hits] == [1, 2]
    near(ours, stock)


@pytest.mark.parametrize("times", [1, 20])
def test_switching_within_steps(times: int) -> None:
    model = net()
    stock = step(model)
    with switching.pins(OPS):
        hits = [switching.hits(op) for op in OPS]
        for _ in range(times):
            near(step(model, enable), stock)
            near(step(model, ptac.disable), stock)
    assert [h.accelerated for h in hits] == [3 * times, 6 * times]
    contract.exactly(step(model), stock)


def register(layer: nn.Module, kind: str) -> Any:
    """A hook of some kind that disables us in the midst."""
    off = {"forward": lambda *_: ptac.disable(), "pre": lambda *_: ptac.disable()}
    if kind == "forward":
        return layer.register_forward_hook(off["forward"])
    if kind == "forward_pre":
        return layer.register_forward_pre_hook(off["pre"])
    if kind == "backward":
        return layer.register_full_backward_hook(off["forward"])
    if kind == "backward_pre":
        return layer.register_full_backward_pre_hook(off["pre"])
    return layer.weight.register_hook(off["pre"])


HOOKS = {
    "forward_pre": [1, 0],
    "forward": [2, 0],
    "backward_pre": [3, 2],
    "backward": [3, 4],
    "gradient": [3, 4],
}
"""Calls before the hook of the middle one of three layers disables the others."""


@pytest.mark.parametrize("kind", HOOKS)
def test_disabled_in_a_hook(kind: str) -> None:
    model = net()
    stock = step(model)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        hook = register(model[2], kind)
        near(step(model), stock)
        assert not ptac.is_enabled("operator_fusion")
        hook.remove()
        assert [h.accelerated for h in hits] == HOOKS[kind]
    contract.exactly(step(model), stock)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("kind", ["backward", "gradient", "forward"])
def test_an_exception_in_a_hook_ends_one_step_only(kind: str) -> None:
    def fail(*_: Any) -> None:
        raise Interrupted

    model = net()
    with switching.accelerated(*OPS):
        expected = step(model)
        register_failing = {
            "backward": model[2].register_full_backward_hook,
            "gradient": model[2].weight.register_hook,
            "forward": model[2].register_forward_hook,
        }[kind]
        for _ in range(5):
            hook = register_failing(fail)
            with pytest.raises(Interrupted):
                step(model)
            hook.remove()
            assert _C.flight()[0] == 0
            hits = switching.hits("conv2d_backward")
            contract.exactly(step(model), expected)
            assert hits.accelerated == 6
    ptac.empty_cache()
    assert _C.scratch_kept() == 0


@pytest.mark.parametrize("op", OPS)
def test_a_failure_is_stocks_to_mend(op: str) -> None:
    model = net()
    with switching.accelerated(*OPS):
        expected, hits = step(model), switching.hits(op)
        internals.inject_failure(op)
        near(step(model), expected)
        assert hits.failed == 1
        assert hits.forwarded["quarantined"] >= 2
        internals.reset_quarantine()
        contract.exactly(step(model), expected)


SHAPES = [(2, 16, 14, 24), (1, 64, 7, 40), (3, 3, 20, 33), (2, 128, 9, 48)]
"""Images, channels, height and width, output channels."""


def convolved(shape: tuple[int, int, int, int]) -> list[Tensor]:
    n, c, size, k = shape
    generator = torch.Generator().manual_seed(c)
    x = torch.randn(n, c, size, size, generator=generator).requires_grad_()
    w = torch.randn(k, c, 3, 3, generator=generator).requires_grad_()
    y = F.conv2d(x, w, padding=1)
    grad = torch.randn(y.shape, generator=generator)
    return [y.detach(), *torch.autograd.grad(y, [x, w], grad)]


def in_threads(works: list[Callable[[], list[Tensor]]], times: int) -> list[Any]:
    """What each gave so many times, all at once from a common start."""
    found: list[Any] = [[] for _ in works]
    start = threading.Barrier(len(works))

    def loop(i: int) -> None:
        torch.set_num_threads(1)
        start.wait()
        for _ in range(times):
            found[i].append(works[i]())

    threads = [threading.Thread(target=loop, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(results) for results in found] == [times] * len(works)
    return found


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("n", [2, 4, 12])
def test_threads_convolve_at_once(n: int) -> None:
    """Also more threads than the cache has places for scratch."""
    shapes = [SHAPES[i % len(SHAPES)] for i in range(n)]
    times = 60 // n
    with switching.accelerated(*OPS):
        alone = [convolved(shape) for shape in shapes]
        hits = [switching.hits(op) for op in OPS]
        found = in_threads([lambda s=s: convolved(s) for s in shapes], times)
        assert [h.accelerated for h in hits] == [n * times, 2 * n * times]
    for expected, results in zip(alone, found, strict=True):
        for result in results:
            contract.exactly(result, expected)


@pytest.mark.usefixtures("one_thread")
def test_scratch_is_given_back_while_others_convolve() -> None:
    def give_back() -> list[Tensor]:
        for _ in range(20):
            ptac.empty_cache()
        return []

    with switching.accelerated(*OPS):
        alone = [convolved(shape) for shape in SHAPES]
        works = [lambda s=s: convolved(s) for s in SHAPES]
        found = in_threads([give_back, *works], 20)
    for expected, results in zip(alone, found[1:], strict=True):
        for result in results:
            contract.exactly(result, expected)


@pytest.mark.usefixtures("one_thread")
def test_disabled_in_one_thread_only() -> None:
    times, shape = 30, SHAPES[1]
    stock = convolved(shape)

    def disabled() -> list[Tensor]:
        with ptac.disabled():
            return convolved(shape)

    with switching.accelerated(*OPS):
        ours = convolved(shape)
        assert not contract.same_bits(ours[0], stock[0])
        hits = [switching.hits(op) for op in OPS]
        found = in_threads([disabled, lambda: convolved(shape)], times)
        assert [h.accelerated for h in hits] == [times, 2 * times]
        for h, n in zip(hits, (times, 2 * times), strict=True):
            assert h.forwarded == {"disabled in this thread": n}
    for result in found[0]:
        contract.exactly(result, stock)
    for result in found[1]:
        contract.exactly(result, ours)


@pytest.mark.usefixtures("one_thread")
def test_switching_while_others_convolve() -> None:
    """Each result is stock's or ours, whole; none is of both."""
    shape, times = SHAPES[0], 40
    stock = convolved(shape)

    def switch() -> list[Tensor]:
        enable()
        ptac.disable()
        return []

    with switching.accelerated(*OPS):
        ours = convolved(shape)
        works = [switch, *[lambda: convolved(shape)] * 2]
        found = in_threads(works, times)
    for result in found[1] + found[2]:
        for mine, one, other in zip(result, ours, stock, strict=True):
            is_either = contract.same_bits(mine, one) or contract.same_bits(mine, other)
            assert is_either


FORK = """
import faulthandler, os, signal, threading, warnings
import torch
import contract, switching, test_conv_toggling as here
import pai_torchacc as ptac
from pai_torchacc import _C
faulthandler.dump_traceback_later(100, exit=True)
warnings.simplefilter("ignore", DeprecationWarning)
torch.set_num_threads(1)
shapes = here.SHAPES

def same(expected):
    for shape, results in zip(shapes, expected):
        contract.exactly(here.convolved(shape), results)

def child(expected):
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(60)
    try:
        hits = switching.hits("conv2d")
        same(expected)
        assert hits.accelerated == len(shapes)
        ptac.empty_cache()
        assert _C.scratch_kept() == 0
        same(expected)
        os._exit(0)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
"""

AFTER_USE = """
with switching.accelerated(*here.OPS):
    expected = [here.convolved(shape) for shape in shapes]
    kept = _C.scratch_kept()
    assert kept > 0
    for _ in range(3):
        pids = [child(expected) for _ in range(2)]
        same(expected)
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    assert _C.scratch_kept() == kept
print("well")
"""

MEANWHILE = """
with switching.accelerated(*here.OPS):
    expected = [here.convolved(shape) for shape in shapes]
    # A thread that calls an operator of torch's for the first time holds a guard of
    # C++'s, for which a child forked just then would wait for ever.
    same(expected)
    stop = threading.Event()
    def loop():
        torch.set_num_threads(1)
        while not stop.is_set():
            same(expected)
    threads = [threading.Thread(target=loop) for _ in range(2)]
    for thread in threads:
        thread.start()
    codes = [os.waitpid(child(expected), 0)[1] for _ in range(20)]
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 20, codes
print("well")
"""

LOADERS = """
from torch.utils.data import DataLoader, Dataset

class Convolved(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        hits = switching.hits("conv2d")
        found = here.convolved(shapes[i % len(shapes)])[1]
        assert hits.accelerated == 1
        return i, found

with switching.accelerated(*here.OPS):
    expected = [here.convolved(shape)[1] for shape in shapes]
    loader = DataLoader(
        Convolved(), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    for _ in range(2):
        for i, found in loader:
            contract.exactly(found, expected[i % len(shapes)])
        same([here.convolved(shape) for shape in shapes])
print("well")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    "program", [AFTER_USE, MEANWHILE, LOADERS], ids=["after use", "meanwhile", "loader"]
)
def test_forks(program: str) -> None:
    assert switching.python(FORK + program) == "well\n"


LARGE = [
    (32, 64, 32, 64),
    (32, 128, 16, 128),
    (32, 256, 8, 256),
    (32, 512, 4, 512),
    (16, 64, 56, 64),
    (16, 128, 28, 128),
    (16, 512, 7, 512),
    (64, 32, 14, 64),
]
"""Layers as networks have them: images, channels, height and width, out channels."""

MOST_SCRATCH = 8 << 20
"""Bytes of one thread."""


def kept_by(call: Callable[[], object]) -> int:
    """Scratch that a call leaves on an empty cache."""
    ptac.empty_cache()
    assert _C.scratch_kept() == 0
    call()
    return _C.scratch_kept()


def calls_of(shape: tuple[int, int, int, int]) -> dict[str, Callable[[], object]]:
    n, c, size, k = shape
    x, w = torch.randn(n, c, size, size), torch.randn(k, c, 3, 3)
    grad = torch.randn(n, k, size, size)

    def gradient(*mask: bool) -> Callable[[], object]:
        pair = [1, 1]
        return lambda: torch.ops.aten.convolution_backward(
            grad, x, w, [k], pair, pair, pair, False, [0, 0], 1, mask
        )

    return {
        "forward": lambda: F.conv2d(x, w, padding=1),
        "data": gradient(True, False, False),
        "weight": gradient(False, True, True),
    }


ROWS = sorted(
    {r for op in OPS for r in switching.runnable_rows(op) if r.startswith("winograd")}
)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("row", [r for r in ROWS if "5x5" not in r])
def test_scratch_is_limited_and_given_back(row: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    ops = [op for op in OPS if row in switching.runnable_rows(op)]
    try:
        with switching.accelerated(*ops, row=row):
            for shape in LARGE:
                for what, call in calls_of(shape).items():
                    hits = switching.hits(OPS[what != "forward"])
                    kept = kept_by(call)
                    assert (kept > 0) == (hits.accelerated == 1), (shape, what)
                    assert kept <= threads * MOST_SCRATCH, (shape, what, kept)
                    assert ptac.empty_cache() >= kept
                    assert _C.scratch_kept() == 0
    finally:
        torch.set_num_threads(before)


def test_scratch_goes_with_the_switch() -> None:
    with switching.accelerated(*OPS):
        step(net())
        assert _C.scratch_kept() > 0
        ptac.disable()
        assert _C.scratch_kept() == 0


@pytest.mark.usefixtures("one_thread")
def test_scratch_of_threads_stays_limited() -> None:
    """However many have convolved, the cache has places for a few."""
    with switching.accelerated(*OPS):
        ptac.empty_cache()
        in_threads([lambda: convolved(SHAPES[3])] * 16, 3)
        kept = _C.scratch_kept()
        assert 0 < kept <= 8 * MOST_SCRATCH
        assert ptac.empty_cache() >= kept
        assert _C.scratch_kept() == 0


def test_switching_leaves_no_memory() -> None:
    model = net()

    def work() -> None:
        step(model, enable)
        with ptac.disabled():
            step(model)
        step(model, ptac.disable)

    with switching.pins(OPS):
        leaking.assert_flat(work, 100)

"""Memory reuse where memory is short, shared with others, or changed meanwhile."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import interrupting
import numpy as np
import pytest
import reusing
import torch
import torch.nn.functional as F
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc import _host, memory_reuse
from pai_torchacc.memory_reuse import hooks, packing, recipes, saved_storage

N = 1 << 19


def saved_by(x: Tensor) -> Tensor:
    """A product that keeps ``x`` for its weight's gradient."""
    return x * torch.ones(1, requires_grad=True)


def others_turn() -> Tensor:
    v = torch.rand(N).requires_grad_()
    for _ in range(3):
        v = v.exp() * 0.1
    return v


def mostly_zeros() -> Tensor:
    x = torch.zeros(N)
    x[::4] = torch.arange(1, N // 4 + 1)
    return x


def out_of_memory(*_: Any) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (lambda *_: torch.empty(1 << 60), "no memory to pack"),
        (out_of_memory, "no memory to pack"),
        (lambda *_: torch.ones(2) + torch.ones(3), "trouble: RuntimeError"),
    ],
)
@pytest.mark.parametrize("where", [packing, recipes])
def test_why_something_was_not_packed(
    monkeypatch: pytest.MonkeyPatch, where: Any, fail: Callable[..., Any], reason: str
) -> None:

    memory_reuse.reset(reusing.c)
    with reusing.reused() as saved:
        monkeypatch.setattr(where, "find", fail)
        y = saved_by(mostly_zeros())
        others_turn()
        assert memory_reuse.reasons()[reason] >= 1
        assert saved.times() == 0
        y.sum().backward()


def test_trouble_of_ours_is_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise TypeError

    with reusing.reused():
        memory_reuse.reset(reusing.c)
        monkeypatch.setattr(saved_storage, "_box_of", broken)
        saved_by(mostly_zeros()).sum().backward()
        assert memory_reuse.reasons() == {"trouble: TypeError": 1}


def test_interrupts_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with reusing.reused():
        monkeypatch.setattr(saved_storage, "_box_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            saved_by(mostly_zeros())


@pytest.mark.parametrize("error", [KeyboardInterrupt, TypeError])
def test_only_interrupts_reach_a_thread_that_is_told_late(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*_: Any) -> None:
        raise error

    with reusing.reused(), monkeypatch.context() as patch:
        reusing.c.saved_remove()
        patch.setattr(hooks, "lower_in_this_thread", fail)
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                saved_by(mostly_zeros())
        else:
            saved_by(mostly_zeros()).sum().backward()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_programs_own_hooks_outlive_interrupts() -> None:
    autograd, own = torch._C._autograd, (lambda t: t, lambda t: t)

    def switch() -> None:
        with ptac.enable_memory_reuse():
            pass

    switch()
    autograd._push_saved_tensors_default_hooks(*own)
    try:
        for k in itertools.count(1):
            is_over = not interrupting.interrupted(switch, k)
            ptac.disable()
            assert autograd._top_saved_tensors_default_hooks(True) == own, k
            if is_over:
                break
    finally:
        autograd._pop_saved_tensors_default_hooks()
    assert autograd._top_saved_tensors_default_hooks(True) is None
    assert k > 20


OTHERS: dict[str, Callable[[], Tensor]] = {
    "numpy": lambda: torch.from_numpy(np.zeros(N, np.float32)),
    "buffer": lambda: torch.frombuffer(bytearray(4 * N), dtype=torch.float32),
    "shared": lambda: torch.zeros(N).share_memory_(),
    "dlpack": lambda: torch.from_dlpack(np.zeros(N, np.float32)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_memory_of_others_is_kept(name: str) -> None:
    with reusing.reused() as saved:
        y = saved_by(OTHERS[name]())
        others_turn()
        assert saved.times() == 0
        assert memory_reuse.reasons()["not torch's own memory"] >= 1
        del y


def test_memory_that_is_shared_later_is_kept() -> None:
    with reusing.reused() as saved:
        x = mostly_zeros()
        y = saved_by(x)
        x.share_memory_()
        del x
        others_turn()
        assert saved.times() == 0
        del y


def test_a_change_while_packing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = packing.find

    def find(c: Any, flat: Tensor) -> Any:
        form = stock(c, flat)
        flat.add_(1)
        return form

    memory_reuse.reset(reusing.c)
    with reusing.reused() as saved:
        monkeypatch.setattr(packing, "find", find)
        y = saved_by(mostly_zeros())
        others_turn()
        assert memory_reuse.reasons()["changed while packing"] >= 1
        assert saved.times() == 0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_change_between_counting_and_packing_is_noticed() -> None:
    class Changing:
        def __getattr__(self, name: str) -> Any:
            return getattr(reusing.c, name)

        def pack_nonzero(self, *args: Any) -> Any:
            x.fill_(1)
            return reusing.c.pack_nonzero(*args)

    x = mostly_zeros()
    assert packing.find(Changing(), x) is None


def test_holders_that_are_gone_are_forgotten() -> None:
    with reusing.reused(least=1 << 40) as _:
        x = mostly_zeros()
        first = saved_by(x)
        for _ in range(200):
            saved_by(x)
        box = saved_storage._boxes[x.untyped_storage()._cdata]
        assert len(box.holders) <= saved_storage._FEW
        del box, first


def test_memory_changed_before_it_was_saved() -> None:
    """Legal under no_grad and by ``.data``; no version tells of it at unpack."""

    def gradients(change: Callable[[Tensor], object]) -> list[Tensor]:
        torch.manual_seed(0)
        weights = [(torch.randn(512, 512) / 22).requires_grad_() for _ in range(6)]
        x = torch.randn(4096, 512)
        for i, w in enumerate(weights):
            x = F.gelu(x @ w)
            if i >= 3:
                with torch.no_grad():
                    change(x)
        x.sum().backward()
        return [w.grad for w in weights]

    changes: list[Callable[[Tensor], object]] = [
        lambda x: x.mul_(3.0),
        lambda x: x.data.clamp_(0.1, 0.2),
        lambda x: x.data[7].zero_(),
        lambda x: x.view(-1)[-1:].add_(1),
    ]
    for change in changes:
        stock = gradients(change)
        with reusing.reused() as saved:
            ours = gradients(change)
            assert saved.times("recompute") > 0
        assert all(torch.equal(a, b) for a, b in zip(stock, ours, strict=True))


def test_a_program_that_has_the_storage_alone() -> None:
    """It can write to it, or take its memory away, with no tensor of it alive."""

    def gradients(change: Callable[[torch.UntypedStorage], object]) -> list[Tensor]:
        torch.manual_seed(0)
        kept, total = [], torch.zeros(())
        for _ in range(12):
            w = torch.nn.Parameter(torch.randn(1 << 18))
            x = torch.relu(torch.randn(1 << 18))
            total = total + (x * w).sum()
            kept.append((x.untyped_storage(), w))
            del x
        for storage, _ in kept:
            change(storage)
        total.backward()
        return [w.grad for _, w in kept]

    def double(storage: torch.UntypedStorage) -> None:
        torch.empty(0).set_(storage).mul_(2)

    def take_away_and_bring_back(storage: torch.UntypedStorage) -> None:
        copy = storage.clone()
        storage.resize_(0)
        storage.resize_(copy.nbytes())
        storage.copy_(copy)

    for change in (double, take_away_and_bring_back):
        stock = gradients(change)
        with reusing.reused():
            ours = gradients(change)
        assert all(torch.equal(a, b) for a, b in zip(stock, ours, strict=True))
    assert memory_reuse.reasons()["storage in use"] > 0


@pytest.mark.parametrize(
    ("switch", "scale"),
    [(torch.set_flush_denormal, 1e-38), (torch._C._set_mkldnn_enabled, 1.0)],
)
def test_settings_that_change_before_backward(
    switch: Callable[[bool], object], scale: float
) -> None:
    """What was computed with subnormal numbers as zeros, or by oneDNN, is so again."""

    def gradients() -> list[Tensor]:
        torch.manual_seed(0)
        v = [torch.nn.Parameter(torch.ones(512, 8)) for _ in range(12)]
        switch(True)
        total = torch.zeros(())
        for p in v:
            w = torch.randn(512, 512).requires_grad_()
            x = (torch.randn(512, 512) @ w) * scale**0.5 * (scale**0.5 / 16)
            y = torch.nn.functional.gelu(x)
            total = total + (y @ p).sum() / scale
            del x, y
        switch(False)
        total.backward()
        return [p.grad for p in v]

    was = torch.backends.mkldnn.enabled
    try:
        stock = gradients()
        with reusing.reused():
            ours = gradients()
            n_saved = memory_reuse.saved_bytes(_host.load())["recompute"]["count"]
    finally:
        torch.set_flush_denormal(False)
        torch._C._set_mkldnn_enabled(was)
    assert n_saved > 0
    assert all(torch.equal(a, b) for a, b in zip(stock, ours, strict=True))


def test_a_program_that_has_the_storage_of_an_input() -> None:
    """What follows from it is kept: it can be written to before backward."""

    def gradients() -> list[Tensor]:
        torch.manual_seed(0)
        kept, total = [], torch.zeros(())
        for _ in range(12):
            w = torch.nn.Parameter(torch.randn(1 << 18))
            b = w * w
            c = torch.nn.functional.silu(b)
            total = total + torch.nn.functional.gelu(c).sum()
            kept.append((b.untyped_storage(), w))
            del b, c
        for storage, _ in kept:
            storage.fill_(0)
        total.backward()
        return [w.grad for _, w in kept]

    stock = gradients()
    with reusing.reused():
        ours = gradients()
    assert all(torch.equal(a, b) for a, b in zip(stock, ours, strict=True))


@pytest.mark.parametrize("n", [40, 1200])
def test_long_chains(n: int) -> None:
    """Nothing is computed again out of what would be computed again."""

    def gradient() -> Tensor:
        torch.manual_seed(0)
        x = torch.randn(256, 512).requires_grad_()
        y = x
        for _ in range(n):
            y = F.silu(y)
        y.sum().backward()
        return x.grad

    stock = gradient()
    with reusing.reused():
        assert torch.equal(gradient(), stock)


def test_boxes_are_forgotten() -> None:
    before = len(saved_storage._boxes)
    with reusing.reused():
        for n in range(100):
            x = torch.randn(300 + n, 512, requires_grad=True)
            (x * x).sum().backward()
            del x
    assert len(saved_storage._boxes) <= before + 2


def test_two_threads_restore_one_box_once() -> None:
    """Both compute it; only one counts."""

    class Form:
        mechanism, bytes = "zero_bits", 0

        def content(self) -> Tensor:
            both.wait(60)
            return torch.zeros(4)

    both = threading.Barrier(2)
    before = saved_storage._n_bytes_kept
    box = saved_storage.Box(-1, 1 << 20, None)
    box.form = Form()
    saved_storage._keep(-box.n_bytes)
    found: list[Tensor] = []

    def unpack(box: Any) -> None:
        found.append(box.content())

    threads = [threading.Thread(target=unpack, args=(box,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]
    assert saved_storage._n_bytes_kept == before + box.n_bytes
    gone = weakref.ref(box)
    del box, threads, thread
    assert gone() is None
    assert saved_storage._n_bytes_kept == before


def test_reports_need_no_torch() -> None:
    program = (
        "import sys\nsys.modules['torch'] = None\nimport pai_torchacc\n"
        "pai_torchacc.report(reset=True)\n"
        "from pai_torchacc import memory_reuse\n"
        "assert memory_reuse.reasons() == {} and memory_reuse.remarks() == []\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="it collects at other moments")
def test_the_collector_switches_it_off_while_a_tensor_is_saved() -> None:
    left = 0

    def collected(phase: str, _: Any) -> None:
        nonlocal left
        left -= phase == "start"
        if left == 0:
            reusing.c.saved_remove()

    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    n_switched_off = 0
    try:
        for moment in range(1, 20):
            with reusing.reused():
                x = mostly_zeros()
                gc.set_threshold(1)
                left = moment
                saved_by(x).sum().backward()
                gc.set_threshold(*threshold)
                n_switched_off += left <= 0
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)
    assert n_switched_off > 3

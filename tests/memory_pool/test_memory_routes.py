"""Other ways to torch's allocator, for builds that the first does not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import switching
import torch
from pooling import KIB, MIB, closed_before_and_after, floats, is_ours, slots

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.memory_pool import cpu

__all__ = ["closed_before_and_after"]


@pytest.fixture
def only_way(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Leave one way, as on a torch that the others do not fit."""

    def choose(*ways: str) -> None:
        monkeypatch.setattr(cpu, "_ways", lambda c: list(ways))

    return choose


def test_the_way_in_use_is_told() -> None:
    with ptac.enable_memory_pool():
        assert ptac.status()["memory_pool"]["via"] == "imports"
    assert "via" not in ptac.status()["memory_pool"]


def test_by_an_allocator_object(only_way: Callable[..., None]) -> None:
    only_way("object")
    before = slots()
    early = floats(MIB).fill_(1)
    ptac.enable_memory_pool()
    assert slots() == before
    assert ptac.status()["memory_pool"]["via"] == "object"
    x, small = floats(MIB).fill_(2), floats(KIB).fill_(3)
    assert is_ours(x)
    assert not is_ours(small)
    del early
    x.resize_(MIB)
    assert (x[: MIB // 4] == 2).all()
    assert torch.empty(0).numel() == 0
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        torch.empty(1 << 46, dtype=torch.uint8)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        y = floats(3 * MIB)
    by_op = {e.name: e.cpu_memory_usage for e in profile.events()}
    assert by_op["aten::empty"] == 3 * MIB
    ptac.disable()
    assert not is_ours(floats(MIB))
    assert ptac.status()["memory_pool"]["draining"] == 2
    x.resize_(2 * MIB)  # by the allocator that made it
    assert not is_ours(x)
    del x, y, small
    assert _C.pool_state() == ("off", 0)


def test_one_way_waits_for_the_blocks_of_another(only_way: Callable[..., None]) -> None:
    only_way("object")
    ptac.enable_memory_pool()
    x = floats(MIB)
    ptac.disable()
    only_way("imports")
    handle = ptac.enable_memory_pool()
    assert not handle
    assert "still in use" in handle.reason
    del x
    assert ptac.enable_memory_pool()


MALLOPT = """
import resource, torch
import pai_torchacc as ptac
from pai_torchacc.memory_pool import cpu
cpu._ways = lambda c: ["mallopt"]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(8 << 20).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with ptac.enable_memory_pool():
    assert ptac.status()["memory_pool"]["via"] == "mallopt"
    # The heap grows until it has what its free lists want; then a call faults only
    # where the system has taken pages back meanwhile.
    assert min(faults() for _ in range(30)) < 100
assert faults() > 1000
handle = ptac.enable_memory_pool(cap=1 << 30)
assert handle.reason == "mallopt: it has neither cap, fill, reserve nor history"
"""


def test_by_mallopt() -> None:
    """In a process of its own, whose heap nobody else has been at."""
    switching.python(MALLOPT, fresh=True)


def test_no_way_at_all(only_way: Callable[..., None]) -> None:
    only_way()
    handle = ptac.enable_memory_pool()
    assert not handle
    assert ptac.status()["memory_pool"]["active"] is False


def test_huge_pages_of_torch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "1")
    handle = ptac.enable_memory_pool()
    assert not handle
    assert "THP_MEM_ALLOC_ENABLE" in handle.reason


def test_a_probe_that_raises_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = slots()

    def fail(c: object, torch: object) -> bool:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_is_in_use", fail)
        with pytest.raises(KeyboardInterrupt):
            ptac.enable_memory_pool()
    assert slots() == before
    assert ptac.status()["memory_pool"]["active"] is False


@pytest.mark.parametrize("way", ["imports", "object"])
def test_a_probe_has_to_come_back(only_way: Callable[..., None], way: str) -> None:
    """Or blocks of the pool would end in libc's free."""
    only_way(way)
    with ptac.enable_memory_pool():
        _C.pool_begin_probe()
        kept = floats(MIB)
        assert not _C.pool_end_probe()
        assert not is_ours(kept)
        _C.pool_begin_probe()
        floats(MIB)
        assert _C.pool_end_probe()
        _C.pool_begin_probe()
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.empty(1 << 46, dtype=torch.uint8)
        assert _C.pool_end_probe()
        _C.pool_begin_probe()
        floats(KIB)  # is none of the pool's
        assert not _C.pool_end_probe()


def test_an_exception_brings_the_old_options_back() -> None:
    def fail(c: object, torch: object) -> bool:
        raise KeyboardInterrupt

    ptac.enable_memory_pool(policy="first_fit")
    kept = floats(MIB)
    with pytest.MonkeyPatch.context() as patch:
        works = cpu._is_in_use
        answers = iter([fail, works])

        def ask(c: object, torch: object) -> bool:
            return next(answers)(c, torch)

        patch.setattr(cpu, "_is_in_use", ask)
        with pytest.raises(KeyboardInterrupt):
            ptac.enable_memory_pool(cap=1 << 30)
    assert ptac.is_enabled("memory_pool")
    assert is_ours(floats(MIB))
    assert is_ours(floats(1 << 30)) is True
    del kept


def test_a_cap_that_leaves_nothing() -> None:
    with ptac.enable_memory_pool(cap=4096) as handle:
        assert handle
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            floats(MIB)
    floats(MIB)
    with ptac.enable_memory_pool():
        kept = floats(8 * MIB)
        with ptac.enable_memory_pool(cap=MIB):
            assert is_ours(kept)
            with pytest.raises(RuntimeError, match="can't allocate memory"):
                floats(MIB)
        assert is_ours(floats(MIB))
        del kept


def test_other_switches_leave_the_options() -> None:
    with ptac.enable_memory_pool(cap=16 * MIB):
        ptac.enable("operator_fusion")
        ptac.enable_operator_fusion()
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            floats(32 * MIB)
        ptac.disable("operator_fusion")


def test_what_cannot_be_reserved_is_a_reason() -> None:
    handle = ptac.enable_memory_pool(reserve=1 << 46)
    assert not handle
    assert "reserve" in handle.reason

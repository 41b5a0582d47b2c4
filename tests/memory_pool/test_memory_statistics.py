"""What the memory pool tells: statistics, summary, snapshot, report."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from pooling import KIB, MIB, closed_before_and_after, floats, stats

import pai_torchacc as ptac
from pai_torchacc import _host

__all__ = ["closed_before_and_after"]

CLASS_STATS = (
    *("allocation", "segment", "active", "inactive_split"),
    *("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes"),
    "requested_bytes",
)


def test_statistics_equal_a_recount() -> None:
    sizes = [64 * KIB, 64 * KIB + 4, MIB, MIB + 4, 5 * MIB]
    with ptac.enable_memory_pool():
        start = ptac.memory_stats()
        kept = [floats(n) for n in sizes]
        rounded = [(n + 63) // 64 * 64 for n in sizes]
        grown = {k: n - start[k] for k, n in ptac.memory_stats().items()}
        assert grown["requested_bytes.all.current"] == sum(sizes)
        assert grown["allocated_bytes.all.current"] == sum(rounded)
        assert grown["allocated_bytes.small_pool.current"] == sum(rounded[:3])
        assert grown["allocation.large_pool.allocated"] == 2
        assert grown["active_bytes.all.current"] == sum(rounded)
        del kept[1]
        after = ptac.memory_stats()
        assert after["allocation.all.freed"] - start["allocation.all.freed"] == 1
        assert after["inactive_split_bytes.all.current"] == rounded[1]
        kept.clear()
        ptac.reset_peak_memory_stats()
        after = ptac.memory_stats()
        assert after["allocated_bytes.all.peak"] == 0
        assert ptac.empty_cache() > 0
        assert stats("reserved_bytes.all.current") == 0


def test_keys_are_torch_s() -> None:
    theirs = {
        f"{name}.{pool}.{part}"
        for name in CLASS_STATS
        for pool in ("all", "large_pool", "small_pool")
        for part in ("current", "peak", "allocated", "freed")
    }
    theirs |= {
        f"{name}.{part}"
        for name in ("oversize_allocations", "oversize_segments")
        for part in ("current", "peak", "allocated", "freed")
    }
    theirs |= {"num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"}
    theirs |= {"num_sync_all_streams", "max_split_size"}
    ours = ptac.memory_stats("cpu")
    assert theirs == {key for key in ours if not key.startswith("ptac.")}
    assert all(isinstance(n, int) for n in ours.values())


def test_summary_is_a_table() -> None:
    with ptac.enable_memory_pool():
        x = floats(3 * MIB)
        text = ptac.memory_summary()
        assert "3.0 MiB" in text
        assert "from large_pool" in text
        assert "from large_pool" not in ptac.memory_summary(abbreviated=True)
        del x


def test_snapshot_opens_in_torch_s_own_tools(tmp_path) -> None:
    from torch.cuda import _memory_viz as viz

    path = tmp_path / "snapshot.pickle"
    with ptac.enable_memory_pool(history=10_000):
        x, y = floats(MIB), floats(2 * MIB)
        del x
        content = ptac.memory_snapshot(path=path)
        with path.open("rb") as file:
            assert pickle.load(file) == content
        [segment] = content["segments"]
        assert segment["allocated_size"] == 2 * MIB
        sizes = [b["size"] for b in segment["blocks"]]
        assert sum(sizes) == segment["total_size"]
        states = [b["state"] for b in segment["blocks"]]
        assert states[:2] == ["inactive", "active_allocated"]
        actions = [e["action"] for e in content["device_traces"][0]]
        assert actions[-4:] == ["alloc", "alloc", "free_requested", "free_completed"]
        assert "2.0MiB" in viz.segsum(content)
        assert viz.trace(content)
        assert "<html" in viz.trace_plot(content).lower()
        del y


def test_snapshot_has_the_blocks_of_a_plan() -> None:
    c = _host.extension()

    def train() -> torch.Tensor:
        live = [floats(10 * MIB), floats(20 * MIB)]
        del live[0]
        live += [floats(15 * MIB), floats(10 * MIB)]
        del live[0]
        live.append(floats(30 * MIB))
        return live[0]

    with ptac.enable_memory_pool(), ptac.enable_memory_reuse():
        for _ in range(6):
            train()
            c.pool_end_step()
        kept = train()
        assert stats("ptac.plan_hits") > 0
        [segment] = ptac.memory_snapshot()["segments"]
        assert segment["allocated_size"] == stats("allocated_bytes.all.current")
        assert segment["requested_size"] == stats("requested_bytes.all.current")
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
        used = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert kept.data_ptr() in [b["address"] for b in used]


def test_the_report_has_the_statistics() -> None:
    with ptac.enable_memory_pool():
        x = floats(3 * MIB)
        cpu = json.loads(ptac.report("json"))["memory"]["cpu"]
        assert cpu["allocated_bytes.all.current"] == 3 * MIB
        assert "memory pool: " in ptac.report()
        del x


@pytest.mark.parametrize("function", [ptac.memory_stats, ptac.memory_summary])
def test_unknown_devices_have_no_statistics(function) -> None:
    with pytest.raises(ValueError, match="there are: cpu, cuda"):
        function("mps")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_cuda_that_is_not_there_has_empty_statistics() -> None:
    assert ptac.memory_stats("cuda") == {}
    assert "CUDA memory pool" in ptac.memory_summary("cuda:3")
    assert ptac.memory_snapshot("cuda")["segments"] == []
    ptac.reset_peak_memory_stats("cuda")
    assert ptac.empty_cache("cuda") == 0


def test_the_probe_is_not_counted() -> None:
    with ptac.enable_memory_pool(history=16):
        assert stats("allocation.all.allocated") == 0
        assert stats("allocated_bytes.all.peak") == 0
        assert ptac.memory_snapshot()["device_traces"] == [[]]


def test_no_probe_is_counted_in_a_pool_that_is_in_use() -> None:
    options = [{"cap": 64 * MIB}, {"cap": MIB}, {"policy": "first_fit"}, {}]
    with ptac.enable_memory_pool(history=64):
        kept = floats(8 * MIB)
        freed = floats(2 * MIB)
        del freed
        before, events = told()
        for option in options:
            handle = ptac.enable_memory_pool(history=64, **option)
            assert handle, handle.reason
            now, now_events = told()
            assert now_events == events
            given_back = ("reserved", "inactive", "ptac.purged", "ptac.arena")
            for key in before:
                assert now[key] == before[key] or key.startswith(given_back), key
        assert kept.numel() == 2 * MIB


def told() -> tuple[dict[str, int], list[list[dict]]]:
    return ptac.memory_stats(), ptac.memory_snapshot()["device_traces"]


def test_no_probe_is_a_request_of_a_planned_step() -> None:
    c = _host.extension()

    def train() -> None:
        a, b = floats(10 * MIB), floats(20 * MIB)
        del a
        d, e = floats(15 * MIB), floats(10 * MIB)
        del b
        f = floats(30 * MIB)
        del d, e, f

    with ptac.enable_memory_reuse():
        for i in range(12):
            if i == 8:
                ptac.enable_memory_pool(trim=60)
            train()
            c.pool_end_step()
        assert stats("ptac.plan_hits") >= 5 * 8
        assert stats("ptac.plan_misses") == 0
        ptac.disable()


def test_the_block_freed_last_is_merged_in_a_snapshot() -> None:
    with ptac.enable_memory_pool():
        kept = [floats(MIB) for _ in range(4)]
        del kept[1]
        del kept[1]
        [segment] = ptac.memory_snapshot()["segments"]
        blocks = [(b["size"], b["state"]) for b in segment["blocks"]]
        used = (MIB, "active_allocated")
        assert blocks == [used, (2 * MIB, "inactive"), used]


def test_peaks_of_a_pool_that_has_closed_are_reset() -> None:
    with ptac.enable_memory_pool():
        floats(MIB)
    assert stats("ptac.arena_bytes.peak") == MIB
    ptac.reset_peak_memory_stats()
    peaks = {k: n for k, n in ptac.memory_stats().items() if k.endswith(".peak")}
    assert set(peaks.values()) == {0}


def test_statistics_are_there_when_all_is_over() -> None:
    with ptac.enable_memory_pool():
        floats(MIB)
    assert ptac.status()["memory_pool"]["active"] is False
    assert stats("reserved_bytes.large_pool.peak") == stats("reserved_bytes.all.peak")
    assert stats("ptac.arena_bytes.peak") == MIB
    assert stats("segment.all.current") == 0

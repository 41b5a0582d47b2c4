"""The parts of find_batch_size() that need no process: limits, sizes, lines, choice."""

from __future__ import annotations

import itertools
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pai_torchacc.batch_size import limits, line, shapes
from pai_torchacc.batch_size.candidates import Candidates
from pai_torchacc.batch_size.search import Search
from pai_torchacc.batch_size.watch import Outcome

GIB = 1 << 30


def system(root: Path, group: str, files: dict[str, str]) -> Path:
    """As /proc and /sys/fs/cgroup of a machine with 8 GiB available would look."""
    texts = {
        "proc/meminfo": f"MemTotal: {16 << 20} kB\nMemAvailable:    {8 << 20} kB\n",
        "proc/self/cgroup": group,
        **files,
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_system_without_groups(tmp_path: Path) -> None:
    assert limits.available(system(tmp_path, "0::/\n", {})) == 8 * GIB


def test_group_of_version_2(tmp_path: Path) -> None:
    """3 GiB less the 2 in use, of which 1 is clean pages of files; unlimited inside."""
    outer, inner = "sys/fs/cgroup/job", "sys/fs/cgroup/job/step"
    files = {
        f"{outer}/memory.max": f"{3 * GIB}\n",
        f"{outer}/memory.current": f"{2 * GIB}\n",
        f"{outer}/memory.stat": f"anon {GIB}\ninactive_file {GIB // 2}\n"
        f"active_file {GIB // 4}\nslab_reclaimable {GIB // 4}\n",
        f"{inner}/memory.max": "max\n",
        f"{inner}/memory.current": f"{GIB}\n",
    }
    assert limits.available(system(tmp_path, "0::/job/step\n", files)) == 2 * GIB


def test_group_of_version_1(tmp_path: Path) -> None:
    """The path is that of the host: inside a container the root has the limit."""
    folder = "sys/fs/cgroup/memory"
    files = {
        f"{folder}/memory.limit_in_bytes": f"{2 * GIB}\n",
        f"{folder}/memory.usage_in_bytes": f"{GIB}\n",
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n",
    }
    groups = "4:memory:/docker/abc\n3:cpuset:/\n0::/\n"
    assert limits.available(system(tmp_path, groups, files)) == 3 * GIB // 2


def test_group_that_is_full(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
    }
    assert limits.available(system(tmp_path, "0::/\n", files)) == 0


def test_system_that_does_not_say(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="does not say how much memory"):
        limits.available(tmp_path)


def test_this_system() -> None:
    assert 0 < limits.held() < limits.status()["VmSize"]
    assert limits.available() > 0


@given(
    st.integers(1, 64),
    st.integers(1, 5000),
    st.none() | st.integers(1, 5000),
    st.integers(1, 6000),
)
def test_sizes(smallest: int, largest: int, keep: int | None, n: int) -> None:
    allowed = [
        size
        for size in range(smallest, largest + 1)
        if keep is None or keep % size == 0
    ]
    if not allowed:
        with pytest.raises(ValueError, match="no batch size is from"):
            Candidates(smallest, largest, keep)
        return
    sizes = Candidates(smallest, largest, keep)
    ascending = list(sizes.ascending())
    assert ascending == sorted(set(ascending))
    assert ascending[0] == allowed[0] and ascending[-1] == allowed[-1]
    assert set(ascending) <= set(allowed)
    for a, b in itertools.pairwise(ascending):
        assert b <= 2 * a or not [size for size in allowed if a < size < b]
    found = sizes.at_most(n, smallest)
    below = [size for size in allowed if size <= n]
    assert found in below if below else found is None


@given(
    st.floats(0, 1e9),
    st.floats(1, 1e8),
    st.sets(st.integers(1, 10_000), min_size=3, max_size=8),
)
def test_line_through_points_of_a_line(
    fixed: float, slope: float, sizes: set[int]
) -> None:
    found = line.fitted({n: round(fixed + slope * n) for n in sizes})
    assert found is not None and len(set(found.sizes)) == 3
    assert list(found.sizes) == sorted(found.sizes) and found.sizes[-1] == max(sizes)
    for n in found.sizes:
        assert found.predict(n) == pytest.approx(fixed + slope * n, rel=1e-6, abs=4)
    most = found.most(found.predict(20_000) + 1)
    assert most is not None and most >= 19_990 - 2 / slope


def test_sizes_close_to_each_other_do_not_tilt_the_line() -> None:
    """A measurement that is off by 4 is not told from growth between 80 and 88."""
    needs = {16: 36, 32: 52, 64: 84, 80: 100, 88: 104}
    found = line.fitted(needs)
    assert found is not None and found.sizes == (32, 64, 88)
    assert found.predict(16) == pytest.approx(36, abs=4)


def test_two_sizes_make_no_line() -> None:
    assert line.fitted({2: 10, 4: 20}) is None


def between(rates: dict[int, float], n: int) -> float:
    """The throughput of a batch; between two that are given, on a straight line."""
    if n in rates:
        return rates[n]
    below, above = max(m for m in rates if m < n), min(m for m in rates if m > n)
    share = (n - below) / (above - below)
    return rates[below] + share * (rates[above] - rates[below])


def search(
    rates: dict[int, float],
    noise: dict[int, list[float]] | None = None,
    is_seen: bool = False,
):
    """A search where a batch of n has a throughput, at first another where noisy.

    ``is_seen``: whether threads are seen to wait for CPUs then.
    """
    runs: list[int] = []

    def run(n: int) -> Outcome:
        disturbed = (noise or {}).get(n, [])
        is_quiet = not (disturbed and is_seen)
        rate = disturbed.pop(0) if disturbed else between(rates, n)
        runs.append(n)
        need = n << 20
        return Outcome(n, n / rate, is_quiet=is_quiet, need=need, held=need, limit=GIB)

    found = Search(run, Candidates(2, 512, None), 1e9, 1e9)
    return found.choose(), found, runs


SATURATING = {n: 100 * n / (n + 8) for n in (2, 4, 8, 16, 32, 64, 128, 256, 512)}


def test_smallest_within_five_percent() -> None:
    chosen, found, _ = search(SATURATING)
    best = max(t.throughput for t in found.trials)
    below = [t for t in found.trials if t.batch < chosen.batch]
    assert chosen.throughput >= 0.95 * best > below[-1].throughput


def test_search_ends_where_throughput_stops_growing() -> None:
    rates = {2: 10.0, 4: 20.0, 8: 30.0, 16: 30.0, 32: 29.0}
    chosen, _, runs = search(rates)
    assert chosen.batch == 8
    assert max(runs) == 32
    assert runs.count(8) == 2, "the chosen batch runs once more"


def test_sizes_between_powers_of_two() -> None:
    """The best is at 44, and 22 has enough of it."""
    rates = {2: 2.0, 4: 4.0, 8: 8.0, 16: 16.0, 22: 21.0, 32: 21.0, 45: 22.0, 64: 20.0}
    chosen, found, _ = search(rates | {128: 10.0, 256: 5.0})
    assert chosen.batch == 22
    assert max(found.trials, key=lambda t: t.throughput).batch == 45


def test_trials_that_were_disturbed_run_again() -> None:
    """A neighbour's load at 16 and 32 neither ends the search nor decides."""
    rates = {2: 10.0, 4: 20.0, 8: 30.0, 16: 60.0, 32: 90.0, 64: 90.0, 128: 90.0}
    chosen, _, runs = search(rates, {16: [9.0], 32: [12.0]})
    assert chosen.batch == 32
    assert runs.count(16) == 2


def test_waiting_for_cpus_does_not_end_a_search() -> None:
    """It is seen at 16 and 32 however often they run; larger batches are quiet."""
    rates = {2: 10.0, 4: 20.0, 8: 30.0, 16: 60.0, 32: 90.0, 64: 120.0, 128: 120.0}
    noise = {16: [9.0] * 9, 32: [12.0] * 9}
    chosen, found, runs = search(rates | {256: 120.0, 512: 120.0}, noise, is_seen=True)
    assert chosen.throughput >= 0.95 * 120
    assert runs.count(16) == runs.count(32) == 3
    [remark] = found.remarks
    assert remark.startswith("threads waited for CPUs") and "16, 32" in remark


def test_undisturbed_trial_counts_more() -> None:
    """Time that was measured while threads waited means little, even a shorter one."""
    rates = {2: 10.0, 4: 20.0, 8: 30.0, 16: 30.0, 32: 30.0}
    _, found, _ = search(rates, {8: [40.0]}, is_seen=True)
    [eight] = [t for t in found.trials if t.batch == 8]
    assert eight.is_quiet and eight.throughput == pytest.approx(30.0)
    assert not found.remarks


def test_batch_that_fits_no_more_is_not_chosen() -> None:
    """Another program has taken memory meanwhile: the second run decides."""
    rates = {2: 10.0, 4: 20.0, 8: 30.0, 16: 30.0, 32: 30.0}
    seen: set[int] = set()

    def run(n: int) -> Outcome:
        again, _ = n in seen, seen.add(n)
        lacking = "MemoryError" if again and n == 8 else None
        need = n << 20
        return Outcome(
            n,
            n / between(rates, n),
            held=need,
            need=need,
            limit=GIB,
            no_memory=lacking,
        )

    found = Search(run, Candidates(2, 512, None), 1e9, 1e9)
    assert found.choose().batch > 8
    assert {t.batch: t.trouble for t in found.trials}[8] == "MemoryError"


WAYS = {
    "array": lambda n: [torch.zeros(n)],
    "list": lambda n: [torch.zeros(3) for _ in range(n)],
    "mapping": lambda n: UserDict(x=torch.zeros(n)),
    "dataclass": lambda n: Sample(torch.zeros(n), 3),
    "nested": lambda n: torch.nested.nested_tensor(
        [torch.zeros(3 + i % 2, 4) for i in range(n)], layout=torch.jagged
    ),
    "number": lambda n: n,
}


@dataclass
class Sample:
    x: torch.Tensor
    other: int


@pytest.mark.parametrize("way", WAYS)
def test_batches_that_follow_and_end(way: str) -> None:
    """Of 21 samples: a batch of 32 is no larger; before, all is well."""
    follower = shapes.Follower()
    for n in (2, 4, 8, 8, 16, 4):
        follower.check(n, shapes.of(WAYS[way](n)))
    with pytest.raises(ValueError, match=r"make_batch\(32\) gave 21 samples"):
        follower.check(32, shapes.of(WAYS[way](21)))


@pytest.mark.parametrize("way", WAYS)
def test_batches_that_do_not_follow(way: str) -> None:
    follower = shapes.Follower()
    follower.check(2, shapes.of(WAYS[way](3)))
    with pytest.raises(ValueError, match=r"as many samples as make_batch\(2\)"):
        follower.check(4, shapes.of(WAYS[way](3)))


def test_batches_of_which_nothing_is_seen() -> None:
    follower = shapes.Follower()
    for n in (2, 4, 8):
        follower.check(n, shapes.of(object()))

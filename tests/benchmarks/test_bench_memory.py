"""``bench memory``: what its processes say, and what is made of it."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import targets
from benchmarks.memory import child, driver, figures, replay, variants
from benchmarks.memory.figures import Live, Micro, Row, Run, Samples
from pai_torchacc import __main__ as package
from pai_torchacc.bench.run import write_csv

pytestmark = pytest.mark.long

MIB = 1 << 20


@pytest.fixture(scope="module")
def measured() -> driver.Measured:
    """One short process of each variant that this machine has."""
    plan = driver.Plan(workloads=("W3", "micro"), processes=1, steps=3)
    found = driver.measure(plan)
    for name, why in found.missing.items():
        print(f"missing: {name}: {why}")
    assert not found.failed, found.failed[0]
    return found


def test_every_variant_runs_or_says_why_not(measured: driver.Measured) -> None:
    ran = {r.variant for r in measured.runs}
    assert {"stock", "mallopt"} <= ran
    assert ran.isdisjoint(measured.missing)
    assert ran | measured.missing.keys() == set(variants.PLACING)
    assert {m.variant for m in measured.micro} == ran
    assert all(measured.missing.values())


def test_all_variants_compute_the_same_bits(measured: driver.Measured) -> None:
    assert len({r.bits for r in measured.runs}) == 1
    assert all(r.passes_gate for r in figures.rows(measured))


def test_runs_tell_of_every_step(measured: driver.Measured) -> None:
    for run in measured.runs:
        assert len(run.ms) == len(run.faults) == 3
        assert min(run.ms) > 0
        assert run.peak_bytes > run.base_bytes > 0
        assert run.max_rss_bytes > run.idle_bytes > 0


def test_the_pool_tells_of_its_arena(measured: driver.Measured) -> None:
    if "pool" in measured.missing:
        pytest.skip(measured.missing["pool"])
    [run] = [r for r in measured.runs if r.variant == "pool"]
    assert run.pool["reserved_bytes.all.peak"] >= run.pool["allocated_bytes.all.peak"]
    assert run.arena_bytes == sorted(run.arena_bytes)
    live = measured.live["W3", "stock", 1]
    assert run.arena_bytes[-1] >= live.pooled_bytes
    assert all(r.arena_bytes is None for r in measured.runs if r.variant != "pool")


def test_microfigures_are_of_two_threads_and_all_sizes(
    measured: driver.Measured,
) -> None:
    for micro in measured.micro:
        assert micro.fill.keys() == {"main", "second"}
        assert set(micro.empty_ns) == {"16", *map(str, child.PAIR_BYTES)}
    # Stock maps and touches 64 MiB anew each time: 4 KiB pages, or 2 MiB ones.
    [stock] = [m for m in measured.micro if m.variant == "stock"]
    assert all(of["faults"] >= 32 for of in stock.fill.values())


def test_peaks_are_of_the_tensors() -> None:
    """The chain has its input, two links and the result of the step before."""
    request = {"workload": "EW", "n_threads": 1, "steps": 2}
    live = Live(**driver.start("stock", job="live", **request))
    assert live.live_bytes == live.pooled_bytes == 4 * 64 * MIB
    run = Run("EW", "stock", 1, 0, **driver.start("stock", job="steps", **request))
    assert run.peak_bytes - run.base_bytes == pytest.approx(live.live_bytes, rel=0.05)


def test_tensors_that_reuse_does_without() -> None:
    plan = driver.Plan(("W4ge",), ("stock", "reuse"), processes=1, steps=2)
    measured = driver.measure(plan)
    assert not measured.failed
    assert len({r.bits for r in measured.runs}) == 1
    rows = figures.rows(measured)
    stock, reuse = (
        value_of(rows, "tensors", v, workload="W4ge") for v in ("stock", "reuse")
    )
    ratio = value_of(rows, "tensors", "reuse", "stock", workload="W4ge")
    assert ratio == pytest.approx(stock / reuse)
    assert ratio > 1.15


def test_children_do_not_inherit_a_tuned_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LD_PRELOAD", "MALLOC_CONF", "PTAC_ENABLE", "THP_MEM_ALLOC_ENABLE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HOME", "kept")
    environment = variants.VARIANTS["stock"].environment()
    assert environment["HOME"] == "kept"
    assert {k for k in os.environ if k not in environment} >= {
        "LD_PRELOAD",
        "MALLOC_CONF",
        "PTAC_ENABLE",
        "THP_MEM_ALLOC_ENABLE",
    }


def test_a_library_that_is_not_installed_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = variants.Variant("absent", "", libraries=("no-such-allocator",))
    with pytest.raises(variants.Missing, match="not installed"):
        absent.environment()
    with pytest.raises(variants.Missing, match="did not preload"):
        absent.prepare()
    monkeypatch.setitem(variants.VARIANTS, "absent", absent)
    plan = driver.Plan(("W3",), ("absent",), processes=2, steps=1)
    monkeypatch.setattr(driver, "_live", lambda *_: None)
    found = driver.measure(plan)
    assert found.missing == {"absent": "no-such-allocator is not installed"}
    assert not found.runs


def test_a_child_that_fails_is_told_of_and_stops_nothing() -> None:
    plan = driver.Plan(("W3",), ("stock",), processes=1, steps=1, prefix=("false",))
    found = driver.measure(plan)
    assert found.failed
    assert not found.runs


def test_rounds_are_shuffled_and_complete() -> None:
    plan = driver.Plan(("W1", "micro"), ("stock", "mallopt"), (1, 2), processes=4)
    jobs = list(driver._jobs(plan))
    assert len(jobs) == len(set(jobs)) == 4 * (2 + 1) * 2
    assert [j[0] for j in jobs] == sorted(j[0] for j in jobs)
    assert len({tuple(j[1:] for j in jobs if j[0] == r) for r in range(4)}) > 1
    assert jobs == list(driver._jobs(plan))


def run(variant: str, round_: int, ms: float, **more: Any) -> Run:
    """A process of 20 steps, the first ten slower."""
    values = {
        "workload": "W3",
        "n_threads": 1,
        "faults": [500] * 10 + [3] * 10,
        "base_bytes": 100 * MIB,
        "peak_bytes": 180 * MIB,
        "idle_bytes": 120 * MIB,
        "max_rss_bytes": 300 * MIB,
        "bits": "same",
        "switch_on_ms": 0.5,
    }
    times = [10 * ms] * 10 + [ms] * 10
    return Run(variant=variant, round=round_, ms=times, **(values | more))


def value_of(
    rows: list[Row], figure: str, variant: str, against: str = "", workload: str = "W3"
) -> float:
    [row] = [
        r
        for r in rows
        if (r.figure, r.variant, r.against) == (figure, variant, against)
        and r.workload == workload
    ]
    return row.value


def test_figures_of_made_up_processes() -> None:
    stock = [run("stock", i, ms) for i, ms in enumerate((12.0, 8.0, 10.0))]
    pool = [
        run("pool", i, ms, peak_bytes=150 * MIB, arena_bytes=[31 * MIB] * 20)
        for i, ms in enumerate((4.0, 5.0, 6.0))
    ]
    peer = [run("tcmalloc", i, 4.0) for i in range(3)]
    live = {("W3", "stock", 1): Live(40 * MIB, 30 * MIB, 9.0)}
    rows = figures.rows(Samples([*pool, *stock, *peer], live))
    assert value_of(rows, "step", "stock") == 10
    assert value_of(rows, "step", "pool", "stock") == 10 / 5
    assert value_of(rows, "paired steps", "pool", "stock") == 10 / 6
    assert value_of(rows, "step", "pool", "tcmalloc") == 4 / 5
    assert value_of(rows, "first step", "pool", "stock") == 2
    assert value_of(rows, "spread of steps", "pool") == 100 * (6 - 4) / 5
    assert value_of(rows, "faults", "pool") == 3
    assert value_of(rows, "peak", "pool", "stock") == 180 / 150
    assert value_of(rows, "RSS / live", "stock") == (180 - 100 - 20) / 40
    assert value_of(rows, "RSS / live", "pool") == (150 - 100 - 20) / 40
    assert value_of(rows, "arena / live", "pool") == 31 / 30
    assert not [r for r in rows if (r.variant, r.against) == ("tcmalloc", "pool")]
    assert not [r for r in rows if r.variant == "stock" and r.against]


def test_settled_faults_leave_out_steps_that_raised_the_high_water() -> None:
    arena = [10] * 12 + [11] * 8
    faults = [0] * 12 + [700] + [0] * 7
    grown = run("pool", 0, 1.0, faults=faults, arena_bytes=arena)
    assert grown.faults_per_step == 70
    assert grown.settled_faults == 0
    assert run("stock", 0, 1.0).settled_faults is None


def test_short_runs_count_their_second_half() -> None:
    assert Run(**{**vars(run("stock", 0, 1.0)), "ms": [9, 9, 2, 2]}).median_ms == 2


def test_geometric_means_are_of_complete_sets_only() -> None:
    names = (*figures.MIXED, "EW")
    runs = [run("stock", 0, 8.0, workload=w) for w in names]
    runs += [run("pool", 0, 4.0, workload=w) for w in figures.MIXED]
    rows = figures.rows(Samples(runs))
    assert value_of(rows, "step", "pool", "stock", figures.GEOMEAN) == pytest.approx(2)
    assert figures.GEOMEAN_WITH_EW not in {r.workload for r in rows}
    runs.append(run("pool", 0, 8.0 / 2**8, workload="EW"))
    rows = figures.rows(Samples(runs))
    mean = value_of(rows, "step", "pool", "stock", figures.GEOMEAN_WITH_EW)
    assert mean == pytest.approx(4)


def test_other_bits_than_stocks_do_not_pass() -> None:
    runs = [run("stock", 0, 1.0), run("pool", 0, 1.0, bits="other")]
    runs.append(run("mallopt", 0, 1.0))
    verdict = {
        r.variant: r.passes_gate for r in figures.rows(Samples(runs)) if r.against
    }
    assert verdict == {"pool": False, "mallopt": True}


def test_figures_of_the_allocator_alone() -> None:
    def micro(variant: str, ms: float, pair_ns: dict[str, float] | None) -> Micro:
        fill = {"main": {"ms": ms, "faults": 1.0}}
        return Micro(variant, 1, 0, fill, {"16": 700.0, "65536": 720.0}, pair_ns)

    samples = [micro("stock", 30.0, None), micro("pool", 2.0, {"1048576": 12.0})]
    rows = figures.rows(Samples(micro=samples))
    name = "fill 64 MiB, main thread"
    assert value_of(rows, name, "pool", "stock", "micro") == 15
    assert value_of(rows, f"{name}, faults", "pool", "", "micro") == 1
    assert value_of(rows, "torch.empty of 64 KiB", "pool", "", "micro") == 720
    assert value_of(rows, "pair of 1 MiB", "pool", "", "micro") == 12
    assert not [r for r in rows if r.figure.startswith("pair") and r.variant == "stock"]


def step_row(workload: str, value: float, **more: Any) -> Row:
    values = {"figure": "step", "variant": "pool", "against": "stock", "unit": "ratio"}
    return Row(workload=workload, value=value, n_threads=1, **(values | more))


def test_the_last_target_that_fits_holds() -> None:
    wanted = [
        {"figure": "step", "against": "stock", "at_least": 0.99},
        {"figure": "step", "against": "stock", "workload": "W3", "at_least": 1.4},
        {"figure": "faults", "at_most": 5},
    ]
    rows = [step_row("W1", 1.0), step_row("W3", 1.3)]
    rows.append(step_row("W3", 0.1, variant="mallopt"))
    verdict = targets.judge(rows, wanted, ours="pool")
    assert verdict.met == 1
    assert verdict.missed == [
        "missed: W3, step against stock, 1 thread(s): 1.3, target >= 1.4"
    ]
    assert verdict.unmeasured == ["*, faults"]


def test_a_target_can_be_another_workloads_figure() -> None:
    wanted = [{"figure": "spread of steps", "at_most_as": "W6"}]
    spread = {"figure": "spread of steps", "against": "", "unit": "%"}
    rows = [
        step_row(w, v, **spread) for w, v in (("W6", 3.0), ("W1", 2.0), ("W3", 4.0))
    ]
    verdict = targets.judge(rows, wanted, ours="pool")
    assert [line.split(",")[0] for line in verdict.missed] == ["missed: W3"]


def test_other_numbers_meet_no_target() -> None:
    wanted = [{"figure": "step", "against": "stock", "at_least": 0.99}]
    rows = [step_row("W1", 2.0, passes_gate=False)]
    verdict = targets.judge(rows, wanted, ours="pool")
    assert "numbers outside the contract" in verdict.missed[0]


def test_figures_as_csv(tmp_path: Path) -> None:
    file = tmp_path / "figures.csv"
    write_csv(file, [step_row("W1", 1.23456)], {"libc": "some"})
    lines = file.read_text().splitlines()
    assert "# libc: some" in lines
    [row] = csv.DictReader(line for line in lines if not line.startswith("#"))
    assert (row["workload"], row["value"]) == ("W1", "1.235")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--workloads", "W33"], "no workload is called W33: SimpleCNN, W1"),
        (["--variants", "umem"], "no variant is called umem: stock, pool, mallopt"),
        (["--plot", "x"], "unrecognized arguments"),
    ],
)
def test_the_command_names_what_there_is(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main(["memory", *words])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert answer in error
    assert "benchmarks memory: " in error


def test_bench_says_where_its_neighbours_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["no such figure"], ["memory"]):
        with pytest.raises(SystemExit):
            package.main(["bench", *words])
        assert f"no figure is named like {words[0]}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        package.main(["bench", "memory"])
    assert "python -m benchmarks memory" in capsys.readouterr().err


def test_the_command_writes_what_it_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure(plan: driver.Plan, _progress: driver.Progress) -> driver.Measured:
        assert plan == driver.Plan(("W3",), ("stock", "pool"), (1,), 2, 12)
        runs = [run("stock", 0, 2.0), run("pool", 0, 1.0)]
        return driver.Measured(runs, missing={"jemalloc": "why"})

    monkeypatch.setattr(driver, "measure", measure)
    monkeypatch.chdir(Path(__file__).parents[2])
    file = tmp_path / "all.json"
    words = ["--quick", "--workloads", "W3", "--variants", "pool", "--check"]
    assert command.main(["memory", *words, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "2.00x" in shown
    assert "missing: jemalloc: why" in shown
    assert "not measured: micro, pair of *" in shown
    document = json.loads(file.read_text())
    assert document.keys() >= {
        "environment",
        "missing",
        "rows",
        "runs",
        "live",
        "micro",
    }
    assert len(document["runs"]) == 2


def test_replay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The planner is at the live peak, or no worse than the best policy."""
    path = tmp_path / "replay.json"
    names = ["--workloads", "W3", "W1", "--json", str(path)]
    assert command.main(["memory", "--replay", "--check", *names]) == 0
    rows = json.loads(path.read_text())["replay"]
    assert [row["workload"] for row in rows] == ["W3", "W1"]
    for row in rows:
        assert row["events"] > 50
        assert 1 <= row["planned"] <= max(1.02, row["best_fit"], row["first_fit"])
        assert 1 <= row["exact_fit"] <= 1.13
    assert "planned" in capsys.readouterr().out


def test_a_trace_of_a_history() -> None:
    history = [
        ("free_completed", 9, 100, 0, 0),
        ("alloc", 9, 64, 0, 1),
        ("alloc", 7, 128, 0, 2),
        ("free_completed", 9, 64, 0, 3),
        ("oom", 0, 1 << 40, 0, 4),
        ("alloc", 9, 256, 0, 5),
        ("free_completed", 9, 256, 0, 6),
    ]
    expected = [(64, 0), (128, 0), (0, 0), (256, 0), (0, 2)]
    assert replay.as_trace(history) == expected

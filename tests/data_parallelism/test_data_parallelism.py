"""``data_parallelism`` in one process: stock, threads that fit, and what it says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import switching
import torch
from torch import nn

import pai_torchacc as ptac
from pai_torchacc import _features
from pai_torchacc.data_parallelism import threads

PATCHED = ("__init__", "forward")


def of_data_parallel() -> list[Any]:
    return [vars(nn.DataParallel)[name] for name in PATCHED]


@pytest.fixture(autouse=True)
def off_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Off, and nothing said of ranks or threads."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = of_data_parallel()
    yield
    ptac.disable_data_parallelism()
    assert all(map(lambda a, b: a is b, of_data_parallel(), before))


@pytest.fixture
def one_processor() -> Iterator[int]:
    """One processor for all of the threads that there were."""
    all_of_them = os.sched_getaffinity(0)
    n = torch.get_num_threads()
    if os.cpu_count() == 1:
        pytest.skip("there is one processor: no thread too many")
    try:
        os.sched_setaffinity(0, {min(all_of_them)})
        torch.set_num_threads(os.cpu_count() or 1)
        yield os.cpu_count() or 1
    finally:
        ptac.disable_data_parallelism()
        os.sched_setaffinity(0, all_of_them)
        torch.set_num_threads(n)


def test_by_name_only() -> None:
    assert "data_parallelism" not in _features.in_bare_enable()
    assert not ptac.is_enabled("data_parallelism")
    with ptac.enable_data_parallelism():
        assert ptac.is_enabled("data_parallelism")


@pytest.mark.parametrize("mode", ["fsdp", "", "DDP"])
def test_unknown_modes_are_errors(mode: Any) -> None:
    with pytest.raises(ValueError, match="auto, off, dp, ddp"):
        ptac.enable_data_parallelism(mode)


@pytest.mark.parametrize("mode", [None, 2, True])
def test_modes_are_strings(mode: Any) -> None:
    with pytest.raises(TypeError, match="mode is a string"):
        ptac.enable_data_parallelism(mode)


@pytest.mark.parametrize("mode", ["auto", "off", "dp", "ddp"])
def test_one_process_trains_as_ever(mode: Any) -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.DataParallel(nn.Sequential(nn.Linear(8, 8), nn.Dropout()), dim=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(6, 8)).square().mean().backward()
            optimizer.step()
        assert list(model.state_dict()) == ["module.0.weight", "module.0.bias"]
        return [p.detach().clone() for p in model.parameters()]

    plain = train()
    with ptac.enable_data_parallelism(mode) as handle:
        assert handle, handle.reason
        ours = train()
    assert all(map(torch.equal, plain, ours))


def test_only_ddp_replaces_the_call() -> None:
    stock = of_data_parallel()
    for mode, n_changed in {"auto": 1, "off": 0, "dp": 1, "ddp": 2}.items():
        with ptac.enable_data_parallelism(mode):
            now = of_data_parallel()
        assert sum(a is not b for a, b in zip(stock, now, strict=True)) == n_changed


def test_twice_on_is_once_and_the_latest_mode_holds() -> None:
    stock = of_data_parallel()
    ptac.enable_data_parallelism("ddp")
    once = of_data_parallel()
    ptac.enable_data_parallelism("ddp")
    ptac.enable("adaptive_lr")  # which leaves the mode as it is
    ptac.disable("adaptive_lr")
    assert all(map(lambda a, b: a is b, of_data_parallel(), once))
    assert ptac.explain_parallelism().mode == "ddp"
    with ptac.enable_data_parallelism("dp"):
        assert ptac.explain_parallelism().mode == "dp"
    assert ptac.explain_parallelism().mode == "ddp"
    ptac.disable_data_parallelism()
    ptac.disable_data_parallelism()
    assert all(map(lambda a, b: a is b, of_data_parallel(), stock))


def test_what_others_have_patched_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(self: Any, *args: Any) -> Any:
        return self.module(*args)

    monkeypatch.setattr(nn.DataParallel, "forward", theirs)
    with pytest.warns(RuntimeWarning, match="changed by others"):
        handle = ptac.enable_data_parallelism("ddp")
    assert not handle
    assert "DataParallel.forward was changed by others" in handle.reason
    assert vars(nn.DataParallel)["forward"] is theirs
    monkeypatch.undo()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_explained_before_and_after() -> None:
    before = ptac.explain_parallelism()
    assert (before.mode, before.decision) == ("off", "off")
    assert "there is no GPU" in str(before)
    with ptac.enable_data_parallelism():
        on = ptac.explain_parallelism()
    assert (on.mode, on.decision) == ("auto", "stock")
    assert f"{torch.get_num_threads()} intra-op thread" in str(on)
    with ptac.enable_data_parallelism("ddp"):
        assert any("torchrun" in a for a in ptac.explain_parallelism().advice)


def test_report_has_the_explanation() -> None:
    with ptac.enable_data_parallelism():
        text, content = ptac.report(), json.loads(ptac.report("json"))
        explained = ptac.explain_parallelism()
    assert str(explained) in text
    assert content["data_parallelism"]["decision"] == explained.decision
    assert "data_parallelism" not in json.loads(ptac.report("json"))


def test_models_too_large_are_pointed_to_fully_shard() -> None:
    with ptac.enable_data_parallelism():
        small = nn.DataParallel(nn.Linear(2, 2))
        assert "fully_shard" not in str(ptac.explain_parallelism())
        large = nn.DataParallel(nn.Linear(1 << 22, 1 << 22, device="meta"))
        assert "fully_shard" in str(ptac.explain_parallelism())
    del small, large


WRONG = {
    "a word": ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE='two'"),
    "no rank": ({"WORLD_SIZE": "2"}, "RANK is not set"),
    "a rank beyond": ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2 and WORLD_SIZE=2"),
    "nobody": ({"WORLD_SIZE": "0", "RANK": "0"}, "WORLD_SIZE=0"),
    "negative": ({"WORLD_SIZE": "2", "RANK": "-1"}, "RANK='-1'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_ranks_are_the_reason(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables, reason = WRONG[case]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(RuntimeWarning, match="data_parallelism is not active"):
        handle = ptac.enable_data_parallelism("ddp")
    assert not handle and reason in handle.reason
    assert reason in str(ptac.explain_parallelism())


def test_threads_are_lowered_to_the_processors(one_processor: int) -> None:
    ptac.enable_data_parallelism()
    assert torch.get_num_threads() == 1
    assert f"1 intra-op thread instead of {one_processor}" in (
        ptac.explain_parallelism().threads
    )
    ptac.enable_data_parallelism()
    ptac.disable_data_parallelism()
    assert torch.get_num_threads() == one_processor


def test_threads_set_before_are_the_users(one_processor: int) -> None:
    torch.set_num_threads(one_processor + 1)
    with ptac.enable_data_parallelism():
        assert torch.get_num_threads() == one_processor + 1
    assert torch.get_num_threads() == one_processor + 1


def test_threads_set_afterwards_are_the_users(one_processor: int) -> None:
    with ptac.enable_data_parallelism():
        torch.set_num_threads(one_processor + 1)
    assert torch.get_num_threads() == one_processor + 1


def test_threads_of_the_environment_are_the_users(
    one_processor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(one_processor))
    with ptac.enable_data_parallelism():
        assert torch.get_num_threads() == one_processor
        assert "as OMP_NUM_THREADS says" in ptac.explain_parallelism().threads


def test_mode_off_leaves_threads(one_processor: int) -> None:
    with ptac.enable_data_parallelism("off"):
        assert torch.get_num_threads() == one_processor


CGROUPS = {
    "version 2, limited": ("0::/a/b\n", {"a/b/cpu.max": "150000 100000"}, 1.5),
    "version 2, above it": (
        "0::/a/b\n",
        {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"},
        0.5,
    ),
    "version 2, seen from inside": ("0::/../x\n", {"cpu.max": "200000 100000"}, 2.0),
    "version 2, none": ("0::/a\n", {"a/cpu.max": "max 100000"}, None),
    "version 1": (
        "3:cpu,cpuacct:/a\n2:cpuset:/\n",
        {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"},
        3.0,
    ),
    "version 1, none": (
        "3:cpu:/\n",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        None,
    ),
    "no numbers": ("0::/\n", {"cpu.max": "a lot"}, None),
    "nothing there": ("0::/a/b\n", {}, None),
    "no groups": ("", {}, None),
}


@pytest.mark.parametrize("case", CGROUPS)
def test_quota_of_a_control_group(case: str, tmp_path: Path) -> None:
    membership, contents, quota = CGROUPS[case]
    (tmp_path / "membership").write_text(membership)
    for name, text in contents.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    found = threads.cpu_quota(tmp_path / "membership", tmp_path / "root")
    assert found == quota


def test_enabling_in_one_process_loads_little() -> None:
    program = (
        "import sys, pai_torchacc as ptac\n"
        "room = 'pai_torchacc.data_parallelism.'\n"
        "assert room + 'stand_ins' not in sys.modules\n"
        "ptac.enable_data_parallelism(); ptac.explain_parallelism()\n"
        "assert room + 'stand_ins' in sys.modules\n"
        "from torch import distributed\n"
        "assert not distributed.is_initialized()\n"
    )
    done = switching.forked(["-c", program])
    assert done.returncode == 0, done.stderr


def test_only_ddp_needs_torch_distributed() -> None:
    """Some builds of torch have none of it."""
    program = (
        "import sys, torch, pai_torchacc as ptac\n"
        "sys.modules['torch.distributed.rendezvous'] = None\n"
        "handle = ptac.enable_data_parallelism()\n"
        "assert handle, handle.reason\n"
        "torch.nn.DataParallel(torch.nn.Linear(2, 2))(torch.ones(3, 2))\n"
    )
    done = switching.forked(["-c", program])
    assert done.returncode == 0, done.stderr

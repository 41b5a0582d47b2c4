"""Switches: on, off, within a block, in one thread, wrongly used."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import footprint
import layers
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc import _C, calibration, fusion
from pai_torchacc.fusion import precision

FUSION = "operator_fusion"


def pool() -> Tensor:
    """A call that a pinned row accelerates."""
    return F.max_pool2d(torch.arange(64.0).reshape(1, 1, 8, 8), 2)


def is_accelerated() -> bool:
    hits = switching.hits("max_pool2d")
    pool()
    return hits.accelerated == 1


def test_enable_and_disable() -> None:
    with switching.pins(["max_pool2d"]):
        assert not is_accelerated()
        handle = ptac.enable()
        with switching.pins(["max_pool2d"]):
            assert handle
            assert handle.reason is None
            assert ptac.is_enabled(FUSION)
            assert is_accelerated()
            ptac.disable()
            assert not handle
            assert handle.reason == "operator_fusion is switched off"
            assert not ptac.is_enabled(FUSION)
            assert not is_accelerated()


def test_each_way_to_say_it() -> None:
    for on in (
        ptac.enable,
        lambda: ptac.enable(FUSION),
        ptac.enable_operator_fusion,
        lambda: ptac.enable_operator_fusion(["max_pool2d"]),
    ):
        for off in (
            ptac.disable,
            lambda: ptac.disable(FUSION),
            ptac.disable_operator_fusion,
        ):
            handle = on()
            assert ptac.is_enabled(FUSION)
            off()
            assert not ptac.is_enabled(FUSION)
        handle = on()
        handle.disable()
        assert not ptac.is_enabled(FUSION)


def test_enabling_twice_equals_once() -> None:
    ptac.enable()
    once = footprint.take()
    since = ptac.status()[FUSION]["since"]
    ptac.enable()
    footprint.assert_same(once, footprint.take())
    assert ptac.status()[FUSION]["since"] == since
    ptac.disable()
    assert not ptac.is_enabled(FUSION)


def test_disabling_what_is_off() -> None:
    ptac.disable()
    ptac.disable(FUSION)
    ptac.disable_operator_fusion()


def test_enabling_first_is_silent() -> None:
    """Torch warns of overrides, once; not on stderr, and nothing of that remains."""
    program = """
import torch, pai_torchacc as ptac
from pai_torchacc import _C
names = sorted(torch._C._dispatch_get_all_op_names())
relu, defs = torch._C._dispatch_dump("aten::relu"), set(torch.library._defs)
ptac.enable()
assert _C.override_installed()
assert torch._C._dispatch_dump("aten::relu") == relu
ptac.disable()
assert sorted(torch._C._dispatch_get_all_op_names()) == names
assert set(torch.library._defs) == defs
assert not hasattr(torch.ops.pai_torchacc, "overridden_once")
"""
    done = switching.run_python(["-W", "error", "-c", program])
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


def test_switching_leaves_operators_of_others_alone() -> None:
    """A thread in TorchScript meets no Python kernel, not even for a moment."""

    @torch.jit.script
    def work(x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            x = torch.relu(x)
        return x

    x, stop = torch.randn(64), threading.Event()
    wrong: list[Exception] = []

    def other() -> None:
        while not stop.is_set() and not wrong:
            try:
                work(x, 20_000)
            except RuntimeError as error:
                wrong.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(60):
        ptac.enable()
        ptac.disable()
    stop.set()
    thread.join()
    assert not wrong


def test_status() -> None:
    off = {"active": False, "reason": None, "since": None}
    assert ptac.status()[FUSION] == off
    with ptac.enable() as handle:
        entry = ptac.status()[FUSION]
        assert entry["active"] is True
        assert entry["reason"] is None
        assert entry["since"].endswith("+00:00")
        assert handle.status().items() <= ptac.status().items()
        assert "active" in repr(handle)
    assert "switched off" in repr(handle)


def test_latest_options_hold() -> None:
    with switching.accelerated(numerics="exact", exclude=["max_pool2d"]):
        assert not is_accelerated()
        x, w = torch.randn(64, 32), torch.randn(16, 32)
        hits = switching.hits("linear_act")
        layers.linear(x, w)
        assert hits.forwarded == {"numerics level": 1}
        with ptac.enable():
            assert is_accelerated()
            layers.linear(x, w)
            assert hits.accelerated == 1
        assert not is_accelerated()


def test_with_restores_what_was_found() -> None:
    with switching.accelerated("max_pool2d"):
        with ptac.enable(exclude=["max_pool2d"]):
            assert not is_accelerated()
        assert is_accelerated()
        with pytest.raises(KeyError), ptac.enable(include=["log_softmax"]):
            assert not is_accelerated()
            raise KeyError
        assert is_accelerated()


def test_handles_can_be_kept_and_entered_again() -> None:
    handle = ptac.enable()
    ptac.disable()
    for _ in range(2):
        with handle as same:
            assert same is handle
            assert ptac.is_enabled(FUSION)
            with handle:
                assert ptac.is_enabled(FUSION)
            assert ptac.is_enabled(FUSION)
        assert not ptac.is_enabled(FUSION)


def test_disable_within_a_block() -> None:
    with ptac.enable():
        ptac.disable()
        assert not ptac.is_enabled(FUSION)
    assert not ptac.is_enabled(FUSION)


def test_switches_of_two_threads_are_both_on() -> None:
    switches = (ptac.enable_memory_pool, ptac.enable_model_quantization)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            barrier = threading.Barrier(2)

            def switch(on: Callable[[], object]) -> None:
                barrier.wait()  # noqa: B023
                on()

            threads = [threading.Thread(target=switch, args=(on,)) for on in switches]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert ptac.is_enabled("memory_pool")
            assert ptac.is_enabled("model_quantization")
            ptac.disable()
    finally:
        sys.setswitchinterval(interval)


def test_disabled_is_of_this_thread() -> None:
    seen = {}

    def other() -> None:
        seen["other"] = is_accelerated()

    with switching.accelerated("max_pool2d"):
        hits = switching.hits("max_pool2d")
        with ptac.disabled():
            pool()
            with ptac.disabled():
                pool()
            pool()
            assert hits.forwarded == {"disabled in this thread": 3}
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        assert seen == {"other": True}
        assert is_accelerated()


def in_thread(function: Callable[[], Any]) -> Any:
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_disabled_may_be_left_in_another_thread() -> None:
    """As generators are that somebody else closes."""

    def leaving_and_asking(block: Any) -> bool:
        block.__exit__(None, None, None)
        return is_accelerated()

    with switching.accelerated("max_pool2d"):
        for _ in range(3):
            outer, inner = ptac.disabled(), ptac.disabled()
            with outer:
                inner.__enter__()
                assert in_thread(lambda b=inner: leaving_and_asking(b))
                assert not is_accelerated()
            assert is_accelerated()
        block = ptac.disabled()
        in_thread(block.__enter__)  # the thread ends within its block
        assert is_accelerated()
        block.__exit__(None, None, None)
        assert is_accelerated()
        with ptac.disabled():
            assert not is_accelerated()
            assert in_thread(is_accelerated)


def test_disabled_ends_where_a_generator_is_dropped() -> None:
    def generator() -> Iterator[bool]:
        with ptac.disabled():
            yield is_accelerated()

    with switching.accelerated("max_pool2d"):
        numbers = generator()
        assert next(numbers) is False
        assert not is_accelerated()
        del numbers
        assert is_accelerated()


def test_disabled_ends_with_an_exception() -> None:
    with switching.accelerated("max_pool2d"):
        with pytest.raises(KeyError), ptac.disabled():
            raise KeyError
        assert is_accelerated()


def test_disabled_decorates() -> None:
    with switching.accelerated("max_pool2d"):
        assert not ptac.disabled()(is_accelerated)()
        assert is_accelerated()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": ["log_softmax"]}, "excluded"),
        ({"exclude": ["max_pool2d", "log_softmax"]}, "excluded"),
        (
            {"include": ["max_pool2d", "log_softmax"], "exclude": ["max_pool2d"]},
            "excluded",
        ),
        ({"include": ["max_pool2d"]}, None),
        ({"exclude": ["log_softmax"]}, None),
    ],
)
def test_include_and_exclude(options: dict[str, Any], expected: str | None) -> None:
    with switching.accelerated(**options):
        hits = switching.hits("max_pool2d")
        pool()
        if expected is None:
            assert hits.accelerated == 1
        else:
            # Without a registration there is nothing to count by.
            assert hits.accelerated == 0


def test_excluded_operators_leave_the_dispatcher_alone() -> None:
    before = torch._C._dispatch_dump("aten::max_pool2d_with_indices")
    with ptac.enable(exclude=["max_pool2d"]):
        assert torch._C._dispatch_dump("aten::max_pool2d_with_indices") == before


def test_ops_of_operator_fusion() -> None:
    with ptac.enable_operator_fusion(["log_softmax"]), switching.pins(["max_pool2d"]):
        assert not is_accelerated()
    with ptac.enable_operator_fusion(["max_pool2d"]), switching.pins(["max_pool2d"]):
        assert is_accelerated()


def test_a_forward_name_takes_its_backward_along() -> None:
    pair = {"max_pool2d", "max_pool2d_backward"}
    every = {op for _, op in _C.override_names()}
    every -= precision.operators_alone(_C)  # which come with numerics="fast"
    with ptac.enable():
        every -= fusion.unserved().keys()
    for options, expected in (
        ({"include": ["max_pool2d"]}, pair),
        ({"include": iter(["max_pool2d_backward"])}, {"max_pool2d_backward"}),
        ({"exclude": ["max_pool2d"]}, every - pair),
        (
            {"include": ["max_pool2d"], "exclude": ["max_pool2d_backward"]},
            {"max_pool2d"},
        ),
    ):
        with ptac.enable(**options):
            assert set(_C.override_installed()) == expected
    with ptac.enable_operator_fusion(["max_pool2d"]):
        assert set(_C.override_installed()) == pair


def test_unserved_operators_are_left_to_stock(tmp_path: Path) -> None:
    """No row serves them, so no call of them comes to us, until one is pinned."""
    stock = torch._C._dispatch_dump("aten::_log_softmax")
    with ptac.enable(calibration=table(tmp_path)):
        assert torch._C._dispatch_dump("aten::_log_softmax") == stock
        assert set(_C.override_installed()) == {"max_pool2d"}
        left = ptac.status()["operator_fusion"]["left_to_stock"]
        assert left["log_softmax"] == "not measured faster"
        assert "max_pool2d" not in left
        assert (
            "left to stock, not measured faster: adaptive_avg_pool2d," in ptac.report()
        )
        with switching.pins(["log_softmax"]):
            hits = switching.hits("log_softmax")
            torch.log_softmax(torch.randn(4, 9), 1)
            assert hits.accelerated == 1
    assert "left_to_stock" not in ptac.status()["operator_fusion"]


def test_numerics_exact_bars_what_rounds_differently() -> None:
    x, w = torch.randn(64, 32), torch.randn(16, 32)
    with switching.accelerated(numerics="exact"):
        hits = switching.hits("linear_act")
        layers.linear(x, w)
        assert hits.forwarded == {"numerics level": 1}
        assert is_accelerated()


def test_verify_shadows_one_call_in_so_many() -> None:
    with switching.accelerated("max_pool2d", verify=2):
        for _ in range(2):
            pool()  # the first check in a process is no timing
        before = _C.counters("max_pool2d")
        for _ in range(100):
            pool()
        after = _C.counters("max_pool2d")
        assert after[0] - before[0] == 100
        # Multiples of the golden ratio: any stretch of them is nearly even, not quite.
        assert abs(after[4] - before[4] - 50) <= 2
        assert isinstance(
            json.loads(ptac.report("json"))["ops"]["max_pool2d"]["ms_saved"], float
        )


def table(folder: Path, row: str = "scalar") -> Path:
    path = folder / "table.csv"
    kinds = {name: kinds for name, kinds, _ in _C.operators()}["max_pool2d"]
    lines = [",".join(calibration.COLUMNS)]
    lines += [f"max_pool2d,{kind},float32,1,1,{row},9.0,50.0" for kind in kinds]
    path.write_text("# by a test\n" + "\n".join(lines) + "\n")
    return path


def test_calibration_decides(tmp_path: Path) -> None:
    path = table(tmp_path)
    with ptac.enable(calibration=path):
        assert is_accelerated()
        left = ptac.status()["operator_fusion"]["left_to_stock"]
        assert left["log_softmax"] == "not measured faster"
        document = json.loads(ptac.report("json"))
        assert document["versions"]["calibration"] == str(path)


GOOD = "max_pool2d,window,float32,1,64,scalar,2.0,9.0"


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ([GOOD, GOOD], 3),
        ([GOOD.replace("2.0", "-2.0")], 2),
        (["", "# remark", GOOD.replace("2.0", "nan")], 4),
        ([GOOD.replace("9.0", "inf")], 2),
        ([GOOD.replace(",1,", ",0,")], 2),
        ([GOOD.replace(",64,", f",{1 << 63},")], 2),
        ([GOOD.replace(",64,", ",-64,")], 2),
        (["max_pool2d"], 2),
    ],
)
def test_a_table_that_nobody_measured(
    lines: list[str], number: int, tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    path.write_text("\n".join([",".join(calibration.COLUMNS), *lines, ""]))
    with pytest.raises(ValueError, match=rf"{path}, line {number}: .*measure"):
        ptac.enable(calibration=path)
    path.write_bytes(b"\x7fELF\xff\x00")
    with pytest.raises(ValueError, match=f"calibration: {path} is not a calibration"):
        ptac.enable(calibration=path)


def test_a_table_of_a_newer_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = table(tmp_path)
    with path.open("a") as file:
        file.write(GOOD.replace("max_pool2d", "conv9d") + "\n")
    with caplog.at_level(logging.WARNING, logger="pai_torchacc"):
        for _ in range(2):
            with ptac.enable(calibration=path):
                assert is_accelerated()
    [line] = caplog.messages
    assert line == f"{path}: operators unknown here are left out: conv9d"


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ptac.enable("fusion"), ValueError, FUSION),
    (lambda: ptac.enable(FUSION, "speed"), ValueError, FUSION),
    (lambda: ptac.enable(3), TypeError, "strings"),
    (lambda: ptac.enable(None), TypeError, "strings"),
    (lambda: ptac.enable(numerics="best"), ValueError, "exact, close, fast"),
    (lambda: ptac.enable(numerics=1), TypeError, "string"),
    (lambda: ptac.enable(include="max_pool2d"), TypeError, "collection"),
    (lambda: ptac.enable(include=["pool"]), ValueError, "max_pool2d, "),
    (lambda: ptac.enable(exclude=["pool"]), ValueError, "max_pool2d, "),
    (lambda: ptac.enable(exclude=[3]), TypeError, "strings"),
    (lambda: ptac.enable(exclude=3), TypeError, "exclude is a coll"),
    (lambda: ptac.enable(include=1), TypeError, "include is a coll"),
    (lambda: ptac.enable(include=[[]]), TypeError, "include: .*strings"),
    (lambda: ptac.enable(include=[]), ValueError, "include, .* no operator"),
    (
        lambda: ptac.enable(include=["zero_grad"], exclude=["zero_grad"]),
        ValueError,
        "no operator",
    ),
    (
        lambda: ptac.enable(exclude=[n for n, _, _ in _C.operators()]),
        ValueError,
        "no operator",
    ),
    (lambda: ptac.enable_operator_fusion([]), ValueError, "no operator"),
    (lambda: ptac.enable(strict="yes"), TypeError, "strict is True or False"),
    (lambda: ptac.enable(verify=10**30), ValueError, "verify=1000"),
    (lambda: ptac.enable(calibration=""), ValueError, "calibration=''"),
    (lambda: ptac.enable(calibration=b"x"), TypeError, "calibration is a path"),
    (lambda: ptac.enable(calibration="/"), OSError, "calibration: .*'/'"),
    (lambda: ptac.enable(verify=-1), ValueError, "0, or one"),
    (lambda: ptac.enable(verify="often"), TypeError, "integer"),
    (lambda: ptac.enable(verify=True), TypeError, "integer"),
    (lambda: ptac.enable(calibration=3), TypeError, "str"),
    (lambda: ptac.enable(calibration="no such file"), OSError, "no such file"),
    (lambda: ptac.enable(calibration=__file__), ValueError, "op,kind,dtype"),
    (lambda: ptac.enable(speed=11), TypeError, "speed"),
    (lambda: ptac.enable_operator_fusion(["pool"]), ValueError, "max_pool2d, "),
    (lambda: ptac.enable_operator_fusion("max_pool2d"), TypeError, "collection"),
    (lambda: ptac.disable("fusion"), ValueError, FUSION),
    (lambda: ptac.disable(3), TypeError, "strings"),
    (lambda: ptac.is_enabled("fusion"), ValueError, FUSION),
    (lambda: ptac.is_enabled(None), TypeError, "strings"),
    (lambda: ptac.report("xml"), ValueError, "text, json"),
    (lambda: ptac.report(format=3), ValueError, "text, json"),
]


def settled_status() -> dict[str, dict[str, Any]]:
    """Without what tensors of other tests still hold of a pool that is off."""
    return {
        name: {key: value for key, value in state.items() if key != "draining"}
        for name, state in ptac.status().items()
    }


@pytest.mark.parametrize("was_on", [False, True])
@pytest.mark.parametrize(("call", "kind", "text"), WRONG)
def test_wrong_use(
    call: Callable[[], Any], kind: type[Exception], text: str, was_on: bool
) -> None:
    """A clear error that names what would be right, and nothing has changed."""
    with ptac.enable(numerics="exact") if was_on else torch.no_grad():
        before, status = footprint.take(), settled_status()
        with pytest.raises(kind, match=text):
            call()
        footprint.assert_same(before, footprint.take())
        assert settled_status() == status
        hits = switching.hits("linear_act")
        layers.linear(torch.randn(64, 32), torch.randn(16, 32))
        assert hits.forwarded == ({"numerics level": 1} if was_on else {})


def test_operators_name_their_switch() -> None:
    switches = _C.op_switches()
    assert switches.keys() == {op for op, _, _ in _C.operators()}
    assert set(switches.values()) == {"operator_fusion", "model_quantization"}
    assert switches["int8_linear"] == "model_quantization"


@pytest.mark.parametrize("isa", ["scalar", "avx2", ""])
def test_the_preferred_row_runs_here_and_needs_most(isa: str) -> None:
    program = """
import torch, pai_torchacc
from pai_torchacc import _C
for op, _, rows in _C.operators():
    can_run = [name for name, level, runs, _ in rows if runs and level != "fast"]
    print(op, _C.preferred_row(op), *can_run)
"""
    for line in switching.python(program, PTAC_CPU_ISA=isa).splitlines():
        op, row, *can_run = line.split()
        assert row in can_run or (row == "None" and not can_run), op
        for best in ("avx512", "avx2"):
            if any(name.endswith(best) for name in can_run):
                assert row.endswith((best, "vnni")), (op, row, can_run)
                break

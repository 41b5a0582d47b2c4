"""The report: its JSON is a public interface, its text is an aligned table."""

from __future__ import annotations

import json
import logging
import re
import sys
import types
from typing import Any

import pytest
import switching
import torch
import torch.nn.functional as F

import pai_torchacc as ptac
from pai_torchacc import _C, _report


def document(reset: bool = False) -> dict[str, Any]:
    return json.loads(ptac.report("json", reset=reset))


def use() -> None:
    """Two calls of max_pool2d, one of them forwarded, and one of log_softmax."""
    F.max_pool2d(torch.ones(1, 1, 4, 4), 2)
    with ptac.disabled():
        F.max_pool2d(torch.ones(1, 1, 4, 4), 2)
    torch.log_softmax(torch.ones(2, 3), 1)


SCHEMA: dict[str, Any] = {
    "schema": int,
    "versions": {
        "pai_torchacc": str,
        "python": str,
        "torch": str,
        "cpu": str,
        "isa": str,
        "calibration": (str, type(None)),
    },
    "switches": dict,
    "ops": dict,
    "memory": {"cpu": {"page_faults": int, "saved_bytes": dict}},
    "sites": list,
    "bypassed": dict,
    "remarks": list,
}
ENTRY = {
    "level": str,
    "calls": int,
    "accelerated": int,
    "forwarded": dict,
    "failed": int,
    "ms_saved": (float, type(None)),
    "timed": int,
}


def assert_schema(value: Any, schema: Any) -> None:
    if isinstance(schema, dict):
        assert schema.keys() <= value.keys()
        for key, inner in schema.items():
            assert_schema(value[key], inner)
    else:
        assert isinstance(value, schema), value


def test_json_document() -> None:
    with switching.accelerated():
        use()
        found = document()
    assert_schema(found, SCHEMA)
    assert found["schema"] == 1
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["isa"] in ("scalar", "avx2", "avx512")
    for entry in found["switches"].values():
        assert_schema(entry, {"active": bool, "reason": (str, type(None))})
        assert "since" in entry
    assert list(found["ops"]) == [name for name, _, _ in _C.operators()]
    for entry in found["ops"].values():
        assert_schema(entry, ENTRY)
        assert entry["level"] in ("exact", "close", "fast")
        assert all(n > 0 for n in entry["forwarded"].values())
        assert set(entry["forwarded"]) <= set(_C.reasons())


def test_the_sum_is_right() -> None:
    with switching.accelerated():
        document(reset=True)
        use()
        ops = document()["ops"]
    pool = ops["max_pool2d"]
    assert pool["accelerated"] == 1
    assert pool["forwarded"] == {"disabled in this thread": 1}
    assert pool["failed"] == 0
    assert ops["log_softmax"]["calls"] == 1
    for entry in ops.values():
        total = entry["accelerated"] + sum(entry["forwarded"].values())
        assert entry["calls"] == total + entry["failed"]


def test_reset() -> None:
    with switching.accelerated():
        use()
        before = document(reset=True)["ops"]["max_pool2d"]["calls"]
        assert before >= 2
        after = document()["ops"]
        assert all(entry["calls"] == 0 for entry in after.values())
        assert "has been called yet" in ptac.report()
        use()
        assert document()["ops"]["max_pool2d"]["calls"] == 2


def test_reset_of_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.SimpleNamespace(counters={"stats": {"unique_graphs": 3}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", module)
    monkeypatch.setattr(_report, "_graphs_before", 0)
    assert document(reset=True)["bypassed"] == {"compiled": 3}
    assert document()["bypassed"] == {}
    module.counters["stats"]["unique_graphs"] = 5
    assert document()["bypassed"] == {"compiled": 2}
    module.counters["stats"]["unique_graphs"] = 1  # torch has reset them itself
    assert document()["bypassed"] == {"compiled": 1}


def test_level_is_that_of_what_ran() -> None:
    level = lambda **how: document(**how)["ops"]["conv2d"]["level"]  # noqa: E731
    document(reset=True)
    with ptac.enable(numerics="fast"):
        assert level() == "fast"
    with switching.accelerated():
        assert level(reset=True) == "fast"
        assert level() == "close"
    with ptac.enable(numerics="exact"):
        assert level() == "close"
        level(reset=True)
        assert level() == "exact"


def test_text_is_aligned() -> None:
    with switching.accelerated():
        ptac.report(reset=True)
        use()
        lines = ptac.report().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("operator "))
    header, rows = lines[start], lines[start + 1 : lines.index("", start)]
    assert len(rows) == 2
    assert all(line == line.rstrip() for line in lines)
    assert re.fullmatch(r"page faults since the last reset: \d+", lines[-1])
    columns = ["level", "forwarded, failed"]
    for row in rows:
        for name in columns:
            place = header.index(name)
            assert row[place - 2 : place] in ("  ", "")
            assert row[place : place + 1] != " "
        end = header.index("calls") + len("calls")
        assert row[end - 1].isdigit()
        assert row[end] == " "
    assert rows[0].startswith("max_pool2d")
    assert rows[0].endswith("1 disabled in this thread")


def test_report_of_a_process_that_is_off() -> None:
    assert "operator_fusion: off" in ptac.report()
    assert document()["switches"]["operator_fusion"]["active"] is False


def test_the_first_report_counts_nothing_of_ours() -> None:
    """What enable() itself ran to prove its rows is no call of the program."""
    program = """
import json, pai_torchacc as ptac
ptac.enable()
print(sum(op["calls"] for op in json.loads(ptac.report("json"))["ops"].values()))
"""
    assert switching.python(program) == "0\n"


def test_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pai_torchacc"):
        ptac.enable()
        ptac.enable()
        said = [r.getMessage() for r in caplog.records if r.name == "pai_torchacc"]
        assert len(said) == 1
        assert said[0].startswith("operator_fusion, memory_pool are on (numerics close")
        ptac.disable()


def test_while_another_thread_imports_torch_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partial = types.ModuleType("torch._dynamo.utils")
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", partial)
    assert document()["bypassed"] == {}

"""The verdict that a report begins with, and the report in notebooks."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import switching
import torch
import torch.nn.functional as F
from torch import nn

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc._report import verdict


def document() -> dict[str, Any]:
    return json.loads(ptac.report("json"))


def table(tmp_path, ratio: float, stock_us: float) -> str:
    """One in which max pooling of 64 outputs and more is that much faster."""
    row = _C.preferred_row("max_pool2d")
    kinds = next(kinds for op, kinds, _ in _C.operators() if op == "max_pool2d")
    lines = ["op,kind,dtype,threads,work,row,ratio,stock_us"]
    lines += [f"max_pool2d,{k},float32,1,64,{row},{ratio},{stock_us}" for k in kinds]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def pool(n: int) -> torch.Tensor:
    """Call it once, with 64 n outputs."""
    return F.max_pool2d(torch.randn(1, n, 16, 16), 2)


@pytest.mark.parametrize(("ratio", "saved"), [(4.0, 0.75), (2.0, 0.5)])
def test_estimates_follow_the_table(tmp_path, ratio: float, saved: float) -> None:
    asked = {"include": ["max_pool2d"], "calibration": table(tmp_path, ratio, 100.0)}
    with ptac.enable("operator_fusion", **asked):
        ptac.report(reset=True)
        work = []
        for n in (4, 8):
            before = _C.estimates("max_pool2d")[0]
            pool(n)
            work.append(_C.estimates("max_pool2d")[0] - before)
        found = document()
    assert found["ops"]["max_pool2d"]["accelerated"] == 2
    assert work[1] == pytest.approx(2 * work[0])  # time grows with the work
    said = found["verdict"]
    assert said["calls"] == said["accelerated"] == 2
    assert said["served_ms"] == pytest.approx(sum(work) / 1e6)
    assert said["saved_ms"] == pytest.approx(saved * said["served_ms"])
    assert said["gain"] == pytest.approx(ratio)
    assert said["costs"] == []


def test_time_of_calls_that_run_stock_counts(tmp_path) -> None:
    path = table(tmp_path, 2.0, 100.0)
    with open(path, "a") as file:  # noqa: PTH123
        for line in [x for x in open(path) if x.startswith("max")]:  # noqa: PTH123, SIM115
            place = line.split(",")
            place[4], place[6] = "2000", "1.0"
            file.write(",".join(place))
    asked = {"include": ["max_pool2d"], "calibration": path}
    with ptac.enable("operator_fusion", **asked):
        ptac.report(reset=True)
        pool(4)
        pool(200)
        found = document()
    said = found["verdict"]
    assert found["ops"]["max_pool2d"]["forwarded"] == {"not measured faster": 1}
    assert 0 < said["served_ms"] < said["stock_ms"]
    assert 1 < said["gain"] < 2  # of the first call alone it would be 2


def test_time_of_calls_that_no_table_knows_counts(tmp_path) -> None:
    asked = {"include": ["max_pool2d"], "calibration": table(tmp_path, 2.0, 100.0)}
    with ptac.enable("operator_fusion", **asked):
        ptac.report(reset=True)
        pool(4)
        F.max_pool2d(torch.randn(1, 4, 16, 16).half(), 2)
        found = document()
    said = found["verdict"]
    assert found["ops"]["max_pool2d"]["forwarded"] == {"dtype": 1}
    assert said["stock_ms"] == pytest.approx(2 * said["served_ms"])
    assert ", 50% of their time" in ptac.report().splitlines()[0]


def test_what_options_leave_to_stock_is_said() -> None:
    with ptac.enable("operator_fusion", numerics="exact"):
        ptac.report(reset=True)
        pool(4)
        said = ptac.report()
    [line] = [x for x in said.splitlines() if x.startswith("not counted, since left")]
    assert "(numerics level): " in line and "conv2d" in line
    assert "max_pool2d" not in line


def test_a_reset_begins_anew(tmp_path) -> None:
    asked = {"include": ["max_pool2d"], "calibration": table(tmp_path, 2.0, 100.0)}
    with ptac.enable("operator_fusion", **asked):
        pool(8)
        assert document()["verdict"]["served_ms"] > 0
        ptac.report(reset=True)
        assert document()["verdict"]["served_ms"] == 0


def test_what_costs_most_comes_with_advice() -> None:
    class Mine(torch.optim.Adam):
        pass

    model = nn.Linear(8, 8)
    optimizer = Mine(model.parameters())
    with switching.accelerated():
        ptac.report(reset=True)
        for _ in range(5):
            model(torch.ones(2, 8)).square().sum().backward()
            optimizer.step()
        text, costs = ptac.report(), document()["verdict"]["costs"]
    assert costs[0]["op"] == "adam_step"
    assert costs[0]["reason"] == "optimizer subclass"
    assert "a subclass of a torch optimizer" in text.splitlines()[1]


def test_every_advice_is_for_a_reason() -> None:
    assert set(verdict.ADVICE) <= set(_C.reasons())


def test_the_first_line_says_it() -> None:
    ptac.disable()
    ptac.report(reset=True)
    assert ptac.report().startswith(
        "nothing is accelerated: call pai_torchacc.enable()"
    )
    with switching.accelerated():
        assert ptac.report().startswith("nothing to accelerate yet")
        F.max_pool2d(torch.randn(8, 16, 32, 32), 2)
        assert ptac.report().startswith("accelerated: 1 of 1 calls")


def test_a_notebook_shows_html() -> None:
    with switching.accelerated():
        ptac.report(reset=True)
        F.max_pool2d(torch.randn(8, 16, 32, 32), 2)
        report = ptac.report()
    html = report._repr_html_()
    assert isinstance(report, str)
    assert "<td>max_pool2d</td>" in html
    assert html.count("<table>") == html.count("</table>") == 1
    assert type(ptac.report("json")) is str
    copied = pickle.loads(pickle.dumps(report))
    assert (copied, copied._repr_html_()) == (report, html)


def test_html_escapes() -> None:
    with switching.accelerated():
        F.max_pool2d(torch.randn(8, 16, 32, 32), 2)
        report = ptac.report()
    report.content["remarks"].append("<script>alert(1)</script>")
    report.content["ops"]["max_pool2d"]["level"] = "<b>"
    assert "<script>" not in report._repr_html_()
    assert "&lt;b&gt;" in report._repr_html_()


def test_rates_and_quantized_models_are_told() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ptac.enable_adaptive_lr():
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
        text, found = ptac.report(), document()["adaptive_lr"]
    assert [entry["steps"] for entry in found if entry["optimizer"] == "SGD"] == [3]
    assert "SGD: adaptive lr" in text
    small = nn.Sequential(nn.Linear(64, 64))
    ptac.quantize_model(small, method="int8")
    text, found = ptac.report(), document()["quantization"]
    ptac.disable()
    assert {"model": "Sequential", "layers": 1, "int8": 1}.items() <= found[-1].items()
    assert "Sequential: 1 of 1 layers are int8" in text

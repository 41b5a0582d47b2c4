"""``python -m benchmarks zoo``, by a clock that only the models of a test move."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from results import rows_of
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.__main__ import main
from benchmarks.zoo import choice, measuring, model, output, run
from benchmarks.zoo.measuring import FEWEST, Row, Setting
from benchmarks.zoo.model import MODELS, PACKAGES
from pai_torchacc import __main__ as package
from pai_torchacc import _switch
from pai_torchacc.bench import beside, measure

GROUP = __name__
STOCK_S, SHORT_S, LONG_S = 0.01, 0.005, 0.04
"""What calls take: stock's, and ours where it is fast and slow."""

Capture = pytest.CaptureFixture[str]


class Clock:
    """Stands still but for models."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


clock = Clock()


class Takes(nn.Module):
    """Uses two operators of ours, and takes as long as it is told at the moment."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        super().__init__()
        self.seconds, self.scale = seconds, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        clock.now += self.seconds()
        return F.log_softmax(F.max_pool2d(x * self.scale, 4).flatten(1), 1)


def is_ours() -> bool:
    return ptac.is_enabled("operator_fusion")


def is_used(operator: str) -> bool:
    return is_ours() and operator not in _switch.current().exclude


def add(name: str, seconds: Callable[[], float]) -> None:
    @model.model(name)
    def make() -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
        return Takes(seconds), (torch.randn(2, 1, 8, 8),), model.classes(2, 4)


@pytest.fixture(autouse=True)
def no_other_models() -> Iterator[None]:
    kept = dict(MODELS)
    MODELS.clear()
    yield
    MODELS.clear()
    MODELS.update(kept)


@pytest.fixture(autouse=True)
def clock_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(run, "QUICK", (2, 0.02))


def fast() -> float:
    return SHORT_S if is_ours() else STOCK_S


def slow() -> float:
    return LONG_S if is_ours() else STOCK_S


def slow_by_pooling() -> float:
    return LONG_S if is_used("max_pool2d") else fast()


def zoo(*words: str) -> int:
    return main(["zoo", "--quick", *words])


def test_what_is_written(tmp_path: Path, capsys: Capture) -> None:
    add("a fast one", fast)
    add("another", fast)
    files = [tmp_path / name for name in ("z.csv", "z.png", "z.json")]
    outputs = ["--csv", str(files[0]), "--plot", str(files[1]), "--json", str(files[2])]
    before = torch.get_num_threads()
    assert zoo("--levels", "close", "fast", "--threads", "1", "2", *outputs) == 0
    assert torch.get_num_threads() == before
    rows = rows_of(files[0])
    assert list(rows[0]) == [
        *("model", "group", "way", "level", "n_threads", "ratio", "of_medians"),
        *("stock_us", "our_us"),
    ]
    keys = {(r["model"], r["way"], r["level"], r["n_threads"]) for r in rows}
    assert len(keys) == len(rows) == 2 * 2 * 2 * 2
    assert {r["group"] for r in rows} == {GROUP}
    for r in rows:
        ratio = float(r["stock_us"]) / float(r["our_us"])
        assert float(r["ratio"]) == float(r["of_medians"]) == ratio == 2.0
    assert files[1].stat().st_size > 0
    document = json.loads(files[2].read_text())
    assert len(document["results"]) == len(rows)
    assert len(document["groups"]) == 2 * 2 * 2
    assert document["slow"] == document["skipped"] == document["failed"] == []
    out = capsys.readouterr().out
    assert "stock ms" in out
    assert "geometric mean" in out
    assert "slower than stock" not in out


def test_only_check_fails_for_slow_models(capsys: Capture) -> None:
    add("a slow one", slow)
    assert zoo("--ways", "inference") == 0
    said = capsys.readouterr().out
    assert "slower than stock: a slow one, inference, close, 1 thread(s): 0." in said
    assert zoo("--ways", "inference", "--check") == 1
    said = capsys.readouterr().out
    assert "1 of 1 rows below 0.98 in 3 attempts, 0 failed" in said


def test_a_model_has_three_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = iter([0.9, 0.97, 1.1, 0.5, 0.7, 0.6])

    def measure(s: Setting) -> Row:
        key = s.model, GROUP, s.way, s.level, s.n_threads
        return Row(*key, next(ratios), 1.0, 1.0, 1.0)

    monkeypatch.setattr(measuring, "_measure", measure)
    setting = Setting("any", "training", "close", 1)
    assert measuring.settled(setting).ratio == 1.1
    assert measuring.settled(setting).ratio == 0.7


@pytest.mark.parametrize("way", ["inference", "training"])
def test_the_operator_to_blame_is_named(
    way: str, tmp_path: Path, capsys: Capture
) -> None:
    add("slow by pooling", slow_by_pooling)
    file = tmp_path / "z.json"
    assert zoo("--check", "--ways", way, "--json", str(file)) == 1
    assert "x; without max_pool2d" in capsys.readouterr().out
    [found] = json.loads(file.read_text())["slow"]
    assert found["ratio"] == pytest.approx(0.25)
    assert found["without"] == {
        "operator": "max_pool2d",
        "ratio": pytest.approx(2.0),
    }


def test_no_operator_is_to_blame(capsys: Capture) -> None:
    add("a slow one", slow)
    assert zoo("--ways", "inference") == 0
    assert "x; to blame: none of them (the best is without " in capsys.readouterr().out


def test_each_operator_of_a_call_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    enable = ptac.enable

    def watched(**options: Any) -> ptac.Handle:
        tried.append((options["numerics"], *(options["exclude"] or ())))
        return enable(**options)

    monkeypatch.setattr(ptac, "enable", watched)
    add("a slow one", slow)
    measuring.blame(Setting("a slow one", "inference", "fast", 1, 2, 1e-4))
    assert {("fast", "max_pool2d"), ("fast", "log_softmax")} <= set(tried)
    assert not any("conv2d" in options for options in tried)
    assert all(options[0] == "fast" for options in tried)


def test_a_model_without_operators_of_ours(capsys: Capture) -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            clock.now += slow()
            return x

    @model.model("plain")
    def make() -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
        return Plain(), (torch.randn(2, 4),), model.classes(2, 4)

    assert zoo("--ways", "inference") == 0
    assert "x; it uses no operator of ours" in capsys.readouterr().out


def fails_if(condition: Callable[[], bool]) -> Callable[[], float]:
    def seconds() -> float:
        if condition():
            raise RuntimeError("no such layer\nand a long story")
        return fast()

    return seconds


def test_what_fails_in_stock_is_skipped(tmp_path: Path, capsys: Capture) -> None:
    @model.model("not built")
    def _() -> Any:
        raise OSError("no such file")

    add("not run", fails_if(lambda: not is_ours()))
    add("good", fast)
    file = tmp_path / "z.json"
    assert zoo("--check", "--ways", "inference", "--json", str(file)) == 0
    out = capsys.readouterr().out
    where = "inference, close, 1 thread(s)"
    assert f"skipped: not built, {where}: OSError: no such file\n" in out
    assert f"skipped: not run, {where}: RuntimeError: no such layer\n" in out
    document = json.loads(file.read_text())
    assert [r["model"] for r in document["results"]] == ["good"]
    assert [r["model"] for r in document["skipped"]] == ["not built", "not run"]


def test_what_fails_with_us_only_is_a_failure(tmp_path: Path, capsys: Capture) -> None:
    add("broken", fails_if(is_ours))
    csv = tmp_path / "z.csv"
    command = ["--ways", "training", "--csv", str(csv)]
    assert zoo(*command) == 0
    assert zoo(*command, "--check") == 1
    out = capsys.readouterr().out
    assert "failed with us only: broken, training, close, 1 thread(s): Runtime" in out
    assert "0 of 0 rows below" in out
    assert "1 failed with us only" in out
    assert not csv.exists()  # no row is in it
    assert not is_ours()


def test_a_failure_while_operators_are_excluded(capsys: Capture) -> None:
    def seconds() -> float:
        if is_ours() and not is_used("max_pool2d"):
            raise RuntimeError("cannot do without")
        return slow()

    add("slow, then broken", seconds)
    assert zoo("--ways", "inference", "--check") == 1
    out = capsys.readouterr().out
    assert "failed with us only: slow, then broken" in out
    assert "slower than stock: slow, then broken" in out


def test_nothing_to_measure_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    add("good", fast)
    monkeypatch.setenv("PTAC_DISABLE", "1")
    with pytest.raises(SystemExit) as caught:
        zoo()
    assert caught.value.code == 2
    assert "nothing is accelerated here: " in capsys.readouterr().err


def test_long_calls_have_fewer_blocks() -> None:
    setting = Setting("any", "training", "close", 1)
    assert setting.blocks(1e-5) == setting.blocks(0.02) == 20
    assert setting.blocks(0.4) == setting.blocks(9.0) == FEWEST >= 5
    assert setting.blocks(0.1) >= setting.blocks(0.2) >= FEWEST


def test_long_calls_warm_themselves_up() -> None:
    calls: list[float] = []

    def seconds() -> float:
        calls.append(0.2 if is_ours() else 1.0)
        return calls[-1]

    add("a long one", seconds)
    row = measuring.settled(Setting("a long one", "inference", "close", 1))
    assert row.ratio == pytest.approx(5)
    assert calls.count(1.0) == calls.count(0.2) == 2 + FEWEST


def packages(monkeypatch: pytest.MonkeyPatch, *there: str) -> None:
    monkeypatch.setattr(model, "is_installed", lambda package: package in there)


def test_words_choose_models(monkeypatch: pytest.MonkeyPatch) -> None:
    packages(monkeypatch, *PACKAGES)
    for name in (
        "MobileNet-like",
        "LeNet",
        "timm mobilenet",
        "timm vit",
        "torchvision x",
    ):
        add(name, fast)

    def names(*words: str, takes_all: bool = False) -> list[str]:
        found, missing = choice.chosen(words, takes_all)
        assert not missing
        return found

    assert names() == ["MobileNet-like", "LeNet"] == names(GROUP)
    assert names(takes_all=True) == list(MODELS)
    assert names("mobilenet") == ["MobileNet-like"]
    assert names("mobilenet", takes_all=True) == ["MobileNet-like", "timm mobilenet"]
    assert names("timm") == ["timm mobilenet", "timm vit"]
    assert names("timm", "mobilenet") == ["timm mobilenet"]
    assert names("timm", GROUP, "mobilenet") == ["MobileNet-like", "timm mobilenet"]
    assert names("vit") == names("timm vit") == ["timm vit"]
    assert names("vit", "like") == ["MobileNet-like", "timm vit"]


def test_packages_that_are_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    packages(monkeypatch)
    for name in ("good", "timm good", "timm vit", "transformers BERT"):
        add(name, fast)
    line = "not installed: timm, transformers: pip install 'pai-torchacc[zoo]'\n"
    assert zoo("--all", "--ways", "inference") == 0
    assert line in capsys.readouterr().out
    assert zoo("good", "--ways", "inference") == 0
    assert "not installed" not in capsys.readouterr().out
    for words in (["timm"], ["vit"], ["good", "vit"], ["good", "timm"]):
        with pytest.raises(SystemExit) as caught:
            zoo(*words)
        assert caught.value.code == 2
        assert f"{words[-1]}: not installed: timm: pip" in capsys.readouterr().err
    for words in (["bad"], ["good", "bad"]):
        with pytest.raises(SystemExit):
            zoo(*words)
        error = capsys.readouterr().err
        assert f"no model is named like bad; groups: {GROUP}, timm" in error


def test_geometric_means_are_of_groups() -> None:
    keys = "training", "close", 1
    times = 1.0, 1.0, 1.0
    rows = [
        Row("a", "x", *keys, 2.0, *times),
        Row("b", "x", *keys, 8.0, *times),
        Row("c", "y", *keys, 0.5, *times),
        Row("c", "y", "training", "fast", 1, 3.0, *times),
    ]
    found = {(s.group, s.level): s for s in output.summaries(rows)}
    assert list(found) == [
        *(("x", "close"), ("y", "close"), ("y", "fast")),
        *((output.ALL, "close"), (output.ALL, "fast")),
    ]
    assert found["x", "close"].mean == pytest.approx(4)
    assert found["x", "close"].slowest == "a"
    assert found[output.ALL, "close"].mean == pytest.approx(2)
    assert found[output.ALL, "close"].n_models == 3
    assert [s.group for s in output.summaries(rows[:2])] == ["x"]


def test_bench_forwards(capsys: Capture) -> None:
    add("good", fast)
    assert package.main(["bench", "zoo", "--list"]) == 0
    assert "  good" in capsys.readouterr().out
    command = ["bench", "zoo", "goo", "--ways", "inference", "--levels", "fast"]
    assert package.main([*command, "--quick", "--check"]) == 0
    assert "good" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        package.main(["bench", "zoo", "--levels", "none"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit):
        package.main(["bench", "zo"])
    assert "no figure is named like zo: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        package.main(["bench", "--quick", "zoo"])
    assert "python -m benchmarks zoo" in capsys.readouterr().err


def test_bench_says_where_the_zoo_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    others = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    module = SimpleNamespace(submodule_search_locations=None)
    for found in (None, module, others):
        monkeypatch.setattr(beside, "find_spec", lambda _, found=found: found)
        assert package.main(["bench", "zoo", "LeNet"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("python -m pai_torchacc bench: zoo is measured by")
        assert "run this in the root of a checkout" in error

"""``python -m benchmarks lr``.

Figures are computed of given losses; trainings are of the smallest problem, shortened.
"""

from __future__ import annotations

import json
import math
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from results import rows_of
from torch import nn

import pai_torchacc as ptac
from benchmarks import targets
from benchmarks.__main__ import main
from benchmarks.learning_rate import (
    adam,
    figures,
    methods,
    overhead,
    plot,
    run,
    training,
)
from benchmarks.learning_rate.figures import Bench
from benchmarks.learning_rate.methods import METHODS, OURS, STOCK, Method
from benchmarks.learning_rate.problems import PROBLEMS, Case, cases
from benchmarks.learning_rate.training import Budget, Outcome, train
from pai_torchacc.bench.run import read_targets

pytestmark = pytest.mark.long

IRIS = Case(PROBLEMS["iris"], 0.9, 0.01)
SHORT = Budget(scale=0.1)


def outcome(loss: float, accuracy: float = 90.0, untrained: float = 2.0) -> Outcome:
    return Outcome(loss, untrained, accuracy)


def test_data_are_split_once() -> None:
    sizes = {"digits": 1797, "breast_cancer": 569, "wine": 178, "iris": 150}
    for problem in PROBLEMS.values():
        data = problem.data()
        n = sizes.get(problem.source, 442)
        assert len(data.x) == len(data.y) == int(0.8 * n)
        assert len(data.test_x) == len(data.test_y) == n - len(data.x)
        assert data.is_regression == (problem.name == "diabetes_mlp")
        out = problem.make()(data.x[:4])
        assert out.shape == (4, 1 if data.is_regression else int(data.y.max()) + 1)
        whole = torch.cat([data.x, data.test_x])
        if problem.source == "digits":
            assert (whole.min(), whole.max()) == (0, 1)
        else:
            assert whole.mean(0).abs().max() < 1e-5


def test_noise_is_of_labels_for_training() -> None:
    clean, noisy = PROBLEMS["iris"].data(), PROBLEMS["iris"].data(0.5)
    changed = (clean.y != noisy.y).double().mean()
    assert 0.2 < changed < 0.45  # of half the labels, a third is drawn as it was
    assert noisy.y.max() <= 2
    assert noisy.test_y is clean.test_y
    numbers = PROBLEMS["diabetes_mlp"]
    assert numbers.data(0.5).y is numbers.data().y


@pytest.mark.parametrize(
    "loss, counted", [(0.5, 0.5), (3.0, 2.0), (math.nan, 2.0), (math.inf, 2.0)]
)
def test_losses_are_no_worse_than_untrained(loss: float, counted: float) -> None:
    assert outcome(loss).counted == counted
    assert outcome(loss).diverged == (not math.isfinite(loss))


def test_ratios_have_floors() -> None:
    assert figures.ratio(outcome(0.1), outcome(0.2)) == pytest.approx(0.5)
    assert figures.ratio(outcome(1e-9), outcome(1e-3)) == pytest.approx(0.1)
    assert figures.ratio(outcome(1e-9), outcome(1e-6)) == 1
    assert figures.ratio(outcome(1e-3), outcome(0.02), 1e-2) == pytest.approx(0.5)


def test_figures_of_given_losses() -> None:
    """Two rates, two seeds: the mean over seeds comes first."""
    slow, fast = Case(PROBLEMS["iris"], 0.9, 0.01), Case(PROBLEMS["iris"], 0.9, 0.1)
    found = {
        (STOCK, slow, 0): outcome(1.0),
        (STOCK, slow, 1): outcome(1.0),
        (STOCK, fast, 0): outcome(0.1, 90),
        (STOCK, fast, 1): outcome(0.1, 92),
        (OURS, slow, 0): outcome(0.1),
        (OURS, slow, 1): outcome(0.4),
        (OURS, fast, 0): outcome(0.2, 91),
        (OURS, fast, 1): outcome(math.nan, 89),
    }
    rows = list(figures.of_all(found, OURS, [slow, fast], [0, 1]))
    values = {(r.workload, r.figure): r.value for r in rows}
    first, second = 0.2, math.sqrt(2 * 20)  # roots of 0.1 x 0.4, and of 2 x 20
    tuned = "1 with the best rate"
    assert values == {
        ("2 cases", "loss ratio"): pytest.approx(math.sqrt(first * second)),
        ("2 cases", "loss ratio, floor 0.01"): pytest.approx(math.sqrt(first * second)),
        ("2 cases", "cases better"): 1,
        ("2 cases", "cases worse"): 1,
        ("2 cases", "loss ratio, worst"): pytest.approx(second),
        ("2 cases", "runs diverged"): 1,
        (tuned, "loss ratio"): pytest.approx(second),
        (tuned, "loss ratio, worst"): pytest.approx(second),
        (tuned, "accuracy gained"): pytest.approx(-1),
        (tuned, "accuracy gained, least"): pytest.approx(-1),
    }
    [line, _] = figures.of_cases(found, OURS, [slow, fast], [0, 1])
    assert line.loss == pytest.approx(0.2)
    assert line.stock_loss == line.stock_accuracy / 90 == 1


def test_where_stock_diverges_too_nothing_is_counted() -> None:
    found = {(STOCK, IRIS, 0): outcome(math.inf), (OURS, IRIS, 0): outcome(math.nan)}
    values = {r.figure: r.value for r in figures.of_all(found, OURS, [IRIS], [0])}
    assert values["runs diverged"] == values["cases worse"] == 0
    assert values["loss ratio, worst"] == 1


def test_numbers_have_no_accuracy() -> None:
    case = Case(PROBLEMS["diabetes_mlp"], 0.0, 0.1)
    one = outcome(1.0, math.nan)
    found = {(STOCK, case, 0): one, (OURS, case, 0): one}
    names = {r.figure for r in figures.of_all(found, OURS, [case], [0])}
    assert not any(name.startswith("accuracy") for name in names)


def test_nothing_is_trained_twice() -> None:
    trained: list[tuple[Any, ...]] = []

    def fake(case: Case, method: Method, seed: int, budget: Budget) -> Outcome:
        trained.append((method.name, case, seed))
        return outcome(case.lr + 0.1 * (case.lr == 1))

    bench = Bench(Budget(), fake)
    todo = cases(("iris",))
    for case in todo:
        bench.outcome(METHODS["dog"], case, 0)
        bench.outcome(METHODS["textbook"], case, 0)
        bench.outcome(METHODS[STOCK], case, 0)
        assert bench.best_of_nine(case, 0).loss == 1e-4
    names = [name for name, *_ in trained]
    assert [names.count(n) for n in ("dog", "textbook", STOCK)] == [1, 2, 18]
    assert run._count([METHODS["dog"], METHODS["textbook"]], todo) == len(names)


def test_a_copy_of_sgd_is_exactly_stock() -> None:
    """Every training sees the same weights and batches."""
    copy = Method("a copy", methods.sgd)
    bench = Bench(SHORT)
    todo = cases(("iris",))
    found = {
        (name, case, 0): bench.outcome(method, case, 0)
        for name, method in {"a copy": copy, STOCK: METHODS[STOCK]}.items()
        for case in todo
    }
    rows = figures.of_cases(found, "a copy", todo, [0])
    assert [row.value for row in rows] == [1.0] * 8
    assert len({row.loss for row in rows}) == 8
    values = {r.figure: r.value for r in figures.of_all(found, "a copy", todo, [0])}
    assert values["loss ratio"] == values["loss ratio, worst"] == 1
    assert values["cases better"] == values["cases worse"] == 0
    assert values["accuracy gained"] == 0


def test_ours_adapts_while_it_trains_and_only_then() -> None:
    case = Case(PROBLEMS["iris"], 0.9, 1e-3)
    stock, ours = (train(case, METHODS[n], 0, Budget(scale=0.3)) for n in (STOCK, OURS))
    assert ours.untrained == stock.untrained
    assert ours.loss < 0.7 * stock.loss
    assert not ptac.is_enabled("adaptive_lr")


def test_other_seeds_other_weights_and_batches() -> None:
    runs = [train(IRIS, METHODS[STOCK], s, SHORT, with_curve=True) for s in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0].untrained != runs[2].untrained
    assert len(runs[0].curve) == 6 * (120 // 32)


def test_textbook_is_polyaks_rate() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([p], lr=7.0, momentum=0.9)
    before = methods.textbook(Case(PROBLEMS["iris"], 0.9, 7.0), n_batches=2)
    rates = []
    for loss, gradient in ((1.0, 1.0), (8.0, 1.0), (0.1, 1.0), (math.nan, 1.0)):
        p.grad = torch.full((2,), gradient)
        before(optimizer, loss)
        rates.append(optimizer.param_groups[0]["lr"])
    growth = math.sqrt(2)
    assert rates == pytest.approx([0.1 / 2, 0.05 * growth, 0.1 * 0.1 / 2, 0])


def test_dog_is_distance_over_gradients() -> None:
    p = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = methods.Dog([p])
    p.grad = torch.tensor([0.0, 2.0])
    optimizer.step()
    first = 1e-4 * 6
    assert p.tolist() == pytest.approx([3, 4 - first / 2 * 2])
    p.data[0] += 1
    optimizer.step()
    moved = math.hypot(1, first)
    assert p[1].item() == pytest.approx(4 - first - moved / math.sqrt(8) * 2)


class Averaging(torch.optim.SGD):
    """Notes its modes."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, lr=0.1)
        self.modes: list[str] = []

    def train(self) -> None:
        self.modes.append("train")

    def eval(self) -> None:
        self.modes.append("eval")


def test_modes_of_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Averaging] = []
    refreshed: list[bool] = []

    def make(parameters: Any, case: Case) -> Averaging:
        made.append(Averaging(parameters))
        return made[-1]

    def refresh(model: nn.Module, *_: Any) -> None:
        refreshed.append(made[0].modes[-1] == "eval")

    monkeypatch.setattr(training, "_refresh_statistics", refresh)
    train(IRIS, Method("averaging", make), 0, SHORT)
    assert made[0].modes == ["train", "eval"]
    assert refreshed == [True]


HERE = [m for m in METHODS.values() if all(methods.versions([m]).values())]


@pytest.mark.parametrize("method", HERE, ids=lambda m: m.name)
def test_methods_train(method: Method) -> None:
    """Each learns the classes in a short while, if not always how sure to be."""
    done = train(Case(PROBLEMS["wine"], 0.9, 0.1), method, 0, Budget(scale=0.4))
    assert done.accuracy > 80
    assert not done.diverged


COMMAND = ["lr", "--problems", "iris", "--seeds", "0", "--scale", "0.1"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("r.csv", "r.json")]
    before = torch.get_num_threads()
    outputs = ["--csv", str(files[0]), "--json", str(files[1])]
    assert main([*COMMAND, "--methods", OURS, "dog", *outputs, "--check"]) == 0
    assert torch.get_num_threads() == before
    out = capsys.readouterr().out
    assert "iris, momentum 0.9, lr 0.01" in out
    assert "0 targets met, 0 missed, 11 not measured" in out
    rows = rows_of(files[0])
    assert {r["variant"] for r in rows} == {OURS, "dog", "stock_best9"}
    of_case = [r for r in rows if r["workload"].startswith("iris,")]
    assert len(of_case) == 2 * 8
    for r in of_case:
        quotient = float(r["loss"]) / float(r["stock_loss"])
        assert float(r["value"]) == pytest.approx(quotient, rel=1e-3, abs=1e-5)
    document = json.loads(files[1].read_text())
    assert document["failed"] == []
    assert len(document["rows"]) == len(rows)


def test_what_misses_its_target_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [{"figure": "loss ratio", "against": "stock", "at_most": 0.0}]
    wanted[0]["workload"] = "8 cases"
    monkeypatch.setattr(run, "read_targets", lambda table: wanted)
    assert main([*COMMAND, "--methods", OURS, "--check"]) == 1
    assert "missed: 8 cases, loss ratio against stock" in capsys.readouterr().out


def test_missing_peers_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(methods, "version", version)
    assert main([*COMMAND, "--methods", "dog", "prodigy", "schedule_free"]) == 0
    out = capsys.readouterr().out
    assert "not installed: prodigyopt" in out
    assert "not installed: schedulefree" in out
    assert "dog" in out


def test_what_fails_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(parameters: Any, case: Case) -> torch.optim.Optimizer:
        raise RuntimeError("no such optimizer")

    monkeypatch.setitem(METHODS, "dog", Method("dog", broken))
    assert main([*COMMAND, "--methods", "dog", OURS]) == 1
    out = capsys.readouterr().out
    assert "failed: iris, momentum 0, lr 0.001, dog: RuntimeError: no such" in out
    assert OURS in out


@pytest.mark.parametrize(
    "options, line",
    [
        (["--methods", "guessing"], "no method is guessing: stock, adaptive_lr,"),
        (["--problems", "moons"], "no problem is moons: digits_logistic,"),
        (["--batch", "121"], "iris has only 120 samples"),
        (["--scale", "0"], "--scale is above 0, not 0"),
        (["--label-smoothing", "1"], "--label-smoothing is from 0 to below 1"),
        (["--csv", "no/such.csv"], "No such file"),
    ],
)
def test_wrong_options(
    options: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*COMMAND, *options])
    assert line in capsys.readouterr().err


def test_curves_are_drawn(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plot, "SHOWN", ("iris", "wine"))
    file = tmp_path / "curves.png"
    command = [*COMMAND, "--methods", STOCK, "--plot", str(file)]
    assert main(command) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert plot.running_mean((1.0, 3.0, 5.0), 2).tolist() == [1, 2, 4]
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(command)
    assert "--plot needs matplotlib" in capsys.readouterr().err


def test_adam_by_rates() -> None:
    losses = {1e-4: 1.0, 1e-3: 0.1, 1e-2: 0.2}

    def fake(case: Case, method: Method, seed: int, budget: Budget) -> Outcome:
        return outcome(losses[case.lr] / (2 if OURS in method.name else 1))

    rows = {(r.workload, r.figure): r for r in adam.measure(Bench(Budget(), fake), [0])}
    assert len(rows) == 4 * 4
    line = rows["digits_transformer, AdamW, lr 0.01", "loss ratio"]
    assert (line.value, line.stock_loss) == (pytest.approx(0.5), pytest.approx(0.2))
    worst = rows["digits_cnn, Adam, worst rate", "loss ratio, worst"]
    assert (worst.value, worst.loss) == (pytest.approx(0.5), pytest.approx(0.5))


def test_adam_trains() -> None:
    bench = Bench(SHORT)
    transformer = Case(adam.PROBLEMS[1], 0.0, 1e-3)
    assert bench.budget.epochs(transformer.problem.epochs) == 2
    adamw = Method("AdamW", lambda p, case: torch.optim.AdamW(p, lr=case.lr))
    done = bench.outcome(adamw, transformer, 0)
    assert done.loss < 0.9 * done.untrained


def test_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "WORKLOAD", "L10")
    monkeypatch.setattr(overhead, "SMALL", ("W3",))
    found = list(overhead.measure(blocks=2, block_s=1e-4))
    rows = {(r.figure, r.workload, r.variant): r for r in found}
    assert len(rows) == len(found) == 10
    assert all(r.value > 0 for r in found)
    assert rows[overhead.STEP, "L10", OURS].against == overhead.ENABLED
    assert rows[overhead.STEP_ALONE, "W3", OURS].against == STOCK
    assert not ptac.is_enabled("operator_fusion")
    assert not ptac.is_enabled("adaptive_lr")


def test_every_target_is_of_something_measured() -> None:
    """Each fits a row of a run that measures everything."""
    todo = cases(tuple(PROBLEMS))
    found = {
        (name, case, 0): outcome(case.lr / 100 if name == STOCK else 1e-6)
        for name in (STOCK, OURS)
        for case in todo
    }
    rows = list(figures.of_all(found, OURS, todo, [0]))
    for figure, against, value in (
        (overhead.STEP, overhead.ENABLED, 1.0),
        (overhead.STEP_ALONE, STOCK, 9.0),
    ):
        row = figures.Row(figure, overhead.WORKLOAD, OURS, against, 1, value, "ratio")
        rows.append(row)
    verdict = targets.judge(rows, read_targets("learning_rate_target"), ours=OURS)
    assert verdict.unmeasured == []
    assert len(verdict.missed) + verdict.met == 11

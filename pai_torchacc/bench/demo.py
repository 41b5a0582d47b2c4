"""``python -m pai_torchacc demo``: the main job on real data, with a report.

Trains the article's CNN on scikit-learn's handwritten digits, enlarged to 28 x 28, by
stock PyTorch and with ``ptac.enable()``: same seeds, same batches, epochs in turn. Then
classifies the test images with both. On both sides malloc is told to keep freed memory,
so that the figures are those of the operators and not of page faults.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc.bench.measure import raise_malloc_thresholds
from pai_torchacc.bench.progress import Steps
from pai_torchacc.bench.workloads import SimpleCNN
from pai_torchacc.commands.usage import check_outputs

BATCH = 64
LEARNING_RATE = 0.05
INFERENCE_ROUNDS = 12


@dataclass
class Side:
    """One of the two trainings."""

    name: str
    model: SimpleCNN
    optimizer: torch.optim.Optimizer
    epoch_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    infer_s: list[float] = field(default_factory=list)
    first_step_ms: float = 0.0
    accuracy: float = 0.0


def digits(width: int = 28) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images [N, 1, width, width] in 0..1, and their classes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    size = width, width
    images = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    classes = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, classes = images[order], classes[order]
    cut = len(images) * 4 // 5
    return images[:cut], classes[:cut], images[cut:], classes[cut:]


def _side(name: str) -> Side:
    torch.manual_seed(0)
    model = SimpleCNN()
    return Side(name, model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE))


def batches(x: Tensor, y: Tensor, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split into batches, in an order of the epoch's own."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for part in order[: len(x) // BATCH * BATCH].split(BATCH):
        yield x[part], y[part]


def _step(side: Side, x: Tensor, y: Tensor) -> Tensor:
    side.optimizer.zero_grad()
    loss = F.cross_entropy(side.model(x), y)
    loss.backward()
    side.optimizer.step()
    return loss


def _epoch(side: Side, x: Tensor, y: Tensor, epoch: int) -> None:
    parts = list(batches(x, y, epoch))
    start = time.perf_counter()
    for images, classes in parts:
        side.losses.append(_step(side, images, classes).item())
    side.epoch_s.append(time.perf_counter() - start)


def _first_steps(sides: tuple[Side, Side], x: Tensor, y: Tensor) -> None:
    """Time from ``enable()`` to the end of the first accelerated step, and stock's.

    On copies of the models, so that the trainings stay alike.
    """
    stock, ours = (_side(side.name) for side in sides)
    images, classes = x[:BATCH], y[:BATCH]
    _step(stock, images, classes)  # torch's own first-step work is neither's
    start = time.perf_counter()
    _step(stock, images, classes)
    sides[0].first_step_ms = (time.perf_counter() - start) * 1e3
    start = time.perf_counter()
    ptac.enable()
    _step(ours, images, classes)
    sides[1].first_step_ms = (time.perf_counter() - start) * 1e3
    ptac.disable()


def _infer(side: Side, x: Tensor) -> Tensor:
    side.model.eval()
    start = time.perf_counter()
    with torch.no_grad():
        scores = torch.cat([side.model(part) for part in x.split(BATCH)])
    side.infer_s.append(time.perf_counter() - start)
    return scores


def run(epochs: int, threads: int | None, out: Path) -> dict[str, Any]:
    """Train, classify, print the table and draw the plot; the table as a document."""
    out.mkdir(parents=True, exist_ok=True)
    plot = out / "demo.png"
    check_outputs([plot])
    if threads is not None:
        torch.set_num_threads(threads)
    raise_malloc_thresholds()
    console = Console()
    x, y, test_x, test_y = digits()
    sides = (_side("stock"), _side("accelerated"))
    _first_steps(sides, x, y)
    ptac.report(reset=True)
    with Steps(2 * epochs + 2 * INFERENCE_ROUNDS, console) as steps:
        for epoch in range(epochs):
            for side in sides:
                steps.begin(f"training, epoch {epoch + 1} of {epochs}, {side.name}")
                _switch(side)
                _epoch(side, x, y, epoch)
                steps.end()
        for _ in range(INFERENCE_ROUNDS):
            for side in sides:
                steps.begin(f"inference, {side.name}")
                _switch(side)
                scores = _infer(side, test_x)
                side.accuracy = float((scores.argmax(1) == test_y).float().mean())
                steps.end()
    ptac.enable()
    report = ptac.report()
    document = _document(sides, len(x) // BATCH * BATCH, len(test_x))
    ptac.disable()
    console.print(_table(document))
    console.print(report, highlight=False, soft_wrap=True)
    _plot(sides, plot)
    console.print(f"plot: {plot}", highlight=False)
    return document | {"plot": str(plot)}


def _switch(side: Side) -> None:
    if side.name == "stock":
        ptac.disable()
    else:
        ptac.enable()


def _document(sides: tuple[Side, Side], n_train: int, n_test: int) -> dict[str, Any]:
    result: dict[str, Any] = {"threads": torch.get_num_threads()}
    for side in sides:
        result[side.name] = {
            "epoch_s": min(side.epoch_s),
            "train_images_per_s": n_train / min(side.epoch_s),
            "infer_images_per_s": n_test / min(side.infer_s),
            "first_step_ms": side.first_step_ms,
            "accuracy": side.accuracy,
            "final_loss": side.losses[-1],
        }
    stock, ours = (result[side.name] for side in sides)
    result["train_speedup"] = stock["epoch_s"] / ours["epoch_s"]
    result["infer_speedup"] = ours["infer_images_per_s"] / stock["infer_images_per_s"]
    result["largest_weight_difference"] = max(
        (a - b).detach().abs().max().item()
        for a, b in zip(
            sides[0].model.parameters(), sides[1].model.parameters(), strict=True
        )
    )
    return result


def _table(document: dict[str, Any]) -> Table:
    stock, ours = document["stock"], document["accelerated"]
    table = Table(
        title=f"SimpleCNN on handwritten digits, {document['threads']} threads",
        caption="malloc keeps freed memory, on both sides (mallopt)",
    )
    for column in ("", "stock", "ptac.enable()", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    rows: list[tuple[str, str, str, float | None]] = [
        ("time per epoch, s", "epoch_s", ".3f", document["train_speedup"]),
        ("training, images/s", "train_images_per_s", ".0f", None),
        ("inference, images/s", "infer_images_per_s", ".0f", document["infer_speedup"]),
        ("first step, ms (with enable())", "first_step_ms", ".1f", None),
        ("test accuracy", "accuracy", ".4f", None),
        ("final training loss", "final_loss", ".6f", None),
    ]
    for label, key, style, ratio in rows:
        shown = "" if ratio is None else f"{ratio:.2f}x"
        table.add_row(label, format(stock[key], style), format(ours[key], style), shown)
    difference = document["largest_weight_difference"]
    table.add_row("largest weight difference", "", f"{difference:.1e}", "")
    return table


def _plot(sides: tuple[Side, Side], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for side, style in zip(sides, ("-", "--"), strict=True):
        elapsed = [
            t * (i + 1) / len(side.losses) * len(side.epoch_s)
            for i, t in zip(
                range(len(side.losses)),
                [min(side.epoch_s)] * len(side.losses),
                strict=True,
            )
        ]
        left.plot(elapsed, side.losses, style, label=side.name, linewidth=1)
    left.set(xlabel="seconds of training", ylabel="loss", yscale="log")
    left.legend()
    names = [side.name for side in sides]
    bars = right.bar(names, [min(s.epoch_s) * 1e3 for s in sides], width=0.5)
    right.bar_label(bars, fmt="%.0f ms")
    right.set(ylabel="ms per epoch (best)")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

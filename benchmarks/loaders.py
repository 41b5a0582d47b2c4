"""Epochs of data loaders, and what share of a training step waits for data.

Both sides in turn in one process; before a row counts, an epoch of each has to give the
same batches, bit for bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import pai_torchacc as ptac
from benchmarks import targets
from benchmarks.screen import new_table, threads_kept
from benchmarks.targets import Row
from pai_torchacc.bench.measure import (
    alternate,
    environment,
    raise_malloc_thresholds,
    thread_counts,
)
from pai_torchacc.bench.run import console, read_targets, write_csv
from pai_torchacc.commands.usage import UsageError, check_outputs

OURS, STOCK = "data_pipeline", "stock"
EPOCH, SHARE = "epoch", "loader's share of a step"
BATCH = 64

Make = Callable[[], Any]


class Rows(Dataset[Any]):
    """Images as arrays of bytes, scaled by the dataset's own code."""

    def __init__(self, n: int):
        random = np.random.default_rng(0)
        self.images = random.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        self.labels = random.integers(0, 10, n)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image = self.images[index].astype(np.float32) / 255.0
        return torch.from_numpy(image).unsqueeze(0), int(self.labels[index])


class Unknown(Rows):
    """The same by code that nothing is known of: workers alone gain."""

    def __getitem__(self, index: int) -> Any:
        image = np.ascontiguousarray(self.images[index], dtype=np.float32)
        return torch.tensor(image / 255.0)[None], self.labels[index]


class Images(Dataset[Any]):
    """Color images, transformed as torchvision's sets are."""

    def __init__(self, n: int, transform: Any):
        random = np.random.default_rng(0)
        self.data = random.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        self.targets = random.integers(0, 10, n).tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        img, target = self.data[index], self.targets[index]
        img = Image.fromarray(img)
        img = self.transform(img)
        return img, target


def tensors(n: int, *shape: int) -> TensorDataset:
    """Samples of floats, with labels."""
    return TensorDataset(torch.randn(n, *shape), torch.randint(0, 10, (n,)))


def color_images(n: int) -> Images | None:
    """The usual transforms for training; None without torchvision.

    Files of torchvision are built for CUDA; beside torch for the CPU it is imported
    where two schemas are declared for it.
    """
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor d, Tensor s, float t) -> Tensor")
    try:
        from torchvision import transforms as t
    except (ImportError, RuntimeError):
        return None
    steps = [t.RandomCrop(32, padding=4), t.RandomHorizontalFlip(), t.ToTensor()]
    steps.append(t.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)))
    return Images(n, t.Compose(steps))


def workloads() -> Iterator[tuple[str, Make]]:
    """Names, and what makes the loader."""

    def loader(data: Any, workers: int = 0) -> Make:
        return lambda: DataLoader(data, BATCH, shuffle=True, num_workers=workers)

    yield "tensors of 16", loader(tensors(4096, 16))
    yield "tensors of 784", loader(tensors(4096, 784))
    yield "tensors of 3x32x32", loader(tensors(4096, 3, 32, 32))
    yield "tensors of 3x224x224", loader(tensors(512, 3, 224, 224))
    yield "arrays, own class", loader(Rows(4096))
    yield "arrays, own class, 2 workers", loader(Rows(16384), 2)
    yield "unknown class, 2 workers", loader(Unknown(16384), 2)
    images = color_images(8192)
    if images is not None:
        yield "images", loader(images)
        yield "images, 2 workers", loader(images, 2)


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure what the options name."""
    screen = console()
    check_outputs([options.csv])
    wanted = read_targets("loader_target") if options.check else None
    chosen = [w for w in workloads() if _is_chosen(w[0], options.names)]
    trains = _is_chosen("training", options.names)
    if not chosen and not trains:
        raise UsageError("no workload is named so")
    raise_malloc_thresholds()
    rows: list[Row] = []
    with threads_kept():
        for n_threads in options.threads or thread_counts()[:2]:
            torch.set_num_threads(n_threads)
            for name, make in chosen:
                rows += list(_epochs(name, make, n_threads, options.quick))
                screen.print(_line(rows[-2]), highlight=False)
            if trains:
                rows += list(_training(n_threads))
    screen.print(_table(rows))
    if options.csv:
        write_csv(Path(options.csv), rows, decimals=4)
    verdict = targets.conclude(screen, rows, wanted, OURS, {}, [])
    document = {"environment": environment(), "rows": [asdict(r) for r in rows]}
    return document, 1 if verdict.missed else 0


def _is_chosen(name: str, parts: list[str]) -> bool:
    return not parts or any(part in name for part in parts)


def _epoch(loader: Any) -> None:
    for _ in loader:
        pass


def _on() -> None:
    ptac.enable_data_pipeline()


def _same(make: Make) -> bool:
    from pai_torchacc.data_pipeline.fetching import is_identical

    found = []
    for prepare in (ptac.disable, _on):
        prepare()
        torch.manual_seed(0)
        found.append([*make(), torch.get_rng_state()])
    return len(found[0]) == len(found[1]) and all(map(is_identical, *found))


def _epochs(name: str, make: Make, n_threads: int, quick: bool) -> Iterator[Row]:
    passes = _same(make)
    theirs, mine = make(), make()
    variants = {
        STOCK: (ptac.disable, lambda: _epoch(theirs)),
        OURS: (_on, lambda: _epoch(mine)),
    }
    try:
        timings = alternate(variants, 5 if quick else 20, 0.02)
    finally:
        ptac.disable()
    stock, ours = timings[STOCK], timings[OURS]
    for figure, value in (
        (EPOCH, stock.best / ours.best),
        (f"{EPOCH}, of medians", stock.median / ours.median),
    ):
        yield Row(figure, name, OURS, STOCK, n_threads, value, "ratio", passes)


class Net(nn.Module):
    """The small network that such scripts train."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(32 * 7 * 7, 10)

    def forward(self, x: Any) -> Any:
        """Logits of images."""
        return self.head(self.features(x).flatten(1))


def _training(n_threads: int) -> Iterator[Row]:
    """Epochs of an ordinary training script, with every switch of the report's."""
    for name, data in (("tensors", tensors(4096, 1, 28, 28)), ("arrays", Rows(4096))):
        for variant in (STOCK, OURS):
            if variant == OURS:
                ptac.enable()
            ptac.enable_data_pipeline()  # which measures
            ptac.report(reset=True)
            with ptac.disabled() if variant == STOCK else ptac.exclude(nn.Identity()):
                _train(data)
            from pai_torchacc.data_pipeline import waiting

            (entry,) = waiting.loaders()
            share = entry.stall()
            ptac.disable()
            yield Row(
                SHARE, f"training, {name}", variant, "", n_threads, share or 0.0, ""
            )


def _train(data: Any, epochs: int = 2) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(data, BATCH, shuffle=True)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            loss.item()


def _line(row: Row) -> str:
    return f"{row.workload}, {row.n_threads} thread(s): {_value(row)}"


def _value(row: Row) -> str:
    if row.unit != "ratio":
        return f"{row.value:.1%}"
    return f"{row.value:.1f}x" + ("" if row.passes_gate else ", other batches")


def _table(rows: list[Row]) -> Table:
    table = new_table(("workload", "figure", "variant"), ("threads", "value"))
    for row in rows:
        table.add_row(
            row.workload, row.figure, row.variant, str(row.n_threads), _value(row)
        )
    return table

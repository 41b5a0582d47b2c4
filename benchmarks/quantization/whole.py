"""Whole models: accuracy after training on digits, bytes, and time to quantize."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.quantization.figures import (
    AGREEMENT,
    Row,
    Setting,
    agreement,
    passes,
    reference,
)
from benchmarks.quantization.variants import OURS, quantize
from pai_torchacc.bench.demo import BATCH, batches, digits
from pai_torchacc.bench.workloads import WORKLOADS, BertSmall, ResNet18

EPOCHS = 12
ROUNDS = 3
"""Of quantizing a model; the best counts."""

FLOOR_DB = 30.0
"""Of what a model gives from a checkpoint of its quantized self."""


def trained(setting: Setting) -> Iterator[Row]:
    """Accuracy on test digits before and after, and how many answers are the same."""
    for name, width in (("MLP64", 8), ("SimpleCNN", 28)):
        x, y, test_x, test_y = digits(width)
        if name == "MLP64":
            x, test_x = x.flatten(1), test_x.flatten(1)
        model = _train(name, x, y)
        with torch.no_grad():
            scores = model(test_x)
            before = _accuracy(scores, test_y)
            for variant, theirs in _answers(name, model, test_x, setting):
                for figure, value, unit in (
                    ("accuracy lost", before - _accuracy(theirs, test_y), "points"),
                    (AGREEMENT, agreement(theirs, scores), "%"),
                ):
                    what = f"{name} trained on digits"
                    yield Row(figure, what, variant, "", setting.n_threads, value, unit)


def _accuracy(scores: Tensor, classes: Tensor) -> float:
    return 100 * float((scores.argmax(1) == classes).double().mean())


def _answers(
    name: str, model: nn.Module, x: Tensor, setting: Setting
) -> Iterator[tuple[str, Tensor]]:
    """Scores of a model quantized by each."""
    try:
        yield OURS, quantize(copy.deepcopy(model), setting.method)(x)
    finally:
        ptac.disable()
    for peer in setting.peers:
        try:
            yield peer.name, peer.quantize(copy.deepcopy(model), x[:BATCH])(x)
        except Exception as error:
            setting.fail(name, peer.name, error)


def _train(name: str, x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = WORKLOADS[name].task().model
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(EPOCHS):
        for images, classes in batches(x, y, epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(images), classes).backward()
            optimizer.step()
    return model.eval()


def sizes(setting: Setting) -> Iterator[Row]:
    """Bytes of checkpoints as percent of float32's, and gigabytes quantized a second.

    Gated by what a float32 model gives that has loaded each checkpoint.
    """
    samples = {
        "BERT-small": (BertSmall, lambda: torch.randint(0, 30522, (1, 32))),
        "ResNet-18": (ResNet18, lambda: torch.randn(1, 3, 224, 224)),
    }
    for name, (make, sample) in samples.items():
        torch.manual_seed(0)
        stock = make().eval()
        x = sample()
        whole = tensor_bytes(stock)
        with torch.no_grad():
            truth = reference(stock, x)
            seconds, model = _quantized(stock, setting.method)
            state = 100 * tensor_bytes(model) / whole
            checkpoint = model.state_dict()
            coded, loaded = _coded(model, stock)
            ptac.disable()
            again = copy.deepcopy(stock)
            _forget(again)
            again.load_state_dict(ptac.dequantize_state_dict(checkpoint))
            gates = [passes(m(x), truth, FLOOR_DB) for m in (again, loaded)]
        weights = sum(p.nbytes for p in stock.parameters())
        for figure, value, unit, gate in (
            ("state_dict", state, "%", gates[0]),
            ("coded file", 100 * coded / whole, "%", gates[1]),
            ("quantizing", weights / seconds / 1e9, "GB/s", gates[0]),
        ):
            yield Row(figure, name, OURS, "", setting.n_threads, value, unit, gate)


def tensor_bytes(model: nn.Module) -> int:
    """Of what the state dict holds."""
    return sum(t.nbytes for t in model.state_dict().values())


def _quantized(stock: nn.Module, method: str | None) -> tuple[float, nn.Module]:
    times = []
    for _ in range(ROUNDS):
        model = copy.deepcopy(stock)
        start = time.perf_counter()
        quantize(model, method)
        times.append(time.perf_counter() - start)
    return min(times), model


def _coded(model: nn.Module, stock: nn.Module) -> tuple[int, nn.Module]:
    """Bytes of the coded file, and a float32 model that has loaded it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model"
        ptac.save_quantized(model, file)
        loaded = copy.deepcopy(stock)
        _forget(loaded)
        return file.stat().st_size, ptac.load_quantized(loaded, file)


def _forget(model: nn.Module) -> None:
    """Leave nothing of the weights, so that they can only come from a checkpoint."""
    for tensor in model.state_dict().values():
        tensor.zero_()

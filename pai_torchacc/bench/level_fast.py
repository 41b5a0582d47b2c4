"""Figures of ``numerics="fast"``: workloads beside stock and its autocast; losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.bench.demo import batches, digits
from pai_torchacc.bench.figures import Call, Result, Setting, compare, figure, gate
from pai_torchacc.bench.workloads import WORKLOADS

SEEDS = (0, 1, 2)
EPOCHS = 6
WIDTH = 16
"""Of the images that losses are compared on."""

LOSS = "CNN on digits, level fast, loss from stock's"


def _on() -> None:
    ptac.enable(numerics="fast")


def _with_autocast(call: Call) -> Call:
    def cast() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return call()

    return cast


def _workload(name: str) -> None:
    def add(what: str, call_of: Callable[[], Call]) -> None:
        title = f"{name}, level fast, {what}"

        @figure(title)
        def measure(setting: Setting) -> Iterator[Result]:
            passes = gate(WORKLOADS[name].task(), _on)
            rivals = {"stock": call_of(), "autocast": _with_autocast(call_of())}
            yield from compare(title, setting, rivals, call_of(), passes, switch=_on)

    def infer() -> Call:
        task = WORKLOADS[name].task()
        task.model.eval()
        return task.infer

    add("training step", lambda: WORKLOADS[name].task().train_step)
    add("inference", infer)


for _name in ("W3", "W4", "W4g", "W5"):
    _workload(_name)


def _network() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 64),
        *block(64, 128),
        nn.MaxPool2d(2),
        *block(128, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def _loss(seed: int, data: tuple[Tensor, ...]) -> float:
    """Of test images, after training with weights and an order of the seed's own."""
    x, y, test_x, test_y = data
    torch.manual_seed(seed)
    net = _network()
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(EPOCHS):
        for images, classes in batches(x, y, seed * EPOCHS + epoch):
            optimizer.zero_grad()
            F.cross_entropy(net(images), classes).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        return float(F.cross_entropy(net(test_x), test_y))


@figure(LOSS)
def _losses(setting: Setting) -> Iterator[Result]:
    """By how much the mean over seeds differs, in spreads of stock's over the seeds."""
    data = digits(WIDTH)
    stock = [_loss(seed, data) for seed in SEEDS]
    try:
        _on()
        ours = [_loss(seed, data) for seed in SEEDS]
    finally:
        ptac.disable()
    apart = abs(mean(ours) - mean(stock)) / stdev(stock)
    yield Result(LOSS, "stock", setting.n_threads, apart, "spreads")

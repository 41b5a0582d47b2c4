"""Figures of ``numerics="fast"``: workloads beside stock and its autocast; losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.bench.demo import batches, digits
from pai_torchacc.bench.figures import Result, Setting, compare, figure, gate
from pai_torchacc.bench.workloads import WORKLOADS, Task

SEEDS = (0, 1, 2)
EPOCHS = 6
WIDTH = 16
"""Of the images that losses are compared on."""

INFERENCE = "inference"
LOSS = "CNN on digits, level fast, loss from stock's"


def _on() -> None:
    ptac.enable(numerics="fast")


def _infer_with_autocast(task: Task) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return task.infer()


def _train_with_autocast(task: Task) -> Tensor:
    """As torch recommends it: backward is outside."""
    x, y = next(task.batches)
    task.optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = task.criterion(task.model(x), y)
    loss.backward()
    task.optimizer.step()
    return loss


def _workload(name: str) -> None:
    def add(
        what: str, stock: Callable[[Task], Tensor], cast: Callable[[Task], Tensor]
    ) -> None:
        title = f"{name}, level fast, {what}"

        def task() -> Task:
            made = WORKLOADS[name].task()
            made.model.train(what != INFERENCE)
            return made

        @figure(title)
        def measure(setting: Setting) -> Iterator[Result]:
            passes = gate(task(), _on)
            rivals = {
                "stock": partial(stock, task()),
                "autocast": partial(cast, task()),
            }
            yield from compare(
                title, setting, rivals, partial(stock, task()), passes, switch=_on
            )

    add("training step", Task.train_step, _train_with_autocast)
    add(INFERENCE, Task.infer, _infer_with_autocast)


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

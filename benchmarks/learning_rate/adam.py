"""Adam and AdamW: final losses for rates a tenth of the usual one, that, and ten times.

Of a convolutional network and of a small Transformer, both on digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.learning_rate.figures import (
    FLOOR,
    WORST,
    Bench,
    Outcomes,
    Row,
    of_cases,
    row,
)
from benchmarks.learning_rate.methods import (
    OURS,
    STOCK,
    Method,
    Parameters,
    adaptive,
)
from benchmarks.learning_rate.problems import Case, Problem, small_cnn

RATES = (1e-4, 1e-3, 1e-2)
OPTIMIZERS = (torch.optim.Adam, torch.optim.AdamW)
_EPOCHS, _WIDTH = 8, 32


class SmallTransformer(nn.Module):
    """Two pre-norm layers; the tokens are an image's rows of eight pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, _WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(8, _WIDTH))
        layer = nn.TransformerEncoderLayer(
            _WIDTH, 4, 2 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(_WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify [N, 64] images into [N, 10] scores."""
        rows = self.embedding(x.view(-1, 8, 8)) + self.position
        return self.head(self.encoder(rows).mean(1))


PROBLEMS = (
    Problem("digits_cnn", "digits", small_cnn, _EPOCHS),
    Problem("digits_transformer", "digits", SmallTransformer, _EPOCHS),
)


def measure(bench: Bench, seeds: Sequence[int]) -> Iterator[Row]:
    """A row for each rate, and one for the rate that ends worst."""
    for optimizer in OPTIMIZERS:
        name = optimizer.__name__

        def make(
            parameters: Parameters,
            case: Case,
            optimizer: type[torch.optim.Optimizer] = optimizer,
        ) -> torch.optim.Optimizer:
            return optimizer(parameters, lr=case.lr)

        methods = {
            STOCK: Method(f"{name}, {STOCK}", make),
            OURS: Method(f"{name}, {OURS}", make, around=adaptive),
        }
        for problem in PROBLEMS:
            cases = [Case(problem, 0.0, lr) for lr in RATES]
            found: Outcomes = {
                (variant, case, seed): bench.outcome(method, case, seed)
                for variant, method in methods.items()
                for case in cases
                for seed in seeds
            }
            lines = of_cases(found, OURS, cases, seeds)
            what = f"{problem.name}, {name}"
            for case, line in zip(cases, lines, strict=True):
                yield replace(line, workload=f"{what}, lr {case.lr:g}")
            yield _worst(what, lines)


def _worst(what: str, lines: list[Row]) -> Row:
    """Losses at the rate that ends worst, each side's own."""
    stock = max(line.stock_loss for line in lines)
    ours = max(line.loss for line in lines)
    value = max(ours, FLOOR) / max(stock, FLOOR)
    line = row(WORST, f"{what}, worst rate", OURS, value, "ratio")
    return replace(line, stock_loss=stock, loss=ours)


N_TRAININGS = len(OPTIMIZERS) * len(PROBLEMS) * len(RATES) * 2
"""For each seed."""

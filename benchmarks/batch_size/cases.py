"""Models, and steps of training and inference with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

N_CLASSES = 10


class LastOfLSTM(nn.Module):
    """Classes from the last output of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.classes = nn.Linear(128, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [n, classes] from [n, time, 64]."""
        return self.classes(self.lstm(x)[0][:, -1])


class MeanOfTransformer(nn.Module):
    """Classes from the mean output of two encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(64, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [n, classes] from [n, time, 64]."""
        return self.classes(self.layers(x).mean(1))


def _mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()),
        nn.Linear(512, N_CLASSES),
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 8 * 8, N_CLASSES)),
    )


@dataclass(frozen=True)
class Model:
    """How a model is made, and the shape of one sample."""

    make: Callable[[], nn.Module]
    sample: tuple[int, ...]

    def make_batch(self, n: int) -> tuple[Tensor, Tensor]:
        """Random samples and classes."""
        return torch.randn(n, *self.sample), torch.randint(N_CLASSES, (n,))

    def step(self, trains: bool) -> Callable[[tuple[Tensor, Tensor]], Any]:
        """A step of training by Adam, or of inference, of a new model."""
        torch.manual_seed(0)
        model = self.make().train(trains)
        optimizer = torch.optim.Adam(model.parameters())

        def train(batch: tuple[Tensor, Tensor]) -> None:
            x, y = batch
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        def infer(batch: tuple[Tensor, Tensor]) -> None:
            with torch.no_grad():
                model(batch[0])

        return train if trains else infer


MODELS = {
    "MLP": Model(_mlp, (784,)),
    "CNN": Model(_cnn, (3, 32, 32)),
    "LSTM": Model(LastOfLSTM, (32, 64)),
    "Transformer": Model(MeanOfTransformer, (32, 64)),
}

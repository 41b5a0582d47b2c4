"""What ranks train: models, and whole batches for a script that is divided."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

_WORDS = 2000


def mlp() -> nn.Module:
    """25 MiB of gradients."""
    return nn.Sequential(
        *(nn.Linear(784, 2176), nn.ReLU(), nn.Linear(2176, 2176), nn.ReLU()),
        nn.Linear(2176, 10),
    )


def small_cnn() -> nn.Module:
    """The network of examples/distributed.py."""
    from examples.distributed import make_model

    return make_model()


def cnn() -> nn.Module:
    """Three convolutions of 3 x 32 x 32; 0.5 MiB of gradients."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 64), nn.Linear(64, 10))


class Transformer(nn.Module):
    """Two layers of 128, over 2000 words; scores of a text, or of each of its words."""

    def __init__(self, n_classes: int, is_of_words: bool):
        super().__init__()
        self.words = nn.Embedding(_WORDS, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.is_of_words = nn.Linear(128, n_classes), is_of_words

    def forward(self, words: Tensor) -> Tensor:
        """[N, length] to [N, classes] or [N, length, classes]."""
        hidden: Tensor = self.layers(self.words(words))
        scores: Tensor = self.head(hidden if self.is_of_words else hidden.mean(1))
        return scores


class Losses(nn.Module):
    """A language model that gives a loss for each text, and no scores."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer(_WORDS, True)

    def forward(self, words: Tensor) -> Tensor:
        """[N, length] to [N]."""
        scores: Tensor = self.model(words)
        following = words.roll(-1, 1)
        losses = nn.functional.cross_entropy(
            scores.flatten(0, 1), following.flatten(), reduction="none"
        )
        return losses.view(following.shape).mean(1)


def images(*shape: int) -> tuple[Tensor, Tensor]:
    """Random ones, and a class of each."""
    return torch.randn(shape), torch.randint(0, 10, shape[:1])


def texts(n: int, length: int) -> tuple[Tensor, Tensor]:
    """Random words, and a class of each text."""
    return torch.randint(0, _WORDS, (n, length)), torch.randint(0, 10, (n,))


def next_words(n: int, length: int) -> tuple[Tensor, Tensor]:
    """Random words, and the one that follows each."""
    words = torch.randint(0, _WORDS, (n, length))
    return words, words.roll(-1, 1)


WHOLE: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]]
WHOLE = {
    "cnn": (cnn, partial(images, 256, 3, 32, 32)),
    "mlp": (mlp, partial(images, 256, 784)),
    "transformer": (partial(Transformer, 10, False), partial(texts, 64, 64)),
    "language model": (
        partial(Transformer, _WORDS, True),
        partial(next_words, 64, 64),
    ),
    "language model, a loss for each text": (Losses, partial(next_words, 64, 64)),
}
"""A model, and a batch of it before anybody divides it."""

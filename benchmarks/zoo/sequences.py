"""Models of text, sound and time: recurrent, convolutional, Transformers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.model import adamw, classes, model

Made = tuple[nn.Module, tuple[Tensor, ...], Tensor]


class Recurrent(nn.Module):
    """Embedding, recurrent layer, scores of the next token."""

    def __init__(self, cls: type[nn.RNNBase], hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.rnn = cls(64, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 100)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [tokens, 100]."""
        return self.head(self.rnn(self.table(tokens))[0]).flatten(0, 1)


@model("character LSTM 128, 8 x 32")
def _lstm() -> Made:
    tokens = torch.randint(0, 100, (8, 32))
    return Recurrent(nn.LSTM, 128), (tokens,), classes(256, 100)


@model("language model GRU 256, two layers, 16 x 32")
def _gru() -> Made:
    tokens = torch.randint(0, 100, (16, 32))
    return Recurrent(nn.GRU, 256, 2), (tokens,), classes(512, 100)


class LastState(nn.Module):
    """A forecast from the last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number a series."""
        return self.head(self.rnn(x)[0][:, -1])


@model("forecast by LSTM 32, 32 x 24", F.mse_loss)
def _forecast() -> Made:
    return LastState(), (torch.randn(32, 24, 8),), torch.randn(32, 1)


@model("text classifier by EmbeddingBag, batch 64")
def _bag() -> Made:
    net = nn.Sequential(nn.EmbeddingBag(20000, 64), nn.Linear(64, 4))
    return net, (torch.randint(0, 20000, (64, 50)),), classes(64, 4)


class TextCnn(nn.Module):
    """Convolutions of three widths over words."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5000, 64)
        self.convs = nn.ModuleList(nn.Conv1d(64, 64, k) for k in (3, 4, 5))
        self.head = nn.Linear(192, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class scores a text."""
        x = self.table(tokens).transpose(1, 2)
        return self.head(torch.cat([F.relu(c(x)).amax(-1) for c in self.convs], 1))


@model("TextCNN, 16 x 60")
def _textcnn() -> Made:
    return TextCnn(), (torch.randint(0, 5000, (16, 60)),), classes(16, 2)


@model("keyword spotting by conv1d, 8 x 4000")
def _keyword() -> Made:
    parts: list[nn.Module] = [nn.Conv1d(1, 32, 80, 4), nn.BatchNorm1d(32), nn.ReLU()]
    parts.append(nn.MaxPool1d(4))
    for c, n in ((32, 32), (32, 64)):
        parts += [nn.Conv1d(c, n, 3), nn.BatchNorm1d(n), nn.ReLU(), nn.MaxPool1d(4)]
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool1d(1), nn.Flatten())
    net.append(nn.Linear(64, 12))
    return net, (torch.randn(8, 1, 4000),), classes(8, 12)


@model("M5 for speech, 4 x 8000")
def _m5() -> Made:
    """Of Dai et al., Very deep convolutional neural networks for raw waveforms."""
    parts: list[nn.Module] = []
    for c, n, kernel, stride in (
        *((1, 128, 80, 4), (128, 128, 3, 1)),
        *((128, 256, 3, 1), (256, 512, 3, 1)),
    ):
        parts += [nn.Conv1d(c, n, kernel, stride), nn.BatchNorm1d(n), nn.ReLU()]
        parts.append(nn.MaxPool1d(4))
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool1d(1), nn.Flatten())
    net.append(nn.Linear(512, 35))
    return net, (torch.randn(4, 1, 8000),), classes(4, 35)


class Separable(nn.Module):
    """Conv-TasNet's block: wider, a dilated depthwise filter, narrower, added."""

    def __init__(self, c: int, n: int, dilation: int) -> None:
        super().__init__()
        deep = nn.Conv1d(n, n, 3, padding=dilation, dilation=dilation, groups=n)
        self.net = nn.Sequential(
            *(nn.Conv1d(c, n, 1), nn.PReLU(), nn.GroupNorm(1, n)),
            *(deep, nn.PReLU(), nn.GroupNorm(1, n), nn.Conv1d(n, c, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add to what comes in."""
        return x + self.net(x)


@model("separable TCN as in Conv-TasNet, 2 x 4000", F.mse_loss)
def _tasnet() -> Made:
    net = nn.Sequential(
        *(nn.Conv1d(1, 64, 16, 8, 4), nn.ReLU()),
        *(Separable(64, 128, 1 << i) for i in range(6)),
        *(nn.Conv1d(64, 64, 1), nn.Sigmoid(), nn.ConvTranspose1d(64, 1, 16, 8, 4)),
    )
    return net, (torch.randn(2, 1, 4000),), torch.randn(2, 1, 4000)


class Temporal(nn.Module):
    """Dilated causal convolutions with residuals."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(1, 1), (32, 2), (32, 4), (32, 8)]
        self.convs = nn.ModuleList(
            nn.Conv1d(c, 32, 3, dilation=d, padding=2 * d) for c, d in sizes
        )
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number a series."""
        for conv in self.convs:
            y = F.relu(conv(x)[..., : x.shape[-1]])
            x = y + x if x.shape == y.shape else y
        return self.head(x[..., -1])


@model("temporal convolutions, 16 x 128", F.mse_loss)
def _temporal() -> Made:
    return Temporal(), (torch.randn(16, 1, 128),), torch.randn(16, 1)


class Tagger(nn.Module):
    """A Transformer encoder over embedded tokens."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of each token."""
        return self.head(self.encoder(self.table(tokens))).flatten(0, 1)


@model("Transformer tagger 64, two layers, 8 x 32", optimizer=adamw)
def _tagger() -> Made:
    tokens = torch.randint(0, 1000, (8, 32))
    return Tagger(64, 4, 2), (tokens,), classes(256, 10)


@model("Transformer encoder 256, four layers, 4 x 64", optimizer=adamw)
def _encoder() -> Made:
    tokens = torch.randint(0, 1000, (4, 64))
    return Tagger(256, 8, 4), (tokens,), classes(256, 10)


class Attention(nn.Module):
    """Causal attention by scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        n, t, width = x.shape
        q, k, v = (
            part.view(n, t, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, t, width))


class Block(nn.Module):
    """One block of a GPT or a ViT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform."""
        x = x + self.attention(self.a(x))
        return x + self.mlp(self.b(x))


class Gpt(nn.Module):
    """A small GPT."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(65, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 65, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token."""
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


@model("GPT 128, four blocks, 8 x 64", optimizer=adamw)
def _gpt() -> Made:
    tokens = torch.randint(0, 65, (8, 64))
    return Gpt(128, 4, 4), (tokens,), classes(512, 65)


class Translator(nn.Module):
    """nn.Transformer between two embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(500, 64), nn.Embedding(500, 64)
        self.net = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
        self.head = nn.Linear(64, 500)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores of the next target token."""
        y = self.net(self.source(source), self.target(target))
        return self.head(y).flatten(0, 1)


@model("translator, 8 x 20")
def _translator() -> Made:
    inputs = torch.randint(0, 500, (8, 20)), torch.randint(0, 500, (8, 20))
    return Translator(), inputs, classes(160, 500)

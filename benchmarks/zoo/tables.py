"""Models of rows, users and states: multilayer perceptrons, embeddings, graphs."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.model import adamw, classes, model, sgd

Made = tuple[nn.Module, tuple[Tensor, ...], Tensor]


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU, end: nn.Module | None = None):
    """A multilayer perceptron as nn.Sequential."""
    layers: list[nn.Module] = []
    for i, (k, n) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(k, n)] + ([act()] if i < len(sizes) - 2 else [])
    return nn.Sequential(*layers, *([end] if end else []))


@model("linear regression 13, batch 32", F.mse_loss, sgd)
def _linear_regression() -> Made:
    return nn.Linear(13, 1), (torch.randn(32, 13),), torch.randn(32, 1)


@model("logistic regression 784, batch 64", optimizer=sgd)
def _logistic() -> Made:
    return nn.Linear(784, 10), (torch.randn(64, 784),), classes(64, 10)


@model("tiny MLP 64-64-10, batch 1")
def _tiny() -> Made:
    return mlp(64, 64, 10), (torch.randn(1, 64),), classes(1, 10)


@model("tiny MLP 64-64-10, batch 32", optimizer=sgd)
def _tiny_batch() -> Made:
    return mlp(64, 64, 10), (torch.randn(32, 64),), classes(32, 10)


@model("tabular MLP 20-64-64-1, batch 1", F.mse_loss)
def _tabular() -> Made:
    return mlp(20, 64, 64, 1), (torch.randn(1, 20),), torch.randn(1, 1)


@model("tabular MLP with norm and dropout, batch 256", F.binary_cross_entropy)
def _tabular_norm() -> Made:
    parts = []
    for k, n in ((40, 256), (256, 128), (128, 64)):
        parts += [nn.Linear(k, n), nn.BatchNorm1d(n), nn.ReLU(), nn.Dropout(0.2)]
    net = nn.Sequential(*parts, nn.Linear(64, 1), nn.Sigmoid())
    return net, (torch.randn(256, 40),), torch.rand(256, 1)


@model("DQN 4-128-128-2, batch 1", F.smooth_l1_loss)
def _dqn() -> Made:
    return mlp(4, 128, 128, 2), (torch.randn(1, 4),), torch.randn(1, 2)


@model("DQN 8-128-128-4, batch 128", F.smooth_l1_loss, adamw)
def _dqn_batch() -> Made:
    return mlp(8, 128, 128, 4), (torch.randn(128, 8),), torch.randn(128, 4)


class ActorCritic(nn.Module):
    """A trunk with two heads, tanh throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = mlp(24, 64, 64, act=nn.Tanh, end=nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits plus the value."""
        x = self.trunk(x)
        return self.actor(x).log_softmax(-1) + self.critic(x)


@model("actor-critic 24-64-64, batch 64", F.mse_loss)
def _actor_critic() -> Made:
    return ActorCritic(), (torch.randn(64, 24),), torch.randn(64, 4)


@model("MLP 784-512-512-10, batch 64")
def _mnist() -> Made:
    return mlp(784, 512, 512, 10), (torch.randn(64, 784),), classes(64, 10)


class MnistNet(nn.Module):
    """Layers as attributes, functions between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(784, 128), nn.Linear(128, 10)
        self.drop = nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities."""
        x = F.relu(self.a(x.flatten(1)))
        return F.log_softmax(self.b(self.drop(x)), dim=1)


@model("MNIST net by functions, batch 64", F.nll_loss, sgd)
def _mnist_functions() -> Made:
    return MnistNet(), (torch.randn(64, 1, 28, 28),), classes(64, 10)


class Vae(nn.Module):
    """A variational autoencoder of images in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.mean, self.spread = (
            nn.Linear(784, 400),
            nn.Linear(400, 20),
            nn.Linear(400, 20),
        )
        self.b, self.c = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruct."""
        h = F.relu(self.a(x))
        mean, spread = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        return torch.sigmoid(self.c(F.relu(self.b(z))))


@model("VAE 784-400-20, batch 128", F.binary_cross_entropy)
def _vae() -> Made:
    return Vae(), (torch.rand(128, 784),), torch.rand(128, 784)


@model("autoencoder 64-32-8, batch 64", F.mse_loss)
def _autoencoder() -> Made:
    return mlp(64, 32, 8, 32, 64), (torch.randn(64, 64),), torch.randn(64, 64)


@model("residual MLP with LayerNorm and GELU, batch 128")
def _residual_mlp() -> Made:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(192)
            self.net = mlp(192, 384, 192, act=nn.GELU)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.net(self.norm(x))

    net = nn.Sequential(nn.Linear(54, 192), *(Block() for _ in range(4)))
    net.append(nn.Linear(192, 7))
    return net, (torch.randn(128, 54),), classes(128, 7)


class Recommender(nn.Module):
    """Embeddings, their products and a perceptron on top, as DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(5000, 16) for _ in range(8))
        self.bottom, self.top = mlp(13, 64, 16), mlp(16 + 36, 64, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """One logit a row."""
        found = [t(sparse[:, i]) for i, t in enumerate(self.tables)]
        x = self.bottom(dense)
        both = torch.stack([x, *found], 1)
        pairs = torch.bmm(both, both.transpose(1, 2))
        i, j = torch.tril_indices(9, 9, offset=-1)
        return self.top(torch.cat([x, pairs[:, i, j]], 1))


@model("recommender with eight tables, batch 128", F.binary_cross_entropy_with_logits)
def _recommender() -> Made:
    inputs = torch.randn(128, 13), torch.randint(0, 5000, (128, 8))
    return Recommender(), inputs, torch.rand(128, 1)


class WideDeep(nn.Module):
    """A linear part beside a deep one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.wide = nn.EmbeddingBag(2000, 32, mode="sum"), nn.Linear(30, 1)
        self.deep = mlp(62, 128, 64, 1)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """One logit a row."""
        return self.wide(x) + self.deep(torch.cat([x, self.table(words)], 1))


@model("wide and deep, batch 256", F.binary_cross_entropy_with_logits)
def _wide_deep() -> Made:
    inputs = torch.randn(256, 30), torch.randint(0, 2000, (256, 12))
    return WideDeep(), inputs, torch.rand(256, 1)


class Factors(nn.Module):
    """Matrix factorization."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(1000, 32), nn.Embedding(2000, 32)

    def forward(self, u: Tensor, i: Tensor) -> Tensor:
        """A rating a pair."""
        return (self.users(u) * self.items(i)).sum(-1)


@model("matrix factorization, batch 512", F.mse_loss, sgd)
def _factors() -> Made:
    inputs = torch.randint(0, 1000, (512,)), torch.randint(0, 2000, (512,))
    return Factors(), inputs, torch.randn(512)


class Graph(nn.Module):
    """Two graph convolutions over an edge list."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 32), nn.Linear(32, 7)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Class scores a node."""
        source, target = edges
        for layer in (self.a, self.b):
            messages = layer(x)[source]
            x = torch.zeros(len(x), layer.out_features).index_add(0, target, messages)
            x = F.relu(x) if layer is self.a else x
        return x


@model("graph network, 1000 nodes")
def _graph() -> Made:
    inputs = torch.randn(1000, 64), torch.randint(0, 1000, (2, 5000))
    return Graph(), inputs, classes(1000, 7)


class PointNet(nn.Module):
    """Shared layers by 1-wide convolutions, and a maximum over points."""

    def __init__(self) -> None:
        super().__init__()
        parts = []
        for c, n in ((3, 64), (64, 128), (128, 256)):
            parts += [nn.Conv1d(c, n, 1), nn.BatchNorm1d(n), nn.ReLU()]
        self.points, self.head = nn.Sequential(*parts), mlp(256, 128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores a cloud."""
        return self.head(self.points(x).amax(-1))


@model("PointNet, 8 clouds of 512")
def _pointnet() -> Made:
    return PointNet(), (torch.randn(8, 3, 512),), classes(8, 10)

"""Networks that people run, with random weights, for batches of any size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.images import UNet
from benchmarks.zoo.packages import import_torchvision, import_transformers

Made = tuple[nn.Module, tuple[Tensor, ...]]

MODELS: dict[str, Callable[[int], Made]] = {}
"""By name: what makes the network and its inputs, for a batch of that size."""


def _image_net(name: str, batch: int) -> Made:
    net: nn.Module = getattr(import_torchvision().models, name)(weights=None)
    for parameter in net.parameters():
        if not parameter.any() and parameter.dim() > 1:  # a head that begins with zeros
            nn.init.normal_(parameter, std=0.02)
    return net, (torch.randn(batch, 3, 224, 224),)


for _name in (
    *("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large"),
    *("efficientnet_b0", "regnet_y_400mf", "densenet121", "vgg11"),
    *("convnext_tiny", "vit_b_16", "swin_t"),
):
    MODELS[_name] = partial(_image_net, _name)


def _add(name: str) -> Callable[[Callable[[int], Made]], Callable[[int], Made]]:
    def add(make: Callable[[int], Made]) -> Callable[[int], Made]:
        MODELS[name] = make
        return make

    return add


class _Hidden(nn.Module):
    """A network of transformers', called by place, of which the first result counts."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, tokens: Tensor) -> Any:
        return self.net(tokens, return_dict=False)[0]


@_add("BERT, 64 tokens")
def _bert(batch: int) -> Made:
    library = import_transformers()
    net = library.BertModel(library.BertConfig(attn_implementation="sdpa"))
    return _Hidden(net), (torch.randint(0, 30522, (batch, 64)),)


@_add("GPT-2, 64 tokens")
def _gpt2(batch: int) -> Made:
    library = import_transformers()
    config = library.GPT2Config(use_cache=False, attn_implementation="sdpa")
    return _Hidden(library.GPT2Model(config)), (torch.randint(0, 50257, (batch, 64)),)


@_add("U-Net, 64 x 64")
def _unet(batch: int) -> Made:
    return UNet(), (torch.randn(batch, 1, 64, 64),)


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.lstm(x)[0][:, -1])
        return scores


@_add("LSTM 128, 32 steps")
def _lstm(batch: int) -> Made:
    return _Lstm(), (torch.randn(batch, 32, 64),)


@_add("tabular MLP 20-64-64-1")
def _mlp(batch: int) -> Made:
    layers = (nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(64, 1)), (torch.randn(batch, 20),)

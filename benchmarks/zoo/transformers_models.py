"""Networks of transformers, with random weights, from configurations: no download.

Vocabularies, widths and heads are those of the published models.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.model import adamw, classes, model
from benchmarks.zoo.sequences import Made

N_CLASSES = 2


class Scores(nn.Module):
    """A network of transformers, of whose many outputs the scores are left."""

    def __init__(self, cls: str, config: str, **options: Any) -> None:
        super().__init__()
        package = import_module("transformers")
        self.net = getattr(package, cls)(getattr(package, config)(**options))

    def forward(self, tokens: Tensor, target: Tensor | None = None) -> Tensor:
        """Scores [texts or tokens, classes or words]."""
        more = {} if target is None else {"decoder_input_ids": target}
        return self.net(input_ids=tokens, **more).logits.flatten(0, -2)


def _tokens(net: Scores, batch: int, length: int) -> Tensor:
    return torch.randint(0, net.net.config.vocab_size, (batch, length))


def _bert(n_layers: int, batch: int, length: int) -> Made:
    net = Scores(
        *("BertForSequenceClassification", "BertConfig"), num_hidden_layers=n_layers
    )
    return net, (_tokens(net, batch, length),), classes(batch, N_CLASSES)


@model("transformers BERT-base of two layers, 4 x 128", optimizer=adamw)
def _bert_2() -> Made:
    return _bert(2, 4, 128)


@model("transformers BERT-base, 2 x 128", optimizer=adamw)
def _bert_12() -> Made:
    return _bert(12, 2, 128)


@model("transformers DistilBERT, 4 x 64", optimizer=adamw)
def _distilbert() -> Made:
    net = Scores("DistilBertForSequenceClassification", "DistilBertConfig")
    return net, (_tokens(net, 4, 64),), classes(4, N_CLASSES)


@model("transformers GPT-2 small, 2 x 64", optimizer=adamw)
def _gpt2() -> Made:
    net = Scores("GPT2LMHeadModel", "GPT2Config", use_cache=False)
    return net, (_tokens(net, 2, 64),), classes(128, net.net.config.vocab_size)


@model("transformers T5-small, 2 x 64", optimizer=adamw)
def _t5() -> Made:
    net = Scores("T5ForConditionalGeneration", "T5Config", use_cache=False)
    inputs = _tokens(net, 2, 64), _tokens(net, 2, 64)
    return net, inputs, classes(128, net.net.config.vocab_size)

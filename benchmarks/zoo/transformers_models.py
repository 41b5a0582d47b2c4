"""Networks of transformers, with random weights, from configurations: no download.

Vocabularies, widths and heads are those of the published models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.model import adamw, classes, model
from benchmarks.zoo.packages import import_transformers
from benchmarks.zoo.sequences import Made

N_CLASSES = 2
N_MELS, N_FRAMES = 80, 3000  # of Whisper: thirty seconds of sound


class Scores(nn.Module):
    """A network of transformers, of whose many outputs the scores are left."""

    def __init__(self, cls: str, config: str, **options: Any) -> None:
        super().__init__()
        package = import_transformers()
        self.net = getattr(package, cls)(getattr(package, config)(**options))

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        """Scores [texts or tokens, classes or words]."""
        more = {} if target is None else {"decoder_input_ids": target}
        return self.net(x, **more).logits.flatten(0, -2)


def _tokens(net: Scores, batch: int, length: int) -> Tensor:
    return torch.randint(0, net.net.config.vocab_size, (batch, length))


def _words(net: Scores, batch: int, length: int) -> Made:
    """A model of language, and texts of which each next word is asked for."""
    n_words = net.net.config.vocab_size
    return net, (_tokens(net, batch, length),), classes(batch * length, n_words)


def _images(net: Scores, batch: int) -> Made:
    return net, (torch.randn(batch, 3, 224, 224),), classes(batch, N_CLASSES)


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
    return _words(Scores("GPT2LMHeadModel", "GPT2Config", use_cache=False), 2, 64)


@model("transformers Llama of four blocks of 512, 2 x 128", optimizer=adamw)
def _llama() -> Made:
    size = {"hidden_size": 512, "intermediate_size": 1376, "vocab_size": 8000}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    net = Scores(
        *("LlamaForCausalLM", "LlamaConfig"),
        **(size | heads | {"num_hidden_layers": 4, "use_cache": False}),
    )
    return _words(net, 2, 128)


@model("transformers T5-small, 2 x 64", optimizer=adamw)
def _t5() -> Made:
    net = Scores("T5ForConditionalGeneration", "T5Config", use_cache=False)
    inputs = _tokens(net, 2, 64), _tokens(net, 2, 64)
    return net, inputs, classes(128, net.net.config.vocab_size)


@model("transformers Whisper tiny, 30 s, 32 words", optimizer=adamw)
def _whisper() -> Made:
    size = {"encoder_layers": 4, "decoder_layers": 4, "d_model": 384}
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
    wide = {"encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "use_cache": False}
    net = Scores(
        *("WhisperForConditionalGeneration", "WhisperConfig"), **(size | heads | wide)
    )
    inputs = torch.randn(1, N_MELS, N_FRAMES), _tokens(net, 1, 32)
    return net, inputs, classes(32, net.net.config.vocab_size)


@model("transformers ViT-S/16, batch 2", optimizer=adamw)
def _vit() -> Made:
    size = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6}
    return _images(Scores("ViTForImageClassification", "ViTConfig", **size), 2)


@model("transformers Swin-T, batch 1", optimizer=adamw)
def _swin() -> Made:
    return _images(Scores("SwinForImageClassification", "SwinConfig"), 1)

"""What three bits of mantissa cost: of a layer, and of a network trained on digits.

The figures are printed, with ``-s``.
"""

from __future__ import annotations

from typing import Any

import fp8_layers
import pytest
import quantized_layers
import torch
import torch.nn.functional as F
from fp8_layers import FP8, rows_of
from quantized_layers import quantized
from switching import hits
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.quantization import quantizer

nothing_planned = quantized_layers.nothing_planned
switched_on_anywhere = fp8_layers.switched_on_anywhere
switched_on = fp8_layers.switched_on

MOST_POINTS_LOST = 0.3
LEAST_AGREEMENT = 99.0
LEAST_DB = 30
"""Of outputs, where int8 has 32; 33.3 were measured."""
N_ASKED = 360


def db(signal: Tensor, other: Tensor) -> float:
    noise = (other - signal).square().sum()
    return float(10 * torch.log10(signal.square().sum() / noise))


def test_of_a_weight() -> None:
    """As the next test says of numbers that are spread evenly, from 0 on."""
    weight = nn.Linear(512, 256).cuda().weight
    made = quantizer.quantize(weight, quantizer.FP8)
    assert made
    found = quantizer.sqnr_db(made.signal, made.noise)
    print(f"weight {found:.1f} dB")
    assert found == pytest.approx(31.9, abs=0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_of_a_layer(switched_on: Any, dtype: torch.dtype) -> None:
    """Steps are an eighth of a power of two: noise of 2**-6 / 12 of its square.

    Numbers that are spread evenly between powers of two have 7/3 of it, 32.5 dB more;
    normal ones, of which more are small, 31.6. Weights are spread evenly, from 0 on:
    31.9. Two such noises add up to 28.7 dB.
    """
    torch.default_generator.manual_seed(3)
    layer, x = nn.Linear(512, 256, dtype=dtype), torch.randn(64, 512).to(dtype)
    ours = quantized(layer.cuda(), method="fp8")
    of_rows = db(x.double(), rows_of(x))
    with torch.no_grad():
        y = ours(x.cuda()).cpu().double()
        of_output = db(layer.cpu().double()(x.double()), y)
    print(f"rows {of_rows:.1f} dB, output {of_output:.1f} dB")
    assert of_rows == pytest.approx(31.6, abs=0.3)
    assert of_output == pytest.approx(28.7, abs=0.4)


def percent(right: Tensor) -> float:
    return 100 * float(right.float().mean())


def digits() -> tuple[Tensor, Tensor]:
    from sklearn import datasets

    data = datasets.load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], torch.tensor(data.target)[order]


def trained(images: Tensor, classes: Tensor) -> nn.Module:
    """Its last layer has ten outputs, and stays float."""
    torch.default_generator.manual_seed(0)
    hidden = nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()
    model = nn.Sequential(*hidden, nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(20):
        for part in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), classes[part]).backward()
            optimizer.step()
    return model.eval().requires_grad_(False)


def test_of_a_trained_network(switched_on: Any) -> None:
    """Of 360 images one is 0.3 points. Logits, sums of many, stand out of the noise."""
    images, classes = digits()
    model = trained(images[N_ASKED:], classes[N_ASKED:])
    images, classes = images[:N_ASKED], classes[:N_ASKED]
    stock, counted = model(images), hits(FP8)
    ours = quantized(model.cuda(), method="fp8")(images.cuda()).cpu()
    assert counted.accelerated == 2
    ptac.disable()
    points = [percent(y.argmax(1) == classes) for y in (stock, ours)]
    agreement = percent(stock.argmax(1) == ours.argmax(1))
    of_output = db(stock, ours)
    print(f"{points[0]:.2f} -> {points[1]:.2f} %, alike {agreement:.2f} %", end=", ")
    print(f"output {of_output:.1f} dB")
    assert points[0] > 95
    assert points[0] - points[1] <= MOST_POINTS_LOST
    assert agreement >= LEAST_AGREEMENT
    assert of_output > LEAST_DB

"""Networks trained on handwritten digits keep their accuracy in int8.

The figures are printed: ``pytest -s tests/quantization/test_quantization_accuracy.py``.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator

import int8
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.bench.workloads import SimpleCNN

MOST_POINTS_LOST = 0.3
LEAST_AGREEMENT = 99.0
LEAST_DB = 32
"""Of the outputs; five layers of 40 dB each, one after another, have 33 dB together."""
N_ASKED = 360
EPOCHS = 6


def digits_mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 256), nn.ReLU()),
        *(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def small_resnet() -> nn.Module:
    """Norms between convolutions: what dynamic quantization by torch destroys."""

    def unit(c: int, k: int, stride: int) -> nn.Sequential:
        conv = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(k), nn.ReLU())

    return nn.Sequential(
        *(unit(1, 16, 1), unit(16, 32, 2), unit(32, 32, 1), unit(32, 64, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": digits_mlp,
    "SimpleCNN": SimpleCNN,
    "resnet": small_resnet,
}


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    from sklearn import datasets

    data = datasets.load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], torch.tensor(data.target)[order]


@functools.cache
def trained(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]()
    images, classes = (t[N_ASKED:] for t in digits())
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), classes[part]).backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(autouse=True)
def off_at_the_end() -> Iterator[None]:
    yield
    ptac.disable()


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_accuracy_is_kept(name: str, is_guarded: bool) -> None:
    model = copy.deepcopy(trained(name))
    images, classes = (t[:N_ASKED] for t in digits())
    sample = digits()[0][N_ASKED : N_ASKED + 128] if is_guarded else None
    with int8.kernels() as made, torch.no_grad():
        stock = model(images)
        ptac.quantize_model(model, sample, method="int8")
        made.clear()
        ours = model(images)
        assert made
        content = ptac.quantization_report(model).as_dict()
        assert all(layer["state"] == "int8" for layer in content["layers"])
    right = [
        (y.argmax(1) == classes).float().mean().item() * 100 for y in (stock, ours)
    ]
    agreement = (stock.argmax(1) == ours.argmax(1)).float().mean().item() * 100
    sqnr = int8.sqnr_db(stock, ours)
    share = 100 * content["bytes"]["quantized"] / content["bytes"]["float"]
    print(
        f"{name}: {right[0]:.2f} -> {right[1]:.2f} %, agreement {agreement:.2f} %, "
        f"{sqnr:.1f} dB, {share:.1f} % of the bytes"
    )
    assert right[0] > 90
    assert right[0] - right[1] <= MOST_POINTS_LOST
    assert agreement >= LEAST_AGREEMENT
    assert sqnr >= LEAST_DB
    alone = [layer["output_sqnr_db"] for layer in content["layers"]]
    print("  each layer alone:", [db and round(db, 1) for db in alone])

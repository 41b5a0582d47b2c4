"""A network trained on handwritten digits, made int8 in place; needs scikit-learn.

python examples/model_quantization.py            quantized, with the report
python examples/model_quantization.py --stock    plain PyTorch
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn


def digits() -> list[Tensor]:
    """Images [n, 64] and labels [n], for training and for the test."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.2, random_state=0)
    x, x_test, y, y_test = map(torch.as_tensor, parts)
    return [x.float(), y, x_test.float(), y_test]


def trained(x: Tensor, y: Tensor, n_steps: int = 150) -> nn.Module:
    """A multi-layer perceptron after a few epochs."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()),
        nn.Linear(1024, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(n_steps):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return model.eval()


def n_bytes(model: nn.Module) -> int:
    """What its state dict takes."""
    return sum(t.numel() * t.element_size() for t in model.state_dict().values())


def measure(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Print accuracy, bytes and the time of a batch of 64."""
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
        seconds = []
        for _ in range(50):
            start = time.perf_counter()
            model(x[:64])
            seconds.append(time.perf_counter() - start)
    print(
        f"accuracy {accuracy:.4f}, {n_bytes(model)} bytes, {min(seconds) * 1e3:.3f} ms"
    )


if __name__ == "__main__":
    x, y, x_test, y_test = digits()
    model = trained(x, y)
    measure(model, x_test, y_test)
    if "--stock" not in sys.argv:
        import pai_torchacc as ptac

        ptac.enable_model_quantization()
        ptac.quantize_model(model, x)
        measure(model, x_test, y_test)
        print(ptac.quantization_report(model))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "digits.ptac"
            ptac.save_quantized(model, file)
            print(f"coded file: {file.stat().st_size} bytes")
        ptac.dequantize_model(model)
        measure(model, x_test, y_test)

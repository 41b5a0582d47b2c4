"""Four learning rates, one of them good: plain PyTorch, and with one line more.

python examples/adaptive_lr.py            with adaptive learning rates
python examples/adaptive_lr.py --stock    plain PyTorch

Needs scikit-learn for its images of handwritten digits.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def digits() -> tuple[Tensor, Tensor]:
    """Images [n, 64] between 0 and 1, and their labels [n]."""
    images, labels = load_digits(return_X_y=True)
    return torch.as_tensor(images / 16).float(), torch.as_tensor(labels)


def train(lr: float, n_epochs: int = 10) -> tuple[float, torch.optim.Optimizer]:
    """The loss over all images after some epochs of ordinary SGD."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    x, y = digits()
    for _ in range(n_epochs):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return nn.functional.cross_entropy(model(x), y).item(), optimizer


def main() -> None:
    """Train with each rate and print what came of it."""
    is_stock = "--stock" in sys.argv[1:]
    if not is_stock:
        import pai_torchacc as ptac

        ptac.enable_adaptive_lr()
    for lr in (1e-4, 1e-3, 0.1, 1.0):
        loss, optimizer = train(lr)
        print(f"lr {lr:g}: loss {loss:.4f}")
        if not is_stock:
            print(f"  {ptac.adaptive_lr_report(optimizer)}")


if __name__ == "__main__":
    main()

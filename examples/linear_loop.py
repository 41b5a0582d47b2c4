"""The shortest training loop: one linear layer, cross-entropy, SGD.

python examples/linear_loop.py            accelerated, with the report
python examples/linear_loop.py --stock    plain PyTorch
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


def make_model(seed: int = 0) -> nn.Module:
    """Ten classes from a thousand features."""
    torch.manual_seed(seed)
    return nn.Linear(1000, 10)


def make_batches(n: int, batch: int = 32, seed: int = 0) -> list[Batch]:
    """Synthetic features [batch, 1000] and their classes."""
    torch.manual_seed(seed)
    return [
        (torch.randn(batch, 1000), torch.randint(0, 10, (batch,))) for _ in range(n)
    ]


def train(model: nn.Module, batches: list[Batch]) -> list[float]:
    """Train; the loss before each step."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train once and print what it took."""
    parser = argparse.ArgumentParser(description="One linear layer in a loop.")
    parser.add_argument("--stock", action="store_true", help="plain PyTorch")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    if not options.stock:
        import pai_torchacc as ptac

        ptac.enable()

    model, batches = make_model(), make_batches(options.steps, options.batch)
    start = time.perf_counter()
    losses = train(model, batches)
    elapsed = time.perf_counter() - start
    print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f}")
    print(f"{elapsed / options.steps * 1e6:.0f} us a step")

    if not options.stock:
        print(ptac.report())


if __name__ == "__main__":
    main()

"""A batch size for a small network: measured, with the table and a plot.

python examples/batch_size.py                  find it, then train with it
python examples/batch_size.py --stock          plain PyTorch: the batch as it was
python examples/batch_size.py --plot FILE      draw throughput and memory too
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]

EFFECTIVE = 256
"""Samples in an optimizer step, which stay whatever the batch."""


def make_batch(n: int) -> Batch:
    """Synthetic images [n, 1, 28, 28] and their classes."""
    return torch.randn(n, 1, 28, 28), torch.randint(0, 10, (n,))


class Training:
    """A model and what trains it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(8 * 13 * 13, 10)),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self, batch: Batch, share: float = 1.0) -> float:
        """Add a batch's share to the gradients; the loss."""
        images, classes = batch
        loss = nn.functional.cross_entropy(self.model(images), classes)
        (loss * share).backward()
        return loss.item()

    def train(self, batch: int, accumulation: int, n_steps: int) -> list[float]:
        """Do optimizer steps of ``batch * accumulation`` samples; mean losses."""
        losses = []
        for _ in range(n_steps):
            self.optimizer.zero_grad()
            data = make_batch(batch * accumulation)
            parts = zip(*(tensor.split(batch) for tensor in data), strict=True)
            found = [self.step(part, 1 / accumulation) for part in parts]
            self.optimizer.step()
            losses.append(sum(found) / accumulation)
        return losses


def main() -> None:
    """Find a batch size, and train with it."""
    parser = argparse.ArgumentParser(description="A batch size by measuring.")
    parser.add_argument("--stock", action="store_true", help="plain PyTorch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plot", metavar="FILE", help="draw what was found")
    options = parser.parse_args()
    training = Training()
    batch, accumulation = EFFECTIVE, 1
    if not options.stock:
        import pai_torchacc as ptac

        found = ptac.find_batch_size(
            training.step, make_batch, keep_effective=EFFECTIVE, seconds=0.2
        )
        print(found)
        if options.plot:
            found.plot(options.plot)
        batch, accumulation = found.batch, found.accumulation
    torch.manual_seed(1)
    losses = training.train(batch, accumulation, options.steps)
    print(f"batch {batch}, accumulation {accumulation}")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main()

"""``ptac.optimize``: a whole training step runs by a plan.

python examples/training_step.py            planned, with the report
python examples/training_step.py --stock    plain PyTorch
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def main() -> None:
    """Train a small network on digits that are noise, and time the steps."""
    parser = argparse.ArgumentParser(description="Training steps by plans.")
    parser.add_argument("--stock", action="store_true", help="plain PyTorch")
    parser.add_argument("--rounds", type=int, default=500)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if not options.stock:
        import pai_torchacc as ptac

        ptac.enable()
        step = ptac.optimize(step)  # the first two calls record, the others replay
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    first = step(x, y).item()
    step(x, y)
    start = time.perf_counter()
    for _ in range(options.rounds):
        loss = step(x, y)
    print(f"{(time.perf_counter() - start) / options.rounds * 1e6:.1f} us a step")
    print(f"loss from {first:.4f} to {loss.item():.4f}")
    if not options.stock:
        print(ptac.report())


if __name__ == "__main__":
    main()

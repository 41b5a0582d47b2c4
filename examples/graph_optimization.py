"""``ptac.optimize``: a model that is called again and again runs by a plan.

python examples/graph_optimization.py            planned, with the report
python examples/graph_optimization.py --stock    plain PyTorch
"""

import argparse
import time

import torch
from torch import nn


def main() -> None:
    """Time a small network, call by call."""
    parser = argparse.ArgumentParser(description="Plans of repeated models.")
    parser.add_argument("--stock", action="store_true", help="plain PyTorch")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(16384, 10)).eval()
    if not options.stock:
        import pai_torchacc as ptac

        ptac.enable()
        ptac.optimize(model)  # the first call records, the others replay
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        model(x)
        start = time.perf_counter()
        for _ in range(options.rounds):
            model(x)
    print(f"{(time.perf_counter() - start) / options.rounds * 1e6:.1f} us a call")
    if not options.stock:
        print(ptac.report())


if __name__ == "__main__":
    main()

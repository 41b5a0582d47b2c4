"""``operator_fusion``: a product, a sum and an activation, computed as one.

python examples/operator_fusion.py            accelerated, with the report
python examples/operator_fusion.py --stock    plain PyTorch
"""

import argparse
import time

import torch


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Three operators, of which each reads what the one before wrote."""
    return torch.relu(torch.matmul(x, y.T) + 0.5)


def main() -> None:
    """Time the chain at some sizes."""
    parser = argparse.ArgumentParser(description="The switch operator_fusion.")
    parser.add_argument("--stock", action="store_true", help="plain PyTorch")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    if not options.stock:
        import pai_torchacc as ptac

        ptac.enable_operator_fusion()
    for n, k in ((4, 4), (64, 1000), (512, 512), (2000, 32)):
        x, y = torch.randn(n, k), torch.randn(n, k)
        start = time.perf_counter()
        for _ in range(options.rounds):
            chain(x, y)
        seconds = (time.perf_counter() - start) / options.rounds
        print(f"relu(x @ y.T + 0.5), {n:4} x {k:4}: {seconds * 1e6:8.1f} us")
    if not options.stock:
        print(ptac.report())


if __name__ == "__main__":
    main()

"""The switch ``operator_fusion``: chains of operators, and a layer with an activation.

python examples/operator_fusion.py            accelerated, with the report
python examples/operator_fusion.py --stock    plain PyTorch

Small products, sums and activations are computed where Python calls torch's functions,
and a Linear and the activation behind it in nn.Sequential are one operator. The report
counts them, and says of everything else whether it ran accelerated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn


def make_matrices(n: int = 512, k: int = 512, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two matrices [n, k]."""
    torch.manual_seed(seed)
    return torch.randn(n, k), torch.randn(n, k)


def chain(x: Tensor, y: Tensor) -> Tensor:
    """Product, sum, activation: three operators that each read what one wrote."""
    return torch.relu(torch.matmul(x, y.T) + 0.5)


def make_layer(seed: int = 0, width: int = 1000, out: int = 64) -> nn.Module:
    """A layer and its activation."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, out), nn.ReLU())


def make_input(seed: int = 0, batch: int = 64, width: int = 1000) -> Tensor:
    """Features [batch, width]."""
    torch.manual_seed(seed + 1)
    return torch.randn(batch, width)


def infer(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's output, without gradients."""
    with torch.no_grad():
        return layer(x)


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Gradients of the layer's parameters for the sum of squares of its output."""
    layer.zero_grad()
    layer(x).square().sum().backward()
    return [p.grad for p in layer.parameters()]


def time_of(function: Callable[[], object], rounds: int) -> float:
    """Seconds that one call takes, after a first one that does not count."""
    function()
    start = time.perf_counter()
    for _ in range(rounds):
        function()
    return (time.perf_counter() - start) / rounds


def main() -> None:
    """Run each and print what it took."""
    parser = argparse.ArgumentParser(description="The switch operator_fusion.")
    parser.add_argument("--stock", action="store_true", help="plain PyTorch")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    if not options.stock:
        import pai_torchacc as ptac

        ptac.enable_operator_fusion()

    small, wide = make_matrices(4, 4), make_matrices(64, 1000)
    square, flat = make_matrices(), make_matrices(2000, 32)
    layer, x = make_layer(), make_input()
    work: dict[str, Callable[[], object]] = {
        "relu(x @ y.T + 0.5), 4 x 4": lambda: chain(*small),
        "relu(x @ y.T + 0.5), 64 x 1000": lambda: chain(*wide),
        "relu(x @ y.T + 0.5), 512 x 512": lambda: chain(*square),
        "relu(x @ y.T + 0.5), 2000 x 32": lambda: chain(*flat),
        "Linear and ReLU, forward": lambda: infer(layer, x),
        "Linear and ReLU, with gradients": lambda: gradients(layer, x),
    }
    for name, function in work.items():
        print(f"{name:32} {time_of(function, options.rounds) * 1e6:8.1f} us")
    print(f"mean of the layer's output {infer(layer, x).mean():.6f}")

    if not options.stock:
        print(ptac.report())


if __name__ == "__main__":
    main()

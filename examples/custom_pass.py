"""A pass of one's own over recorded graphs: division by a number as a product.

python examples/custom_pass.py
"""

import torch

import pai_torchacc as ptac
from pai_torchacc.graph.ir import Graph

aten = torch.ops.aten


@ptac.graph.register_pass
def multiply_instead(graph: Graph) -> None:
    """Divisions by powers of two, which are exact as products."""
    for node in graph.nodes:
        if node.op is aten.div.Tensor and node.args[1:] == (4.0,):
            node.op, node.args = aten.mul.Tensor, (node.args[0], 0.25)
    print(graph)


@ptac.optimize
def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Part of an attention."""
    return torch.softmax(x @ y.T / 4.0, -1)


def main() -> None:
    """Call it twice: the first call is recorded, the second one is planned."""
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    eager = scaled(x, y)
    print("same bits:", torch.equal(scaled(x, y), eager))
    ptac.graph.unregister_pass(multiply_instead)


if __name__ == "__main__":
    main()

"""Training steps without page faults; with ``--stock``, plain PyTorch."""

import resource
import sys
import time

import torch
from torch import nn

if "--stock" not in sys.argv:
    import pai_torchacc as ptac

    ptac.enable_memory_pool()
    ptac.enable_memory_reuse()


def train(device: str, n_steps: int = 20) -> None:
    """Print loss, page faults and seconds of each step of a small network."""
    torch.manual_seed(0)
    hidden = [m for _ in range(3) for m in (nn.Linear(512, 512), nn.GELU())]
    model = nn.Sequential(nn.Linear(784, 512), *hidden, nn.Linear(512, 10))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(2048, 784), torch.randint(0, 10, (2048,))
    for step in range(n_steps):
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        n = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before.ru_minflt
        seconds = time.perf_counter() - start
        print(f"{device} {step}: {loss.item()}, {n} faults, {seconds:.3f} s")


for name in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
    train(name)
if "--stock" not in sys.argv:
    print(ptac.memory_summary(abbreviated=True), ptac.report(), sep="\n")

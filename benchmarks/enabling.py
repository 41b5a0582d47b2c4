"""What it costs to begin: importing, ``enable()``, and the first step with it.

``python -m benchmarks.enabling`` prints the smallest and the median milliseconds of
fresh processes: of such that have only imported torch, and such that have trained. The
first step is beyond the median of stock's, of a small CNN with SGD.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

PROCESSES = 7

PROGRAM = """
import json, statistics, sys, time
import torch
from torch import nn

def ms(work):
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)

net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                    nn.Linear(16 * 169, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))

def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()

found = {}
if sys.argv[1] == "trained":
    stock = statistics.median([ms(step) for _ in range(30)][5:])

def load():
    global ptac
    import pai_torchacc as ptac

found["import"] = ms(load)
found["enable()"] = ms(ptac.enable)
if sys.argv[1] == "trained":
    found["enable() and first step"] = found["enable()"] + ms(step) - stock
print(json.dumps(found))
"""


def main() -> None:
    """Print the table."""
    for state in ("fresh", "trained"):
        command = [sys.executable, "-c", PROGRAM, state]
        runs = [
            json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
            for _ in range(PROCESSES + 1)
        ][1:]  # the first compiles the package
        for what in runs[0]:
            times = [run[what] for run in runs]
            least, median = min(times), statistics.median(times)
            print(f"{state:8} {what:24} {least:6.1f} {median:6.1f} ms")


if __name__ == "__main__":
    main()

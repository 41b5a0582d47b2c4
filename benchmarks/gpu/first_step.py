"""What the first steps after ``enable()`` cost, in fresh processes that have trained.

Once with the package's machine code as it is, once as though nvcc had not been there
and nothing was in the cache: NVRTC compiles then, beside steps that run stock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.gpu.rows import Row
from pai_torchacc.bench.measure_cuda import is_emulated
from pai_torchacc.cuda_kernels import shipped

SECTION = "first step"

LIMIT_S = 60

EMULATION = "import emulation; emulation.load(); emulation.give_machine_code()\n"

PROGRAM = """
import dataclasses, json, statistics, sys, time
import torch
from torch import nn

def us(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start)

net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                    nn.Linear(16 * 25, 10), nn.LogSoftmax(-1)).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
x, y = torch.randn(8, 1, 12, 12).cuda(), (torch.arange(8) % 10).cuda()

def step():
    optimizer.zero_grad()
    nn.functional.nll_loss(net(x), y).backward()
    optimizer.step()

stock = statistics.median([us(step) for _ in range(30)][10:])

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.cuda_kernels import shipped

if sys.argv[1] == "without":
    content = json.loads(json.dumps(shipped.contents().content))
    for unit in content["units"].values():
        unit["fat_binary"] = None
    without = dataclasses.replace(shipped.contents(), content=content)
    shipped.contents = lambda: without

ops = "max_pool2d", "log_softmax", "adam_step"
begun = time.perf_counter()
enabling = us(lambda: ptac.enable("operator_fusion"))
first, n = us(step), 1
while not all(_C.counters(op)[0] for op in ops) and time.perf_counter() - begun < 40:
    step()
    n += 1
torch.cuda.synchronize()
print(json.dumps({
    "stock": stock, "enable": enabling, "first": first, "n": n,
    "all": 1e6 * (time.perf_counter() - begun),
    "served": all(_C.counters(op)[0] for op in ops),
    "from": ptac.status()["operator_fusion"].get("cuda_kernels"),
}))
"""


def rows() -> Iterator[Row]:
    """Rows of each kind of process: enable(), its first step, the first one served."""
    package = shipped.contents()
    has_fat = bool(package and package.has_fat_binaries())
    for kind in ("with", "without") if has_fat else ("without",):
        case = f"{kind} fat binary"
        env = {**os.environ, "PTAC_KERNEL_CACHE": "0"}
        program = (EMULATION if is_emulated() else "") + PROGRAM
        try:
            done = subprocess.run(
                [sys.executable, "-c", program, kind],
                capture_output=True, text=True, env=env, timeout=LIMIT_S, check=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            yield Row(SECTION, case, "", "", "", note=f"failed: {LIMIT_S} s are over")
            continue
        except subprocess.CalledProcessError as error:
            said = error.stderr.splitlines() or [f"exit status {error.returncode}"]
            yield Row(SECTION, case, "", "", "", note=f"failed: {said[-1]}")
            continue
        found = json.loads(done.stdout)
        served = "yes" if found["served"] else "no"
        beyond = found["enable"] + found["first"] - found["stock"]
        for what, us in (
            ("a step of stock's", found["stock"]),
            ("enable()", found["enable"]),
            ("enable() and the first step, beyond stock's", beyond),
            (f"until a step is served, step {found['n']}", found["all"]),
        ):
            yield Row(SECTION, f"{case}: {what}", "float32", "measured", served, us, us)

"""Other threads interfere while a kernel works without the interpreter's lock.

They take its tensors away, or the process is forked while they switch. Each program
runs in an interpreter of its own, since what is tested for is a crash or a hang. Arrays
are so large that their memory is unmapped as soon as nobody holds them.
"""

from __future__ import annotations

import pytest
import switching

PROGRAM = """
import sys, threading
import switching, torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
sys.setswitchinterval(1e-4)

def race(op, n, work, disturb):
    stop = threading.Event()
    def loop():
        while not stop.is_set():
            disturb()
    with switching.accelerated(op):
        hits = switching.hits(op)
        other = threading.Thread(target=loop)
        other.start()
        n_calls = 0
        while n_calls < n or (n_calls < 20 * n and not hits.accelerated):
            work()
            n_calls += 1
        stop.set()
        other.join()
        assert hits.accelerated > 0
    print("survived")
"""

# Setting p.grad to None is a race in torch itself: reading it meanwhile finds the
# gradient that is being freed. Replacing it is not.
GRADIENT = """
N = 1 << 23
for cls, op in ((torch.optim.SGD, "sgd_step"), (torch.optim.Adam, "adam_step")):
    p = nn.Parameter(torch.zeros(N))
    p.grad = torch.ones(N)
    opt = cls([p], lr=0.1)
    def disturb():
        p.grad = torch.ones(N)
    race(op, 30, opt.step, disturb)
"""


LAYER = """
layer = nn.Linear(2048, 2048)
net, x = nn.Sequential(layer, nn.ReLU()), torch.randn(512, 2048)
with torch.no_grad():
    layer.bias.zero_()
    expected = net(x)
seen, kept, weight = [], [], layer.weight.detach().clone()
def work():
    with torch.no_grad():
        seen.append((net(x) - expected).abs().max().item())
def disturb():
    layer.bias = nn.Parameter(torch.zeros(2048))
    layer.weight = nn.Parameter(weight.clone())
    # What was freed is soon written over.
    kept[:] = kept[-20:] + [torch.full((2048,), 1e6)]
    torch.full((2048, 2048), 1e6)
race("linear_act", 30, work, disturb)
assert max(seen) < 1, max(seen)
"""


TARGETS = """
for classes in (10, 1000):
    x = torch.randn(40000 // classes * 10, classes, requires_grad=True)
    right = torch.zeros(len(x), dtype=torch.int64)
    wrong = torch.full_like(right, 1 << 40)
    target = right.clone()
    def work():
        for reduction in ("mean", "none"):
            try:
                loss = F.cross_entropy(x, target, reduction=reduction)
                loss.sum().backward()
            except (IndexError, RuntimeError):
                pass
    def disturb():
        target.copy_(wrong)
        target.copy_(right)
    race("cross_entropy", 100, work, disturb)
"""


@pytest.mark.parametrize(
    "program", [GRADIENT, LAYER, TARGETS], ids=["gradient", "layer", "targets"]
)
def test_tensors_stay_while_a_kernel_works(program: str) -> None:
    assert "survived" in switching.python(PROGRAM + program)


FORKS = """
import faulthandler, os, signal, sys, threading
import torch
import pai_torchacc as ptac
faulthandler.dump_traceback_later(60, exit=True)

def switch():
    ptac.enable()
    ptac.disable()

def memory():
    ptac.enable("memory_pool", "memory_reuse")
    ptac.disable()

def child(work):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20)
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)

switch()
memory()
disturb = {"status": ptac.status, "switch": switch, "memory": memory}[sys.argv[1]]
works = [ptac.status, memory if disturb is memory else switch]
stop = threading.Event()
def loop():
    while not stop.is_set():
        disturb()
other = threading.Thread(target=loop)
other.start()
sys.setswitchinterval(1e-5)
codes = []
for i in range(100 if disturb is memory else 20):
    pid = os.fork()
    if pid == 0:
        child(works[i % 2])
    codes.append(os.waitpid(pid, 0)[1])
    if codes[-1]:
        break
stop.set()
other.join()
assert not any(codes), codes
switch()
assert not ptac.is_enabled("operator_fusion")
print("no child waited")
"""


@pytest.mark.parametrize("disturb", ["status", "switch", "memory"])
def test_children_of_a_process_whose_threads_switch(disturb: str) -> None:
    assert switching.python(FORKS, disturb) == "no child waited\n"

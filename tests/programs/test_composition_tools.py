"""torch's tools, threads, child processes and compilers work with every switch on."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import shutil
import threading
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import switching
import torch
import torch.nn.functional as F
from composing import Cases, batch, check, gradients, model
from torch import Tensor, nn
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import compiled_autograd

import pai_torchacc as ptac

case = Cases()


@case("max_pool2d", "linear_act")
def copied_and_pickled() -> Any:
    net, (x, _) = model(), batch()
    other = pickle.loads(pickle.dumps(copy.deepcopy(net)))
    assert type(other) is nn.Sequential
    assert [type(m) for m in other] == [type(m) for m in net]
    return other(x), copy.deepcopy(net(x).detach()), list(other.state_dict())


@case("max_pool2d", "linear_act")
def threads() -> Any:
    net, (x, _) = model(), batch()
    found: list[Any] = [None] * 4

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = net(x + i).detach()

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


@case("max_pool2d")
def traced() -> Any:
    net, (x, _) = model(), batch()
    return torch.jit.trace(net, x)(x)


@case("max_pool2d")
def scripted() -> Any:
    net, (x, _) = model(), batch()
    return torch.jit.script(net)(x)


@case()
def scripted_functions() -> Any:
    x, y = torch.linspace(-1, 1, 48).reshape(4, 12), torch.arange(4)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, x), y)

    return torch.jit.script(loss)(x, y)


@case("max_pool2d")
def exported() -> Any:
    net, (x, _) = model(), batch()
    return torch.export.export(net, (x,)).module()(x)


@case("max_pool2d")
def symbolically_traced() -> Any:
    net, (x, _) = model(), batch()
    graph = torch.fx.symbolic_trace(net)
    called = [n.target for n in graph.graph.nodes if n.op == "call_module"]
    assert called == [str(i) for i in range(7)]
    return graph(x)


@case("max_pool2d", "max_pool2d_backward")
def profiled() -> Any:
    """Profiles show torch's own operators, as with stock."""
    net, (x, y) = model(), batch()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.profiler.profile() as profile:
        F.cross_entropy(net(x), y).backward()
        opt.step()
    names = {e.key for e in profile.key_averages()}
    assert {
        "aten::max_pool2d_with_indices",
        "aten::linear",
        "aten::cross_entropy_loss",
        "Optimizer.step#SGD.step",
    } <= names
    return list(net.parameters())


@case("max_pool2d")
def profiled_flops() -> Any:
    net, (x, y) = model(), batch()
    with torch.profiler.profile(with_flops=True) as profile:
        F.cross_entropy(net(x), y).backward()
    return {e.key: e.flops for e in profile.key_averages() if e.flops}


@case()
def meta_and_fake_tensors() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.device("meta"):
        out = model()(torch.empty(2, 1, 8, 8))
    with FakeTensorMode():
        fake = model()(torch.empty(2, 1, 8, 8))
    return [tuple(out.shape), out.device.type, tuple(fake.shape), fake.stride()]


class Logging(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@case("max_pool2d")
def dispatch_mode() -> Any:
    """Modes see torch's own operators."""
    net, (x, y) = model(), batch()
    with Logging() as log:
        F.cross_entropy(net(x), y).backward()
    return log.seen, gradients(net)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", case)
def test_composes(name: str) -> None:
    check(*case[name])


class Breaking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x + 1


def test_behind_graph_breaks_too() -> None:
    """What stock compiles there is compiled, and nothing else."""

    def program() -> tuple[list[str], list[Tensor]]:
        graphs: list[str] = []

        def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
            graphs.extend(str(n.target) for n in graph.graph.nodes)
            return graph

        torch._dynamo.reset()
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(20, 30), nn.ReLU(), Breaking(), nn.Linear(30, 40), nn.Tanh()
        )
        x, target = torch.ones(40, 20), torch.arange(40)

        def step() -> Tensor:
            torch._dynamo.graph_break()
            return F.cross_entropy(net(x), target)

        loss = torch.compile(step, backend=backend)()
        loss.backward()
        return graphs, [loss.detach(), *gradients(net)]

    graphs, stock = program()
    with switching.accelerated(), warnings.catch_warnings():
        warnings.filterwarnings("error", "Dynamo does not know how to trace")
        hits = switching.hits("linear_act")
        ours = program()
        assert hits.accelerated == 2
    assert ours[0] == graphs
    torch.testing.assert_close(ours[1], stock)


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)]
)
def test_compiled_on_top(backend: str) -> None:
    """torch.compile sees through the stand-ins, whole graphs; the report says so."""
    if backend == "inductor" and not (shutil.which("gcc") or shutil.which("g++")):
        pytest.skip("torch.compile needs a C++ compiler")

    def step(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(x), y)

    def program(function: Any) -> Any:
        net, (x, y) = model(), batch()
        loss = function(net, x, y)
        loss.backward()
        return [loss.detach(), *gradients(net)]

    stock = program(step)
    with switching.accelerated():
        torch._dynamo.reset()
        compiled = torch.compile(step, fullgraph=True, backend=backend)
        ours = program(compiled)
        document = json.loads(ptac.report("json"))
        assert document["bypassed"]["compiled"] > 0
        eager = switching.hits("max_pool2d")
        program(step)
        assert eager.accelerated == 1
    torch.testing.assert_close(ours, stock)
    # Compiled before, used after.
    torch.testing.assert_close(program(compiled), stock)


class Named(nn.Sequential):
    pass


@pytest.mark.parametrize("what", ["linear", "sequential", "subclass", "forward"])
def test_modules_of_torch_compile_on_their_own(what: str) -> None:
    """Whichever of making, enabling and calling comes first."""

    def made(graphs: list[torch.fx.GraphModule]) -> Any:
        net = {
            "linear": lambda: nn.Linear(4, 4),
            "sequential": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
            "subclass": lambda: Named(nn.Linear(4, 4), nn.ReLU()),
            "forward": lambda: nn.Sequential(nn.Linear(4, 4)).forward,
        }[what]()

        def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
            graphs.append(graph)
            return graph

        torch._dynamo.reset()
        return torch.compile(net, fullgraph=True, backend=backend)

    def compile_and_call(makes_on: bool, calls_on: bool) -> int:
        graphs: list[torch.fx.GraphModule] = []
        with ptac.enable() if makes_on else nullcontext():
            compiled = made(graphs)
        with ptac.enable() if calls_on else nullcontext():
            compiled(torch.ones(2, 4))
        return len(graphs)

    for makes_on, calls_on in itertools.product((False, True), repeat=2):
        assert compile_and_call(makes_on, calls_on) == 1, (makes_on, calls_on)


CHILD = """
import multiprocessing as mp, torch, switching, pai_torchacc as ptac
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

x = torch.arange(64.0).reshape(1, 1, 8, 8)

class Pools(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return work(i)

def work(i):
    hits = switching.hits("max_pool2d")
    with switching.pins(["max_pool2d"]):
        y = F.max_pool2d(x + i, 2)
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    torch.optim.SGD([p], lr=0.5).step()
    assert (p == 0.5).all()
    return y, hits.accelerated, ptac.is_enabled("operator_fusion")

def main():
    ptac.enable()
    torch.set_num_threads(1)
    for y, hits, active in mp.get_context("fork").Pool(2).map(work, range(4)):
        assert (hits, active) == (1, True)
    for kind, on in (("fork", True), ("spawn", False)):
        loader = DataLoader(Pools(), num_workers=1, multiprocessing_context=kind)
        for i, (y, hits, active) in enumerate(loader):
            assert torch.equal(y[0], F.max_pool2d(x + i, 2))
            assert (int(hits), bool(active)) == (int(on), on), (kind, hits, active)
    child = mp.get_context("fork").Process(target=ptac.disable)
    child.start()
    child.join()
    assert child.exitcode == 0 and ptac.is_enabled("operator_fusion")
    ptac.disable()
    assert "draining" not in ptac.status()["operator_fusion"]
    print("alive")

if __name__ == "__main__":
    main()
"""


def test_children(tmp_path: Path) -> None:
    """Forked children are accelerated, spawned ones are as their program says."""
    script = tmp_path / "script.py"
    script.write_text(CHILD)
    done = switching.forked([str(script)])
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_compiled_autograd_traces_our_nodes() -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    x, y = torch.randn(512, 512), torch.randint(0, 10, (512,))

    def trained(compiled: bool) -> list[Tensor]:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        whole = torch.compile(backend="eager", fullgraph=True)
        with compiled_autograd._enable(whole) if compiled else nullcontext():
            loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    stock = trained(compiled=False)
    with switching.accelerated("linear_act", "cross_entropy"):
        hits = switching.hits("linear_act"), switching.hits("cross_entropy")
        ours = trained(compiled=True)
        assert all(hit.accelerated for hit in hits)
    torch._dynamo.reset()  # what it has compiled keeps tensors of the pool
    torch.testing.assert_close(ours, stock)


def test_tracers_look_anew_when_operators_come_and_go() -> None:
    """What was traced under acceleration led to address 0 without it."""
    overload = torch.ops.aten.copy_.default
    x = torch.randn(8, 8)
    resolved = []
    for is_on in (True, False, True, False):
        with ptac.enable(include=["copy"]) if is_on else nullcontext():
            with enable_python_dispatcher():
                torch.testing.assert_close(x.t().clone(), x.t(), rtol=0, atol=0)
            resolved.append(overload._dispatch_cache[DispatchKey.CPU])
    assert resolved == [DispatchKey.CPU, DispatchKey.CompositeExplicitAutograd] * 2


def test_export_after_acceleration_has_ended() -> None:
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(3, 8)

    def exported() -> list[str]:
        graph = torch.export.export(net, (x,)).run_decompositions().graph
        return [str(node.target) for node in graph.nodes]

    with ptac.enable():
        ours = exported()
    assert exported() == ours

"""What only a real device shows: captured graphs, streams that overlap, its memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import internals
import pytest
import torch
import torch.nn.functional as F
from switching import FUSION, hits, python
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.bench import measure_cuda

pytestmark = pytest.mark.gpu

OPS = ("max_pool2d", "max_pool2d_backward", "log_softmax", "log_softmax_backward")


@pytest.fixture(autouse=True)
def kernels_and_float32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All units have machine code; products and convolutions keep float32."""
    missing = measure_cuda.provide()
    assert not missing
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield
    internals.reset_quarantine()


def network(device: str = "cuda") -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 14 * 14, 10), nn.LogSoftmax(-1),
    ).to(device)  # fmt: skip


def batch(device: str = "cuda") -> tuple[Tensor, Tensor]:
    r = torch.Generator().manual_seed(1)
    x = torch.randn(32, 1, 28, 28, generator=r)
    return x.to(device), (torch.arange(32) % 10).to(device)


def adam(net: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=1e-3, **options)


def step_of(
    net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> Callable[[], Tensor]:
    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.nll_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def losses(n: int, device: str = "cuda", **options: Any) -> list[float]:
    net = network(device)
    step = step_of(net, adam(net, **options), *batch(device))
    return [float(step()) for _ in range(n)]


def captured(step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of one step, after three that warm up on another stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    return graph, loss


def test_a_captured_step_replays_as_it_runs() -> None:
    """Our kernels are in the graph; replays train as steps that are not captured do."""
    net = network()
    with ptac.enable(FUSION):
        step = step_of(net, adam(net, capturable=True), *batch())
        counted = [hits(op) for op in (*OPS, "adam_step")]
        graph, loss = captured(step)
        assert [c.accelerated for c in counted] == [4] * 5, counted
        replayed = []
        for _ in range(5):
            graph.replay()
            replayed.append(float(loss))
        assert replayed == pytest.approx(losses(8, capturable=True)[3:], rel=1e-5)
    expected = losses(8, capturable=True)[3:]
    assert replayed == pytest.approx(expected, rel=1e-4)


def test_a_graph_outlives_the_switch() -> None:
    net = network()
    with ptac.enable(FUSION):
        graph, loss = captured(step_of(net, adam(net, capturable=True), *batch()))
    found = []
    for _ in range(2):
        graph.replay()
        found.append(float(loss))
    assert found == pytest.approx(losses(5, capturable=True)[3:], rel=1e-4)


def test_streams_keep_their_order() -> None:
    """A slow producer on each stream: what follows on it must have waited."""
    with ptac.enable(FUSION):
        streams = [torch.cuda.Stream() for _ in range(4)]
        x = torch.randn(256, 4096, device="cuda")
        expected = F.log_softmax(x * 2, -1)
        torch.cuda.synchronize()
        counted, results = hits("log_softmax"), []
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                results.append(F.log_softmax(x * 2, -1))
        torch.cuda.synchronize()
    assert counted.accelerated == len(streams)
    assert all(torch.equal(r, expected) for r in results)


def test_threads_train_beside_each_other() -> None:
    expected = losses(5)
    found: dict[int, list[float]] = {}
    with ptac.enable(FUSION):
        nets = {i: network() for i in range(3)}  # seeds are the process's

        def work(i: int) -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                step = step_of(nets[i], adam(nets[i]), *batch())
                found[i] = [float(step()) for _ in range(5)]

        threads = [threading.Thread(target=work, args=(i,)) for i in nets]
        torch.cuda.synchronize()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == [0, 1, 2]
    for values in found.values():
        assert values == pytest.approx(expected, rel=1e-4)


def test_deterministic_steps_repeat_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with ptac.enable(FUSION):
            counted = hits("log_softmax")
            first = losses(5)
            assert counted.accelerated == 5
            assert losses(5) == first
    finally:
        torch.use_deterministic_algorithms(False)


def test_numbers_are_those_of_the_cpu() -> None:
    with ptac.enable(FUSION):
        found = losses(5)
    assert found == pytest.approx(losses(5, "cpu"), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_trains(dtype: torch.dtype) -> None:
    def trained() -> list[float]:
        net = network()
        step = step_of(net, adam(net), *batch())
        with torch.autocast("cuda", dtype):
            return [float(step()) for _ in range(5)]

    expected = trained()
    with ptac.enable(FUSION):
        assert trained() == pytest.approx(expected, rel=50 * torch.finfo(dtype).eps)


def test_memory_comes_back() -> None:
    """What steps have allocated is torch's, and free when their tensors are."""
    losses(3)  # torch's libraries keep workspaces from the first steps on
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        with ptac.enable(FUSION):
            losses(3)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_peak_memory_is_not_above_stocks() -> None:
    def peak() -> int:
        torch.cuda.reset_peak_memory_stats()
        losses(3)
        return torch.cuda.max_memory_allocated()

    peak()
    stock = peak()
    with ptac.enable(FUSION):
        assert peak() <= 1.02 * stock


FORKS = """
import os, torch, pai_torchacc as ptac
ptac.enable()
x = torch.randn(4, 6, device="cuda")
torch.nn.functional.log_softmax(x, -1)
child = os.fork()
if child == 0:
    y = torch.nn.functional.log_softmax(torch.randn(4, 6), -1)   # on the CPU
    try:
        torch.nn.functional.log_softmax(torch.randn(4, 6, device="cuda"), -1)
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) else 2)
    os._exit(1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), torch.nn.functional.log_softmax(x, -1).shape)
"""


def test_forks_after_cuda_was_used_have_torchs_error() -> None:
    assert python(FORKS, fresh=True).split()[0] == "0"


BEFORE = """
import os, torch, pai_torchacc as ptac
ptac.enable()
child = os.fork()
x = torch.randn(4, 6, device="cuda")
y = torch.nn.functional.log_softmax(x, -1).exp().sum(-1)
assert torch.allclose(y, torch.ones_like(y))
if child == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forks_before_cuda_is_used_may_use_it() -> None:
    assert python(BEFORE, fresh=True).split() == ["0"]


@pytest.mark.gpu(devices=2)
def test_devices_train_beside_each_other() -> None:
    with ptac.enable(FUSION):
        found = [losses(5, f"cuda:{i}") for i in range(2)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.gpu(devices=2)
def test_models_that_lie_on_two_devices() -> None:
    """Backward runs in a thread of each device's."""
    net = network()
    with ptac.enable(FUSION):
        counted = [hits(op) for op in OPS]
        x, y = batch()
        halves = copy.deepcopy(net[:3]), copy.deepcopy(net[3:]).to("cuda:1")
        loss = F.nll_loss(halves[1](halves[0](x).to("cuda:1")), y.to("cuda:1"))
        loss.backward()
        assert [c.accelerated for c in counted] == [1] * 4
    assert float(loss) == pytest.approx(float(F.nll_loss(net(x), y)), rel=1e-4)


@pytest.mark.parametrize("numerics", ["exact", "close", "fast"])
def test_verify_keeps_the_contract(numerics: str) -> None:
    """With dropout: stock and ours drop the same, by the generator of the device."""
    net = nn.Sequential(
        network()[:4], nn.Dropout(0.3), nn.Linear(8 * 14 * 14, 64),
        nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10), nn.Softmax(-1),
    ).cuda()  # fmt: skip
    before = torch.cuda.get_rng_state()
    with ptac.enable(FUSION, numerics=numerics):
        found = ptac.verify(net, batch()[0])
    assert found, str(found)
    assert torch.equal(torch.cuda.get_rng_state(), before)

"""What is asked of ``torch.cuda``, in which order: by a stand-in for its functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pai_torchacc.graph.cuda import capturing
from pai_torchacc.graph.cuda.capturing import Busy, Cuda, Pool

DEVICE = torch.device("cuda", 0)


class Stream:
    """Notes whom it waits for."""

    def __init__(self, name: str, said: list[str]):
        self.name, self._said = name, said

    def wait_stream(self, other: Stream) -> None:
        self._said.append(f"{self.name} waits for {other.name}")


class Fake:
    """The functions of ``torch.cuda`` that the layer calls."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.default = self.current = Stream("default", self.said)
        self.n_pools = self.n_graphs = 0
        self.fails_at_end = False

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {
            "current_stream": lambda _device=None: self.current,
            "Stream": lambda _device=None: Stream("side", self.said),
            "stream": self.within,
            "graph_pool_handle": self.pool,
            "CUDAGraph": lambda: Graph(self),
            "graph": self.graph,
            "current_device": lambda: 0,
            "is_current_stream_capturing": lambda: False,
            "_is_in_bad_fork": lambda: False,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(
            torch._C, "_cuda_getAllocatorBackend", lambda: "native", raising=False
        )
        monkeypatch.setattr(
            torch._C,
            "_cuda_endAllocateToPool",
            lambda index, handle: self.said.append(f"{index} ends {handle}"),
            raising=False,
        )
        monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))

    def pool(self) -> str:
        self.n_pools += 1
        return f"pool {self.n_pools}"

    @contextmanager
    def within(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(
        self, graph: Any, *, pool: Any, stream: Stream, capture_error_mode: str
    ) -> Iterator[None]:
        """As torch's: where the end raises, its stream stays the current one."""
        assert capture_error_mode == "thread_local"
        before, self.current = self.current, stream
        self.said.append(f"{pool} begins")
        try:
            yield
        finally:
            if self.fails_at_end:
                self.fails_at_end = False
                raise RuntimeError("the end of the capture")
            self.said.append(f"{pool} is captured")
            self.current = before


class Graph:
    def __init__(self, fake: Fake):
        self._fake = fake

    def register_generator_state(self, generator: Any) -> None:
        self._fake.said.append(f"{generator} is registered")

    def replay(self) -> None:
        self._fake.said.append(f"replay on {self._fake.current.name}")


class Used:
    """A tensor, as far as streams go."""

    def __init__(self, said: list[str]):
        self._said = said
        self.device = DEVICE

    def record_stream(self, stream: Stream) -> None:
        self._said.append(f"used on {stream.name}")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    fake.put(monkeypatch)
    return fake


def test_calls_aside_stand_between_those_of_the_current_stream(fake: Fake) -> None:
    layer = Cuda()
    pool = layer.make_pool(DEVICE)
    with layer.aside(pool):
        assert fake.current is pool.stream
    assert fake.current is fake.default
    layer.hand_over([Used(fake.said)])  # type: ignore[list-item]
    assert fake.said == [
        "side waits for default",
        "default waits for side",
        "used on default",
    ]
    with pytest.raises(ValueError), layer.aside(pool):
        raise ValueError
    assert fake.said[-1] == "default waits for side"


def test_a_capture(fake: Fake) -> None:
    layer = Cuda()
    pool = layer.make_pool(DEVICE)

    def run() -> str:
        assert fake.current is pool.stream
        return "returned"

    kept, returned = layer.capture(pool, ["a generator"], run)
    assert returned == "returned"
    assert fake.said == [
        "a generator is registered", "pool 1 begins", "pool 1 is captured",
    ]  # fmt: skip
    assert fake.current is fake.default
    layer.capture(pool, (), run)  # graphs of a pool share it
    assert fake.said[-2:] == ["pool 1 begins", "pool 1 is captured"]
    del kept  # and torch takes none again whose graphs are gone
    layer.capture(pool, (), run)
    assert fake.said[-2:] == ["pool 2 begins", "pool 2 is captured"]


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_capture_that_fails_is_mended(fake: Fake, at_the_end: bool) -> None:
    """Torch's own manager would leave its stream; the pool is not used again."""
    layer = Cuda()
    pool = layer.make_pool(DEVICE)
    fake.fails_at_end = at_the_end

    def run() -> None:
        raise ValueError("in the call")

    error = RuntimeError if at_the_end else ValueError
    with pytest.raises(error) as raised:
        layer.capture(pool, (), run)
    if at_the_end:
        assert isinstance(raised.value.__context__, ValueError)
    assert fake.current is fake.default
    said = [line for line in fake.said if line != "pool 1 is captured"]
    assert said == [
        "pool 1 begins",
        "0 ends pool 1",
        "pool 3 begins",  # a capture that ends well
        "pool 3 is captured",
    ]
    assert pool.handle == "pool 2"
    layer.capture(pool, (), lambda: None)
    assert not capturing._one_capture.locked()


def test_one_capture_at_a_time(fake: Fake) -> None:
    layer = Cuda()
    pool = layer.make_pool(DEVICE)

    def run() -> None:
        with pytest.raises(Busy):
            layer.capture(pool, (), lambda: None)

    layer.capture(pool, (), run)
    assert fake.said == ["pool 1 begins", "pool 1 is captured"]


def test_replays_follow_each_other_on_whichever_stream(fake: Fake) -> None:
    layer = Cuda()
    pool = layer.make_pool(DEVICE)
    other = Stream("other", fake.said)
    graph, _ = layer.capture(pool, (), lambda: None)
    fake.said.clear()
    for stream in (fake.default, fake.default, other, fake.default):
        with fake.within(stream), layer.replaying(pool, [Used(fake.said)]):  # type: ignore
            layer.replay(graph)
    assert fake.said == [
        "used on default", "replay on default",
        "replay on default",
        "other waits for default", "used on other", "replay on other",
        "default waits for other", "replay on default",
    ]  # fmt: skip


Change = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("torch.version.cuda", None, "this torch has no CUDA graphs"),
        (
            "torch.cuda._is_in_bad_fork",
            lambda: True,
            "a forked process has no CUDA device",
        ),
        (
            "torch.cuda.current_device",
            lambda: 1,
            "another CUDA device is the current one",
        ),
        (
            "torch._C._cuda_getAllocatorBackend",
            lambda: "cudaMallocAsync",
            "torch's CUDA allocator is cudaMallocAsync",
        ),
    ],
)
def test_where_nothing_is_captured(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, said: str
) -> None:
    assert Cuda().why_not(DEVICE) is None
    monkeypatch.setattr(name, value)
    assert Cuda().why_not(DEVICE) == said


def test_our_own_pool_knows_graphs(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is pluggable to torch, and others that are may not keep memory for graphs."""
    monkeypatch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda: "pluggable")
    assert Cuda().why_not(DEVICE) == "torch's CUDA allocator is pluggable"
    monkeypatch.setattr(capturing.memory_pool, "has_pool", lambda: True)
    assert Cuda().why_not(DEVICE) is None


def test_settings_that_torch_has() -> None:
    """All that are asked for are there, in this torch."""
    before = Cuda().circumstances()
    assert hash(before) == hash(Cuda().circumstances())
    allows = torch._C._get_cudnn_allow_tf32()
    torch._C._set_cudnn_allow_tf32(not allows)  # which torch may forbid by its name
    try:
        assert Cuda().circumstances() != before
    finally:
        torch._C._set_cudnn_allow_tf32(allows)


def test_precisions_that_torch_does_not_tell() -> None:
    """Its old way raises where the new one has been used for a part."""
    conv = torch.backends.cudnn.conv
    before, was = Cuda().circumstances(), conv.fp32_precision
    conv.fp32_precision = "ieee"
    try:
        with pytest.raises(RuntimeError, match="mix"):
            assert torch.backends.cudnn.allow_tf32
        assert Cuda().circumstances() != before
    finally:
        conv.fp32_precision = was
    assert Cuda().circumstances() == before


def test_a_pool_belongs_to_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(DEVICE, "handle", "stream")
    assert Cuda().is_of_this_process(pool)
    monkeypatch.setattr(os, "getpid", lambda: pool.process + 1)
    assert not Cuda().is_of_this_process(pool)

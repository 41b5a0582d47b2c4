"""``enable_memory_pool`` and CUDA: tiers, reasons, our pool under torch's allocator.

Tests marked ``gpu`` run on a device (``pytest -m gpu``); each takes a process of its
own, since torch takes an allocator once. The others run everywhere: on a mock of the
driver in place of ``libcuda.so.1``, and, where torch has CUDA, below torch's own
``CUDAPluggableAllocator``.
"""

from __future__ import annotations

import ctypes
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import native
import pytest
import torch

import pai_torchacc as ptac
from pai_torchacc import _host
from pai_torchacc.memory_pool import cuda

TORCH = Path(torch.__file__).parent
HAS_CUDA = torch.cuda._is_compiled()


def program(text: str, **environment: str) -> str:
    """Run a Python program, which finds the package and tests' support; its output."""
    folders = f"{native.ROOT}:{native.ROOT / 'tests' / 'support'}"
    return native.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        timeout=300,
        env={**os.environ, "PYTHONPATH": folders, **environment},
    )


# --- without a device ---------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_reason_is_told() -> None:
    with ptac.enable_memory_pool(device="cuda") as handle:
        assert not handle
        assert handle.reason
        expected = "no NVIDIA driver" if HAS_CUDA else "this torch has no CUDA"
        assert expected in handle.reason
        status = handle.status()["memory_pool"]["cuda"]
        assert status["active"] is False
        assert status["reason"] == handle.reason
    assert "cuda" not in ptac.status()["memory_pool"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_cpu_has_its_pool() -> None:
    with ptac.enable_memory_pool() as handle:
        assert handle, handle.reason
        status = handle.status()["memory_pool"]["cuda"]
        assert status["tier"] is None
        assert status["reason"]


def test_settings_of_the_user_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_lacks_cuda", lambda _: None)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    reason = cuda._stands_against_tuning(torch)
    assert reason is not None
    assert "expandable_segments:False" in reason


@pytest.mark.skipif(not HAS_CUDA, reason="this torch has no CUDA")
def test_tuning_keeps_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(cuda, "_lacks_cuda", lambda _: None)
    monkeypatch.setattr(cuda, "_may_share_handles", lambda: True)
    monkeypatch.setattr(cuda, "_set", lambda _, settings: said.append(settings))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    with ptac.enable_memory_pool() as handle:
        assert handle.status()["memory_pool"]["cuda"]["tier"] == "tune"
    assert said == [
        "max_split_size_mb:64,expandable_segments:True",
        "max_split_size_mb:64",
    ]


@pytest.mark.skipif(not HAS_CUDA, reason="this torch has no CUDA")
def test_torch_takes_what_tuning_says() -> None:
    program("""
        import torch
        from pai_torchacc.memory_pool import cuda
        cuda._set(torch, "max_split_size_mb:64,expandable_segments:True")
        cuda._set(torch, "")
    """)


def test_handles_can_be_shared_or_not() -> None:
    assert isinstance(cuda._may_share_handles(), bool)


@pytest.fixture(scope="module")
def mock_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the mock as ``libcuda.so.1``, and the runtime's stand-in."""
    folder = tmp_path_factory.mktemp("driver")
    flags = ["-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"]
    flags += [f"-I{native.CSRC}", f"-I{native.TESTS / 'support'}"]
    mock = native.TESTS / "mem" / "cuda"
    sources = [str(s) for s in sorted(mock.glob("cuda_mock*.c"))]
    native.run([native.CC, *flags, *sources, "-o", str(folder / "libcuda.so.1")])
    runtime = str(mock / "cuda_runtime_fake.c")
    native.run([native.CC, *flags, runtime, "-o", str(folder / "runtime.so")])
    return folder


def with_driver(folder: Path, text: str, **environment: str) -> str:
    path = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return program(text, LD_LIBRARY_PATH=path, **environment)


def test_entries_serve_and_count(mock_driver: Path) -> None:
    with_driver(
        mock_driver,
        """
        import ctypes
        import torch
        import pai_torchacc as ptac
        from pai_torchacc import _C, _host
        _host.load()
        mock = ctypes.CDLL("libcuda.so.1")
        mock.mock_reset(ctypes.c_size_t(1 << 30))
        assert _C.cuda_pool_open("best_fit", 2**64 - 1, 0) is None
        P, N, I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        e = _C.cuda_pool_entries()
        alloc = ctypes.CFUNCTYPE(P, N, I, P)(e["alloc"])
        free = ctypes.CFUNCTYPE(None, P, N, I, P)(e["free"])
        record = ctypes.CFUNCTYPE(None, P, P)(e["record_stream"])
        reset = ctypes.CFUNCTYPE(None)(e["reset"])
        U = ctypes.c_uint64
        begin = ctypes.CFUNCTYPE(None, I, U, U, P)(e["begin_allocate_to_pool"])
        end = ctypes.CFUNCTYPE(None, I, U, U)(e["end_allocate_to_pool"])
        let_go = ctypes.CFUNCTYPE(None, I, U, U)(e["release_pool"])
        assert alloc(0, 0, 0) is None
        block = alloc(5 << 20, 0, 16)
        assert block % 512 == 0
        assert _C.pool_stats(0)["allocated_bytes.all.current"] == 5 << 20
        record(block, 32)
        free(block, 5 << 20, 0, 16)
        assert _C.pool_stats(0)["active.all.current"] == 1
        mock.mock_run_all()
        free(alloc(1000, 0, 16), 1000, 0, 16)
        stats = _C.pool_stats(0)
        assert stats["active.all.current"] == 0
        assert stats["allocation.all.allocated"] == 2
        begin(0, 7, 8, None)
        mock.mock_capture(P(16), True)
        captured = alloc(5 << 20, 0, 16)
        assert captured != block
        mock.mock_capture(P(16), False)
        end(0, 7, 8)
        free(captured, 0, 0, 16)
        let_go(0, 7, 8)
        reset()
        assert _C.pool_stats(0)["reserved_bytes.all.current"] == 0
        free(12345, 1, 0, 16)  # said on stderr, and no more
        mock.mock_violation.restype = ctypes.c_char_p
        assert mock.mock_violations() == 0, mock.mock_violation()
        assert mock.mock_used() == 0
        """,
    )


def test_pinned_memory_is_cut_and_reused(mock_driver: Path) -> None:
    with_driver(
        mock_driver,
        """
        import os
        import torch
        from pai_torchacc.memory_pool import pinned
        pinned.reserve(8 << 20, threads=3)
        try:
            pinned.reserve(1)
        except RuntimeError as error:
            assert "already" in str(error)
        else:
            raise AssertionError
        x = pinned.empty((3, 1000), torch.float64)
        assert x.shape == (3, 1000) and x.dtype == torch.float64
        x.fill_(2)
        above = pinned.empty((1,)).data_ptr() - x.data_ptr()
        assert above == (24000 + 511) // 512 * 512  # no power of two
        assert not pinned.release()
        child = os.fork()
        if child == 0:
            try:
                pinned.empty((1,))
            except RuntimeError:  # it is not mapped there
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        first = x.data_ptr()
        view = x[1]
        del x
        assert view.sum() == 2000  # a view keeps it
        del view
        assert pinned.empty((1,)).data_ptr() != first  # transfers may be on their way
        assert pinned.empty((2 << 20,)).numel() == 2 << 20  # no other room: waited
        assert pinned.empty((0, 4)).shape == (0, 4)
        assert pinned.release()
        """,
    )


def test_errors_are_torchs_own(tmp_path: Path) -> None:
    """A c10::OutOfMemoryError made in C is caught as such, and the refusal to share."""
    guard = tmp_path / "guard.so"
    abi = native.CSRC / "bind" / "abi"
    objects = []
    for stem in ("torch_oom", "torch_abi"):
        objects.append(str(tmp_path / f"{stem}.o"))
        flags = ["-std=gnu11", "-O2", "-fPIC", "-fexceptions", f"-I{native.CSRC}"]
        native.run([native.CC, *flags, "-c", str(abi / f"{stem}.c"), "-o", objects[-1]])
    source = str(native.TESTS / "bind" / "error_guard.cpp")
    flags = ["-std=c++20", "-shared", "-fPIC", "-isystem", str(TORCH / "include")]
    link = [f"-L{TORCH / 'lib'}", "-lc10", f"-Wl,-rpath,{TORCH / 'lib'}"]
    native.run([native.CXX, *flags, source, *objects, *link, "-o", str(guard)])
    library = ctypes.CDLL(str(guard))
    assert library.oom_guard(str(TORCH / "lib").encode()) == 0
    entry = ctypes.c_void_p(_host.load().cuda_pool_entries()["base_alloc"])
    assert library.sharing_guard(entry) == 0


BELOW_TORCH = """
    import ctypes
    import torch
    import pai_torchacc as ptac
    from pai_torchacc import _C
    mock = ctypes.CDLL("libcuda.so.1")
    mock.mock_reset(ctypes.c_size_t(256 << 20))
    handle = ptac.enable_memory_pool(device="cuda")
    assert handle, handle.reason
    assert torch._C._cuda_getAllocatorBackend() == "pluggable"
    alloc = torch._C._cuda_cudaCachingAllocator_raw_alloc
    free = torch._C._cuda_cudaCachingAllocator_raw_delete
"""


@pytest.mark.skipif(not HAS_CUDA, reason="this torch has no CUDA")
def test_torch_asks_our_pool_and_raises_its_own_error(mock_driver: Path) -> None:
    program_text = textwrap.dedent(BELOW_TORCH) + textwrap.dedent("""
        block = alloc(5 << 20, 0)
        assert ptac.memory_stats("cuda:0")["allocated_bytes.all.current"] == 5 << 20
        free(block)
        assert alloc(5 << 20, 0) == block
        for _ in range(3):
            try:
                alloc(300 << 20, 0)
            except torch.OutOfMemoryError as error:
                text = str(error)
            else:
                raise AssertionError("no error")
            assert text.startswith(
                "CUDA out of memory. Tried to allocate 300.00 MiB. GPU 0 has a total "
                "capacity of 256.00 MiB of which 240.00 MiB is free."
            ), text
            assert "5.00 MiB is allocated by PyTorch" in text
        free(block)
        assert ptac.memory_stats("cuda:0")["num_ooms"] == 3
        assert ptac.memory_summary("cuda:0").count("CUDA memory pool") == 1
        [segment] = ptac.memory_snapshot("cuda:0")["segments"] or [None]
        assert segment is None or segment["segment_type"] == "large"
        held = alloc(200 << 20, 0)
        [segment] = ptac.memory_snapshot("cuda:0")["segments"]
        assert segment["allocated_size"] == 200 << 20
        assert held
        assert mock.mock_violations() == 0
    """)
    with_driver(mock_driver, program_text, LD_PRELOAD=str(mock_driver / "runtime.so"))


@pytest.mark.skipif(not HAS_CUDA, reason="this torch has no CUDA")
def test_a_pool_that_nobody_has_used_is_taken_out(mock_driver: Path) -> None:
    program_text = textwrap.dedent(BELOW_TORCH) + textwrap.dedent("""
        handle.disable()
        status = ptac.status()["memory_pool"]
        backend = torch._C._cuda_getAllocatorBackend()
        if backend == "native":
            assert "cuda" not in status, status
        else:
            assert "cannot exchange" in status["cuda"]["reason"], status
        print(backend)
    """)
    print(with_driver(mock_driver, program_text))


@pytest.mark.skipif(not HAS_CUDA, reason="this torch has no CUDA")
def test_a_forked_child_is_told_why(mock_driver: Path) -> None:
    program_text = textwrap.dedent(BELOW_TORCH) + textwrap.dedent("""
        import os
        block = alloc(5 << 20, 0)
        child = os.fork()
        if child == 0:
            free(block)
            try:
                alloc(1 << 20, 0)
            except RuntimeError as error:
                os._exit(0 if "forked process" in str(error) else 2)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        free(block)
    """)
    with_driver(mock_driver, program_text, LD_PRELOAD=str(mock_driver / "runtime.so"))


# --- on a device --------------------------------------------------------------------

TIERS = {
    "tune": "handle = ptac.enable_memory_pool()",
    "pool": 'handle = ptac.enable_memory_pool(device="cuda")',
}


@pytest.fixture
def gpu() -> None:
    """Skip, or fail where PTAC_REQUIRE_GPU asks for it, without a device."""
    if torch.cuda.is_available():
        return
    reason = "this torch has no CUDA" if not HAS_CUDA else "there is no CUDA device"
    if os.environ.get("PTAC_REQUIRE_GPU") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def on_device(tier: str, text: str, **environment: str) -> str:
    start = f"""
import os
import torch
import pai_torchacc as ptac
{TIERS[tier]}
assert handle, handle.reason
status = handle.status()["memory_pool"]["cuda"]
print(status)
assert {tier == "tune"} or status["tier"] == "pool", status
if status["tier"] is None:
    print("stock allocator:", status["reason"])
"""
    return program(start + textwrap.dedent(text), **environment)


def on_gpu(test: Callable[[str], None]) -> Any:
    """A test that needs a device, for both tiers."""
    test = pytest.mark.parametrize("tier", TIERS)(test)
    return pytest.mark.gpu(pytest.mark.usefixtures("gpu")(test))


@on_gpu
def test_gpu_training_gives_stock_numbers(tier: str) -> None:
    """Ten steps of a small CNN: the allocator changes no bit of the losses."""
    train = """
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(32 * 15 * 15, 10),
    ).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    x = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(1)).cuda()
    y = torch.arange(64, device="cuda") % 10
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu().numpy().tobytes().hex())
    print("LOSSES", *losses)
    """
    settings = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    stock = program("import torch\n" + textwrap.dedent(train), **settings)
    ours = on_device(tier, train, **settings)
    assert stock.split("LOSSES")[1] == ours.split("LOSSES")[1]


@on_gpu
def test_gpu_blocks_wait_for_recorded_streams(tier: str) -> None:
    """Memory that a busy stream still reads is not handed out, and then is."""
    on_device(
        tier,
        """
        side = torch.cuda.Stream()
        ones = torch.ones(8 << 20, device="cuda")
        torch.cuda.synchronize()
        for round in range(20):
            x = ones * (round + 1)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)
                total = x.sum()
            x.record_stream(side)
            total.record_stream(torch.cuda.current_stream())
            del x
            other = torch.full((8 << 20,), -1.0, device="cuda")
            side.synchronize()
            assert total.item() == (8 << 20) * (round + 1), round
            del other, total
        """,
    )


@on_gpu
def test_gpu_many_streams_stay_within_bounds(tier: str) -> None:
    output = on_device(
        tier,
        """
        streams = [torch.cuda.Stream() for _ in range(8)]
        settled = None
        for round in range(30):
            for i, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    x = torch.full((4 << 20,), float(i), device="cuda")
                    y = x * 2
                    z = y.sum()
                stream.synchronize()
                assert z.item() == 2 * i * (4 << 20)
                del x, y, z
            reserved = ptac.memory_stats("cuda")["reserved_bytes.all.peak"]
            if round == 10:
                settled = reserved
        assert reserved == settled, (settled, reserved)
        print("reserved", reserved, "steals",
              ptac.memory_stats("cuda").get("ptac.stream_steals"))
        """,
    )
    print(output)


@on_gpu
def test_gpu_out_of_memory_is_torchs_error_and_passes(tier: str) -> None:
    on_device(
        tier,
        """
        total = torch.cuda.get_device_properties(0).total_memory
        for _ in range(2):
            try:
                torch.empty(2 * total, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                assert "CUDA out of memory. Tried to allocate" in str(error), error
            else:
                raise AssertionError("no error")
        held = [torch.empty(1 << 28, dtype=torch.uint8, device="cuda")]
        try:
            while len(held) < 4096:
                held.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("a device without end")
        n = len(held)
        held.clear()
        big = torch.ones(n << 27, dtype=torch.uint8, device="cuda")
        assert big[-1].item() == 1
        """,
    )


@on_gpu
def test_gpu_empty_cache_gives_memory_back(tier: str) -> None:
    on_device(
        tier,
        """
        x = torch.ones(256 << 20, dtype=torch.uint8, device="cuda")
        y = x * 2
        kept = y[:5].clone()
        before, _ = torch.cuda.mem_get_info()
        del x, y
        assert ptac.empty_cache("cuda") > 0
        torch.cuda.empty_cache()
        after, _ = torch.cuda.mem_get_info()
        assert after - before >= 400 << 20, (before, after)
        assert kept.tolist() == [2] * 5
        """,
    )


@on_gpu
def test_gpu_graphs_keep_their_memory(tier: str) -> None:
    on_device(
        tier,
        """
        x = torch.ones(1 << 20, device="cuda")
        net = torch.nn.Linear(1024, 1024, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(3):
                net(x.view(1024, 1024)).relu().sum()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            y = net(x.view(1024, 1024)).relu()
            z = (y * 2).sum()
        for value in (1.0, 2.0, 3.0):
            noise = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(20)]
            x.fill_(value)
            graph.replay()
            with torch.no_grad():
                expected = (net(x.view(1024, 1024)).relu() * 2).sum()
            torch.testing.assert_close(z, expected)
            del noise
            torch.cuda.empty_cache()
        del y, z
        graph.reset()
        torch.cuda.empty_cache()
        """,
    )


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_gpu_after_initialisation_the_reason_is_told() -> None:
    program("""
        import torch
        import pai_torchacc as ptac
        torch.zeros(1, device="cuda")
        handle = ptac.enable_memory_pool(device="cuda")
        assert not handle and "already initialised" in handle.reason, handle.reason
    """)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_gpu_tuning_leaves_expandable_segments_and_goes() -> None:
    program("""
        import torch
        import pai_torchacc as ptac
        handle = ptac.enable_memory_pool()
        status = handle.status()["memory_pool"]["cuda"]
        print(status)
        def is_expandable():
            x = torch.empty(64 << 20, device="cuda")
            flags = [s["is_expandable"] for s in torch.cuda.memory_snapshot()]
            del x
            torch.cuda.empty_cache()
            return any(flags)
        assert is_expandable() == (status["tier"] == "tune")
        ptac.disable()
        assert not is_expandable()
    """)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_gpu_pinned_pool_transfers() -> None:
    program("""
        import torch
        from pai_torchacc.memory_pool import pinned
        pinned.reserve(64 << 20)
        x = pinned.empty((1 << 20,))
        assert x.is_pinned()
        x.copy_(torch.arange(1 << 20))
        y = x.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        assert y[-1].item() == (1 << 20) - 1
        del x
        assert pinned.release()
    """)

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
from pathlib import Path

import native
import pytest
import torch

import pai_torchacc as ptac
from pai_torchacc.memory_pool import cuda

TORCH = Path(torch.__file__).parent
HAS_CUDA = torch.cuda._is_compiled()


def program(text: str, **environment: str) -> str:
    """Run a Python program; its output."""
    return native.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(native.ROOT), **environment},
    )


# --- without a device ------------------------------------------------------------------


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
    flags += [f"-I{native.CSRC}", f"-I{native.CORE_TESTS}"]
    sources = [str(s) for s in sorted(native.CORE_TESTS.glob("cuda_mock*.c"))]
    native.run([native.CC, *flags, *sources, "-o", str(folder / "libcuda.so.1")])
    runtime = str(native.CORE_TESTS / "cuda_runtime_fake.c")
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
        assert _C.cuda_pool_stats(0)["allocated_bytes.all.current"] == 5 << 20
        record(block, 32)
        free(block, 5 << 20, 0, 16)
        assert _C.cuda_pool_stats(0)["active.all.current"] == 1
        mock.mock_run_all()
        free(alloc(1000, 0, 16), 1000, 0, 16)
        stats = _C.cuda_pool_stats(0)
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
        assert _C.cuda_pool_stats(0)["reserved_bytes.all.current"] == 0
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
        import torch
        from pai_torchacc import _C
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
        used = _C.pinned_stats()["allocated_bytes.all.current"]
        assert used == (24000 + 511) // 512 * 512  # no power of two
        assert not pinned.release()
        first = x.data_ptr()
        view = x[1]
        del x
        assert view.sum() == 2000  # a view keeps it
        del view
        assert pinned.empty((1,)).data_ptr() != first  # not before the device is waited for
        assert pinned.empty((2 << 20,)).numel() == 2 << 20  # no other room: now it is
        assert pinned.empty((0, 4)).shape == (0, 4)
        assert pinned.release()
        """,
    )


def test_errors_are_torchs_own(tmp_path: Path) -> None:
    """A c10::OutOfMemoryError made in C is caught as such, with its text."""
    guard = tmp_path / "guard.so"
    abi = native.CSRC / "bind" / "abi"
    objects = []
    for stem in ("torch_oom", "torch_abi"):
        objects.append(str(tmp_path / f"{stem}.o"))
        flags = ["-std=gnu11", "-O2", "-fPIC", "-fexceptions", f"-I{native.CSRC}"]
        native.run([native.CC, *flags, "-c", str(abi / f"{stem}.c"), "-o", objects[-1]])
    source = str(native.ROOT / "tests" / "oom_guard.cpp")
    flags = ["-std=c++20", "-shared", "-fPIC", "-isystem", str(TORCH / "include")]
    native.run([native.CXX, *flags, source, *objects, "-o", str(guard)])
    library = ctypes.CDLL(str(guard))
    assert library.oom_guard(str(TORCH / "lib").encode()) == 0


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
        assert alloc(200 << 20, 0)
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

"""What holds for every test: it starts and ends with a stock process."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import native
import pytest
from lanes import pytest_runtest_logreport, pytest_terminal_summary

__all__ = ["pytest_runtest_logreport", "pytest_terminal_summary"]

# Threads that wait do not spin, so that tests share a machine well. Read when torch is
# first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


FIRST = (
    "csrc/test_rows.py",
    "programs/test_examples.py",
    "cuda_emulation/test_on_cuda.py",
    "benchmarks/test_bench_gpu.py",
    "csrc/mem/test_memory_engine.py",
    "memory_reuse/test_memory_reuse.py",
    "csrc/device/test_cuda_rows.py",
    "batch_size/test_find_batch_size.py",
    "batch_size/test_batch_size_memory.py",
    "fusion/conv/test_conv2d.py",
    "package/test_environment.py",
    "package/test_run.py",
    "project/test_package.py",
    "data_parallelism/test_data_parallelism_ranks.py",
    "adaptive_lr/test_adaptive_lr_programs.py",
    "fusion/conv/test_conv_sweep.py",
    "package/test_silence.py",
    "csrc/bind/test_abi.py",
    "memory_pool/test_memory_processes.py",
    "programs/test_opinfo.py",
    "data_parallelism/test_data_parallelism_faults.py",
    "fusion/conv/test_conv_training.py",
    "memory_reuse/test_memory_reuse_composition.py",
    "batch_size/test_batch_size_processes.py",
    "fusion/precision/test_precision.py",
    "programs/test_composition_tools.py",
    "memory_reuse/test_memory_reuse_threads.py",
    "memory_pool/test_memory_pool.py",
)
"""The files that take longest. They begin first, so that workers end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files, and leave out what is long unless all was asked for."""
    places = {str(Path(__file__).parent / name): i for i, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(str(item.path), len(FIRST)))
    if os.environ.get("PTAC_TEST_FULL") == "1":
        return
    for item in items:
        if item.get_closest_marker("long"):
            reason = "takes long: runs with PTAC_TEST_FULL=1, as in make check"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """The garbage collector leaves alone what importing torch has made.

    Tests that collect before they count would look at half a million objects each time.
    """
    if "torch" not in sys.modules or importlib.util.find_spec("triton"):
        return  # triton complains at the end of a process of objects that were left
    import torch._dynamo  # noqa: F401  # as the first optimizer does

    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_compile_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What torch.compile has kept elsewhere may be for other instruction sets."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))


@pytest.fixture(scope="module", autouse=True)
def results_end_with_their_file() -> Iterator[None]:
    yield
    if "contract" in sys.modules:  # which imports torch
        sys.modules["contract"].forget()


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> native.Builder:
    return native.Builder(tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="session")
def extension() -> Path:
    """The extension that an import would load."""
    try:
        spec = importlib.util.find_spec("pai_torchacc._C")
    except ModuleNotFoundError as error:
        pytest.skip(f"{error}: run pip install .")
    if spec is None or spec.origin is None:
        pytest.skip("pai_torchacc._C is not built: run pip install .")
    return Path(spec.origin)


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def stock_before_and_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is enabled, pinned, quarantined or in the environment around a test."""
    if "pai_torchacc" not in sys.modules:
        yield
        return
    import switching
    import torch

    for variable in switching.ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    torch.default_generator.manual_seed(0)
    yield
    assert_stock()


def seen_by_a_new_thread() -> tuple[int, list[str]]:
    """How many threads torch would give it, and which locks of ours are not free."""
    import torch

    from pai_torchacc import _lock

    n_threads, held = [], []

    def look() -> None:
        n_threads.append(torch.get_num_threads())
        for name in ("float_mode", "switch", "hooks", "saved_storage"):
            lock = getattr(_lock, name)
            if lock.acquire(timeout=10):
                lock.release()
            else:
                held.append(f"the lock {name} is held: {lock}")

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return n_threads[0], held


def assert_stock() -> None:
    """Fail where a test has left something of ours behind."""
    import internals
    import switching
    import torch

    import pai_torchacc as ptac
    from pai_torchacc import _C, fusion, quantization

    left = [f"{name} is on" for name, s in ptac.status().items() if s["active"]]
    # Blocks of the pool may be in use for long: they belong to tensors that live on.
    if "draining" in ptac.status()["operator_fusion"]:
        left.append("kernels wait for a quiet moment")
    left += [f"{op} is pinned" for op in switching.pinned]
    if _C.override_installed():
        left.append("kernels are in the dispatcher")
    if len(fusion._ledger) or len(quantization._ledger):
        left.append("patches are in place")
    left += [
        f"{op}: {row} is quarantined"
        for op, _, rows in _C.operators()
        for row, _, _, is_quarantined in rows
        if is_quarantined
    ]
    n, (n_of_new, held) = torch.get_num_threads(), seen_by_a_new_thread()
    left += held
    if n_of_new != n:  # which other tests' sums would show
        left.append(f"torch has {n} threads, in a new thread {n_of_new}")
    if left:
        ptac.disable()
        torch.set_num_threads(n)
        internals.reset_quarantine()
        for op in list(switching.pinned):
            _C.pin(op, None)
        switching.pinned.clear()
    assert not left

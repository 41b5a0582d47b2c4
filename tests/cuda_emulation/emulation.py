"""Two CUDA devices that are none, for the process that imports this.

``device="cuda"`` works: torch computes by its CPU kernels in memory that the host
cannot read otherwise, and our kernels are run by the emulation. The package finds both
as it finds the real ones, by the names of their libraries: ``libcuda.so.1``,
``libtorch_cuda.so`` and ``libcublasLt.so.13``. Torch asks the second one while it is
imported, so that this has to come first. Nothing of it can be taken back: tests on
these devices are run in processes of their own, by ``test_on_cuda.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import native

if TYPE_CHECKING:
    import torch

NATIVE = Path(__file__).parent / "native"
TORCH = Path(str(importlib.util.find_spec("torch").origin)).parent
LIBRARIES = ("libcuda.so.1", "libtorch_cuda.so", "libcublasLt.so.13")

pytest_plugins = ["device_fixtures"]

_loaded: list[Any] = []


def _driver_sources() -> list[Path]:
    parts = [NATIVE / f"{name}.cc" for name in ("driver", "memory", "other_calls")]
    kernels = sorted((native.CSRC / "ops").rglob("*.cu"))
    return [*parts, *native.test_sources("emulator", "emulated_kernels"), *kernels]


def _torch_command() -> list[str]:
    return [
        *(native.CXX, "-std=c++20", "-O1", "-g0", "-fPIC", "-fvisibility=hidden"),
        *("-Wall", "-Wextra", "-Werror", "-isystem", str(TORCH / "include")),
        f"-I{native.CSRC}",
    ]


def build(folder: Path) -> list[Path]:
    """The libraries, in a folder; what is compiled is kept for other sessions."""
    driver, torchs, products = (folder / name for name in LIBRARIES)
    builder = native.Builder(folder)
    builder.library(driver, _driver_sources())
    sources = [NATIVE / f"{n}.cc" for n in ("torch_device", "torch_operators")]
    sources.append(NATIVE / "RegisterCUDA.cc")
    lib = TORCH / "lib"
    link = (str(driver), f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch_cpu", "-lc10")
    builder.library(torchs, sources, command=_torch_command(), link=link)
    parts = native.test_sources("emulated_lt", "emulated_lt_checks", "emulated_lt_math")
    builder.library(products, [NATIVE / "cublaslt.c", *parts], link=(str(driver),))
    return [driver, torchs, products]


def load() -> Any:
    """Bring the devices into this process, once; the driver, for its counts."""
    if not _loaded:
        assert "torch" not in sys.modules, "the emulation has to come before torch"
        with tempfile.TemporaryDirectory() as folder:
            driver, torchs, products = build(Path(folder))
            _loaded.append(ctypes.CDLL(str(driver)))
            assert _loaded[0].cuInit(0) == 0
            _loaded.append(ctypes.CDLL(str(torchs)))
            _loaded.append(ctypes.CDLL(str(products)))
        for library, names in zip(_loaded, _TEXTS, strict=True):
            for name in names:
                getattr(library, name).restype = ctypes.c_char_p
        _patch()
    return _loaded[0]


_TEXTS = (
    ("emulated_calls", "emulated_launch"),
    ("emulated_stock_calls",),
    ("emulated_misuse",),
)


class Philox:
    """Torch's generator of one of the devices, as far as it is asked."""

    def __init__(self) -> None:
        self.offset = 0

    def initial_seed(self) -> int:
        """One that has all its bits looked at."""
        return 2**63 + 12345

    def get_offset(self) -> int:
        """What has been taken so far."""
        return self.offset

    def set_offset(self, offset: int) -> None:
        """Torch's own refuses others, too."""
        assert offset % 4 == 0
        self.offset = offset


def _patch() -> None:
    """What torch.cuda asks a build for CUDA, in Python."""
    import torch

    driver = _loaded[0]

    def current() -> int:  # a function that torch._dynamo can hash
        return driver.emulated_device()

    def exchange(index: int) -> int:
        before = driver.emulated_device()
        if index >= 0 and index != before:
            driver.emulated_set_device(index)
        return before

    def maybe_exchange(index: int) -> int:
        return exchange(index)

    for name, value in {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "current_device": current,
        "set_device": lambda device: exchange(torch.device(device).index or 0),
        "synchronize": lambda device=None: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_device_capability": lambda device=None: (9, 0),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "get_rng_state_all": list,
        "set_rng_state": lambda state, device=None: None,
        "default_generators": (Philox(), Philox()),
        "is_current_stream_capturing": lambda: bool(driver.emulated_is_capturing()),
        "_exchange_device": exchange,
        "_maybe_exchange_device": maybe_exchange,
    }.items():
        setattr(torch.cuda, name, value)


def launches() -> list[str]:
    """Kernels launched so far: ``name device stream``."""
    driver = load()
    return [
        driver.emulated_launch(i).decode() for i in range(driver.emulated_launches())
    ]


def launched(since: int) -> list[str]:
    """Names of what was launched after so many launches, products among it."""
    return [launch.split()[0] for launch in launches()[since:]]


def places(since: int) -> list[list[str]]:
    """Device and stream of what was launched after so many launches."""
    return [launch.split()[1:] for launch in launches()[since:]]


def most_bytes(program: Callable[[], Any]) -> int:
    """The most memory of the devices that it has beside what lives before it."""
    driver = load()
    before = driver.emulated_bytes()
    driver.emulated_most_bytes()
    program()
    return driver.emulated_most_bytes() - before


def calls() -> list[str]:
    """The driver's functions that were called since the last look."""
    return load().emulated_calls().decode().split()


def stock_calls() -> list[str]:
    """Operators that torch itself computed since the last look."""
    load()
    return _loaded[1].emulated_stock_calls().decode().split()


def counted_stock_calls() -> list[str]:
    """The same, for tests that are about nothing else."""
    return stock_calls()


def cublaslt() -> Any:
    """The library of products: what it refuses, and what it was asked."""
    load()
    return _loaded[2]


@contextlib.contextmanager
def capturing(stream: torch.Stream) -> Iterator[None]:
    """As while a CUDA graph is recorded from a stream: who waits for it is in error."""
    driver = load()
    with stream:
        driver.emulated_capture(stream.device.index, stream.stream_id, True)
        try:
            yield
        finally:
            driver.emulated_capture(stream.device.index, stream.stream_id, False)


@contextlib.contextmanager
def called(name: str, device: int) -> Iterator[None]:
    """A device has that name meanwhile."""
    driver = load()
    driver.emulated_name(device, name.encode())
    try:
        yield
    finally:
        driver.emulated_name(device, b"emulated GPU")


def give_machine_code(*units: str) -> None:
    """Units, or all of them, get what the emulated driver takes for machine code."""
    from benchmarks.extension import function

    load()
    function("ptac_cuda_load", ctypes.c_char_p, ctypes.c_char_p)(b"libcuda.so.1")
    code = ctypes.create_string_buffer(b"emulated")
    give = function("ptac_cuda_give", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)
    for unit, name in _units():
        if not units or name in units:
            assert give(unit, ctypes.addressof(code)) is None


class _Unit(ctypes.Structure):
    """ptac_cuda_unit of csrc/device/cuda/launch.h."""


_Unit._fields_ = (
    ("name", ctypes.c_char_p),
    ("state", ctypes.c_int),
    ("library", ctypes.c_void_p),
    ("next", ctypes.POINTER(_Unit)),
)


def _units() -> Iterator[tuple[int, str]]:
    from benchmarks.extension import function

    at = function("ptac_cuda_units", ctypes.POINTER(_Unit))()
    while at:
        yield ctypes.addressof(at.contents), at.contents.name.decode()
        at = at.contents.next


@contextlib.contextmanager
def without_machine_code() -> Iterator[None]:
    """Units as they are before anybody has asked for them."""
    units = [_Unit.from_address(address) for address, _ in _units()]
    before = [unit.state for unit in units]
    try:
        for unit in units:
            unit.state = 0
        yield
    finally:
        for unit, state in zip(units, before, strict=True):
            unit.state = state


HIDDEN = os.environ.get("PTAC_EMULATION_HIDES")
"""Symbols of torch's that the extension does not see in this process."""


def pytest_configure() -> None:
    """As a plugin of pytest's: the devices are there before torch is."""
    load()
    if HIDDEN:  # now, since each test begins without such variables
        from pai_torchacc import _host

        os.environ["PTAC_HIDE_SYMBOLS"] = HIDDEN
        _host.load()

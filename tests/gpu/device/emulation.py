"""What tests ask of the emulation, answered by a real device.

The files ``emulated_*.py`` of tests/cuda_emulation import a module of this name. On a
machine with a GPU this one takes the place of theirs: launches are seen by standing in
front of two functions of the driver. What the emulation alone can know, such as calls
of torch's own kernels, skips the test that asks, where it asks.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn

import pytest
import torch

TESTS = Path(__file__).parents[2]

pytest_plugins = ["device_fixtures"]


def _theirs() -> Any:
    """The emulation's module, which brings no devices unless it is asked for them."""
    if "emulated_devices" not in sys.modules:
        path = TESTS / "cuda_emulation" / "emulation.py"
        spec = importlib.util.spec_from_file_location("emulated_devices", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules["emulated_devices"] = module
        spec.loader.exec_module(module)
    return sys.modules["emulated_devices"]


def _unseen(what: str) -> NoReturn:
    pytest.skip(f"the emulation alone knows {what}")


class _Unseen(list[str]):
    """A list of what nobody has seen: it may be dropped, but not looked at."""

    def __init__(self, what: str):
        super().__init__()
        self._what = what

    def __iter__(self) -> Iterator[str]:
        _unseen(self._what)


class _Whatever(list[str]):
    """A list of what nobody has seen, where that alone should not end a test."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class _Driver:
    """Functions of the emulated driver, as far as torch has the same."""

    @staticmethod
    def emulated_device() -> int:
        return torch.cuda.current_device()

    @staticmethod
    def emulated_has_context() -> bool:
        slot, prototype = _slot("context_current")
        context = ctypes.c_void_p()
        assert slot.value
        assert prototype(slot.value)(ctypes.addressof(context)) == 0
        return context.value is not None

    def __getattr__(self, name: str) -> NoReturn:
        _unseen(name)


def load() -> _Driver:
    """The device is there."""
    return _Driver()


def __getattr__(name: str) -> Any:
    """Whatever else the emulation has."""
    if name.startswith("_") or not hasattr(_theirs(), name):
        raise AttributeError(name)
    found = getattr(_theirs(), name)
    is_asked = callable(found) and not isinstance(found, type)
    return (lambda *_, **__: _unseen(name)) if is_asked else found


@contextlib.contextmanager
def capturing(stream: torch.Stream) -> Iterator[None]:
    """A captured stream of the emulation's computes at once."""
    _unseen("captures that compute")
    yield


def without_machine_code() -> Any:
    """Units as they are before anybody has asked for them."""
    return _theirs().without_machine_code()


def calls() -> list[str]:
    """Calls of the driver's functions."""
    return _Unseen("the driver's calls")


def stock_calls() -> list[str]:
    """None that were seen; a test that expects one ends there, see the hook below."""
    return []


_launches: list[str] = []
_names: dict[int, str] = {}
_kept: list[Any] = []


def launches() -> list[str]:
    """Kernels of ours launched so far: ``name device stream``."""
    return _launches


def launched(_since: int) -> list[str]:
    """With products, which cuBLASLt launches by functions of its own."""
    return _Whatever()


def places(_since: int) -> list[str]:
    """Likewise."""
    return _Whatever()


class _Products:
    """cuBLASLt, which does not tell what it is asked; misuse is an error of its own."""

    @staticmethod
    def emulated_misuse() -> None:
        return None

    @staticmethod
    def emulated_refuse(epilogue: int) -> None:
        if epilogue:
            _unseen("a library that refuses")

    @staticmethod
    def emulated_break(call: int) -> None:
        if call:
            _unseen("a library that fails")

    def __getattr__(self, name: str) -> NoReturn:
        _unseen(name)


def cublaslt() -> _Products:
    """The library of products."""
    return _Products()


def give_machine_code(*_units: str) -> None:
    """All units have machine code, or the test fails with what kept them from it."""
    from pai_torchacc.bench import measure_cuda

    if missing := measure_cuda.provide():
        pytest.fail(f"kernels without machine code: {missing}")
    _watch()


def _watch() -> None:
    """Stand in front of the driver, once it has been found."""
    if not _kept:
        _stand_before("library_kernel", _note_kernel)
        _stand_before("launch", _note_launch)


def _slot(member: str) -> tuple[ctypes.c_void_p, Any]:
    """Where ptac_cuda, of csrc/device/cuda/driver.h, has a function, and its type."""
    from benchmarks.extension import ROOT, symbols

    header = (ROOT / "csrc/device/cuda/driver.h").read_text(encoding="utf-8")
    text = header.replace("\\\n", " ")
    found = re.findall(r"F\((\w+), \w+,\s+\(([^()]*)\)\)", text)
    place = [name for name, _ in found].index(member)
    parameters = found[place][1].split(",")
    kinds = [ctypes.c_uint if "unsigned" in p else ctypes.c_void_p for p in parameters]
    at = symbols()["ptac_cuda"] + place * ctypes.sizeof(ctypes.c_void_p)
    return ctypes.c_void_p.from_address(at), ctypes.CFUNCTYPE(ctypes.c_int, *kinds)


def _stand_before(member: str, note: Callable[..., None]) -> None:
    """Have calls of a function of the driver noted once it has succeeded."""
    slot, prototype = _slot(member)
    assert slot.value, f"{member} of the driver was not found"
    real = prototype(slot.value)

    def before(*arguments: Any) -> int:
        result: int = real(*arguments)
        if result == 0:
            note(*arguments)
        return result

    _kept.append(prototype(before))
    slot.value = ctypes.cast(_kept[-1], ctypes.c_void_p).value


def _note_kernel(to: int, _library: int, name: int) -> None:
    kernel = ctypes.c_void_p.from_address(to).value
    if kernel:
        _names[kernel] = ctypes.string_at(name).decode()


def _note_launch(kernel: int, *rest: Any) -> None:
    stream = rest[7]
    device = torch.cuda.current_device()
    current = torch.accelerator.current_stream(device)
    if torch.version.cuda:
        handle = torch.cuda.current_stream(device).cuda_stream
    else:
        handle = current.native_handle  # which older torch lacks
    is_current = (handle or 0) == (stream or 0)
    number = current.stream_id if is_current else f"not torch's: {stream}"
    _launches.append(f"{_names.get(kernel, '?')} {device} {number}")


def _asks_stock(error: AssertionError) -> bool:
    """Whether what failed is about calls of torch's own kernels."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    return _leads_to_stock(frame.f_globals, re.findall(r"\w+", line))


def _leads_to_stock(names: dict[str, Any], asked: Iterable[str], n: int = 3) -> bool:
    """Whether ``stock_calls`` is among these, or what functions among them call."""
    found = [names.get(name) for name in asked]
    functions = [f for f in found if isinstance(f, FunctionType)]
    return "stock_calls" in asked or any(
        n and _leads_to_stock(f.__globals__, f.__code__.co_names, n - 1)
        for f in functions
    )


def pytest_configure() -> None:
    """As a plug-in of pytest's. Numbers are compared with the CPU's: no TF32."""
    if not torch.cuda.is_available():
        pytest.exit("there is no CUDA device", 1)
    torch.backends.cudnn.allow_tf32 = False


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Tests end, skipped, where they expect what no single real device shows."""
    try:
        return (yield)
    except AssertionError as error:
        if _asks_stock(error):
            _unseen("calls of torch's own kernels")
        raise
    except RuntimeError as error:
        if "invalid device ordinal" in str(error) and torch.cuda.device_count() == 1:
            pytest.skip("needs two devices")
        raise

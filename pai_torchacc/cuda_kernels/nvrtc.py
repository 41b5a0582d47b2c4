"""NVRTC, NVIDIA's compiler as a library, from the wheels that torch brings.

Prototypes are our own; a test compares them with nvrtc.h where that is installed.
Source: NVRTC's documentation, CUDA 12.0 to 13.2.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pai_torchacc.cuda_kernels.shipped import Source
from pai_torchacc.cuda_kernels.target import Target

_STRINGS = POINTER(c_char_p)

PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "nvrtcVersion": (POINTER(c_int), POINTER(c_int)),
    "nvrtcGetNumSupportedArchs": (POINTER(c_int),),
    "nvrtcGetSupportedArchs": (POINTER(c_int),),
    "nvrtcCreateProgram": (
        *(POINTER(c_void_p), c_char_p, c_char_p),
        *(c_int, _STRINGS, _STRINGS),
    ),
    "nvrtcDestroyProgram": (POINTER(c_void_p),),
    "nvrtcCompileProgram": (c_void_p, c_int, _STRINGS),
    "nvrtcGetProgramLogSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetProgramLog": (c_void_p, c_char_p),
    "nvrtcGetCUBINSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetCUBIN": (c_void_p, c_char_p),
    "nvrtcGetPTXSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetPTX": (c_void_p, c_char_p),
}
"""Parameters; all return an nvrtcResult, 0 for success."""

OPTIONS = ("--std=c++17", "--fmad=false")
"""As nvcc has them in tools/kernels.py."""

NAME = re.compile(r"libnvrtc(?:-[0-9a-f]+)?\.so\.(\d+)(?:\.[\d.]+)?")
"""Of the library's file; wheels that bundle it put a hash in."""


class CompileError(RuntimeError):
    """NVRTC refuses a source; the text is its log."""


class NoNvrtc(RuntimeError):
    """There is none, or none that can be used."""


@dataclass(frozen=True)
class Nvrtc:
    """The library, loaded."""

    library: Any
    path: str
    version: tuple[int, int]
    architectures: tuple[int, ...]

    def options(self, target: Target) -> tuple[list[str], bool]:
        """What compiles for all devices of the target; whether that is a CUBIN.

        PTX, which the driver translates, where devices differ or are newer than this
        NVRTC.
        """
        oldest = target.capabilities[0]
        if len(target.capabilities) == 1 and oldest in self.architectures:
            return [f"--gpu-architecture=sm_{oldest}", *OPTIONS], True
        known = [a for a in self.architectures if a <= oldest]
        if not known:
            least = self.architectures[0]
            raise CompileError(f"NVRTC knows sm_{least} and newer, not sm_{oldest}")
        return [f"--gpu-architecture=compute_{max(known)}", *OPTIONS], False

    def compile(self, source: Source, options: Sequence[str], is_cubin: bool) -> bytes:
        """Machine code, or PTX with its end; :class:`CompileError` with the log."""
        headers = source.headers
        program = c_void_p()
        self._call(
            "nvrtcCreateProgram",
            byref(program),
            source.text.encode(),
            source.name.encode(),
            len(headers),
            _strings(headers.values()),
            _strings(headers),
        )
        try:
            arguments = (program, len(options), _strings(options))
            if self.library.nvrtcCompileProgram(*arguments) != 0:
                log = self._take(program, "ProgramLog").rstrip(b"\0")
                text = log.decode(errors="replace").strip()
                raise CompileError(text or "NVRTC fails without a log")
            return self._take(program, "CUBIN" if is_cubin else "PTX")
        finally:
            self.library.nvrtcDestroyProgram(byref(program))

    def _take(self, program: Any, what: str) -> bytes:
        size = c_size_t()
        self._call(f"nvrtcGet{what}Size", program, byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw[: size.value]

    def _call(self, name: str, *arguments: Any) -> None:
        _check(self.library, name, *arguments)


def _check(library: Any, name: str, *arguments: Any) -> None:
    if (result := getattr(library, name)(*arguments)) != 0:
        raise CompileError(f"{name}: {_text(library, result)}")


def _text(library: Any, result: int) -> str:
    describe = library.nvrtcGetErrorString
    describe.argtypes, describe.restype = (c_int,), c_char_p
    return f"{(describe(result) or b'').decode()} ({result})"


def _strings(texts: Any) -> Any:
    encoded = [t.encode() for t in texts]
    return (c_char_p * len(encoded))(*encoded)


def find(torch: Any) -> Nvrtc:
    """The NVRTC of this torch, loaded; :class:`NoNvrtc` with the reason.

    The library that the process has already goes first, then files in torch's own
    folder and in the wheels beside it, of torch's own major version before others. No
    search path is asked: a file that lies about is not ours to load.
    """
    troubles = []
    for load in _ways(torch):
        try:
            return _opened(*load())
        except (OSError, AttributeError, CompileError) as error:
            troubles.append(str(error))
    raise NoNvrtc("; ".join(dict.fromkeys(troubles[1:])) or "no NVRTC beside torch")


def has_file(torch: Any) -> bool:
    """Whether there is something that :func:`find` would try, without loading it."""
    return bool(files(torch))


def _ways(torch: Any) -> Iterator[Callable[[], tuple[Any, str]]]:
    def loaded() -> tuple[Any, str]:
        name = f"libnvrtc.so.{(torch.version.cuda or '0').partition('.')[0]}"
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW), name

    yield loaded
    for path in files(torch):
        yield lambda path=path: (ctypes.CDLL(str(path), mode=os.RTLD_NOW), str(path))


def files(torch: Any) -> list[Path]:
    """Where NVRTC lies beside this torch; torch's own way to it comes last."""
    folder = Path(torch.__file__).parent
    major = (torch.version.cuda or "0").partition(".")[0]
    found = [
        path
        for pattern in ("torch/lib/*", "nvidia/*/lib/*")
        for path in sorted(folder.parent.glob(pattern.replace("torch", folder.name, 1)))
        if (match := NAME.fullmatch(path.name)) and match[1] == major
    ]
    # It is linked with the NVRTC that torch was built with, wherever that lies.
    linked = folder / "lib" / "libcaffe2_nvrtc.so"
    return [*found, linked] if linked.is_file() else found


def _opened(library: Any, path: str) -> Nvrtc:
    for name, parameters in PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = parameters, c_int
    major, minor, n = c_int(), c_int(), c_int()
    _check(library, "nvrtcVersion", byref(major), byref(minor))
    _check(library, "nvrtcGetNumSupportedArchs", byref(n))
    numbers = (c_int * n.value)()
    _check(library, "nvrtcGetSupportedArchs", numbers)
    version = major.value, minor.value
    return Nvrtc(library, path, version, tuple(sorted(numbers)))

"""One file for a quantized model: a zip archive without pickles.

``header.json`` lists the tensors of the state dict; each has an entry of its bytes,
little-endian, cut into blocks that are stored or coded by raw deflate. Quantized
weights are coded by their frequencies alone (Huffman only), which is what their
near-Gaussian numbers have to give. Blocks are coded by several threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import itertools
import json
import math
import os
import secrets
import sys
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

FORMAT = "pai_torchacc.quantized"
VERSION = 1
_BLOCK_BYTES = 1 << 20
_MOST_HEADER_BYTES = 64 << 20
_LEVEL, _MEM_LEVEL = 6, 9
_HEADER = "header.json"

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
        torch.float8_e4m3fn,
        *(torch.complex64, torch.complex128),
    )
}


def save(model: nn.Module, file: Any, compress: bool) -> None:
    """See :func:`pai_torchacc.save_quantized`."""
    if sys.byteorder != "little":
        raise ValueError("this machine's numbers are big-endian")
    state = model.state_dict()
    tensors = {name: _dense(name, tensor) for name, tensor in state.items()}
    with _replacing(file) as stream:
        _write(stream, tensors, getattr(state, "_metadata", {}), compress)


def _dense(name: str, tensor: Any) -> Tensor:
    """Bring a tensor to the CPU, contiguous, or raise ValueError."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} is no tensor but a {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_meta:
        raise ValueError(f"{name} has no dense data")
    if tensor.dtype not in DTYPES.values():
        raise ValueError(f"{name} has dtype {tensor.dtype}")
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


@contextlib.contextmanager
def _replacing(file: Any) -> Iterator[IO[bytes]]:
    """A binary file to write; a path's file is replaced at the end, if all is well."""
    if hasattr(file, "write"):
        yield file
        return
    path = Path(file)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(beside, flags, 0o666), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _archive(stream: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """An archive to write, without a directory where that fails."""
    archive = zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED)
    try:
        yield archive
        archive.close()
    except BaseException:
        archive.fp = None  # closing it with an entry open raises an error of its own
        raise


def _write(
    stream: IO[bytes], tensors: dict[str, Tensor], metadata: Any, compress: bool
) -> None:
    entries: list[dict[str, Any]] = []
    entry_of: dict[tuple[Any, ...], str] = {}
    with (
        ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool,
        _archive(stream) as archive,
    ):
        for name, tensor in tensors.items():
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape)
            entry = {
                "name": name,
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
            }
            if tensor.numel() and place in entry_of:
                entries.append(entry | {"same_as": entry_of[place]})
                continue
            entry_of[place] = name
            sizes = []
            with archive.open(f"tensors/{len(entries)}", "w", force_zip64=True) as out:
                for coded in _coded(tensor, compress, pool):
                    sizes.append(len(coded))
                    out.write(coded)
            entries.append(entry | {"at": len(entries), "blocks": sizes})
        header = {
            "format": FORMAT,
            "version": VERSION,
            "block_bytes": _BLOCK_BYTES,
            "tensors": entries,
            "metadata": {  # versions of modules, as state_dict() has them
                prefix: {k: v for k, v in of.items() if isinstance(v, int)}
                for prefix, of in metadata.items()
            },
        }
        archive.writestr(_HEADER, json.dumps(header))


def _coded(tensor: Tensor, compress: bool, pool: Any) -> Iterator[bytes]:
    """Blocks as they are in the file; one of full length is stored as it is."""
    n = tensor.nbytes  # of memory that outlives the view
    memory = (ctypes.c_ubyte * n).from_address(tensor.data_ptr()) if n else b""
    view = memoryview(memory)
    blocks = [view[i : i + _BLOCK_BYTES] for i in range(0, len(view), _BLOCK_BYTES)]
    if not compress:
        yield from blocks
        return
    is_quantized = tensor.dtype in (torch.int8, torch.float8_e4m3fn)
    strategy = zlib.Z_HUFFMAN_ONLY if is_quantized else zlib.Z_DEFAULT_STRATEGY

    def code(block: memoryview) -> bytes:
        coder = zlib.compressobj(
            _LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, _MEM_LEVEL, strategy
        )
        coded = coder.compress(block) + coder.flush()
        return coded if len(coded) < len(block) else bytes(block)

    yield from pool.map(code, blocks)


def load(model: nn.Module, file: Any) -> nn.Module:
    """See :func:`pai_torchacc.load_quantized`."""
    from pai_torchacc.quantization import restoring

    with contextlib.ExitStack() as stack:
        is_open = hasattr(file, "read")
        stream = file if is_open else stack.enter_context(Path(file).open("rb"))
        with _told_as_damage(file):
            archive = stack.enter_context(zipfile.ZipFile(stream))
            header = _header(archive)
        plan = restoring.planned(model, header["tensors"])
        with _told_as_damage(file):
            tensors = _tensors(archive, header)
    return restoring.restore(model, plan, tensors, header["metadata"])


@contextlib.contextmanager
def _told_as_damage(file: Any) -> Iterator[None]:
    """Raise ValueError with the file's name for what damage makes others raise."""
    try:
        yield
    except io.UnsupportedOperation:
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError),
        *(RuntimeError, OverflowError, ValueError, OSError),
    ) as error:
        # Where bytes are missing, zipfile seeks to a place before the file begins.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        name = getattr(file, "name", "the file") if hasattr(file, "read") else file
        raise ValueError(f"{name} is damaged, or for others to read: {error}") from None


def _check(is_so: bool, why: str = "its header is wrong") -> None:
    if not is_so:
        raise ValueError(why)


def _read(archive: zipfile.ZipFile, name: str, least: int, most: int) -> bytes:
    """An entry of so many bytes."""
    _check(name in archive.NameToInfo, f"it has no {name}")
    info = archive.getinfo(name)
    is_stored = info.compress_type == zipfile.ZIP_STORED
    is_sized = least <= info.file_size <= most and info.compress_size == info.file_size
    _check(is_stored and is_sized, f"{name} has a wrong size")
    content = archive.read(info)
    _check(len(content) == info.file_size, f"{name} ends early")
    return content


def _header(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The header, whose every part is what :func:`_write` makes."""
    header = json.loads(_read(archive, _HEADER, 0, _MOST_HEADER_BYTES))
    found: dict[str, dict[str, Any]] = {}
    try:
        _check(header["format"] == FORMAT, "it is no file of save_quantized")
        version = header["version"]
        _check(version == VERSION, f"it has version {version!r}, not {VERSION}")
        _check(header["block_bytes"] == _BLOCK_BYTES)
        for of in header["metadata"].values():
            _check(all(isinstance(v, int) for v in of.values()))
        for entry in header["tensors"]:
            _check_entry(entry, found)
            found[entry["name"]] = entry
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its header is wrong: {error!r}") from None
    return header | {"tensors": found}


def _check_entry(entry: dict[str, Any], before: dict[str, dict[str, Any]]) -> None:
    _check(isinstance(entry["name"], str) and entry["name"] not in before)
    _check(type(entry["shape"]) is list and all(map(_is_count, entry["shape"])))
    n_blocks = -(-_n_bytes(entry) // _BLOCK_BYTES)
    if "same_as" in entry:
        other = before[entry["same_as"]]
        _check(all(other[k] == entry[k] for k in ("dtype", "shape")))
    else:
        _check(_is_count(entry["at"]) and len(entry["blocks"]) == n_blocks)
        _check(all(_is_count(n) and n <= _BLOCK_BYTES for n in entry["blocks"]))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _n_bytes(entry: dict[str, Any]) -> int:
    return math.prod(entry["shape"]) * DTYPES[entry["dtype"]].itemsize


def _tensors(archive: zipfile.ZipFile, header: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors; sizes have been checked against the model's."""
    found: dict[str, Tensor] = {}
    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        for name, entry in header["tensors"].items():
            if "same_as" in entry:
                found[name] = found[entry["same_as"]]
                continue
            n = sum(entry["blocks"])
            content = _read(archive, f"tensors/{entry['at']}", n, n)
            found[name] = _decoded(content, entry, pool)
    return found


def _decoded(content: bytes, entry: dict[str, Any], pool: Any) -> Tensor:
    n = _n_bytes(entry)
    dtype = DTYPES[entry["dtype"]]
    if not n:
        return torch.empty(entry["shape"], dtype=dtype)
    view, sizes = memoryview(content), entry["blocks"]
    ends = itertools.accumulate(sizes)
    coded = [view[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    starts = range(0, n, _BLOCK_BYTES)
    lengths = [min(_BLOCK_BYTES, n - start) for start in starts]
    raw = bytearray(n)
    for start, block in zip(starts, pool.map(_block, coded, lengths), strict=True):
        raw[start : start + len(block)] = block
    return torch.frombuffer(raw, dtype=dtype).reshape(entry["shape"])


def _block(coded: memoryview, length: int) -> Any:
    """A block of so many bytes; one that is as long was stored as it is."""
    if len(coded) == length:
        return coded
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    block = decoder.decompress(coded, length + 1)
    _check(len(block) == length and decoder.eof, "a block has a wrong length")
    return block

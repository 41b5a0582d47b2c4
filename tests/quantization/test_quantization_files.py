"""save_quantized and load_quantized: sizes, numbers, damaged files."""

from __future__ import annotations

import io
import json
import math
import os
import random
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import int8
import pytest
import torch
from int8 import CASES, another, quantized
from torch import nn

import pai_torchacc as ptac
from pai_torchacc.quantization import files, selection


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.no_grad():
        yield
    ptac.disable()


def snapshot(model: nn.Module) -> tuple[Any, ...]:
    state = {k: v.clone() for k, v in model.state_dict().items()}
    return [type(m) for m in model.modules()], state, list(model.parameters())


def assert_unchanged(model: nn.Module, before: tuple[Any, ...]) -> None:
    classes, state, parameters = before
    assert [type(m) for m in model.modules()] == classes
    now = model.state_dict()
    assert list(now) == list(state)
    assert all(torch.equal(now[k], v) for k, v in state.items())
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers_wherever_it_is_loaded(
    name: str, compress: bool, tmp_path: Path
) -> None:
    file = tmp_path / "model.ptac"
    with int8.kernels():
        model, x = quantized(name)
        expected, state = model(x), model.state_dict()
        ptac.save_quantized(model, file, compress)
        assert [p.name for p in tmp_path.iterdir()] == ["model.ptac"]
        for other in (
            another(name),
            ptac.quantize_model(another(name), method="int8"),
            ptac.quantize_model(another(name), method="weight_only"),
        ):
            assert ptac.load_quantized(other, file) is other
            assert torch.equal(other(x), expected)
            now = other.state_dict()
            assert list(now) == list(state)
            assert all(torch.equal(now[k], state[k]) for k in state)
            if name == "tied":
                a, b = now["head.weight_int8"], now["embedding.weight_int8"]
                assert a.data_ptr() == b.data_ptr()
                ptac.dequantize_model(other)
                assert other.head.weight is other.embedding.weight


@pytest.mark.parametrize("name", CASES)
def test_a_float_model(name: str) -> None:
    model, x = int8.MODELS[name][0](), int8.MODELS[name][1]
    stream = io.BytesIO(int8.file_of(model))
    other = ptac.quantize_model(another(name), method="int8")
    ptac.load_quantized(other, stream)
    assert not list(selection.quantized_modules(other))
    assert torch.equal(other(x), model(x))
    if name == "tied":
        assert other.head.weight is other.embedding.weight
        assert other.encoder.use_nested_tensor


def test_a_module_under_two_names() -> None:
    def make() -> nn.ModuleDict:
        shared, tied = nn.Linear(4, 4), nn.Linear(4, 4)
        tied.weight = shared.weight
        return nn.ModuleDict(
            {"a": shared, "b": shared, "c": nn.Sequential(shared), "d": tied}
        )

    model, floats = ptac.quantize_model(make(), method="int8"), make()
    other = ptac.load_quantized(make(), io.BytesIO(int8.file_of(model)))
    assert other.a is other.b is other.c[0]
    assert torch.equal(other.b.weight, model.b.weight)
    assert torch.equal(other.d.weight, model.d.weight)
    ptac.load_quantized(other, io.BytesIO(int8.file_of(floats)))
    assert type(other.b) is nn.Linear
    assert other.d.weight is other.b.weight
    assert torch.equal(other.b.weight, floats.b.weight)


def test_decisions_are_the_saved_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with int8.kernels() as made:
        with monkeypatch.context() as patch:
            patch.setattr(selection, "is_faster", lambda op, kind, work: kind != "m1")
            model = ptac.quantize_model(int8.mlp(), exclude=["2"])
        other = ptac.load_quantized(another("mlp"), io.BytesIO(int8.file_of(model)))
        assert type(other[2]) is nn.Linear
        made.clear()
        other(int8.ROWS[:1])
        assert made == []
        other(int8.ROWS)
        assert made == ["int8_linear"] * 2


def test_loading_switches_on() -> None:
    model, _ = quantized("mlp")
    content = int8.file_of(model)
    ptac.disable()
    ptac.load_quantized(another("mlp"), io.BytesIO(content))
    assert ptac.is_enabled("model_quantization")


def trained_like(n: int, k: int) -> nn.Linear:
    layer = nn.Linear(k, n)
    generator = torch.Generator().manual_seed(n)
    spread = torch.rand(n, 1, generator=generator) + 0.5
    layer.weight.data = torch.randn(n, k, generator=generator) * spread / math.sqrt(k)
    return layer


@pytest.mark.parametrize(("n", "k"), [(1024, 256), (768, 768), (512, 4096)])
def test_coded_files_are_below_a_quarter(n: int, k: int) -> None:
    model = nn.Sequential(trained_like(n, k))
    n_float = sum(4 * p.numel() for p in model.parameters())
    ptac.quantize_model(model, method="int8")
    coded, raw = (len(int8.file_of(model, compress)) for compress in (True, False))
    print(f"{n}x{k}: {100 * coded / n_float:.2f} %, {100 * raw / n_float:.2f} % raw")
    assert coded <= 0.245 * n_float
    assert raw <= 0.26 * n_float


def test_dtypes_shapes_and_emptiness() -> None:
    class Odd(nn.Module):
        def __init__(self, by: int) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            for i, dtype in enumerate(files.DTYPES.values()):
                values = (torch.arange(6) * by).to(dtype).reshape(2, 3)
                self.register_buffer(f"b{i}", values.t())
            self.register_buffer("scalar", torch.tensor(by))
            self.register_buffer("empty", torch.empty(0, 3))
            self.register_buffer("long", torch.arange(1 << 19) * by)

    model, other = Odd(1), Odd(2)
    ptac.load_quantized(other, io.BytesIO(int8.file_of(model)))
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> str:
            return "text"

    file = tmp_path / "model.ptac"
    file.write_bytes(b"before")
    for model, why in (
        (Extra(2, 2), "_extra_state is no tensor"),
        (nn.Linear(2, 2, device="meta"), "weight has no dense data"),
    ):
        with pytest.raises(ValueError, match=why):
            ptac.save_quantized(model, file)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        ptac.save_quantized({}, file)
    assert [p.name for p in tmp_path.iterdir()] == ["model.ptac"]
    assert file.read_bytes() == b"before"
    with pytest.raises(OSError, match="No such file"):
        ptac.save_quantized(nn.Linear(2, 2), tmp_path / "nowhere" / "x")
    with pytest.raises(OSError, match="No such file"):
        ptac.load_quantized(nn.Linear(2, 2), tmp_path / "nowhere")


def test_an_interrupt_while_saving_comes_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where an entry of the archive is open."""
    model, _ = quantized("mlp")
    entries, opened = [], zipfile.ZipFile.open

    def interrupted(*args: Any, **options: Any) -> None:
        entries.append(opened(*args, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "open", interrupted)
    for file in (io.BytesIO(), tmp_path / "model.ptac"):
        with pytest.raises(KeyboardInterrupt):
            ptac.save_quantized(model, file)
    assert len(entries) == 2
    assert not list(tmp_path.iterdir())


def test_a_file_has_the_usual_rights(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        ptac.save_quantized(nn.Linear(2, 2), tmp_path / "model")
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o640


def test_files_for_other_models(tmp_path: Path) -> None:
    content = int8.file_of(quantized("mlp")[0])
    shared = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))
    apart = int8.file_of(ptac.quantize_model(shared, method="int8"))
    tied = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))
    tied[1].weight = tied[0].weight
    small = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 32))
    wide = int8.mlp()
    wide[4] = nn.Linear(32, 11)
    doubles = int8.mlp()
    doubles[0].double()
    for model, data, why in (
        (small, content, "has in addition 4"),
        (int8.conv_net(), content, "lacks"),
        (wide, content, "size mismatch for 4"),
        (doubles, content, "0 cannot be int8 as in the file: dtype float64"),
        (tied, apart, "share a weight in the model, but not in the file"),
    ):
        before = snapshot(model)
        with pytest.raises(ValueError, match=why):
            ptac.load_quantized(model, io.BytesIO(data))
        assert_unchanged(model, before)


def rewritten(content: bytes, change: Any) -> bytes:
    """The archive with its entries changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    method = change(entries) or zipfile.ZIP_STORED
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return stream.getvalue()


def header_with(**changes: Any) -> Any:
    def change(entries: dict[str, bytes]) -> None:
        header = json.loads(entries["header.json"])
        entries["header.json"] = json.dumps(header | changes).encode()

    return change


def first_tensor_with(**changes: Any) -> Any:
    def change(entries: dict[str, bytes]) -> None:
        header = json.loads(entries["header.json"])
        header["tensors"][0] |= changes
        entries["header.json"] = json.dumps(header).encode()

    return change


def bomb(entries: dict[str, bytes]) -> None:
    """A block that would be a thousand times as long as it should be."""
    header = json.loads(entries["header.json"])
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = coder.compress(bytes(1 << 20)) + coder.flush()
    data = data[: header["tensors"][0]["blocks"][0]]
    header["tensors"][0]["blocks"] = [len(data) - 1]
    entries["tensors/0"] = data[:-1]
    entries["header.json"] = json.dumps(header).encode()


def compressed(entries: dict[str, bytes]) -> int:
    return zipfile.ZIP_DEFLATED


TRICKS = {
    "format": header_with(format="other"),
    "version": header_with(version=2),
    "no tensors": header_with(tensors=None),
    "tensors of nothing": header_with(tensors=[1]),
    "metadata": header_with(metadata=[]),
    "metadata of nothing": header_with(metadata={"": 1}),
    "version of a module": header_with(metadata={"": {"version": "1"}}),
    "blocks": header_with(block_bytes=1),
    "name": first_tensor_with(name=3),
    "dtype": first_tensor_with(dtype="int4"),
    "dtype of another": first_tensor_with(dtype="uint8"),
    "dtype of nothing": first_tensor_with(dtype=[]),
    "negative": first_tensor_with(shape=[-48, -20]),
    "float shape": first_tensor_with(shape=[48.0, 20]),
    "huge": first_tensor_with(shape=[1 << 40, 1 << 40]),
    "other shape": first_tensor_with(shape=[20, 48]),
    "block sizes": first_tensor_with(blocks=[1]),
    "no blocks": first_tensor_with(blocks=[]),
    "block of text": first_tensor_with(blocks=["1"]),
    "place": first_tensor_with(at=10_000),
    "same as itself": first_tensor_with(same_as="0.weight_int8"),
    "same as nothing": first_tensor_with(same_as=None),
    "not json": lambda e: e.update({"header.json": b"{"}),
    "deep json": lambda e: e.update({"header.json": b"[" * 100_000}),
    "no header": lambda e: e.pop("header.json"),
    "not text": lambda e: e.update({"header.json": b"\xff\xfe"}),
    "no tensor": lambda e: e.pop("tensors/0"),
    "short": lambda e: e.update({"tensors/0": e["tensors/0"][:-1]}),
    "bomb": bomb,
    "compressed": compressed,
}


@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_are_seen(trick: str) -> None:
    content = int8.file_of(quantized("mlp")[0])

    def change(entries: dict[str, bytes]) -> int | None:
        result = TRICKS[trick](entries)
        return result if isinstance(result, int) else None

    damaged = rewritten(content, change)
    for model in (another("mlp"), quantized("mlp")[0]):
        before = snapshot(model)
        with pytest.raises(ValueError):
            ptac.load_quantized(model, io.BytesIO(damaged))
        assert_unchanged(model, before)


@pytest.mark.parametrize("compress", [True, False])
def test_damaged_files(compress: bool, tmp_path: Path) -> None:
    """Flipped and missing bytes: an error that names the file, or the same numbers."""
    saved, x = quantized("mlp")
    content = int8.file_of(saved, compress)
    expected = saved(x)
    chance = random.Random(0)
    file = tmp_path / "damaged"
    n_refused = 0
    cuts = [0, 1, 100, len(content) // 2, len(content) - 1]
    for i in range(300):
        data = bytearray(content)
        if i < len(cuts):
            data = data[: cuts[i]]
        else:
            for _ in range(chance.choice([1, 1, 4])):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        model = another("mlp")
        before = snapshot(model)
        try:
            ptac.load_quantized(model, file)
        except ValueError as error:
            assert str(error)
            n_refused += 1
            assert_unchanged(model, before)
        else:
            assert torch.equal(model(x), expected)
    assert n_refused > 200


@pytest.mark.parametrize("as_path", [True, False])
def test_bytes_missing_before_the_directory(as_path: bool, tmp_path: Path) -> None:
    """Entries are sought before the file begins."""
    content = int8.file_of(quantized("mlp")[0])
    file = tmp_path / "cut"
    for n_kept in (0, 10, 1000):
        directory = content[content.index(b"PK\x01\x02") :]
        data = content[:n_kept] + directory
        file.write_bytes(data)
        model = another("mlp")
        before = snapshot(model)
        with pytest.raises(ValueError, match="damaged") as caught:
            ptac.load_quantized(model, file if as_path else io.BytesIO(data))
        assert (str(file) if as_path else "the file") in str(caught.value)
        assert_unchanged(model, before)

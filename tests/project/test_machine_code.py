"""Inner loops as the built extension has them.

Functions that give a vector are parts of a loop, not calls. In tiles of int8 each sum
has to stay in its register for the whole loop: a compiler that keeps some on the stack
costs half of the speed and no test of numbers notices. So the loop of a tile holds what
its algorithm needs and nothing else of the vector unit.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections import Counter
from pathlib import Path

import native
import pytest

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="tiles of x86-64 only"
)

TILES = {
    # file: rows, vectors of channels
    "avx512_vnni": [(r, v) for r in range(1, 7) for v in range(1, 5)],
    "avx_vnni": [(r, 2) for r in range(1, 7)],
    "avx2": [(r, 2) for r in range(1, 7)],
}


def expected_loop(isa: str, rows: int, vectors: int) -> Counter[str]:
    """The vector instructions of a step of k."""
    if isa == "avx2":  # each vector of bytes is two of 16 bits
        halves = 2 * rows * vectors
        loop = {"vpmaddwd": halves, "vpaddd": halves, "vpbroadcastd": halves}
        return Counter(loop, vmovdqu=vectors, vpsraw=2 * vectors, vpsllw=vectors)
    load = "vmovdqu64" if isa == "avx512_vnni" else "vmovdqu"
    dots = {"vpdpbusd": rows * vectors, "vpbroadcastd": rows, load: vectors}
    return Counter(dots)


@pytest.fixture(scope="module")
def functions(extension: Path) -> list[tuple[str, str]]:
    """Functions of the extension, by name, as objdump shows them."""
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")
    code = native.run(["objdump", "-d", "--no-show-raw-insn", str(extension)])
    found = re.findall(r"^[0-9a-f]+ <(\w+)>:\n((?:.+\n)+)", code, re.M)
    if not any(name.startswith("sum_") for name, _ in found):
        pytest.skip("the extension was stripped of its symbols")
    return found


def inner_loop(code: str) -> list[str]:
    """The instructions of the shortest loop; none where nothing jumps back."""
    lines = [
        (int(at, 16), text.strip())
        for at, text in re.findall(r"^\s*([0-9a-f]+):\t(.*)$", code, re.M)
    ]
    loops = []
    for end, text in lines:
        if jump := re.match(r"j\w+\s+([0-9a-f]+)", text):
            begin = int(jump[1], 16)
            if begin <= end:
                loops.append([t for at, t in lines if begin <= at <= end])
    return min(loops, key=len, default=[])


def vector_instructions(loop: list[str]) -> Counter[str]:
    """By mnemonic; a store, which no loop has to do, by its whole text."""
    seen: Counter[str] = Counter()
    for text in loop:
        if not re.search(r"%[xyz]mm", text):
            continue
        encoded = text.removeprefix("{vex} ")
        stores = re.search(r"%[xyz]mm\d+,[^%]*\(", encoded)
        seen[text if stores or "(%rsp" in text else encoded.split()[0]] += 1
    return seen


@pytest.mark.parametrize("isa", TILES)
def test_sums_stay_in_registers(functions: list[tuple[str, str]], isa: str) -> None:
    width = "zmm" if isa == "avx512_vnni" else "ymm"
    for rows, vectors in TILES[isa]:
        name = f"sum_{rows}x{vectors}"
        loops = [inner_loop(code) for found, code in functions if found == name]
        seen = [
            vector_instructions(loop) for loop in loops if f"%{width}" in "".join(loop)
        ]
        assert expected_loop(isa, rows, vectors) in seen, f"{name}: {seen}"


def test_six_rows_by_four_vectors_are_24_products(
    functions: list[tuple[str, str]],
) -> None:
    [code] = [code for name, code in functions if name == "sum_6x4"]
    products = [t for t in inner_loop(code) if t.startswith("vpdpbusd")]
    assert len({t.split(",")[-1] for t in products}) == len(products) == 24


def test_operands_that_change_have_registers_of_their_own() -> None:
    """An input of the same value may share the register of a plain ``+r``."""
    for source in native.CSRC.rglob("*.[ch]"):
        plain = re.findall(r'\[\w+\] "[+=]r"', source.read_text())
        assert plain == [], f"{source}: these need an &"


def test_tiles_of_amx_are_there(functions: list[tuple[str, str]]) -> None:
    sums = "sum_by_tiles", "sum_wide", "sum_square"
    codes = [code for name, code in functions if name.startswith(sums)]
    assert sum(code.count("tdpbusd") for code in codes) >= 8


def test_functions_of_lanes_are_not_called(functions: list[tuple[str, str]]) -> None:
    """A call a vector made Adam's steps half as slow again."""
    made = {re.sub(r"_(f32|f64|bf16)$", "", name) for name, _ in functions}
    gives_lanes = re.compile(
        r"(?:static inline|INLINE) (?:VEC|vec\w*|MASK|mask\w*) (?:OF\((\w+)\)|(\w+))\("
    )
    sources = [*native.CSRC.rglob("*_tpl.h"), *native.CSRC.rglob("ops/**/*.c")]
    lanes = {
        name
        for source in sources
        for names in gives_lanes.findall(source.read_text(encoding="utf-8"))
        for name in names
        if name
    }
    assert {"moments", "change", "load_tap", "v_exp"} <= lanes
    assert lanes & made <= {"load"}, lanes & made  # the module has one, too

"""The torch-free C tests: every kernel row of the CPU, and the units of the core."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import checkrows
import native
import pytest
import torch
from checkrows import CASES, DRIVER, SEED, generators

LONG = 2000
"""Cases of a run that has time for compiling everything once more."""

UNITS = (
    *("arena", "fakes", "heap", "narrow", "random", "testcall", "threads", "unit"),
    *("act_bounds", "math_avx2", "math_avx512"),
)
WRAPPED = tuple(f"-Wl,--wrap={f}" for f in ("aligned_alloc", "calloc", "free"))

# What checkrows has to say of each row of badrows.c. A stray write hits guard bytes or,
# at the end of a slot, a forbidden page.
BAD_ROWS = {
    "accepts_looks_at_outputs": "Segmentation fault",
    "accepts_more": 'PTAC_OK where "scalar" gives the call back',
    "accepts_writes": "input 0 was changed",
    "depends_on_pieces": "output 0 of .*, element 0: ",
    "fails": "PTAC_FAILED: on purpose",
    "forgets_the_last": "output 0 of .*, element",
    "gives_back": 'PTAC_UNSUPPORTED where "scalar" does the call',
    "one_bit": "output 0 of .*, element",
    "only_with_threads": "[23] threads\n(.*\n)*  output 0",
    "only_without_limit": "cpu limit avx",
    "reads_before": "touched [1-8] bytes before input 0",
    "reads_behind": "touched 0 bytes behind the end of input 0",
    "refuses": "its generator made hardly any call that it takes",
    "states_no_tolerance": "its generator states no tolerance",
    "writes_before": "output 1: bytes before|touched [1-8] bytes before output 1",
    "writes_behind": "output 0: bytes behind|behind the end of output 0",
    "writes_input": "input 0 was changed",
    "writes_params": "the params were changed",
    "wrong_index": "output 1 of int64, element",
}


def build_checkrows(
    builder: native.Builder,
    sanitize: str | None = None,
    *,
    name: str = "checkrows",
    also: tuple[str, ...] = (),
    without: str = "",
    family: str = "",
) -> Path:
    sources = native.shipped_sources("core", "device")
    sources += [
        s
        for s in native.shipped_sources("ops")
        if s.is_relative_to(native.CSRC / "ops" / family)
    ]
    sources += native.test_sources(*DRIVER, *also)
    sources += [
        g
        for g in generators()
        if g.stem != without and g.is_relative_to(native.TESTS / "ops" / family)
    ]
    return builder.program(name, sources, sanitize=sanitize)


def build_units(builder: native.Builder, sanitize: str | None = None) -> Path:
    folders = (native.TESTS / folder for folder in ("core", "checkrows", "data", "ops"))
    tests = sorted(p for folder in folders for p in folder.rglob("test_*.c"))
    bias_act = (native.CSRC / "ops" / "linear").glob("bias_act*.c")
    int8 = native.CSRC / "ops" / "int8"
    sources = [
        *native.shipped_sources("core", "data"),
        *sorted((native.CSRC / "ops" / "learning_rate").glob("*.c")),
        *sorted(bias_act),
        *sorted((native.CSRC / "ops" / "norm" / "layer").glob("*.c")),
        native.CSRC / "ops" / "norm" / "norm_ref.c",
        *sorted((native.CSRC / "ops" / "pack").glob("*.c")),
        *(p for p in sorted(int8.rglob("*.c")) if p.parent.name != "cuda"),
        *native.test_sources(*UNITS),
        *tests,
    ]
    return builder.program("units", sources, sanitize=sanitize, link=WRAPPED)


def test_rows(builder: native.Builder) -> None:
    checkrows.run(build_checkrows(builder), CASES)


def test_rows_are_timed_on_the_same_calls(builder: native.Builder) -> None:
    program = str(build_checkrows(builder))
    table = native.run([program, "--bench", "--cases", "5"])
    for operator in ("max_pool2d", "log_softmax", "adam_step"):
        assert re.search(rf"^{operator}$", table, re.MULTILINE), table
    if "avx2" in table:
        assert re.search(r"avx2 +\d+ calls, +\d+\.\d\dx scalar, from", table), table

    one = [program, "--bench", "--op", "max_pool2d", "--case", "4"]
    (title, call, *times), (_, again, *_) = (
        native.run(one).splitlines() for _ in range(2)
    )
    assert call == again
    assert any(re.match(r"  scalar +\d+ ns", line) for line in times), title


@pytest.mark.long
def test_rows_under_address_sanitizer(builder: native.Builder) -> None:
    checkrows.run(build_checkrows(builder, builder.sanitized("address")), CASES // 6)


@pytest.mark.skipif(CASES < LONG, reason="rows under two sanitizers: make check")
def test_rows_under_thread_sanitizer(builder: native.Builder) -> None:
    checkrows.run(build_checkrows(builder, builder.sanitized("thread")), CASES // 6)


def failure_of(program: Path, *arguments: str, fault: str = "", status: int = 1) -> str:
    """The output of checkrows where it must fail: with this exit status."""
    done = subprocess.run(
        [str(program), *arguments],
        env={**os.environ, "PTAC_BAD_ROW": fault},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def build_bad_rows(builder: native.Builder, sanitize: str | None = None) -> Path:
    """With the operators of the family alone where a sanitizer compiles them anew."""
    family = "pool" if sanitize else ""
    return build_checkrows(
        builder, sanitize, name="badrows", also=("badrows",), family=family
    )


FAULTY = ("--op", "max_pool2d", "--cases", "300")


@pytest.mark.parametrize("fault", sorted(BAD_ROWS))
def test_faults_are_found(builder: native.Builder, fault: str) -> None:
    output = failure_of(build_bad_rows(builder), *FAULTY, fault=fault)
    assert "max_pool2d row bad" in output
    assert re.search(BAD_ROWS[fault], output), output


@pytest.mark.parametrize("fault", ["reads_before", "reads_behind", "writes_behind"])
def test_address_sanitizer_sees_guards(builder: native.Builder, fault: str) -> None:
    program = build_bad_rows(builder, builder.sanitized("address"))
    output = failure_of(program, *FAULTY, fault=fault)
    assert "while running max_pool2d row bad" in output
    assert "ERROR: AddressSanitizer" in output


@pytest.mark.skipif(CASES < LONG, reason="rows under two sanitizers: make check")
def test_thread_sanitizer_sees_races(builder: native.Builder) -> None:
    program = build_bad_rows(builder, builder.sanitized("thread"))
    output = failure_of(program, *FAULTY, fault="races", status=66)
    assert "WARNING: ThreadSanitizer: data race" in output
    assert "count_pieces" in output


def test_a_failure_is_repeated_by_its_last_line(builder: native.Builder) -> None:
    program = build_bad_rows(builder)
    found = failure_of(program, *FAULTY, fault="one_bit")
    [again] = [line for line in found.splitlines() if "again: checkrows" in line]
    repeated = failure_of(
        program, *again.split("checkrows ")[1].split(), fault="one_bit"
    )
    first, second = (
        text.partition("FAIL")[2].split("\n")[:4] for text in (found, repeated)
    )
    assert first == second


@pytest.mark.long
def test_an_operator_without_generator_is_named(builder: native.Builder) -> None:
    program = build_checkrows(builder, name="ungenerated", without="gen_max_pool2d")
    output = failure_of(program, "--cases", "1")
    assert "FAIL max_pool2d has rows and no generator" in output
    assert "FAIL max_pool2d_backward has rows and no generator" in output


def test_units(builder: native.Builder) -> None:
    print(native.run([str(build_units(builder))]))


def test_units_under_address_sanitizer(builder: native.Builder) -> None:
    print(native.run([str(build_units(builder, builder.sanitized("address")))]))


def test_concurrency_under_thread_sanitizer(builder: native.Builder) -> None:
    sources = [
        *native.shipped_sources("core"),
        *native.test_sources("fakes", "random", "test_concurrent", "unit"),
    ]
    sanitize = builder.sanitized("thread")
    program = builder.program("concurrent", sources, sanitize=sanitize)
    print(native.run([str(program)]))


@pytest.fixture(scope="module")
def ask_geometry(builder: native.Builder) -> Callable[[list[str]], list[list[int]]]:
    """Send questions to geometry.c, a line each; its answers."""
    program = builder.program("geometry", native.test_sources("geometry"))

    def ask(questions: list[str]) -> list[list[int]]:
        output = native.run([str(program)], input="\n".join(questions))
        answers = [[int(n) for n in line.split()] for line in output.splitlines()]
        assert len(answers) == len(questions)
        return answers

    return ask


def random_tensors(n: int) -> list[torch.Tensor]:
    """Tensors of many layouts: permuted, sliced, expanded, with ones and zeros."""
    rng = random.Random(int(SEED))
    tensors = []
    for _ in range(n):
        n_dims = rng.choice((0, 1, 2, 3, 4, 4, 4, 4, 5, 5))
        x = torch.empty([rng.choice((0, 1, 1, 2, 3, 4)) for _ in range(n_dims)])
        if n_dims in NHWC and rng.random() < 0.5:
            x = x.contiguous(memory_format=NHWC[n_dims])
        if n_dims and rng.random() < 0.3:
            x = x.permute(rng.sample(range(n_dims), n_dims))
        if n_dims and rng.random() < 0.4:
            d = rng.randrange(n_dims)
            x = x.narrow(d, 0, rng.randint(0, x.size(d)))
        if n_dims and rng.random() < 0.2:
            d = rng.randrange(n_dims)
            x = x.narrow(d, 0, min(1, x.size(d)))
            x = x.expand([s if s != 1 else rng.choice((1, 2)) for s in x.shape])
        tensors.append(x)
    return tensors


NHWC = {4: torch.channels_last, 5: torch.channels_last_3d}


def as_torch_suggests(x: torch.Tensor) -> bool | None:
    """Whether torch gives a pooled x in NHWC; None where that cannot be told."""
    if x.dim() not in NHWC or not x.numel():
        return False
    functional = torch.nn.functional
    pool = functional.max_pool2d if x.dim() == 4 else functional.max_pool3d
    strides = pool(x, 1).stride()
    nchw = torch.empty(x.shape).stride()
    nhwc = torch.empty(x.shape, memory_format=NHWC[x.dim()]).stride()
    return None if nchw == nhwc else strides == nhwc


def test_layout_predicates_are_torchs(
    ask_geometry: Callable[[list[str]], list[list[int]]],
) -> None:
    tensors = random_tensors(3000)
    answers = ask_geometry(
        [" ".join(map(str, ["v", x.dim(), *x.shape, *x.stride()])) for x in tensors]
    )
    for x, (contiguous, channels_last, suggests) in zip(tensors, answers, strict=True):
        case = f"{tuple(x.shape)} strides {x.stride()}"
        is_nhwc = x.dim() in NHWC and x.is_contiguous(memory_format=NHWC[x.dim()])
        assert bool(contiguous) == x.is_contiguous(), case
        if x.numel():
            assert bool(channels_last) == is_nhwc, case
        if (expected := as_torch_suggests(x)) is not None:
            assert bool(suggests) == expected, case


def torch_outputs(
    size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool
) -> int | None:
    """How many windows torch sets down along one axis; None where it refuses."""
    try:
        y = torch.nn.functional.max_pool2d(
            torch.empty(1, 1, size),
            (1, kernel),
            (1, stride),
            (0, padding),
            (1, dilation),
            ceil,
        )
    except RuntimeError:
        return None
    return y.size(2)


def test_windows_are_torchs(
    ask_geometry: Callable[[list[str]], list[list[int]]],
) -> None:
    rng = random.Random(int(SEED))
    cases = [
        (
            rng.randint(1, 12),
            rng.randint(1, 6),
            rng.randint(1, 6),
            rng.randint(0, 4),
            rng.randint(1, 4),
            rng.random() < 0.5,
        )
        for _ in range(4000)
    ]
    answers = ask_geometry(["w " + " ".join(str(int(n)) for n in c) for c in cases])
    for case, (valid, outputs) in zip(cases, answers, strict=True):
        expected = torch_outputs(*case)
        assert (outputs if valid and outputs > 0 else None) == expected, case

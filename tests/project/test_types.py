"""What type checkers see of the package, where mypy is installed."""

import re
import subprocess
import sys
from pathlib import Path

import native
import pytest

PROGRAM = """
import torch
from typing import assert_type
import pai_torchacc as ptac
from pai_torchacc.data_parallelism.explaining import Explanation
from pai_torchacc.batch_size.result import BatchSize
from pai_torchacc.quantization.report import QuantizationReport
from pai_torchacc.verification import Verification

model = torch.nn.Linear(2, 2)
assert_type(ptac.enable("memory_pool", numerics="close", verify=3), ptac.Handle)
with ptac.enable() as handle:
    assert_type(handle, ptac.Handle)

@ptac.enable()
def work(x: int) -> str:
    return str(x)

assert_type(work(1), str)
assert_type(ptac.report(), str)
assert_type(ptac.verify(model, torch.ones(1, 2)), Verification)
assert_type(ptac.ops.linear_act(torch.ones(1, 2), torch.ones(2, 2)), torch.Tensor)
assert_type(ptac.quantize_model(model), torch.nn.Linear)
assert_type(ptac.dequantize_model(model), torch.nn.Linear)
assert_type(ptac.quantization_report(model), QuantizationReport)
assert_type(ptac.memory_stats(), dict[str, int])
assert_type(ptac.enable_data_parallelism("ddp"), ptac.Handle)
assert_type(ptac.explain_parallelism(), Explanation)
assert_type(ptac.is_enabled("memory_pool"), bool)

def make_batch(n: int) -> torch.Tensor:
    return torch.ones(n, 2)

assert_type(ptac.find_batch_size(model, make_batch, keep_effective=64), BatchSize)
"""

WRONG = {
    'ptac.enable(numerics="clos")': "arg-type",
    "ptac.verfy(model)": "attr-defined",
    'ptac.enable_memory_pool(device="cpu", cap="1")': "arg-type",
    'ptac.enable_data_parallelism("fsdp")': "arg-type",
    'ptac.report("html")': "arg-type",
    "ptac.exclude(2)": "arg-type",
    "ptac.verify(2)": "arg-type",
    "ptac.find_batch_size(model, model, budget=None)": "arg-type",
}


def mypy(program: Path) -> str:
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    done = subprocess.run(
        [*command, "--cache-dir", str(program.parent / "cache"), str(program)],
        cwd=native.ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stderr
    return done.stdout


@pytest.mark.long
def test_public_names_have_types(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + "\n".join(WRONG) + "\n")
    first = PROGRAM.count("\n") + 1
    found = re.findall(r":(\d+): error: .*\[([\w-]+)\]", mypy(program))
    assert found == [(str(first + i), kind) for i, kind in enumerate(WRONG.values())]

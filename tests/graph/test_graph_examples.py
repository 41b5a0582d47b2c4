"""The scripts in ``examples/`` that show plans."""

from __future__ import annotations

import re

import native
import switching

EXAMPLES = native.ROOT / "examples"


def run(name: str, *options: str) -> str:
    done = switching.forked([str(EXAMPLES / f"{name}.py"), *options], cwd=native.ROOT)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_a_model_is_planned() -> None:
    plain = run("graph_optimization", "--stock", "--rounds", "3")
    ours = run("graph_optimization", "--rounds", "3")
    assert re.search(r"^[\d.]+ us a call$", plain, re.M)
    assert "Sequential: 3 calls by 1 plans, 1 eager" in ours
    assert len((EXAMPLES / "graph_optimization.py").read_text().splitlines()) <= 40


def test_a_pass_of_ones_own() -> None:
    text = run("custom_pass")
    assert "mul.Tensor" in text
    assert "div.Tensor" not in text
    assert "same bits: True" in text


def test_a_training_step() -> None:
    plain = run("training_step", "--stock", "--rounds", "20")
    ours = run("training_step", "--rounds", "20")
    losses = [re.search(r"loss from ([\d.]+) to ([\d.]+)", t) for t in (plain, ours)]
    assert losses[0] and losses[1]
    for one, other in zip(losses[0].groups(), losses[1].groups(), strict=True):
        assert abs(float(one) - float(other)) <= 2e-4
    assert "step: 20 calls by 2 plans, 2 eager" in ours

"""Starting children: each variant's as often as asked for, in shuffled order."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pai_torchacc
from benchmarks.memory.figures import MICRO, Live, Micro, Run, Samples
from benchmarks.memory.variants import PLACING, VARIANTS, Missing

STEPS = {
    "W1": 60,
    "W3": 200,
    "W4": 20,
    "W4g": 20,
    "W4gv": 60,
    "W5": 16,
    "W6": 100,
    "UN": 16,
    "EW": 20,
}
"""What is measured unless asked otherwise, and steps that take a few seconds."""

OTHERS_STEPS = 20
LIVE_STEPS = 4
"""By then a workload of one shape has had its most tensors at one time."""

VARIABLE = frozenset({"W4gv"})
"""Another shape each step: only all steps show the most tensors at one time."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    workloads: tuple[str, ...] = (*STEPS, MICRO)
    variants: tuple[str, ...] = PLACING
    threads: tuple[int, ...] = (1,)
    processes: int = 5
    steps: int | None = None
    """For all workloads; None for each one's own number."""
    prefix: tuple[str, ...] = ()
    """A command that starts the children, such as ``taskset -c 0``."""
    seed: int = 0

    def steps_of(self, workload: str) -> int:
        """Steps of one process, the same for every variant."""
        if workload == MICRO:
            return 20 if self.steps is None else min(self.steps, 20)
        return self.steps or STEPS.get(workload, OTHERS_STEPS)


@dataclass
class Measured(Samples):
    """Samples, and which variants this machine or version does not have."""

    missing: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """What processes wrote that ended without their line."""


class ChildFailed(Exception):
    """A child ended otherwise than with its line; the text is what it wrote."""


Progress = Callable[[str, float], None]

FOLDER = Path(__file__).parent


def measure(plan: Plan, progress: Progress | None = None) -> Measured:
    """Run all of a plan's processes, one after another.

    A round has every workload once under every variant, in shuffled order, with the
    variants of one workload next to each other: what disturbs the machine for a while
    disturbs all alike.
    """
    found = Measured()
    jobs = list(_jobs(plan))
    for done, (round_, workload, variant, n_threads) in enumerate(jobs):
        if variant in found.missing:
            continue
        if progress:
            label = f"{n_threads} thread(s): {workload}, {variant}"
            progress(label, done / len(jobs))
        try:
            if workload != MICRO:
                holder = variant if VARIANTS[variant].keeps_less else "stock"
                for cell in ((workload, v, n_threads) for v in ("stock", holder)):
                    if cell not in found.live:
                        found.live[cell] = _live(plan, *cell)
            said = start(
                variant,
                plan.prefix,
                job="micro" if workload == MICRO else "steps",
                workload=workload,
                n_threads=n_threads,
                steps=plan.steps_of(workload),
            )
        except Missing as why:
            found.missing[variant] = str(why)
            continue
        except ChildFailed as why:
            found.failed.append(str(why))
            continue
        if workload == MICRO:
            found.micro.append(Micro(variant, n_threads, round_, **said))
        else:
            found.runs.append(Run(workload, variant, n_threads, round_, **said))
    return found


def _jobs(plan: Plan) -> Iterator[tuple[int, str, str, int]]:
    draw = random.Random(plan.seed)
    for round_ in range(plan.processes):
        cells = [
            (workload, n)
            for workload in plan.workloads
            for n in plan.threads
            if workload != MICRO or n == plan.threads[0]
        ]
        draw.shuffle(cells)
        for workload, n in cells:
            for variant in draw.sample(plan.variants, len(plan.variants)):
                yield round_, workload, variant, n


def _live(plan: Plan, workload: str, variant: str, n_threads: int) -> Live:
    steps = plan.steps_of(workload)
    if workload not in VARIABLE:
        steps = min(steps, LIVE_STEPS)
    said = start(
        variant,
        plan.prefix,
        job="live",
        workload=workload,
        n_threads=n_threads,
        steps=steps,
    )
    return Live(**said)


def start(variant: str, prefix: Sequence[str] = (), **request: Any) -> dict[str, Any]:
    """Run a child and return what it says.

    Raises
    ------
    Missing
        When this machine or version does not have the variant.
    ChildFailed
        When it does not end with its line.
    """
    environment = VARIANTS[variant].environment()
    # What is running, wherever the command was given.
    here = [str(Path(file).parents[1]) for file in (pai_torchacc.__file__, FOLDER)]
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([*here, path] if path else here)
    environment["OMP_NUM_THREADS"] = str(request["n_threads"])
    command = [sys.executable, "-m", "benchmarks.memory.child"]
    done = subprocess.run(
        [*prefix, *command, json.dumps({"variant": variant, **request})],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not done.stdout:
        raise ChildFailed(f"{variant}, {request}: {done.returncode}\n{done.stderr}")
    said = json.loads(done.stdout.splitlines()[-1])
    if "missing" in said:
        raise Missing(said["missing"])
    return said

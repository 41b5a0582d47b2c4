"""What is done about data parallelism here, and why: a text for people."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pai_torchacc.data_parallelism import launch, threads


@dataclass(frozen=True)
class Explanation:
    """What becomes of ``nn.DataParallel`` in this process.

    As text, all of it in a few lines.

    Attributes
    ----------
    mode : {"auto", "off", "dp", "ddp"}
        What was asked for; ``"off"`` while the switch is off.
    decision : {"off", "stock", "divided", "whole"}
        Nothing is changed; DataParallel is torch's own; batches are divided over the
        processes wherever a model's first batch has shown that this changes nothing;
        it has shown that it would, so each process computes all of them.
    reason : str
        Why.
    threads : str
        How many threads operators have, and what limits them.
    models : tuple of str
        Of each DataParallel there was: what was measured, and where its calls went.
    advice : tuple of str
        What would help, where something would.
    """

    mode: str
    decision: str
    reason: str
    threads: str
    models: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        first = f"data parallelism ({self.mode}): {self.decision}: {self.reason}"
        rest = (f"threads: {self.threads}", *self.models, *self.advice)
        return "\n  ".join([first, *rest])


def explain(mode: str) -> Explanation:
    """The state of things under this mode; "off" where the switch is off."""
    models, advice = _models(), _advice()
    try:
        launched = launch.found()
    except ValueError as error:
        return Explanation(mode, "stock", str(error), threads.about(), models, advice)
    decision = "off" if mode == "off" else "stock"
    if launched is not None:
        if mode == "ddp":
            decision, reason = _together(launched)
        else:
            reason = f"each of {launched.size} processes trains by itself"
            advice += ("mode='ddp' would divide each batch among the processes",)
    else:
        reason, more = _alone()
        advice += more
        if mode == "ddp":
            advice += ("mode='ddp' needs several processes: start with torchrun",)
    return Explanation(mode, decision, reason, threads.about(), models, advice)


def _together(launched: launch.Launch) -> tuple[str, str]:
    ranks = sys.modules.get("pai_torchacc.data_parallelism.ranks")
    if ranks is not None and (failure := ranks.failure()):
        return "stock", failure
    who = f"rank {launched.rank} of {launched.size} computes"
    members = ranks.members() if ranks is not None else []
    if members and not any(m.is_divided for m in members):
        return "whole", f"{who} whole batches, for what is said of each model"
    return "divided", f"{who} its rows of each batch"


def _alone() -> tuple[str, tuple[str, ...]]:
    """The reason, and advice, where this is the only process."""
    import torch

    n = torch.cuda.device_count()
    if n == 0:
        return "there is no GPU, so DataParallel only calls its module", ()
    if n == 1:
        return "with one GPU, DataParallel moves its inputs there, and is kept", ()
    command = f"torchrun --nproc-per-node={n} {Path(sys.argv[0]).name}"
    advice = f"{command} and mode='ddp' would spare the copies and the shared GIL"
    return f"DataParallel divides each batch over {n} GPUs in one process", (advice,)


def _models() -> tuple[str, ...]:
    ranks = sys.modules.get("pai_torchacc.data_parallelism.ranks")
    texts = Counter(map(_about, ranks.members() if ranks is not None else ()))
    return tuple(t if n == 1 else f"{t} ({n} such)" for t, n in texts.items())


def _advice() -> tuple[str, ...]:
    noted = sys.modules.get("pai_torchacc.data_parallelism.noted")
    return noted.advice() if noted is not None else ()


def _about(member: Any) -> str:
    if member.is_by_script:
        return f"{member.name}: the script's DistributedSampler divides; averaged"
    if member.refusal:
        return f"{member.name}: whole batches in every process: {member.refusal}"
    text = [f"{member.name}: {member.n_divided} calls divided"]
    for (is_training, has_gradients, _), verdict in member.verdicts.items():
        when = "training" if is_training else "evaluation"
        when += "" if has_gradients else " without gradients"
        how = "divided" if verdict.is_divided else "whole batches in every process"
        text.append(f"{when}: {how}, {verdict.reason}")
    refused = {v.reason for v in member.verdicts.values()}
    text += [
        f"{n} calls whole: {why}"
        for why, n in member.n_whole.items()
        if why not in refused
    ]
    return "; ".join(text)

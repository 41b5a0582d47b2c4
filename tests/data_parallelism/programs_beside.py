"""Programs about all that is not a training step: evaluation, copies, mistakes."""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from programs import (
    RANK,
    SIZE,
    Rare,
    Run,
    both,
    data,
    mlp,
    program,
    relative,
    shuffled,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import pai_torchacc as ptac
from pai_torchacc.data_parallelism import ranks


def batch(n: int = 24) -> Any:
    return data().tensors[0][:n], data().tensors[1][:n]


@program
def evaluation() -> dict[str, Any]:
    """Without gradients, with the statistics that BatchNorm has by then."""
    x, _ = batch(23)
    model = mlp(nn.BatchNorm1d(32)).eval()
    with torch.no_grad():
        plain = model(x)
    with ptac.enable_data_parallelism("ddp"):
        wrapped = nn.DataParallel(model)
        with torch.no_grad():
            found = wrapped(x)
        with torch.inference_mode():
            inferred = wrapped(x)
        [member] = ranks.members()
        recorded = wrapped(x)
        return {
            "outputs": relative([plain], [found]),
            "inferred": torch.equal(found, inferred),
            "needs_gradient": [found.requires_grad, recorded.requires_grad],
            "divided": member.n_divided,
        }


class Two(nn.Module):
    """Takes and gives what DataParallel scatters and gathers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(
        self, pair: Any, *, scale: float, offset: Tensor, mask: Any = None
    ) -> Any:
        scores = self.inner(pair["x"]) * scale + offset
        classes = scores.argmax(1)
        return {"scores": scores, "more": [classes, (scores.detach(), mask)]}


@program
def nested_arguments() -> dict[str, Any]:
    x, y = batch()
    model = Two()
    args = {"x": x, "y": y}, {"scale": 2.0, "offset": torch.tensor(0.5)}
    plain = model(args[0], **args[1])
    with ptac.enable_data_parallelism("ddp"):
        wrapped = nn.DataParallel(model)
        found = wrapped(args[0], **args[1])
        [member] = ranks.members()
    return {
        "outputs": relative([plain["scores"]], [found["scores"]]),
        "classes": torch.equal(plain["more"][0], found["more"][0]),
        "constant": [t.requires_grad for t in (found["scores"], found["more"][1][0])],
        "none": found["more"][1][1] is None,
        "divided": member.n_divided,
    }


@program
def dropout() -> dict[str, Any]:
    """Each rank drops others of its rows; afterwards all draw the same again."""
    with ptac.enable_data_parallelism("ddp"):
        wrapped = nn.DataParallel(nn.Dropout(0.5))
        torch.manual_seed(0)
        ones = torch.ones(8 * SIZE, 50, requires_grad=True)
        dropped = [wrapped(ones) for _ in range(5)]
        [member] = ranks.members()
        return {
            "shares_differ": len({str(part.tolist()) for part in dropped[0].split(8)}),
            "steps_differ": len({str(step.tolist()) for step in dropped}),
            "kept": float((dropped[0] > 0).float().mean()),
            "divided": member.n_divided,
            "next": torch.rand(3).tolist(),
        }


@program
def script_with_a_sampler_of_ranks() -> dict[str, Any]:
    """Against DistributedDataParallel on the same shares."""

    def batches() -> Any:
        sampler = DistributedSampler(data(), shuffle=True, seed=3)
        return DataLoader(data(), batch_size=8, sampler=sampler)

    with ptac.enable_data_parallelism("ddp"):
        wrapped = nn.DataParallel(mlp(nn.BatchNorm1d(32)))
        ours = train(wrapped, batches())
        text = str(ptac.explain_parallelism())
        train(wrapped, batches())
        loader = batches()
        orders = [list(loader.sampler) for _ in range(2)]
        advice = ptac.explain_parallelism().advice
    stock = train(DistributedDataParallel(mlp(nn.BatchNorm1d(32))), batches())
    return {
        "losses": max(map(abs, map(float.__sub__, ours.losses, stock.losses))),
        "losses_shown": ours.losses,
        "gradients": relative(stock.gradients, ours.gradients),
        "parameters": relative(stock.parameters, ours.parameters),
        "orders_are_the_scripts": orders[0] == orders[1],
        "advice": list(advice),
        "text": text,
    }


@program
def rare_parameters_with_a_sampler_of_ranks() -> dict[str, Any]:
    """Some ranks' batches use no parameter; and results are the script's to change."""

    def loss(scores: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(scores.mul_(2), classes)

    def share(rank: int) -> Any:
        sampler = DistributedSampler(data(), SIZE, rank, shuffle=False)
        return DataLoader(data(), batch_size=4, sampler=sampler)

    with ptac.enable_data_parallelism("ddp"):
        ours = train(nn.DataParallel(Rare()), share(RANK), loss)
        text = str(ptac.explain_parallelism())
    shares = zip(*map(share, range(SIZE)), strict=True)
    alone = train(Rare(), (map(torch.cat, zip(*s, strict=True)) for s in shares), loss)
    return {"parameters": relative(alone.parameters, ours.parameters), "text": text}


@program
def sampler_after_a_warm_up() -> dict[str, Any]:
    """A first call on the same batch everywhere says nothing of those to come."""
    sampler = DistributedSampler(data(), shuffle=False)
    batches = list(DataLoader(data(), batch_size=8, sampler=sampler))
    with ptac.enable_data_parallelism("ddp"):
        wrapped = nn.DataParallel(mlp())
        with torch.no_grad():
            wrapped.eval()(batch()[0])
        wrapped.train()(torch.zeros(8, 20))
        # As a loader would: not drawn from, it could not be told from a mistake.
        list(sampler)
        ours = train(wrapped, batches)
        text = str(ptac.explain_parallelism())
    stock = train(DistributedDataParallel(mlp()), batches)
    return {"gradients": relative(stock.gradients, ours.gradients), "text": text}


@program
def mistakes_at_first() -> dict[str, Any]:
    """A first call that fails is the user's mistake, and says nothing of the model."""
    x, _ = batch()
    errors = []
    with (
        ptac.enable_data_parallelism("ddp"),
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        wrapped = nn.DataParallel(mlp())
        try:
            wrapped(x[:, :3])
        except RuntimeError as error:
            errors.append(str(error))
        wrapped(x)
        [member] = ranks.members()
    return {"errors": errors, "divided": member.n_divided, "warned": len(seen)}


@program
def results_changed_in_place() -> dict[str, Any]:
    """Scripts do that to what a model gives, of each of a tensor's dimensions."""

    def once() -> Run:
        model = nn.DataParallel(mlp())

        def loss(scores: Tensor, classes: Tensor) -> Tensor:
            scores.div_(2)
            scores[0] = 0
            return F.cross_entropy(scores.relu_(), classes)

        torch.manual_seed(3)
        return train(model, shuffled(), loss)

    return both(once)


@program
def wrapper_in_a_wrapper() -> dict[str, Any]:
    """The outer one divides."""

    def once() -> Run:
        torch.manual_seed(3)
        inner = nn.DataParallel(mlp())
        return train(nn.DataParallel(nn.Sequential(inner, nn.ReLU())), shuffled())

    return both(once)


@program
def other_modes() -> dict[str, Any]:
    """One rank evaluates: an error on all of them."""
    x, _ = batch()
    errors = []
    with ptac.enable_data_parallelism("ddp"):
        wrapped = nn.DataParallel(mlp())
        wrapped(x)
        for is_training, has_gradients in ((RANK == 0, True), (True, RANK == 0)):
            wrapped.train(is_training)
            try:
                with torch.set_grad_enabled(has_gradients):
                    wrapped(x)
            except RuntimeError as error:
                errors.append(str(error))
    return {"errors": errors}


@program
def saved_and_copied() -> dict[str, Any]:
    x, y = batch()
    with ptac.enable_data_parallelism("ddp"):
        wrapped = nn.DataParallel(mlp())
        F.cross_entropy(wrapped(x), y).backward()
        copied = copy.deepcopy(wrapped)
        loaded = pickle.loads(pickle.dumps(wrapped))
        file = io.BytesIO()
        torch.save(wrapped.state_dict(), file)
        file.seek(0)
        other = nn.DataParallel(mlp())
        other.load_state_dict(torch.load(file))
        results = [m(x) for m in (wrapped, copied, loaded, other)]
    plain = nn.DataParallel(mlp())
    plain.load_state_dict(wrapped.state_dict())
    return {
        "keys": list(wrapped.state_dict()),
        "stock_keys": list(plain.state_dict()),
        "classes": [type(m) is nn.DataParallel for m in (wrapped, copied, loaded)],
        "module": type(wrapped.module).__name__,
        "device_ids": wrapped.device_ids,
        "attributes": sorted(vars(wrapped)) == sorted(vars(plain)),
        "outputs": max(relative([plain(x)], [r]) for r in results),
    }


@program
def other_numbers_at_first() -> dict[str, Any]:
    """Ranks whose weights and random numbers differ become like the first."""
    torch.manual_seed(10 + RANK)
    random.seed(20 + RANK)
    numpy.random.seed(30 + RANK)
    model = nn.Linear(20, 5)
    with ptac.enable_data_parallelism("ddp"):
        nn.DataParallel(model)
    drawn = [torch.rand(1).item(), random.random(), numpy.random.rand()]
    torch.manual_seed(10)
    random.seed(20)
    numpy.random.seed(30)
    first = nn.Linear(20, 5)
    wanted = [torch.rand(1).item(), random.random(), numpy.random.rand()]
    return {
        "weights": torch.equal(model.weight, first.weight),
        "draws": drawn == wanted,
    }


@program
def other_batches() -> dict[str, Any]:
    """Unlike from the first: each trains by itself. Later on: an error on all ranks."""
    x, y = batch()
    model = mlp()
    F.cross_entropy(model(x + RANK), y).backward()
    alone = [p.grad.clone() for p in model.parameters()]
    with (
        ptac.enable_data_parallelism("ddp"),
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        wrapped = nn.DataParallel(mlp())
        F.cross_entropy(wrapped(x + RANK), y).backward()
        [member] = ranks.members()
        found = [p.grad for p in wrapped.parameters()]
        refusal = member.refusal
        warned = [str(w.message) for w in seen if "pai_torchacc" in str(w.message)]
        later = nn.DataParallel(mlp())
        later(x)
        try:
            later(x + RANK)
            error = ""
        except RuntimeError as caught:
            error = str(caught)
        swapped = x.flip(0) if RANK else x
        try:
            later(swapped)
            error_of_order = ""
        except RuntimeError as caught:
            error_of_order = str(caught)
    return {
        "gradients": relative(alone, found),
        "refusal": refusal,
        "warned": warned,
        "error": error,
        "error_of_order": error_of_order,
    }


class Failing(nn.Module):
    """Fails where there is no row above a limit, or where there is one."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.inner, self.limit = mlp(), limit

    def forward(self, x: Tensor) -> Tensor:
        if not (x > self.limit).any():
            raise ValueError("no large number")
        return self.inner(x)


@program
def failing_shares() -> dict[str, Any]:
    x, y = batch()
    x[0, 0] = 10.0
    errors = []

    def once() -> Run:
        model = nn.DataParallel(Failing(5.0))
        return train(model, [(x, y)] * 3)

    result = both(once)
    with ptac.enable_data_parallelism("ddp"):
        model = nn.DataParallel(Failing(50.0))
        for _ in range(2):
            try:
                model(x)
            except ValueError as error:
                errors.append(str(error))
    return {**result, "errors": errors}


@program
def later_failing_shares() -> dict[str, Any]:
    """A model that was divided computes one batch whole where a share fails."""
    x, y = batch()
    x[::2] += 10.0
    one = torch.where(torch.arange(len(x)) == 0, 20.0, 0.0)[:, None] + x * 0

    def once() -> Run:
        model = nn.DataParallel(Failing(5.0))
        return train(model, [(x, y), (one, y), (x, y)])

    return both(once)


@program
def thawed() -> dict[str, Any]:
    """BatchNorm with kept statistics may be divided, and no more once it trains."""

    def once() -> Run:
        model = nn.DataParallel(mlp(nn.BatchNorm1d(32)))
        model.module[1].eval()

        def batches() -> Any:
            for step, pair in enumerate(shuffled()):
                if step == 3:
                    model.train()
                yield pair

        torch.manual_seed(3)
        return train(model, batches())

    return both(once)


@program
def on_and_off() -> dict[str, Any]:
    """Twice on equals once; off restores by identity; what is in flight is finished."""
    stock = [vars(nn.DataParallel)[n] for n in ("__init__", "forward")]
    x, y = batch()
    plain = mlp()
    F.cross_entropy(plain(x), y).backward()
    ptac.enable_data_parallelism("ddp")
    first = [vars(nn.DataParallel)[n] for n in ("__init__", "forward")]
    ptac.enable_data_parallelism("ddp")
    second = [vars(nn.DataParallel)[n] for n in ("__init__", "forward")]
    wrapped = nn.DataParallel(mlp())
    loss = F.cross_entropy(wrapped(x), y)
    ptac.disable_data_parallelism()
    ptac.disable_data_parallelism()
    third = [vars(nn.DataParallel)[n] for n in ("__init__", "forward")]
    loss.backward()
    grads = [[p.grad for p in m.parameters()] for m in (plain, wrapped)]
    wrapped.zero_grad()
    again = both(lambda: train(nn.DataParallel(mlp()), [(x, y)]))
    return {
        "twice": all(map(lambda a, b: a is b, first, second)),
        "changed": not any(map(lambda a, b: a is b, stock, first)),
        "restored": all(map(lambda a, b: a is b, stock, third)),
        "gradients": relative(*grads),
        "again": again,
        "group": dist.is_initialized(),
        "report": ptac.report(),
    }


@program
def group_made_anew() -> dict[str, Any]:
    """A script may destroy the process group, and make another, at any time."""
    x, _ = batch()
    with ptac.enable_data_parallelism("ddp"):
        wrapped = nn.DataParallel(mlp())
        before = wrapped(x)
        dist.destroy_process_group()
        # A store of its own: torch's groups mistake what is left in that of another.
        file = Path(sys.argv[1]).absolute() / "group"
        where = {"init_method": f"file://{file}", "rank": RANK, "world_size": SIZE}
        dist.init_process_group("gloo", **where)
        after = [wrapped(x), nn.DataParallel(mlp())(x)]
        divided = [m.n_divided for m in ranks.members()]
    return {"same": [torch.equal(before, a) for a in after], "divided": divided}


@program
def told_by_auto() -> dict[str, Any]:
    with ptac.enable_data_parallelism():
        before = vars(nn.DataParallel)["forward"]
        found = ptac.explain_parallelism()
    return {
        "text": str(found),
        "decision": found.decision,
        "is_stock": before is vars(nn.DataParallel)["forward"],
    }


assert os.environ["OMP_NUM_THREADS"] == "1"

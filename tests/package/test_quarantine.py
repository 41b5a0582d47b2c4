"""A kernel that fails: stock does the call, the row is quarantined, all goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import internals
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad

import pai_torchacc as ptac
from pai_torchacc import _C

WORDS = "failure injected by a test"


def gradient_of(function: Callable[[Tensor], Tensor], *shape: int) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(*shape, requires_grad=True)
    y = function(x)
    y.backward(torch.ones_like(y))
    return [y.detach(), x.grad]


def optimizer_step(cls: type) -> list[Tensor]:
    p = nn.Parameter(torch.linspace(-1, 1, 50))
    p.grad = torch.linspace(1, 2, 50)
    opt = cls([p], lr=0.1)
    opt.step()
    return [p.detach(), *(v for v in opt.state[p].values() if v is not None)]


def many(operate: Callable[[list[Tensor]], Any]) -> list[Tensor]:
    """What an operation in place makes of a list of tensors."""
    tensors = [torch.linspace(-1, 1, n) for n in (50, 7, 33)]
    operate(tensors)
    return tensors


def unscale(tensors: list[Tensor]) -> None:
    torch._amp_foreach_non_finite_check_and_unscale_(
        tensors, torch.zeros(()), torch.tensor(0.3)
    )


def layers() -> list[Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 30), nn.GELU())
    y, grad = gradient_of(net, 80, 40)
    return [y, grad, *(p.grad for p in net.parameters())]


def recurrent(cls: type[nn.RNNBase]) -> list[Tensor]:
    torch.manual_seed(0)
    net = cls(5, 7)
    return [
        *gradient_of(lambda x: net(x)[0], 4, 3, 5),
        *(p.grad for p in net.parameters()),
    ]


def planned() -> list[Tensor]:
    """Squeeze-and-excitation: recorded, by its plan, and once more."""
    torch.manual_seed(0)
    down, up = nn.Conv2d(5, 3, 1), nn.Conv2d(3, 5, 1)

    @ptac.optimize
    def run(x: Tensor) -> Tensor:
        return x * up(down(x.mean((2, 3), keepdim=True)).relu()).sigmoid()

    try:
        with torch.no_grad():
            return [run(torch.ones(1, 5, 4, 4)) for _ in range(4)]
    finally:
        ptac.disable("graph_optimization")


def norm_and_activation() -> list[Tensor]:
    net = nn.Sequential(nn.BatchNorm2d(5), nn.SiLU())
    return [*gradient_of(net, 2, 5, 4, 4), *net.buffers()]


TARGET = torch.arange(8) % 5


def encoded(module: Callable[..., nn.Module], **options: Any) -> list[Tensor]:
    torch.manual_seed(0)
    net, x = module(16, 2, batch_first=True).eval(), torch.randn(2, 9, 16)
    with torch.no_grad():
        y = net(*([x] * (3 if options else 1)), **options)
    return [y[0] if options else y]


PLAIN = torch.arange(40.0).view(8, 5)
PIXELS = torch.arange(2 * 4 * 6 * 20.0).view(2, 4, 6, 20)
SLOPE = torch.tensor([0.25])
ROWS = torch.arange(9) % 4
EACH = ROWS[:, None].expand(9, 5)
BAGS = ROWS.view(3, 3)
FILTERS = torch.linspace(-0.02, 0.03, 20 * 16 * 9).view(20, 16, 3, 3)
FEATURES = torch.linspace(-1, 1, 5 * 12).view(5, 12)
TERMS = torch.linspace(0, 1, 12)


def seeded(draw: Callable[[], Any]) -> Any:
    """The same numbers at each call."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return draw()


def attend(*tensors: Tensor, **options: float) -> Tensor:
    """By the function's name at the time of the call."""
    return F.scaled_dot_product_attention(*tensors, **options)


CALLS: dict[str, Callable[[], list[Tensor]]] = {
    "conv2d": lambda: gradient_of(
        lambda x: F.conv2d(x, FILTERS, padding=1),
        2,
        16,
        12,
        12,
    ),
    "depthwise_conv2d": lambda: gradient_of(
        lambda x: F.conv2d(x, FILTERS[:16, :1].clone(), padding=1, groups=16),
        2,
        16,
        12,
        12,
    ),
    "max_pool2d": lambda: gradient_of(lambda x: F.max_pool2d(x, 2), 2, 3, 8, 8),
    "avg_pool2d": lambda: gradient_of(lambda x: F.avg_pool2d(x, 2), 2, 3, 8, 8),
    "adaptive_avg_pool2d": lambda: gradient_of(
        lambda x: F.adaptive_avg_pool2d(x, 3), 2, 3, 8, 8
    ),
    "max_pool3d": lambda: gradient_of(lambda x: F.max_pool3d(x, 2), 2, 3, 4, 4, 8),
    "avg_pool3d": lambda: gradient_of(lambda x: F.avg_pool3d(x, 2), 2, 3, 4, 4, 8),
    "adaptive_avg_pool3d": lambda: gradient_of(
        lambda x: F.adaptive_avg_pool3d(x, 3), 2, 3, 4, 4, 8
    ),
    "mean": lambda: [PLAIN.mean(1)],
    "squeeze_excite": planned,
    "prelu": lambda: gradient_of(lambda x: F.prelu(x, SLOPE), 8, 5),
    "mish": lambda: gradient_of(F.mish, 8, 5),
    "gelu": lambda: gradient_of(F.gelu, 8, 5),
    "tanh": lambda: gradient_of(torch.tanh, 8, 5),
    "sigmoid": lambda: gradient_of(torch.sigmoid, 8, 5),
    "elu": lambda: gradient_of(F.elu, 8, 5),
    "silu": lambda: gradient_of(F.silu, 8, 5),
    "hardswish": lambda: gradient_of(F.hardswish, 8, 5),
    "hardsigmoid": lambda: gradient_of(F.hardsigmoid, 8, 5),
    "mse_loss": lambda: gradient_of(lambda x: F.mse_loss(x, x.detach() + 1), 8, 5),
    "smooth_l1_loss": lambda: gradient_of(
        lambda x: F.smooth_l1_loss(x, x.detach() + 1), 8, 5
    ),
    "binary_cross_entropy": lambda: gradient_of(
        lambda x: F.binary_cross_entropy(x.abs() / (1 + x.abs()), x.detach() * 0), 8, 5
    ),
    "binary_cross_entropy_with_logits": lambda: gradient_of(
        lambda x: F.binary_cross_entropy_with_logits(x, x.detach() * 0), 8, 5
    ),
    "softmax": lambda: gradient_of(lambda x: x.softmax(1), 8, 5),
    "layer_norm": lambda: gradient_of(lambda x: F.layer_norm(x, (5,)), 8, 5),
    "upsample_nearest2d": lambda: gradient_of(
        lambda x: F.interpolate(x, scale_factor=2), 2, 3, 8, 8
    ),
    "upsample_bilinear2d": lambda: gradient_of(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 2, 3, 8, 8
    ),
    "pixel_shuffle": lambda: [F.pixel_shuffle(PIXELS, 2)],
    "pixel_unshuffle": lambda: [F.pixel_unshuffle(PIXELS, 2)],
    "constant_pad_nd": lambda: [F.pad(PIXELS, (1, 1, 2, 0))],
    "reflection_pad": lambda: gradient_of(
        lambda x: F.pad(x, (1, 1, 2, 0), "reflect"), 2, 3, 8, 8
    ),
    "replication_pad": lambda: gradient_of(
        lambda x: F.pad(x, (1, 1, 2, 0), "replicate"), 2, 3, 8, 8
    ),
    "index_select": lambda: [PLAIN.index_select(0, ROWS)],
    "index": lambda: [PLAIN[ROWS]],
    "gather": lambda: [PLAIN.gather(0, EACH)],
    "index_add": lambda: [PLAIN.index_add(0, ROWS, PLAIN[:1].expand(9, 5))],
    "scatter_add": lambda: [PLAIN.scatter_add(0, EACH, torch.ones(9, 5))],
    "scatter_reduce": lambda: [PLAIN.scatter_reduce(0, EACH, torch.ones(9, 5), "amax")],
    "scatter": lambda: [PLAIN.scatter(0, EACH, 1.0)],
    "index_put": lambda: gradient_of(lambda x: x[ROWS], 8, 5),
    "embedding": lambda: gradient_of(lambda x: F.embedding(ROWS, x), 8, 5),
    "embedding_bag": lambda: gradient_of(
        lambda x: F.embedding_bag(BAGS, x, mode="sum"), 8, 5
    ),
    "embedding_bag_max": lambda: gradient_of(
        lambda x: F.embedding_bag(BAGS, x, mode="max"), 8, 5
    ),
    "cat": lambda: [torch.stack([PLAIN, PLAIN], -1)],
    "copy": lambda: [PIXELS.transpose(1, 3).contiguous()],
    "batch_norm": lambda: gradient_of(
        lambda x: F.batch_norm(x, None, None, training=True), 8, 5
    ),
    "batch_norm_act": norm_and_activation,
    "rms_norm": lambda: gradient_of(lambda x: F.rms_norm(x, (5,)), 8, 5),
    "log_softmax": lambda: gradient_of(lambda x: x.log_softmax(1), 8, 5),
    "cross_entropy": lambda: gradient_of(lambda x: F.cross_entropy(x, TARGET), 8, 5),
    "mm": lambda: gradient_of(lambda x: x @ FEATURES, 8, 5),
    "small_pointwise": lambda: [torch.relu(PLAIN)],
    "addmm": lambda: gradient_of(lambda x: F.linear(x, FEATURES.t(), TERMS), 8, 5),
    "bmm": lambda: gradient_of(lambda x: x @ FEATURES.expand(2, 5, -1), 2, 8, 5),
    "baddbmm": lambda: [torch.baddbmm(*[PLAIN[:5, :5].expand(2, 5, 5)] * 3)],
    "bernoulli": lambda: [seeded(lambda: torch.empty(90).bernoulli_(0.4))],
    "dropout": lambda: seeded(lambda: gradient_of(lambda x: F.dropout(x, 0.3), 8, 5)),
    "dropout_add": lambda: seeded(
        lambda: gradient_of(lambda x: ptac.ops.dropout_add(x, PLAIN, 0.3), 8, 5)
    ),
    "gated_act": lambda: gradient_of(lambda x: ptac.ops.swiglu(x, PLAIN), 8, 5),
    "add_act": lambda: gradient_of(lambda x: ptac.ops.add_act(x, PLAIN), 8, 5),
    "bias_act": lambda: gradient_of(lambda x: ptac.ops.bias_gelu(x, PLAIN[0]), 8, 5),
    "add_norm": lambda: gradient_of(lambda x: ptac.ops.add_norm(x, PLAIN, 5)[0], 8, 5),
    "lstm": lambda: recurrent(nn.LSTM),
    "gru": lambda: recurrent(nn.GRU),
    "rnn_tanh": lambda: recurrent(nn.RNN),
    "rnn_relu": lambda: recurrent(partial(nn.RNN, nonlinearity="relu")),
    "attention": lambda: gradient_of(lambda x: attend(x, x, x), 1, 2, 8, 5),
    "attention_dropout": lambda: seeded(
        lambda: gradient_of(lambda x: attend(x, x, x, dropout_p=0.3), 1, 2, 8, 5)
    ),
    "multi_head_attention": lambda: encoded(nn.MultiheadAttention, need_weights=False),
    "encoder_layer": lambda: encoded(nn.TransformerEncoderLayer),
    "linear_act": layers,
    "sgd_step": lambda: optimizer_step(torch.optim.SGD),
    "adam_step": lambda: optimizer_step(torch.optim.Adam),
    "adamw_step": lambda: optimizer_step(torch.optim.AdamW),
    "adadelta_step": lambda: optimizer_step(torch.optim.Adadelta),
    "rmsprop_step": lambda: optimizer_step(torch.optim.RMSprop),
    "adagrad_step": lambda: optimizer_step(torch.optim.Adagrad),
    "nadam_step": lambda: optimizer_step(torch.optim.NAdam),
    "clip_grad_norm": lambda: [clip_grad._get_total_norm([PLAIN, TERMS])],
    "foreach_clamp": lambda: many(lambda x: torch._foreach_clamp_min_(x, 0.1)),
    "foreach_lerp": lambda: many(lambda x: torch._foreach_lerp_(x, x, 0.1)),
    "unscale_grads": lambda: many(unscale),
}


OF_PLANS = ("squeeze_excite",)
"""Operators that are asked for when a plan is made, which is not counted."""


def call_of(op: str) -> Callable[[], list[Tensor]]:
    return CALLS[op.removesuffix("_backward")]


def entry(op: str) -> dict[str, Any]:
    return json.loads(ptac.report("json"))["ops"][op]


def rows(op: str) -> dict[str, bool]:
    """Whether each row is quarantined."""
    return {
        row: bad for n, _, all_rows in _C.operators() if n == op
        for row, _, _, bad in all_rows
    }  # fmt: skip


@pytest.mark.parametrize("op", switching.operators_with_rows())
def test_an_injected_failure(op: str) -> None:
    program = call_of(op)
    stock = program()
    try:
        with switching.accelerated():
            hits, row = switching.hits(op), switching.best_row(op)
            failed = entry(op)["failed"]
            internals.inject_failure(op)
            torch.testing.assert_close(program(), stock)
            assert (hits.accelerated, hits.failed) == (0, 1), hits
            assert rows(op)[row]
            assert entry(op)["failed"] == failed + 1
            assert entry(op)["trouble"] == f"{row}: {WORDS}"
            assert f" {failed + 1} failed ({row}: {WORDS})" in ptac.report()
            # The row stays away; the next calls are whole and right.
            torch.testing.assert_close(program(), stock)
            assert hits.failed == 1
            assert hits.accelerated == 0
            assert sum(hits.forwarded.values()) >= 1 or op in OF_PLANS
        assert rows(op)[row]
        internals.reset_quarantine()
        with switching.accelerated():
            hits = switching.hits(op)
            torch.testing.assert_close(program(), stock)
            assert hits.accelerated >= 1
    finally:
        internals.reset_quarantine()


def test_training_goes_on() -> None:
    """One failure of every operator in the middle of a training."""

    def train(sabotage: bool) -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(48, 40),
            nn.ReLU(),
            nn.Linear(40, 5),
        )
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.randn(8, 3, 8, 8), TARGET
        losses = []
        for step in range(6):
            if sabotage and step == 3:
                for op in switching.operators_with_rows():
                    internals.inject_failure(op)
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return losses

    stock = train(sabotage=False)
    used = ("max_pool2d", "linear_act", "cross_entropy", "sgd_step")
    try:
        with switching.accelerated():
            hits = {op: switching.hits(op) for op in used}
            ours = train(sabotage=True)
            for op in used:
                assert hits[op].failed == 1, hits
                assert hits[op].accelerated >= 3, hits
        assert ours == pytest.approx(stock, rel=1e-5)
    finally:
        # Injections that no call has used up, of operators that were not called.
        with switching.accelerated():
            for op in switching.operators_with_rows():
                call_of(op)()
                internals.reset_quarantine()  # some follow the row that ran forward


def test_shadow_checks_find_nothing_in_sound_rows() -> None:
    op = "max_pool2d"
    with switching.accelerated(op, verify=1):
        CALLS[op]()  # a process's first one is cold, and its time does not count
        before = _C.counters(op)
        CALLS[op]()
        after = _C.counters(op)
        assert after[4] == before[4] + 1
        assert not any(rows(op).values())

"""``tune_ddp``: what wrappers are given, the same bits as stock's, the way back."""

from __future__ import annotations

from pathlib import Path

import gloo_ranks as ranks
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import pai_torchacc as ptac
from pai_torchacc import _options

TRAINING = """
dist.init_process_group(BACKEND)
rank, n = dist.get_rank(), dist.get_world_size()

def make(width=1200):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.Linear(width, 4),
    )

def train(wrapper, steps=3, set_to_none=True):
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        x, y = torch.randn(8, 32), torch.randint(0, 4, (8,))
        nn.functional.cross_entropy(wrapper(x), y).backward()
        optimizer.step()
    return [p.detach().clone() for p in wrapper.parameters()]

def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

def error_of(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def close(a, b, tolerance):
    pairs = zip(a, b, strict=True)
    return all((x - y).norm() <= tolerance * y.norm() for x, y in pairs)
"""
END = """
dist.destroy_process_group()
if rank == 0:
    print("well")
"""


def well(source: str, folder: Path, n: int = 2, backend: str | None = "gloo") -> str:
    source = f"BACKEND = {backend!r}\n" + TRAINING + source + END
    output = ranks.run(source, n, folder)
    assert "well\n" in output, output
    return output


def test_the_same_bits_as_stock(tmp_path: Path) -> None:
    """Two addends have one sum; buckets of 4 MiB, where stock has 25.

    For a link whose numbers are given: a busy machine may measure any.
    """
    well(
        """
from pai_torchacc.distributed import cost, probe
probe._known[dist.group.WORLD] = probe.Probe(cost.Line(1e-4, 8e-9), 1.0)
stock = train(DDP(make()))
ptac.tune_ddp()
wrapper = DDP(make())
assert same(train(wrapper), stock)
assert same(train(DDP(make()), set_to_none=False), stock)
[entry] = __import__("json").loads(ptac.report("json"))["ddp"]
assert entry["chosen"]["gradient_as_bucket_view"] is True, entry
assert entry["chosen"]["bucket_cap_mb"] == 4, entry
assert wrapper.bucket_bytes_cap == 4 << 20
assert wrapper.parameters().__next__().grad._is_view()
assert "us + " in entry["link"], entry
assert "DDP of Sequential, 2 ranks: gradient_as_bucket_view=True" in ptac.report()
ptac.disable("tune_ddp")
plain = DDP(make())
assert same(train(plain), stock)
assert not plain.parameters().__next__().grad._is_view()
assert "ddp" not in __import__("json").loads(ptac.report("json"))
""",
        tmp_path,
    )


@pytest.mark.long
def test_four_ranks_agree(tmp_path: Path) -> None:
    """The order of four addends depends on buckets: rounding, and all ranks alike."""
    well(
        """
stock = train(DDP(make()))
with ptac.tune_ddp():
    ours = train(DDP(make()))
assert close(ours, stock, 1e-5)
for p in ours:
    there = [torch.empty_like(p) for _ in range(n)]
    dist.all_gather(there, p)
    assert all(torch.equal(p, other) for other in there)
""",
        tmp_path,
        n=4,
    )


@pytest.mark.long
def test_bf16_is_sent_and_taken_back(tmp_path: Path) -> None:
    """Rounding to 8 bits shows, and is gone once the switch is off."""
    well(
        """
stock = train(DDP(make()))
handle = ptac.tune_ddp(comm="bf16")
wrapper = DDP(make())
before = [p.detach().clone() for p in wrapper.parameters()]
ours = train(wrapper)
assert not same(ours, stock)
moved = lambda after: [a - b for a, b in zip(after, before, strict=True)]
assert close(moved(ours), moved(stock), 2**-5)
assert wrapper._comm_hooks, "no hook"
handle.disable()
with torch.no_grad():
    for p, q in zip(wrapper.parameters(), before, strict=True):
        p.copy_(q)
assert same(train(wrapper), stock)
""",
        tmp_path,
    )


@pytest.mark.long
def test_a_hook_of_the_program_is_kept(tmp_path: Path) -> None:
    well(
        """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
calls = []
def own(state, bucket):
    calls.append(None)
    return default_hooks.allreduce_hook(state, bucket)
ptac.tune_ddp(comm="bf16")
wrapper = DDP(make())
wrapper.register_comm_hook(None, own)
train(wrapper)
assert calls and len(wrapper._comm_hooks) == 1
assert "the program has a hook of its own" in ptac.report()
""",
        tmp_path,
    )


@pytest.mark.long
def test_auto_decides_alike_and_says_so(tmp_path: Path) -> None:
    output = well(
        """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
ptac.tune_ddp(comm="auto")
wrapper = DDP(make())
train(wrapper)
assert " us + " in ptac.report() and " MB/s, bf16 " in ptac.report()
chosen = torch.tensor([len(wrapper._comm_hooks)])
everywhere = [torch.empty_like(chosen) for _ in range(n)]
dist.all_gather(everywhere, chosen)
assert len({int(c) for c in everywhere}) == 1
""",
        tmp_path,
    )
    assert "DDP of Sequential sends gradients in " in output


@pytest.mark.long
def test_arguments_of_the_program_are_kept(tmp_path: Path) -> None:
    well(
        """
ptac.tune_ddp()
given = DDP(make(), bucket_cap_mb=9, gradient_as_bucket_view=False)
assert not given.gradient_as_bucket_view and given.bucket_bytes_cap == 9 << 20
positional = DDP(make(), None, None, 0, True, True, None, 7)
assert positional.bucket_bytes_cap == 7 << 20 and positional.gradient_as_bucket_view
class Mine(DDP):
    def __init__(self, module):
        super().__init__(module)
assert Mine(make()).gradient_as_bucket_view
assert "no_such_option" in error_of(lambda: DDP(make(), no_such_option=1))
""",
        tmp_path,
    )


@pytest.mark.long
def test_detach_in_place_still_works(tmp_path: Path) -> None:
    """Old training loops detach gradients before they zero them."""
    well(
        """
def old_loop(wrapper):
    torch.manual_seed(rank)
    for _ in range(3):
        for p in wrapper.parameters():
            if p.grad is not None:
                assert p.grad.detach_() is p.grad
                p.grad.zero_()
        wrapper(torch.randn(8, 32)).square().sum().backward()
    return [p.grad.clone() for p in wrapper.parameters()]
stock_method = torch.Tensor.detach_
stock = old_loop(DDP(make(64)))
ptac.tune_ddp()
wrapper = DDP(make(64))
assert same(old_loop(wrapper), stock)
view = torch.ones(4)[1:]
assert "detach views in-place" in error_of(view.detach_)  # which is no gradient
ptac.disable()
assert torch.Tensor.detach_ is stock_method
""",
        tmp_path,
    )


@pytest.mark.long
def test_static_graph_is_reported_never_set(tmp_path: Path) -> None:
    well(
        """
ptac.tune_ddp()
wrapper = DDP(make(64), find_unused_parameters=True)
train(wrapper, steps=3)
assert "static_graph" not in ptac.report()
train(wrapper, steps=12)
assert not wrapper.static_graph
assert "static_graph=True may do" in ptac.report()
# If DDP took it now, there would be more to do than to say so.
assert "before training loop starts" in error_of(wrapper._set_static_graph)
""",
        tmp_path,
    )


@pytest.mark.long
def test_without_init_sync_nothing_is_measured(tmp_path: Path) -> None:
    """The constructor calls no collective then: ranks may make it at any time."""
    well(
        """
ptac.tune_ddp(comm="auto")
if rank == 1:
    wrapper = DDP(make(), init_sync=False)
dist.barrier()
if rank == 0:
    wrapper = DDP(make(), init_sync=False)
train(wrapper)
assert "init_sync=False: nothing is measured" in ptac.report()
""",
        tmp_path,
    )


@pytest.mark.long
def test_copies_and_pickles_of_wrappers(tmp_path: Path) -> None:
    well(
        """
import copy, pickle
ptac.tune_ddp(comm="bf16")
wrapper = DDP(make(64))
twins = [copy.deepcopy(wrapper), pickle.loads(pickle.dumps(wrapper))]
trained = train(wrapper)
for twin in twins:
    assert close(train(twin), trained, 2**-5)
    assert list(wrapper.state_dict()) == list(twin.state_dict())
""",
        tmp_path,
    )


@pytest.mark.long
def test_groups_of_all_kinds(tmp_path: Path) -> None:
    """What a group is called is no matter, and one that this rank is not in is stock's.

    ``init_process_group()`` without a backend makes one that is called "undefined".
    """
    well(
        """
assert dist.get_backend() == "undefined"
of_rank_0 = dist.new_group([0])
wrap = lambda: DDP(nn.Linear(2, 2), process_group=of_rank_0)
stock = error_of(wrap).split(":")[0] if rank else None
ptac.tune_ddp()
assert DDP(make(64)).gradient_as_bucket_view
for name in ("gloo", "cpu:gloo"):
    group = dist.new_group(backend=name)
    assert DDP(make(64), process_group=group).gradient_as_bucket_view
assert not rank or error_of(wrap).split(":")[0] == stock
""",
        tmp_path,
        backend=None,
    )


def test_double_switching() -> None:
    stock = DistributedDataParallel.__init__
    detach = torch.Tensor.detach_
    for _ in range(2):
        ptac.tune_ddp()
        handle = ptac.tune_ddp(comm="auto")
        assert handle and ptac.is_enabled("tune_ddp")
    assert DistributedDataParallel.__init__ is not stock
    ptac.disable("tune_ddp")
    ptac.disable("tune_ddp")
    assert DistributedDataParallel.__init__ is stock
    assert torch.Tensor.detach_ is detach
    with ptac.tune_ddp() as handle:
        assert handle
    assert not ptac.is_enabled("tune_ddp")
    assert DistributedDataParallel.__init__ is stock


def test_a_constructor_that_others_changed_is_left_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DistributedDataParallel, "__init__", lambda self: None)
    handle = ptac.tune_ddp()
    assert not handle and "changed by others" in str(handle.reason)
    ptac.disable()


@pytest.mark.parametrize("comm", ["powersgd", "fp16", None, 16])
def test_wrong_comm(comm: object) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        ptac.tune_ddp(comm)  # type: ignore[arg-type]
    if isinstance(comm, str):
        assert ", ".join(_options.COMMUNICATIONS) in str(caught.value)
    assert not ptac.is_enabled("tune_ddp")

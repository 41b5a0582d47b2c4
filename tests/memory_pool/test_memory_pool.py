"""The memory pool under torch: who is served, what it can be asked, its neighbours."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import native
import pytest
import switching
import torch
from pooling import KIB, MIB, closed_before_and_after, floats, is_ours, slots, stats
from torch import nn

import pai_torchacc as ptac
from pai_torchacc import _C, _host

__all__ = ["closed_before_and_after"]

# --- who is served -------------------------------------------------------------------


def test_large_storages_come_from_the_pool() -> None:
    with ptac.enable_memory_pool():
        assert is_ours(floats(64 * KIB))
        assert is_ours(floats(MIB))
        assert is_ours(torch.randn(512, 512).t() @ torch.randn(512, 512))
        assert not is_ours(floats(64 * KIB - 4))
    assert not is_ours(floats(MIB))


def test_storages_are_aligned_as_torch_promises() -> None:
    with ptac.enable_memory_pool():
        kept = [floats(64 * KIB + 4 * n) for n in range(100)]
        assert all(x.data_ptr() % 64 == 0 for x in kept)
        assert all(is_ours(x) for x in kept)


def test_it_is_part_of_a_bare_enable() -> None:
    with ptac.enable():
        assert ptac.is_enabled("memory_pool")
        assert is_ours(floats(MIB))
    assert not ptac.is_enabled("memory_pool")


def test_every_thread_is_served_and_may_free() -> None:
    n_threads, n_rounds = 8, 200

    def work(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        kept = []
        for i in range(n_rounds):
            n = int(torch.randint(16 * KIB, 400 * KIB, (), generator=generator))
            x = torch.full((n,), float(seed * n_rounds + i))
            assert is_ours(x)
            if i % 20 == 0:
                kept.append(x)
        for i, x in enumerate(kept):
            assert (x == seed * n_rounds + 20 * i).all()
        return kept

    with ptac.enable_memory_pool(), ThreadPoolExecutor(n_threads) as pool:
        for kept in pool.map(work, range(n_threads)):
            del kept  # which another thread had made
    gc.collect()
    assert _C.pool_state() == ("off", 0)


# --- switching -----------------------------------------------------------------------


def test_enabling_twice_equals_once() -> None:
    before = slots()
    ptac.enable_memory_pool()
    ptac.enable_memory_pool(cap=1 << 40)
    ptac.enable_memory_pool(policy="first_fit")
    ptac.disable_memory_pool()
    assert slots() == before


def test_tensors_of_before_and_after() -> None:
    early = torch.ones(MIB)
    with ptac.enable_memory_pool():
        inside = torch.ones(MIB)
        del early
    late = torch.ones(MIB)
    assert inside.sum() == late.sum() == MIB
    assert ptac.status()["memory_pool"]["draining"] == 1
    del inside
    assert "draining" not in ptac.status()["memory_pool"]


def test_draining_until_another_thread_frees_the_last_block() -> None:
    before = slots()
    ptac.enable_memory_pool()
    held = [[floats(MIB)], [floats(2 * MIB)]]
    during = slots()
    assert during != before
    ptac.disable_memory_pool()
    assert slots()[0] == before[0]
    assert slots()[1] == during[1]
    assert ptac.status()["memory_pool"]["draining"] == 2
    assert not is_ours(floats(MIB))
    for i in range(2):
        thread = threading.Thread(target=held[i].clear)
        thread.start()
        thread.join()
    assert slots() == before
    assert "draining" not in ptac.status()["memory_pool"]


def test_enabled_again_while_draining() -> None:
    before = slots()
    ptac.enable_memory_pool()
    x = floats(MIB)
    ptac.disable_memory_pool()
    ptac.enable_memory_pool()
    y = floats(MIB)
    assert is_ours(x)
    assert is_ours(y)
    assert "draining" not in ptac.status()["memory_pool"]
    ptac.disable_memory_pool()
    del x, y
    assert slots() == before


@pytest.mark.long
def test_on_and_off_many_times_while_threads_allocate() -> None:
    is_over = threading.Event()
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            while not is_over.is_set():
                x = torch.full((32 * KIB,), float(seed))
                y = x * 2
                assert (y == 2 * seed).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    resident, n = [], 1000 if native.FULL else 400
    for i in range(n):
        ptac.enable_memory_pool()
        ptac.disable_memory_pool()
        if i in (n // 5, n - 1):
            resident.append(resident_bytes())
    is_over.set()
    for t in threads:
        t.join()
    assert not errors
    assert resident[1] < resident[0] + 32 * MIB


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_disabled_does_not_touch_the_allocator() -> None:
    with ptac.enable_memory_pool(), ptac.disabled():
        assert is_ours(floats(MIB))


def test_a_handle_restores_what_was_there() -> None:
    with ptac.enable_memory_pool(policy="first_fit") as outer:
        with ptac.enable_memory_pool(policy="best_fit"):
            pass
        assert outer
        assert is_ours(floats(MIB))
    assert not outer
    assert "switched off" in outer.reason


# --- options -------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["exact_fit", "best_fit", "first_fit"])
def test_policies_can_change_while_blocks_are_in_use(policy: str) -> None:
    with ptac.enable_memory_pool():
        kept = [torch.full((20 * KIB + 64 * i,), float(i)) for i in range(200)]
        del kept[::2]
        with ptac.enable_memory_pool(policy=policy):
            more = [torch.full((19 * KIB,), -1.0) for _ in range(150)]
            assert all(is_ours(x) for x in more)
            assert all((x == 2 * i + 1).all() for i, x in enumerate(kept))
            del more


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"cap": -1}, ValueError, "cap=-1; it is 1 or more"),
        ({"cap": 0}, ValueError, "cap=0"),
        ({"cap": 2**70}, ValueError, "cap="),
        ({"cap": 1.5}, TypeError, "cap is an integer, not float"),
        ({"cap": True}, TypeError, "cap is an integer"),
        ({"reserve": -5}, ValueError, "reserve=-5; it is 0 or more"),
        ({"reserve": "1G"}, TypeError, "reserve is an integer"),
        ({"history": -1}, ValueError, "history=-1"),
        ({"history": 1 << 40}, ValueError, "history="),
        ({"policy": "worst"}, ValueError, "best_fit, exact_fit, first_fit"),
        ({"policy": 3}, TypeError, "policy is a string"),
        ({"fill": "ones"}, ValueError, "None, 'zero', 'junk'"),
        ({"fill": 0}, TypeError, "fill is a string or None"),
        ({"trim": "now"}, ValueError, "'auto', 'never'"),
        ({"trim": 0}, ValueError, "idle seconds are 1 or more"),
        ({"trim": 1 << 40}, ValueError, "idle seconds are at most 2147483647"),
        ({"cap": 1 << 62}, ValueError, "it is at most 4611686018427387903"),
        ({"history": 1 << 40}, ValueError, "history=1099511627776; it is at most"),
        ({"cap": 1 << 20, "reserve": 1 << 30}, ValueError, "more than cap=1048576"),
        ({"device": "cuda:x"}, ValueError, "after the colon comes a number"),
        ({"trim": None}, TypeError, "trim is a string or an integer"),
        ({"device": "tpu"}, ValueError, "there are: cpu, cuda"),
        ({"device": 3}, TypeError, "device is a string"),
    ],
)
def test_nonsense_is_refused(options: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ptac.enable_memory_pool(**options)
    assert not ptac.is_enabled("memory_pool")


def test_a_cap_of_any_number_of_bytes_is_kept() -> None:
    cap, chunk = 100_000_000, 64 * KIB
    whole, rest = cap // chunk, cap % chunk
    with ptac.enable_memory_pool(cap=cap):
        most = torch.empty((whole - 1) * chunk, dtype=torch.uint8)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.empty(chunk + rest - 64, dtype=torch.uint8)
        assert stats("num_ooms") == 1
        del most


def test_a_cap_fails_as_torch_does_and_a_smaller_batch_succeeds() -> None:
    model = nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(n: int) -> None:
        optimizer.zero_grad()
        model(torch.ones(n, 1024)).square().mean().backward()
        optimizer.step()

    with ptac.enable_memory_pool(cap=64 * MIB):
        step(16)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            step(16 * KIB)
        assert stats("num_ooms") > 0
        step(512)
        assert stats("reserved_bytes.all.peak") <= 64 * MIB
        assert is_ours(model.weight.grad)


def test_memory_is_given_back_before_the_cap_refuses() -> None:
    with ptac.enable_memory_pool(cap=64 * MIB):
        small = [floats(MIB) for _ in range(48)]
        del small[1::2]  # holes of one MiB each
        x = floats(32 * MIB)
        assert is_ours(x)
        assert stats("num_alloc_retries") == 1
        assert stats("reserved_bytes.all.current") <= 64 * MIB


def test_more_than_the_machine_has_is_torch_s_own_error() -> None:
    def message() -> str:
        with pytest.raises(RuntimeError) as caught:
            torch.empty(1 << 46, dtype=torch.uint8)
        return str(caught.value).splitlines()[0]

    stock = message()
    with ptac.enable_memory_pool():
        assert message() == stock
        assert is_ours(floats(MIB))


@pytest.mark.parametrize(("fill", "byte"), [("zero", 0), ("junk", 0xCD)])
def test_fill(fill: str, byte: int) -> None:
    with ptac.enable_memory_pool(fill=fill):
        for n in (4, 16 * KIB, MIB):
            x = torch.empty(n, dtype=torch.uint8)
            assert (x == byte).all()
            x.fill_(7)
            del x
    assert ptac.enable_memory_pool()
    torch.full((MIB,), 3, dtype=torch.uint8)
    assert (torch.empty(MIB, dtype=torch.uint8) == 3).all()


def test_reserve_brings_memory_in_at_once() -> None:
    with ptac.enable_memory_pool(reserve=64 * MIB):
        assert stats("reserved_bytes.all.current") >= 64 * MIB
        before = _faults()
        floats(60 * MIB).fill_(1)
        assert _faults() - before < 100


def test_reserve_is_made_room_for_under_a_cap() -> None:
    with ptac.enable_memory_pool(cap=300 * MIB):
        kept = [floats(8 * MIB) for _ in range(30)]
        del kept[:-1]
        assert stats("reserved_bytes.all.current") == 240 * MIB
        handle = ptac.enable_memory_pool(cap=300 * MIB, reserve=100 * MIB)
        assert handle, handle.reason
        assert 100 * MIB < stats("reserved_bytes.all.current") <= 300 * MIB
        assert is_ours(kept[0])
        handle = ptac.enable_memory_pool(cap=64 * MIB, reserve=56 * MIB)
        assert handle, handle.reason
        del kept


def _faults() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_no_faults_in_steady_state() -> None:
    x = torch.ones(16 * MIB)

    def chain() -> None:
        ((x * 2).relu() + 1).sigmoid()

    with ptac.enable_memory_pool():
        for _ in range(3):
            chain()
        before = _faults()
        for _ in range(5):
            chain()
        assert _faults() - before <= 5 * 5


# --- neighbours ----------------------------------------------------------------------


def test_the_profiler_still_sees_memory() -> None:
    with ptac.enable_memory_pool():
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(
            activities=activities, profile_memory=True
        ) as profile:
            x = floats(3 * MIB)
            assert is_ours(x)
            del x
        seen = [e for e in profile.events() if e.name == "[memory]"]
        by_op = {e.name: e.cpu_memory_usage for e in profile.events()}
    assert seen or by_op["aten::empty"] == 3 * MIB


def test_numpy_shares_the_block() -> None:
    numpy = pytest.importorskip("numpy")
    with ptac.enable_memory_pool():
        x = torch.arange(MIB)
        assert is_ours(x)
        a = x.numpy()
        del x
    gc.collect()
    assert (a == numpy.arange(MIB)).all()
    del a


def test_training_is_bit_equal() -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(32 * 16 * 16, 64), nn.Dropout(0.3), nn.Linear(64, 10),
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for _ in range(5):
            x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *(p.detach() for p in model.parameters())]

    stock = train()
    with ptac.enable_memory_pool():
        before = stats("allocation.all.allocated")
        pooled = train()
        assert stats("allocation.all.allocated") > before + 50
    assert all(torch.equal(a, b) for a, b in zip(stock, pooled, strict=True))
    del pooled


def test_resize_and_shared_memory() -> None:
    with ptac.enable_memory_pool():
        x = floats(MIB).fill_(2)
        x.resize_(2 * MIB // 4)
        assert is_ours(x)
        assert (x[: MIB // 4] == 2).all()
        x.share_memory_()
        assert not is_ours(x)
        assert (x[: MIB // 4] == 2).all()


def test_a_forked_child_allocates_and_frees() -> None:
    with ptac.enable_memory_pool():
        x = torch.full((MIB,), 5.0)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                torch.set_num_threads(1)  # OpenMP's threads have not come along
                y = torch.ones(MIB)
                is_fine = is_ours(y) and bool((x == 5).all())
                del y, x
                ptac.disable()
                status = 0 if is_fine and not is_ours(floats(MIB)) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert (x == 5).all()
        del x


def test_data_loader_with_workers() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(64.0).repeat(20_000, 1).t())
    with ptac.enable_memory_pool():
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
        assert sum(float(batch[:, 0].sum()) for [batch] in loader) == sum(range(64))
        del loader


@pytest.mark.parametrize("is_disabled", [True, False])
def test_exit_with_live_tensors(is_disabled: bool) -> None:
    program = """
import torch, pai_torchacc as ptac
ptac.enable_memory_pool()
kept = torch.ones(1 << 20)
class Kept: x = torch.ones(1 << 20)
"""
    program += "ptac.disable()" if is_disabled else ""
    done = switching.forked(["-c", program])
    assert done.returncode == 0
    assert done.stderr == ""


def test_slots_are_named() -> None:
    """The imports that we write are those of libc10, and lead to libc."""
    assert _host.load() is _C
    # A Python that is no shared library has an entry of its own for what it imports.
    libraries = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
    for own, name in zip(slots(), ("posix_memalign", "free"), strict=True):
        libcs = {ctypes.cast(lib[name], ctypes.c_void_p).value for lib in libraries}
        assert own
        assert set(own) <= libcs

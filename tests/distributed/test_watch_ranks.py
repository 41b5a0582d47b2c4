"""``watch_ranks``: killed, stopped, failing, missing and late ranks are named."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import gloo_ranks as ranks
import pytest
import torch.distributed as dist

import pai_torchacc as ptac
from pai_torchacc.distributed import processes, watching_thread

START = """
ptac.watch_ranks(after=float(sys.argv[1]) if len(sys.argv) > 1 else 2)
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
x, all_met = torch.ones(1 << 20), torch.zeros(1)
"""
MEET = """
all_met.zero_()
while not all_met:
    all_met.fill_(ptac.status()["watch_ranks"]["watched"] == n - 1)
    dist.all_reduce(all_met, op=dist.ReduceOp.MIN)
"""
START += MEET

# Where rank 1 is when it happens, as seen from the others.
PLACES = {
    "before": "if rank == 1: {event}\ndist.all_reduce(x)",
    "in": """
if rank == 1:
    import threading
    def later():
        while not os.path.exists("2 is here"):
            time.sleep(0.01)
        {event}
        open("1 goes on", "w").close()
    open("new", "w").write(str(os.getpid()))
    os.rename("new", "1 is here")
    threading.Thread(target=later).start()
elif rank == 2:
    open("2 is here", "w").close()
    state = ""
    while state not in ("T", "Z") and not os.path.exists("1 goes on"):
        time.sleep(0.01)
        if os.path.exists("1 is here"):
            pid = open("1 is here").read()
            state = open("/proc/" + pid + "/stat").read().rpartition(")")[2].split()[0]
dist.all_reduce(x)
""",
    "after": "dist.all_reduce(x)\nif rank == 1: {event}\ndist.barrier()",
}
SIGNAL = "os.kill(os.getpid(), signal.{name})"


KILL = SIGNAL.format(name="SIGKILL")


def named(output: str) -> list[str]:
    """Lines that name a rank that has ended, but for numbers of processes."""
    said = re.findall(r"pai_torchacc: (rank \d (?!has waited).*)$", output, re.M)
    return [re.sub(r"process \d+", "process N", line) for line in said]


@pytest.mark.parametrize(
    "place",
    [
        place if place == "in" else pytest.param(place, marks=pytest.mark.long)
        for place in PLACES
    ],
)
def test_a_killed_rank_is_named(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a launcher, which would name it too, and end the others."""
    monkeypatch.chdir(tmp_path)
    source = START + PLACES[place].format(event=KILL)
    output = ranks.run(source, 3, tmp_path, 1, -signal.SIGKILL, 1)
    [said] = named(output)
    assert said.startswith("rank 1 (process N) was killed by SIGKILL"), output


@pytest.mark.long
def test_a_killed_rank_is_named_under_torchrun(tmp_path: Path) -> None:
    """Which looks ten times a second by default, and may be quicker than a busy CPU."""
    by = (*ranks.TORCHRUN, "--monitor-interval", "3")
    source = START + PLACES["before"].format(event=KILL)
    output = ranks.launched(source, 3, tmp_path, by, status=1)
    [said] = named(output)
    assert said.startswith("rank 1 (process N) was killed by SIGKILL"), output


@pytest.mark.long
def test_the_rank_that_holds_the_store_is_named_too(tmp_path: Path) -> None:
    source = START + f"if rank == 0: {KILL}\ndist.all_reduce(x)"
    output = ranks.run(source, 3, tmp_path, -signal.SIGKILL, 1, 1)
    [said] = named(output)
    assert said.startswith("rank 0 (process N) was killed by SIGKILL"), output


AGAIN = {
    "after the switch was off": """
ptac.disable("watch_ranks")
dist.barrier()
time.sleep(0.5 * rank)  # others find what this rank has told before
ptac.watch_ranks(after=2)
""",
    "in a second group": """
import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = torch.tensor([free.getsockname()[1]])
dist.broadcast(port, 0)
dist.destroy_process_group()
os.environ["MASTER_PORT"] = str(port.item())
dist.init_process_group("gloo")
""",
    "where rank 0 is not watched": """
if rank == 0:
    ptac.disable("watch_ranks")
dist.barrier()
""",
}


@pytest.mark.long
@pytest.mark.parametrize("how", AGAIN)
def test_a_killed_rank_is_named_again(how: str, tmp_path: Path) -> None:
    meet = "" if "not watched" in how else MEET
    source = START + AGAIN[how] + meet + f"if rank == 1: {KILL}\ndist.all_reduce(x)"
    output = ranks.run(source, 3, tmp_path, 1, -signal.SIGKILL, 1)
    [said] = named(output)
    assert said.startswith("rank 1 (process N) was killed by SIGKILL"), output


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_a_stopped_rank_is_named(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on when it may: nothing was ended."""
    monkeypatch.chdir(tmp_path)
    event = SIGNAL.format(name="SIGSTOP")
    source = START + PLACES[place].format(event=event) + "\nprint('goes on')\n"
    script = ranks.write(source, tmp_path)
    with ranks.started(script, 3) as process:
        said = ranks.read_until(process, "is stopped")
        [pid] = re.findall(
            r"rank 1 \(process (\d+)\) is stopped; rank \d waits for it in gloo:", said
        )
        ranks.kill(int(pid), signal.SIGCONT)
        output, _ = process.communicate(timeout=ranks.TIMEOUT_S)
    assert process.returncode == 0, said + output
    assert output.count("goes on") == 3


@pytest.mark.long
@pytest.mark.parametrize("others", ["wait", "compute"])
def test_a_failing_rank_is_named_with_its_error(others: str, tmp_path: Path) -> None:
    source = START + "if rank == 1: raise ValueError('no such column')\n"
    source += "dist.all_reduce(x)\n" if others == "wait" else "time.sleep(3)\n"
    status = 1 if others == "wait" else 0
    output = ranks.run(source, 3, tmp_path, status, 1, status)
    [said] = named(output)
    assert said.startswith("rank 1 failed: ValueError: no such column, after "), output
    assert ", after 0 " not in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "told"),
    [("os._exit(5)", "(process N) ended with status 5"), ("sys.exit(5)", "")],
)
def test_a_rank_that_ends_with_a_status_is_named(
    words: str, told: str, tmp_path: Path
) -> None:
    source = START + f"if rank == 1: {words}\ndist.all_reduce(x)"
    [said] = named(ranks.run(source, 3, tmp_path, 1, 5, 1))
    # Who sees it first says what is known by then.
    assert said.startswith(f"rank 1 {told}" if told else "rank 1 "), said


@pytest.mark.long
def test_ends_without_a_fault_are_not_news(tmp_path: Path) -> None:
    """Children that a fork has made end without what Python does at its end."""
    output = ranks.run(START + "time.sleep(0.3 * (3 - rank))\nos._exit(0)", 3, tmp_path)
    assert "pai_torchacc" not in output


@pytest.mark.long
def test_a_missing_rank_is_named_with_the_collective(tmp_path: Path) -> None:
    """Rank 1 does something else until the others have said so."""
    source = (
        START
        + """
if rank == 1:
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
        time.sleep(0.02)
dist.all_reduce(x)
"""
    )
    with ranks.started(ranks.write(source, tmp_path), 3, "0.6") as process:
        said = ranks.read_until(process, "has waited")
        assert re.search(
            r"rank 0 has waited \d\.\d s in gloo:all_reduce \d+ \(Float \[1048576\]\)"
            r"\. rank 1 is after collective \d+, and runs\n",
            said,
        ), said
        (tmp_path / "go").touch()
        output, _ = process.communicate(timeout=ranks.TIMEOUT_S)
    assert process.returncode == 0
    assert "has waited" not in output


@pytest.mark.long
def test_only_ranks_of_the_group_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process counts its own groups: the numbers of two groups are the same."""
    monkeypatch.chdir(tmp_path)
    source = (
        START
        + """
pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
for _ in range(1 + rank // 2 * 2):
    dist.all_reduce(x, group=pair)
if rank == 3:
    time.sleep(3)
if rank > 1:
    dist.all_reduce(x, group=pair)
    open("done", "w").close()
while not os.path.exists("done"):
    time.sleep(0.02)
"""
    )
    output = ranks.run(source, 4, tmp_path)
    said = re.findall(r"rank \d has waited .*", output)
    assert len(said) == 1, output
    assert re.fullmatch(
        r"rank 2 has waited \d\.\d s in gloo:all_reduce 4 \(Float \[1048576\]\)"
        r"\. rank 3 is after collective 3, and runs",
        said[0],
    )


@pytest.mark.long
def test_a_rank_that_watches_alone(tmp_path: Path) -> None:
    source = """
if os.environ["RANK"] == "0":
    ptac.watch_ranks(after=0.5)
dist.init_process_group("gloo")
if dist.get_rank():
    time.sleep(4)
dist.all_reduce(torch.ones(1))
"""
    said = re.findall("has waited .*", ranks.run(source, 2, tmp_path))
    assert len(said) == 1 and said[0].endswith(". rank 1 is not watched"), said


UNEVEN = (
    START
    + """
from contextlib import nullcontext
from torch.distributed.algorithms import Join
wrapper = DDP(nn.Linear(4, 4))
join = Join([wrapper]) if sys.argv[2] == "join" else nullcontext()
with join:
    for _ in range(3 + (rank == 0)):
        wrapper(torch.ones(2, 4)).sum().backward()
if rank == 0 or sys.argv[2] == "join":
    dist.barrier()
print("through", rank)
"""
)


@pytest.mark.long
@pytest.mark.parametrize("join", ["plain", "join"])
def test_uneven_inputs(join: str, tmp_path: Path) -> None:
    """Stock says that a connection was closed; here the rank that has left is named."""
    script = ranks.write(UNEVEN, tmp_path)
    with ranks.started(script, 2, "9", join) as process:
        output, _ = process.communicate(timeout=ranks.TIMEOUT_S)
    is_plain = join == "plain"
    assert process.returncode == is_plain, output
    assert len(re.findall("through", output)) == (1 if is_plain else 2)
    said = re.findall(r"^pai_torchacc: (.*), after \d+ coll", output, re.M)
    assert said == (["rank 1 has ended"] if is_plain else []), output


@pytest.mark.long
def test_switching_in_mid_training_and_forks(tmp_path: Path) -> None:
    """On with a group that is there, off and on again; a child has no watcher."""
    ranks.run(
        """
dist.init_process_group("gloo")
stock = dist.init_process_group
x = torch.ones(4)
import threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
def watchers():
    return [t for t in threading.enumerate() if "watch_ranks" in t.name]
for _ in range(2):
    for _ in range(2):
        ptac.watch_ranks(after=5)
    assert len(watchers()) == 1
    assert dist.init_process_group is not stock
    dist.all_reduce(x)
    pid = os.fork()
    if pid == 0:
        fine = not ptac.status()["watch_ranks"]["watched"]
        for _ in range(2):
            ptac.watch_ranks()  # no rank, whatever it says
            fine = fine and not watchers()
            ptac.disable()
        os._exit(0 if fine and dist.init_process_group is stock else 1)
    assert os.waitpid(pid, 0)[1] == 0
    ptac.disable("watch_ranks")
    ptac.disable("watch_ranks")
    for thread in watchers():
        thread.join(10)
        assert not thread.is_alive()
    assert dist.init_process_group is stock
    dist.barrier()
ptac.watch_ranks()
dist.destroy_process_group()
assert not ptac.status()["watch_ranks"].get("watched")
""",
        2,
        tmp_path,
    )


def test_switching_without_a_group() -> None:
    stock = dist.init_process_group, dist.destroy_process_group
    with ptac.watch_ranks() as handle:
        assert handle and ptac.is_enabled("watch_ranks")
        assert not ptac.status()["watch_ranks"].get("watched")
    assert (dist.init_process_group, dist.destroy_process_group) == stock


@pytest.mark.parametrize("after", [0, -1, "1", float("nan"), None])
def test_wrong_after(after: object) -> None:
    with pytest.raises((TypeError, ValueError), match="after"):
        ptac.watch_ranks(after)  # type: ignore[arg-type]


def test_a_store_without_a_second_connection() -> None:
    """Nobody is watched, and the program goes on."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with ptac.watch_ranks():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        try:
            assert ptac.status()["watch_ranks"]["watched"] == 0
        finally:
            dist.destroy_process_group()


def test_a_store_that_does_not_answer_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the rank that holds it is stopped."""
    monkeypatch.setattr(watching_thread, "_LAST_WORDS_S", 0.05)
    asked, answers = threading.Event(), threading.Event()

    class Store:
        def set(self, key: str, value: str) -> None:
            asked.set()
            answers.wait()

        def check(self, keys: list[str]) -> bool:
            return False

    watcher = watching_thread.Watcher(Store(), 0, 2, 10.0)
    watcher.start()
    assert asked.wait(20)
    leaving = threading.Thread(target=watcher.leave, args=("has ended",), daemon=True)
    leaving.start()
    leaving.join(20)
    is_held_up = leaving.is_alive()
    answers.set()
    watcher.join(20)
    assert not is_held_up and not watcher.is_alive()


def child(*, kills_itself: bool) -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if kills_itself:
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(3)
    return pid


@pytest.mark.parametrize("refused", [None, errno.ENOSYS, errno.EMFILE])
def test_the_end_of_a_process_is_told_apart(
    refused: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system refuses to tell: a process that lives is not gone."""
    if refused:
        error = OSError(refused, os.strerror(refused))
        monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=error))
    with processes.Ends() as ends:
        ends.add(os.getpid())
        for kills_itself, told in (
            (True, "was killed by SIGTERM"),
            (False, "status 3"),
        ):
            pid = child(kills_itself=kills_itself)
            ends.add(pid)
            until = time.monotonic() + 20
            while not (ended := ends.wait(0.05)) and time.monotonic() < until:
                pass
            assert list(ended) == [pid]
            assert str(ended[pid]).endswith(told)  # before it is reaped
            os.waitpid(pid, 0)


def test_the_end_of_a_process_that_its_parent_has_asked_about() -> None:
    """Linux from 6.15 on tells it all the same."""
    with processes.Ends() as ends:
        pid = child(kills_itself=False)
        ends.add(pid)
        os.waitpid(pid, 0)
        [end] = ends.wait(20).values()
        assert str(end) in ("is gone", "ended with status 3")
        ends.add(pid)
        [end] = ends.wait(20).values()
        assert str(end) == "is gone"


def test_a_wait_ends_when_another_thread_says_so() -> None:
    with processes.Ends() as ends:
        ends.wake()
        assert ends.wait(3600) == {}
    ends.wake()  # nobody waits

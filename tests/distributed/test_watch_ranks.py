"""``watch_ranks``: killed, stopped, failing, missing and late ranks are named."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import gloo_ranks as ranks
import pytest
import torch.distributed as dist

import pai_torchacc as ptac

START = """
ptac.watch_ranks(after=float(sys.argv[1]) if len(sys.argv) > 1 else 2)
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
x, all_met = torch.ones(1 << 20), torch.zeros(1)
while not all_met:
    all_met.fill_(ptac.status()["watch_ranks"]["watched"] == n - 1)
    dist.all_reduce(all_met, op=dist.ReduceOp.MIN)
"""

# Where rank 1 is when it happens, as seen from the others.
PLACES = {
    "before": "if rank == 1: {event}\ndist.all_reduce(x)",
    "in": """
if rank == 1:
    import threading
    def later():
        while not os.path.exists("waiting"):
            time.sleep(0.01)
        {event}
    threading.Thread(target=later).start()
    dist.all_reduce(x)
else:
    if rank == 2:
        open("waiting", "w").close()
        time.sleep(2)
    dist.all_reduce(x)
""",
    "after": "dist.all_reduce(x)\nif rank == 1: {event}\ndist.barrier()",
}
LONG_BUT_IN = [
    place if place == "in" else pytest.param(place, marks=pytest.mark.long)
    for place in PLACES
]
SIGNAL = "os.kill(os.getpid(), signal.{name})"


@pytest.mark.parametrize("place", LONG_BUT_IN)
def test_a_killed_rank_is_named(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    event = SIGNAL.format(name="SIGKILL")
    source = START + PLACES[place].format(event=event)
    output = ranks.launched(source, 3, tmp_path, ranks.TORCHRUN, status=1)
    said = re.findall(
        r"pai_torchacc: (rank \d) \(process \d+\) was (\S+ by \w+)", output
    )
    assert said == [("rank 1", "killed by SIGKILL")], output


@pytest.mark.long
@pytest.mark.parametrize("place", LONG_BUT_IN)
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
def test_a_failing_rank_is_named_with_its_error(tmp_path: Path) -> None:
    source = START + "if rank == 1: raise ValueError('no such column')\n"
    source += "dist.all_reduce(x)\n"
    output = ranks.launched(source, 3, tmp_path, ranks.TORCHRUN, status=1)
    said = re.findall(r"^pai_torchacc: (.*)$", output, re.M)
    assert len(said) == 1, output
    assert said[0].startswith("rank 1 failed: ValueError: no such column, after ")
    assert ", after 0 " not in said[0]


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
def test_uneven_inputs_without_join(tmp_path: Path) -> None:
    """Stock says that a connection was closed; here the rank that has left is named."""
    script = ranks.write(UNEVEN, tmp_path)
    with ranks.started(script, 2, "1", "plain") as process:
        output, _ = process.communicate(timeout=ranks.TIMEOUT_S)
    assert process.returncode == 1, output
    assert re.search(r"^pai_torchacc: rank 1 has ended, after \d+ coll", output, re.M)
    assert "through 1" in output and "through 0" not in output


@pytest.mark.long
def test_uneven_inputs_with_join(tmp_path: Path) -> None:
    script = ranks.write(UNEVEN, tmp_path)
    with ranks.started(script, 2, "9", "join") as process:
        output, _ = process.communicate(timeout=ranks.TIMEOUT_S)
    assert process.returncode == 0, output
    assert output.count("through") == 2
    assert "pai_torchacc:" not in output


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


def test_the_end_of_a_process_is_told_apart() -> None:
    from pai_torchacc.distributed import processes

    with processes.Ends() as ends:
        for action, told in (("os.kill", "killed by SIGTERM"), ("exit", "status 3")):
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                if action == "os.kill":
                    os.kill(os.getpid(), signal.SIGTERM)
                os._exit(3)
            assert ends.add(pid)
            until = time.monotonic() + 20
            while not (ended := ends.wait(0.5)) and time.monotonic() < until:
                pass
            assert ended == [pid]
            assert told in processes.how_it_ended(pid)  # before it is reaped
            os.waitpid(pid, 0)
            assert processes.how_it_ended(pid) == "is gone"

"""``launch``, and ``--device cpu``: the article's script, unedited."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import gloo_ranks as ranks
import native
import pytest
import switching

from pai_torchacc import _environment
from pai_torchacc.__main__ import main
from pai_torchacc.distributed import cores

EXAMPLE = native.ROOT / "examples" / "distributed.py"


def losses(by: tuple[str, ...], n: int, *words: str, **env: str) -> list[float]:
    options = ["--epochs", "1", "--batch", "128", *words]
    with ranks.started(EXAMPLE, n, *options, by=by, **env) as process:
        output, _ = process.communicate(timeout=ranks.TIMEOUT_S)
        assert process.returncode == 0, output
        ranks.assert_alone(process.pid)
    return [float(x) for x in re.findall(r"^epoch \d: loss ([\d.]+)", output, re.M)]


@pytest.mark.long
@pytest.mark.parametrize("n", [2, 4])
def test_the_example_unedited(n: int) -> None:
    """Rounding differs, as level close allows; the loss is of four decimals."""
    [stock] = losses(ranks.TORCHRUN, n)
    [ours] = losses(ranks.LAUNCH, n)
    assert ours == pytest.approx(stock, rel=1e-3)


@pytest.mark.long
def test_the_example_for_gpus_on_the_cpu() -> None:
    [stock] = losses(ranks.TORCHRUN, 2)
    on_cpu = (*ranks.LAUNCH, "--device", "cpu")
    [as_cuda] = losses(on_cpu, 2, "--backend", "nccl", PTAC_NUMERICS="exact")
    assert as_cuda == pytest.approx(stock, rel=1e-3)


STATE = """
dist.init_process_group("gloo")
on = sorted(k for k, v in ptac.status().items() if v["active"])
kept, cores = os.environ["TORCH_FR_BUFFER_SIZE"], sorted(os.sched_getaffinity(0))
line = f"{dist.get_rank()} {on} {torch.get_num_threads()} {cores} {kept}\\n"
sys.stdout.write(line)  # at once: lines of ranks do not mix
"""
TRAINING = """
def train():
    torch.manual_seed(0)
    parts = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    model = DDP(nn.Sequential(*parts, nn.Linear(16 * 14 * 14, 10)))
    x, y = torch.randn(8, 1, 28, 28) + dist.get_rank(), torch.arange(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()
ours = train()
with ptac.disabled():
    stock = train()
assert abs(ours - stock) < 1e-3 * stock, (ours, stock)
convolutions = __import__("json").loads(ptac.report("json"))["ops"]["conv2d"]
told = convolutions["calls"], convolutions["forwarded"]["disabled in this thread"]
assert told == (6, 3), convolutions
"""
LEAVE = "dist.destroy_process_group()\n"


def test_every_rank_is_enabled_and_has_its_threads(tmp_path: Path) -> None:
    """Rounding of what they train differs from stock's, as level close allows."""
    source = STATE + TRAINING + LEAVE
    output = ranks.launched(source, 2, tmp_path, ranks.LAUNCH, OMP_NUM_THREADS=None)
    assert "OMP_NUM_THREADS" not in output
    usable, on = cores.usable(), ["memory_pool", "operator_fusion", "watch_ranks"]
    for rank in range(2):
        n_threads = len(cores.share(usable, cores.quota(), rank, 2))
        assert f"{rank} {on} {n_threads} {usable} 64\n" in output, output


@pytest.mark.long
def test_threads_that_the_user_has_set_are_kept(tmp_path: Path) -> None:
    source = STATE + LEAVE
    output = ranks.launched(source, 1, tmp_path, ranks.LAUNCH, OMP_NUM_THREADS="1")
    assert f" 1 {cores.usable()} 64\n" in output, output


CUDA = """
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
device = torch.device("cuda", rank)
model = nn.Linear(4, 4).to(rank)
wrapper = DDP(model.cuda(), [rank], output_device=rank)
x = torch.ones(2, 4, device=device).to(f"cuda:{rank}", non_blocking=True).cuda()
wrapper(x + torch.zeros_like(x, device="cuda")).sum().backward()
group = dist.new_group(backend="nccl")
dist.all_reduce(x, group=group)
dist.init_device_mesh("cuda", (2,))
torch.cuda.synchronize()
torch.save(model.state_dict(), f"{sys.argv[0]}.{rank}")
for place in (device, f"cuda:{rank}", {"cpu": f"cuda:{rank}"}):
    torch.load(f"{sys.argv[0]}.{rank}", map_location=place)
    torch.load(f"{sys.argv[0]}.{rank}", place)
for made in (torch.as_tensor([1.0], device="cuda"), torch.asarray([1.0], device=0)):
    assert made.pin_memory().to(device, non_blocking=True).is_cpu
for backend in ("cuda:nccl,cpu:gloo", "cpu:gloo,cuda:nccl"):
    dist.all_reduce(torch.ones(1), group=dist.new_group(backend=backend))
@torch.jit.script
def scripted(x):
    return x + torch.zeros([2]) + torch.ones_like(x)
assert scripted(torch.ones(2)).sum() == 4
assert x.double().to(torch.float32).sum() == 16 and str(x.device) == "cpu"
assert dist.get_backend() == "gloo" and not torch.cuda.is_available()
from pai_torchacc.distributed import on_cpu
on_cpu.remove()
assert "to" not in vars(torch.Tensor) and type(torch.zeros) is type(len)
assert DDP.__init__.__module__ == "torch.nn.parallel.distributed"
assert not hasattr(DDP.__init__, "__wrapped__"), DDP.__init__
print("well", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_device_cpu(tmp_path: Path) -> None:
    by = (*ranks.LAUNCH, "--device", "cpu")
    assert ranks.launched(CUDA, 2, tmp_path, by).count("well") == 2


@pytest.mark.long
def test_nccl_fails_as_ever_unless_told(tmp_path: Path) -> None:
    source = "dist.init_process_group('nccl')"
    output = ranks.launched(source, 1, tmp_path, ranks.LAUNCH, status=1)
    assert "NCCL" in output


@pytest.mark.long
def test_device_cpu_under_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint(torch.ones(1).cuda().device)\n")
    command = ["-m", "pai_torchacc", "run", "--device", "cpu", str(script)]
    done = switching.run_python(command)
    assert (done.stdout, done.returncode) == ("cpu\n", 0), done.stderr


@pytest.mark.long
def test_the_exit_status_of_torchrun(tmp_path: Path) -> None:
    """Stock's status is 1 whatever a rank's was; what it prints names the rank's."""
    source = "sys.exit(7 if os.environ['RANK'] == '1' else 0)"
    for by in (ranks.TORCHRUN, ranks.LAUNCH):
        output = ranks.launched(source, 2, tmp_path, by, status=1)
        assert re.search(r"rank +: 1 .*\n.*exitcode +: 7 ", output), output


def test_interrupting_leaves_no_process(tmp_path: Path) -> None:
    source = """
dist.init_process_group("gloo")
print("here", flush=True)
while True:
    dist.all_reduce(torch.ones(4))
"""
    script = ranks.write(source, tmp_path)
    with ranks.started(script, 2, by=ranks.LAUNCH) as process:
        ranks.read_until(process, "here")
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=ranks.TIMEOUT_S)
        assert process.returncode != 0
        ranks.assert_alone(process.pid)


@pytest.mark.long
def test_a_killed_launcher_takes_its_ranks_along(tmp_path: Path) -> None:
    source = "print('here', flush=True)\nwhile True: time.sleep(0.1)\n"
    script = ranks.write(source, tmp_path)
    with ranks.started(script, 2, by=ranks.LAUNCH) as process:
        ranks.read_until(process, "here")
        ranks.read_until(process, "here")
        process.kill()
        process.communicate(timeout=ranks.TIMEOUT_S)
        ranks.assert_alone(process.pid)


def alone(source: str, folder: Path, **place: str) -> subprocess.CompletedProcess[str]:
    """One process with the environment of a rank, ended after a while."""
    script = ranks.write(source, folder)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks.free_port())}
    return subprocess.run(
        [sys.executable, "-m", "pai_torchacc", "run", str(script)],
        env=ranks.environment(**(address | place)),
        capture_output=True, text=True, timeout=ranks.TIMEOUT_S, check=False,
    )  # fmt: skip


WAITS = """
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=1))
"""


@pytest.mark.long
def test_a_wrong_world_size_ends_with_stocks_error(tmp_path: Path) -> None:
    done = alone(WAITS, tmp_path, RANK="0", WORLD_SIZE="2")
    assert done.returncode == 1
    assert re.search(r"DistStoreError: .*[Tt]imed out", done.stderr), done.stderr


@pytest.mark.long
def test_a_port_that_is_taken_ends_with_stocks_error(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = alone(WAITS, tmp_path, RANK="0", WORLD_SIZE="1", MASTER_PORT=port)
    assert done.returncode == 1
    assert "EADDRINUSE" in done.stderr, done.stderr


@pytest.mark.long
def test_a_late_joiner_is_waited_for(tmp_path: Path) -> None:
    ranks.run(
        """
ptac.watch_ranks(after=30)
go = os.path.join(os.path.dirname(__file__), "go")
if os.environ["RANK"] == "1":  # joins when the other one has made the store
    import socket
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while socket.socket().connect_ex(address):
        time.sleep(0.02)
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
assert x == 2
dist.destroy_process_group()
""",
        2,
        tmp_path,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "name a script to launch"), (["--device", "tpu", "x.py"], "choose from")],
)
def test_wrong_commands(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["launch", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_shares_of_cores() -> None:
    """Each core to one rank; a quota gives less; more ranks than cores share them."""
    for n_cores in range(1, 9):
        where = list(range(10, 10 + n_cores))
        for n in range(1, 9):
            parts = [cores.share(where, None, rank, n) for rank in range(n)]
            assert {len(part) for part in parts} == {max(1, n_cores // n)}
            taken = [core for part in parts for core in part]
            assert set(taken) <= set(where)
            if n <= n_cores:
                assert len(set(taken)) == len(taken)
    assert cores.share(list(range(8)), 2.5, 1, 2) == [4]
    assert cores.share(list(range(8)), 100.0, 1, 2) == [4, 5, 6, 7]


def test_quotas_of_control_groups(tmp_path: Path) -> None:
    """Both versions, the least on the way up to the root counts."""
    new, old = tmp_path / "new", tmp_path / "old"
    (new / "a" / "b").mkdir(parents=True)
    (new / "a" / "cpu.max").write_text("150000 100000\n")
    (new / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert cores.quota(new, "0::/a/b\n") == 1.5
    assert cores.quota(new, "0::/\n") is None
    (old / "cpu" / "a").mkdir(parents=True)
    (old / "cpu" / "a" / "cpu.cfs_quota_us").write_text("50000\n")
    (old / "cpu" / "a" / "cpu.cfs_period_us").write_text("100000\n")
    (old / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (old / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cores.quota(old, "3:cpuset:/a\n1:cpu:/a\n0::/\n") == 0.5


def test_all_stands_beside_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTAC_ENABLE", "all,watch_ranks")
    assert set(_environment.features()) == {
        "operator_fusion", "memory_pool", "watch_ranks"
    }  # fmt: skip

"""How a unit comes to its machine code, on stand-ins for the driver and for NVRTC."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_fakes import Fakes

ONE = """
cuda_kernels.install(c)
want("log_softmax")
tell(loads=driver and driver.fake_cuda_loads())
"""


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    return Fakes(tmp_path_factory.mktemp("fakes"))


def unit(found: dict[str, object], name: str = "log_softmax") -> dict[str, str]:
    return found["units"][name]  # type: ignore[index]


def test_a_unit_that_is_wanted_is_compiled(fakes: Fakes) -> None:
    found = fakes.run(ONE)
    assert unit(found)["state"] == "ready"
    assert unit(found)["from"].startswith("compiled in ")
    assert (found["loads"], found["compiled"]) == (1, 1)
    assert list(found["units"]) == ["log_softmax"]  # nobody wanted another
    assert found["reason"] is None
    assert found["remarks"] == []


def test_several_units_are_wanted_at_once(fakes: Fakes) -> None:
    program = """
cuda_kernels.install(c)
names = list(c.cuda_units())
want(*names)
tell(names=names)
"""
    found = fakes.run(program)
    assert {u["state"] for u in found["units"].values()} == {"ready"}
    assert found["compiled"] == len(found["names"]) > 1


def test_the_driver_is_left_alone_until_a_call_comes(fakes: Fakes) -> None:
    """Programs that fork before they use CUDA could not use it afterwards."""
    program = """
cuda_kernels.install(c)
tell(calls=driver.fake_cuda_calls(), threads=len(os.listdir("/proc/self/task")))
"""
    found = fakes.run(program)
    assert (found["calls"], found["compiled"], found["threads"]) == (0, 0, 1)


def test_fat_binaries_need_no_compiler(fakes: Fakes) -> None:
    kernels = fakes.kernels(has_fat_binaries=True)
    found = fakes.run(ONE, kernels=kernels, has_nvrtc=False)
    assert unit(found) == {"state": "ready", "from": "fat binary"}


def test_fat_binaries_are_given_at_once_where_cuda_is_in_use(fakes: Fakes) -> None:
    program = """
cuda.is_initialized = lambda: True
cuda_kernels.install(c)
settle()
tell(states=sorted(set(c.cuda_units().values())))
"""
    found = fakes.run(program, kernels=fakes.kernels(has_fat_binaries=True))
    assert (found["states"], found["compiled"]) == (["ready"], 0)


@pytest.mark.parametrize(
    ("environment", "origin"),
    [
        ({"FAKE_CUDA_CAPABILITIES": "86"}, "fat binary"),  # runs what is for 80
        ({"FAKE_CUDA_CAPABILITIES": "121"}, "fat binary"),  # takes the PTX for 100
        ({"FAKE_CUDA_CAPABILITIES": "75"}, "compiled"),  # older than all of it
        ({"FAKE_CUDA_CAPABILITIES": "90,75"}, "compiled"),
        ({"FAKE_CUDA_VERSION": "12080", "FAKE_NVRTC_VERSION": "12"}, "compiled"),
    ],
)
def test_fat_binaries_serve_what_they_are_for(
    fakes: Fakes, environment: dict[str, str], origin: str
) -> None:
    kernels = fakes.kernels(has_fat_binaries=True)
    found = fakes.run(ONE, kernels=kernels, **environment)
    assert unit(found)["from"].startswith(origin)


def test_a_damaged_fat_binary_is_not_loaded(fakes: Fakes, tmp_path: Path) -> None:
    whole = fakes.kernels(has_fat_binaries=True)
    (tmp_path / "kernels.json").write_bytes((whole / "kernels.json").read_bytes())
    (tmp_path / "log_softmax.fatbin").write_bytes(b"PKED nonsense")
    found = fakes.run(ONE, kernels=tmp_path)
    assert unit(found)["from"].startswith("compiled")


def test_devices_that_differ_share_ptx(fakes: Fakes) -> None:
    for capabilities in ("80,90", "103"):  # and one that this NVRTC does not know
        found = fakes.run(ONE, FAKE_CUDA_CAPABILITIES=capabilities)
        assert unit(found)["from"].startswith("compiled")


def test_no_driver(fakes: Fakes) -> None:
    found = fakes.run(ONE, driver=Path())
    assert unit(found)["state"] == "broken"
    assert unit(found)["reason"].startswith("no NVIDIA driver: libcuda.so.1")


def test_a_driver_that_is_too_old(fakes: Fakes) -> None:
    found = fakes.run(ONE, FAKE_CUDA_VERSION="12080")
    too_old = "driver too old: it is for CUDA 12.8, needs 13.0"
    assert too_old in unit(found)["reason"]
    assert too_old in found["remarks"][0]


def test_a_driver_without_libraries(fakes: Fakes) -> None:
    found = fakes.run(ONE, driver=fakes.driver(has_libraries=False))
    assert unit(found)["state"] == "broken"
    assert "lacks cuLibraryLoadData" in unit(found)["reason"]


def test_nothing_compiles(fakes: Fakes) -> None:
    found = fakes.run(ONE, has_nvrtc=False)
    assert found["reason"] == "neither nvcc at build time nor NVRTC"
    assert unit(found)["reason"].startswith("neither nvcc at build time nor NVRTC")


def test_a_driver_that_fails_at_each_call_in_turn(fakes: Fakes) -> None:
    """Each failure leaves the unit broken, with a reason, and nothing else."""
    program = """
cuda_kernels.install(c)
want("log_softmax")
tell(calls=driver.fake_cuda_calls())
"""
    n_calls = fakes.run(program)["calls"]
    assert n_calls >= 7
    for n in range(1, n_calls + 1):
        found = fakes.run(program, FAKE_CUDA_FAIL_AT=str(n))
        assert unit(found)["state"] == "broken", n
        assert "driver" in unit(found)["reason"], n


@pytest.mark.parametrize("function", ["CreateProgram", "Compile", "GetCUBIN"])
def test_an_nvrtc_that_fails(fakes: Fakes, function: str) -> None:
    found = fakes.run(ONE, FAKE_NVRTC_FAIL=function)
    assert unit(found)["state"] == "broken"
    [remark] = found["remarks"]
    if function == "Compile":
        log = "kernel.cu(7): error: a planted error\nmore of it"
        assert unit(found)["reason"] == log
        assert remark == (
            "CUDA kernels that run stock, kernel.cu(7): error: a planted error: "
            "log_softmax"
        )
    else:
        assert f"nvrtc{function}" in unit(found)["reason"]


def test_an_nvrtc_that_does_not_start(fakes: Fakes) -> None:
    found = fakes.run(ONE, FAKE_NVRTC_FAIL="Version")
    assert "nvrtcVersion" in unit(found)["reason"]


def test_calls_go_on_while_a_unit_is_compiled(fakes: Fakes, tmp_path: Path) -> None:
    awaited = tmp_path / "go on"
    program = f"""
cuda_kernels.install(c)
c.cuda_want("log_softmax")
for _ in range(1000):
    c.cuda_want("log_softmax")
c.cuda_want("max_pool2d")
before = c.cuda_units()["log_softmax"]
Path({str(awaited)!r}).touch()
settle()
tell(before=before)
"""
    found = fakes.run(program, FAKE_NVRTC_WAIT=str(awaited))
    assert found["before"] == "wanted"
    assert unit(found)["state"] == unit(found, "max_pool2d")["state"] == "ready"
    assert found["compiled"] == 2


def test_switched_off_the_next_unit_waits(fakes: Fakes, tmp_path: Path) -> None:
    awaited = tmp_path / "go on"
    program = f"""
cuda_kernels.install(c)
c.cuda_want("log_softmax")
while not compiler.fake_nvrtc_compiled():
    os.sched_yield()
c.cuda_want("max_pool2d")
cuda_kernels.remove(c)
Path({str(awaited)!r}).touch()
settle("log_softmax")
off = c.cuda_units()["max_pool2d"]
cuda_kernels.install(c)
want("max_pool2d")
tell(off=off)
"""
    found = fakes.run(program, FAKE_NVRTC_WAIT=str(awaited))
    assert found["off"] == "wanted"
    assert {u["state"] for u in found["units"].values()} == {"ready"}


def test_the_end_of_the_program_waits_for_the_compiler(
    fakes: Fakes, tmp_path: Path
) -> None:
    """It would run into the library's destructors."""
    awaited = tmp_path / "go on"
    program = f"""
cuda_kernels.install(c)
c.cuda_want("log_softmax")
while not compiler.fake_nvrtc_compiled():
    os.sched_yield()
wait = providing.wait
def waited(timeout_s):
    Path({str(awaited)!r}).touch()
    print(json.dumps({{"waited": wait(timeout_s), "units": c.cuda_units()}}))
providing.wait = waited
"""
    found = fakes.run(program, FAKE_NVRTC_WAIT=str(awaited))
    assert found["waited"]
    assert found["units"]["log_softmax"] == "ready"


FORK = """
child = os.fork()
if child == 0:
    try:
        want("max_pool2d")
        os._exit(0 if c.cuda_units()["max_pool2d"] == {state!r} else 3)
    finally:
        os._exit(4)
_, status = os.waitpid(child, 0)
tell(child=os.waitstatus_to_exitcode(status))
"""


def test_a_fork_before_cuda_is_used(fakes: Fakes) -> None:
    found = fakes.run("cuda_kernels.install(c)" + FORK.format(state="ready"))
    assert found["child"] == 0


def test_a_fork_after_cuda_was_used(fakes: Fakes) -> None:
    """The driver refuses in the child, as it refuses torch; nothing hangs."""
    begin = "cuda_kernels.install(c)\nwant('log_softmax')"
    found = fakes.run(begin + FORK.format(state="broken"))
    assert found["child"] == 0


def test_a_fork_while_a_unit_is_compiled(fakes: Fakes, tmp_path: Path) -> None:
    """The child lacks the thread; the next call there starts another."""
    awaited = tmp_path / "go on"
    program = f"""
cuda_kernels.install(c)
c.cuda_want("log_softmax")
while not compiler.fake_nvrtc_compiled():
    os.sched_yield()
child = os.fork()
if child == 0:
    del os.environ["FAKE_NVRTC_WAIT"]
    try:
        want("log_softmax")
        os._exit(0 if c.cuda_units()["log_softmax"] == "broken" else 3)
    finally:
        os._exit(4)
_, status = os.waitpid(child, 0)
Path({str(awaited)!r}).touch()
settle()
tell(child=os.waitstatus_to_exitcode(status))
"""
    found = fakes.run(program, FAKE_NVRTC_WAIT=str(awaited))
    assert found["child"] == 0
    assert unit(found)["state"] == "ready"

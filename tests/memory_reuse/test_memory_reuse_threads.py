"""Memory reuse in programs with threads: how they end, and switching meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import reusing
import switching
import torch

from pai_torchacc import memory_reuse
from pai_torchacc.memory_reuse import float_mode

_autograd = torch._C._autograd
TIMES = 3
"""What a race shows, it need not show every time."""

PROGRAMS = {
    "thread": """
t = threading.Thread(target=lambda: None)
t.start()
t.join()
""",
    "many threads": """
threads = [threading.Thread(target=save) for _ in range(8)]
for t in threads: t.start()
""",
    "executor": """
pool = ThreadPoolExecutor(4)
list(pool.map(lambda _: save(), range(8)))
""",
    "daemons": """
saved = threading.Barrier(5)
def work(stays):
    save()
    saved.wait()
    if stays:
        threading.Event().wait()
for stays in (False, False, False, True):
    threading.Thread(target=work, args=(stays,), daemon=True).start()
saved.wait()
""",
    "enabled in a thread": """
t = threading.Thread(target=pai_torchacc.enable_memory_reuse)
t.start()
t.join()
""",
    "enabled in a thread that is no Thread": """
import _thread
done = threading.Event()
def run():
    pai_torchacc.enable_memory_reuse()
    done.set()
_thread.start_new_thread(run, ())
done.wait()
""",
    "fork": """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside a thread
save()  # the first registers exit handlers: a fork meanwhile would copy glibc's lock
forked = threading.Event()
def work():
    save()
    forked.wait()
t = threading.Thread(target=work)
t.start()
if os.fork():
    forked.set()
    os.wait()
else:
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
""",
}

BEFORE = """
import threading, torch, pai_torchacc
from concurrent.futures import ThreadPoolExecutor
torch.set_num_threads(1)
def save():
    x = torch.ones(1 << 10, requires_grad=True)
    x.exp().square().sum().backward()
"""


OFF = "pai_torchacc.disable()"


@pytest.mark.parametrize(
    ("name", "ending"),
    [*((name, "") for name in PROGRAMS), ("thread", OFF), ("daemons", OFF)],
)
def test_programs_with_threads_end_well(name: str, ending: str) -> None:
    if name == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    enable = "" if name.startswith("enabled") else "pai_torchacc.enable_memory_reuse()"
    program = "\n".join((BEFORE, enable, PROGRAMS[name], ending))
    for _ in range(TIMES):
        done = switching.forked(["-c", program])
        assert (done.stderr, done.returncode) == ("", 0)


def in_a_thread(work: Callable[[], Any]) -> tuple[threading.Event, Callable[[], Any]]:
    """Start a thread that waits for the event; and what returns what it then found."""
    go, found = threading.Event(), []

    def run() -> None:
        go.wait(60)
        found.append(work())

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        go.set()
        thread.join()
        return found[0]

    return go, result


def transforms() -> tuple[Any, Any]:
    return (
        _autograd._saved_tensors_hooks_disable,
        _autograd._saved_tensors_hooks_enable,
    )


def differentiated() -> list[float]:
    grad = torch.func.grad(lambda x: (x * x).sum())
    return grad(torch.ones(3)).tolist()


def test_other_threads_transforms_work_after_switching_off() -> None:
    stock = transforms()
    with reusing.reused():
        _, first = in_a_thread(differentiated)
        _, second = in_a_thread(lambda: None)
    assert transforms() != stock
    assert first() == [2.0] * 3
    second()
    assert transforms() == stock
    assert differentiated() == [2.0] * 3


def test_transforms_are_torchs_once_other_threads_have_saved() -> None:
    def save() -> tuple[Any, Any]:
        torch.ones(3, requires_grad=True).exp()
        return transforms()

    stock = transforms()
    with reusing.reused():
        assert transforms() != stock
        _, result = in_a_thread(save)
    assert result() == stock


def test_transforms_stay_ours_when_switched_on_again() -> None:
    stock = transforms()
    with reusing.reused():
        _, result = in_a_thread(differentiated)
    with reusing.reused():
        ours = transforms()
        assert result() == [2.0] * 3
        assert transforms() == ours
        assert differentiated() == [2.0] * 3
    assert transforms() == stock


def test_switching_on_again_reaches_threads_that_were_there() -> None:
    def enable() -> Any:
        assert memory_reuse.install(reusing.c) is None
        return _autograd._top_saved_tensors_default_hooks(True)

    stock = transforms()
    _, result = in_a_thread(enable)
    with reusing.reused():
        assert result()[0] is reusing.c.saved_pack
    assert transforms() == stock


def test_settings_are_changed_for_one_at_a_time() -> None:
    """Whoever comes meanwhile finds oneDNN's switch as the program left it."""
    here = float_mode.here(reusing.c)
    without = (*here[:2], not here[2])
    others_threads = (here[0] + 1, *here[1:])
    entered, go = threading.Event(), threading.Event()
    seen = []

    def first() -> None:
        entered.set()
        go.wait(60)
        seen.append(float_mode.here(reusing.c))

    def second() -> None:
        seen.append(float_mode.here(reusing.c))

    threads = [
        threading.Thread(target=float_mode.within, args=(reusing.c, wanted, work))
        for wanted, work in ((without, first), (others_threads, second))
    ]
    try:
        threads[0].start()
        assert entered.wait(60)
        threads[1].start()
        threads[1].join(0.2)
        go.set()
        for thread in threads:
            thread.join()
        assert seen == [without, others_threads]
        assert float_mode.here(reusing.c) == here
    finally:
        torch._C._set_mkldnn_enabled(here[2])


def test_a_setting_is_left_whatever_happens() -> None:
    class Interrupted:
        """Once the setting has been changed."""

        float_mode = reusing.c.float_mode
        set_float_mode = reusing.c.set_float_mode
        n = 0

        def set_own_threads(self, n: int) -> bool:
            done = reusing.c.set_own_threads(n)
            self.n += 1
            if self.n == 1:
                raise KeyboardInterrupt
            return done

    here = float_mode.here(reusing.c)
    other = (here[0] + 1, here[1] ^ 0x8000, not here[2])
    try:
        with pytest.raises(KeyboardInterrupt):
            float_mode.within(Interrupted(), other, lambda: None)
        assert float_mode.here(reusing.c) == here
        assert (
            float_mode.within(reusing.c, other, lambda: float_mode.here(reusing.c))
            == other
        )
        assert float_mode.here(reusing.c) == here
    finally:
        torch._C._set_mkldnn_enabled(here[2])
        reusing.c.set_float_mode(here[1])


def test_threads_that_begin_meanwhile_do_not_see_a_setting() -> None:
    now = float_mode.here(reusing.c)
    other = (now[0] + 1, *now[1:])

    def elsewhere() -> int:
        _, result = in_a_thread(torch.get_num_threads)
        return result()

    usual = elsewhere()
    assert float_mode.within(reusing.c, other, elsewhere) == usual
    assert elsewhere() == usual

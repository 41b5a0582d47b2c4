"""A fork waits for the package's locks, whatever happens meanwhile.

Each program runs in an interpreter of its own, since what is tested for is a hang.
"""

from __future__ import annotations

import os

import pytest
import switching

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

BEFORE = """
import faulthandler, os, signal, sys, threading, warnings
from pai_torchacc import _lock
# Python 3.12 and later warn of forks beside threads: an interrupt that is raised while
# the warning is shown does not reach the program.
warnings.simplefilter("ignore", DeprecationWarning)
faulthandler.dump_traceback_later(60, exit=True)
LOCKS = [_lock.float_mode, _lock.switch, _lock.hooks, _lock.saved_storage]

def free_in_another_thread():
    found = []
    def take():
        for lock in LOCKS:
            found.append(lock.acquire(timeout=5))
            if found[-1]:
                lock.release()
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found

def child(is_well):
    os._exit(0 if is_well() else 1)

def ended_well(pid):
    return os.waitpid(pid, 0)[1] == 0
"""

INTERRUPTED = """
class Interrupt(Exception):
    pass

def interrupt(*_):
    raise Interrupt("kept")

signal.signal(signal.SIGALRM, interrupt)
lock = LOCKS[int(sys.argv[1])]
taken, go = threading.Event(), threading.Event()
is_held = True
def hold():
    global is_held
    with lock:
        taken.set()
        go.wait()
        is_held = False
thread = threading.Thread(target=hold)
thread.start()
taken.wait()
# The second finds the fork waiting again.
timers = [
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGALRM)),
    threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGALRM)),
    threading.Timer(0.6, go.set),
]
for timer in timers:
    timer.start()
interrupts = []
try:
    if os.fork() == 0:
        child(lambda: not is_held and all(free_in_another_thread()))
except Interrupt as error:
    interrupts.append(str(error))
pid, status = os.wait()
assert interrupts == ["kept"], interrupts
assert status == 0, status
thread.join()
assert all(free_in_another_thread())
print("well")
"""

HELD = """
# By the thread that forks, as in the midst of enable().
with LOCKS[1], LOCKS[1], LOCKS[3]:
    pid = os.fork()
    if pid == 0:
        held = all(LOCKS[i]._is_owned() for i in (1, 3))
is_free = free_in_another_thread()
if pid == 0:
    child(lambda: held and all(is_free))
assert all(is_free), is_free
assert ended_well(pid)
print("well")
"""

IN_A_THREAD = """
codes = []
def fork():
    with LOCKS[1]:
        pid = os.fork()
        if pid == 0:
            held = LOCKS[1]._is_owned()
    if pid == 0:
        child(lambda: held and all(free_in_another_thread()))
    codes.append(ended_well(pid))
threads = [threading.Thread(target=fork) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert codes == [True] * 4, codes
assert all(free_in_another_thread())
print("well")
"""


@pytest.mark.parametrize("lock", range(4))
def test_interrupted_while_it_waits(lock: int) -> None:
    assert switching.python(BEFORE + INTERRUPTED, str(lock)) == "well\n"


@pytest.mark.parametrize("program", [HELD, IN_A_THREAD], ids=["main", "threads"])
def test_locks_that_the_forking_thread_holds(program: str) -> None:
    assert switching.python(BEFORE + program) == "well\n"

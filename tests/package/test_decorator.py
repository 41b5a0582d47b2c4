"""``@ptac.enable()`` around functions, generators and coroutines."""

import asyncio
import threading

import pytest

import pai_torchacc as ptac


def is_on() -> bool:
    return ptac.is_enabled("operator_fusion")


def test_a_function_runs_enabled() -> None:
    @ptac.enable()
    def work(x: int, *, y: int) -> tuple[int, bool]:
        """Of the user."""
        return x + y, is_on()

    assert not is_on()  # decorating leaves the process as it was
    assert work(1, y=2) == (3, True)
    assert not is_on()
    assert (work.__name__, work.__doc__) == ("work", "Of the user.")


def test_what_was_on_stays_on() -> None:
    @ptac.enable(numerics="exact")
    def work() -> bool:
        return ptac.is_enabled("memory_pool") and is_on()

    with ptac.enable_memory_pool():
        assert work()
        assert ptac.is_enabled("memory_pool")
        assert not is_on()


def test_an_exception_restores() -> None:
    @ptac.enable()
    def work() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        work()
    assert not is_on()


def test_recursion_and_threads() -> None:
    barrier = threading.Barrier(2)
    seen = []

    @ptac.enable()
    def work(n: int) -> None:
        if n:
            work(n - 1)
        else:
            barrier.wait(60)
        seen.append(is_on())

    threads = [threading.Thread(target=work, args=(3,)) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(seen) == 8
    assert not is_on()


def test_generators_and_coroutines() -> None:
    @ptac.enable()
    def steps():
        got = yield is_on()
        yield got, is_on()

    run = steps()
    assert not is_on()
    assert next(run) is True
    assert run.send(5) == (5, True)
    run.close()
    assert not is_on()

    @ptac.enable()
    async def wait() -> bool:
        await asyncio.sleep(0)
        return is_on()

    assert asyncio.run(wait())
    assert not is_on()


def test_what_is_no_function_is_told() -> None:
    with pytest.raises(TypeError, match="decorates a function"):
        ptac.enable_memory_pool()(3)
    ptac.disable()

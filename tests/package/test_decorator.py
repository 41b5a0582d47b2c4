"""``@ptac.enable()`` around functions, generators and coroutines."""

import asyncio
import threading
from collections.abc import AsyncGenerator

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


def test_recursion() -> None:
    seen = []

    @ptac.enable()
    def work(n: int) -> None:
        if n:
            work(n - 1)
        seen.append(is_on())

    work(3)
    assert seen == [True] * 4
    assert not is_on()


@pytest.mark.parametrize("begun_first_ends_first", [True, False])
def test_calls_of_two_threads_overlap(begun_first_ends_first: bool) -> None:
    has_begun = [threading.Event(), threading.Event()]
    may_end = [threading.Event(), threading.Event()]
    seen = []

    @ptac.enable()
    def work(i: int) -> None:
        has_begun[i].set()
        assert may_end[i].wait(60)
        seen.append(is_on())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for i in range(2):
        threads[i].start()
        assert has_begun[i].wait(60)
    for i in range(2) if begun_first_ends_first else reversed(range(2)):
        assert is_on()
        may_end[i].set()
        threads[i].join()
    assert seen == [True, True]
    assert not is_on()


def test_blocks_of_one_handle_overlap_in_two_threads() -> None:
    handle = ptac.enable_memory_pool()
    handle.disable()
    with handle:
        inside, leave = threading.Event(), threading.Event()

        def work() -> None:
            with handle:
                inside.set()
                assert leave.wait(60)

        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(60)
    assert ptac.is_enabled("memory_pool")  # the other thread's block is open
    leave.set()
    thread.join()
    assert not ptac.is_enabled("memory_pool")


def test_generators_overlap() -> None:
    @ptac.enable()
    def steps():
        yield is_on()
        yield is_on()

    first, second = steps(), steps()
    assert next(first) and next(second)
    first.close()
    assert next(second)
    second.close()
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


def test_asynchronous_generators() -> None:
    closed = []

    @ptac.enable()
    async def steps(seen: list[object]) -> AsyncGenerator[bool, int]:
        try:
            seen.append((yield is_on()))
            try:
                yield is_on()
            except LookupError as error:
                seen.append(error)
            yield is_on()
        finally:
            closed.append(is_on())

    async def main() -> list[object]:
        seen: list[object] = []
        run = steps(seen)
        assert not is_on()
        assert await anext(run) is True
        assert await run.asend(5) is True
        assert await run.athrow(error := LookupError()) is True
        assert seen == [5, error]
        await run.aclose()
        return [on async for on in steps([])]

    assert asyncio.run(main()) == [True, True, True]
    assert closed == [True, True]
    assert not is_on()


def test_what_is_no_function_is_told() -> None:
    with pytest.raises(TypeError, match="decorates a function"):
        ptac.enable_memory_pool()(3)
    ptac.disable()

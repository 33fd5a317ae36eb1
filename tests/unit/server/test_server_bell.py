"""The bell: nobody sleeps through a ring."""

from __future__ import annotations

import asyncio
import threading

from scanflow_server.bell import Bell


def test_a_ring_between_a_look_and_the_wait_after_it_is_heard() -> None:
    bell = Bell()
    rang = bell.rang
    bell.ring()
    bell.wait(rang, 1e9)
    asyncio.run(bell.heard(rang, 1e9))


def test_all_who_wait_in_threads_and_coroutines_are_woken() -> None:
    bell = Bell()
    rang = bell.rang
    threads = [threading.Thread(target=bell.wait, args=(rang, 60)) for _ in range(3)]
    for thread in threads:
        thread.start()

    async def wait() -> None:
        waiting = [asyncio.create_task(bell.heard(rang, 60)) for _ in range(3)]
        await asyncio.sleep(0)
        threading.Thread(target=bell.ring).start()
        await asyncio.wait_for(asyncio.gather(*waiting), 30)

    asyncio.run(wait())
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_wait_without_a_ring_ends_and_is_forgotten() -> None:
    bell = Bell()
    bell.wait(bell.rang, 0)
    asyncio.run(bell.heard(bell.rang, 0))
    bell.ring()  # nobody is left of the loop that has ended


def test_a_loop_that_has_ended_is_not_rung() -> None:
    bell = Bell()

    async def give_up() -> None:
        waiting = asyncio.create_task(bell.heard(bell.rang, 60))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(give_up())
    bell.ring()

"""The notifier: nobody sleeps through a ring."""

from __future__ import annotations

import asyncio
import threading

from scanflow_server.change_notifier import ChangeNotifier
from tests.waiting import PATIENCE_S


def test_a_ring_between_a_look_and_the_wait_after_it_is_heard() -> None:
    notifier = ChangeNotifier()
    since = notifier.changes
    notifier.notify()
    notifier.wait(since, 1e9)
    asyncio.run(notifier.wait_async(since, 1e9))


def test_all_who_wait_in_threads_and_coroutines_are_woken() -> None:
    notifier = ChangeNotifier()
    since = notifier.changes
    threads = [threading.Thread(target=notifier.wait, args=(since, 1e9), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()

    async def wait() -> None:
        waiting = [asyncio.create_task(notifier.wait_async(since, 1e9)) for _ in range(3)]
        await asyncio.sleep(0)
        threading.Thread(target=notifier.notify).start()
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)

    asyncio.run(wait())
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_wait_without_a_ring_or_that_is_given_up_ends_and_is_forgotten() -> None:
    notifier = ChangeNotifier()
    notifier.wait(notifier.changes, 0)
    asyncio.run(notifier.wait_async(notifier.changes, 0))

    async def give_up() -> None:
        waiting = asyncio.create_task(notifier.wait_async(notifier.changes, 1e9))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(give_up())
    notifier.notify()  # nobody is left of the loops that have ended


def test_a_look_finds_what_nobody_notifies_of_and_one_that_fails_ends_with_the_wait() -> None:
    notifier, looks = ChangeNotifier(), list[int]()

    def look() -> bool:
        looks.append(len(looks))
        return len(looks) == 3

    def fail() -> bool:
        raise PermissionError

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        await notifier.wait_or_look(notifier.changes, look, False, every_s=0.001, timeout_s=1e9)
        loop.set_exception_handler(lambda *_: None)
        await notifier.wait_or_look(notifier.changes, fail, False, every_s=0.001, timeout_s=0.01)
        since = notifier.changes
        loop.call_soon(notifier.notify)
        await notifier.wait_or_look(since, bool, False, every_s=1e9, timeout_s=1e9)

    asyncio.run(asyncio.wait_for(wait(), PATIENCE_S))
    assert len(looks) == 3

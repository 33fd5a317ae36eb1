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

"""The command ``top``: what runs now, refreshed in place."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

from typer import Option

from scanflow.errors import UnavailableError
from scanflow.text.printable import can_print
from scanflow_client.cli.command_options import JsonOption, load_settings, open_deployer, open_existing_client
from scanflow_client.cli.command_output import respond

if TYPE_CHECKING:
    from scanflow_client.top_reading import TopReader

QUIT_KEYS = b"qQ\x04"
"""q, and the end of input."""

Wait = Callable[[float], bool]
"""Waits for some seconds; returns whether to end."""


def top(
    interval: Annotated[
        float, Option("--interval", "-i", metavar="SECONDS", min=0.5, max=3600, help="Time between two readings.")
    ] = 2.0,
    once: Annotated[bool, Option("--once", help="Print one reading and end, as to a file or a pipe.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show services, instances, CPUs, agents and runs, again and again. q ends it.

    To a file or a pipe, one reading is printed.

    Examples:
        scanflow top
        scanflow top --once | grep degraded
    """
    from scanflow.processes.proc_stat import read_busy_seconds
    from scanflow_client.formatting.top_text import LEVELS, format_top
    from scanflow_client.top_reading import TopReader

    settings = load_settings()
    is_here = settings.url is None and settings.backend in {None, "local"}
    client = open_existing_client()
    reader = TopReader(
        open_deployer(),
        list_agents=tuple if client is None else client.agents,
        read_cpus=read_busy_seconds if is_here else None,
    )
    if not as_json and not once and sys.stdout.isatty():
        with suppress(KeyboardInterrupt), watch_keys() as wait:
            show_readings(reader, wait, interval)
        return
    reading = reader.read()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    ascii_only = not can_print(LEVELS, sys.stdout)
    respond(reading, as_json, lambda: format_top(reading, width=width, ascii_only=ascii_only))


def show_readings(reader: TopReader, wait: Wait, interval_s: float) -> None:
    """Show one reading after the other in place, until ``wait`` says to end; what fails for a while is shown."""
    from rich.live import Live

    from scanflow_client.terminal_styles import open_console
    from scanflow_client.top_screen import TopScreen

    screen = TopScreen()
    with Live(screen, console=open_console(sys.stdout), screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            try:
                screen.show(reader.read())
            except UnavailableError as error:
                screen.report(error)
            live.refresh()
            if wait(max(0.0, interval_s - (time.monotonic() - began))):
                return


@contextmanager
def watch_keys() -> Iterator[Wait]:
    """Provide a function that waits for some seconds, and returns early, with True, when a key to end is pressed."""
    if not sys.stdin.isatty():
        yield _pause
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield _wait_for_key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pause(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _wait_for_key(seconds: float) -> bool:
    ends, descriptor = time.monotonic() + seconds, sys.stdin.fileno()
    while select.select([descriptor], [], [], max(0.0, ends - time.monotonic()))[0]:
        keys = os.read(descriptor, 1024)  # none: the terminal is gone
        if not keys or any(key in QUIT_KEYS for key in keys):
            return True
    return False

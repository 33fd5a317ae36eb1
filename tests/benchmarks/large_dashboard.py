"""Every page of the dashboard in Chromium, of a server with a large store, and what an open tab costs that is idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import quote

import psutil

from scanflow.application_loading import load_application
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from scanflow_client.client import Client
from scanflow_server.dashboard.live_pages import MAX_PAUSE_S
from scanflow_server.dashboard.pages import PAGES
from tests.benchmarks.control_server import TOKEN, give_token
from tests.benchmarks.large_store import FilledStore, StoreSize, fill_store
from tests.benchmarks.measure import Benchmark, Metric, NotMeasuredError, Places, Section
from tests.benchmarks.servers import Probe, Server, command_line, free_port, start_server
from tests.browser.chromium import Browser, is_installed, open_browser

_PAINT_MS, _TASK_MS, _IDLE_SHARE = 300.0, 100.0, 0.001
_ENTER = "\ue007"
_WIDE = """
import scanflow as sf
load = sf.Executor(name="load", mainfile="wait.py")
fits = [sf.Executor(name=f"fit-{number}", mainfile="wait.py") for number in range(998)]
score = sf.Executor(name="score", mainfile="wait.py")
app = sf.Application(name="wide", team="bench", workflows=[sf.Workflow(name="wide", nodes=[load, *fits, score],
    edges=[sf.Dependency(dependee=dependee, depender=depender) for fit in fits
           for dependee, depender in (("load", fit.name), (fit.name, "score"))])])
"""
_OBSERVE = """
window.longest = 0;
new PerformanceObserver(list => list.getEntries().forEach(task => {
  window.longest = Math.max(window.longest, task.duration);
})).observe({type: 'longtask', buffered: true});
"""
_READ = """
const [paint] = performance.getEntriesByName('first-contentful-paint');
return [paint ? paint.startTime : null, window.longest];
"""


@dataclass(frozen=True, kw_only=True)
class DashboardSize:
    store: StoreSize
    idle_s: float = MAX_PAUSE_S
    """How long the server's CPU time is measured with a tab, and without; the page is rendered once in it."""
    rounds: int = 5
    """How often each page is opened."""


LARGE_DASHBOARD = DashboardSize(store=StoreSize(queued=1, ended=9_999, events=100_000))


def large_dashboard(places: Places, section: Section, size: DashboardSize) -> Benchmark:
    def sample(folder: Path) -> Mapping[str, float]:
        if not is_installed():
            raise NotMeasuredError("The programs chromium and chromedriver are not installed.")
        home = folder / "scanflow"
        give_token(home)
        filled = fill_store(home, size.store)
        wide = _enter_wide_run(home)
        port = free_port()
        command: list[str | Path] = [places.python, "-m", "scanflow_server", "--home", home, "--port", str(port)]
        periods = ("EVENTS", "EVENTS_DAYS", "ENDED_DAYS", "KEYS_DAYS", "AUDIT_DAYS")  # what is made up is old
        extra = {"SCANFLOW_MAX_RUNS": "1"} | {f"SCANFLOW_KEEP_{name}": "0" for name in periods}
        with (
            start_server(command, folder, port=port, probe=Probe(path="/readyz"), extra=extra) as server,
            open_browser(folder) as browser,
        ):
            url = server.url("")
            _log_in(browser, url)
            figures = {
                address: _open_often(browser, f"{url}{address}", size.rounds)
                for address in list_addresses(filled, wide)
            }
            idle_share = _measure_idle(browser, f"{url}/", server, size)
        for address, (paint_ms, task_ms) in sorted(figures.items(), key=lambda item: -item[1][0]):
            print(f"    {paint_ms:6.0f} ms to the first paint, longest task {task_ms:5.0f} ms: {address}", flush=True)
        paints, tasks = zip(*figures.values(), strict=True)
        return {"pages": len(figures), "paint_ms": max(paints), "task_ms": max(tasks), "idle_percent": 100 * idle_share}

    store = size.store
    return Benchmark(
        name="dashboard",
        section=section,
        metrics=[
            Metric("paint_ms", "the slowest page: median time to its first paint", "ms", bar=_PAINT_MS),
            Metric("task_ms", "the longest task of the main thread, of all pages: median", "ms", bar=_TASK_MS),
            Metric("idle_percent", "an idle open tab: of a core of the server", "%", bar=100 * _IDLE_SHARE),
            Metric("pages", "pages opened", ""),
        ],
        contenders={"Scanflow": sample},
        how=(
            f"{store.queued + store.ended:,} runs, one of 1,000 nodes, {store.events:,} events, {store.intents:,} "
            f"actions, {store.labels:,} samples; each page {size.rounds} times in headless Chromium, which shares the "
            f"machine with the server; then, without a run, the overview left open for {size.idle_s:g} s, less "
            "the server without a tab for as long"
        ),
        rounds=1,
        warm_up=False,
    )


def _enter_wide_run(home: Path) -> str:
    """Enter a run of a thousand nodes, which ended before any began; return its name."""
    source = home / "wide.py"
    source.write_text(_WIDE)
    app, path, _ = load_application(str(source))
    deployer = EmbeddedDeployer(Settings(home=home))
    run = deployer.batch.enter(deployer.define(RunRequest(app, "wide", source=path))).name
    deployer.batch.give_up(run, "for a benchmark")
    return run


def list_addresses(filled: FilledStore, wide: str) -> list[str]:
    """Return the addresses of all pages, and of windows far into long tables."""
    names = {"run": wide, "app": "bench", "agent": "agent-1"}
    by_section = {"actions": {"id": filled.intent}, "events": {"id": "50000"}}
    addresses = ["/runs?start=5000", f"/runs/{filled.ended_run}", "/reports/bench"]
    for page in PAGES:
        path, values = page.path, {**names, **by_section.get(page.path.split("/")[1], {})}
        for name, value in values.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        if "{" not in path:  # else nothing in the store is what it is about
            addresses.append(f"{path}?other={filled.ended_run}" if path.endswith("/compare") else path)
    return addresses


def _log_in(browser: Browser, url: str) -> None:
    browser.resize(1280)
    browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _OBSERVE})
    browser.open(f"{url}/login", "Log in")
    browser.press(TOKEN, _ENTER)
    browser.wait_for("Log out")


def _open_often(browser: Browser, address: str, rounds: int) -> tuple[float, float]:
    """Return the median time to the first paint and of the longest task, in milliseconds."""
    paints, tasks = list[float](), list[float]()
    for _ in range(rounds):
        browser.driver.get(address)
        threading.Event().wait(1.0)  # its stream has sent the page once more
        paint_ms, task_ms = browser.driver.execute_script(_READ)
        if paint_ms is None:
            raise NotMeasuredError(f"Chromium painted nothing of {address}.")
        paints.append(paint_ms)
        tasks.append(task_ms)
    return median(paints), median(tasks)


def _measure_idle(browser: Browser, address: str, server: Server, size: DashboardSize) -> float:
    """Return the share of a core that a tab takes which is open and shows no change.

    No run is left, since the server looks at those some times a second, with a tab or without.
    """
    client = Client(server.url(""), token=TOKEN)
    while running := [run for run in client.runs(limit=20) if run.state == "running"]:
        for run in running:
            client.stop(run.name)
        threading.Event().wait(5.0)
    browser.driver.get("about:blank")
    without = _measure_share(server, size.idle_s)
    browser.open(address, "Overview")
    threading.Event().wait(size.idle_s)  # pauses grow while nothing changes
    return _measure_share(server, size.idle_s) - without


def _measure_share(server: Server, seconds: float) -> float:
    own = [process for process in server.processes() if "scanflow_server" in command_line(process)]
    before, began = sum(map(_count_cpu_s, own)), time.monotonic()
    threading.Event().wait(seconds)
    return (sum(map(_count_cpu_s, own)) - before) / (time.monotonic() - began)


def _count_cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system

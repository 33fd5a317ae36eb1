"""The controller of agents: those that are wanted run, each as a process of its own, and those that are not, end."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scanflow.agent.records import AgentView
from scanflow.private import private_folder
from scanflow_server.context import ServerContext
from scanflow_server.control.loop import ErrorIsolation
from scanflow_server.control.processes import Processes
from scanflow_server.jobs import GRACE_S, Job, write_whole
from scanflow_server.store import agents, events
from scanflow_server.store.agents import AgentRow

SILENT_S = 15.0
"""After so long without a word an agent is silent; it says every 5 s where it is."""

_LAST_WORDS = 8192
"""So many bytes of a log are looked at for why its process ended."""


class AgentsController:
    period_s = 0.5

    def __init__(
        self,
        context: ServerContext,
        *,
        program: Sequence[str] = ("-m", "scanflow_agents"),
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``program`` is what an agent's process runs, with the agent's folder as its argument."""
        self._context, self._program, self._grace_s = context, program, grace_s
        self._processes, self._isolation = Processes(context.work.notify, clock=clock), ErrorIsolation()
        self._states: dict[tuple[str, str], str] = {}

    def tick(self) -> None:
        with self._context.store.read() as connection:
            known = agents.listed(connection)
        for one in known:
            with self._isolation.of(f"The agent {one.app}/{one.name}"):
                if one.document is not None:
                    self._look(one, self._context.agent_job(one.app, one.name))
                self._tell(one)

    def _look(self, one: AgentRow, job: Job) -> None:
        alive = job.alive
        if alive and (not one.wanted or not _is_as_wanted(self._context, one, job)):
            job.daemon.stop()
        elif alive:
            self._processes.lives(job)
        elif one.wanted:
            self._start(one, job)

    def _start(self, one: AgentRow, job: Job) -> None:
        again = _is_as_wanted(self._context, one, job)
        if not again:
            _hand_over(one, job)
            _prepare(self._context, one, job)
            self._processes.forget(job)
            job.reset_starts()
        command = [sys.executable, "-P", *self._program, str(_folder(job))]
        if self._processes.start(job, self._context.environ, command=command, grace_s=self._grace_s) and again:
            with self._context.store.write() as connection:
                agents.restarted(connection, one.app, one.name)

    def _tell(self, one: AgentRow) -> None:
        state, place = view_of(self._context, one).state, (one.app, one.name)
        before, at = self._states.get(place), self._context.clock()
        if state == "silent" and before not in {None, "silent"}:
            with self._context.store.write() as connection:
                told = {"seen": one.seen}
                events.tell(connection, "agent.missed", f"agent/{one.name}", at=at, app=one.app, data=told)
        self._states[place] = state


def view_of(context: ServerContext, one: AgentRow) -> AgentView:
    heard = one.seen is not None and context.clock() - one.seen <= SILENT_S
    job = context.agent_job(one.app, one.name)
    ours = one.document is not None
    pid = job.pid if ours else one.pid
    alive = pid is not None if ours else heard
    told = not ours or (one.pid == pid and _is_as_wanted(context, one, job))
    there = heard and told
    if not one.wanted and ours:
        state = "stopping" if alive else "stopped"
    elif there:
        state = "running"
    elif one.seen is None or not told:
        state = "starting"
    else:
        state = "silent"
    return AgentView.model_validate(
        {
            **one.model_dump(include={"name", "app", "team", "restarts"}),
            "state": state,
            "url": one.url if there else None,
            "pid": pid if alive else None,
            "started": one.started if there else None,
            "error": _error(job, alive=alive, there=there) if ours and one.wanted else None,
        }
    )


def _error(job: Job, *, alive: bool, there: bool) -> str | None:
    if there:
        return _noted(_folder(job) / "ailment.json")
    noted = _noted(_folder(job) / "failure.json")
    return noted if noted is not None or alive else _last_line(job.log)


def _noted(path: Path) -> str | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(found.get("error")) if isinstance(found, dict) else None


def _last_line(log: Path) -> str | None:
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS))
            lines = file.read().decode(errors="replace").rstrip().splitlines()
    except OSError:
        return None
    traced = any(line.startswith("Traceback (most recent call last)") for line in lines)
    return lines[-1] if traced and re.match(r"[A-Za-z_][\w.]*(: |$)", lines[-1]) else None


def _folder(job: Job) -> Path:
    return job.path / "host"


def _hand_over(one: AgentRow, job: Job) -> None:
    """Give a team's agent the folder of that team's.

    What an agent of that name keeps for another team is put aside until that team has it again; so it is never mixed
    up, whenever this is cut short.
    """
    whose = job.path / "team"
    before = whose.read_text(encoding="utf-8") if whose.exists() else one.team
    if before != one.team:
        job.path.rename(_other_team_path(job, before))
    if not job.path.exists() and _other_team_path(job, one.team).exists():
        _other_team_path(job, one.team).rename(job.path)
    private_folder(job.path)
    write_whole(whose, one.team)


def _other_team_path(job: Job, team: str) -> Path:
    return job.path.with_name(f".{job.path.name}@{team}")  # no agent is named so


def _prepare(context: ServerContext, one: AgentRow, job: Job) -> None:
    private_folder(_folder(job))
    spec = {
        "application": one.document,
        "source": one.source,
        "agent": one.name,
        "server": context.url or None,
        "home": str(context.settings.home),
        "tracker_uri": context.settings.library.tracker_uri,
    }
    code = code_of(one.document or {}, one.source, one.name)
    texts = {
        _folder(job) / "agent.json": json.dumps(spec),
        job.path / "code": code,
        job.path / "told": _mark(context, one),
    }
    (_folder(job) / "failure.json").unlink(missing_ok=True)  # of what it was told before
    for path, text in texts.items():
        write_whole(path, text)


def code_of(document: Mapping[str, Any], source: str | None, agent: str) -> str:
    own: Mapping[str, Any] = next((one for one in document.get("agents", ()) if one.get("name") == agent), {})
    root = Path("/" if source is None else source).parent / str(document.get("app_dir", "."))
    modules = [root / str(module) for module in own.get("modules", ())]
    digest = hashlib.sha256()
    for folder in sorted({module.parent for module in modules}):
        for file in sorted(folder.glob("*.py")):
            digest.update(str(file).encode())
            with suppress(OSError):  # it is told by who loads it
                digest.update(file.read_bytes())
    return digest.hexdigest()


def has_other_code(job: Job, document: Mapping[str, Any], source: str | None, agent: str) -> bool:
    try:
        return (job.path / "code").read_text(encoding="utf-8") != code_of(document, source, agent)
    except FileNotFoundError:
        return False


def _is_as_wanted(context: ServerContext, one: AgentRow, job: Job) -> bool:
    try:
        return (job.path / "told").read_text(encoding="utf-8") == _mark(context, one)
    except FileNotFoundError:
        return False


def _mark(context: ServerContext, one: AgentRow) -> str:
    return f"{one.generation} {context.url}"  # an agent that knows another address of ours would never be heard

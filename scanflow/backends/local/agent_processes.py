"""Agents as processes of this machine, each with its own folder below the home."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from scanflow.backends.agent_hosting import AgentProcess, HostedAgent, ignore_message
from scanflow.backends.log_files import FileLogs
from scanflow.errors import NotFoundError
from scanflow.files.private import create_private_folder
from scanflow.http.tls_files import TlsFiles
from scanflow.processes.background_jobs import GRACE_S, Job, Processes, write_whole

_LOG_TAIL_BYTES = 8192
"""Bytes at the end of a log that are searched for the reason why its process ended."""


class LocalAgents:
    """See :class:`~scanflow.backends.agent_hosting.AgentBackend`.

    ``<home>/server/agents/<app>/<name>`` is an agent's folder: ``host`` is its own, ``version``, ``code`` and
    ``team`` are what it was started with, and beside them are its log and the process' attempts.
    """

    def __init__(
        self,
        home: Path,
        *,
        ended: Callable[[], None],
        program: Sequence[str] = ("-m", "scanflow_agents"),
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
        prepare_tls: Callable[[], TlsFiles | None] = lambda: None,
    ) -> None:
        """``program`` is the command of an agent's process; its argument is the agent's folder. ``prepare_tls`` returns
        what agents serve TLS with."""
        self._prepare_tls = prepare_tls
        self._home, self._program, self._grace_s = home, program, grace_s
        self._processes = Processes(ended, clock=clock)

    def start(self, agent: HostedAgent, *, observe: Callable[[str], object] = ignore_message) -> bool:  # noqa: ARG002
        job = self._get_job(agent.app, agent.name)
        is_restart = _read_version(job) == agent.version and self._is_of_home(job)
        if job.alive:
            if is_restart:
                self._processes.note_alive(job)
            else:
                job.daemon.stop()
            return False
        if not is_restart:
            _switch_team(agent, job)
            self._prepare(agent, job)
            self._processes.forget(job)
            job.reset_starts()
        command = [sys.executable, "-P", *self._program, str(_get_folder(job))]
        has_started = self._processes.start(job, agent.environment, command=command, grace_s=self._grace_s)
        return has_started and is_restart

    def stop(self, app: str, team: str, name: str) -> None:  # noqa: ARG002  a name is one team's at a time
        self._get_job(app, name).daemon.stop()

    def show(self, app: str, team: str, name: str) -> AgentProcess:
        job = self._get_job(app, name)
        alive, pid = job.alive, job.pid
        failure = _read_error(_get_folder(job) / "failure.json")
        return AgentProcess(
            app=app,
            team=team,
            name=name,
            alive=alive,
            started=pid is not None,
            version=_read_version(job),
            code=_read_text(job.path / "code"),
            pid=pid,
            failure=failure if failure is not None or alive else _read_last_line(job.log),
            ailment=_read_error(_get_folder(job) / "ailment.json"),
        )

    def agents(self) -> list[AgentProcess]:
        folders = [
            path.parent for path in sorted(self._root.glob("*/*/attempts")) if not path.parent.name.startswith(".")
        ]
        agents = [self.show(path.parent.name, _read_text(path / "team") or "default", path.name) for path in folders]
        return [agent for agent in agents if agent.alive]

    def logs(self, app: str, team: str, name: str) -> FileLogs:  # noqa: ARG002
        job = self._get_job(app, name)
        if not job.path.is_dir():
            raise NotFoundError(f"The agent {app}/{name} was never started here. Start it: scanflow agents --start")
        return FileLogs(lambda: ([(name, job.log)], not job.alive))

    @property
    def _root(self) -> Path:
        return self._home / "server" / "agents"

    def _get_job(self, app: str, name: str) -> Job:
        return Job(self._root / app / name)

    def _is_of_home(self, job: Job) -> bool:
        """Return whether an agent was prepared in this home, at this path: it may have been moved since."""
        try:
            spec = json.loads(_read_text(_get_folder(job) / "agent.json") or "{}")
        except ValueError:
            return False
        return bool(spec.get("home") == str(self._home))

    def _prepare(self, agent: HostedAgent, job: Job) -> None:
        create_private_folder(_get_folder(job))
        tls = self._prepare_tls()
        spec = {
            "application": agent.document,
            "source": agent.source,
            "agent": agent.name,
            "server": agent.server,
            "store": agent.store,
            "token": None if agent.token is None else agent.token.get_secret_value(),
            "peer_token": None if agent.peer_token is None else agent.peer_token.get_secret_value(),
            "tls": None if tls is None else asdict(tls),
            "home": str(self._home),
            "tracker_uri": agent.tracker,
        }
        (_get_folder(job) / "failure.json").unlink(missing_ok=True)  # of the previous version
        write_whole(_get_folder(job) / "agent.json", json.dumps(spec))
        write_whole(job.path / "code", agent.code)
        write_whole(job.path / "version", agent.version)


def _get_folder(job: Job) -> Path:
    return job.path / "host"


def _read_version(job: Job) -> str | None:
    version = _read_text(job.path / "version")
    return _read_text(job.path / "told") if version is None else version  # as an earlier version wrote it


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read_error(path: Path) -> str | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(document.get("error")) if isinstance(document, dict) else None


def _read_last_line(log: Path) -> str | None:
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").rstrip().splitlines()
    except OSError:
        return None
    traced = any(line.startswith("Traceback (most recent call last)") for line in lines)
    return lines[-1] if traced and re.match(r"[A-Za-z_][\w.]*(: |$)", lines[-1]) else None


def _switch_team(agent: HostedAgent, job: Job) -> None:
    """Switch an agent's folder to its team.

    The folder of another team's agent of that name is renamed until that team starts it again; the data of teams never
    mixes, whenever this is interrupted.
    """
    team_file = job.path / "team"
    previous_team = team_file.read_text(encoding="utf-8") if team_file.exists() else agent.team
    if previous_team != agent.team:
        job.path.rename(_get_other_team_path(job, previous_team))
    if not job.path.exists() and _get_other_team_path(job, agent.team).exists():
        _get_other_team_path(job, agent.team).rename(job.path)
    create_private_folder(job.path)
    write_whole(team_file, agent.team)


def _get_other_team_path(job: Job, team: str) -> Path:
    return job.path.with_name(f".{job.path.name}@{team}")  # no agent is named so

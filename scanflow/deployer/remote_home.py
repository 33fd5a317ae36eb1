"""The running server of a home folder: the file that ``scanflow up`` writes, and the processes it names."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.errors import UnavailableError
from scanflow.files.private import create_private_folder, open_home
from scanflow.processes.daemon import Daemon
from scanflow.settings import Settings
from scanflow.transport.mlflow_api import MLFLOW_PATH


class UpProcess(BaseModel):
    model_config = ConfigDict(frozen=True)

    folder: Path
    """The folder of its :class:`~scanflow.processes.daemon.Daemon`."""

    pid: int
    """For display only: commands and events go through its folder, as it may be restarted."""

    port: int
    url: str
    log: str
    """The file of its log."""

    @property
    def daemon(self) -> Daemon:
        return Daemon(self.folder)

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self.daemon.alive

    def terminate(self, *, patience_s: float) -> bool:
        if not self.daemon.alive:
            return False
        self.daemon.stop()
        self.daemon.wait(patience_s)
        return True


class UpState(BaseModel):
    model_config = ConfigDict(frozen=True)

    server: UpProcess
    tracker: UpProcess | None = None
    """MLflow's own server; None: it was disabled, is elsewhere, or is not installed."""

    started: float
    """Seconds since the epoch."""


def get_up_state_file(home: Path) -> Path:
    return home.expanduser().absolute() / "server" / "up.json"


def read_up_state(home: Path) -> UpState | None:
    """Return what ``scanflow up`` started in a home; its folders are this home's, wherever it was then."""
    file = get_up_state_file(home)
    try:
        up = UpState.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None
    processes = {name: getattr(up, name) for name in ("server", "tracker")}
    return up.model_copy(
        update={name: process and _place_process(process, file.parent) for name, process in processes.items()}
    )


def _place_process(process: UpProcess, folder: Path) -> UpProcess:
    if process.folder.parent.name != "daemons":
        return process
    place = folder / "daemons" / process.folder.name
    pid = Daemon(place).pid or process.pid  # another one, if it was started again
    return process.model_copy(update={"folder": place, "log": str(folder / Path(process.log).name), "pid": pid})


def write_up_state(home: Path, up: UpState) -> None:
    """Write the file atomically.

    Raises:
        UnavailableError: it cannot be written.
    """
    from scanflow.processes.shared_files import write_atomically

    path = get_up_state_file(home)
    create_private_folder(open_home(path.parent.parent) / path.parent.name)
    write_atomically(path, up.model_dump_json(indent=2).encode())


def find_server_address(settings: Settings) -> str | None:
    """Return the address of the server that the settings name, else of the home folder's running server; None: there
    is none."""
    if settings.url is not None:
        return settings.url
    running = read_up_state(settings.home)
    return running.server.url if running is not None and running.server.is_alive() else None


def get_server_address(settings: Settings) -> str:
    """Return what :func:`find_server_address` does.

    Raises:
        UnavailableError: there is none.
    """
    if (url := find_server_address(settings)) is None:
        raise UnavailableError(f"No server is up in {str(settings.home)!r}. Start it: scanflow up")
    return url


def find_mlflow_url(home: Path) -> str | None:
    """Return the address of MLflow behind the home's running server; None: none runs there."""
    up = read_up_state(home)
    if up is None or up.tracker is None or not (up.server.is_alive() and up.tracker.is_alive()):
        return None
    return build_mlflow_url(up.server.url)


def build_mlflow_url(server_url: str) -> str:
    return server_url.rstrip("/") + MLFLOW_PATH


def delete_up_state(home: Path) -> None:
    get_up_state_file(home).unlink(missing_ok=True)

"""The thesis' tracker client (listing 5.3) over the knowledge base.

A team works with a *local* tracker of its own, and shares what it is done with through a *central* one. Where only one
address is given both are the same, and saving a model then only marks it as the application's. Failures are exceptions.
"""

from __future__ import annotations

import logging
import math
import tempfile
from pathlib import Path

from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.application_files import dump_json
from scanflow.app.workflow import Workflow
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError, did_you_mean
from scanflow.knowledge import KnowledgeBase, open_knowledge
from scanflow.knowledge.knowledge_records import ModelVersion, SavedVersion
from scanflow.knowledge.tracked_files import stage_destination
from scanflow.settings import Settings

_log = logging.getLogger(__name__)

PRODUCTION = "production"  # the alias of the version in use, after the stage that MLflow had
_ARTIFACTS = "app"  # the name under which an application's folder is kept
_OWNER = ("scanflow.app", "scanflow.team")


class ScanflowTrackerClient:
    """Saves and downloads applications, their folders and their models (thesis listing 5.3)."""

    def __init__(
        self,
        scanflow_tracker_uri: str | None = None,
        scanflow_tracker_local_uri: str | None = None,
        tracker: str = "mlflow",
        verbose: bool = True,
        *,
        central: KnowledgeBase | None = None,
        local: KnowledgeBase | None = None,
    ) -> None:
        """Create a client for the central tracker, the team's own, or both.

        Without an address it is the tracker of the settings: ``SCANFLOW_TRACKER_URI``, or the one in the home folder.
        ``central`` and ``local`` are knowledge bases to use in place of addresses. With ``verbose``, what is done is
        logged as information, else as details.
        """
        if tracker != "mlflow":
            raise UnsupportedError(f"tracker={tracker!r} is not known.{did_you_mean(tracker, ['mlflow'])}")
        settings = Settings.from_environment()
        home = settings.home.expanduser()
        uris = {"central": scanflow_tracker_uri, "local": scanflow_tracker_local_uri}
        fallback = scanflow_tracker_uri or scanflow_tracker_local_uri or settings.tracker_uri
        self._uris = {name: uri or fallback for name, uri in uris.items()}
        self._central = central or local or open_knowledge(home, self._uris["central"])
        same = self._uris["central"] == self._uris["local"]
        self._local = local or (self._central if central or same else open_knowledge(home, self._uris["local"]))
        self._level = logging.INFO if verbose else logging.DEBUG

    def find_tracker_uri(self, islocal: bool = False) -> str | None:
        """Return the address of the team's own tracker or of the central one; None: the one in the home folder."""
        return self._uris["local" if islocal else "central"]

    def save_app_meta(self, app: Application, tolocal: bool = False) -> SavedVersion:
        """Save the application's description as its newest version."""
        saved = self._select_knowledge(tolocal).save_application(app)
        self._log_action("application %r of team %r saved as %s", app.name, app.team, saved.version)
        return saved

    def get_app_meta(
        self, app_name: str, team_name: str, run_id: str | None = None, fromlocal: bool = False
    ) -> Application:
        """Return the newest description of the application, or the one that was saved as ``run_id``."""
        return self._select_knowledge(fromlocal).get_application(app_name, team_name, version=run_id)

    download_app = get_app_meta  # the prototype's name

    def download_workflow(
        self, app_name: str, team_name: str, workflow_name: str, run_id: str | None = None, fromlocal: bool = False
    ) -> Workflow:
        """Return one workflow of the application."""
        return self.get_app_meta(app_name, team_name, run_id, fromlocal).workflow(workflow_name)

    def download_agent(
        self, app_name: str, team_name: str, agent_name: str, run_id: str | None = None, fromlocal: bool = False
    ) -> Agent:
        """Return one agent of the application."""
        agents = {agent.name: agent for agent in self.get_app_meta(app_name, team_name, run_id, fromlocal).agents}
        if agent_name not in agents:
            near = did_you_mean(agent_name, agents)
            raise NotFoundError(f"Application {app_name!r} of team {team_name!r} has no agent {agent_name!r}.{near}")
        return agents[agent_name]

    def download_app_meta(
        self,
        app_name: str,
        team_name: str,
        run_id: str | None = None,
        local_dir: str | Path = ".",
        fromlocal: bool = False,
    ) -> Path:
        """Write the description to ``<local_dir>/<app>/<team>/<app>.json``, and return that path."""
        app = self.get_app_meta(app_name, team_name, run_id, fromlocal)
        folder = Path(local_dir, app_name, team_name)
        with stage_destination(folder) as staging:
            (staging / f"{app_name}.json").write_text(dump_json(app), encoding="utf-8")
        return folder / f"{app_name}.json"

    def save_app_artifacts(
        self, app_name: str, team_name: str, app_dir: str | Path, tolocal: bool = False
    ) -> SavedVersion:
        """Save the application's folder as its newest version."""
        saved = self._select_knowledge(tolocal).save_artifacts(app_name, team_name, _ARTIFACTS, Path(app_dir))
        self._log_action("folder of application %r of team %r saved as %s", app_name, team_name, saved.version)
        return saved

    def download_app_artifacts(
        self,
        app_name: str,
        team_name: str,
        run_id: str | None = None,
        local_dir: str | Path = ".",
        fromlocal: bool = False,
    ) -> Path:
        """Write the application's folder to ``<local_dir>/<app>/<team>``, which must not exist; return that path."""
        folder = Path(local_dir, app_name, team_name)
        return self._select_knowledge(fromlocal).fetch_artifacts(
            app_name, team_name, _ARTIFACTS, folder, version=run_id
        )

    def save_app_model(
        self, app_name: str, team_name: str, model_name: str, model_version: int | str | None = None
    ) -> ModelVersion:
        """Share a model that the team's tracker holds: copy it to the central one, for this application.

        The copy is tagged with the application and team and becomes the central tracker's ``production`` version; the
        parameters and metrics of the run that made it come along. With a single tracker nothing is copied: the version
        itself is tagged and becomes ``production``. Without ``model_version`` it is the local ``production`` version,
        or the latest if there is none.
        """
        version = _choose(self._local, model_name, model_version)
        if self._central is self._local:
            owner: dict[str, str] = dict(zip(_OWNER, (app_name, team_name), strict=True))
            self._central.set_model_tags(model_name, version.version, owner)
            shared = version
        else:
            shared = _copy(self._local, self._central, version, app_name, team_name)
        self._log_action(
            "model %r version %d is in production for application %r", model_name, shared.version, app_name
        )
        return self._central.set_model_alias(model_name, PRODUCTION, shared.version)

    def download_app_model(
        self, model_name: str, model_version: int | str | None = None, local_dir: str | Path | None = None
    ) -> ModelVersion:
        """Copy a model shared by :meth:`save_app_model` from the central tracker to the team's own.

        Its files are written to ``local_dir`` if given. With a single tracker nothing is copied. Without
        ``model_version`` it is the central ``production`` version, or the latest if there is none.
        """
        version = _choose(self._central, model_name, model_version)
        if local_dir is not None:
            self._central.fetch_model(model_name, Path(local_dir), version=version.version)
        if self._central is self._local:
            return version
        if not all(tag in version.tags for tag in _OWNER):
            raise InvalidError(
                f"Model {model_name!r} version {version.version} belongs to no application. Share it first: "
                f"save_app_model(app_name=..., team_name=..., model_name={model_name!r}, "
                f"model_version={version.version})."
            )
        taken = _copy(self._central, self._local, version, *(version.tags[tag] for tag in _OWNER))
        self._log_action("model %r copied from the central tracker as version %d", model_name, taken.version)
        return self._local.set_model_alias(model_name, PRODUCTION, taken.version)

    def download_artifacts(
        self,
        path: str,
        run_id: str | None = None,
        local_dir: str | Path = "/workflow",
        fromlocal: bool = False,
        *,
        experiment_name: str | None = None,
        run_name: str | None = None,
    ) -> Path:
        """Download a run's artifact ``path`` into ``local_dir``, which must be empty or not exist; return its path."""
        if run_id is None or experiment_name is not None or run_name is not None:
            raise UnsupportedError(
                "download_artifacts takes the run_id of a run. experiment_name and run_name are not used here: "
                "several runs may share a name. Find the run: open_knowledge(home).search_runs(app, team)[0].run_id"
            )
        return self._select_knowledge(fromlocal).fetch_run_artifacts(run_id, Path(local_dir), path=path)

    def _select_knowledge(self, local: bool) -> KnowledgeBase:
        return self._local if local else self._central

    def _log_action(self, text: str, *values: object) -> None:
        _log.log(self._level, text, *values)


def _choose(knowledge: KnowledgeBase, name: str, version: int | str | None) -> ModelVersion:
    if version is not None:
        return knowledge.get_model(name, version)
    versions = knowledge.list_model_versions(name)
    return next((candidate for candidate in versions if PRODUCTION in candidate.aliases), versions[0])


def _copy(source: KnowledgeBase, target: KnowledgeBase, model: ModelVersion, app: str, team: str) -> ModelVersion:
    with tempfile.TemporaryDirectory(prefix="scanflow-model-") as folder:
        files = source.fetch_model(model.name, Path(folder, "files"), version=model.version)
        run_id = None if model.run_id is None else _copy_run(source, target, model.run_id, app, team)
        return target.register_model(model.name, files, app=app, team=team, run_id=run_id, tags=model.tags)


def _copy_run(source: KnowledgeBase, target: KnowledgeBase, run_id: str, app: str, team: str) -> str | None:
    try:
        run = source.get_run(run_id)
    except NotFoundError:  # runs can be deleted, and a model outlives the one that made it
        return None
    metrics = {key: value for key, value in run.metrics.items() if math.isfinite(value)}  # plain MLflow takes NaN too
    copied = target.log_run(
        app, team, name=run.name, params=run.params, metrics=metrics, started_at=run.started_at, ended_at=run.ended_at
    )
    return copied.run_id

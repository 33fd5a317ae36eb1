"""MLflow's application with its own authorization (``mlflow.server.auth``), where each team is a user.

For the process of MLflow's server alone. MLflow decides for each of its routes, searches and queries whether a user
may; whose an experiment or a model is, it asks of :class:`TeamGrants`. No user, role or grant is stored: the owner is
in the tag ``scanflow.team`` of an experiment or registered model. What has no owner is the default team's.
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
from collections.abc import Collection
from functools import cache, lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from scanflow.knowledge.checks import DEFAULT_TEAM, OWNER
from scanflow.transport.mlflow_api import TEAM_HEADER

if TYPE_CHECKING:
    import sqlalchemy as sa
    from mlflow.server.auth.entities import User
    from mlflow.server.auth.sqlalchemy_store import RoleGrantRow
    from sqlalchemy.orm import LoaderCriteriaOption, ORMExecuteState
    from werkzeug.datastructures import Authorization

_T = TypeVar("_T")

_ALL_TEAMS: Final = "*"
"""The user of requests without a team, who may everything. No team has such a name."""

_KINDS: Final = {
    "experiment": ("experiments", "experiment_id"),
    "registered_model": ("registered_models", "name"),
    "prompt": ("registered_models", "name"),
}
"""What MLflow grants rights for: the tables, and the columns by which it names their rows. All else is below them."""

_SEARCHED: Final = {
    "experiments": ("experiments", "experiment_id"),
    "registered_models": ("registered_models", "name"),
    "model_versions": ("registered_models", "name"),
    "logged_models": ("experiments", "experiment_id"),
}
"""The tables that searches list, and by which column their rows belong to an owner's."""

_SEARCH: Final = re.compile(r".*/mlflow/(?:experiments|registered-models|model-versions|logged-models)/search")

_ROOT: Final = "_MLFLOW_SERVER_ARTIFACT_ROOT"


@cache
def load_app() -> Any:
    """Return MLflow's application, in which a request may what the team in its header may; without one, everything."""
    os.environ.update(
        {
            "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",  # a route for which MLflow has no rule is refused
            "MLFLOW_SERVER_ENABLE_GRAPHQL_AUTH": "true",
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(),  # for a form that is not offered
            "_MLFLOW_AUTH_ADMIN_BOOTSTRAPPED": "true",  # there are no passwords
        }
    )
    auth: Any = importlib.import_module("mlflow.server.auth")
    rules = {"default_permission": "NO_PERMISSIONS", "authorization_function": f"{__name__}:authenticate"}
    auth.store, auth.auth_config = TeamGrants(), auth.auth_config._replace(**rules)
    return auth.create_app()


def open_stores() -> None:
    """Open MLflow's stores, which look for what there is as they open, and from then on let searches read the team's
    rows alone: MLflow's own filter asks for page after page, until one is full of what a team may see."""
    from mlflow import MlflowClient
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    store = _open_store()  # which says what the client of MLflow's own process uses
    MlflowClient().search_experiments(max_results=1)
    event.listen(Session, "do_orm_execute", _narrow_search)
    start, log, link = store.start_trace, store.log_spans, store.link_traces_to_run
    store.link_traces_to_run = lambda traces, run: link(
        _check_traces(store.get_run(run).info.experiment_id, traces, traces), run
    )
    store.start_trace = lambda trace: start(_check_traces(trace.experiment_id, [trace.trace_id], trace))
    store.log_spans = lambda experiment, spans, *more, **options: log(
        experiment, _check_traces(experiment, [span.trace_id for span in spans], spans), *more, **options
    )


def make_experiment(app: str, team: str) -> None:
    """Make the experiment of an environment, once the stores are open.

    Its pods log by the experiment's name, and MLflow refuses the second of two that make it at once.
    """
    from mlflow import MlflowClient

    from scanflow.knowledge.mlflow import experiments  # only the tracker of an environment needs it

    experiments.make_experiment(MlflowClient(), None, app, team)


def _check_traces(experiment: str, traces: Collection[str], content: _T) -> _T:
    """Return what is to be written to traces, if these are not another team's: a trace's id is its sender's choice."""
    import sqlalchemy as sa
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

    experiments, rows, owner = _get_tables()["experiments"], _get_tables()["trace_info"], _build_owner("experiments")
    target = sa.select(owner).where(experiments.c.experiment_id == int(experiment))
    present = sa.select(owner).join(rows, rows.c.experiment_id == experiments.c.experiment_id)
    with _get_engine().connect() as connection:
        owners = {*connection.execute(present.where(rows.c.request_id.in_(traces)).select_from(experiments)).scalars()}
        if owners - {connection.execute(target).scalar()}:
            raise MlflowException("There is no such trace in the experiment.", RESOURCE_DOES_NOT_EXIST)
    return content


def _narrow_search(state: ORMExecuteState) -> None:
    from flask import has_request_context, request

    if has_request_context() and state.is_select and _SEARCH.fullmatch(request.path):
        team = request.headers.get(TEAM_HEADER)
        state.statement = state.statement if team is None else state.statement.options(*_build_criteria(team))


@lru_cache(maxsize=64)
def _build_criteria(team: str) -> tuple[LoaderCriteriaOption, ...]:
    from mlflow.store.db.base_sql_model import Base
    from sqlalchemy.orm import with_loader_criteria

    kinds = {mapper.local_table.name: mapper.class_ for mapper in Base.registry.mappers}
    return tuple(
        with_loader_criteria(
            kinds[table],
            _get_tables()[table].c[key].in_(_select_owned(owner, key, team)),
            include_aliases=True,
            propagate_to_loaders=False,
        )
        for table, (owner, key) in _SEARCHED.items()
    )


def authenticate() -> Authorization:
    """Return the user of Flask's current request: the team in its header."""
    from flask import request
    from werkzeug.datastructures import Authorization

    return Authorization("basic", {"username": request.headers.get(TEAM_HEADER) or _ALL_TEAMS, "password": ""})


class TeamGrants:
    """What MLflow's authorization asks of its store of users: a team may everything with what is its own."""

    def init_db(self, *_: Any, **__: Any) -> None:
        """Do nothing: no user is stored."""

    grant_user_permission = delete_grants_for_resource = rename_grants_for_resource = init_db

    def get_user(self, username: str) -> User:
        from mlflow.server.auth.entities import User

        return User(username, username, "", username == _ALL_TEAMS)

    def list_grants(self, user_id: str, _workspace: str, resource_types: Collection[str]) -> list[RoleGrantRow]:
        from mlflow.server.auth.sqlalchemy_store import RoleGrantRow

        return [
            RoleGrantRow(kind, name, "MANAGE")
            for kind, (table, key) in _KINDS.items()
            if kind in resource_types
            for name in _list_owned(table, key, user_id)
        ]

    def __getattr__(self, name: str) -> Any:
        # MLflow takes an AttributeError for an authorization that is still being set up, and lets the request pass.
        from mlflow.exceptions import MlflowException

        raise MlflowException(f"The method {name!r} of MLflow's store of users is not offered by this server.")


def find_owner(table: str, name: str) -> str | None:
    """Return whose an experiment or a registered model of a name is; None: there is none."""
    import sqlalchemy as sa

    query = sa.select(_build_owner(table)).where(_get_tables()[table].c.name == name)
    with _get_engine().connect() as connection:
        return connection.execute(query).scalar()


def owns_place(team: str, path: str) -> bool:
    """Return whether a path below the store's root lies in the folder of an experiment of the team, and of no other."""
    import sqlalchemy as sa

    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or PurePosixPath(path).is_absolute():
        return False
    root, folders = os.environ[_ROOT].rstrip("/"), ["/".join(parts[: end + 1]) for end in range(len(parts))]
    places = {f"{root}/{form}": len(folder) for folder in folders for form in (folder, quote(folder))}
    experiments = _get_tables()["experiments"]
    query = sa.select(experiments.c.artifact_location, _build_experiment_owner())
    with _get_engine().connect() as connection:
        rows = list(connection.execute(query.where(experiments.c.artifact_location.in_(places))))
    deepest = max((places[place] for place, _ in rows), default=0)
    return bool(rows) and all(owner == team for place, owner in rows if places[place] == deepest)


def _list_owned(table: str, key: str, team: str) -> list[str]:
    with _get_engine().connect() as connection:
        return [str(name) for name in connection.execute(_select_owned(table, key, team)).scalars()]


def _select_owned(table: str, key: str, team: str) -> sa.Select[Any]:
    import sqlalchemy as sa

    return sa.select(_get_tables()[table].c[key]).where(_build_owner(table) == team)


def _build_owner(table: str) -> sa.ColumnElement[str]:
    """Return the owner of a row of a table, as a part of a query for it."""
    return _build_experiment_owner() if table == "experiments" else _build_model_owner()


def _build_experiment_owner() -> sa.ColumnElement[str]:
    import sqlalchemy as sa

    experiments, tags = _get_tables()["experiments"], _get_tables()["experiment_tags"]
    owner = sa.select(tags.c.value).where(tags.c.key == OWNER, tags.c.experiment_id == experiments.c.experiment_id)
    return sa.func.coalesce(owner.scalar_subquery(), DEFAULT_TEAM)


def _build_model_owner() -> sa.ColumnElement[str]:
    """Return the owner of a registered model; where it does not say so itself, its first version does, or that one's
    run."""
    import sqlalchemy as sa

    names = "registered_models registered_model_tags model_version_tags model_versions runs experiment_tags".split()
    models, model_tags, version_tags, versions, runs, run_tags = (_get_tables()[name] for name in names)

    def is_of_model(rows: sa.Table) -> sa.ColumnElement[bool]:
        return sa.and_(rows.c.workspace == models.c.workspace, rows.c.name == models.c.name)  # by the index

    of_model = sa.select(model_tags.c.value).where(is_of_model(model_tags), model_tags.c.key == OWNER)
    of_version = sa.select(version_tags.c.value).where(is_of_model(version_tags), version_tags.c.key == OWNER)
    of_run = (
        sa.select(run_tags.c.value)
        .select_from(versions)
        .join(runs, runs.c.run_uuid == versions.c.run_id)
        .join(run_tags, sa.and_(run_tags.c.experiment_id == runs.c.experiment_id, run_tags.c.key == OWNER))
        .where(is_of_model(versions))
    )
    return sa.func.coalesce(
        of_model.scalar_subquery(),
        of_version.order_by(version_tags.c.version).limit(1).scalar_subquery(),
        of_run.order_by(versions.c.version).limit(1).scalar_subquery(),
        DEFAULT_TEAM,
    )


def _get_tables() -> Any:
    from mlflow.store.db.base_sql_model import Base

    return Base.metadata.tables


def _get_engine() -> sa.Engine:
    engine: sa.Engine = _open_store().engine
    return engine


def _open_store() -> Any:
    from mlflow.server import handlers

    handlers._get_model_registry_store()
    return handlers._get_tracking_store()

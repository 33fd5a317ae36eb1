"""The tracked runs that a sensor gets, with the attributes of scanflow's runs and of MLflow's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scanflow.app.model import Model
from scanflow.app.workflow import Workflow
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.knowledge_records import TrackedRun

LIMIT = 10_000


class RunData(Model):
    """The logged data of a run, as MLflow's ``run.data``."""

    metrics: Mapping[str, float]
    params: Mapping[str, str]
    tags: Mapping[str, str]


class RunInfo(Model):
    """The metadata of a run, as MLflow's ``run.info``. Times are milliseconds since the epoch, as there."""

    run_id: str
    run_name: str
    status: str
    start_time: int
    end_time: int | None


class Run(TrackedRun):
    """A tracked run: ``run.metrics["accuracy"]``, or as in the thesis' listings, ``run.data.metrics["accuracy"]``."""

    @property
    def data(self) -> RunData:
        return RunData(metrics=self.metrics, params=self.params, tags=self.tags)

    @property
    def info(self) -> RunInfo:
        ended = self.ended_at
        return RunInfo(
            run_id=self.run_id,
            run_name=self.name,
            status=self.status.upper(),
            start_time=round(self.started_at.timestamp() * 1000),
            end_time=None if ended is None else round(ended.timestamp() * 1000),
        )


def list_runs(
    tracker: KnowledgeBase,
    app: str,
    team: str,
    *,
    nodes: Sequence[str] = (),
    filter_string: str | None = None,
    workflows: Sequence[Workflow] = (),
    after: float | None = None,
    until: float | None = None,
    limit: int = LIMIT,
) -> list[Run]:
    """Return the matching runs that ended in ``after < end <= until`` (seconds since the epoch), newest first.

    Adjacent windows neither miss a run nor count one twice; without either bound, active runs are included.
    ``nodes`` are steps or services (empty: all), ``filter_string`` is in MLflow's filter language, and ``limit`` is the
    most runs to search for one node. Predictions of a service are tracked under its workflow's name."""
    user_filter = (filter_string or "").strip()
    clauses = [clause for node in nodes for clause in _build_clauses(node, workflows)] or [""]
    runs: dict[str, Run] = {}
    for clause in clauses:
        text = " and ".join(part for part in (user_filter, clause) if part)
        for run in tracker.search_runs(app, team, text, limit=limit):
            if _is_inside(run, after, until):
                runs[run.run_id] = Run(**vars(run))
    return sorted(runs.values(), key=lambda run: (run.started_at, run.run_id), reverse=True)


def _build_clauses(node: str, workflows: Sequence[Workflow]) -> list[str]:
    online = [flow.name for flow in workflows if flow.type == "online" and node in {flow.name, *flow.by_name}]
    steps = [] if online and not any(node in flow.by_name for flow in workflows if flow.type != "online") else [node]
    return [f"tags.`scanflow.step` = '{step}'" for step in steps] + [
        f"tags.`scanflow.service` = '{service}'" for service in online or ([] if workflows else [node])
    ]


def _is_inside(run: TrackedRun, after: float | None, until: float | None) -> bool:
    if after is None and until is None:
        return True
    if run.ended_at is None:
        return False
    ended = run.ended_at.timestamp()
    return (after is None or after < ended) and (until is None or ended <= until)

"""Drawings of applications: what is declared to go from one part to another, and nothing else."""

from __future__ import annotations

from typing import Any

import scanflow as sf
from scanflow.app.application_drawing import DETECTION, TEMPLATE_DEFAULTS, Part, PartLink, draw_application
from scanflow.drift.workflows import detection
from scanflow_agents.templates.checker_template import CheckerOptions
from scanflow_agents.templates.executor_template import ExecutorOptions
from scanflow_agents.templates.planner_template import PlannerOptions
from scanflow_agents.templates.template_options import Options
from scanflow_agents.templates.tracker_template import TrackerOptions
from tests.drawn_graphs import SVG, read_graph


def make_service(name: str, model: str = "models:/loans@champion", **serving: Any) -> sf.Workflow:
    nodes = [sf.Service(name=f"{name}-node", model=model)]
    return sf.Workflow(name=name, type="online", nodes=nodes, serving=sf.Serving(**serving))


def make_batch(name: str, **parameters: Any) -> sf.Workflow:
    nodes = [sf.Executor(name=f"{name}-step", mainfile="step.py", parameters=parameters)]
    return sf.Workflow(name=name, nodes=nodes)


def make_agent(template: str, **parameters: Any) -> sf.Agent:
    return sf.Agent(name=template, template=template, parameters=parameters)


def test_the_loop_of_the_templates_is_drawn_by_their_defaults() -> None:
    workflows = [make_service("serve", record=1), detection(model="loans"), make_batch("training", model="loans")]
    agents = [make_agent(template) for template in TEMPLATE_DEFAULTS if template != "checker"]
    agents.append(make_agent("checker", training_workflow="training"))  # it reads of it, and does not run it
    app = sf.Application(name="tabular", workflows=workflows, agents=agents)
    drawn = read_graph(draw_application(app))
    assert sorted(box.lines[0] for box in drawn.boxes) == [
        "checker", "detector", "executor", "loans", "planner", "serve", "tracker", "training"
    ]  # fmt: skip
    assert sorted(drawn.edges) == [
        "checker has detector_workflow='detector'",
        "executor moves the alias of loans",
        "planner has executor='executor'",
        "planner has training_workflow='training'",
        "planner looks how serve does",
        "serve records its predictions",
        "serve-node of serve is models:/loans@champion",
        "\n".join(
            f"the step detect of detector has model_{end}" for end in ("name='loans'", "uri='models:/loans@champion'")
        ),
        "the step training-step of training has model='loans'",
        "tracker has checker='checker'",
    ]


def test_the_defaults_are_those_of_the_templates() -> None:
    options: dict[str, type[Options]] = {
        "tracker": TrackerOptions, "checker": CheckerOptions, "planner": PlannerOptions, "executor": ExecutorOptions
    }  # fmt: skip
    for template, defaults in TEMPLATE_DEFAULTS.items():
        fields = options[template].model_fields
        assert {name: fields[name].default for name in defaults} == defaults
    assert detection(model="loans").steps[0].function == DETECTION


def test_a_sensor_watches_the_workflow_of_its_nodes() -> None:
    sensor = sf.Sensor(name="count", trigger=sf.every(hours=1), nodes=["serve-node"], function="rules.py:count")
    agent = sf.Agent(name="watcher", sensors=[sensor])
    drawn = read_graph(draw_application(sf.Application(name="a", workflows=[make_service("serve")], agents=[agent])))
    assert "the sensor count of watcher reads serve-node" in drawn.edges
    assert [text.text for text in drawn.labels] == ["@champion", "watched by"]


def test_an_agent_that_names_nothing_has_no_edge() -> None:
    other = sf.Agent(name="watcher", modules=["rules.py"], parameters={"checker": "nobody", "title": "serve"})
    app = sf.Application(name="a", workflows=[make_service("serve", model="models:/loans/3")], agents=[other])
    assert list(read_graph(draw_application(app)).edges) == ["serve-node of serve is models:/loans/3"]


def test_a_backup_and_a_model_that_a_step_reads_are_drawn() -> None:
    workflows = [make_service("serve", backup="spare"), make_service("spare"), make_batch("report", uri="models:/m/3")]
    edges = read_graph(draw_application(sf.Application(name="a", workflows=workflows))).edges
    assert "spare answers for serve while that has no instance" in edges
    assert "the step report-step of report has uri='models:/m/3'" in edges


def test_states_pages_and_what_was_seen_are_drawn() -> None:
    serve, rule = Part("service", "serve"), Part("agent", "watcher")
    app = sf.Application(
        name="a", workflows=[make_service("serve")], agents=[sf.Agent(name="watcher", modules=["rules.py"])]
    )
    seen = PartLink(rule, serve, "scaled", "watcher scaled serve at 12:00")
    gone = PartLink(rule, Part("service", "gone"), "scaled")
    drawn = read_graph(
        draw_application(app, states={serve: "ready"}, addresses={rule: "/agents/watcher"}, links=[seen, gone])
    )
    lines = {box.lines[0]: box.lines[1:] for box in drawn.boxes}
    assert lines == {"serve": ["✓", "1 node"], "loans": [], "watcher": []}
    assert "watcher scaled serve at 12:00" in drawn.edges
    assert [link.attrib["href"] for link in drawn.root.findall(f"{SVG}a")] == ["/agents/watcher"]

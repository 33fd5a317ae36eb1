"""Agents as they are loaded: from the user's own files, with the application's settings over what the files say."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import call
from scanflow.agent.agent_records import Event
from scanflow.agent.decide import decide
from scanflow.agent.registry import Declared, load_agent
from scanflow.agent.sensors.firing import Firing, fire
from scanflow.agent.sensors.sensor import sensor
from scanflow.app.agent import Agent, collect_declarations
from scanflow.app.application import Application
from scanflow.app.triggers import CallReceive
from scanflow.errors import InvalidError, NotFoundError, UsageError
from tests.unit.agent.agent_builders import context, sample, shop, situation
from tests.unit.app.app_builders import message

MODERN = """
    import scanflow as sf
    from scanflow.agent import sensor, strategy, call, primitives as do

    @sensor(sf.every(hours=1), nodes=["predictor"], filter_string="metrics.n_predictions > 0")
    def count_number_of_predictions(runs): return sum(run.metrics["n_predictions"] for run in runs)

    sf.Strategy(name="count", when=count_number_of_predictions, if_=lambda n: n >= 1000,
                then=call("checker", "check_predictions"))
"""


def names(declared: Declared) -> tuple[list[str], list[str]]:
    return [sensor.name for sensor in declared.sensors], [strategy.name for strategy in declared.strategies]


def test_a_module_declares_sensors_and_strategies(tmp_path: Path) -> None:
    app = shop(tmp_path, modules={"agents/tracker.py": MODERN})
    declared = load_agent(app, "tracker")
    assert names(declared) == (["count_number_of_predictions"], ["count"])
    sensor = declared.sensor("count_number_of_predictions")
    assert (sensor.trigger, sensor.agent) == (sf.every(hours=1), "tracker")
    [strategy] = declared.select_strategies("count_number_of_predictions")
    assert decide(strategy, sample(999), situation()) == []
    [called] = decide(strategy, sample(1000), situation())
    assert called == call("checker", "check_predictions").replace(key="tracker/count/interval:1")
    assert decide(strategy, sample(1000), situation())[0].key == called.key


def test_an_agent_is_loaded_again_each_time_and_leaves_no_collection_open(tmp_path: Path) -> None:
    app = shop(tmp_path, modules={"agents/tracker.py": MODERN})
    first = load_agent(app, "tracker")
    (tmp_path / "agents/tracker.py").write_text((tmp_path / "agents/tracker.py").read_text().replace("1000", "20000"))
    with collect_declarations() as outside:
        second = load_agent(app, "tracker")
    assert outside == []
    assert names(first) == names(second)
    assert decide(first.strategies[0], sample(1000), situation())
    assert not decide(second.strategies[0], sample(1000), situation())


def test_modules_import_each_other_with_and_without_a_dot(tmp_path: Path) -> None:
    modules = {
        "agents/one/sensors.py": """
            import scanflow as sf
            from scanflow.agent import sensor
            from .more import *
            from ..shared import LEAST
            from rules import enough

            @sensor(sf.every(hours=1))
            def count(): return LEAST

            sf.Strategy(name="checked", when=more, if_=enough, then=[])
        """.replace("then=[]", 'then=sf.agent.actions.call("checker", "check")'),
        "agents/one/more.py": """
            from scanflow.agent import sensor
            import scanflow.agent.actions

            @sensor
            def more(): return 5
        """,
        "agents/shared.py": "LEAST = 7",
        "rules.py": "def enough(n): return n > 3",
    }
    app = shop(tmp_path, modules=modules)
    agent = app.agents[0].replace(modules=["agents/one/sensors.py", "agents/one/more.py"])
    declared = load_agent(app, agent)
    assert names(declared) == (["more", "count"], ["checked"])
    assert declared.sensor("count")() == 7


def test_files_that_are_links_into_a_folder_with_dots_are_loaded_as_a_cluster_mounts_them(tmp_path: Path) -> None:
    mounted = tmp_path / "..2026_01_31"
    (mounted / "agents").mkdir(parents=True)
    (mounted / "agents" / "rules.py").write_text("LEAST = 3\n")
    (mounted / "agents" / "sensors.py").write_text(
        "from scanflow import every\nfrom scanflow.agent.sensors.sensor import sensor\nfrom .rules import LEAST\n"
        "@sensor(every(seconds=1))\ndef look(): return LEAST\n"
    )
    (tmp_path / "..data").symlink_to(mounted.name)
    (tmp_path / "agents").symlink_to("..data/agents")
    agent = sf.Agent(name="tracker", modules=["agents/sensors.py"])
    declared = load_agent(sf.Application(name="x", app_dir=tmp_path, agents=[agent]), "tracker")
    assert [sensor.name for sensor in declared.sensors] == ["look"]


def test_two_agents_of_one_file_get_their_own_sensors(tmp_path: Path) -> None:
    text = """
        import scanflow as sf
        tracker = sf.Agent(name="tracker", modules=["app.py"])
        checker = sf.Agent(name="checker", modules=["app.py"])

        @tracker.sensor(sf.every(hours=1))
        def count(): return 1

        @checker.sensor(sf.on_call())
        def check(): return 2

        app = sf.Application(name="shop", agents=[tracker, checker])
    """
    app = shop(tmp_path, modules={"app.py": text})
    assert names(load_agent(app, "tracker"))[0] == ["count"]
    assert names(load_agent(app, app.agents[0].replace(name="checker")))[0] == ["check"]


def test_the_application_sets_what_a_sensor_of_its_name_does(tmp_path: Path) -> None:
    thesis = """
        from scanflow.agent.sensors.sensor import sensor

        @sensor(nodes=["predictor"], filter_string="metrics.n > 0")
        def count(runs): return len(runs)

        @sensor(nodes=["predictor"])
        def check(runs): return len(runs)
    """
    described = sf.Sensor(name="count", trigger=sf.every(seconds=5), parameters={"least": 2})
    app = shop(tmp_path, modules={"a.py": thesis}, sensors=[described], parameters={"least": 1, "most": 9})
    declared = load_agent(app, "tracker")
    count, check = declared.sensor("count"), declared.sensor("check")
    assert (count.trigger, check.trigger) == (sf.every(seconds=5), CallReceive())
    assert (count.sensor.nodes, count.sensor.filter_string) == (("predictor",), "metrics.n > 0")
    assert (count.sensor.parameters, check.sensor.parameters) == ({"least": 2, "most": 9}, {"least": 1, "most": 9})


def test_a_sensor_of_the_application_may_bring_its_function(tmp_path: Path) -> None:
    app = shop(tmp_path, modules={"a.py": "def count(): return 3"})
    sensors = [
        sf.Sensor(name="mine", trigger=sf.on_call(), function="a.py:count"),
        sf.Sensor(name="installed", trigger=sf.on_call(), function="os.path:basename"),
    ]
    declared = load_agent(app, app.agents[0].replace(modules=(), sensors=sensors))
    assert declared.sensor("mine")() == 3
    assert declared.sensor("installed")("a/b") == "b"


def template(app: Application, agent: Agent) -> None:
    @sensor(sf.every(minutes=agent.parameters.get("minutes", 60)))
    def count() -> int:
        return 1

    @sensor
    def check() -> int:
        return 1

    sf.Strategy(name="count", when=count, then=do.run_workflow("detector"), priority=1)


def test_what_the_modules_declare_stands_in_the_place_of_the_templates(tmp_path: Path) -> None:
    own = """
        import scanflow as sf
        from scanflow.agent import call, sensor

        @sensor(sf.every(hours=2))
        def check(): return 2

        sf.Strategy(name="count", when="count", then=call("other", "check"), priority=2)
    """
    app = shop(tmp_path, modules={"a.py": own}, parameters={"minutes": 5}, template="tracker")
    declared = load_agent(app, "tracker", template=template)
    assert names(declared) == (["count", "check"], ["count"])
    assert (declared.sensor("count").trigger, declared.sensor("check").trigger) == (
        sf.every(minutes=5),
        sf.every(hours=2),
    )
    assert declared.strategies[0].priority == 2


def test_a_trigger_alone_gets_a_sensor_that_tells_what_came(tmp_path: Path) -> None:
    text = """
        import scanflow as sf
        from scanflow.agent import primitives as do
        sf.Strategy(name="retry", when=sf.on_event("run.failed"), then=do.run_workflow("training"))
        sf.Strategy(name="called", when=sf.on_call(), then=lambda data: do.run_workflow("detector", data=data))
    """
    declared = load_agent(shop(tmp_path, modules={"a.py": text}), "tracker")
    assert names(declared) == (["when_retry", "when_called"], ["retry", "called"])

    def came(name: str, **options: Any) -> Any:
        return asyncio.run(fire(declared.sensor(name), Firing(context=context(), **options)))

    event = Event(at=1.0, type="run.failed", subject="run/a", data={"workflow": "training"})
    assert came("when_retry", event=event) == {"type": "run.failed", "subject": "run/a", "workflow": "training"}
    assert came("when_retry") is None
    assert came("when_called", args=[1]) == 1
    assert came("when_called", args=[1, 2]) == [1, 2]
    assert came("when_called", kwargs={"n": 1}) == {"n": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = ", "a.py cannot be loaded:"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "a.py cannot be loaded:"),
        ("import scanflow as sf\nsf.every()", "a.py, line 2: "),
        ("from .nowhere import x", "No module named"),
        ("x = 1", "Agent 'tracker' has no sensor: none of its modules declares one."),
        (
            (
                "import scanflow as sf\nfrom scanflow.agent import call\n"
                "sf.Strategy(name='s', when='cuont', then=call('a', 'b'))\n"
                "from scanflow.agent import sensor\n@sensor\ndef count(): return 1"
            ),
            (
                "Agent 'tracker': the strategy 's' waits for the sensor 'cuont', which the agent does not have. Did "
                "you mean 'count'?"
            ),
        ),
        (
            "from scanflow.agent import sensor\n@sensor\ndef count(): return 1\n@sensor\ndef count(): return 2",
            "Agent 'tracker' has two sensors named 'count'. Rename one.",
        ),
        (
            "from scanflow.agent import sensor\n@sensor(filter_string='metrics.n like 3')\ndef count(): return 1",
            "Agent 'tracker': the sensor 'count': ",
        ),
        (
            (
                "import scanflow as sf\nfrom scanflow.agent import call\n"
                "for _ in 'ab': sf.Strategy(name='s', when=sf.on_call(), then=call('a', 'b'))"
            ),
            "Agent 'tracker' has two strategies named 's'. Rename one.",
        ),
    ],
)
def test_a_module_that_cannot_be_used_says_why(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.py").write_text(text)
    app = sf.Application(name="shop", app_dir=tmp_path, agents=[sf.Agent(name="tracker", modules=["a.py"])])
    with pytest.raises(UsageError) as error:
        load_agent(app, "tracker")
    assert reason in message(error)
    assert not [name for name in sys.modules if name.startswith("_agent_tracker.a")] or "cannot" not in reason


def test_nodes_that_no_workflow_has_are_refused(tmp_path: Path) -> None:
    app = shop(tmp_path, modules={"agents/tracker.py": MODERN})
    step = sf.Executor(name="predict", mainfile="predict.py")
    app = app.replace(workflows=[sf.Workflow(name="inference", nodes=[step])])
    with pytest.raises(InvalidError, match=r"refers to 'predictor', which is not a node .* Did you mean 'predict'\?"):
        load_agent(app, "tracker")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    app = shop(tmp_path, modules={"agents/tracker.py": MODERN})
    agent = app.agents[0]
    with pytest.raises(NotFoundError, match=r"no agent 'trackr'. Did you mean 'tracker'\?"):
        load_agent(app, "trackr")
    with pytest.raises(NotFoundError, match=r"no file 'agents/trackr.py'"):
        load_agent(app, agent.replace(modules=["agents/trackr.py"]))
    with pytest.raises(NotFoundError, match="the sensor 'cont' has no function"):
        load_agent(app, agent.replace(sensors=[sf.Sensor(name="cont", trigger=sf.on_call())]))
    sensor = sf.Sensor(name="cont", trigger=sf.on_call(), function="agents/tracker.py:cout")
    with pytest.raises(NotFoundError, match=r"'agents/tracker.py' has no 'cout'"):
        load_agent(app, agent.replace(sensors=[sensor]))
    with pytest.raises(NotFoundError, match="This agent has no sensor 'cont'"):
        load_agent(app, agent).sensor("cont")
    (tmp_path / "agents/rules.txt").write_text("")
    with pytest.raises(InvalidError, match=r"its path must end in '.py' and have no other dot"):
        load_agent(app, agent.replace(modules=["agents/rules.txt"]))

"""Services as a person meets them: the deployer's face, the client and the command line, over a stand-in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import scanflow as sf
from scanflow.application_loading import load_application
from scanflow.backends.service_change import CanaryPolicy, Deployment, ServiceChange, Sizing
from scanflow.backends.service_records import RevisionRecord, ServiceRecord, Shape
from scanflow.backends.shapes import apply_sizing, compute_shape
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnsupportedError, UsageError
from scanflow.knowledge import MemoryKnowledge
from scanflow.settings import Settings
from scanflow_client.cli.command_tree import app as commands
from scanflow_client.cli.service_commands import parse_rule, parse_share
from tests.unit.standin import Place, StandIn

APP = """
import scanflow as sf

cnn = sf.Service(
    name="cnn", model="models:/cnn@champion", instances=2, resources=sf.Resources(cpu=1), affinity="cpumem"
)
train = sf.Executor(name="train", mainfile="train.py")
app = sf.Application(
    name="shop",
    workflows=[
        sf.Workflow(name="digits", type="online", nodes=[cnn]), sf.Workflow(name="training", nodes=[train])
    ],
)
"""

Run = Callable[..., Result]


@pytest.fixture
def backend(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


@pytest.fixture
def deployer(settings: Settings, backend: StandIn) -> EmbeddedDeployer:
    return EmbeddedDeployer(settings, backend=Place(settings, backend))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    (tmp_path / "train.py").touch()
    return path


@pytest.fixture
def application(source: Path) -> sf.Application:
    return load_application(str(source))[0]


@pytest.fixture
def deployed_record(deployer: EmbeddedDeployer, application: sf.Application, source: Path) -> ServiceRecord:
    return deployer.deploy(Deployment(application, source=source))


@pytest.fixture
def registry(source: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryKnowledge:
    knowledge = MemoryKnowledge()
    for _ in range(2):
        knowledge.register_model("cnn", source, app="mnist", team="default")
    monkeypatch.setattr("scanflow_client.model_client.open_server_knowledge", lambda *_: knowledge)
    return knowledge


@pytest.fixture
def run(deployer: EmbeddedDeployer, source: Path, monkeypatch: pytest.MonkeyPatch, registry: MemoryKnowledge) -> Run:
    monkeypatch.chdir(source.parent)
    for module in ("service_commands", "run_commands", "project_commands", "model_commands", "top_command"):
        monkeypatch.setattr(f"scanflow_client.cli.{module}.open_deployer", lambda: deployer)

    def run(*words: str) -> Result:
        done = CliRunner().invoke(commands, words)
        assert done.exception is None or isinstance(done.exception, ScanflowError | SystemExit), done.exception
        return done

    return run


# The shape of a graph


def node(name: str, **fields: object) -> sf.Service:
    return sf.Service.model_validate({"name": name, "model": f"models:/{name}/1", **fields})


def test_a_service_is_deployed_beside_the_backup_that_it_names(deployer: EmbeddedDeployer, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("class Model:\n    def predict(self, X):\n        return X\n")
    nodes = [sf.Service(name="model", implementation="model.py:Model")]
    online = [
        sf.Workflow(name="first", type="online", nodes=nodes, serving=sf.Serving(backup="second")),
        sf.Workflow(name="second", type="online", nodes=nodes, serving=sf.Serving(env={"PASSWORD": "hunter2"})),
    ]
    app = sf.Application(name="pair", app_dir=tmp_path, workflows=online)
    assert deployer.deploy(Deployment(app, "first")).name == "first"
    with pytest.raises(InvalidError, match=r"workflows\.1\.serving\.env\.PASSWORD is a plain value"):
        deployer.deploy(Deployment(app, "second"))


def graph(*nodes: sf.Service) -> sf.Workflow:
    edges = [nodes[place] >> nodes[place + 1] for place in range(len(nodes) - 1)]
    return sf.Workflow(name="graph", type="online", nodes=nodes, edges=edges)


def test_a_graph_takes_what_its_nodes_take_together() -> None:
    first = node("a", instances=2, resources={"cpu": 1, "memory": "1Gi"}, affinity="cpu")
    second = node("b", instances=3, resources={"cpu": "500m", "memory": "512Mi"}, affinity="cpumem")
    assert compute_shape(graph(first, second)) == Shape(
        instances=3, cores=1.5, memory_bytes=3 * 2**29, affinity="cpumem"
    )


@pytest.mark.parametrize(("instances", "begun"), [(0, 1), (2, 2), (9, 4)])
def test_scaling_bounds_the_instances(instances: int, begun: int) -> None:
    scaling = sf.Scaling(metric="rps", target=5, min=1, max=4)
    assert compute_shape(graph(node("a", instances=instances, scaling=scaling))).instances == begun


def test_threads_are_derived_again_where_the_cores_change() -> None:
    shape = Shape(instances=2, cores=1, threads={"OMP_NUM_THREADS": "1"})
    assert apply_sizing(shape, Sizing(instances=4)).threads == shape.threads
    assert apply_sizing(shape, Sizing(cores=2)) == Shape(instances=2, cores=2)


# The deployer


def test_deploying_takes_the_online_workflow_and_what_is_given_beside_it(
    deployer: EmbeddedDeployer, backend: StandIn, deployed_record: ServiceRecord, application: sf.Application
) -> None:
    assert deployed_record.name == "digits"
    assert backend.asked == [{"deploy": "digits", "sizing": None, "port": None}]
    record = deployer.deploy(Deployment(application, "digits", sizing=Sizing(instances=1), port=8080))
    assert backend.asked[-1]["port"] == 8080
    assert record.shape == Shape(instances=1, cores=1, affinity="cpumem")


def test_what_is_run_is_not_deployed_and_the_other_way_round(
    deployer: EmbeddedDeployer, application: sf.Application
) -> None:
    with pytest.raises(
        UsageError,
        match=r"'training' is of type 'batch': it runs to completion and is not served. Run it: scanflow run",
    ):
        deployer.deploy(Deployment(application, "training"))
    with pytest.raises(UnsupportedError, match=r"'digits' is of type 'online'.*Deploy it: scanflow deploy"):
        deployer.run(RunRequest(application, "digits"))
    with pytest.raises(NotFoundError, match=r"no workflow 'digit'. Did you mean 'digits'"):
        deployer.deploy(Deployment(application, "digit"))


def test_a_change_of_nothing_is_refused(deployer: EmbeddedDeployer, deployed_record: ServiceRecord) -> None:
    with pytest.raises(UsageError, match="The request changes nothing"):
        ServiceChange()
    with pytest.raises(InvalidError, match=r"weight"):
        ServiceChange(model="models:/cnn/2", weight=1.5)


def test_a_plan_of_a_graph_says_where_its_instances_would_sit(deployer: EmbeddedDeployer) -> None:
    service = node("cnn", instances=1, resources={"cpu": 1}, affinity="cpu", batching={"max_size": 8})
    plan = deployer.plan(RunRequest(sf.Application(name="x", workflows=[graph(service)])))
    (instance,) = plan.instances
    assert (instance.cores, len(instance.cpus), instance.threads) == (1, 1, 1)
    assert plan.steps[0].runs == "models:/cnn/1"
    assert plan.steps[0].notes == ("MODEL", "batches of up to 8")
    assert plan.peak_cores == 1


# The command line


def test_deploying_tells_of_each_instance_and_ends_with_a_way_to_ask(run: Run) -> None:
    lines = run("deploy").output.splitlines()
    assert lines[:2] == ["  instance 1 is ready on core 0 (0.9 s)", "  instance 2 is ready on core 1 (0.9 s)"]
    assert lines[2] == "✓ digits  ready at http://127.0.0.1:9  (2 instances × 1 core, cpumem)"
    assert lines[-1].startswith("Request a prediction: scanflow predict digits --data")
    assert lines[-2].startswith("curl -s http://127.0.0.1:9/v2/models/digits/infer")


@pytest.mark.parametrize(
    ("serving", "options"), [("", ""), (", serving=sf.Serving(clients=['CN=ada'])", "--cert FILE --key FILE ")]
)
def test_deploying_for_named_clients_ends_with_a_request_that_shows_a_certificate(
    run: Run, backend: StandIn, source: Path, monkeypatch: pytest.MonkeyPatch, serving: str, options: str
) -> None:
    for name in ("CLIENT_CERT", "CA"):
        monkeypatch.delenv(f"SCANFLOW_TLS_{name}", raising=False)
    backend.url = "https://127.0.0.1:9"
    source.write_text(APP.replace("nodes=[cnn]", f"nodes=[cnn]{serving}"))
    curl = run("deploy").output.splitlines()[-2]
    assert f"{options}https://127.0.0.1:9/v2/models/digits/infer" in curl
    assert ("--cert" in curl) == bool(options)


def test_deploying_can_be_cut_otherwise(run: Run, backend: StandIn) -> None:
    done = run("deploy", "app.py:digits", "--instances", "1", "--cores", "500m", "--affinity", "ANY", "--json")
    assert json.loads(done.output)["shape"] == {
        "instances": 1, "cores": 0.5, "memory_bytes": None, "affinity": "any", "pool_threads": None, "threads": {},
        "gpu": 0, "gpu_memory_bytes": None,
    }  # fmt: skip
    assert json.loads(run("deploy", "app.py:digits", "--gpu", "0.5", "--json").output)["shape"]["gpu"] == 0.5
    assert "(4 instances × 1 core, gpu=1g.10gb, cpumem)" in run("scale", "digits", "4", "--gpu", "1g.10gb").output
    assert "gpu 'half' cannot be read" in str(run("scale", "digits", "--gpu", "half").exception)
    assert "affinity 'near' is not known" in str(run("deploy", "--affinity", "near").exception)
    assert "cpu 'two' cannot be read" in str(run("deploy", "--cores", "two").exception)


def test_a_budget_of_cores_is_divided_over_instances(run: Run, deployed_record: ServiceRecord) -> None:
    assert "(4 instances × 2 cores, cpumem)" in run("scale", "digits", "--cut", "8", "--into", "4").output
    assert "(2 instances × 0.5 cores, any)" in run("deploy", "--cut", "1", "--into", "2", "--affinity", "any").output
    output = run("plan", "app.py:digits", "--cut", "1", "--into", "2", "--affinity", "any").output
    assert output.splitlines()[-1].startswith("2 instances on 1 of ")
    assert "cannot be divided evenly" in str(run("scale", "digits", "--cut", "9", "--into", "4").exception)
    assert "no instances" in str(run("plan", "app.py:training", "--instances", "2").exception)


def test_without_services_there_is_a_command_to_begin_with(run: Run) -> None:
    assert (
        run("services").output == "No service is deployed. Deploy an online workflow: scanflow deploy app.py:WORKFLOW\n"
    )
    assert "There is no service 'digits'" in str(run("services", "digits").exception)


def test_what_runs_is_shown_once_to_a_pipe(run: Run, deployed_record: ServiceRecord) -> None:
    lines = run("top").output.splitlines()
    assert "1 service, 0 agents, 0 running runs" in lines[0]
    assert any(line.startswith("digits   ✓ ready") for line in lines)
    reading = json.loads(run("top", "--once", "--json").output)
    assert [service["name"] for service in reading["services"]] == ["digits"]
    assert all(0 <= cpu["load"] <= 1 for cpu in reading["cpus"])


def test_scaling_rolls_and_explains(run: Run, deployed_record: ServiceRecord) -> None:
    lines = run("scale", "digits", "3", "--cores", "2").output.splitlines()
    assert lines == [
        "  rolling",
        "✓ digits  ready at http://127.0.0.1:9  (3 instances × 2 cores, cpumem)",
        "Show it: scanflow services digits",
    ]
    assert "ceil(2 x 31.0 / 20.0) = 4" in run("scale", "digits", "--explain").output
    assert json.loads(run("scale", "digits", "--explain", "--json").output)["wanted"] == 4
    assert "The request changes nothing" in str(run("scale", "digits").exception)


def test_a_version_becomes_a_canary_and_is_evaluated(
    run: Run, backend: StandIn, deployed_record: ServiceRecord
) -> None:
    done = run("traffic", "digits", "models:/cnn/2", "-w", "10%", "--promote-if", "p95<=1.2x", "--after", "500")
    assert "models:/cnn/2 is loaded" in done.output
    policy = CanaryPolicy(metric="p95", ratio=1.2, after_requests=500)
    wanted = ServiceChange(model="models:/cnn/2", weight=0.1, shadow=False, policy=policy)
    assert backend.asked[-1] == {"change": wanted}
    assert run("services", "digits").output.splitlines()[-1] == (
        "Decide: scanflow promote digits, or scanflow rollback digits"
    )
    assert "Served now: cnn/2" in run("promote", "digits").output
    assert "has no canary" in str(run("promote", "digits").exception)
    assert "Served now: cnn/2" in run("rollback", "digits").output


def test_a_rollback_says_what_is_served_now_and_what_another_one_returns_to(
    run: Run, deployed_record: ServiceRecord, registry: MemoryKnowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.set_model_alias("cnn", "champion", 2)
    first, second = (
        deployed_record.model_copy(update={"revisions": (RevisionRecord(id=id, models={"cnn": f"models:/cnn/{id}"}),)})
        for id in ("1", "2")
    )

    class Swapping:
        service = staticmethod(lambda _name: second)
        services = staticmethod(lambda: [first])
        change = staticmethod(lambda _name, _change, **_how: first)

    for module in ("service_commands", "model_commands"):
        monkeypatch.setattr(f"scanflow_client.cli.{module}.open_deployer", Swapping)
    back = run("rollback", "digits").output
    assert "Served now: cnn/1\n" in back
    assert "The champion of cnn is version 1 now." in back
    assert registry.get_model("cnn", "champion").version == 1
    assert "Before: cnn/2. Return to it: scanflow rollback digits" in back


def test_a_canary_without_requests_is_refused(run: Run, deployed_record: ServiceRecord) -> None:
    assert "needs a share of the requests" in str(run("traffic", "digits", "models:/cnn/2").exception)
    assert "Give the rule too" in str(run("traffic", "digits", "models:/cnn/2", "--shadow", "--within", "5m").exception)
    assert run("traffic", "digits", "models:/cnn/2", "--shadow").exit_code == 0


def test_logs_of_a_service_are_found_by_its_name(run: Run, deployed_record: ServiceRecord, tmp_path: Path) -> None:
    (tmp_path / "1.log").write_bytes(b"one\n")
    (tmp_path / "2.log").write_bytes(b"two\n")
    assert run("logs", "digits").output == "── 1\none\n── 2\ntwo\n"
    assert run("logs", "digits", "2").output == "two\n"
    message = "There is no run and no service 'digit'. Did you mean 'digits'?"
    assert str(run("logs", "digit").exception) == message


# Shares of the traffic and rules of promotion, as people write them


@pytest.mark.parametrize(
    ("text", "share"), [("10%", 0.1), (" 12.5 % ", 0.125), ("0.1", 0.1), ("0", 0), ("1", 1), ("100%", 1)]
)
def test_a_share_is_a_percentage_or_a_fraction(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "ten", "-1%", "101%", "1.1.1", "10%%", "1e-3", "10"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match=r"is not a share of the requests, from 0% to 100%. Write 10% or 0.1"):
        parse_share(text)
    with pytest.raises(InvalidError, match="Did you mean '10%'"):
        parse_share("10")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("p95<=1.2x", CanaryPolicy(metric="p95", ratio=1.2, after_requests=500)),
        ("errors<=1x+0.01", CanaryPolicy(metric="errors", ratio=1, slack=0.01, after_requests=500)),
        (" mean <= 1.1 x + 0.005 ", CanaryPolicy(metric="mean", ratio=1.1, slack=0.005, after_requests=500)),
    ],
)
def test_a_rule_compares_with_the_current_version(text: str, rule: CanaryPolicy) -> None:
    assert parse_rule(text, after=500) == rule
    assert parse_rule(rule.rule, after=500) == rule, "as it is shown"
    assert parse_rule(text, after=500, within_s=60) == rule.model_copy(update={"within_s": 60})


@pytest.mark.parametrize("text", ["", "p95", "p95<1.2x", "p95<=1.2", "p99<=1x", "p95<=x", "p95<=1x-1", "p95<=1x+"])
def test_what_is_no_rule_is_refused_with_some_that_are(text: str) -> None:
    with pytest.raises(InvalidError, match=r"cannot be read. Write 'p95<=1.2x'"):
        parse_rule(text, after=1)

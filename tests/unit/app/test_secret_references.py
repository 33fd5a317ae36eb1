"""References to secrets: where they may stand, and what they never become."""

from __future__ import annotations

from pathlib import Path

import pytest

import scanflow as sf
from scanflow.app.application_files import dump_document, dump_json, dump_yaml, load_json, load_yaml
from scanflow.app.secrets import iterate_secrets
from scanflow.errors import InvalidError

SECRET = sf.secret("env:API_KEY")


@sf.step
def use(token: str, deep: dict[str, str] | None = None, count: int = 1) -> int:
    return len(token) * count


def make_app() -> sf.Application:
    script = sf.Executor(name="script", mainfile="a.py", parameters={"key": SECRET}, env={"KEY": SECRET, "MODE": "x"})
    service = sf.Service(name="m", implementation="m.py:M", parameters={"deep": [{"key": sf.secret("k8s:api/key")}]})
    return sf.Application(
        name="a",
        workflows=[
            sf.Workflow(name="w", nodes=[script, use.bind(token=SECRET, deep={"key": sf.secret("file:key.txt")})]),
            sf.Workflow(
                name="o",
                type="online",
                nodes=[service],
                serving=sf.Serving(env={"K": SECRET}, auth=sf.secret("env:TOKEN")),
            ),
        ],
        agents=[sf.Agent(name="g", modules=["g.py"], parameters={"chat": SECRET})],
        tracker=sf.Tracker(uri=sf.secret("env:TRACKER")),
        notify=[sf.Webhook(url=sf.secret("env:HOOK"), secret=sf.secret("file:sign"))],
    )


@pytest.mark.parametrize(("dump", "load"), [(dump_json, load_json), (dump_yaml, load_yaml)])
def test_an_application_with_references_is_the_same_after_a_file(dump: object, load: object) -> None:
    app = make_app()
    assert load(dump(app)).model_dump() == app.model_dump()  # type: ignore[operator]
    document = dump_document(app)
    assert document["workflows"][0]["nodes"][0]["env"] == {"KEY": {"$secret": "env:API_KEY"}, "MODE": "x"}
    assert (document["tracker"]["uri"], document["notify"][0]["url"]) == ("env:TRACKER", "env:HOOK")
    assert len(list(iterate_secrets(app))) == 7


@pytest.mark.parametrize(
    "value", ["hunter2", "env:", "env:A B", "file:", "k8s:only", "k8s:A/b", "vault:x", "env:A\n", "sk-12345678", ""]
)
def test_what_is_no_reference_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(InvalidError, match="takes a reference to a secret, not the secret itself") as error:
        sf.secret(value)
    assert not value or value not in str(error.value).replace("env:NAME, file:PATH or k8s:SECRET/KEY", "")


@pytest.mark.parametrize(
    "misuse", [lambda: f"postgres://{SECRET}@host", lambda: str(SECRET), lambda: "a" + str(SECRET), lambda: not SECRET]
)
def test_a_reference_is_no_part_of_a_text(misuse: object) -> None:
    with pytest.raises(InvalidError, match="known only where it is used"):
        misuse()  # type: ignore[operator]


def test_a_step_that_is_called_at_once_gets_no_reference() -> None:
    with pytest.raises(InvalidError, match="a secret has no value yet"):
        use(SECRET)


def test_a_variable_that_is_neither_text_nor_a_reference_is_refused() -> None:
    with pytest.raises(InvalidError, match="it should be text"):
        sf.Executor(name="a", mainfile="a.py", env={"A": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidError, match="not the secret itself"):
        sf.Executor(name="a", mainfile="a.py", env={"A": {"$secret": "hunter2"}})  # type: ignore[dict-item]


def test_a_mapping_of_the_users_cannot_pass_for_a_reference() -> None:
    with pytest.raises(InvalidError, match="which scanflow reserves"):
        sf.Executor(name="a", mainfile="a.py", parameters={"a": {"$secret": "env:A", "more": 1}})


def test_arguments_that_everybody_can_read_get_no_secret() -> None:
    with pytest.raises(InvalidError, match="arguments that every user of the machines can read"):
        sf.MPIWorkload(name="m", mainfile="a.out", n_tasks=1, parameters={"key": SECRET})


def test_a_step_where_the_output_cannot_be_masked_gets_no_secret() -> None:
    with pytest.raises(InvalidError, match="what it prints could not be masked"):
        use.options(in_process=True).bind(SECRET)


def test_a_parameter_may_be_set_to_a_reference() -> None:
    workflow = make_app().workflow("w")
    node = workflow.with_parameters({"use.token": sf.secret("env:OTHER")}).node("use")
    assert node.parameters["token"] == sf.secret("env:OTHER")
    texts = workflow.parse_parameters({"use.token": '{"$secret": "env:THIRD"}'})
    assert workflow.with_parameters(texts).node("use").parameters["token"] == sf.secret("env:THIRD")


def test_a_tracker_in_a_file_has_an_absolute_path() -> None:
    with pytest.raises(InvalidError, match="Write an absolute path"):
        sf.Tracker(uri=sf.secret("file:tracker.txt"))


def test_code_of_agents_reads_the_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("API_KEY", "value")
    (tmp_path / "key").write_text("from a file\n")
    assert (SECRET.read(), sf.secret(f"file:{tmp_path}/key").read()) == ("value", "from a file")

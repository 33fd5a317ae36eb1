"""A service is its model: the answer is that of ``mlflow.pyfunc``, or a refusal that says what to send.

A zoo of models, each asked in every way: clients, the command with files, the protocols.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Iterator
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest

from scanflow.errors import NotFoundError
from scanflow.instance_messages import BatchingOptions
from scanflow_client.formatting.service_text import format_request_examples
from tests.laws.model_clients import Refused, ServedModel, serve_model, to_columns

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("mlflow") is None or find_spec("sklearn") is None, reason="mlflow or sklearn missing"),
]


@pytest.fixture(autouse=True)
def _quick_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare MLflow, which only warns of what is not installed, the reading of all packages' files: two seconds."""
    monkeypatch.setattr("importlib_metadata.packages_distributions", dict)


def predict_plainly(folder: Path, asked: Any, parameters: Any = None) -> Any:
    from mlflow.pyfunc import load_model

    model = load_model(str(folder))
    if isinstance(asked, np.ndarray) and asked.dtype == object:
        asked = [json.loads(text) if text.startswith(("{", "[")) else text for text in asked]
    answer = model.predict(asked, params=parameters)
    return list(answer) if hasattr(answer, "send") else answer


def list_table_ways(served: ServedModel, table: pd.DataFrame, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    turned: Any = table[table.columns[::-1]]
    columns = {name: turned[name].to_numpy() for name in turned.columns}
    texts: Any = turned.assign(
        **{
            name: [str(np.datetime64(value)) for value in column]
            for name, column in columns.items()
            if column.dtype.kind == "M"
        }
    )
    plain = json.loads(texts.to_json(orient="records"))
    yield "client with a DataFrame", lambda: served.ask_client(turned)
    yield "client with records", lambda: served.ask_client(plain)
    yield "client with a mapping", lambda: served.ask_client(columns)
    yield "protocol as JSON", lambda: served.ask_protocol(columns, binary=False)
    yield "protocol in binary", lambda: served.ask_protocol(columns, binary=True)
    yield "gRPC", lambda: served.ask_grpc(columns)
    yield "Seldon", lambda: served.ask_seldon([list(row.values()) for row in plain], list(turned.columns))
    texts.to_csv(folder / "a.csv", index=False)
    turned.to_parquet(folder / "a.parquet")
    yield "command with CSV", lambda: served.ask_command(file=folder / "a.csv")
    yield "command with Parquet", lambda: served.ask_command(file=folder / "a.parquet")
    yield "command with JSON", lambda: served.ask_command(data=json.dumps(plain))


def list_array_ways(served: ServedModel, array: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    many = isinstance(array, dict)
    plain: Any = {name: value.tolist() for name, value in array.items()} if many else array.tolist()
    yield "client with an array", lambda: served.ask_client(array)
    yield "client with a list", lambda: served.ask_client(plain)
    yield "protocol as JSON", lambda: served.ask_protocol(array, binary=False)
    yield "protocol in binary", lambda: served.ask_protocol(array, binary=True)
    yield "gRPC", lambda: served.ask_grpc(array)
    yield "Seldon", lambda: served.ask_seldon(next(iter(plain.values())) if many else plain)
    yield "command", lambda: served.ask_command(data=json.dumps(plain))


def list_wrong_inputs(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    first = str(table.columns[0])
    yield "foreign", table.rename(columns={first: "foreign"})
    yield "foreign", table.assign(foreign=1.0)
    if table.shape[1] > 1:
        yield first, table.drop(columns=first)


def hold(animal: Any, folder: Path) -> int:
    """Hold the law for one model; return how many answers were compared."""
    folder.mkdir()
    animal.save(folder / "model")
    answer = predict_plainly(folder / "model", animal.asked) if animal.answer is None else animal.answer
    expected = to_columns(answer)
    asked = pd.DataFrame(animal.asked) if isinstance(animal.asked, list) else animal.asked
    count = 0
    with serve_model(folder / "model") as served:
        is_table = isinstance(asked, pd.DataFrame)
        ways = list_table_ways(served, asked, folder) if is_table else list_array_ways(served, asked)
        for way, ask in ways:
            answer = ask()
            if isinstance(answer, Refused):
                assert 400 <= answer.status < 500, f"{animal.name}, {way}: {answer}"
                assert way.lower().startswith(tuple(animal.unasked)), f"{animal.name}, {way}: {answer}"
                continue
            assert to_columns(answer) == expected, f"{animal.name}, {way}"
            count += 1
        if is_table and len(asked) and not animal.is_open:
            wrong: Any
            for word, wrong in list_wrong_inputs(asked):
                for refused in (
                    served.ask_client(wrong),
                    served.ask_protocol_raw(wrong),
                    served.ask_seldon(
                        json.loads(wrong.to_json(orient="values", date_format="iso")), list(wrong.columns)
                    ),
                ):
                    assert isinstance(refused, Refused), f"{animal.name} answers without, or with, {word!r}"
                    assert 400 <= refused.status < 500, refused
                    assert word in refused.detail or str(asked.columns[0]) in refused.detail, refused
                    count += 1
    return count


@pytest.mark.usefixtures("home")
def test_a_service_is_its_model(tmp_path: Path) -> None:
    from tests.laws.zoo import list_animals

    count = 0
    for animal in list_animals():
        count += hold(animal, tmp_path / animal.name)
    assert count >= 500


BY_PLACE = {"lightgbm-booster-unsigned", "lightgbm-other-order", "lightgbm-array-as-sklearn", "xgboost-gaps"}
"""Boosted models that take columns by their places, or know none: each was answered wrongly, or not at all, once."""


@pytest.mark.usefixtures("home")
def test_a_boosted_model_gets_its_columns_by_name(tmp_path: Path) -> None:
    from tests.laws.heavy_models import list_boosted

    held = [hold(animal, tmp_path / animal.name) for animal in list_boosted(1) if animal.name in BY_PLACE]
    assert (len(held), all(held)) == (len(BY_PLACE), True)


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_boosted_models_and_networks_are_served_as_they_are(tmp_path: Path) -> None:
    from tests.laws.heavy_models import list_boosted, list_networks

    for number in range(2, 6):
        for animal in [*list_boosted(number), *list_networks(number)]:
            assert hold(animal, tmp_path / f"{animal.name}-{number}") > 0


@pytest.mark.torch
@pytest.mark.usefixtures("home")
def test_modules_of_pytorch_are_served_as_they_are(tmp_path: Path) -> None:
    from tests.laws.heavy_models import list_torch

    for number in range(2, 6):
        for animal in list_torch(number):
            assert hold(animal, tmp_path / f"{animal.name}-{number}") > 0


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_four_hundred_models_are_served_as_they_are(tmp_path: Path) -> None:
    from tests.laws.zoo import list_animals

    count = 0
    for number in range(2, 12):
        for animal in list_animals(number):
            assert hold(animal, tmp_path / f"{animal.name}-{number}") > 0
            count += 1
    assert count >= 400


def write_scaled_model(folder: Path) -> pd.DataFrame:
    from tests.laws.zoo import list_animals

    animal = next(animal for animal in list_animals() if animal.name == "scaled")
    animal.save(folder)
    table: pd.DataFrame = animal.asked
    return table


@pytest.mark.usefixtures("home")
def test_parameters_reach_the_model_or_are_refused(tmp_path: Path) -> None:
    from tests.laws.zoo import list_animals

    table = write_scaled_model(tmp_path / "scaled")
    columns = {name: table[name].to_numpy() for name in table.columns}
    for batching in (None, BatchingOptions(max_size=16, max_delay_s=0.005)):
        with serve_model(tmp_path / "scaled", batching=batching) as served:
            answer = served.ask_protocol(columns, binary=False, parameters={"by": 5, "timeout": 9_000_000})
            assert to_columns(answer) == to_columns(predict_plainly(tmp_path / "scaled", table, {"by": 5}))
            assert to_columns(served.ask_protocol(columns, binary=False)) == to_columns(
                predict_plainly(tmp_path / "scaled", table)
            )
            for parameters, words in (({"bye": 5}, "no parameter 'bye'. Did you mean 'by'"), ({"by": "x"}, "'by'")):
                refused = served.ask_protocol(columns, binary=False, parameters=parameters)
                assert isinstance(refused, Refused), parameters
                assert (400 <= refused.status < 500, words in refused.detail) == (True, True), refused
    animal = next(animal for animal in list_animals() if animal.name == "linear")
    animal.save(tmp_path / "linear")
    with serve_model(tmp_path / "linear") as served:
        columns = {name: animal.asked[name].to_numpy() for name in animal.asked.columns}
        refused = served.ask_protocol(columns, binary=False, parameters={"by": 5})
        assert isinstance(refused, Refused)
        assert "It takes none" in refused.detail


@pytest.mark.usefixtures("home")
def test_text_is_text_to_clients_and_bytes_are_bytes(tmp_path: Path) -> None:
    from tests.laws.zoo import save_function

    answers: dict[str, Any] = {"text": ["ja", "nein"], "bytes": [b"ja", b"n\xff"], "gaps": ["ja", None]}
    example = pd.DataFrame({"which": ["text", "text"]})
    save_function(lambda model_input: answers[model_input["which"].iloc[0]], tmp_path / "m", example)
    with serve_model(tmp_path / "m") as served:
        for which, answer in answers.items():
            asked = {"which": np.array([which, which], dtype=object)}
            for got in (
                served.ask_client(asked),
                served.ask_protocol(asked, binary=True),
                served.ask_grpc(asked),
                served.ask_command(data=json.dumps({"which": [which, which]})),
            ):
                [output] = got.values()
                assert (output.tolist(), output.dtype) == (answer, object), which
        [text] = served.ask_client({"which": np.array(["text", "text"], dtype=object)}).values()
        assert (text == answers["text"]).all()
        reply = served.post(
            "/v2/models/m/infer",
            json.dumps({"inputs": [{"name": "which", "datatype": "BYTES", "shape": [1], "data": ["text"]}]}).encode(),
        )
        [described] = reply.json()["outputs"]
        assert (described["parameters"], described["data"]) == ({"content_type": "str"}, ["ja", "nein"])


@pytest.mark.usefixtures("home")
def test_date_times_reach_a_model_without_a_signature_as_they_are(tmp_path: Path) -> None:
    from tests.laws.zoo import describe_days, save_function

    save_function(describe_days, tmp_path / "m")
    days = pd.Series(pd.to_datetime(["2024-01-01T06:30:00.123456", "2024-12-25", "1999-03-01"], format="ISO8601"))
    later = pd.Series(["2024-01-01", "9999-12-31", "NaT"]).astype("datetime64[s]")
    dates = pd.Series([date(2024, 1, 1), date(9999, 12, 31), None], dtype=object)
    with serve_model(tmp_path / "m", batching=BatchingOptions(max_size=16, max_delay_s=0.005)) as served:
        for column in (days, days.astype("datetime64[ns]"), later, dates):
            table = pd.DataFrame({"day": column, "n": [1, 2, 3]})
            columns = {name: table[name].to_numpy() for name in table.columns}
            table.to_parquet(tmp_path / "a.parquet")
            table.to_feather(tmp_path / "a.feather")
            for answer in (
                served.ask_client(table),
                served.ask_client(columns),
                served.ask_client(table[["day"]]),
                served.ask_protocol(columns, binary=False),
                served.ask_protocol(columns, binary=True),
                served.ask_grpc(columns),
            ):
                assert to_columns(answer) == to_columns(predict_plainly(tmp_path / "m", table)), column.dtype
            for file in ("a.parquet", "a.feather"):
                read = pd.read_parquet(tmp_path / file) if file == "a.parquet" else pd.read_feather(tmp_path / file)
                answer = served.ask_command(file=tmp_path / file)
                assert to_columns(answer) == to_columns(predict_plainly(tmp_path / "m", read)), (file, column.dtype)
        objects = {"day": [moment.to_pydatetime() for moment in days], "n": [1, 2, 3]}
        assert to_columns(served.ask_client(objects)) == to_columns(
            predict_plainly(tmp_path / "m", pd.DataFrame(objects).astype({"day": "datetime64[us]"}))
        )
        texts: Any = pd.DataFrame({"day": days.astype(str), "n": [1, 2, 3]})
        assert to_columns(served.ask_client(texts)) == to_columns(predict_plainly(tmp_path / "m", texts))
        zoned = pd.DataFrame({"day": days.dt.tz_localize("Europe/Zurich"), "n": [1, 2, 3]})
        zoned.to_parquet(tmp_path / "a.parquet")
        for refused in (served.ask_client(zoned), served.ask_command(file=tmp_path / "a.parquet")):
            assert isinstance(refused, Refused), refused
            assert ("'day'" in refused.detail, ".dt.tz_convert(None)" in refused.detail) == (True, True), refused


@pytest.mark.usefixtures("home")
def test_columns_without_names_reach_the_model_by_their_places(tmp_path: Path) -> None:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    from tests.laws.zoo import save_function

    signature = ModelSignature(Schema([ColSpec("double"), ColSpec("long")]))
    save_function(lambda model_input: model_input[0] * 10 + model_input[1], tmp_path / "m", signature=signature)
    table = pd.DataFrame({0: [1.5, 2.5], 1: [3, 4]})
    table.rename(columns=str).to_parquet(tmp_path / "a.parquet")
    expected = to_columns(predict_plainly(tmp_path / "m", table))
    with serve_model(tmp_path / "m") as served:
        for answer in (
            served.ask_client(table),
            served.ask_command(file=tmp_path / "a.parquet"),
            served.ask_seldon(table.to_numpy().tolist()),
            served.ask_protocol({"input-0": [1.5, 2.5], "input-1": [3, 4]}, binary=False),
        ):
            assert to_columns(answer) == expected
        refused = served.ask_client(table[[1, 0]])
        assert isinstance(refused, Refused), "places are not known where the order is another"


@pytest.mark.usefixtures("home")
def test_columns_of_one_name_in_an_answer_are_refused(tmp_path: Path) -> None:
    from tests.laws.zoo import save_function

    example = pd.DataFrame({"x": [1.0, 2.0]})
    save_function(lambda _: pd.DataFrame([[1, 2]], columns=[1, "1"]), tmp_path / "m", example)
    with serve_model(tmp_path / "m") as served:
        refused = served.read(
            served.post(
                "/v2/models/m/infer", b'{"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1]}]}'
            )
        )
    assert isinstance(refused, Refused)
    assert (refused.status, "columns 1 and '1'" in refused.detail) == (500, True), refused


@pytest.mark.usefixtures("home")
def test_a_number_that_its_column_cannot_hold_does_not_become_another(tmp_path: Path) -> None:
    from tests.laws.zoo import save_function

    example = pd.DataFrame({"x": [1, 2]})
    save_function(lambda model_input: model_input["x"], tmp_path / "same", example)
    beyond: Any = pd.DataFrame({"x": np.array([2**63 + 1, 1], "uint64")})
    beyond.to_csv(tmp_path / "a.csv", index=False)
    beyond.to_parquet(tmp_path / "a.parquet")
    with serve_model(tmp_path / "same") as served:
        for refused in (
            served.ask_client(beyond),
            served.ask_client({"x": [2**63 + 1, 1]}),
            served.ask_client(beyond["x"]),
            served.ask_command(data=json.dumps({"x": [2**63 + 1, 1]})),
            served.ask_command(file=tmp_path / "a.csv"),
            served.ask_command(file=tmp_path / "a.parquet"),
            served.ask_seldon([[2**63 + 1], [1]], ["x"]),
            served.ask_seldon([[2**63 + 1], [-1]], ["x"]),
            served.ask_client({"x": [1, None]}),
        ):
            assert isinstance(refused, Refused), refused
            assert "'x'" in refused.detail, refused
        assert to_columns(served.ask_client(pd.Series([2**63 - 1], name="x"))) == [[2**63 - 1]]


def send_column(served: ServedModel, name: str, datatype: str, data: str, others: dict[str, Any]) -> Any:
    """Ask with one column as the JSON text that a client wrote."""
    tensors = [f'{{"name": "{name}", "datatype": "{datatype}", "shape": [1], "data": {data}}}']
    tensors += [json.dumps({"name": other, "shape": [1], **described}) for other, described in others.items()]
    return served.read(served.post("/v2/models/m/infer", f'{{"inputs": [{", ".join(tensors)}]}}'.encode()))


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("allow_nan", "words"), [(True, ""), (False, "a missing number (NaN)")])
def test_null_is_a_missing_number_where_these_are_allowed(tmp_path: Path, *, allow_nan: bool, words: str) -> None:
    from tests.laws.zoo import list_animals

    animal = next(animal for animal in list_animals() if animal.name == "gaps")
    animal.save(tmp_path / "gaps")
    income = {"income": {"datatype": "FP64", "data": [3000.0]}}
    with serve_model(tmp_path / "gaps", allow_nan=allow_nan) as served:
        answers = [
            send_column(served, "age", "FP64", "[null]", income),
            served.ask_seldon([[None, 3000.0]], ["age", "income"]),
        ]
    expected = predict_plainly(tmp_path / "gaps", pd.DataFrame({"age": [np.nan], "income": [3000.0]}))
    for answer in answers:
        if words:
            assert isinstance(answer, Refused)
            assert (answer.status, words in answer.detail) == (400, True), answer
        else:
            assert to_columns(answer) == to_columns(expected)


@pytest.mark.usefixtures("home")
def test_a_dataframe_of_whole_numbers_is_that_of_the_same_numbers_with_a_point(tmp_path: Path) -> None:
    from tests.laws.zoo import list_animals

    animal = next(animal for animal in list_animals() if animal.name == "linear")
    animal.save(tmp_path / "linear")
    whole = animal.asked.round().astype(int)
    with serve_model(tmp_path / "linear") as served:
        assert to_columns(served.ask_client(whole)) == to_columns(
            predict_plainly(tmp_path / "linear", whole.astype(float))
        )


@pytest.mark.usefixtures("home")
def test_a_number_beyond_its_type_is_refused_also_by_a_model_that_takes_infinity(tmp_path: Path) -> None:
    from tests.laws.zoo import save_function

    example = pd.DataFrame({"x": [1.0, 2.0]}).astype("float32")
    save_function(lambda model_input: model_input["x"] * 1, tmp_path / "same", example)
    gap = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1e300, NaN]}]}'
    with serve_model(tmp_path / "same") as served:
        for refused in (
            served.ask_seldon([[1e300]], ["x"]),
            send_column(served, "x", "FP32", "[1e300]", {}),
            served.read(served.post("/v2/models/m/infer", gap.encode())),
        ):
            assert isinstance(refused, Refused), refused
            assert (400 <= refused.status < 500, "input 'x'" in refused.detail, "1e" in refused.detail) == (True,) * 3


@pytest.mark.usefixtures("home")
def test_a_value_that_a_column_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    from tests.laws.zoo import list_animals

    animals = {animal.name: animal for animal in list_animals()}
    animals["single-precision"].save(tmp_path / "single")
    animals["dates"].save(tmp_path / "dates")
    animals["one-hot-strict"].save(tmp_path / "codes")
    with serve_model(tmp_path / "single") as served:
        beyond = [served.ask_seldon([[1e300, 2.0]], ["age", "income"])]
        beyond.append(send_column(served, "age", "FP32", "[1e300]", {"income": {"datatype": "FP32", "data": [1.0]}}))
        beyond.append(
            send_column(served, "age", "FP32", "[1e300]", {"income": {"datatype": "FP32", "data": [float("nan")]}})
        )
        for refused in beyond:
            assert isinstance(refused, Refused)
            assert (400 <= refused.status < 500, "FP32" in refused.detail) == (True, True), refused
    with serve_model(tmp_path / "dates") as served:
        for text in ("soon", "01.02.2024", "2024-01-01T00:00:00Z"):
            table = pd.DataFrame({"when": [text], "amount": [1.0]})
            refused = served.ask_client(table)
            assert isinstance(refused, Refused), text
            assert (text in refused.detail, "ISO 8601" in refused.detail) == (True, True), refused
    with serve_model(tmp_path / "codes") as served:
        table = pd.DataFrame({"age": [30], "income": [1.5], "code": [b"\xff"]})
        refused = served.ask_protocol({name: table[name].to_numpy() for name in table}, binary=True)
        assert isinstance(refused, Refused)
        assert (refused.status, "'code'" in refused.detail, "UTF-8" in refused.detail) == (400, True, True), refused
        unknown = served.ask_client(table.assign(code="never seen"))
        assert isinstance(unknown, Refused)
        assert "never seen" in unknown.detail
        words = served.ask_seldon([["thirty", 1.5, "01"]], ["age", "income", "code"])
        assert isinstance(words, Refused)
        assert (words.status, "'age'" in words.detail) == (422, True), words


@pytest.mark.usefixtures("home")
def test_what_a_model_lacks_is_said_when_it_is_deployed_and_never_ends_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.laws.zoo import list_animals

    lacking = {
        "linear-unsigned": "has no signature",
        "refuses-zeros": "an age above 1 is needed. Save it with an input_example",
        "one-hot-strict": "Save it with an input_example",
        "one-hot-example": "",
        "linear": "",
    }
    for animal in list_animals():
        if animal.name not in lacking:
            continue
        caplog.clear()
        animal.save(tmp_path / animal.name)
        with serve_model(tmp_path / animal.name) as served, served.connect("m") as client:
            notes = " ".join(client.document("/v2/models/m").get("notes", ()))
        warned = " ".join(
            record.message for record in caplog.records if record.levelno >= logging.WARNING and "m" in record.message
        )
        assert (bool(notes), lacking[animal.name] in notes) == (bool(lacking[animal.name]), True), notes
        assert notes in warned


@pytest.mark.usefixtures("home")
def test_what_a_server_has_not_is_said_plainly(tmp_path: Path) -> None:
    from tests.laws.zoo import list_animals

    animal = next(animal for animal in list_animals() if animal.name == "array")
    animal.save(tmp_path / "array")
    tensor = {"name": "x", "datatype": "FP64", "shape": [1, 2], "data": [1.0, 2.0]}
    wanted = [{"name": "output-0", "parameters": {"classification": 2}}]
    with serve_model(tmp_path / "array") as served:
        form = {"content-type": "multipart/form-data; boundary=x"}
        for path in ("/v2/models/m/infer", "/api/v1.0/predictions"):
            refused = served.post(path, b"--x--", form)
            assert (refused.status_code, "Send JSON" in refused.json()["detail"]) == (415, True)
        refused = served.post("/v2/models/m/infer", json.dumps({"inputs": [tensor], "outputs": wanted}).encode())
        assert (refused.status_code, "'classification'" in refused.json()["detail"]) == (400, True)
        with pytest.raises(NotFoundError, match="GET /metrics"), served.connect("m") as client:
            client.document("/v2/models/stats")


OWN_REFUSALS = ("found unknown categories", "an age above 1 is needed")
"""What models say of values that nothing declares."""


@pytest.mark.usefixtures("home")
def test_the_commands_that_a_deployment_prints_are_answered(tmp_path: Path) -> None:
    from scanflow.backends.service_records import ServiceRecord, Shape
    from tests.laws.zoo import list_animals

    record = ServiceRecord(
        name="m", app="a", team="t", state="ready", url="http://127.0.0.1:1", generation=1, shape=Shape()
    )
    count = 0
    for animal in list_animals():
        animal.save(tmp_path / animal.name)
        with serve_model(tmp_path / animal.name) as served:
            if not (inputs := served.list_inputs()):
                continue
            *_, curl, command = format_request_examples(record, inputs)
            if not curl.startswith("curl"):
                continue
            answers = [
                served.read(served.post("/v2/models/m/infer", shlex.split(curl)[-1].encode())),
                served.ask_command(data=shlex.split(command)[-1]),
            ]
        for answer in answers:
            own = isinstance(answer, Refused) and any(words in answer.detail.lower() for words in OWN_REFUSALS)
            assert own or not isinstance(answer, Refused), (animal.name, command, answer)
            count += not own
    assert count >= 60


@pytest.mark.usefixtures("home")
def test_the_commands_of_the_documentation_are_answered(tmp_path: Path) -> None:
    from tests.laws.zoo import list_animals, make_table

    page = (Path(__file__).parents[2] / "docs" / "inference.md").read_text(encoding="utf-8")
    commands = page.partition("### How a table model is asked")[2].partition("```console")[2].partition("```")[0]
    make_table().to_csv(tmp_path / "rows.csv", index=False)
    make_table().to_parquet(tmp_path / "rows.parquet")
    next(animal for animal in list_animals() if animal.name == "double").save(tmp_path / "model")
    count = 0
    with serve_model(tmp_path / "model") as served:
        for line in commands.replace("\\\n", " ").splitlines():
            match shlex.split(line)[1:]:
                case ["scanflow", "predict", "serve", "--data", data]:
                    answer = served.ask_command(data=data)
                case ["scanflow", "predict", "serve", file]:
                    answer = served.ask_command(file=tmp_path / file)
                case ["curl", "-s", url, "-H", _, "-d", body]:
                    path = urlsplit(url).path.replace("/serve/", "/m/")
                    answer = served.read(served.post(path, body.encode()))
                case _:
                    continue
            assert not isinstance(answer, Refused), (line, answer)
            count += 1
    assert count == 6

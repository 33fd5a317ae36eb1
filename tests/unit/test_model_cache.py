"""Versions of models on this machine's disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.errors import InvalidError, UnavailableError
from scanflow.knowledge import MemoryKnowledge
from scanflow.knowledge.model_cache import ModelCache, split_model_uri
from scanflow.knowledge.version_tags import PERSON, PROMOTION, format_rejection


class Counting(MemoryKnowledge):
    fetched = 0

    def fetch_model(self, name: str, destination: Path, *, version: int | str = "latest") -> Path:
        self.fetched += 1
        return super().fetch_model(name, destination, version=version)


@pytest.fixture
def knowledge(tmp_path: Path) -> Counting:
    registry = Counting()
    register(registry, tmp_path / "v1", b"first")
    return registry


@pytest.fixture
def cache(knowledge: Counting, tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "models", lambda: knowledge)


def register(registry: MemoryKnowledge, folder: Path, weights: bytes, file: str = "MLmodel") -> None:
    folder.mkdir()
    (folder / file).write_bytes(weights)
    registry.register_model("cnn", folder, app="shop", team="data")


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("models:/cnn/3", ("cnn", 3)),
        ("models:/cnn@champion", ("cnn", "champion")),
        ("models:/cnn/latest", ("cnn", "latest")),
        ("models:/a model/12", ("a model", 12)),
    ],
)
def test_an_address_has_a_name_and_a_version(uri: str, parts: tuple[str, int | str]) -> None:
    assert split_model_uri(uri) == parts


@pytest.mark.parametrize(
    "uri",
    [
        *"cnn /cnn models:cnn models:/cnn models:/cnn@ models:/cnn/ models:/cnn@a/b models:/cnn/1/2 runs:/a/b".split(),
        *("models:/@a", ""),
    ],
)
def test_what_is_no_address_says_how_one_is_written(uri: str) -> None:
    with pytest.raises(InvalidError, match=r"is not an address in the registry. Write 'models:/.*@champion'"):
        split_model_uri(uri)


@pytest.mark.parametrize(
    ("uri", "better"),
    [
        ("lin/2", "'models:/lin/2'."),
        ("lin@champion", "'models:/lin@champion'."),
        ("lin", "'models:/lin@champion' or 'models:/lin/1'."),
        ("runs:/a/b", "'models:/name@champion' or 'models:/name/1'."),
    ],
)
def test_what_is_nearly_an_address_is_written_as_one(uri: str, better: str) -> None:
    with pytest.raises(InvalidError) as refused:
        split_model_uri(uri)
    assert str(refused.value).endswith(f"Write {better}")


def test_a_version_is_fetched_once_whatever_it_is_called(cache: ModelCache, knowledge: Counting) -> None:
    knowledge.set_model_alias("cnn", "champion", 1)
    model = cache.fetch("models:/cnn@champion")
    assert (model.name, model.version) == ("cnn", 1)
    assert (Path(model.path) / "MLmodel").read_bytes() == b"first"
    assert cache.fetch("models:/cnn/1") == cache.fetch("models:/cnn/latest") == model
    assert knowledge.fetched == 1


def test_an_alias_is_looked_up_each_time(cache: ModelCache, knowledge: Counting, tmp_path: Path) -> None:
    knowledge.set_model_alias("cnn", "champion", 1)
    first = cache.fetch("models:/cnn@champion")
    register(knowledge, tmp_path / "v2", b"second")
    knowledge.set_model_alias("cnn", "champion", 2)
    second = cache.fetch("models:/cnn@champion")
    assert (Path(second.path) / "MLmodel").read_bytes() == b"second"
    assert Path(first.path).is_dir()


def test_the_first_version_of_a_registry_created_again_is_another(cache: ModelCache, tmp_path: Path) -> None:
    first = cache.fetch("models:/cnn/1")
    other = MemoryKnowledge()
    register(other, tmp_path / "other", b"other")
    model = ModelCache(tmp_path / "models", lambda: other).fetch("models:/cnn/1")
    assert (Path(model.path) / "MLmodel").read_bytes() == b"other"
    assert (Path(first.path) / "MLmodel").read_bytes() == b"first"


def test_a_fetch_that_breaks_off_leaves_nothing_and_can_be_tried_again(
    cache: ModelCache, knowledge: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(name: str, destination: Path, *, version: int | str) -> Path:
        raise UnavailableError("The line is cut.")

    with monkeypatch.context() as patched:
        patched.setattr(knowledge, "fetch_model", break_off)
        with pytest.raises(UnavailableError, match="The line is cut"):
            cache.fetch("models:/cnn/1")
    assert not [*(tmp_path / "models").rglob("MLmodel")]
    assert cache.fetch("models:/cnn/1").version == 1


def test_the_second_takes_the_first_s(cache: ModelCache, knowledge: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    original = MemoryKnowledge.fetch_model

    def download_in_race(self: MemoryKnowledge, name: str, destination: Path, *, version: int | str = "latest") -> Path:
        original(self, name, destination, version=version)
        return original(self, name, destination, version=version)  # refused: it is there

    monkeypatch.setattr(Counting, "fetch_model", download_in_race)
    assert (Path(cache.fetch("models:/cnn/1").path) / "MLmodel").is_file()


def test_what_is_no_mlflow_model_says_how_to_make_one(cache: ModelCache, knowledge: Counting, tmp_path: Path) -> None:
    register(knowledge, tmp_path / "v2", b"", file="weights.bin")
    with pytest.raises(InvalidError, match=r"version 2 of the model 'cnn' has no file 'MLmodel'.*log_model"):
        cache.fetch("models:/cnn/2")


def test_what_is_looked_up_says_that_a_version_was_rejected(cache: ModelCache, knowledge: Counting) -> None:
    assert cache.find("models:/cnn/1").rejection is None
    knowledge.set_model_tags("cnn", 1, {PROMOTION: format_rejection("it is unfair"), PERSON: "ada"})
    assert cache.find("models:/cnn/1").rejection == "rejected by ada: it is unfair"
    assert cache.fetch("models:/cnn/1").rejection == "rejected by ada: it is unfair"

"""The contract of knowledge bases for models: one half of ``KnowledgeBaseContract``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.model_cache import ModelCache

APP = "shop"
ODD_NAMES = (
    "weights.bin",
    "naïve läyer.txt",
    "数据/表 1.csv",
    "deep/er/and-deeper/x+y=z@1,2;3(4)[5]{6}'7'&8.txt",
    ".hidden",
)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class ModelsContract:
    """The contract for models, versions, aliases and tags, with the fixtures that both halves use."""

    @pytest.fixture
    def team(self) -> str:
        return f"team-{uuid.uuid4().hex[:8]}"

    @pytest.fixture
    def model(self) -> str:
        return f"model {uuid.uuid4().hex[:8]}"

    def test_versions_count_up_and_have_files_of_their_own(
        self, knowledge: KnowledgeBase, team: str, model: str, tmp_path: Path
    ) -> None:
        sources = [write_folder(tmp_path / str(n), {name: bytes([n]) for name in ODD_NAMES}) for n in (1, 2, 3)]
        versions = [knowledge.register_model(model, source, app=APP, team=team) for source in sources]
        assert [version.version for version in versions] == [1, 2, 3]
        assert model in (names := knowledge.list_models())
        assert names == sorted(names)
        assert knowledge.list_model_versions(model) == versions[::-1]
        assert knowledge.get_model(model) == versions[2]
        assert knowledge.get_model(model, 2) == versions[1]
        assert versions[0].uri == f"models:/{model}/1"
        assert knowledge.set_model_alias(model, "champion", 1).aliases == ("champion",)
        knowledge.set_model_alias(model, "backup", 1)
        assert knowledge.get_model(model, "champion").version == 1
        knowledge.fetch_model(model, tmp_path / "latest")
        knowledge.fetch_model(model, tmp_path / "champion", version="champion")
        assert read_folder(tmp_path / "latest") == dict.fromkeys(ODD_NAMES, b"\x03")
        assert read_folder(tmp_path / "champion") == dict.fromkeys(ODD_NAMES, b"\x01")
        assert knowledge.set_model_alias(model, "champion", 3).aliases == ("champion",)
        assert knowledge.get_model(model, "champion").version == 3
        assert [version.aliases for version in knowledge.list_model_versions(model)] == [("champion",), (), ("backup",)]

    def test_what_is_unknown_names_what_is_known(
        self, knowledge: KnowledgeBase, team: str, model: str, tmp_path: Path
    ) -> None:
        knowledge.register_model(model, write_folder(tmp_path / "in", {"w": b"1"}), app=APP, team=team)
        wrong = model.replace("model", "modle")
        for ask in (knowledge.get_model, knowledge.list_model_versions):
            with pytest.raises(NotFoundError, match=rf"no model {wrong!r}\. Did you mean {model!r}"):
                ask(wrong)
        with pytest.raises(NotFoundError, match=f"Did you mean {model!r}"):
            knowledge.fetch_model(wrong, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        knowledge.set_model_alias(model, "champion", 1)
        with pytest.raises(NotFoundError, match=r"alias 'champoin'\. Did you mean 'champion'"):
            knowledge.get_model(model, "champoin")
        asks: list[Callable[[], object]] = [
            lambda: knowledge.get_model(model, 7),
            lambda: knowledge.set_model_alias(model, "backup", 7),
            lambda: knowledge.set_model_tags(model, 7, {"a": "b"}),
        ]
        for unknown in asks:
            with pytest.raises(NotFoundError, match=r"no version 7\. Known: 1, champion"):
                unknown()

    def test_a_version_knows_its_tags_and_its_run(
        self, knowledge: KnowledgeBase, team: str, model: str, tmp_path: Path
    ) -> None:
        source = write_folder(tmp_path / "in", {"w": b"1"})
        run_id, tags = knowledge.log_run(APP, team).run_id, {"stage": "ünfertig", "keep": ""}
        version = knowledge.register_model(model, source, app=APP, team=team, tags=tags, run_id=run_id)
        owner = {"scanflow.app": APP, "scanflow.team": team}
        assert (version.tags, version.run_id) == ({**tags, **owner}, run_id)
        changed = knowledge.set_model_tags(model, 1, {"stage": "done", "new": "1"})
        assert changed.tags == {"stage": "done", "keep": "", "new": "1", **owner}
        assert knowledge.get_model(model, 1) == changed
        assert knowledge.register_model(model, source, app=APP, team=team).run_id is None
        with pytest.raises(NotFoundError, match="no run 'nonesuch'"):
            knowledge.register_model(model, source, app=APP, team=team, run_id="nonesuch")
        assert len(knowledge.list_model_versions(model)) == 2

    def test_a_model_is_the_team_s_that_registered_it_first(
        self, knowledge: KnowledgeBase, team: str, model: str, tmp_path: Path
    ) -> None:
        source = write_folder(tmp_path / "in", {"w": b"1"})
        version = knowledge.register_model(model, source, app=APP, team=team)
        own, other = knowledge.for_team(team), knowledge.for_team("another")
        assert own.get_model(model) == version
        assert model in own.list_models()
        assert model not in other.list_models()
        assert own.list_versions_by_model() == {model: [version]}
        assert other.list_versions_by_model() == own.list_versions_by_model(0) == {}
        asks: list[Callable[[], object]] = [
            lambda: other.get_model(model, 1),
            lambda: other.list_model_versions(model),
            lambda: other.set_model_alias(model, "champion", 1),
            lambda: other.set_model_tags(model, 1, {"a": "b"}),
            lambda: other.fetch_model(model, tmp_path / "out"),
            lambda: ModelCache(tmp_path / "models", lambda: knowledge).find(f"models:/{model}/1", "another"),
        ]
        for unknown in asks:
            with pytest.raises(NotFoundError, match=f"no model {model!r} of the team 'another'"):
                unknown()
        with pytest.raises(InvalidError, match=f"{model!r} is taken by another team"):
            knowledge.register_model(model, source, app=APP, team="another")
        assert knowledge.list_model_versions(model) == [version]

    def test_a_version_is_kept_on_disk(self, knowledge: KnowledgeBase, team: str, model: str, tmp_path: Path) -> None:
        source = write_folder(tmp_path / "in", {"MLmodel": b"flavors: {}", "data/wëights": b"1"})
        knowledge.register_model(model, source, app=APP, team=team)
        knowledge.set_model_alias(model, "champion", 1)
        cache = ModelCache(tmp_path / "models", lambda: knowledge)
        cached = cache.fetch(f"models:/{model}@champion")
        assert (cached.name, cached.version) == (model, 1)
        assert read_folder(Path(cached.path)) == {"MLmodel": b"flavors: {}", "data/wëights": b"1"}
        assert cache.fetch(f"models:/{model}/1") == cached
        assert cache.recall(model, 1) is None
        cache.remember(model, 1, '{"instances":2}')
        assert cache.recall(model, 1) == '{"instances":2}' == knowledge.get_model(model, 1).tags["scanflow.shape"]

    def test_names_are_of_any_language_and_odd_ones_are_refused(
        self, knowledge: KnowledgeBase, team: str, model: str, tmp_path: Path
    ) -> None:
        source = write_folder(tmp_path / "in", {"w": b"1"})
        for name in ("mnist_cnn", "Größe 3.1", "模型", "a+b-c"):
            full = f"{name} {model}"
            knowledge.register_model(full, source, app=APP, team=team)
            assert knowledge.get_model(full).name == full
        for name in ("", " ", "a/b", "a:b", "a@b", "..", "a ", "it's", "x" * 300, "a\nb", "50%"):
            with pytest.raises(InvalidError, match="A model cannot be called"):
                knowledge.register_model(name, source, app=APP, team=team)
        for alias in ("", "latest", "Latest", "v3", "12", "a b", "a/b"):
            with pytest.raises(InvalidError, match="alias"):
                knowledge.set_model_alias(f"模型 {model}", alias, 1)
        assert knowledge.get_model(f"模型 {model}").aliases == ()

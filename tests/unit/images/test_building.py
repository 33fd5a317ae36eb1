"""Builds: what did not change is not built again, and what was built is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.errors import UsageError
from scanflow.images.builders import Say
from scanflow.images.building import ImageRecord, build_images
from scanflow.images.code_files import compute_digest, list_code_files
from scanflow.images.image_records import BuiltImages
from scanflow.images.recipe import Recipe
from scanflow.images.recipes import PlannedImage


class Builder:
    """Keeps what it is asked, and what the context held."""

    name = "memory"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.contexts: list[dict[str, str]] = []
        self.broken = ""

    def build(self, context: Path, image: str, say: Say, *, pull: bool = False) -> None:
        say("built")
        self.asked.append(f"build{' --pull' if pull else ''} {image}")
        files = (path for path in sorted(context.rglob("*")) if path.is_file())
        self.contexts.append({path.relative_to(context).as_posix(): path.read_text() for path in files})

    def push(self, image: str, say: Say) -> None:
        if self.broken and self.broken in image:
            raise UsageError("the registry is full")
        say("pushed")
        self.asked.append(f"push {image}")


class Setting:
    def __init__(self, folder: Path) -> None:
        self.app_dir, self.builder, self.built = folder / "app", Builder(), BuiltImages(folder / "home")
        (self.app_dir / "steps").mkdir(parents=True)
        (self.app_dir / "steps" / "train.py").write_text("print(1)")

    def plan(self) -> list[PlannedImage]:
        code = compute_digest(list_code_files(self.app_dir))
        plain = Recipe(app="shop", team="data", base="base", code=code)
        needy = plain.model_copy(update={"requirements": ("numpy", "pandas")})
        return [
            PlannedImage("w", ("load",), plain),
            PlannedImage("w", ("train",), needy),
            PlannedImage("w", ("report",), plain),
        ]

    def build(self, *, registry: str | None = "r:5", push: bool = True, again: bool = False) -> list[ImageRecord]:
        return build_images(
            self.app_dir,
            self.plan(),
            builder=lambda: self.builder,
            built=self.built,
            registry=registry,
            push=push,
            again=again,
            say=lambda _: None,
        )


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_an_image_is_built_and_pushed_once_and_again_when_its_code_changed(setting: Setting) -> None:
    plain, needy = (f"r:5/scanflow/shop:{plan.recipe.tag}" for plan in setting.plan()[:2])
    records = setting.build()
    assert setting.builder.asked == [f"build {plain}", f"push {plain}", f"build {needy}", f"push {needy}"]
    assert [(record.image, record.state, record.pushed) for record in records] == [
        (plain, "built", True), (needy, "built", True), (plain, "unchanged", True),
    ]  # fmt: skip
    setting.builder.asked.clear()
    assert {record.state for record in setting.build()} == {"unchanged"}
    assert setting.builder.asked == []
    (setting.app_dir / "steps" / "train.py").write_text("print(2)")
    assert [record.state for record in setting.build()] == ["built", "built", "unchanged"]


def test_the_context_has_the_code_and_the_requirements(setting: Setting) -> None:
    setting.build()
    plain, needy = setting.builder.contexts
    assert list(plain) == ["Dockerfile", "code/steps/train.py"]
    assert needy["requirements.txt"] == "numpy\npandas\n"
    assert "requirements.txt" in needy["Dockerfile"]


def test_what_was_built_but_not_pushed_is_pushed_later_and_not_used_before(setting: Setting) -> None:
    tag = setting.plan()[0].recipe.tag
    setting.build(push=False)
    assert setting.built.find_pullable(tag, "r:5") is None
    assert setting.built.find_pullable(tag, None) == f"r:5/scanflow/shop:{tag}"
    setting.builder.asked.clear()
    setting.build()
    assert {word.split()[0] for word in setting.builder.asked} == {"push"}
    assert setting.built.find_pullable(tag, "r:5") == f"r:5/scanflow/shop:{tag}"


def test_another_registry_gets_images_of_its_own_and_again_builds_on_the_newest_base(setting: Setting) -> None:
    setting.build()
    setting.builder.asked.clear()
    setting.build(registry="other:5")
    assert all("other:5" in word for word in setting.builder.asked)
    setting.builder.asked.clear()
    setting.build(registry="other:5", again=True)
    assert [word.split()[:2] for word in setting.builder.asked[::2]] == [["build", "--pull"]] * 2


def test_a_push_without_a_registry_and_one_that_fails_say_so_and_lose_no_build(setting: Setting) -> None:
    with pytest.raises(UsageError, match="No registry is configured"):
        setting.build(registry=None)
    assert setting.builder.asked == []
    setting.builder.broken = setting.plan()[1].recipe.tag
    with pytest.raises(UsageError, match="full"):
        setting.build()
    setting.builder.broken = ""
    setting.builder.asked.clear()
    setting.build()
    assert [word.split()[0] for word in setting.builder.asked] == ["push"]


def test_a_record_that_cannot_be_read_counts_as_none(setting: Setting, tmp_path: Path) -> None:
    setting.build()
    for path in (tmp_path / "home" / "images").glob("*.json"):
        assert path.stat().st_mode & 0o077 == 0
        path.write_text("{")
    assert {record.state for record in setting.build()[:2]} == {"built"}

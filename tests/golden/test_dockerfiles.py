"""Dockerfiles as files: ``REGENERATE_GOLDEN=1 pytest tests/golden`` writes them anew; look at what changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scanflow.errors import InvalidError
from scanflow.images.recipe import Recipe, render_dockerfile

FOLDER = Path(__file__).parent / "dockerfiles"
BASE = f"registry.example.com/scanflow/base@sha256:{'0' * 64}"
CODE = "1" * 64
RECIPES = {
    "code": Recipe(app="shop", team="data", base=BASE, code=CODE),
    "requirements": Recipe(app="shop", team="data", base=BASE, code=CODE, requirements=("numpy==2.3.1", "pandas>=2")),
    "labels": Recipe(
        app="shop", team="data", base=BASE, code=CODE, labels=(("org.example.owner", 'the "data" team, $PATH'),)
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_dockerfile_is_written_as_it_always_was(name: str) -> None:
    path = FOLDER / f"{name}.Dockerfile"
    text = render_dockerfile(RECIPES[name])
    if os.environ.get("REGENERATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "Meant? REGENERATE_GOLDEN=1 pytest tests/golden"


def test_the_tag_changes_with_all_that_the_image_is_made_of_and_with_nothing_else() -> None:
    recipe = RECIPES["code"]
    changes: list[dict[str, Any]] = [
        {"base": "python:3.12"},
        {"code": "2" * 64},
        {"requirements": ("numpy",)},
        {"labels": (("a", "b"),)},
    ]
    tags = [recipe.tag, *(recipe.model_copy(update=change).tag for change in changes)]
    assert len(set(tags)) == len(tags)
    assert recipe.tag == Recipe(app="shop", team="data", base=BASE, code=CODE).tag
    assert recipe.format_name("host:5000/team/") == f"host:5000/team/scanflow/shop:{recipe.tag}"
    assert recipe.format_name() == f"scanflow/shop:{recipe.tag}"


@pytest.mark.parametrize("base", ["", "python:3.12\nRUN curl", "python 3.12", "--platform=x"])
def test_a_base_that_is_no_name_of_an_image_gets_into_no_dockerfile(base: str) -> None:
    with pytest.raises(InvalidError, match="not an image name"):
        render_dockerfile(RECIPES["code"].model_copy(update={"base": base}))

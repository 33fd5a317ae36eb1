"""Names: which are allowed, what is advised instead, and how new ones are made."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scanflow.errors import InvalidError
from scanflow.names import MAX_NAME, build_slug, check_locator, check_name, format_environment_name, make_run_name
from tests.unit.app.app_builders import refusal

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


@given(st.text() | st.text(min_size=60, max_size=90) | st.from_regex(r"[A-Za-z0-9 _.-]{50,80}", fullmatch=True))
@example("a" * 62 + "-b")
@example("İstanbul")
def test_a_slug_is_a_name_that_is_taken_or_nothing_at_all(text: str) -> None:
    slug = build_slug(text)
    assert slug == "" or check_name(slug, "step") == slug
    assert build_slug(slug) == slug


@given(st.from_regex(LABEL, fullmatch=True))
@example("0--0")
def test_a_label_of_kubernetes_is_taken_as_it_is_and_its_slug_only_joins_dashes(name: str) -> None:
    assert check_name(name, "step") == name
    assert build_slug(name) == re.sub("-+", "-", name)


@given(st.text(max_size=80))
def test_what_is_taken_is_a_label_of_kubernetes_and_nothing_else(name: str) -> None:
    message = refusal(lambda: check_name(name, "step"))
    assert (message is None) is (LABEL.fullmatch(name) is not None)
    if message is not None:
        assert "\n" not in message
        advised = message.rpartition(" Write '")[2].removesuffix("' instead.")
        assert " Write " not in message or check_name(advised, "step") == advised


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("Load Data", "load-data"),
        ("load_data", "load-data"),
        ("-x-", "x"),
        ("a.b", "a-b"),
        ("Größe", "gro-e"),
        ("café", "cafe"),
        ("ﬁt", "fit"),
        ("a\n", "a"),
        ("a" * 64, "a" * 63),
    ],
)
def test_a_name_that_cannot_be_used_says_which_to_write_instead(name: str, better: str) -> None:
    with pytest.raises(InvalidError) as error:
        check_name(name, "step")
    assert str(error.value) == (
        f"The step name {name!r} cannot be used: a name is 1 to 63 lower-case letters, digits and '-', and begins and "
        f"ends with a letter or digit. Write {better!r} instead."
    )


@pytest.mark.parametrize("name", ["", "-", "\u0430", "日本", "\u0661", "🦊", " "])
def test_a_name_of_which_nothing_can_be_kept_gets_no_advice(name: str) -> None:
    with pytest.raises(InvalidError) as error:
        check_name(name, "step")
    assert str(error.value).endswith("with a letter or digit.")


def test_a_name_of_a_million_characters_is_shown_in_few() -> None:
    with pytest.raises(InvalidError, match=r"\.\.\. \(1,000,000 characters\) cannot be used") as error:
        check_name("A" * 1_000_000, "step")
    assert len(str(error.value)) < 400


def test_a_shorter_limit_shortens_the_advice() -> None:
    with pytest.raises(InvalidError, match=r"a name is 1 to 5 .* Write 'abcd' instead"):
        check_name("abcd-efg", "step", limit=5)


@given(st.integers())
def test_a_run_gets_a_name_that_is_taken(seed: int) -> None:
    name = make_run_name(random.Random(seed))
    assert check_name(name, "run") == name
    assert re.fullmatch(r"[a-z]+-[a-z]+-\d{3}", name)


def test_runs_get_many_names() -> None:
    rng = random.Random(1)
    assert len({make_run_name(rng) for _ in range(1000)}) > 990


def test_the_longest_environment_leaves_space_for_its_parts() -> None:
    assert format_environment_name("shop", "data") == "scanflow-shop-data"
    assert len(format_environment_name("a" * 30, "b" * 23)) == MAX_NAME


@pytest.mark.parametrize("text", ["file.py:name", "package.module:Class.method", "a b.py:f", "module:f"])
def test_a_place_of_a_function_is_taken(text: str) -> None:
    assert check_locator(text, "function") == text


@pytest.mark.parametrize(
    "text", ["", ":", "name", "file.py:", ":name", "file.py:a b", " :x", "a::b", None, 3, len, b"a:b"]
)
def test_what_is_no_place_of_a_function_says_how_one_is_written(text: Any) -> None:
    with pytest.raises(InvalidError, match=r"cannot be read. Write 'file.py:name' or 'package.module:name'"):
        check_locator(text, "function")

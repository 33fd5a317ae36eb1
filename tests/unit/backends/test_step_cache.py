"""Keys of cached outputs: what they are made of, and why one is new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import scanflow as sf
from scanflow.backends.step_cache import (
    CacheKey,
    CacheKeys,
    CodeLocation,
    UnknownContentError,
    describe_changes,
    describe_unknown,
)


def compute(
    folder: Path, *, code: CodeLocation | None = None, node: sf.Executor | None = None, **changes: Any
) -> CacheKey:
    if not (file := folder / "app.py").exists():
        file.write_text("import helper\ndef f(): ...")
        (folder / "helper.py").write_text("x = 1")
    fields: dict[str, Any] = {"requirements": [], "requirements_folder": folder, "outputs": folder / "outputs"}
    parameters = changes.pop("parameters", {"n": 1})
    step = node or sf.Executor(name="step", function="app.py:f", cache=True)
    return CacheKeys(folder).compute(step, code or CodeLocation("app.py:f", file), parameters, **{**fields, **changes})


def explain(key: CacheKey, *earlier: CacheKey) -> str | None:
    return describe_changes(key.parts, [other.parts for other in earlier])


NODE = sf.Executor(name="step", function="app.py:f", cache=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"parameters": {"n": 1.0}}, "the parameter n changed"),
        ({"parameters": {}}, "the parameter n is gone"),
        ({"parameters": {"n": 1, "m": 1}}, "the parameter m was added"),
        ({"requirements": ["numpy"]}, "requirements changed"),
        ({"node": NODE.replace(cache="v2")}, "the version in cache changed"),
        ({"node": NODE.replace(env={"TZ": "UTC"})}, "the variable TZ was added"),
        (
            {"code": CodeLocation("app.py:g")},
            "the code of app.py is gone, the code of helper.py is gone, the name of its code changed",
        ),
    ],
)
def test_a_new_key_says_what_is_new(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    before, key = compute(tmp_path), compute(tmp_path, **change)
    assert key.text != before.text
    assert explain(key, before) == f"not reused: {reason}"


def test_the_code_that_changed_is_named_and_a_comment_is_no_change(tmp_path: Path) -> None:
    before = compute(tmp_path)
    (tmp_path / "helper.py").write_text("x = 1  # here")
    assert compute(tmp_path).text == before.text
    (tmp_path / "helper.py").write_text("x = 2")
    assert explain(compute(tmp_path), before) == "not reused: the code of helper.py changed"


def test_a_changed_file_is_named_and_many_are_one_part(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.csv").write_text("")
    few, many = {"files": [Path("1.csv")]}, {"files": [f"{number}.csv" for number in range(20)]}
    before = [compute(tmp_path, parameters=parameters) for parameters in (few, many)]
    (tmp_path / "1.csv").write_text("new")
    after = [compute(tmp_path, parameters=parameters) for parameters in (few, many)]
    assert [explain(key, earlier) for key, earlier in zip(after, before, strict=True)] == [
        "not reused: the content of 1.csv changed",
        "not reused: the content of its files changed",
    ]


def test_the_most_similar_key_is_compared(tmp_path: Path) -> None:
    earlier = [compute(tmp_path, parameters={"a": a, "b": b}) for a, b in ((1, 1), (2, 2))]
    assert explain(compute(tmp_path, parameters={"a": 2, "b": 3}), *earlier) == "not reused: the parameter b changed"
    assert explain(earlier[0]) is None
    many = compute(tmp_path, parameters=dict.fromkeys("cdefg", 1))
    assert str(explain(many, earlier[0])).endswith(", and 4 more")


def test_a_function_by_value_counts_with_the_modules_that_it_uses(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def f():\n    from lib import tool\n    return tool.x", namespace)
    code = CodeLocation("f", pickled=cloudpickle.dumps(namespace["f"]))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "tool.py").write_text("x = 1")
    before = compute(tmp_path, code=code)
    (tmp_path / "lib" / "tool.py").write_text("x = 2")
    assert explain(compute(tmp_path, code=code), before) == "not reused: the code of lib/tool.py changed"
    changed = compute(tmp_path, code=replace(code, pickled=cloudpickle.dumps(lambda: 1)))
    assert "its function changed" in str(explain(changed, before))


@pytest.mark.parametrize("here", [True, False])
def test_defaults_name_files_too(tmp_path: Path, here: bool) -> None:
    (tmp_path / "data.txt").write_text("1")
    (tmp_path / "app.py").write_text("def f(n, file=Path('data.txt'), *, other=1, more='x'): ...")
    file = Path("data.txt")
    code = CodeLocation("app.py:f", defaults={"file": file}) if here else CodeLocation("app.py:f", tmp_path / "app.py")
    before = compute(tmp_path, code=code)
    (tmp_path / "data.txt").write_text("2")
    assert explain(compute(tmp_path, code=code), before) == "not reused: the content of data.txt changed"


@pytest.mark.parametrize("line", ["./pkg", "-e ./pkg[fast]", "pkg @ file://{folder}/pkg"])
def test_a_package_that_is_installed_from_a_folder_counts_by_content(tmp_path: Path, line: str) -> None:
    (tmp_path / "pkg").mkdir()
    lines = [line.format(folder=tmp_path)]
    before = compute(tmp_path, requirements=lines)
    (tmp_path / "pkg" / "x.py").write_text("")
    assert compute(tmp_path, requirements=lines).text != before.text


def test_a_file_that_changed_since_is_found(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("1")
    keys = CacheKeys(tmp_path)
    key = compute(tmp_path, parameters={"file": "data.txt", "out": "new.txt"})
    assert keys.find_changed_file(key) is None
    (tmp_path / "new.txt").write_text("")
    assert keys.find_changed_file(key) == str(tmp_path / "new.txt")


def test_what_is_unknown_says_what_to_write(tmp_path: Path) -> None:
    compute(tmp_path)
    (tmp_path / "helper.py").write_text("__import__(name)")
    with pytest.raises(UnknownContentError) as caught:
        compute(tmp_path)
    assert describe_unknown(caught.value) == (
        f"not cached: {caught.value}. If that does not matter: cache='v1', and another text when it does"
    )
    assert "helper.py, line 1" in str(caught.value)
    assert compute(tmp_path, node=NODE.replace(cache="v1")).text
    with pytest.raises(UnknownContentError) as caught:
        compute(tmp_path, node=NODE.replace(cache="v1"), parameters={"n": (n for n in [1])})
    assert describe_unknown(caught.value) == "not cached: the parameter 'n': a generator in it cannot be pickled"

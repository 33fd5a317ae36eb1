"""The application's own code: which files count, and what in them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from scanflow.backends.digests import FileDigests, UnknownContentError
from scanflow.backends.own_code import OwnCode


def write(folder: Path, **files: str) -> Path:
    """Write files, named without their suffix and with ``__`` after a folder; return the first."""
    paths = [folder / f"{name.replace('__', '/').replace('//init/', '/__init__')}.py" for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths[0]


def trace(folder: Path, file: Path | None, *modules: str, **options: Any) -> dict[str, str]:
    return dict(OwnCode(folder, FileDigests()).trace(file, modules, **options).digests)


@pytest.mark.parametrize(
    "statement",
    [
        "import a",
        "import a as b",
        "from a import x",
        "from a import *",
        "def f():\n    import a",
        "try:\n    import a\nexcept ImportError:\n    pass",
        "import importlib\nm = importlib.import_module('a')",
        "from importlib import import_module as load\nm = load('a')",
        "m = __import__('a')",
        "import runpy\nrunpy.run_module('a')",
    ],
)
def test_an_imported_file_counts_however_it_is_imported(tmp_path: Path, statement: str) -> None:
    file = write(tmp_path, app=statement, a="import b", b="import app", c="")
    assert set(trace(tmp_path, file)) == {"app.py", "a.py", "b.py"}


def test_packages_count_with_all_that_their_import_runs(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        app="import p.q.r\nfrom n.m import k\nfrom s import *",
        p____init__="",
        p__q____init__="from . import beside\nfrom .. import top\nfrom ..other.deep import x",
        p__q__r="",
        p__q__beside="",
        p__top="",
        p__other__deep="",
        p__unused="",
        n__m__k="",
        s____init__="__all__ = ['t']",
        s__t="",
    )
    assert set(trace(tmp_path, file)) == {
        "app.py",
        *("p/__init__.py", "p/top.py", "p/q/__init__.py", "p/q/r.py", "p/q/beside.py", "p/other/deep.py"),
        "n/m/k.py",
        *("s/__init__.py", "s/t.py"),
    }


def test_modules_are_found_beside_the_file_in_the_applications_folder_and_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "app", workflows__train__train="import near, far, on_path, more, json, numpy, scanflow")
    write(tmp_path / "app", workflows__train__near="", far="", lib__more="", scanflow="", json="")
    write(tmp_path / "src", on_path="")
    write(tmp_path / "venv" / "site-packages", numpy="")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "src"), str(tmp_path / "venv" / "site-packages")])
    traced = trace(tmp_path / "app", file, path=[tmp_path / "app" / "lib"])
    assert set(traced) == {
        *("workflows/train/train.py", "workflows/train/near.py", "far.py", "lib/more.py", "json.py"),
        str(tmp_path / "src" / "on_path.py"),
    }


def test_a_function_by_value_counts_the_modules_that_it_names(tmp_path: Path) -> None:
    write(tmp_path, helper="import other", other="", p__m="", q__m="", unused="")
    assert set(trace(tmp_path, None, names=["helper", "p", "m", "json"])) == {"helper.py", "other.py", "p/m.py"}


CODE = '''"""About."""
import os


def f(x: int = 1) -> int:
    """Say."""
    return x + 1  # more


class C:
    """Is."""
'''


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# more", "# less"),
        ("x + 1", "(x  +  1)"),
        ("About.", "Else."),
        ("Say.", "Else."),
        ("Is.", "Else."),
        ('    """Say."""\n', ""),
        ("\n\n\n", "\n\n\n\n# here\n"),
    ],
)
def test_comments_formatting_and_docstrings_do_not_count(tmp_path: Path, before: str, after: str) -> None:
    file = write(tmp_path, app=CODE)
    first = trace(tmp_path, file)
    file.write_text(CODE.replace(before, after))
    assert trace(tmp_path, file) == first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x + 1", "x + 2"),
        ("x + 1", "x + 1.0"),
        ("x + 1", "x + True"),
        ("int = 1", "int = 2"),
        ("import os", "import re"),
    ],
)
def test_what_the_code_does_counts(tmp_path: Path, before: str, after: str) -> None:
    file = write(tmp_path, app=CODE)
    first = trace(tmp_path, file)
    file.write_text(CODE.replace(before, after, 1))
    assert trace(tmp_path, file) != first


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    'Say.'\nprint(f.__doc__)",
        "from docopt import docopt\n'Say.'\ndef f():\n    'Say.'\n    docopt(f)",
        "@tool\ndef f():\n    'Say.'",
        "class Prompt(Signature):\n    'Say.'",
    ],
)
def test_a_docstring_that_may_be_read_counts(tmp_path: Path, code: str) -> None:
    file = write(tmp_path, app=code)
    first = trace(tmp_path, file)
    file.write_text(code.replace("Say.", "Else."))
    assert trace(tmp_path, file) != first


def test_the_docstring_of_a_step_does_not_count(tmp_path: Path) -> None:
    file = write(tmp_path, app="@sf.step(cache=True)\ndef f():\n    'Say.'")
    first = trace(tmp_path, file)
    file.write_text(file.read_text().replace("Say.", "Else."))
    assert trace(tmp_path, file) == first


@pytest.mark.parametrize("content", [b"def f(:  # 1", b"\xff\xfe# 1", b"x = '\0'  # 1"])
def test_of_code_that_cannot_be_parsed_all_bytes_count(tmp_path: Path, content: bytes) -> None:
    file = write(tmp_path, app="")
    file.write_bytes(content)
    first = trace(tmp_path, file)
    file.write_bytes(content.replace(b"1", b"2"))
    assert trace(tmp_path, file) != first


def test_code_with_a_doubtful_escape_is_read_without_a_warning(tmp_path: Path) -> None:
    assert trace(tmp_path, write(tmp_path, app=r"pattern = '\d'"))


def test_an_extension_module_counts_by_its_bytes(tmp_path: Path) -> None:
    file = write(tmp_path, app="import fast")
    (tmp_path / "fast.abi3.so").write_bytes(b"1")
    first = trace(tmp_path, file)
    (tmp_path / "fast.abi3.so").write_bytes(b"2")
    assert trace(tmp_path, file) != first


@pytest.mark.parametrize(
    "code",
    [
        "import importlib\nimportlib.import_module(name)",
        "from importlib import import_module as load\nload(name)",
        "import importlib\nload = importlib.import_module",
        "x = 1\n__import__(f'a{x}')",
        "import runpy\nrunpy.run_path('other.py')",
    ],
)
def test_an_import_by_a_computed_name_is_unknown_unless_it_is_vouched_for(tmp_path: Path, code: str) -> None:
    file = write(tmp_path, app="import a", a=code)
    with pytest.raises(UnknownContentError, match=r"a\.py, line 2, imports a module by a name known only when it runs"):
        trace(tmp_path, file)
    assert set(trace(tmp_path, file, trusting=True)) == {"app.py", "a.py"}


def test_a_changed_search_path_is_followed_or_unknown(tmp_path: Path) -> None:
    file = write(
        tmp_path / "app",
        steps__train="import sys\nfrom pathlib import Path\n"
        "sys.path.insert(0, str(Path(__file__).parent / '..' / 'lib'))\n"
        "import features, numpy, os",
        lib__features="",
    )
    assert {Path(name).name for name in trace(tmp_path / "app", file)} == {"train.py", "features.py"}
    file.write_text("import sys\nsys.path.insert(0, name)\nimport elsewhere")
    with pytest.raises(UnknownContentError, match=r"changes sys\.path, and imports 'elsewhere', which was not found"):
        trace(tmp_path / "app", file)
    write(tmp_path / "site-packages", elsewhere="")
    assert trace(tmp_path / "app", file, installed=[tmp_path / "site-packages"])


def test_a_file_is_parsed_again_when_it_has_changed(tmp_path: Path) -> None:
    file = write(tmp_path, app="import a", a="x = 1")
    code = OwnCode(tmp_path, FileDigests())
    first = code.trace(file, ()).digests
    assert code.trace(file, ()).digests == first
    write(tmp_path, a="x = 2")
    assert code.trace(file, ()).digests != first

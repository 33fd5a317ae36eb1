"""Which files of a folder are code."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.errors import InvalidError, NotFoundError
from scanflow.images import code_files
from scanflow.images.code_files import compute_digest, list_code_files


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_code_is_what_is_not_hidden_generated_or_named_in_the_ignore_file(tmp_path: Path) -> None:
    write(
        tmp_path, "app.py", "steps/train.py", "steps/_private.py", "data/small.csv", "results/a.png", "results/a.json"
    )
    write(tmp_path, ".git/config", ".env", "__pycache__/app.pyc", "steps/old.pyc", "venv/pyvenv.cfg", "venv/lib/x.py")
    write(tmp_path, "mlruns/0/meta.yaml", "shop.egg-info/PKG-INFO")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / ".scanflowignore").write_text("# large\ndata/\n\nresults/*.png\n")
    assert [file.name for file in list_code_files(tmp_path)] == [
        "app.py", "results/a.json", "steps/_private.py", "steps/train.py",
    ]  # fmt: skip


def test_the_digest_changes_with_content_names_and_the_permission_to_run(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.py")
    digests = [compute_digest(list_code_files(tmp_path))]
    (tmp_path / "a.py").write_text("other")
    digests.append(compute_digest(list_code_files(tmp_path)))
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    digests.append(compute_digest(list_code_files(tmp_path)))
    (tmp_path / "b.py").chmod(0o755)
    digests.append(compute_digest(list_code_files(tmp_path)))
    assert len(set(digests)) == 4
    (tmp_path / "b.py").touch()
    assert compute_digest(list_code_files(tmp_path)) == digests[-1]


def test_a_folder_that_is_not_there_or_far_too_large_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFoundError, match="names as its app_dir"):
        list_code_files(tmp_path / "nowhere")
    write(tmp_path, "a.py", "b.py")
    monkeypatch.setattr(code_files, "MAX_FILES", 1)
    with pytest.raises(InvalidError, match=r"\.scanflowignore"):
        list_code_files(tmp_path)

"""What a pod's container runs: its own image, the one that was built, or the base image with the code mounted."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.backends.kubernetes import code_configmap
from scanflow.backends.kubernetes.code_configmap import CodeConfigMap, build_code
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.pod_image import PodImages
from scanflow.errors import NotFoundError, UsageError
from scanflow.images.recipes import plan_images
from tests.manifests import assert_manifests

SETTINGS = KubernetesSettings(image="example.com/base:1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "steps").mkdir()
    (tmp_path / "app.py").write_text("import scanflow as sf\n")
    (tmp_path / "steps" / "train.py").write_text('print("größer")\n', encoding="utf-8")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "steps" / "pixel.bin").write_bytes(b"\x00\xff\xfe")
    return tmp_path


def fetch(model: str) -> Path:
    raise AssertionError(f"{model} was fetched")


def test_a_folder_as_a_config_map_and_as_what_a_pod_mounts(folder: Path) -> None:
    code = build_code("shop", "data", "scanflow-shop-data", folder)
    assert_manifests("code", code.config_map, code.volume, code.mount)
    assert code.name == code.config_map["metadata"]["name"]


def mount_as_a_kubelet(code: CodeConfigMap, volume: Path) -> Path:
    """Write a ConfigMap's volume as every kubelet does, with links that it swaps; return what a container sees."""
    written = volume / "..2026_01_02_03_04_05.1"
    for item in code.volume["configMap"]["items"]:
        file = written / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        data = code.config_map["data"].get(item["key"])
        file.write_bytes(b64decode(code.config_map["binaryData"][item["key"]]) if data is None else data.encode())
    (volume / "..data").symlink_to(written.name)
    for path in written.iterdir():
        (volume / path.name).symlink_to(Path("..data") / path.name)
    return volume / str(code.mount.get("subPath", ""))


def test_a_pod_sees_the_folder_that_a_laptop_has(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "a.csv").write_text("1")
    (folder / "parts").mkdir()
    (folder / "parts" / "b.csv").write_text("10")
    seen = mount_as_a_kubelet(build_code("shop", "data", "ns", folder), tmp_path_factory.mktemp("volume"))
    assert sum(int(path.read_text()) for path in seen.rglob("*.csv")) == 11
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.relative_to(seen): path.read_bytes() for path in seen.rglob("*") if path.is_file()} == files
    assert not [path for path in seen.rglob("*") if path.is_symlink()]


def test_the_config_maps_name_is_its_content(folder: Path) -> None:
    names = {build_code("shop", "data", "ns", folder).name for _ in range(2)}
    (folder / "app.py").write_text("import scanflow\n")
    names.add(build_code("shop", "data", "ns", folder).name)
    assert len(names) == 2
    assert all(len(name) == len("code-") + 16 for name in names)


def test_keys_distinguish_files_that_would_be_spelled_alike(tmp_path: Path) -> None:
    for name in ("a/b.py", "a_b.py", "a b.py", "ä/b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    code = build_code("shop", "data", "ns", tmp_path)
    items = code.volume["configMap"]["items"]
    assert {item["path"]: code.config_map["data"][item["key"]] for item in items} == {
        name: name for name in ("a/b.py", "a_b.py", "a b.py", "ä/b.py")
    }


def test_a_folder_too_large_for_a_config_map_says_what_is_large_and_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_configmap, "MAX_BYTES", 1000)
    (folder / "data.csv").write_text("1,2\n" * 500_000)
    with pytest.raises(UsageError, match=r"has 2\.0 MB.*scanflow build --push.*ignore.*data\.csv \(2\.0 MB\)"):
        build_code("shop", "data", "ns", folder)


def test_a_node_runs_in_its_own_image_else_the_built_one_else_the_base_image_with_the_code(folder: Path) -> None:
    own = sf.Executor(name="own", mainfile="app.py", image="example.com/own:1")
    plain = sf.Executor(name="plain", mainfile="app.py")
    workflow = sf.Workflow(name="training", nodes=[own, plain])
    app = sf.Application(name="shop", team="data", app_dir=folder, workflows=[workflow])
    nothing = PodImages(app, workflow, SETTINGS, lambda _: None, fetch)
    assert nothing.select(own) == ("example.com/own:1", None)
    assert nothing.select(own).volumes == nothing.select(own).mounts == []
    images = nothing.select(plain)
    assert images.image == SETTINGS.image
    assert images.code is not None
    assert images.code.config_map["metadata"]["namespace"] == "scanflow-shop-data"
    assert images.volumes[0]["configMap"]["name"] == images.code.name
    assert [mount["mountPath"] for mount in images.mounts] == ["/app"]
    assert nothing.select(plain).code is images.code, "the folder is read once"
    (wanted,) = plan_images(app, [workflow], SETTINGS.image, fetch)
    built = PodImages(
        app, workflow, SETTINGS, lambda recipe: "example.com/built:1" if recipe == wanted.recipe else None, fetch
    )
    assert built.select(plain) == ("example.com/built:1", None)


def test_requirements_that_no_image_has_are_refused_before_anything_runs(folder: Path) -> None:
    step = sf.Executor(name="train", mainfile="app.py", requirements=["numpy", "pandas", "scipy", "xgboost"])
    workflow = sf.Workflow(name="training", nodes=[step])
    app = sf.Application(name="shop", app_dir=folder, workflows=[workflow])
    with pytest.raises(UsageError, match="'train' needs numpy, pandas, scipy, …, and no image has that"):
        PodImages(app, workflow, SETTINGS, lambda _: None, fetch).select(step)


def test_functions_that_were_sent_need_no_folder_and_all_else_of_one_that_is_elsewhere_does(tmp_path: Path) -> None:
    sent = sf.Executor(name="sent", function=f"{'a' * 64}.pickle:train")
    needy = sf.Executor(name="needy", function=f"{'a' * 64}.pickle:train", requirements=("numpy",))
    file = sf.Executor(name="file", mainfile="train.py")
    workflow = sf.Workflow(name="training", nodes=[sent, needy, file])
    app = sf.Application(name="shop", team="data", app_dir=tmp_path / "elsewhere", workflows=[workflow])
    images = PodImages(app, workflow, SETTINGS, lambda _: None, fetch)
    assert images.select(sent) == ("example.com/base:1", None)
    for node in (needy, file):
        with pytest.raises(NotFoundError, match="There is no folder"):
            images.select(node)

"""Write the schemas of custom resources anew, from the CRDs in their projects' Go modules.

It needs ``go``, which takes a module from its cache or downloads it. To follow a new release, change its version in
``SOURCES`` and run this. Descriptions are left out, and ``status``, which no manifest has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

FOLDER: Final = Path(__file__).parent


class Source(NamedTuple):
    module: str
    version: str
    folder: str
    file: str
    patch: str = ""
    """JSON Patch operations, all ``replace``, that the project applies to the CRD before it ships it."""


_ARGO: Final = ("github.com/argoproj/argo-workflows/v3", "v3.6.2", "manifests/base/crds/full")
_GATEWAY: Final = ("sigs.k8s.io/gateway-api", "v1.4.1", "config/crd/standard")
_KEDA: Final = ("github.com/kedacore/keda/v2", "v2.16.1", "config/crd/bases")
_KSERVE: Final = ("github.com/kserve/kserve", "v0.15.2", "config/crd/full")
_MPI: Final = ("github.com/kubeflow/mpi-operator", "v0.6.0", "manifests/base")
_SELDON: Final = ("github.com/seldonio/seldon-core/operator", "v1.16.0", "config/crd_v1_small")
_TRAEFIK: Final = ("github.com/traefik/traefik/v3", "v3.6.12", "docs/content/reference/dynamic-configuration")
_VOLCANO: Final = ("volcano.sh/volcano", "v1.10.0", "config/crd/volcano/bases")

SOURCES: Final = {
    "argoproj.io-v1alpha1-Workflow": Source(*_ARGO, "argoproj.io_workflows.yaml"),
    "batch.volcano.sh-v1alpha1-Job": Source(*_VOLCANO, "batch.volcano.sh_jobs.yaml"),
    "gateway.networking.k8s.io-v1-GRPCRoute": Source(*_GATEWAY, "gateway.networking.k8s.io_grpcroutes.yaml"),
    "gateway.networking.k8s.io-v1-HTTPRoute": Source(*_GATEWAY, "gateway.networking.k8s.io_httproutes.yaml"),
    "keda.sh-v1alpha1-ScaledObject": Source(*_KEDA, "keda.sh_scaledobjects.yaml"),
    "kubeflow.org-v2beta1-MPIJob": Source(*_MPI, "kubeflow.org_mpijobs.yaml"),
    "machinelearning.seldon.io-v1-SeldonDeployment": Source(
        *_SELDON, "bases/machinelearning.seldon.io_seldondeployments.yaml", "patches/graph_children.yaml"
    ),
    "serving.kserve.io-v1beta1-InferenceService": Source(*_KSERVE, "serving.kserve.io_inferenceservices.yaml"),
    "traefik.io-v1alpha1-IngressRoute": Source(*_TRAEFIK, "traefik.io_ingressroutes.yaml"),
    "traefik.io-v1alpha1-Middleware": Source(*_TRAEFIK, "traefik.io_middlewares.yaml"),
    "traefik.io-v1alpha1-ServersTransport": Source(*_TRAEFIK, "traefik.io_serverstransports.yaml"),
    "traefik.io-v1alpha1-TLSOption": Source(*_TRAEFIK, "traefik.io_tlsoptions.yaml"),
    "traefik.io-v1alpha1-TraefikService": Source(*_TRAEFIK, "traefik.io_traefikservices.yaml"),
}
"""By file name: API group, version and kind. The Gateway API's standard channel: the fields that every cluster has."""


def read_schema(name: str, source: Source) -> dict[str, Any]:
    command = ["go", "mod", "download", "-json", f"{source.module}@{source.version}"]
    with tempfile.TemporaryDirectory() as outside:  # of any module
        download = json.loads(subprocess.run(command, cwd=outside, stdout=subprocess.PIPE).stdout)
    if "Error" in download:
        raise SystemExit(download["Error"])
    folder = Path(download["Dir"], source.folder)
    crd = yaml.safe_load((folder / source.file).read_text(encoding="utf-8"))
    for operation in yaml.safe_load((folder / source.patch).read_text(encoding="utf-8")) if source.patch else ():
        parent, *keys = crd, *(int(key) if key.isdigit() else key for key in operation["path"].split("/")[1:])
        for key in keys[:-1]:
            parent = parent[key]
        parent[keys[-1]] = operation["value"]
    group, kind = crd["spec"]["group"], crd["spec"]["names"]["kind"]
    schemas = {f"{group}-{version['name']}-{kind}": version["schema"] for version in crd["spec"]["versions"]}
    schema = strip_descriptions(schemas[name]["openAPIV3Schema"])
    schema["properties"].pop("status", None)
    return {"upstream": {field: value for field, value in source._asdict().items() if value}, "openAPIV3Schema": schema}


def strip_descriptions(value: Any) -> Any:
    if isinstance(value, list):
        return [strip_descriptions(item) for item in value]
    if not isinstance(value, Mapping):
        return value  # a description is text: a property of that name is a schema, and stays
    return {
        key: strip_descriptions(child_value)
        for key, child_value in value.items()
        if key != "description" or isinstance(child_value, dict)
    }


def format_json(value: Any, *, depth: int = 5, indent: str = "") -> str:
    """Return JSON with a line for each field of ``spec``: short, and a difference shows where it is."""
    if depth == 0 or not isinstance(value, Mapping):
        return json.dumps(value, separators=(",", ":"))
    inside = indent + " "
    items = [f'{inside}"{key}": {format_json(item, depth=depth - 1, indent=inside)}' for key, item in value.items()]
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, source in SOURCES.items():
        (FOLDER / f"{name}.json").write_text(format_json(read_schema(name, source)) + "\n", encoding="utf-8")

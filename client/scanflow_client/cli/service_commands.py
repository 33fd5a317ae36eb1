"""Commands on services: deploy, services, scale, traffic, promote, rollback, delete, predict."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from scanflow.errors import InvalidError, ScanflowError
from scanflow_client.cli.command_options import (
    DecimalOption,
    EncodingOption,
    JsonOption,
    SeparatorOption,
    ServiceArgument,
    TargetArgument,
    open_deployer,
)
from scanflow_client.cli.command_output import choose_progress_stream, remark, respond, say, write_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from scanflow.backends.service_records import CanaryPolicy, ServiceObserver, ServiceRecord
    from scanflow.deployer import Deployer
    from scanflow.knowledge.knowledge_records import ModelVersion
    from scanflow_client.predict_io import PredictRequest

InstancesOption = Annotated[int | None, Option("--instances", metavar="N", min=0, help="Number of instances.")]
CoresOption = Annotated[str | None, Option("--cores", metavar="C", help="Cores of one instance: 2, 0.5, 500m.")]
AffinityOption = Annotated[
    str | None, Option("--affinity", metavar="MODE", help="Where an instance may run: any|cpu|cpumem|cpumempin.")
]
GpuOption = Annotated[
    str | None, Option("--gpu", metavar="G", help="GPUs of one instance: 1, a share as 0.5, a MIG profile, 0.")
]
CutOption = Annotated[
    float | None, Option("--cut", metavar="CORES", help="Cores of all instances together, divided by --into.")
]
IntoOption = Annotated[int | None, Option("--into", metavar="N", min=1, help="Instances that share --cut.")]
NodeOption = Annotated[
    str | None, Option("--node", metavar="NODE", help="The node with the model. Default: the only such node.")
]
_INPUT_HELP = "A table (CSV, Parquet, Feather, JSON lines), a .npy, .npz or .json file, or any other as raw bytes."
InputArgument = Annotated[str | None, Argument(metavar="[FILE|-]", help=_INPUT_HELP)]
DataOption = Annotated[str | None, Option("--data", metavar="JSON", help="Rows: '[[1, 2, 3]]'.")]
NpyOption = Annotated[Path | None, Option("--npy", metavar="FILE", help="An array saved by NumPy.")]
OneNodeOption = Annotated[
    str | None, Option("--node", metavar="NODE", help="Send the request to this node of the graph only.")
]
DtypeOption = Annotated[
    str | None, Option("--dtype", metavar="TYPE", help="Send numbers as float32, uint8, ... Default: as is.")
]
SeldonOption = Annotated[bool, Option("--seldon", help="Use Seldon's protocol.")]

_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_SHARE = re.compile(rf"\s*({_NUMBER})\s*(%?)\s*")
_RULE = re.compile(rf"\s*(errors|p95|mean)\s*<=\s*({_NUMBER})\s*x\s*(?:\+\s*({_NUMBER})\s*)?")


def deploy(
    target: TargetArgument = None,
    instances: InstancesOption = None,
    cores: CoresOption = None,
    gpu: GpuOption = None,
    affinity: AffinityOption = None,
    cut: CutOption = None,
    into: IntoOption = None,
    port: Annotated[
        int | None, Option("--port", metavar="P", min=1, max=65535, help="HTTP port. Default: the next free one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve an online workflow, or update it without downtime.

    Without an option, the value of the workflow is used.

    Examples:
        scanflow deploy app.py
        scanflow deploy app.py:serve --instances 2 --cores 1
    """
    from scanflow.application_loading import load_application
    from scanflow.backends.service_change import Deployment, Sizing
    from scanflow_client.formatting.service_text import format_request_examples

    deployer = open_deployer()
    application, path, workflow = load_application(target)
    sizing = Sizing(**parse_shape_options(instances, cores, gpu, affinity, cut, into))
    deployment = Deployment(application, workflow, sizing=sizing, port=port, source=path)
    record = _watch(lambda observe: deployer.deploy(deployment, observe=observe), as_json, after="", is_version=True)
    if not as_json:
        serving = deployment.online.serving
        needs_certificate = serving is not None and serving.clients is not None
        notes, inputs = _fetch_metadata(deployer, record)
        say(*notes, *format_request_examples(record, inputs, needs_certificate=needs_certificate))


def services(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="A service to show in detail.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List services, or show a service's instances and revisions.

    Examples:
        scanflow services
        scanflow services digits
    """
    from scanflow_client.formatting.service_text import format_service, format_services

    if name is not None:
        record = open_deployer().service(name)
        respond(record, as_json, lambda: format_service(record))
        return
    records = open_deployer().services(instances=as_json)
    respond(records, as_json, lambda: format_services(records))


def scale(
    name: ServiceArgument,
    instances: Annotated[int | None, Argument(metavar="[N]", min=0, help="Number of instances.")] = None,
    cores: CoresOption = None,
    gpu: GpuOption = None,
    affinity: AffinityOption = None,
    cut: CutOption = None,
    into: IntoOption = None,
    explain: Annotated[bool, Option("--explain", help="Explain the current number of instances.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Resize a service (instances, cores, GPUs) without downtime.

    Examples:
        scanflow scale digits 4
        scanflow scale digits --cut 8 --into 4
        scanflow scale digits --explain
    """
    from scanflow.deployer.direct_predictions import get_explanation
    from scanflow_client.formatting.service_text import format_explanation

    deployer = open_deployer()
    if explain:
        explanation = get_explanation(deployer.service(name))
        respond(explanation, as_json, lambda: format_explanation(explanation))
        return
    _change(deployer, name, as_json, **parse_shape_options(instances, cores, gpu, affinity, cut, into))


def traffic(
    name: ServiceArgument,
    model: Annotated[str, Argument(metavar="MODEL", help="models:/name/3 or models:/name@alias.")],
    weight: Annotated[
        str | None, Option("--weight", "-w", metavar="SHARE", help="Share of the requests: 10% or 0.1; 0 sends none.")
    ] = None,
    shadow: Annotated[bool, Option("--shadow", help="Mirror every request; only count the responses.")] = False,
    node: NodeOption = None,
    promote_if: Annotated[
        str | None, Option("--promote-if", metavar="RULE", help="Promote automatically: p95<=1.2x, or errors<=1x+0.01.")
    ] = None,
    after: Annotated[int, Option("--after", metavar="N", min=1, help="Decide after this many responses.")] = 100,
    within: Annotated[
        str | None,
        Option("--within", metavar="TIME", help="Roll back if there are fewer responses within this time: 10m."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a canary: send a share of requests to another version.

    With --shadow, the version gets a copy of each request, and its responses are only counted.

    Examples:
        scanflow traffic digits models:/cnn/3 --weight 10%
        scanflow traffic digits models:/cnn/3 --weight 10% --promote-if 'p95<=1.2x' --after 500
        scanflow traffic digits models:/cnn/3 --shadow
    """
    from scanflow.app.quantities import parse_duration

    if not shadow and weight is None:
        raise InvalidError("A canary needs a share of the requests: --weight 10%, or --shadow for copies.")
    share = 0.0 if weight is None else parse_share(weight)
    if within is not None and promote_if is None:
        raise InvalidError("--within is the time limit of a rule. Give the rule too: --promote-if 'p95<=1.2x'.")
    limit = None if within is None else parse_duration(within, what="--within")
    policy = None if promote_if is None else parse_rule(promote_if, after=after, within_s=limit)
    _change(open_deployer(), name, as_json, model=model, node=node, weight=share, shadow=shadow, policy=policy)


def promote(
    name: ServiceArgument,
    model: Annotated[str | None, Argument(metavar="[MODEL]", help="The version to serve. Default: the canary.")] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send all requests to the canary or to another version. No request fails.

    Examples:
        scanflow promote digits
        scanflow promote digits models:/cnn/3
    """
    options: dict[str, Any] = {"promote": True} if model is None else {"model": model, "node": node}
    _change_version(open_deployer(), name, as_json, **options)


def rollback(name: ServiceArgument, as_json: JsonOption = False) -> None:
    """Return to the version and shape of before the last change. With a canary, only remove that.

    Twice returns to where it was. If the service served the champion, the version that it serves again becomes the
    champion.

    Examples:
        scanflow rollback digits
    """
    from scanflow_client.formatting.service_text import format_served_models

    deployer = open_deployer()
    before = deployer.service(name)
    record = _change_version(deployer, name, as_json, rollback=True)
    served = format_served_models(before)
    if len(before.revisions) == 1 and served != format_served_models(record):
        remark(as_json, f"Before: {served}. Return to it: scanflow rollback {name}")


def delete(name: ServiceArgument, as_json: JsonOption = False) -> None:
    """Drain in-flight requests, then delete the service. Its models and records are kept.

    Examples:
        scanflow delete digits
    """
    from scanflow_client.progress import show_service_changes

    deployer = open_deployer()
    record = deployer.service(name)
    with show_service_changes(choose_progress_stream(as_json)) as observe:
        deployer.delete(name, observe=observe)
    again = f"Deploy it again: scanflow deploy {record.source}:{name}"
    respond(record, as_json, lambda: [f"Deleted {name}. {again if record.source else 'List: scanflow services'}"])


def predict(
    name: ServiceArgument,
    file: InputArgument = None,
    data: DataOption = None,
    npy: NpyOption = None,
    node: OneNodeOption = None,
    dtype: DtypeOption = None,
    seldon: SeldonOption = False,
    separator: SeparatorOption = "",
    encoding: EncodingOption = "",
    decimal: DecimalOption = "",
    as_json: JsonOption = False,
) -> None:
    """Request a prediction from a service.

    Examples:
        scanflow predict digits rows.csv
        scanflow predict digits --data '[[1.0, 2.0]]'
        scanflow predict digits --npy rows.npy --dtype float32
    """
    from scanflow_client.predict_io import format_response, send

    request = read_inputs(file, data, npy, separator=separator, encoding=encoding, decimal=decimal)
    response = send(open_deployer(), name, request, node=node, dtype=dtype, seldon=seldon)
    if isinstance(response, bytes):
        write_blocks(iter([response]), raw=False)
    else:
        say(*format_response(response, as_json=as_json))


def read_inputs(file: str | None, data: str | None, npy: Path | None, **written: str) -> PredictRequest:
    """Return the request that a command is to send; ``written`` says how a table is: see ``ReadOptions``."""
    from scanflow.tables.columns import ReadOptions
    from scanflow_client.predict_io import read_request

    return read_request(file=file, data=data, npy=npy, stdin=sys.stdin.buffer, options=ReadOptions(**written))


def parse_share(text: str) -> float:
    """Return ``10%`` or ``0.1`` as a share from 0 to 1."""
    match = _SHARE.fullmatch(text)
    share = -1.0 if match is None else float(match[1]) / (100 if match[2] else 1)
    if not 0 <= share <= 1:
        forgot = match is not None and not match[2] and 1 < share <= 100
        advice = f" Did you mean '{text.strip()}%'?" if forgot else ""
        raise InvalidError(
            f"The weight {text!r} is not a share of the requests, from 0% to 100%. Write 10% or 0.1.{advice}"
        )
    return share


def parse_rule(text: str, *, after: int, within_s: float | None = None) -> CanaryPolicy:
    """Return the policy of the rule ``p95<=1.2x`` or ``errors<=1x+0.01``, which compares with the current version.

    ``within_s`` None: the default of :class:`CanaryPolicy`.
    """
    from scanflow.backends.service_records import CanaryPolicy

    match = _RULE.fullmatch(text)
    if match is None:
        raise InvalidError(
            f"The rule {text!r} cannot be read. Write 'p95<=1.2x' (at most 1.2 times that of the current version), "
            "'errors<=1x+0.01' (its share of failed requests plus 0.01), or 'mean<=1.1x'."
        )
    rule = {"metric": match[1], "ratio": float(match[2]), "slack": float(match[3] or 0.0), "after_requests": after}
    return CanaryPolicy.model_validate(rule if within_s is None else {**rule, "within_s": within_s})


def parse_shape_options(
    instances: int | None, cores: str | None, gpu: str | None, affinity: str | None, cut: float | None, into: int | None
) -> dict[str, Any]:
    """Return the deployer's options for the shape of an instance; None: unchanged."""
    from scanflow.app.quantities import parse_cpu
    from scanflow.app.resources import Affinity, parse_gpu
    from scanflow.placement.granularity import compute_granularity

    amount = None if cores is None else parse_cpu(cores)
    instances, amount = compute_granularity(instances, amount, cut=cut, into=into)
    mode = None if affinity is None else Affinity.model_validate(Affinity.coerce(affinity)).mode
    gpus = None if gpu is None else parse_gpu(gpu)
    return {"instances": instances, "cores": amount, "gpu": gpus, "affinity": mode}


def _change(deployer: Deployer, name: str, as_json: bool, **options: Any) -> ServiceRecord:
    from scanflow.backends.service_change import ServiceChange

    change = ServiceChange(**options)
    return _watch(
        lambda observe: deployer.change(name, change, observe=observe), as_json, is_version="model" in options
    )


def _change_version(deployer: Deployer, name: str, as_json: bool, **options: Any) -> ServiceRecord:
    from scanflow.backends.service_change import ServiceChange
    from scanflow_client.cli.model_commands import open_models
    from scanflow_client.model_client import change_version

    champions: list[ModelVersion] = []

    def change(observe: ServiceObserver) -> ServiceRecord:
        record, named = change_version(deployer, name, ServiceChange(**options), open_models, observe=observe)
        champions.extend(named)
        return record

    record = _watch(change, as_json, is_version=True)
    remark(as_json, *(f"The champion of {version.name} is version {version.version} now." for version in champions))
    return record


def _watch(
    start: Callable[[ServiceObserver], ServiceRecord],
    as_json: bool,
    *,
    after: str = "Show it: scanflow services {}",
    is_version: bool = False,
) -> ServiceRecord:
    """Print the progress of a change, the service it led to, with ``is_version`` what it serves now, and the next
    command."""
    from scanflow_client.formatting.service_text import format_served_models, format_service_line
    from scanflow_client.progress import show_service_changes

    with show_service_changes(choose_progress_stream(as_json)) as observe:
        record = start(observe)
    has_models = any(revision.models for revision in record.revisions)
    served = [f"Served now: {format_served_models(record)}"] if is_version and has_models else []
    then = [after.format(record.name)] if after else []
    respond(record, as_json, lambda: [format_service_line(record), *served, *then])
    return record


def _fetch_metadata(deployer: Deployer, record: ServiceRecord) -> tuple[list[str], list[dict[str, Any]]]:
    """Return what a service says of itself: notes on its models (no signature, a warm-up that failed), and the inputs
    that the graph declares, else those of a registered model in it."""
    notes: list[str] = []
    nodes = [node for revision in record.revisions for node in revision.models]
    with suppress(ScanflowError):  # the service is deployed; a later command reports the error
        if record.state == "ready":
            with deployer.connect(record.name) as client:
                for name in (record.name, *nodes):
                    document = client.document(f"/v2/models/{name}")
                    if name == record.name:
                        notes = [f"! {note}" for note in document.get("notes") or ()]
                    if inputs := document.get("inputs"):
                        return notes, list(inputs)
    return notes, []

"""``scanflow load``: measure a service under load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from scanflow.errors import UsageError
from scanflow_client.cli.command_options import (
    DecimalOption,
    EncodingOption,
    JsonOption,
    SeparatorOption,
    ServiceArgument,
    load_settings,
    open_deployer,
    open_existing_client,
)
from scanflow_client.cli.command_output import choose_progress_stream, name_written, remark, respond
from scanflow_client.cli.exit_codes import STOPPED
from scanflow_client.cli.service_commands import (
    DataOption,
    DtypeOption,
    InputArgument,
    NpyOption,
    OneNodeOption,
    SeldonOption,
    read_inputs,
)

_RATE = "Requests a second, sent whether or not earlier ones have completed. Default: a closed loop."


def load(
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
    rate: Annotated[float | None, Option("--rate", metavar="R", help=_RATE)] = None,
    trace: Annotated[
        str | None,
        Option("--trace", metavar="TRACE", help="A rate over time: steps:50,100,200, sine:20,200,60, or a .csv file."),
    ] = None,
    poisson: Annotated[
        int | None,
        Option("--poisson", metavar="SEED", help="Seed of random (Poisson) arrival times. Default: even intervals."),
    ] = None,
    seconds: Annotated[float | None, Option("--seconds", metavar="S", help="Duration in seconds. Default: 10.")] = None,
    connections: Annotated[int, Option("--connections", "-c", metavar="N", help="Number of concurrent callers.")] = 16,
    grpc: Annotated[
        bool, Option("--grpc", help="Send over gRPC, in the Open Inference Protocol. Default: REST.")
    ] = False,
    p99: Annotated[
        str | None, Option("--p99", metavar="TIME", help="Check the p99 latency against this bound: 50ms.")
    ] = None,
    mlperf: Annotated[
        str | None,
        Option("--mlperf", metavar="SCENARIO", help="Use MLPerf LoadGen: single-stream|multi-stream|server|offline."),
    ] = None,
    scale: Annotated[
        float | None,
        Option("--scale", metavar="F", help="Factor on MLPerf's numbers of queries (thesis Table 4.2). Default: 1."),
    ] = None,
    out: Annotated[
        Path | None, Option("--out", metavar="DIR", help="Write each request, the summary and a plot to this folder.")
    ] = None,
    log: Annotated[bool, Option("--log", help="Log the result as a run in the application's tracker.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the throughput and latency of a service under load.

    Latency counts from the time at which a request is due. Ctrl-C ends the load and prints the results so far.

    Examples:
        scanflow load digits rows.npy --rate 200 --seconds 30 --p99 50ms
        scanflow load digits rows.npy -c 8
        scanflow load digits --data '[[1.0, 2.0]]' --trace sine:20,200,60
    """
    from scanflow.app.quantities import parse_duration
    from scanflow_client.load_report import LoadSpec, draw_load, format_load
    from scanflow_client.predict_io import to_call
    from scanflow_client.progress import open_output
    from scanflow_client.service_load import (
        build_mlperf_settings,
        build_trace,
        load_service,
        log_report,
        show_load_progress,
        write_files,
    )

    bound_s = None if p99 is None else parse_duration(p99, what="--p99")
    if mlperf is None:
        if scale is not None:
            raise UsageError("--scale multiplies MLPerf's numbers of queries: add --mlperf SCENARIO, or leave it out.")
        spec = LoadSpec.build(
            build_trace(rate, trace, seconds), poisson=poisson, seconds=seconds, connections=connections
        )
    else:
        if (trace, poisson, seconds) != (None, None, None):
            raise UsageError("LoadGen decides when requests are due: leave out --trace, --poisson and --seconds.")
        scenario = build_mlperf_settings(mlperf, 1.0 if scale is None else scale, rate=rate, bound_s=bound_s)
        spec = LoadSpec(mlperf=scenario, connections=connections)
    deployer = open_deployer()
    prediction = read_inputs(file, data, npy, separator=separator, encoding=encoding, decimal=decimal)
    request = to_call(deployer, name, prediction, node=node, dtype=dtype, seldon=seldon, grpc=grpc)
    record = deployer.service(name)
    with open_output(choose_progress_stream(as_json)) as output:
        spec = replace(spec, rows=prediction.rows, grpc=grpc)
        report = load_service(record, request, spec, observe=show_load_progress(output.update, spec))
    respond(report.summary(), as_json, lambda: format_load(report, bound_s=bound_s))
    chart = draw_load(report) if out is not None or log else ""
    if out is not None:
        remark(as_json, name_written(write_files(report, out, chart)))
    if log:
        from scanflow_client.model_client import open_server_knowledge

        run = log_report(open_server_knowledge(load_settings(), open_existing_client()), record, report, chart)
        remark(as_json, f"Logged as the run {run.name} ({run.run_id}) of {record.app}.")
    if out is None and not log:
        remark(as_json, f"Save each request and a plot: --out DIR, --log. Resize the service: scanflow scale {name}")
    if report.interrupted:
        raise typer.Exit(STOPPED.code)

"""Builder of service specs on this machine: resolves files, fetches models, checks cores and memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scanflow.accelerators.accelerator_port import Inventory
from scanflow.accelerators.visible import VISIBLE
from scanflow.app.application import Application
from scanflow.app.parameters import select_texts
from scanflow.app.plain_secrets import list_inherited_sources
from scanflow.app.plan import Plan, PlannedInstance, plan_graph
from scanflow.app.quantities import format_memory
from scanflow.app.resources import Affinity
from scanflow.app.scaling import Scaling
from scanflow.app.secrets import iterate_secrets
from scanflow.app.serving import Serving
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.gpu_scaling import check_gpu_readings, check_gpu_scaling
from scanflow.backends.local import python_environments
from scanflow.backends.local.layout import Home
from scanflow.backends.local.services.grants import derive_thread_variables, plan_grants, read_used_cpus
from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import Fetch, ServiceSpec, build_nodes, compute_fingerprint, find_scaling
from scanflow.backends.shapes import build_shape_demand, compute_shape
from scanflow.errors import InvalidError, UnsupportedError, UsageError
from scanflow.files.secret_sources import check_secret_sources
from scanflow.instance_messages import ModelFiles, Revision
from scanflow.pki import prepare_tls
from scanflow.placement.available_cpus import read_this_machine
from scanflow.placement.device_grants import DeviceDemand, check_demand, check_environment
from scanflow.placement.sysfs import read_topology
from scanflow.placement.threads import compute_pool_size
from scanflow.settings import Settings


class ServiceSpecBuilder:
    """Builds service specs for one home."""

    def __init__(
        self,
        home: Home,
        services: ServicesHome,
        fetch: Fetch,
        devices: HomeDevices | None = None,
        *,
        settings: Settings | None = None,
    ) -> None:
        """``settings``: whether services are served over TLS."""
        self._settings = settings or Settings(home=home.path)
        self._home, self._services, self._fetch = home, services, fetch
        self._devices = HomeDevices(home.path) if devices is None else devices

    def check(self, app: Application, workflow: Workflow, shape: Shape | None) -> None:
        """Raise errors that would occur later.

        Raises:
            UsageError: an unsupported field, a missing file, a thread variable beyond the cores, more cores than there
                are.
        """
        if workflow.type != "online":
            raise UsageError(f"Workflow {workflow.name!r} is of type {workflow.type!r}: it is run, not served.")
        check_supported(app, workflow)
        serving = workflow.serving or Serving()
        _check_clients(workflow.name, serving, self._settings)
        if serving.record > 0 and app.tracker is None:
            raise InvalidError(
                f"Workflow {workflow.name!r} records predictions, but its application has no tracker. "
                "Add one: tracker=sf.Tracker()"
            )
        sources = [secret.source for secret in iterate_secrets([serving.env, workflow.services])]
        check_secret_sources(sources, Path(app.app_dir), who=f"Workflow {workflow.name!r}")
        build_nodes(app, workflow, lambda uri: ModelFiles(name=uri, version=0, path=""))
        list_requirements(app, workflow)
        self._fit_shape(
            workflow.name, shape or compute_shape(workflow), find_scaling(workflow), select_texts(serving.env)
        )

    def build_spec(
        self,
        app: Application,
        workflow: Workflow,
        *,
        source: Path | None,
        shape: Shape | None,
        tell: Callable[[str], None],
    ) -> ServiceSpec:
        serving = workflow.serving or Serving()
        scaling = find_scaling(workflow)
        env = select_texts(serving.env)

        def fetch(uri: str) -> ModelFiles:
            tell(f"fetching {uri}")
            return self._fetch(uri)

        return ServiceSpec(
            app=app.name,
            team=app.team,
            workflow=workflow.name,
            source=None if source is None else str(source),
            app_dir=str(Path(app.app_dir).resolve()),
            code=compute_fingerprint(Path(app.app_dir).resolve()),
            deployment=1,
            serves=1,
            shape=self._fit_shape(workflow.name, shape or compute_shape(workflow), scaling, env),
            revisions=(Revision(id="r1", nodes=build_nodes(app, workflow, fetch)),),
            scaling=scaling,
            serving=serving,
            tls=prepare_tls(self._settings),
            inherited=tuple(list_inherited_sources(app)),
            tracker_uri=app.tracker.uri if app.tracker else None,
            python=str(self._choose_python(app, workflow, tell)),
            aliases=tuple(
                other.name
                for other in app.workflows
                if other.type == "online" and (other.serving or Serving()).backup == workflow.name
            ),
        )

    def complete_shape(self, definition: ServiceSpec, shape: Shape) -> Shape:
        """Return a shape with its thread variables, after checking that it fits this machine."""
        return self._fit_shape(definition.workflow, shape, definition.scaling, select_texts(definition.serving.env))

    def _fit_shape(self, name: str, shape: Shape, scaling: Scaling | None, env: dict[str, str]) -> Shape:
        topology = read_topology()
        most = max(shape.instances, 1 if scaling is None else scaling.max)
        memory = read_this_machine().memory_bytes
        if shape.memory_bytes is not None and most * shape.memory_bytes > memory:
            raise InvalidError(
                f"{name!r}: {most} x {format_memory(shape.memory_bytes)} of memory do not fit this machine, which "
                f"provides {format_memory(memory)}. Request fewer instances, or less memory."
            )
        demand = build_shape_demand(shape)
        try:
            if scaling is not None:
                check_gpu_scaling(scaling, shape)
            if demand is not None or VISIBLE in env:
                inventory = self._devices.read_inventory()
                check_environment(env, inventory, asks=demand is not None)
                if demand is not None:
                    _check_demand(inventory, demand, shape.instances, scaling)
                if demand is not None and scaling is not None:
                    check_gpu_readings(scaling, shape, inventory)
            plan_grants(topology, shape, most, read_used_cpus(self._services, name))
            threads = derive_thread_variables(topology, shape, env)
        except (InvalidError, UnsupportedError) as error:
            raise type(error)(f"{name!r}: {error}") from error
        return shape.model_copy(update={"threads": threads})

    def _choose_python(self, app: Application, workflow: Workflow, tell: Callable[[str], None]) -> Path:
        """Return the interpreter of the instances; creates its environment if they have their own."""
        files = list_requirements(app, workflow)
        if not files:
            return Path(sys.executable)
        lines = files[0].read_text(encoding="utf-8").splitlines()
        requirements = python_environments.normalise_requirements(
            lines, with_runtime=True, runtime=python_environments.SERVING_RUNTIME
        )
        python = python_environments.locate_python(self._home.environments, requirements)
        if not python_environments.is_ready(python):
            tell("its environment is being created")
            python_environments.make_environment(
                python, requirements, base=files[0].parent, patience=python_environments.Patience()
            )
        return python


def _check_demand(inventory: Inventory, demand: DeviceDemand, instances: int, scaling: Scaling | None) -> None:
    check_demand(inventory, replace(demand, copies=instances, copy="instance"))
    if scaling is not None and scaling.max > instances:
        try:
            check_demand(inventory, replace(demand, copies=scaling.max, copy="instance"))
        except UnsupportedError as error:
            raise UnsupportedError(f"Scaling.max={scaling.max}: {error}") from error


def _check_clients(name: str, serving: Serving, settings: Settings) -> None:
    if serving.clients is not None and not settings.serves_tls:
        raise InvalidError(
            f"Workflow {name!r}: serving.clients needs TLS, which carries clients' certificates, and this home serves "
            "without. Turn it on: scanflow up --tls, or SCANFLOW_TLS=1"
        )


def plan_online(home: Path, workflow: Workflow) -> Plan:
    """Return the plan of an online workflow beside the services of this home."""
    shape, topology = compute_shape(workflow), read_topology()
    used = read_used_cpus(ServicesHome(home / "services"), workflow.name)
    instances = tuple(
        PlannedInstance(
            name=str(number),
            cores=grant.cores,
            cpus=grant.cpus,
            memory_nodes=grant.memory_nodes,
            threads=compute_pool_size(grant.cores),
        )
        for number, grant in enumerate(plan_grants(topology, shape, shape.instances, used), 1)
    )
    return plan_graph(
        workflow,
        instances,
        memory_bytes=shape.memory_bytes,
        machine_cores=topology.effective_count,
        machine_memory_bytes=read_this_machine().memory_bytes,
    )


def list_requirements(app: Application, workflow: Workflow) -> tuple[Path, ...]:
    """Return the requirements file of the instances' environment, if any: all nodes share one."""
    places = AppFiles(app, workflow)
    services_by_file = {
        places.find(service.requirements, service.name): service
        for service in workflow.services
        if service.requirements is not None
    }
    if len(services_by_file) > 1:
        first, second = (service.name for service in list(services_by_file.values())[:2])
        raise UnsupportedError(
            f"Workflow {workflow.name!r}: the embedded backend does not support requirements: {first!r} and {second!r} "
            "name different files, but all nodes of a workflow run in one process. Merge them into one file, or split "
            "the workflow in two."
        )
    return tuple(services_by_file)


def check_supported(app: Application, workflow: Workflow) -> None:
    """Reject fields that this backend does not support."""
    for node in workflow.services:
        affinity = node.affinity if isinstance(node.affinity, Affinity) else Affinity()
        problems = {
            "affinity": (affinity.node_selector or affinity.apart_from or affinity.avoid_services)
            and "there is one machine, and only batch steps can avoid services. Remove all fields but mode."
        }
        for field, problem in problems.items():
            if problem:
                raise UnsupportedError(
                    f"Service {node.name!r}: the embedded backend does not support {field}: {problem}"
                )
    backup = (workflow.serving or Serving()).backup
    online = {other.name: other for other in app.workflows if other.type == "online"}
    if backup in online and (online[backup].serving or Serving()).backup is not None:
        raise UnsupportedError(
            f"Workflow {workflow.name!r}: the embedded backend does not support a chain of backups: {backup!r} has a "
            "backup itself. Remove one of the two."
        )

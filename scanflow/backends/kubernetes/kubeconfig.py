"""Read the cluster's address and credentials from a kubeconfig, or from the service account of a pod."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, KubeConfig, SingleConfig
from lightkube.config.models import NameValue, User
from lightkube.core.exceptions import ConfigError
from msgspec.structs import replace

from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.errors import UsageError, did_you_mean

_PLUGIN_V1: Final = "client.authentication.k8s.io/v1"
_PLUGIN_V1BETA1: Final = "client.authentication.k8s.io/v1beta1"
_LIST: Final = "List the contexts: kubectl config get-contexts"


def read_kubeconfig(settings: KubernetesSettings) -> SingleConfig:
    """Return the chosen context of the kubeconfig, with its cluster and user.

    Raises:
        UsageError: there is none, or the file lacks what the context names.
    """
    file = settings.kubeconfig or os.environ.get("KUBECONFIG", DEFAULT_KUBECONFIG)
    try:
        config = KubeConfig.from_file(settings.kubeconfig) if settings.kubeconfig else KubeConfig.from_env()
    except (ConfigError, OSError) as error:
        raise UsageError(
            f"No cluster could be found: {error}. Set KUBECONFIG to the file that names it, and "
            f"SCANFLOW_KUBERNETES_CONTEXT to its context. {_LIST}"
        ) from error
    except (msgspec.MsgspecError, yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"The kubeconfig {file!r} cannot be read ({type(error).__name__}: {reason}). Does kubectl read it? Look: "
            "kubectl config view"
        ) from error
    name = settings.context or config.current_context
    if name is None:
        raise UsageError(
            f"The kubeconfig {file!r} has no current context. Set SCANFLOW_KUBERNETES_CONTEXT to one. {_LIST}"
        )
    if name not in config.contexts:
        raise UsageError(
            f"The kubeconfig {file!r} has no context {name!r}.{did_you_mean(name, config.contexts)} Set "
            f"SCANFLOW_KUBERNETES_CONTEXT to one that it has. {_LIST}"
        )
    context = config.contexts[name]
    _check_named(file, name, "cluster", context.cluster, config.clusters)
    if context.user:
        _check_named(file, name, "user", context.user, config.users)
    return SingleConfig(
        context_name=name,
        context=context,
        cluster=config.clusters[context.cluster],
        user=_adapt_plugin(config.users[context.user]) if context.user else None,
        fname=config.fname,
    )


def _adapt_plugin(user: User) -> User:
    """Return a user whose credential plugin, if he has one, is told which version of the API it is to speak.

    lightkube reads only the token that a plugin prints, which is the same in all versions, but refuses ``v1``.
    """
    plugin = user.exec
    if plugin is None:
        return user
    info = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
    variables = [*(plugin.env or ()), NameValue("KUBERNETES_EXEC_INFO", json.dumps(info))]
    version = _PLUGIN_V1BETA1 if plugin.apiVersion == _PLUGIN_V1 else plugin.apiVersion
    return replace(user, exec=replace(plugin, apiVersion=version, env=variables))


def _check_named(file: str, context: str, what: str, name: str | None, names: Mapping[str, Any]) -> None:
    if name not in names:
        others = f"It has {', '.join(map(repr, sorted(names)))}." if names else f"It has no {what}."
        raise UsageError(
            f"The context {context!r} of the kubeconfig {file!r} names the {what} {name!r}, which the file does not "
            f"have. {others} Add it (kubectl config set-{'credentials' if what == 'user' else what}), or choose "
            f"another context with SCANFLOW_KUBERNETES_CONTEXT. {_LIST}"
        )

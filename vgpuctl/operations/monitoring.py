# SPDX-License-Identifier: Apache-2.0
"""Files for Prometheus, Alertmanager, Grafana and kube-prometheus, from the package's templates and host.yaml."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vgpuctl.config.agent_spec import AgentSpec
from vgpuctl.config.arguments import DASHBOARD_PREFIX, MONITORING_FILES
from vgpuctl.config.yaml_reader import load_document
from vgpuctl.domain.text_templates import read_template, render_text
from vgpuctl.errors import InvalidInput
from vgpuctl.model.agent_service import METRICS_PORT
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.host import MonitoringFileResult
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.operations.dashboards import render_dashboard
from vgpuctl.value import as_dict

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

DIRECTORY = "monitoring"
DEFAULT_TARGET = f"127.0.0.1:{METRICS_PORT}"


def make_monitoring_file(host: Host, name: str, targets: Sequence[str] = ()) -> QueryResult[MonitoringFileResult]:
    """Return the text of one of MONITORING_FILES.

    `targets`: ADDRESS:PORT of the agents, for what Prometheus scrapes; without one, the agent of this host.

    Raises:
        InvalidInput: there is no such file, a target is none, or host.yaml cannot be read.
    """
    if name not in MONITORING_FILES:
        raise InvalidInput(
            f"'{name}' is none of {', '.join(MONITORING_FILES)}", hint="vgpuctl monitoring --print rules"
        )
    if name.startswith(DASHBOARD_PREFIX):
        dashboard = name.removeprefix(DASHBOARD_PREFIX)
        table: Any = load_document(read_template(DIRECTORY, "dashboards.yml"), "dashboards.yml").value
        return QueryResult(MonitoringFileResult(name, render_dashboard(dashboard, table[dashboard])))
    spec = read_host_spec(host)
    values = {
        **as_dict((AgentSpec() if spec is None else spec.agent).alerts),
        **_scrape_values(tuple(targets) or (DEFAULT_TARGET,)),
    }
    return QueryResult(MonitoringFileResult(name, render_text(DIRECTORY, f"{name}.yml.j2", values)))


def _scrape_values(targets: tuple[str, ...]) -> dict[str, object]:
    """Return what the templates about scraping need: the targets, and whether they need certificates."""
    pairs = [_split_target(target) for target in targets]
    is_loopback = {_is_loopback(host) for host, _ in pairs}
    if len(is_loopback) > 1:
        raise InvalidInput(
            f"targets on this machine need no certificates, others do: {', '.join(targets)}",
            hint="make a file for each kind",
        )
    addresses = [host for host, _ in pairs if _address(host) is not None]
    same_port = len({port for _, port in pairs}) == 1
    return {
        "targets": list(targets),
        "is_tls": False in is_loopback,
        "addresses": addresses if same_port and len(addresses) == len(pairs) else [],
        "port": pairs[0][1],
    }


def _split_target(target: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})", target, re.ASCII)
    if match is None or not 0 < int(match[2]) < 1 << 16 or (match[1][0] == "[" and _address(match[1][1:-1]) is None):
        raise InvalidInput(
            f"{target!a} is not the address of an agent's metrics",
            hint=f"vgpuctl monitoring --print scrape --target gpu-01.example.org:{METRICS_PORT}",
        )
    return match[1].strip("[]"), int(match[2])


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback

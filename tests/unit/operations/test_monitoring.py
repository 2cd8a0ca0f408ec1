# SPDX-License-Identifier: Apache-2.0
"""What vgpuctl monitoring prints; tests/monitoring tries it with Prometheus and Alertmanager."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.hosts import SimulatedHost, open_sim_host
from vgpuctl.config.arguments import DASHBOARD_PREFIX, MONITORING_FILES
from vgpuctl.errors import InvalidInput
from vgpuctl.operations.monitoring import make_monitoring_file

NODES = ("gpu-01.example.org:19935", "gpu-02.example.org:19935")


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return open_sim_host(tmp_path, "empty")


def documents(host: SimulatedHost, name: str, *targets: str) -> list[Any]:
    """Return the YAML documents of a file."""
    return list(YAML(typ="safe", pure=True).load_all(make_monitoring_file(host.ports, name, targets).data.text))


def alert(host: SimulatedHost, name: str) -> str:
    (rules,) = documents(host, "rules")
    (expr,) = [rule["expr"] for group in rules["groups"] for rule in group["rules"] if rule.get("alert") == name]
    return " ".join(expr.split())


@pytest.mark.parametrize("name", MONITORING_FILES)
def test_each_file_is_complete_and_parses(host: SimulatedHost, name: str) -> None:
    data = make_monitoring_file(host.ports, name).data
    assert data.name == name
    assert not any(mark in data.text for mark in ("[[", "]]", "[%", "%]"))
    if name.startswith(DASHBOARD_PREFIX):
        assert json.loads(data.text)["uid"] == f"vgpuctl-{name.removeprefix(DASHBOARD_PREFIX)}"
    else:
        assert documents(host, name)


def test_thresholds_are_those_of_host_yaml(host: SimulatedHost) -> None:
    assert alert(host, "GpuHot").endswith("> 85")
    assert alert(host, "GpuBusy").endswith("> 0.95")
    host.sim.host_file.write_text("version: 1\nagent: {alerts: {gpu_hot_celsius: 70, gpu_busy_ratio: 0.8}}\n")
    assert alert(host, "GpuHot").endswith("> 70")
    assert alert(host, "GpuBusy").endswith("> 0.8")


def test_an_invalid_host_yaml_is_an_error_and_not_the_default(host: SimulatedHost) -> None:
    host.sim.host_file.write_text("version: 1\nagent: {alerts: {gpu_hot_celsius: hot}}\n")
    with pytest.raises(InvalidInput, match="gpu_hot_celsius"):
        make_monitoring_file(host.ports, "rules")


def test_the_agent_of_this_host_is_scraped_without_certificates(host: SimulatedHost) -> None:
    (scrape,) = documents(host, "scrape")
    (job,) = scrape["scrape_configs"]
    assert job["job_name"] == "vgpuctl"
    assert job["static_configs"] == [{"targets": ["127.0.0.1:19935"]}]
    assert "scheme" not in job


def test_other_hosts_are_scraped_with_certificates(host: SimulatedHost) -> None:
    (scrape,) = documents(host, "scrape", *NODES)
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"] == [{"targets": list(NODES)}]
    assert job["scheme"] == "https"
    assert job["tls_config"].keys() == {"ca_file", "cert_file", "key_file"}


def test_a_service_monitor_needs_addresses(host: SimulatedHost) -> None:
    (scrape_config,) = documents(host, "servicemonitor", *NODES)
    assert scrape_config["kind"] == "ScrapeConfig"
    assert scrape_config["spec"]["staticConfigs"] == [{"targets": list(NODES)}]
    assert scrape_config["spec"]["scheme"] == "HTTPS"
    assert len(documents(host, "servicemonitor", "10.0.0.1:19935", "10.0.0.2:9936")) == 1
    _, service, endpoints, monitor = documents(host, "servicemonitor", "10.0.0.1:19935", "[fd00::2]:19935")
    (subset,) = endpoints["subsets"]
    assert subset["addresses"] == [{"ip": "10.0.0.1"}, {"ip": "fd00::2"}]
    assert service["spec"]["ports"] == subset["ports"] == [{"name": "metrics", "port": 19935}]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert monitor["spec"]["jobLabel"] in service["metadata"]["labels"]
    assert (endpoint["scheme"], endpoint["tlsConfig"].keys()) == ("https", {"ca", "cert", "keySecret"})


@pytest.mark.parametrize(
    "target", ["gpu-01", "gpu-01:", "gpu-01:0", "gpu-01:70000", "a b:1", "[gpu]:1", 'x"]:1', "::1:19935"]
)
def test_what_is_no_target_is_refused(host: SimulatedHost, target: str) -> None:
    with pytest.raises(InvalidInput, match="is not the address of an agent's metrics"):
        make_monitoring_file(host.ports, "scrape", (target,))


def test_targets_with_and_without_certificates_are_not_mixed(host: SimulatedHost) -> None:
    with pytest.raises(InvalidInput, match="need no certificates, others do"):
        make_monitoring_file(host.ports, "scrape", ("127.0.0.1:19935", *NODES))


def test_an_unknown_file_is_refused(host: SimulatedHost) -> None:
    with pytest.raises(InvalidInput, match="'dashboard:all' is none of rules, scrape"):
        make_monitoring_file(host.ports, "dashboard:all")

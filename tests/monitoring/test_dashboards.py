# SPDX-License-Identifier: Apache-2.0
"""Each query of each dashboard has an answer from a real Prometheus with 40 days of history.

It scrapes the agent of a simulated host with a lost GPU, and a text with every metric of a host with more faults.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.agent.conftest import running as running_agent
from tests.agent.test_metrics import LABELS
from tests.monitoring import metrics
from tests.monitoring.conftest import Printed, promtool
from tests.monitoring.servers import ask, free_port, running, serving, wait_for
from vgpuctl import library
from vgpuctl.agent.metrics import FAMILIES
from vgpuctl.agent.metrics_text import PREFIX
from vgpuctl.config.agent_metrics import MetricsSpec
from vgpuctl.config.arguments import DASHBOARD_PREFIX, MONITORING_FILES

DASHBOARDS = [name.removeprefix(DASHBOARD_PREFIX) for name in MONITORING_FILES if name.startswith(DASHBOARD_PREFIX)]
HOUR, DAYS = 3600, 40
SCENARIO = """
version: 1
gpus: [{model: L40S, count: 2}]
nvidia: {guest_driver: "550.90.07"}
faults: [{on: nvml-usage, match: '0000:3f:00.0', code: 15}]
"""
ALL = {"instance": ".*", "gpu": ".*", "vm": ".*", "profile": ".*"}
"""What Grafana puts in the place of each variable when all of its values are chosen."""


def history(instance: str, now: float) -> str:
    """Return hourly values until an hour ago: VMs' peaks, of which one is near its size, and room that shrinks."""
    vgpu = f'job="vgpuctl",instance="{instance}",vgpu="0"'
    lines = {
        f'vgpu:vgpuctl_memory_used_bytes:max1h{{{vgpu},vm="{vm}"}}': lambda day, peak=peak: peak + day * 1e6
        for vm, peak in zip(metrics.VMS, (8.5e9, *[2e9] * 5), strict=True)
    }
    free = 'job_profile:vgpuctl_profile_free:sum{job="vgpuctl",profile="A40-12Q"}'
    lines[free] = lambda day: 5 + DAYS - day
    last = int(now) // HOUR * HOUR - HOUR
    times = range(last - DAYS * 24 * HOUR, last, HOUR)
    samples = [f"{line} {value((t - times[0]) / 86400)} {t}" for line, value in lines.items() for t in times]
    heads = "# TYPE vgpu:vgpuctl_memory_used_bytes:max1h gauge\n", "# TYPE job_profile:vgpuctl_profile_free:sum gauge\n"
    peaks, rooms = samples[: -len(times)], samples[-len(times) :]
    return heads[0] + "\n".join(peaks) + "\n" + heads[1] + "\n".join(rooms) + "\n# EOF\n"


@pytest.fixture(scope="module")
def agent_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the agent of a simulated host with a VM and a lost GPU."""
    directory = tmp_path_factory.mktemp("agent")
    (directory / "host.yaml").write_text(SCENARIO)
    name, port = f"sim:{directory / 'host.yaml'}", free_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(directory / "state-home"))
        with library.open_host(name) as host:
            host.create_vm("cad-001", profile="L40S-4Q", gpu="0000:3b:00.0", owner="ada", labels={"pool": "cad"})
        with running_agent(name, directory, metrics=MetricsSpec(f"127.0.0.1:{port}")):
            yield port


@pytest.fixture(scope="module")
def prometheus(
    printed: Printed, rules_file: Path, agent_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a Prometheus that scraped both hosts a few times."""
    directory, now = tmp_path_factory.mktemp("prometheus"), time.time()
    with serving(lambda: metrics.exposition(time.time())) as port:
        targets = (f"127.0.0.1:{port}", f"127.0.0.1:{agent_port}")
        (directory / "history").write_text(history(targets[0], now))
        few_blocks = "--max-block-duration=1000h"  # not two hours each: 480 blocks take a minute
        promtool("tsdb", "create-blocks-from", few_blocks, "openmetrics", "history", "data", cwd=directory)
        often = "global: {evaluation_interval: 500ms}\nrule_files: [" + json.dumps(str(rules_file)) + "]\n"
        (directory / "prometheus.yml").write_text(often + printed("scrape", targets).replace("15s", "500ms"))
        promtool("check", "config", "prometheus.yml", cwd=directory)
        url = f"http://127.0.0.1:{free_port()}"
        argv = (
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--storage.tsdb.retention.time=60d",
            f"--web.listen-address={url.removeprefix('http://')}",
        )
        with running(directory, argv, f"{url}/-/ready"):
            wait_for("several scrapes", lambda: len(query(url, "count_over_time(vgpuctl_gpu_info[1m]) >= 4")) >= 3)
            wait_for("recorded values", lambda: query(url, "vgpu:vgpuctl_sm_of_share:ratio"))
            yield url


def query(url: str, expr: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = ask(f"{url}/api/v1/query", query=expr)["data"]["result"]
    return result


@pytest.fixture(params=DASHBOARDS)
def dashboard(request: pytest.FixtureRequest, printed: Printed) -> Mapping[str, Any]:
    result: Mapping[str, Any] = json.loads(printed(f"{DASHBOARD_PREFIX}{request.param}"))
    return result


def queries(dashboard: Mapping[str, Any]) -> list[str]:
    """Return what the panels of a dashboard ask."""
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def with_values(expr: str) -> str:
    """Return a query with the values of its variables."""
    return re.sub(r"\$(\w+)", lambda match: ALL[match[1]], expr)


def test_each_query_has_an_answer(dashboard: Mapping[str, Any], prometheus: str) -> None:
    assert len(queries(dashboard)) >= 10
    assert [expr for expr in queries(dashboard) if not query(prometheus, with_values(expr))] == []


def test_each_variable_has_values(dashboard: Mapping[str, Any], prometheus: str) -> None:
    for variable in dashboard["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        assert match is not None
        assert variable["name"] == match[2]
        assert any(match[2] in series["metric"] for series in query(prometheus, with_values(match[1])))


def test_a_panel_uses_variables_of_its_dashboard_and_the_chosen_data_source(dashboard: Mapping[str, Any]) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert {name for expr in queries(dashboard) for name in re.findall(r"\$(\w+)", expr)} <= variables.keys()
    sources = [panel["datasource"] for panel in dashboard["panels"] if "targets" in panel]
    sources += [variable["datasource"] for name, variable in variables.items() if name != "datasource"]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


def test_panels_do_not_overlap_and_have_numbers_of_their_own(dashboard: Mapping[str, Any]) -> None:
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y, (one, other)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        refs = [target["refId"] for target in panel.get("targets", ())]
        assert len(refs) == len(set(refs)), panel["title"]


def test_dashboards_have_names_of_their_own(printed: Printed) -> None:
    dashboards = [json.loads(printed(f"{DASHBOARD_PREFIX}{name}")) for name in DASHBOARDS]
    assert len({dashboard["uid"] for dashboard in dashboards}) == len({d["title"] for d in dashboards}) == 4


def test_the_text_with_every_metric_is_as_the_agent_would_write_it() -> None:
    text = {
        (sample.name, frozenset(sample.labels))
        for family in text_string_to_metric_families(metrics.exposition(1.0))
        for sample in family.samples
    }
    agent = {(f"{PREFIX}{f.name}", frozenset((*LABELS[f.of], *f.labels))) for f in FAMILIES}
    assert text == agent


def test_prometheus_evaluates_the_rules_and_fills_the_alerts_in(prometheus: str) -> None:
    groups = ask(f"{prometheus}/api/v1/rules")["data"]["groups"]
    assert [rule for group in groups for rule in group["rules"] if rule["health"] == "err"] == []
    alerts = ask(f"{prometheus}/api/v1/alerts")["data"]["alerts"]
    lost = {a["labels"]["gpu"] for a in alerts if a["labels"]["alertname"] == "GpuLost"}
    assert lost == {metrics.LOST, "0000:3f:00.0"}, "of the text, and of the simulated host"
    for alert in alerts:
        for name, text in alert["annotations"].items():
            assert "{{" not in text, (alert["labels"], name)
            assert "<error" not in text, (alert["labels"], text)

# SPDX-License-Identifier: Apache-2.0
"""The rules: promtool accepts them, and each alert fires when it must, and only then."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.alert_cases import ALERTS, GPU, INFO, INSTANCE, Alert, Series, licences
from tests.monitoring.conftest import Printed, promtool
from vgpuctl.agent.metrics import FAMILIES
from vgpuctl.agent.metrics_text import PREFIX
from vgpuctl.config.yaml_reader import load_document

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/monitoring.md"
BEGIN, END = "<!-- alerts: begin -->\n", "<!-- alerts: end -->\n"
ALERT_FIELDS = {"summary", "command"}


@pytest.fixture(scope="module")
def rules(printed: Printed) -> list[Mapping[str, Any]]:
    groups: Any = load_document(printed("rules"), "rules").value
    return [rule for group in groups["groups"] for rule in group["rules"]]


def labelled(series: Series) -> list[dict[str, str]]:
    """Return series with job and instance, as promtool's unit tests have them."""
    lines = []
    for text, values in series.items():
        name, _, labels = text.rstrip("}").partition("{")
        labels = ",".join(
            filter(None, (labels, 'job="vgpuctl"', "" if "instance=" in labels else f'instance="{INSTANCE}"'))
        )
        lines.append({"series": f"{name}{{{labels}}}", "values": values})
    return lines


def unit_test(name: str, alert: Alert, series: Series, at: int, *, fires: bool) -> dict[str, Any]:
    labels = {**alert.labels, "job": "vgpuctl", "severity": alert.severity, "app": "vgpuctl"}
    if alert.has_instance:
        labels["instance"] = INSTANCE
    expected = [{"exp_labels": labels, "exp_annotations": {"summary": alert.summary, "command": alert.command}}]
    question = {"eval_time": f"{at}m", "alertname": name, "exp_alerts": expected if fires else []}
    return {"interval": f"{alert.minutes}m", "input_series": labelled(series), "alert_rule_test": [question]}


def cases_of(name: str) -> list[dict[str, Any]]:
    alert = ALERTS[name]
    tests = [unit_test(name, alert, alert.fires, alert.at, fires=True)]
    tests += [unit_test(name, alert, series, alert.at, fires=False) for series in alert.silent]
    if alert.early is not None:
        tests.append(unit_test(name, alert, alert.fires, alert.early, fires=False))
    return tests


def rules_of(name: str, rules: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rule of an alert, and those that record what it uses: promtool evaluates each at each minute."""
    chosen = [rule for rule in rules if rule.get("alert") == name]
    for rule in chosen:
        chosen += [r for r in rules if "record" in r and r not in chosen and r["record"] in json.dumps(rule)]
    return chosen[::-1]


def run_tests(directory: Path, rules_file: Path, tests: list[dict[str, Any]]) -> None:
    path = directory / "tests.yml"
    head = {"rule_files": [str(rules_file)], "evaluation_interval": "1m"}
    path.write_text(json.dumps({**head, "tests": tests}))
    promtool("test", "rules", path)


def test_promtool_accepts_the_rules(rules_file: Path) -> None:
    promtool("check", "rules", rules_file)


def test_every_alert_has_a_case_and_is_silent_in_one(rules: list[Mapping[str, Any]]) -> None:
    assert {rule["alert"] for rule in rules if "alert" in rule} == ALERTS.keys()
    assert all(alert.silent for alert in ALERTS.values())
    assert all(ALERTS[rule["alert"]].early is not None for rule in rules if "alert" in rule and "for" in rule)


def test_every_alert_has_a_command_and_labels(rules: list[Mapping[str, Any]]) -> None:
    for rule in rules:
        if "alert" in rule:
            assert rule["annotations"].keys() == ALERT_FIELDS, rule["alert"]
            assert rule["labels"]["app"] == "vgpuctl"
            assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_each_alert_fires_and_stays_silent(tmp_path: Path, rules: list[Mapping[str, Any]]) -> None:
    """Seven days are only looked at every hour: promtool refuses them every minute."""
    for name, alert in ALERTS.items():
        group = {"name": name, "rules": rules_of(name, rules)}
        (tmp_path / f"{name}.rules").write_text(json.dumps({"groups": [group]}))
        head = {"rule_files": [f"{name}.rules"], "evaluation_interval": f"{alert.minutes}m"}
        (tmp_path / f"{name}.tests").write_text(json.dumps({**head, "tests": cases_of(name)}))
    promtool("test", "rules", *(f"{name}.tests" for name in ALERTS), cwd=tmp_path)


def test_a_host_without_any_gpu_lacks_all_that_it_should_have(tmp_path: Path, rules_file: Path) -> None:
    alert = ALERTS["GpuMissing"]._replace(summary=ALERTS["GpuMissing"].summary.replace(": 1", ": 2"))
    run_tests(tmp_path, rules_file, [unit_test("GpuMissing", alert, {"vgpuctl_gpus_expected": "2x9"}, 6, fires=True)])


def test_a_name_of_a_vm_cannot_become_a_command(tmp_path: Path, rules_file: Path) -> None:
    """A VM that another program defined can have almost any name, and an admin pastes the command."""
    evil = "a;reboot `x`"
    vm = {"gpu": GPU, "vm": evil}
    alert = ALERTS["VmCrashed"]._replace(
        labels=vm,
        summary=ALERTS["VmCrashed"].summary.replace("vdi-001", evil),
        command=ALERTS["VmCrashed"].command.replace("vdi-001", "a_reboot__x_"),
    )
    series = {key.replace("vdi-001", evil): value for key, value in ALERTS["VmCrashed"].fires.items()}
    run_tests(tmp_path, rules_file, [unit_test("VmCrashed", alert, series, 9, fires=True)])


def test_recording_rules(tmp_path: Path, rules_file: Path, rules: list[Mapping[str, Any]]) -> None:
    v = 'job="vgpuctl",instance="gpu-01:19935",vm="vdi-001",vgpu="0"'
    g = f'job="vgpuctl",instance="gpu-01:19935",gpu="{GPU}"'
    vdi = '{vm="vdi-001",vgpu="0"}'
    series = INFO | licences(4, 1) | {
        f"vgpuctl_vgpu_memory_used_bytes{vdi}": "100 900 200x130",
        f"vgpuctl_vgpu_memory_size_bytes{vdi}": "1000x130",
        f"vgpuctl_vgpu_memory_reserved_bytes{vdi}": "200x130",
        'vgpuctl_vgpu_engine_utilization_ratio{vm="vdi-001",vgpu="0",engine="sm"}': "0.2x130",
        f"vgpuctl_vgpu_time_share_ratio{vdi}": "0.25x130",
        'vgpuctl_profile_free{profile="A40-8Q",instance="gpu-01:19935"}': "2x130",
        'vgpuctl_profile_free{profile="A40-8Q",instance="gpu-02:19935"}': "3x130",
    }  # fmt: skip
    expected = {
        f"vgpu:vgpuctl_memory_used_bytes:max1h{{{v}}}": 900.0,
        f"instance_gpu:vgpuctl_vms:count{{{g}}}": 1.0,
        f"instance_gpu:vgpuctl_memory_given_bytes:sum{{{g}}}": 1000.0,
        f"vgpu:vgpuctl_memory_used:ratio{{{v}}}": 0.25,
        f"vgpu:vgpuctl_sm_of_share:ratio{{{v}}}": 0.8,
        'job_profile:vgpuctl_profile_free:sum{job="vgpuctl",profile="A40-8Q"}': 5.0,
        'job:vgpuctl_vgpus_unlicensed:count{job="vgpuctl"}': 1.0,
        'job:vgpuctl_vgpus_unlicensed:ratio{job="vgpuctl"}': 0.2,
    }
    assert {name.partition("{")[0] for name in expected} == {rule["record"] for rule in rules if "record" in rule}
    questions = [
        {"expr": name.partition("{")[0], "eval_time": "60m", "exp_samples": [{"labels": name, "value": value}]}
        for name, value in expected.items()
    ]
    run_tests(
        tmp_path, rules_file, [{"interval": "1m", "input_series": labelled(series), "promql_expr_test": questions}]
    )


def test_rules_use_only_metrics_of_the_agent(rules: list[Mapping[str, Any]]) -> None:
    names = {f"{PREFIX}{family.name}" for family in FAMILIES}
    used = {name for rule in rules for name in re.findall(r"(?<![:\w])vgpuctl_\w+", rule["expr"])}
    assert used
    assert used <= names


def test_the_page_lists_every_alert(rules: list[Mapping[str, Any]]) -> None:
    alerts = [rule for rule in rules if "alert" in rule]
    cells = [
        (r["alert"], r["labels"]["severity"], r.get("for", ""), plain(r["annotations"]["summary"])) for r in alerts
    ]
    rows = [f"| {' | '.join(row)} |\n" for row in cells]
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    wanted = f"{before}{BEGIN}| alert | severity | after | says |\n|---|---|---|---|\n{''.join(rows)}{END}{after}"
    if os.environ.get("VGPUCTL_REGENERATE"):
        PAGE.write_text(wanted, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == wanted, "run the tests with VGPUCTL_REGENERATE=1"


def plain(summary: str) -> str:
    """Return an alert's text with words in the place of Prometheus' expressions: GPU of HOST."""
    text = re.sub(r" of \{\{ \$labels\.instance \}\} \(VMs on it: .*?\{\{ end \}\}\)", "", summary)
    text = text.replace("{{ $labels.instance }}", "HOST")
    text = text.replace("GPU {{ $labels.gpu }}", "GPU").replace("VM {{ $labels.vm }}", "VM")
    text = re.sub(r"\{\{ \$value[^}]*\}\}", "N", text)
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: match[1].upper(), text)


def test_the_query_that_joins_dcgm_exporter(tmp_path: Path, rules_file: Path) -> None:
    """docs/howto/monitoring.md has it; the labels of both are those of the exporters."""
    (query,) = re.findall(r"^DCGM_FI.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    uuid = "GPU-b7c8db64-1c75-5094-8935-ccf5fe9ba92d"
    dcgm = f'DCGM_FI_DEV_SM_CLOCK{{gpu="0",UUID="{uuid}",pci_bus_id="00000000:3B:00.0",job="dcgm"}}'
    info = f'vgpuctl_gpu_info{{gpu="0000:3b:00.0",gpu_uuid="{uuid}",model="A100",mode="vgpu",job="vgpuctl"}}'
    other = 'vgpuctl_gpu_info{gpu="0000:5e:00.0",gpu_uuid="GPU-other",model="T4",mode="vgpu",job="vgpuctl"}'
    series = [{"series": dcgm, "values": "1410"}, *({"series": text, "values": "1"} for text in (info, other))]
    sample = {
        "labels": f'{{UUID="{uuid}", gpu="0", job="dcgm", mode="vgpu", model="A100", pci_bus_id="00000000:3B:00.0"}}'
    }
    question = {"expr": query, "eval_time": "0m", "exp_samples": [{**sample, "value": 1410}]}
    run_tests(tmp_path, rules_file, [{"interval": "1m", "input_series": series, "promql_expr_test": [question]}])

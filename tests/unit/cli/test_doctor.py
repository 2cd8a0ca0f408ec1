# SPDX-License-Identifier: Apache-2.0
"""The doctor command, and what it adds to the failures of other commands."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from tests.unit.cli.conftest import Ran, child, child_environment
from vgpuctl.cli import failures, run, schemas
from vgpuctl.cli.entry import SignalGuard
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.run import CommandOutput
from vgpuctl.doctor import CHECKS
from vgpuctl.errors import HostCannot, InvalidInput, NoCapacity

Run = Callable[..., Ran]
NO_IOMMU = "version: 1\niommu: false\ngpus:\n  - {model: A100}\n"


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """The name of a host without an IOMMU."""
    path = tmp_path / "bare.yaml"
    path.write_text(NO_IOMMU)
    return f"sim:{path}"


def test_a_host_in_order(vgpuctl: Run) -> None:
    ran = vgpuctl("--host", "sim:a100-40", "doctor")
    assert ran.status == 0
    assert [line.split()[1] for line in ran.out.splitlines()[1 : len(CHECKS) + 1]] == [c.id for c in CHECKS]
    assert "fix: vgpuctl install-host" in ran.out


def test_a_failed_check_is_status_6_with_the_result(vgpuctl: Run, bare: str) -> None:
    ran = vgpuctl("--host", bare, "doctor", "iommu")
    assert ran.status == 6
    assert "fail     iommu" in ran.out
    assert "  fix: enable VT-d" in ran.out
    reported = vgpuctl("--host", bare, "doctor", "iommu", "--json")
    jsonschema.validate(reported.document, schemas.document_schema("doctor"))
    assert (reported.status, reported.document["ok"], reported.document["data"]["verdict"]) == (6, True, "fail")


def test_doctor_fix_refuses_a_captured_tree(vgpuctl: Run, tmp_path: Path) -> None:
    root = os.fspath(tmp_path)
    ran = vgpuctl("--root", root, "doctor", "--json")
    assert ran.document["data"]["checks"][0]["verdict"] == "unknown"
    assert vgpuctl("--root", root, "doctor", "--fix", "--json").document["error"]["code"] == "invalid-input"


def test_what_was_mistyped(vgpuctl: Run) -> None:
    ran = vgpuctl("--host", "sim:a100-40", "doctor", "iomu", "--json")
    assert (ran.status, ran.document["error"]["code"]) == (2, "not-found")
    ran = vgpuctl("--host", "sim:a100-40", "doctor", "--dry-run", "--json")
    assert (ran.status, ran.document["error"]["code"]) == (2, "usage")


def test_fix_on_a_host_in_order_and_its_dry_run(vgpuctl: Run) -> None:
    ran = vgpuctl("--host", "sim:a100-40", "doctor", "--fix", "--dry-run")
    assert (ran.status, "nothing to do" in ran.out) == (0, True)
    ran = vgpuctl("--host", "sim:a100-40", "doctor", "--fix", "--json")
    jsonschema.validate(ran.document, schemas.document_schema("doctor"))
    assert (ran.document["changed"], len(ran.document["data"]["notes"])) == (False, 1)


def test_a_failed_command_has_doctor_results(vgpuctl: Run, bare: str) -> None:
    ran = vgpuctl("--host", bare, "create-vm", "--profile", "A100-4C")
    assert ran.status == 6
    assert "\n  doctor: iommu: /sys/kernel/iommu_groups is empty\n" in ran.err
    reported = vgpuctl("--host", bare, "create-vm", "--profile", "A100-4C", "--json").document
    jsonschema.validate(reported, schemas.document_schema("create-vm"))
    result = reported["error"]["facts"]["doctor"]
    assert [(row["id"], row["verdict"]) for row in result] == [("iommu", "fail")]
    assert result[0]["fix"]


def test_the_hosts_ids_complete(vgpuctl: Run) -> None:
    line = "vgpuctl doctor iommu"
    ran = child(env=child_environment(_VGPUCTL_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="0"))
    assert [answer.partition(",")[2] for answer in ran.stdout.split()] == ["iommu", "iommu-groups"]


@pytest.mark.parametrize(
    ("exc", "settings"),
    [
        (HostCannot("no", check="iommu"), Settings(host="sim:no-such-host")),
        (HostCannot("no", check="iommu"), Settings(host="sim:/")),
        (InvalidInput("no", check="iommu"), Settings(host="sim:a100-40")),
        (KeyboardInterrupt(), Settings(host="sim:a100-40")),
        (NoCapacity("full"), Settings(host="sim:a100-40")),
    ],
)
def test_a_failed_or_empty_check_adds_nothing(exc: BaseException, settings: Settings) -> None:
    failures.add_findings(exc, settings)
    assert failures.DOCTOR_FACT not in getattr(exc, "facts", {})


class Signalled(HostCannot):
    """A failure that raises a signal the first time its facts are read."""

    @property
    def facts(self) -> dict[str, object]:  # type: ignore[override]
        if not self.met:
            self.met = True
            os.kill(os.getpid(), signal.SIGINT)
        return self.seen

    @facts.setter
    def facts(self, value: dict[str, object]) -> None:
        self.seen, self.met = value, False


def test_a_signal_while_the_doctor_runs_still_reports_the_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def work(guard: SignalGuard) -> CommandOutput:
        raise Signalled("no IOMMU", check="iommu")

    assert run.perform(Settings(host="sim:a100-40", json=True), "create-vm", work) == 6
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["message"], error["facts"]) == ("no IOMMU", {"check": "iommu"})


def test_people_see_the_worst_two() -> None:
    rows = [
        {"id": name, "verdict": verdict, "evidence": [f"{name} seen"], "fix": "fix it"}
        for name, verdict in (("a", "warn"), ("b", "fail"), ("c", "warn"))
    ]
    assert list(failures.finding_lines(rows, "it failed")) == [
        "doctor: b: b seen",
        "doctor: a: a seen",
        "doctor: and 1 more: vgpuctl doctor b a c",
    ]
    assert list(failures.finding_lines("no list", "")) == []


def test_text_has_the_hint_if_the_message_has_the_value() -> None:
    row = {"id": "a", "verdict": "fail", "evidence": ["process 7 writes /sys/x (GPU y)"], "fix": "stop it"}
    assert list(failures.finding_lines([row], "process 7 waits in /sys/x")) == ["doctor: a: stop it"]
    assert list(failures.finding_lines([row], "the device is busy")) == ["doctor: a: process 7 writes /sys/x (GPU y)"]

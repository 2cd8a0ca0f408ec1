# SPDX-License-Identifier: Apache-2.0
"""The doctor command, what it adds to the failures of other commands, and its fixes, which run as pasted."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import change_hardware
from tests.unit.cli.conftest import Run
from vgpuctl.cli import failures, run
from vgpuctl.cli.entry import SignalGuard
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.run import CommandOutput
from vgpuctl.doctor import CHECKS
from vgpuctl.errors import HostCannot, InvalidInput, NoCapacity
from vgpuctl.sim.host import SCENARIOS


@pytest.fixture
def bare(scenario: Callable[[str], Run]) -> Run:
    """Run a line on a host without an IOMMU."""
    return scenario("version: 1\niommu: false\ngpus:\n  - {model: A100}\n")


def test_a_host_in_order(sim: Run) -> None:
    ran = sim("doctor")
    assert ran.status == 0
    assert [line.split()[1] for line in ran.out.splitlines()[1 : len(CHECKS) + 1]] == [c.id for c in CHECKS]
    assert "fix: vgpuctl install-host" in ran.out


def test_a_failed_check_is_status_6_with_the_result(bare: Run) -> None:
    ran = bare("doctor iommu")
    assert ran.status == 6
    assert "fail     iommu" in ran.out
    assert "  fix: enable VT-d" in ran.out
    reported = bare("doctor iommu --json")
    assert (reported.status, reported.document["ok"], reported.document["data"]["verdict"]) == (6, True, "fail")


def test_doctor_fix_refuses_a_captured_tree(vgpuctl: Run, tmp_path: Path) -> None:
    root = os.fspath(tmp_path)
    ran = vgpuctl("--root", root, "doctor", "--json")
    assert ran.document["data"]["checks"][0]["verdict"] == "unknown"
    assert vgpuctl("--root", root, "doctor", "--fix", "--json").document["error"]["code"] == "invalid-input"


def test_what_was_mistyped(sim: Run) -> None:
    for line, code in (("doctor iomu --json", "not-found"), ("doctor --dry-run --json", "usage")):
        ran = sim(line)
        assert (ran.status, ran.document["error"]["code"]) == (2, code)


def test_fix_on_a_host_in_order_and_its_dry_run(sim: Run) -> None:
    ran = sim("doctor --fix --dry-run")
    assert (ran.status, "nothing to do" in ran.out) == (0, True)
    ran = sim("doctor --fix --json")
    assert (ran.document["changed"], len(ran.document["data"]["notes"])) == (False, 1)


def test_a_failed_command_has_doctor_results(bare: Run) -> None:
    ran = bare("create-vm --profile A100-4C")
    assert ran.status == 6
    assert "\n  doctor: iommu: /sys/kernel/iommu_groups is empty\n" in ran.err
    result = bare("create-vm --profile A100-4C --json").document["error"]["facts"]["doctor"]
    assert [(row["id"], row["verdict"]) for row in result] == [("iommu", "fail")]
    assert result[0]["fix"]


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


COMMAND = re.compile(r"vgpuctl [a-z][^;,()]*")
INVALID_INPUT = 2

HEAD = "version: 1\nnetworks: [{name: default}]\nstorage: {pools: [{name: default}]}\n"
HOSTS = {
    "VFs off": HEAD + "gpus: [{model: A100, vfs: {enabled: 0}}]\n",
    "no IOMMU": HEAD + "iommu: false\ngpus: [{model: A100}]\n",
    "no driver": HEAD + "gpus: [{model: A100, driver: nouveau}]\n",
    "vfio-pci": HEAD + "gpus: [{model: A40}, {model: A40, driver: vfio-pci}]\n",
    "MIG without instances": HEAD + "gpus: [{model: H100, mig: []}]\n",
}


def run_fixes(vgpuctl: Run, host: str) -> list[str]:
    """Run each command that doctor shows for a host; return the commands."""
    shown = vgpuctl("--host", host, "doctor").out
    commands = [c.strip() for line in shown.splitlines() if "fix: " in line for c in COMMAND.findall(line)]
    for command in commands:
        ran = vgpuctl("--host", host, "--yes", *shlex.split(command)[1:])
        assert ran.status != INVALID_INPUT, f"{command}: {ran.err}"
    return commands


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_fixes_on_the_built_in_hosts(vgpuctl: Run, scenario: str) -> None:
    has_vgpus = scenario not in ("empty", "hgx-h100", "h100-pcie-x8", "mi300x", "b60")
    assert ("vgpuctl install-host" in run_fixes(vgpuctl, f"sim:{scenario}")) is has_vgpus


@pytest.mark.parametrize("problem", HOSTS)
def test_the_fixes_on_a_host_with_a_problem(vgpuctl: Run, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(HOSTS[problem])
    assert run_fixes(vgpuctl, f"sim:{path}")


@pytest.mark.parametrize("boots", [0, 1])
@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-4Q"), ("h100-mig", "H100-1-10C")])
def test_the_fixes_of_vms(vgpuctl: Run, scenario: str, profile: str, boots: int) -> None:
    host = f"sim:{scenario}"
    for name in ("one", "two"):
        assert vgpuctl("--host", host, "create-vm", name, "--profile", profile).status == 0
    for _ in range(boots):
        vgpuctl("--host", host, "sim", "reboot")
    assert run_fixes(vgpuctl, host)


def test_the_fixes_after_the_cards_moved(vgpuctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "moved.yaml"
    path.write_text(HEAD + "gpus: [{model: A100, address: '0000:3b:00.0'}]\n")
    host = f"sim:{path}"
    for name, gpu in (("free", ()), ("bound", ("--gpu", "0000:3b:00.0"))):
        assert vgpuctl("--host", host, "create-vm", name, "--profile", "A100-4C", *gpu).status == 0
    change_hardware(path, HEAD + "gpus: [{model: A100, address: '0000:3c:00.0'}]\n")
    assert "vgpuctl set-vm bound --profile A100-4C --gpu 0000:3c:00.0" in run_fixes(vgpuctl, host)
    assert vgpuctl("--host", host, "start-vm", "free", "bound").status == 0

# SPDX-License-Identifier: Apache-2.0
"""What is gathered for the doctor's checks on simulated hosts with NVIDIA GPUs, and what is not even asked."""

from __future__ import annotations

import pytest

from tests.faults import counted
from tests.worlds import open_host
from vgpuctl.doctor.catalogue import CHECKS, chosen
from vgpuctl.doctor.check import Verdict
from vgpuctl.engine.diagnose import diagnose, explain_failure, judged
from vgpuctl.engine.look import look_at
from vgpuctl.value import replace

H100, OTHER = "0000:3b:00.0", "0000:3f:00.0"
HELD = "version: 1\ntitle: t\ngpus: [{model: A100, vfs: {enabled: 0}, held_by: nv-hostengine}]\n"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
RM_CLIENT = "error: vmiop_env_log: Failed to initialize RM client: 0x26"
FAILED = "nvidia-vgpud.service: Failed with result 'exit-code'."
NVIDIAS = (
    "driver-version",
    "vgpu-services",
    "driver-holders",
    "gpu-firmware",
    "ecc",
    "guest-drivers",
    "driver-messages",
)
COSTLY = ("kernel_log.lines", "kernel_log.service_lines", "processes.holders", "nvml.ecc", "nvml.guests")


class Log:
    """A log with these lines."""

    def __init__(self, kernel=(), **services):
        self._kernel, self._services = kernel, services

    def lines(self, *containing):
        return tuple(line for line in self._kernel if any(text in line for text in containing))

    def service_lines(self, service):
        return self._services.get(service.replace("-", "_"), ())


def found(world, *ids):
    return {row["id"]: row for row in diagnose(world, ids)["checks"]}


@pytest.mark.parametrize("scenario", ["a100-40", "h100-mig", "rtx-pro-6000", "t4"])
def test_nvidias_driver_is_in_order_on_the_built_in_hosts(tmp_path, scenario):
    seen = found(open_host(tmp_path, scenario).world, *NVIDIAS, "mig-mode", "mig-instances")
    assert {row["verdict"] for row in seen.values()} <= {"ok", "not-applicable"}, seen
    assert all(seen[name]["verdict"] == "ok" for name in NVIDIAS)


def test_what_costs_is_asked_for_by_no_other_check_and_on_no_other_host(tmp_path):
    world = open_host(tmp_path).world
    others = chosen(tuple(c.id for c in CHECKS if not (c.logs or c.holders or c.ecc or c.guests)))
    calls = counted(world, lambda w: look_at(w, others))
    assert not [call for call in calls if call.startswith(COSTLY)]
    asked = counted(world, diagnose)
    assert [name for name in COSTLY if not any(call.startswith(name) for call in asked)] == []
    amd = open_host(tmp_path / "amd", text="version: 1\ntitle: t\ngpus: [{model: V710}]\n").world
    assert not [call for call in counted(amd, diagnose) if call.startswith(COSTLY)]


def test_who_holds_the_driver_is_named_where_vfs_are_off(tmp_path):
    row = found(open_host(tmp_path, text=HELD).world, "driver-holders")["driver-holders"]
    assert row["verdict"] == "warn"
    assert any("nv-hostengine (pid " in line for line in row["evidence"])


def test_mig_that_waits_for_a_reset_is_found_with_who_it_waits_for(tmp_path):
    host = open_host(tmp_path, text=HELD)
    host.world.nvml.set_mig(H100, enabled=True)
    seen = found(host.world, "mig-mode", "driver-holders")
    assert {row["verdict"] for row in seen.values()} == {"warn"}
    assert any("MIG waits for a reset to go on" in line for line in seen["driver-holders"]["evidence"])
    explained = explain_failure(host.world, "busy", None)
    assert {"mig-mode", "driver-holders"} <= {row["id"] for row in explained}


def test_mig_without_instances_is_found_and_explains_that_there_is_no_room(tmp_path):
    host = open_host(tmp_path, "h100-mig")
    for instance in host.world.nvml.gpu(H100).mig.instances:
        host.world.nvml.destroy_instance(H100, instance.gi_id)
    assert found(host.world, "mig-instances")["mig-instances"]["verdict"] == "fail"
    assert "mig-instances" in {row["id"] for row in explain_failure(host.world, "no-capacity", None)}


def test_the_logs_lines_are_told_and_explain_what_libvirt_refused(tmp_path):
    world = replace(
        open_host(tmp_path).world, kernel_log=Log((XID,), nvidia_vgpud=(FAILED,), nvidia_vgpu_mgr=(RM_CLIENT,))
    )
    seen = found(world, "driver-messages", "vgpu-services")
    assert {row["verdict"] for row in seen.values()} == {"fail"}
    assert len(seen["driver-messages"]["evidence"]) == 2
    for code, lacking in (("host-cannot", "partition"), ("host-cannot", "scheduler"), ("device-failed", None)):
        assert "driver-messages" in {row["id"] for row in explain_failure(world, code, lacking)}
    assert {"driver-messages", "vgpu-services"} <= {r["id"] for r in explain_failure(world, "libvirt-failed", None)}


def test_a_host_whose_logs_or_processes_cannot_be_seen_is_unknown_there(tmp_path):
    class Blind:
        def __getattr__(self, name):
            raise PermissionError(13, "Permission denied", "/proc/1/fd")

    world = replace(open_host(tmp_path).world, kernel_log=None)
    assert found(world, "driver-messages")["driver-messages"]["verdict"] == "unknown"
    look = look_at(replace(world, processes=Blind()), chosen(("driver-holders",)))
    (finding,) = judged(look, chosen(("driver-holders",)))
    assert (finding.verdict, finding.evidence) == (Verdict.UNKNOWN, ("/proc/1/fd: Permission denied",))

# SPDX-License-Identifier: Apache-2.0
"""What the doctor's checks read on simulated hosts with NVIDIA GPUs, and what they do not even query."""

from __future__ import annotations

import pytest

from tests.faults import counted
from tests.hosts import open_sim_host
from vgpuctl.doctor.catalogue import CHECKS, select_checks
from vgpuctl.doctor.check import Verdict
from vgpuctl.operations.check_context import gather_check_context
from vgpuctl.operations.diagnose import diagnose, explain_failure, run_checks
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
COSTLY = ("system_log.kernel_lines", "system_log.service_lines", "processes.find_holders", "nvml.ecc", "nvml.guests")


class Log:
    """Return a log with these lines."""

    def __init__(self, kernel=(), **services):
        self._kernel, self._services = kernel, services

    def kernel_lines(self, *containing):
        return tuple(line for line in self._kernel if any(text in line for text in containing))

    def service_lines(self, service):
        return self._services.get(service.replace("-", "_"), ())


def checks_by_id(ports, *ids):
    return {row.id: row for row in diagnose(ports, ids).checks}


@pytest.mark.parametrize("scenario", ["a100-40", "h100-mig", "rtx-pro-6000", "t4"])
def test_nvidias_driver_is_in_order_on_the_built_in_hosts(tmp_path, scenario):
    seen = checks_by_id(open_sim_host(tmp_path, scenario).ports, *NVIDIAS, "mig-mode", "mig-instances")
    assert {row.verdict for row in seen.values()} <= {"ok", "not-applicable"}, seen
    assert all(seen[name].verdict == "ok" for name in NVIDIAS)


def test_expensive_reads_happen_only_for_checks_that_need_them(tmp_path):
    ports = open_sim_host(tmp_path).ports
    others = select_checks(
        tuple(c.id for c in CHECKS if not (c.needs_logs or c.needs_holders or c.needs_ecc or c.needs_guests))
    )
    calls = counted(ports, lambda w: gather_check_context(w, others))
    assert not [call for call in calls if call.startswith(COSTLY)]
    asked = counted(ports, diagnose)
    assert [name for name in COSTLY if not any(call.startswith(name) for call in asked)] == []
    amd = open_sim_host(tmp_path / "amd", text="version: 1\ntitle: t\ngpus: [{model: V710}]\n").ports
    assert not [call for call in counted(amd, diagnose) if call.startswith(COSTLY)]


def test_who_holds_the_driver_is_named_where_vfs_are_off(tmp_path):
    row = checks_by_id(open_sim_host(tmp_path, text=HELD).ports, "driver-holders")["driver-holders"]
    assert row.verdict == "warn"
    assert any("nv-hostengine (pid " in line for line in row.evidence)


def test_mig_pending_a_reset_is_found_with_its_holders(tmp_path):
    host = open_sim_host(tmp_path, text=HELD)
    host.ports.nvml.set_mig(H100, enabled=True)
    seen = checks_by_id(host.ports, "mig-mode", "driver-holders")
    assert {row.verdict for row in seen.values()} == {"warn"}
    assert any("MIG waits for a reset to turn on" in line for line in seen["driver-holders"].evidence)
    explained = explain_failure(host.ports, "busy", None)
    assert {"mig-mode", "driver-holders"} <= {row.id for row in explained}


def test_mig_without_instances_is_found_and_explains_that_there_is_no_room(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    for instance in host.ports.nvml.gpu(H100).mig.instances:
        host.ports.nvml.destroy_gpu_instance(H100, instance.gi_id)
    assert checks_by_id(host.ports, "mig-instances")["mig-instances"].verdict == "fail"
    assert "mig-instances" in {row.id for row in explain_failure(host.ports, "no-capacity", None)}


def test_log_lines_are_shown_and_explain_libvirt_refusals(tmp_path):
    ports = replace(
        open_sim_host(tmp_path).ports,
        system_log=Log((XID,), nvidia_vgpud=(FAILED,), nvidia_vgpu_mgr=(RM_CLIENT,)),
    )
    seen = checks_by_id(ports, "driver-messages", "vgpu-services")
    assert {row.verdict for row in seen.values()} == {"fail"}
    assert len(seen["driver-messages"].evidence) == 2
    for code, lacking in (("host-cannot", "partition"), ("host-cannot", "scheduler"), ("device-failed", None)):
        assert "driver-messages" in {row.id for row in explain_failure(ports, code, lacking)}
    assert {"driver-messages", "vgpu-services"} <= {r.id for r in explain_failure(ports, "libvirt-failed", None)}


def test_a_host_whose_logs_or_processes_cannot_be_seen_is_unknown_there(tmp_path):
    class Blind:
        def __getattr__(self, name):
            raise PermissionError(13, "Permission denied", "/proc/1/fd")

    ports = replace(open_sim_host(tmp_path).ports, system_log=None)
    assert checks_by_id(ports, "driver-messages")["driver-messages"].verdict == "unknown"
    observed = gather_check_context(replace(ports, processes=Blind()), select_checks(("driver-holders",)))
    (finding,) = run_checks(observed, select_checks(("driver-holders",)))
    assert (finding.verdict, finding.evidence) == (Verdict.UNKNOWN, ("/proc/1/fd: Permission denied",))

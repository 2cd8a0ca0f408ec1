# SPDX-License-Identifier: Apache-2.0
"""The doctor on whole simulated hosts: what it reads, what it leaves alone and does not even query, what it fixes."""

from __future__ import annotations

import pytest

from tests.faults import counted, failing
from tests.hosts import context, create, open_sim_host, picture, request, yes
from tests.meanwhile import unchanged, with_calls
from tests.vgpus import make, spec_of
from vgpuctl.doctor import CHECKS, select_checks
from vgpuctl.doctor.check import Check, CheckContext, Finding, Verdict
from vgpuctl.errors import InvalidInput, NeedsConfirmation, NotFound
from vgpuctl.operations.diagnose import (
    NOTHING_TO_FIX,
    diagnose,
    explain_failure,
    fix_problems,
    gather_check_context,
    run_checks,
)
from vgpuctl.sim import SCENARIOS
from vgpuctl.value import replace

NO_IOMMU = """version: 1
iommu: false
libvirt: {version: "9.0.0", kvm: false, uefi: false}
gpus:
  - {model: A100}
"""


def verdicts(data) -> dict[str, str]:
    return {row.id: row.verdict for row in data.checks}


def fix(ports, *ids: str, dry_run: bool = False, confirm=yes):
    return fix_problems(ports, context(dry_run=dry_run, confirm=confirm, wait_seconds=1), ids)


def leaked(tmp_path):
    host = open_sim_host(tmp_path)
    uuid = create(host.ports, request("A100-4C"), start=False).data.uuid
    host.ports.hypervisor.undefine(uuid)
    return host.again()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_built_in_host_is_examined_and_left_as_it_was(host):
    with unchanged(host):
        data = diagnose(host.ports)
    assert [row.id for row in data.checks] == [check.id for check in CHECKS]
    assert all(row.evidence for row in data.checks)
    assert all(row.fix for row in data.checks if row.verdict in ("fail", "warn"))


def test_a_host_in_order_fails_nothing_and_has_nothing_to_fix(ports):
    result = verdicts(diagnose(ports))
    assert "fail" not in result.values()
    assert result["iommu"] == result["libvirt"] == result["functions"] == "ok"
    done = fix(ports)
    assert (done.changed, done.steps, done.notes) == (False, (), (NOTHING_TO_FIX,))


def test_a_host_without_what_vgpus_need_fails_there(tmp_path):
    data = diagnose(open_sim_host(tmp_path, text=NO_IOMMU).ports)
    failed = {name for name, verdict in verdicts(data).items() if verdict == "fail"}
    assert (data.verdict, failed) == ("fail", {"iommu", "kvm", "libvirt", "functions"})
    assert verdicts(data)["uefi"] == "warn"


def test_only_the_named_checks_are_made_and_only_their_files_read(host):
    data = diagnose(host.ports, ("machine-id",))
    assert verdicts(data) == {"machine-id": "ok"}
    observed = gather_check_context(host.ports, select_checks(("machine-id",)))
    assert set(observed.files) == {"/etc/machine-id"}
    assert not observed.folders
    with pytest.raises(NotFound):
        diagnose(host.ports, ("machine",))


def test_a_failed_read_stops_no_check(host):
    for at in range(len(counted(host.ports, diagnose))):
        data = diagnose(failing(host.ports, at, for_good=True))
        assert len(data.checks) == len(CHECKS)
        assert not [row for row in data.checks if "stumbled" in " ".join(row.evidence)]


def test_claims_that_may_not_be_read_are_unknown(host):
    def closed(carriers=None):
        raise PermissionError(13, "Permission denied", "/run/vgpuctl/claims")

    calls = dict.fromkeys(("read", "stuck_writes", "drained_vms", "vms_in_progress"), closed)
    result = verdicts(diagnose(with_calls(host.ports, "claims", **calls)))
    assert result["claims"] == result["leftovers"] == result["stuck-writes"] == "unknown"
    assert result["iommu"] == "ok"


def test_a_check_that_stumbles_is_unknown_and_names_itself_a_bug():
    def stumble(observed: CheckContext) -> Finding:
        raise ZeroDivisionError("by nothing")

    result = run_checks(CheckContext(), [Check(id="x", title="x", looks_at="x", run=stumble)])
    assert result[0].verdict is Verdict.UNKNOWN
    assert "ZeroDivisionError" in result[0].evidence[0]


def test_a_leak_is_found_shown_and_fixed(tmp_path):
    host = leaked(tmp_path)
    assert verdicts(diagnose(host.ports))["leftovers"] == "warn"
    shown = fix(host.ports, dry_run=True)
    assert (shown.changed, shown.dry_run, bool(shown.steps)) == (True, True, True)
    assert picture(host).types, "a dry run changes nothing"
    done = fix(host.ports)
    assert (done.changed, verdicts(done.data)["leftovers"]) == (True, "ok")
    assert picture(host).types == picture(host).claims == {}


def test_nothing_is_fixed_without_confirmation_or_selection(tmp_path):
    host = leaked(tmp_path)

    def no(question: str, details: tuple[str, ...]) -> None:
        assert details, "the steps are shown before the question"
        raise NeedsConfirmation("no")

    with unchanged(host):
        with pytest.raises(NeedsConfirmation):
            fix(host.ports, confirm=no)
        other = fix(host.ports, "iommu", confirm=no)
    assert (other.changed, other.notes) == (False, (NOTHING_TO_FIX,))


def test_a_failure_is_explained_by_what_is_wrong_alone(tmp_path):
    ports = open_sim_host(tmp_path, text=NO_IOMMU).ports
    result = explain_failure(ports, "host-cannot", "iommu")
    assert [(row.id, row.verdict) for row in result] == [("iommu", "fail")]
    assert result[0].evidence
    assert result[0].fix
    assert explain_failure(open_sim_host(tmp_path / "b").ports, "host-cannot", "iommu") == []


def test_domains_are_not_listed_to_explain_what_libvirt_refused(ports):
    calls = counted(ports, lambda w: explain_failure(w, "libvirt-failed", None))
    assert not [call for call in calls if "domain" in call]
    assert [c for c in counted(ports, lambda w: explain_failure(w, "no-capacity", None)) if "domains" in c]


def test_a_run_directory_that_others_can_write_is_made_private(host):
    host.sim.run_dir.chmod(0o777)
    assert verdicts(diagnose(host.ports))["run-directory"] == "fail"
    assert fix(host.ports, dry_run=True).steps == ("change the mode of /run/vgpuctl from 0777 to 0700",)
    done = fix(host.ports)
    assert (done.changed, verdicts(done.data)["run-directory"]) == (True, "ok")
    assert host.sim.run_dir.stat().st_mode & 0o777 == 0o700


def test_one_confirmation_fixes_both(tmp_path):
    host = leaked(tmp_path)
    host.sim.run_dir.chmod(0o770)
    asked = []
    done = fix(host.ports, confirm=lambda question, details: asked.append(details))
    assert asked == [done.steps]
    assert {verdicts(done.data)[name] for name in ("leftovers", "run-directory")} == {"ok"}


def test_nothing_is_fixed_on_a_read_only_host(tmp_path):
    host = leaked(tmp_path)
    with pytest.raises(InvalidInput):
        fix(replace(host.ports, read_only_reason="only to be looked at"))
    assert fix(replace(host.ports, read_only_reason="only to be looked at"), dry_run=True).steps


def asks(host, output):
    host.ports.host_file.replace(f"version: 1\ngpus: {{0000:3b:00.0: {output}}}\n", host.ports.host_file.read())
    return host


@pytest.mark.parametrize(
    ("scenario", "output", "line"),
    [
        ("rtx-pro-6000", "{mode: vgpu, mixed_size: true}", "mixed_size is False, not True"),
        ("h100-mig", "{mode: vgpu, mig: [1g.10gb, 1g.10gb]}", "mig is 3g.40gb, 1g.10gb, 1g.10gb, not 1g.10gb, 1g.10gb"),
        ("h100-mig", "{mode: vgpu, mig: {H100-1-10C: 4}}", "mig is "),
    ],
)
def test_a_partition_that_differs_from_host_yaml_is_found_and_fixed(tmp_path, scenario, output, line):
    host = asks(open_sim_host(tmp_path, scenario), output)
    (row,) = diagnose(host.ports, ("partition",)).checks
    assert (row.verdict, row.evidence[0].startswith(f"0000:3b:00.0: {line}")) == ("warn", True), row
    assert fix(host.ports, "partition", dry_run=True).steps
    done = fix(host.ports, "partition")
    assert (done.changed, verdicts(done.data)) == (True, {"partition": "ok"})


def test_vgpus_that_fit_no_partition_are_reported(tmp_path):
    host = asks(open_sim_host(tmp_path, "h100-mig"), "{mode: vgpu, mig: {H100-9-99C: 1}}")
    (row,) = diagnose(host.ports, ("partition",)).checks
    assert row.verdict == "warn"
    assert "H100-9-99C" in row.evidence[0]
    assert "mig is" not in row.evidence[0]


def test_a_vgpu_that_host_yaml_keeps_is_made_again(host):
    make(host.ports)
    function = spec_of(host).vgpus["spare"].carrier
    host.ports.sysfs.write(f"/sys/bus/pci/devices/{function}/nvidia/current_vgpu_type", "0\n")
    assert verdicts(diagnose(host.ports, ("kept-vgpus",))) == {"kept-vgpus": "warn"}
    done = fix(host.ports, "kept-vgpus")
    assert (done.changed, verdicts(done.data)) == (True, {"kept-vgpus": "ok"})


def test_a_partition_that_a_vm_blocks_is_left_to_the_admin(tmp_path):
    host = open_sim_host(tmp_path, "rtx-pro-6000")
    create(host.ports, request("DC-4Q"))
    asks(host, "{mode: vgpu, mixed_size: true}")
    with unchanged(host):
        done = fix(host.ports, "partition")
    assert (done.changed, done.notes, verdicts(done.data)) == (False, (NOTHING_TO_FIX,), {"partition": "warn"})


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


def test_who_holds_the_driver_is_named_where_vfs_are_off_or_mig_waits_for_a_reset(tmp_path):
    host = open_sim_host(tmp_path, text=HELD)
    row = checks_by_id(host.ports, "driver-holders")["driver-holders"]
    assert row.verdict == "warn", "VFs are off"
    assert any("nv-hostengine (pid " in line for line in row.evidence)
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


def test_log_lines_are_shown_and_explain_libvirt_refusals(ports):
    services = {"nvidia-vgpud": (FAILED,), "nvidia-vgpu-mgr": (RM_CLIENT,)}
    ports = with_calls(
        ports,
        "system_log",
        kernel_lines=lambda *words: (XID,) if any(word in XID for word in words) else (),
        service_lines=lambda service: services.get(service, ()),
    )
    seen = checks_by_id(ports, "driver-messages", "vgpu-services")
    assert {row.verdict for row in seen.values()} == {"fail"}
    assert len(seen["driver-messages"].evidence) == 2
    for code, lacking in (("host-cannot", "partition"), ("host-cannot", "scheduler"), ("device-failed", None)):
        assert "driver-messages" in {row.id for row in explain_failure(ports, code, lacking)}
    assert {"driver-messages", "vgpu-services"} <= {r.id for r in explain_failure(ports, "libvirt-failed", None)}


def test_a_host_whose_logs_or_processes_cannot_be_seen_is_unknown_there(host):
    def find_holders(nodes):
        raise PermissionError(13, "Permission denied", "/proc/1/fd")

    ports = replace(host.ports, system_log=None)
    assert checks_by_id(ports, "driver-messages")["driver-messages"].verdict == "unknown"
    row = checks_by_id(with_calls(ports, "processes", find_holders=find_holders), "driver-holders")["driver-holders"]
    assert (row.verdict, row.evidence) == ("unknown", ("/proc/1/fd: Permission denied",))

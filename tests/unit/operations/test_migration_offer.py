# SPDX-License-Identifier: Apache-2.0
"""A VM as its host offers it to another one: its facts, and every reason at once why it cannot leave now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.callers import BOB
from tests.hosts import SimulatedHost, context, create, living_operation, open_sim_host, request, start
from tests.meanwhile import unchanged, with_calls
from tests.reserving_vms import vm_of
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import LibvirtFailed, NotFound, NotYours
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.results.migration import MigrationOfferResult
from vgpuctl.model.vm import DrainedVm, VmInProgress
from vgpuctl.operations.migration_offer import offer_vm
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

BASE = "/srv/images/ubuntu-24.04.qcow2"
MOUNTS = """23 1 8:1 / / rw - ext4 /dev/sda1 rw
24 23 0:40 / /var/lib/libvirt/images rw shared:1 - nfs4 nas:/images rw
"""


def offer(ports: Host, name: str = "vm", *, offline: bool = True) -> MigrationOfferResult:
    return offer_vm(ports, context(), name, offline=offline).data


def whats(result: MigrationOfferResult) -> list[str]:
    assert {reason.host for reason in (*result.reasons, *result.warnings)} <= {result.host.name}
    return [reason.what for reason in result.reasons]


def with_blockers(host: SimulatedHost, *blockers: str) -> Host:
    """Return a host whose QEMU says what blocks a migration."""
    return with_calls(host.ports, "hypervisor", migration_blockers=lambda uuid: blockers)


def with_files(ports: Host, **files: str) -> Host:
    """Return a host with texts in files of /proc; `sysfs.read` of any other file is the real one."""
    paths = {"/proc/self/mountinfo": files.get("mounts", ""), "/proc/cpuinfo": files.get("cpu", "")}
    return with_calls(ports, "sysfs", read=lambda path: paths.get(path) or ports.sysfs.read(path))


def put(host: SimulatedHost, path: str, text: str) -> None:
    """Write a file of the simulated host's /etc."""
    real = host.directory / "state" / path.lstrip("/")
    real.parent.mkdir(parents=True, exist_ok=True)
    real.write_text(text)


def test_a_vm_that_is_off_is_offered_with_its_facts(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm", image=BASE, memory_mib=2048, vcpus=3), start=False)
    put(host, "/etc/os-release", 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n')
    with unchanged(host):
        result = offer(with_files(host.ports, cpu="processor\t: 0\nmodel name\t: AMD EPYC 9354 32-Core\n"))
    vm = vm_of(host, "vm")
    assert (result.name, result.uuid, result.state) == ("vm", vm.uuid, "stopped")
    assert (result.memory_mib, result.vcpus) == (2048, 3)
    assert result.definition.startswith("<domain")
    assert vm.uuid in result.definition
    assert result.id not in ("", vm.uuid)
    own = result.host
    assert (own.machine_id, own.arch, own.kernel) == (host.ports.machine_id, "x86_64", "6.8.0-45-generic")
    assert (own.libvirt_version, own.qemu_version, own.driver) == ("10.0.0", "8.2.2", "550.90.05")
    assert (own.distribution, own.cpu, own.tls_directory) == ("ubuntu 24.04", "AMD EPYC 9354 32-Core", "/etc/pki/qemu")
    (vgpu,) = result.vgpus
    assert (vgpu.profile, vgpu.backend, vgpu.framebuffer_mib) == ("A100-4C", "vendor-vf", 4096)
    assert vgpu.gpu_model == "NVIDIA A100-PCIE-40GB"
    assert not result.reasons


def test_its_disks_are_those_of_the_definition_and_the_record(host: SimulatedHost) -> None:
    create(
        host.ports, request("A100-4C", name="vm", image=BASE, cdrom="/srv/images/debian-12-netinst.iso"), start=False
    )
    disk, iso = offer(host.ports).disks
    assert (disk.device, disk.kind, disk.format, disk.pool) == ("vda", "disk", "qcow2", "default")
    assert disk.made
    assert not disk.is_shared
    assert not disk.is_read_only
    assert disk.base == BASE
    assert disk.size_bytes == 20 << 30
    assert (iso.kind, iso.path) == ("cdrom", "/srv/images/debian-12-netinst.iso")
    assert iso.is_read_only
    assert not iso.made
    assert iso.pool is None


def test_a_file_on_a_network_file_system_is_shared(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    (disk,) = offer(with_files(host.ports, mounts=MOUNTS)).disks
    assert disk.is_shared


def test_a_running_vm_is_offered_without_a_reason(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"))
    result = offer(with_blockers(host), offline=False)
    assert not result.reasons
    assert [vgpu.can_migrate for vgpu in result.vgpus] == [True]
    assert not offer(host.ports).reasons  # it can be stopped


def test_a_qemu_that_cannot_be_asked_is_unknown_and_no_failure(host: SimulatedHost) -> None:
    def fail(uuid: str) -> None:
        raise LibvirtFailed("no monitor", libvirt_code=55)

    create(host.ports, request("A100-4C", name="vm"))
    result = offer(with_calls(host.ports, "hypervisor", migration_blockers=fail), offline=False)
    assert not result.reasons
    assert [w.what for w in result.warnings if "QEMU does not say what blocks it" in w.what]


def test_all_reasons_are_named_at_once(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"))
    result = offer(with_blockers(host, "VFIO migration is not supported in kernel", "nested guest"), offline=False)
    assert len([text for text in whats(result) if text.startswith("QEMU says: ")]) == 2
    assert all(reason.hint for reason in result.reasons)


def test_a_vm_that_is_off_does_not_move_live(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    result = offer(host.ports, offline=False)
    assert whats(result) == ["vm is off"]
    assert "--offline" in str(result.reasons[0].hint)


def test_a_whole_gpu_moves_only_offline(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request(None, name="vm", mode="passthrough", gpu="0000:d8:00.0"), start=False)
    start(host.ports, "vm")
    live = offer(with_blockers(host), offline=False)
    assert [
        text
        for text in whats(live)
        if "the GPU on 0000:d8:00.0 with 0000:d8:00.1 cannot move while the VM runs" in text
    ]
    assert not offer(host.ports).reasons


FOREIGN = """<domain type='kvm'><name>other</name><uuid>7b2b6f5c-1111-4222-8333-444455556666</uuid>
<memory unit='MiB'>1024</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"""


def test_a_vm_of_somebody_else_is_refused_with_the_command_of_virsh(host: SimulatedHost) -> None:
    host.ports.hypervisor.define(FOREIGN)
    (reason,) = offer(host.ports, "other").reasons
    assert reason.what == "other was not created by vgpuctl, which does not move it"
    assert "virsh migrate --live --persistent --undefinesource other" in str(reason.hint)


def test_a_vm_that_does_not_exist_is_an_error(host: SimulatedHost) -> None:
    with pytest.raises(NotFound):
        offer(host.ports, "none")


def test_another_accounts_vm_is_not_offered(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    with pytest.raises(NotYours):
        offer_vm(host.ports, replace(context(), caller=BOB), "vm", offline=True)


CA, CLIENT = "ca-cert.pem", ("client-cert.pem", "client-key.pem")


@pytest.mark.parametrize(
    ("files", "settings", "directory", "missing"),
    [
        ({"/etc/pki/qemu": (CA, *CLIENT)}, "", "/etc/pki/qemu", ()),
        ({"/etc/pki/qemu": (CA,)}, "", "/etc/pki/qemu", CLIENT),
        ({"/etc/pki/qemu": ("server-cert.pem",)}, "", "/etc/pki/qemu", (CA, *CLIENT)),
        ({}, "", "/etc/pki/qemu", (CA, *CLIENT)),
        ({"/etc/pki/libvirt-migrate": (CA, *CLIENT)}, "", "/etc/pki/libvirt-migrate", ()),
        (
            {"/etc/pki/libvirt-migrate": (), "/etc/pki/qemu": (CA, *CLIENT)},
            "",
            "/etc/pki/libvirt-migrate",
            (CA, *CLIENT),
        ),
        ({"/etc/tls": (CA, *CLIENT)}, 'default_tls_x509_cert_dir = "/etc/tls"\n', "/etc/tls", ()),
        ({"/etc/tls": (CA, *CLIENT)}, '#default_tls_x509_cert_dir = "/etc/tls"\n', "/etc/pki/qemu", (CA, *CLIENT)),
        (
            {"/etc/a": (CA, *CLIENT)},
            'default_tls_x509_cert_dir = "/x"\nmigrate_tls_x509_cert_dir = "/etc/a"\n',
            "/etc/a",
            (),
        ),
    ],
)
def test_certificates_are_sought_where_libvirt_seeks_them(
    host: SimulatedHost, files: dict[str, tuple[str, ...]], settings: str, directory: str, missing: tuple[str, ...]
) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    put(host, "/etc/libvirt/qemu.conf", settings)
    for folder, names in files.items():
        put(host, f"{folder}/.keep", "")
        for name in names:
            put(host, f"{folder}/{name}", "")
    own = offer(host.ports).host
    assert (own.tls_directory, own.missing_certificates) == (directory, missing)


def test_another_operation_on_the_vm_is_named(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    uuid = vm_of(host, "vm").uuid
    operation = living_operation(host.ports)
    claim = next(c for c in host.ports.claims.all() if c.vm_uuid == uuid)
    host.ports.claims.replace(replace(claim, operation=operation.id, process=operation.process))
    (what,) = whats(offer(host.ports))
    assert f"process {operation.process.pid} works on VM vm" in what


def test_another_operation_on_a_vm_without_claims_is_named(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm", reserve="running"), start=False)
    operation = living_operation(host.ports)
    host.ports.claims.add_vm_in_progress(VmInProgress(vm_of(host, "vm").uuid, operation.process, operation.id))
    assert whats(offer(host.ports)) == ["another vgpuctl works on vm"]


def test_a_vm_that_is_off_for_a_moment_is_named(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    host.ports.claims.add_drained_vm(DrainedVm(vm_of(host, "vm").uuid, None, host.ports.operations.current().process))
    assert whats(offer(host.ports)) == ["a command shut vm down for a moment, to start it again"]


def test_a_desktop_moves_only_when_its_controller_asks(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    vm = vm_of(host, "vm")
    assert vm.record is not None
    mark = DesktopMark(vm.uuid, "office", "db-1", 1)
    xml = record_to_xml(replace(vm.record, desktop=mark))
    host.ports.hypervisor.set_record(vm.uuid, xml)
    protected = replace(context(), protects_desktops=True)
    (reason,) = offer_vm(host.ports, protected, "vm", offline=True).data.reasons
    assert reason.what == "vm is a desktop of the pool office, and its controller decides about it"
    assert not offer(host.ports).reasons

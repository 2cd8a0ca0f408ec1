# SPDX-License-Identifier: Apache-2.0
"""doctor's answer to: can VMs with vGPUs leave this host while they run?"""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from tests.meanwhile import with_calls
from tests.unit.operations.test_xe_scheduler import card
from vgpuctl.doctor.live_migration import CERTIFICATE_DIRECTORIES, OS_RELEASE
from vgpuctl.doctor.virtualization import KERNEL_RELEASE, PCI_DRIVERS
from vgpuctl.observe.migration_host import QEMU_CONF
from vgpuctl.operations.diagnose import diagnose

A100 = "0000:3b:00.0"
CERTIFICATES = ("ca-cert.pem", "client-cert.pem", "client-key.pem", "server-cert.pem", "server-key.pem")


def finding(ports):
    (row,) = diagnose(ports, ("live-migration",)).checks
    return row


def seen(host, folders=None, files=None):
    def listdir(path):
        return folders[path] if path in (folders or {}) else host.ports.sysfs.listdir(path)

    def read(path):
        return files[path] if path in (files or {}) else host.ports.sysfs.read(path)

    return finding(with_calls(host.ports, "sysfs", listdir=listdir, read=read))


def test_a_host_that_is_new_enough(tmp_path):
    row = seen(open_sim_host(tmp_path))
    assert (row.verdict, row.fix) == ("ok", None)
    assert row.evidence[0].startswith("VMs with vGPUs of 0000:3b:00.0")
    assert row.evidence[-1].startswith("not in /etc/pki/qemu: ca-cert.pem, client-cert.pem, client-key.pem, server-")
    assert row.evidence[-1].endswith("VMs move from and to this host only with --insecure-network")


def test_programs_that_are_too_old_are_named(tmp_path):
    row = seen(open_sim_host(tmp_path, "t4"))
    assert row.verdict == "warn"
    assert "Linux 5.18 or newer is needed, and this is 5.15.0-122-generic" in row.evidence[0]
    assert "libvirt 8.6.0 or newer is needed, and this is 8.0.0" in row.evidence[0]
    assert "QEMU 8.1.0 or newer is needed, and this is 6.2.0" in row.evidence[0]


def test_the_kernel_of_rhel_is_newer_than_its_number(tmp_path):
    host = open_sim_host(tmp_path, "a16")
    assert seen(host).verdict == "ok"
    assert seen(host, files={KERNEL_RELEASE: "5.14.0-generic\n"}).verdict == "warn"


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ('ID="rhel"\nVERSION_ID="9.4"\n', "the other host needs the same version"),
        ('ID="rhel"\nVERSION_ID="9.6"\n', "may have another version"),
        ("ID=ubuntu\nVERSION_ID='24.04'\n", "the other host needs the same version"),
        ("ID=debian\nVERSION_ID=13\n", "RHEL 10.0, Ubuntu 24.04 only, and this is debian 13"),
        ("", "this is an unknown system"),
    ],
)
def test_what_nvidia_says_of_the_system(tmp_path, system, words):
    row = seen(open_sim_host(tmp_path), files={OS_RELEASE: system})
    assert row.verdict == "ok"
    assert words in " ".join(row.evidence)


def test_certificates_are_only_mentioned(tmp_path):
    host = open_sim_host(tmp_path)
    usual = CERTIFICATE_DIRECTORIES[1]
    assert f"{usual} has the certificates for TLS" in " ".join(seen(host, {usual: CERTIFICATES}).evidence)
    row = seen(host, {usual: CERTIFICATES[:-1]})
    assert row.verdict == "ok"
    assert f"not in {usual}: {CERTIFICATES[-1]}; VMs move to this host only with --insecure-network" in " ".join(
        row.evidence
    )


def test_certificates_are_looked_for_where_libvirt_does(tmp_path):
    host = open_sim_host(tmp_path)
    own, usual = CERTIFICATE_DIRECTORIES
    assert f"{own} has the certificates" in " ".join(seen(host, {own: CERTIFICATES, usual: ()}).evidence)
    assert f"not in {own}: {CERTIFICATES[0]}" in " ".join(seen(host, {own: (), usual: CERTIFICATES}).evidence)
    conf = {QEMU_CONF: 'migrate_tls_x509_cert_dir = "/srv/tls"\n'}
    row = seen(host, {usual: CERTIFICATES}, conf)
    assert "names /srv/tls for the certificates for TLS: without them, migrate-vm needs" in " ".join(row.evidence)


@pytest.mark.parametrize(
    ("drivers", "verdict", "words"),
    [
        (("vfio-pci",), "not-applicable", "modprobe xe-vfio-pci"),
        (("vfio-pci", "xe-vfio-pci"), "ok", "can move while they run"),
    ],
)
def test_plain_vfs_need_a_vfio_driver_of_their_own(tmp_path, drivers, verdict, words):
    row = seen(card(tmp_path), {PCI_DRIVERS: drivers})
    assert row.verdict == verdict
    assert words in " ".join(row.evidence)


def test_a_vm_whose_parameters_switch_it_off_is_named(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="debugged", vgpu_params=(("enable_debugging", "1"),)))
    row = seen(host)
    assert row.verdict == "ok"
    assert "VM debugged stays: enable_debugging=1 of its vGPU switches it off" in row.evidence


@pytest.mark.parametrize("scenario", ["empty", "h100-pcie-x8"])
def test_a_host_without_shared_gpus(tmp_path, scenario):
    assert seen(open_sim_host(tmp_path, scenario)).verdict == "not-applicable"


def test_what_cannot_be_read_is_unknown(tmp_path):
    host = open_sim_host(tmp_path)

    def listdir(path):
        if path == PCI_DRIVERS:
            raise PermissionError(13, "Permission denied", path)
        return host.ports.sysfs.listdir(path)

    assert finding(with_calls(host.ports, "sysfs", listdir=listdir)).verdict == "unknown"

# SPDX-License-Identifier: Apache-2.0
"""VMs whose guests get NVIDIA's driver from a disc, on the simulated host."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from lxml import etree
from pycdlib import PyCdlib

from tests.callers import host_of
from tests.drivers import exe_name, put_driver, run_name
from tests.hosts import open_sim_host
from vgpuctl.domain.cloud_init_seed import read_setup
from vgpuctl.errors import Busy, FileFailed, HostCannot, InUse, InvalidInput, NotFound, VgpuctlError
from vgpuctl.model.guest_driver import is_driver_disc
from vgpuctl.model.vm import AssignedVgpu, DiskRole
from vgpuctl.observe import ReadScope, observe, scope_of_vm
from vgpuctl.observe.guest_drivers import read_guest_driver
from vgpuctl.operations.guards import find_vm
from vgpuctl.operations.plans.guest_driver import check_guest_driver
from vgpuctl.operations.steps.guest_driver import MakeDriverDisc, drop_disc_steps
from vgpuctl.value import replace

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
SCENARIO = """
version: 1
libvirt: {{version: "11.3.0", qemu: "10.0.3"}}
networks: [{{name: default}}]
nvidia: {{driver: "{driver}"}}
images:
  - {{path: /srv/images/ubuntu-24.04.qcow2, size_gib: 20, firmware: both}}
  - {{path: /srv/images/windows-11.qcow2, size_gib: 64, firmware: uefi}}
gpus: [{{model: A100, count: 2, numa_node: 0}}, {{model: RTX 4090, numa_node: 0}}]
"""
"""Its driver is of vGPU 19, an LTS release: guests may have 19, 18 and 16."""
DRIVER = run_name("580.159.03")


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens a host with this driver."""

    def open_one(driver="580.159.01"):
        (tmp_path / "host.yaml").write_text(SCENARIO.format(driver=driver))
        return open_sim_host(tmp_path, str(tmp_path / "host.yaml"))

    return open_one


def folder_of(host):
    return Path(host.ports.driver_discs.path("disc")).parent


def discs(host):
    return sorted(host.ports.driver_discs.sizes())


def disc_of(host, name="vm"):
    """Return the disc with a driver that a VM's definition has."""
    vm = find_vm(observe(host.ports, scope_of_vm(name)), name)
    return next((disk.source for disk in vm.disks if is_driver_disc(disk.source)), None)


def script_of(host, name="vm"):
    """Return the script in a VM's seed."""
    vm = find_vm(observe(host.ports, scope_of_vm(name)), name)
    seed = next(disk for disk in vm.record.disks if disk.role is DiskRole.SEED)
    return read_setup(host.ports.storage.read_private_volume(seed.pool, seed.volume))


def test_vms_with_one_driver_share_one_disc_that_goes_with_the_last_of_them(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    first = calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver)
    second = calls.create_vm("vm2", profile="A100-4C", image=IMAGE, guest_driver=driver)
    assert (first.data.guest_driver, first.warnings, first.data.state) == (driver, (), "running")
    (disc,) = discs(host)
    assert disc.startswith("vgpuctl-driver-580.159.03-")
    made, used = ([step for step in one.steps if disc in step] for one in (first, second))
    assert made == [f"make the disc {disc_of(host)} with driver 580.159.03 (1 MiB)"]
    assert used == [f"use the disc {disc_of(host)} with driver 580.159.03"]
    assert disc_of(host) == disc_of(host, "vm2")
    assert "vgpuctl-install-driver" in (script_of(host) or "")
    assert calls.ensure_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver).changed is False
    (row,) = [image for image in calls.list_images().data if image.role == "driver"]
    assert (row.path, row.vms, row.size_bytes) == (disc_of(host), ("vm", "vm2"), os.path.getsize(disc_of(host)))
    gone = calls.delete_vm("vm")
    assert f"delete the disc {disc_of(host, 'vm2')} if no other VM has it" in gone.steps
    assert (discs(host), calls.show_vm("vm2").data.state) == ([disc], "running")
    calls.delete_vm("vm2")
    assert discs(host) == []


def test_a_disc_that_no_vm_has_any_more_is_reconciled(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver)
    folder_of(host).joinpath("notes.txt").write_text("not a disc\n")
    disc = disc_of(host)
    assert calls.reconcile_host().data.findings == ()
    calls.stop_vm("vm", force=True)
    host.ports.hypervisor.undefine(find_vm(observe(host.ports, scope_of_vm("vm")), "vm").uuid)
    planned = calls.reconcile_host(dry_run=True)
    assert f"no VM has the disc {disc}" in [finding.what for finding in planned.data.findings]
    assert os.path.exists(disc)
    calls.reconcile_host()
    assert (discs(host), os.listdir(folder_of(host))) == ([], [".lock", "notes.txt"])
    assert calls.reconcile_host().changed is False


def test_a_vm_defined_while_the_last_one_goes_keeps_the_disc(opened, tmp_path):
    """The definitions are read when the disc is about to be deleted, not when that was planned."""
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver, start=False)
    vm = find_vm(observe(host.ports, scope_of_vm("vm")), "vm")
    (step,) = drop_disc_steps(vm)
    step.perform(host.ports)
    assert len(discs(host)) == 1, "the VM has it still"
    host.ports.hypervisor.undefine(vm.uuid)
    calls.create_vm("vm2", profile="A100-4C", image=IMAGE, guest_driver=driver, start=False)
    step.perform(host.ports)
    assert len(discs(host)) == 1, "the other VM has it now"
    host.ports.hypervisor.undefine(find_vm(observe(host.ports, scope_of_vm("vm2")), "vm2").uuid)
    step.perform(host.ports)
    assert discs(host) == []


def cannot_delete(host, monkeypatch):
    """Let the deletion of discs fail after it was done."""
    discs_of_host = host.ports.driver_discs
    delete = discs_of_host.delete

    def fail(disc, is_used):
        delete(disc, is_used)
        raise OSError(errno.EIO, os.strerror(errno.EIO), disc)

    monkeypatch.setattr(discs_of_host, "delete", fail)


def test_a_disc_that_cannot_be_deleted_undoes_nothing(opened, tmp_path, monkeypatch):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    new = str(put_driver(tmp_path, run_name("580.178.04"), text=b"exit 2\n"))
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver, start=False)
    cannot_delete(host, monkeypatch)
    assert calls.set_vm("vm", guest_driver=new).data.guest_driver == new
    assert discs(host) == [os.path.basename(disc_of(host))]
    assert calls.delete_vm("vm").changed
    assert calls.list_vms().data == ()


def test_reconcile_says_which_disc_cannot_be_deleted(opened, tmp_path, monkeypatch):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver, start=False)
    disc = disc_of(host)
    host.ports.hypervisor.undefine(find_vm(observe(host.ports, scope_of_vm("vm")), "vm").uuid)
    cannot_delete(host, monkeypatch)
    with pytest.raises(VgpuctlError) as raised:
        calls.reconcile_host()
    assert f"the disc {disc} cannot be deleted: Input/output error" in str(raised.value)


def test_another_file_at_the_same_path_is_another_driver(opened, tmp_path):
    host, driver = opened(), put_driver(tmp_path, DRIVER)
    calls = host_of(host, None)
    spec = {"profile": "A100-4C", "image": IMAGE, "guest_driver": str(driver)}
    calls.create_vm("vm", **spec, start=False)
    old = disc_of(host)
    driver.touch()
    assert calls.ensure_vm("vm", **spec, state="stopped").changed is False, "it was touched, and is the same"
    put_driver(tmp_path, DRIVER, text=b"exit 7\n")
    changed = calls.ensure_vm("vm", **spec, state="stopped")
    assert (changed.changed, disc_of(host) == old, len(discs(host))) == (True, False, 1)
    assert any(f"guest_driver: {driver} is another file now" in step for step in changed.steps)
    assert calls.set_vm("vm", guest_driver=str(driver)).changed is False
    driver.unlink()
    assert calls.ensure_vm("vm", **spec, state="stopped").changed is False, "the guest has its disc"


def test_a_disc_that_is_gone_is_made_again_while_the_vm_is_off(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver)
    os.unlink(disc_of(host))
    spec = {"profile": "A100-4C", "image": IMAGE, "guest_driver": driver}
    assert calls.ensure_vm("vm", **spec).changed is False, "it runs, and its guest has the driver"
    with pytest.raises(InUse, match="its guest_driver can be changed only while it is off"):
        calls.set_vm("vm", guest_driver=driver)
    assert calls.set_vm("vm", guest_driver=driver, drain=True).changed is True
    assert discs(host) == [os.path.basename(disc_of(host))]


def test_a_dry_run_makes_nothing(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    planned = calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver, dry_run=True)
    assert any("make the disc" in step for step in planned.steps)
    assert discs(host) == []


def test_many_vms_get_one_disc(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    made = calls.create_vms("vm-{}", count=3, profile="A100-4C", image=IMAGE, guest_driver=driver)
    assert (len(made.data.vms), len(discs(host))) == (3, 1)


def test_set_vm_changes_disc_and_seed_while_the_vm_is_off(opened, tmp_path):
    host, old = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    new = str(put_driver(tmp_path, run_name("580.178.04"), text=b"exit 2\n"))
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=old)
    first = disc_of(host)
    with pytest.raises(InUse, match="its guest_driver can be changed only while it is off"):
        calls.set_vm("vm", guest_driver=new)
    calls.stop_vm("vm", force=True)
    assert calls.set_vm("vm", guest_driver=new).data.guest_driver == new
    assert disc_of(host) not in (None, first)
    assert calls.set_vm("vm", guest_driver=new).changed is False
    calls.set_vm("vm", guest_driver="none")
    assert (disc_of(host), calls.show_vm("vm").data.guest_driver) == (None, "none")
    assert "The driver that was installed stays" in (script_of(host) or "")
    calls.start_vm("vm")


def test_a_vm_starts_although_its_disc_is_gone(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver, start=False)
    os.unlink(str(disc_of(host)))
    assert calls.start_vm("vm").data.state == "running"


@pytest.mark.parametrize(
    ("driver", "version", "problem"),
    [
        ("580.159.01", "580.65.06", None),
        ("580.159.01", "570.211.01", None),
        ("580.159.01", "535.309.01", None),
        ("580.159.01", "550.90.07", r"\(vGPU 17\) is older than NVIDIA supports with the host's"),
        (
            "580.159.01",
            "595.58.03",
            r"newer than the host's 580.159.01 \(vGPU 19.5\)",
        ),
        ("595.58.02", "535.309.01", "is older than NVIDIA supports"),
    ],
)
def test_only_a_driver_of_a_release_that_works_with_the_hosts(opened, tmp_path, driver, version, problem):
    host, file = opened(driver), str(put_driver(tmp_path, run_name(version)))
    calls = host_of(host, None)
    if problem is None:
        assert calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=file).warnings == ()
        return
    with pytest.raises(HostCannot, match=problem):
        calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=file)
    assert (discs(host), calls.list_vms().data) == ([], ())


def test_a_release_that_nobody_knows_is_a_warning(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, run_name("620.10.01")))
    calls = host_of(host, None)
    made = calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver)
    assert made.warnings[0].startswith("guest_driver: whether 620.10.01 works with the host's 580.159.01 is not known")


def test_a_whole_gpu_takes_a_driver_of_any_release_and_a_vgpu_only_one_for_vgpus(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, run_name("595.58.03", "")))
    calls = host_of(host, None)
    with pytest.raises(InvalidInput, match="is a driver for whole GPUs: a vGPU needs the one with 'grid' in its name"):
        calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver)
    gpu = calls.list_gpus().data[-1].address
    made = calls.create_vm("vm", mode="passthrough", gpu=gpu, image=IMAGE, guest_driver=driver)
    assert (made.warnings, made.data.guest_driver) == ((), driver)


@pytest.mark.parametrize(
    ("name", "content", "error", "problem"),
    [
        (DRIVER, None, NotFound, "does not exist"),
        (DRIVER, b"#!/bin/sh\nshort\n", InvalidInput, "it has 1 KiB, and NVIDIA's drivers have hundreds of MiB"),
        (DRIVER, b"<html>".ljust(2 << 20), InvalidInput, "it does not begin as a .run file does"),
        (run_name("580.159.03").replace("x86_64", "aarch64"), b"#!".ljust(2 << 20), InvalidInput, "is for aarch64"),
    ],
)
def test_what_is_no_driver_for_this_guest_is_refused_and_nothing_written(
    opened, tmp_path, name, content, error, problem
):
    host, path = opened(), tmp_path / name
    calls = host_of(host, None)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=problem) as raised:
        calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=str(path))
    assert raised.value.hint
    assert (discs(host), calls.list_vms().data) == ([], ())


WINDOWS = {"os": "windows11", "image": "/srv/images/windows-11.qcow2", "memory": "8GiB", "vcpus": 4}


def names_on(disc):
    """Return the files of a disc by their long names, as Linux and as Windows see them."""
    image = PyCdlib()
    image.open(disc)
    linux = [child.rock_ridge.name().decode() for child in image.list_children(rr_path="/")]
    windows = [child.file_identifier().decode("utf-16_be") for child in image.list_children(joliet_path="/")]
    image.close()
    return linux[2:], windows[2:]


def test_windows_gets_its_own_drivers_and_linux_others(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, exe_name("582.53")))
    linux = str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    with pytest.raises(InvalidInput, match=f"guest_driver: {driver} is for Windows, and os is linux") as raised:
        calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver)
    assert raised.value.hint.startswith("use NVIDIA-Linux-x86_64-VERSION-grid.run of the host driver's archive")
    with pytest.raises(InvalidInput, match=f"guest_driver: {linux} is for Linux, and os is windows11") as raised:
        calls.create_vm("vm", profile="A100-4C", **WINDOWS, guest_driver=linux)
    assert raised.value.hint.startswith("use VERSION_grid_win10_win11_")
    assert (discs(host), calls.list_vms().data) == ([], ())
    made = calls.create_vm("vm", profile="A100-4C", **WINDOWS, guest_driver=driver)
    assert (made.data.guest_driver, made.warnings) == (
        driver,
        (f"guest_driver {driver}: experimental with Windows, where nobody has run it yet",),
    )
    assert "Install-Driver" in (script_of(host) or "")
    assert names_on(disc_of(host)) == ([exe_name("582.53")], ["driver.exe"]), "Windows reads names of 64 letters"


def test_a_driver_for_windows_is_of_a_release_that_works_with_the_hosts(opened, tmp_path):
    host, old = opened(), str(put_driver(tmp_path, exe_name("553.62")))
    new = str(put_driver(tmp_path, exe_name("596.36")))
    calls = host_of(host, None)
    with pytest.raises(HostCannot, match=r"553.62 \(vGPU 17\) is older than NVIDIA supports with the host's"):
        calls.create_vm("vm", profile="A100-4C", **WINDOWS, guest_driver=old)
    with pytest.raises(HostCannot, match=r"596.36 \(vGPU 20.1\) is newer than the host's"):
        calls.create_vm("vm", profile="A100-4C", **WINDOWS, guest_driver=new)


def test_a_disc_that_cannot_be_written_leaves_nothing(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    folder_of(host).write_text("a file is in the way")
    with pytest.raises(FileFailed, match=r"the disc .* cannot be made: ") as raised:
        calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver)
    assert (raised.value.left, raised.value.hint.startswith("df -h ")) == ([], True)
    assert calls.list_vms().data == ()


def test_a_driver_that_changes_after_the_plan_is_refused(opened, tmp_path):
    host, driver = opened(), put_driver(tmp_path, DRIVER)
    step = MakeDriverDisc(read_guest_driver(host.ports, str(driver)))
    put_driver(tmp_path, DRIVER, text=b"exit 7\n")
    with pytest.raises(Busy, match="it has changed since it was read"):
        step.perform(host.ports)
    assert discs(host) == []


def test_a_gpu_that_the_release_has_dropped_is_refused(opened, tmp_path):
    host, driver = opened("595.58.02"), put_driver(tmp_path, run_name("595.58.03"))
    snapshot = observe(host.ports, ReadScope())
    volta = replace(snapshot.gpus[0], device_id="1db4", scheduler=None, model="Tesla V100")
    vgpu = AssignedVgpu(0, "vendor-vf", volta.address, "0000:3b:00.4", "0000:3b:00.4", "V100-4C")
    with pytest.raises(HostCannot, match="no longer supports Tesla V100: vGPU 19 is the last release for Volta"):
        check_guest_driver(
            replace(snapshot, gpus=(volta,)), read_guest_driver(host.ports, str(driver)), [vgpu], "x86_64", "linux"
        )


def test_set_vm_warns_as_create_vm_does(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, run_name("620.10.01")))
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_sharing="time-slicing:2", start=False)
    for dry_run in (True, False):
        changed = calls.set_vm("vm", guest_driver=driver, dry_run=dry_run)
        assert any(text.startswith("guest_driver: whether 620.10.01 works") for text in changed.warnings)
        assert any(text.startswith("guest_sharing time-slicing:2") for text in changed.warnings)


def test_a_new_system_disk_gets_its_driver_disc_again(opened, tmp_path):
    host, driver = opened(), put_driver(tmp_path, DRIVER)
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=str(driver))
    (disc,) = discs(host)
    (folder_of(host) / disc).unlink()
    again = calls.refresh_vm("vm", image=IMAGE, drain=True)
    assert (discs(host), again.warnings) == ([disc], ())
    assert any(step.startswith("make the disc") for step in again.steps)
    assert not any("disc" in step for step in calls.refresh_vm("vm", image=IMAGE, drain=True).steps)
    (folder_of(host) / disc).unlink()
    put_driver(tmp_path, DRIVER, text=b"exit 9\n")
    (warning,) = calls.refresh_vm("vm", image=IMAGE, drain=True).warnings
    assert f"{driver} is another one now; vgpuctl set-vm vm --guest-driver {driver} --drain" in warning
    assert calls.set_vm("vm", guest_driver=str(driver), drain=True).changed is True, "what the warning says"
    (folder_of(host) / os.path.basename(disc_of(host))).unlink()
    driver.unlink()
    (warning,) = calls.refresh_vm("vm", image=IMAGE, drain=True).warnings
    assert f"whose guest gets no driver: guest_driver: {driver} does not exist" in warning


def test_a_disc_that_somebody_else_could_change_is_none(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver)
    (disc,) = discs(host)
    (folder_of(host) / disc).chmod(0o666)
    made = calls.create_vm("vm2", profile="A100-4C", image=IMAGE, guest_driver=driver)
    assert any(step.startswith("make the disc") for step in made.steps)
    assert (folder_of(host) / disc).stat().st_mode & 0o777 == 0o644


def test_the_definition_keeps_qemu_from_the_shared_disc(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver, start=False)
    created = find_vm(observe(host.ports, scope_of_vm("vm")), "vm")
    calls.set_vm("vm", guest_driver="none")
    calls.set_vm("vm", guest_driver=driver)
    for xml in (calls.print_xml("vm3", profile="A100-4C", image=IMAGE, guest_driver=driver).data.xml,
                host.ports.hypervisor.definition(created.uuid)):  # fmt: skip
        (source,) = etree.fromstring(xml).xpath("//disk/source[@startupPolicy='optional']")
        assert [dict(label.attrib) for label in source] == [{"model": "dac", "relabel": "no"}]


def test_waiting_for_a_driver_in_vain_says_where_to_look(opened, tmp_path):
    host, driver = opened(), str(put_driver(tmp_path, DRIVER))
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, guest_driver=driver)
    calls.create_vm("other", profile="A100-4C", image=IMAGE)
    hints = []
    for name in ("vm", "other"):
        with pytest.raises(Busy) as raised:
            calls.wait(name, event="driver", timeout_seconds=5)
        hints.append(raised.value.hint)
    assert hints[0].startswith("in the guest: journalctl -u vgpuctl-driver; vgpuctl show-console vm ")
    assert hints[1].startswith("vgpuctl show-console other ")

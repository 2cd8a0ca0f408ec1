# SPDX-License-Identifier: Apache-2.0
"""What a new VM needs besides its GPU: each missing item is reported with its fix before anything is written."""

from __future__ import annotations

import pytest

from tests.hosts import request
from tests.values import A4C, a100, assigned, snapshot
from vgpuctl.domain.render import compile_template
from vgpuctl.errors import HostCannot, InUse, NoSpace, NotFound
from vgpuctl.model.port_values import HypervisorCapabilities, ImageInfo, NetworkInfo, PoolInfo
from vgpuctl.model.request import ExistingDisk
from vgpuctl.operations.plans.facts import (
    GpuHolders,
    HostFacts,
    check_facts,
    choose_firmware,
    needs_pool,
    refuse_open_gpus,
)
from vgpuctl.operations.plans.guest_devices import GuestHost
from vgpuctl.value import replace

FACTS = HostFacts(
    capabilities=HypervisorCapabilities(kvm=True, uefi=True, emulator="/usr/bin/qemu"),
    guest=GuestHost(networks={"default": NetworkInfo("default", True)}),
    pool=PoolInfo("default", "dir", True, "/pool", 100 << 30, 50 << 30),
    template=compile_template(""),
)
VGPUS = (assigned(a100(), A4C),)


def check(wanted=None, observed=None, **changes):
    return check_facts(observed or snapshot(a100()), wanted or request("A100-4C"), VGPUS, replace(FACTS, **changes))


def test_a_host_that_has_everything_gives_no_warning():
    assert check() == ()


@pytest.mark.parametrize(
    ("changes", "kind", "word", "hint"),
    [
        ({"guest": GuestHost(networks={"default": None})}, HostCannot, "no network 'default'", "virsh net-list"),
        (
            {"guest": GuestHost(networks={"default": NetworkInfo("default", False)})},
            HostCannot,
            "not active",
            "virsh net-start default",
        ),
        ({"pool": PoolInfo("default", "rbd", True, None)}, HostCannot, "kind rbd", "--storage-pool"),
        ({"pool": PoolInfo("default", "dir", True, "/pool", 9, 1 << 20)}, NoSpace, "1 MiB free in /pool", "delete"),
        (
            {"holders": {"0000:3b:00.0": GpuHolders(display=("Xorg (pid 7)",))}},
            InUse,
            "Xorg (pid 7)",
            "--force-console",
        ),
    ],
)
def test_missing_things_are_named_with_a_fix(changes, kind, word, hint):
    with pytest.raises(kind) as raised:
        check(**changes)
    assert word in str(raised.value)
    assert hint in str(raised.value.hint)


@pytest.mark.parametrize(
    ("holders", "force", "refused"),
    [
        (GpuHolders(display=("Xorg (pid 7)",)), True, False),
        (GpuHolders(display=("Xorg (pid 7)",)), False, True),
        (GpuHolders(compute=("python (pid 8)",)), True, True),
    ],
)
def test_force_console_waives_the_display_and_nothing_else(holders, force, refused):
    if refused:
        with pytest.raises(InUse):
            refuse_open_gpus({"0000:3b:00.0": holders}, force_console=force)
    else:
        refuse_open_gpus({"0000:3b:00.0": holders}, force_console=force)
    assert refused == bool(holders.compute or not force)


def test_only_the_default_pool_is_made():
    assert check(pool=None) == ()
    with pytest.raises(NotFound):
        check(request("A100-4C", storage_pool="fast"), pool=None)


def test_an_image_that_is_not_there_or_not_readable_is_named():
    wanted = request("A100-4C", image="/srv/a.qcow2")
    with pytest.raises(NotFound):
        check(wanted, files={"/srv/a.qcow2": None})
    closed = ImageInfo("/srv/a.qcow2", "qcow2", 1, access_problem="/srv is closed to libvirt-qemu")
    with pytest.raises(HostCannot) as raised:
        check(wanted, files={"/srv/a.qcow2": closed})
    assert "/srv is closed to libvirt-qemu" in str(raised.value)


@pytest.mark.parametrize(
    ("os", "image", "uefi", "expected"),
    [
        ("linux", None, True, "uefi"),
        ("linux", None, False, "bios"),
        ("generic", None, True, "bios"),
        ("linux", "bios", True, "bios"),
        ("linux", "both", True, "uefi"),
        ("generic", "uefi", True, "uefi"),
        ("generic", "uefi", False, None),
    ],
)
def test_firmware_is_chosen_by_what_the_image_needs_and_the_host_has(os, image, uefi, expected):
    files = {"/a": ImageInfo("/a", "qcow2", 1, image)} if image else {}
    result = replace(FACTS, files=files, capabilities=replace(FACTS.capabilities, uefi=uefi))
    wanted = request("A100-4C", os=os, image="/a" if image else None)
    if expected is not None:
        assert choose_firmware(wanted, result) == expected
        return
    with pytest.raises(HostCannot) as raised:
        choose_firmware(wanted, result)
    assert "ovmf" in str(raised.value.hint)


def test_a_pool_is_needed_only_when_a_disk_is_made():
    assert needs_pool(request("A100-4C"))
    assert not needs_pool(request("A100-4C", disks=(ExistingDisk("/a"),)))
    assert not needs_pool(request("A100-4C", cdrom="/a.iso"))

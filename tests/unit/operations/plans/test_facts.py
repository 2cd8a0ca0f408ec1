# SPDX-License-Identifier: Apache-2.0
"""What a new VM needs besides its GPU: firmware, pools, pins, addresses, and what Windows asks for."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from tests.values import A4C, a100, assigned, snapshot
from vgpuctl.domain.render import compile_template
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoSpace
from vgpuctl.model.port_values import HypervisorCapabilities, ImageInfo, NetworkInfo, PoolInfo
from vgpuctl.model.request import CloudInit, CloudInitFile, ExistingDisk
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.create import check_network_configs
from vgpuctl.operations.plans.change import with_request_fields
from vgpuctl.operations.plans.facts import (
    MIN_POOL_FREE_BYTES,
    GpuHolders,
    HostFacts,
    check_facts,
    check_full_size,
    check_pool,
    choose_firmware,
    is_logical,
    needs_pool,
    refuse_open_gpus,
)
from vgpuctl.operations.plans.guest_devices import (
    GuestHost,
    HostTopology,
    HugepagePool,
    Pins,
    check_hugepages,
    check_windows,
    resolve_pins,
)
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
        with pytest.raises(InUse) as raised:
            refuse_open_gpus({"0000:3b:00.0": holders}, force_console=force)
    else:
        refuse_open_gpus({"0000:3b:00.0": holders}, force_console=force)
    assert refused == bool(holders.compute or not force)
    assert not (refused and holders.display) or "--force-console" in str(raised.value.hint)


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


FIT = replace(FACTS.capabilities, secure_boot=True, tpm=True)
IMAGE = "/srv/images/windows-11.qcow2"


def windows(**changes):
    return request("A100-4C", **{"os": "windows11", "memory_mib": 4096, "vcpus": 2, **changes})


def test_the_least_that_windows_asks_for_passes():
    check_windows(windows(), FIT)
    assert check(windows(), capabilities=FIT) == ()


@pytest.mark.parametrize(
    ("changes", "lacks", "kind", "word", "hint"),
    [
        ({"memory_mib": 4095}, {}, InvalidInput, "4095 MiB", "--memory 4GiB"),
        ({"vcpus": 1}, {}, InvalidInput, "1 virtual CPU", "--vcpus 2"),
        ({}, {"secure_boot": False}, HostCannot, "secure boot", "ovmf"),
        ({}, {"tpm": False}, HostCannot, "TPM 2.0", "swtpm"),
    ],
)
def test_each_lack_is_named_with_a_fix(changes, lacks, kind, word, hint):
    with pytest.raises(kind) as raised:
        check(windows(**changes), capabilities=replace(FIT, **lacks))
    assert word in str(raised.value)
    assert hint in str(raised.value.hint)


def test_other_systems_need_none_of_it():
    check_windows(request("A100-4C", memory_mib=64, vcpus=1), FACTS.capabilities)


@pytest.mark.parametrize("needs", ["uefi", "both", "none", "unknown"])
def test_it_boots_with_uefi(needs):
    facts = replace(FACTS, capabilities=FIT, files={IMAGE: ImageInfo(IMAGE, "qcow2", 1 << 30, needs)})
    assert choose_firmware(windows(image=IMAGE), facts) == "uefi"


def test_an_image_that_boots_only_with_bios_is_refused():
    facts = replace(FACTS, capabilities=FIT, files={IMAGE: ImageInfo(IMAGE, "qcow2", 1 << 30, "bios")})
    with pytest.raises(InvalidInput, match="boots only with BIOS"):
        choose_firmware(windows(image=IMAGE), facts)


TOPOLOGY = HostTopology(
    online_cpus=frozenset({0, 1, 2, 5, 6}),
    node_cpus={0: frozenset({0, 1, 2, 3}), 1: frozenset({5, 6}), 2: frozenset()},
    hugepages=(HugepagePool(0, 2048, 10, 20), HugepagePool(1, 2048, 5, 5)),
)


def on_node(node: int | None, cpu_pin: str) -> Pins:
    gpu = replace(a100(), numa_node=node)
    return resolve_pins(snapshot(gpu), cpu_pin, [assigned(gpu, A4C)], TOPOLOGY)


def test_auto_is_the_online_cpus_of_the_gpus_node_and_a_list_has_its_nodes() -> None:
    assert on_node(0, "auto") == Pins("0-2", "0")
    assert on_node(1, "auto") == Pins("5-6", "1")
    assert on_node(0, "2,5") == Pins("2,5", "0-1")
    assert on_node(None, "none") == Pins()


@pytest.mark.parametrize("node", [None, 2, 3])
def test_a_node_without_cpus_is_refused(node: int | None) -> None:
    with pytest.raises(HostCannot) as caught:
        on_node(node, "auto")
    assert "--cpu-pin=CPUS" in (caught.value.hint or "")


def test_huge_pages_count_on_the_bound_nodes_only() -> None:
    check_hugepages(30, "2MiB", "", TOPOLOGY)
    for memory, nodes, text in ((32, "", "free"), (12, "1", "free"), (10, "2", "no huge pages of 2MiB")):
        with pytest.raises(HostCannot, match=text):
            check_hugepages(memory, "2MiB", nodes, TOPOLOGY)


GIB = 1 << 30


def pool(kind: str = "logical", path: str | None = "/dev/vg0", free: int | None = 10 * GIB) -> PoolInfo:
    return PoolInfo("vg0", kind, free is not None, path, None if free is None else 20 * GIB, free)


def test_a_directory_pool_that_is_full_is_refused() -> None:
    check_pool("vg0", pool("dir", free=MIN_POOL_FREE_BYTES))
    with pytest.raises(NoSpace, match="MiB free in"):
        check_pool("vg0", pool("dir", free=MIN_POOL_FREE_BYTES - 1))


@pytest.mark.parametrize(
    ("network", "words", "hint"),
    [
        (None, "no network 'default'", "virsh net-list --all shows the networks"),
        (NetworkInfo("default", False), "not active", "virsh net-start default"),
    ],
)
def test_a_network_that_cannot_be_used_is_named_with_a_command(network, words, hint) -> None:
    with pytest.raises(HostCannot, match=words) as raised:
        check(guest=GuestHost(networks={"default": network}))
    assert hint in str(raised.value.hint)


def test_of_a_logical_pool_that_is_off_no_size_is_known_and_none_is_refused() -> None:
    check_full_size(pool(free=None), [50 * GIB])


@pytest.mark.parametrize("kind", ["dir", "fs", "netfs", "logical"])
def test_a_supported_kind_is_taken(kind: str) -> None:
    check_pool("vg0", pool(kind))
    assert is_logical(pool(kind)) is (kind == "logical")


@pytest.mark.parametrize(("kind", "path"), [("rbd", None), ("disk", "/dev"), ("zfs", "/dev/zvol/tank"), ("dir", None)])
def test_another_kind_is_refused_by_name(kind: str, path: str | None) -> None:
    with pytest.raises(HostCannot, match=f"'vg0' is of kind {kind}") as caught:
        check_pool("vg0", pool(kind, path))
    assert caught.value.facts["kind"] == kind


FILE = CloudInitFile("/net", "{version: 2, ethernets: {ens3: {addresses: [192.0.2.1/24, '2001:DB8::1/64']}}}")
REQUEST = request("A100-4C", name="b", seed=CloudInit(network_config=FILE))


@pytest.mark.parametrize(
    ("recorded", "warned"),
    [(["2001:db8::1"], True), (["192.0.2.2"], False), (None, False), ("192.0.2.1", False), ({"a": 1}, False)],
)
def test_the_record_of_another_vm_says_which_addresses_it_has(tmp_path, recorded, warned):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="a"))
    snapshot = observe(host.ports, ReadScope())
    (vm,) = snapshot.vms
    changed = replace(vm, record=with_request_fields(vm.record, static_addresses=recorded))
    warnings = check_network_configs(replace(snapshot, vms=(changed,)), [REQUEST])
    assert any("VM a has the static address 2001:db8::1 too" in warning for warning in warnings) is warned

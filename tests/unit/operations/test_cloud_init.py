# SPDX-License-Identifier: Apache-2.0
"""create-vm --cloud-init: each VM gets its own seed, deleted with the VM; the seed's text is stored nowhere else."""

from __future__ import annotations

import pytest

from tests.hosts import context, create, delete, open_sim_host, picture, request
from tests.unit.operations.test_change import ensure
from vgpuctl.domain.cloud_init_seed import build_seed_image
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import InvalidInput, SpecDiffers
from vgpuctl.model.request import CloudInit, CloudInitFile, ExistingDisk, NewDisk
from vgpuctl.model.vm import DiskRole, VmState
from vgpuctl.operations.create import render_xml
from vgpuctl.operations.ensure_vms import ensure_vms
from vgpuctl.operations.images import list_images

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
SECRET = "hunter2"
TEXT = f"#cloud-config\npassword: {SECRET}\n"
DATA = CloudInit(CloudInitFile("/root/user-data", TEXT))


def wanted(**changes):
    return request("A100-4C", **{"name": "vm", "image": IMAGE, "seed": DATA, **changes})


def only_vm(host):
    (record,) = host.ports.hypervisor.domains()
    return parse_domain(record.xml, VmState.STOPPED, host.ports.machine_id)


def seeds(host):
    return {p: f for p, f in host.sim._core.read_state().files.items() if p.endswith("-seed.iso")}


def test_the_seed_is_a_cdrom_with_the_vms_uuid_and_name(host):
    made = create(host.ports, wanted(name="my_vm", disks=(NewDisk(1024),)))
    vm = only_vm(host)
    ((path, file),) = seeds(host).items()
    assert path == f"/var/lib/libvirt/images/my_vm-{vm.uuid[:8]}-seed.iso"
    assert [d.source for d in vm.disks if d.device == "cdrom"] == [path]
    assert [d.role for d in vm.record.disks] == [DiskRole.DISK, DiskRole.DISK, DiskRole.SEED]
    assert file.size == len(build_seed_image(DATA, vm.uuid, "my-vm"))
    (row,) = [d for d in made.data.disks if d.path == path]
    assert (row.device, row.size_bytes, row.made) == ("cdrom", None, True)


def test_an_installers_cdrom_comes_first_and_is_the_one_that_is_compared(host):
    installer = "/srv/images/debian-12-netinst.iso"
    create(host.ports, wanted(image=None, cdrom=installer))
    assert only_vm(host).disks[0].source == installer
    sources = dict.fromkeys(("cdrom", "cloud_init", "disk"), "given")
    assert not ensure(host, wanted(image=None, cdrom=installer, sources=sources)).changed


def test_the_text_is_not_in_the_record_the_simulated_host_or_the_output(tmp_path):
    host = open_sim_host(tmp_path)
    planned = create(host.ports, wanted(), dry_run=True)
    made = create(host.ports, wanted())
    output = f"{planned}{made}{only_vm(host)}{render_xml(host.ports, wanted(name='other'))}{wanted()}"
    assert SECRET not in output
    host.sim.close()
    holders = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert [(path.parent.name, path.stat().st_mode & 0o777) for path in holders] == [("volumes", 0o600)]
    assert any(DATA.paths[0] in step for step in planned.steps)
    assert planned.data.sources["cloud_init"].value == DATA.paths[0]


@pytest.mark.parametrize("keep", [False, True])
def test_the_seed_is_deleted_with_the_vm_even_if_disks_stay(host, keep):
    before = set(picture(host).files)
    create(host.ports, wanted())
    delete(host.ports, "vm", keep_disks=keep)
    assert not seeds(host)
    assert len(set(picture(host).files) - before) == (1 if keep else 0)


def test_without_a_system_there_is_nothing_to_set_up(host):
    with pytest.raises(InvalidInput, match="cloud-init needs an operating system"):
        create(host.ports, wanted(image=None))
    assert not picture(host).domains
    create(host.ports, wanted(image=None, disks=(ExistingDisk(IMAGE),)))
    assert len(seeds(host)) == 1


def test_several_vms_have_a_seed_each_with_an_identity_of_its_own(host):
    names = ("vdi-1", "vdi-2")
    ensure_vms(host.ports, context(wait_seconds=5), wanted(name=None), names, start=False, parallel=2)
    assert len({file.digest for file in seeds(host).values()}) == 2


def test_a_seed_whose_vm_was_undefined_by_hand_is_listed_as_an_orphan(host):
    create(host.ports, wanted(), start=False)
    host.ports.hypervisor.undefine(only_vm(host).uuid)
    roles = {row.path: row.role for row in list_images(host.ports).data}
    assert [roles[path] for path in seeds(host)] == ["orphan"]


def test_ensure_vm_compares_the_path_alone(host):
    typed = {"cloud_init": "given", "image": "given", "storage_pool": "given"}
    create(host.ports, wanted())
    other_text = CloudInit(CloudInitFile(DATA.paths[0], "#cloud-config\na: 1\n"))
    assert not ensure(host, wanted(sources=typed, seed=other_text)).changed
    with pytest.raises(SpecDiffers, match=r"cloud_init: /root/user-data -> /root/other"):
        ensure(host, wanted(sources=typed, seed=CloudInit(CloudInitFile("/root/other", TEXT))))
    create(host.ports, wanted(name="bare", seed=None))
    with pytest.raises(SpecDiffers, match=r"cloud_init: none -> /root/user-data"):
        ensure(host, wanted(name="bare", sources={"cloud_init": "given"}))


def with_address(name, address, **changes):
    text = f"{{version: 2, ethernets: {{ens3: {{addresses: [{address}]}}}}}}"
    return wanted(name=name, seed=CloudInit(network_config=CloudInitFile(f"/root/{name}", text)), **changes)


def test_a_static_address_that_another_vm_has_is_warned_of_by_its_name(host):
    assert create(host.ports, with_address("web-1", "192.0.2.10/24")).warnings == ()
    assert create(host.again().ports, with_address("web-2", "192.0.2.11/24")).warnings == ()
    second = create(host.again().ports, with_address("web-3", "192.0.2.10/25"), dry_run=True)
    assert second.warnings == ("VM web-1 has the static address 192.0.2.10 too: the two cannot be on one network",)
    several = ensure_vms(
        host.again().ports,
        context(dry_run=True, wait_seconds=0),
        with_address("v", "192.0.2.9/24"),
        ("v-1", "v-2"),
        seeds={"v-2": with_address("v", "192.0.2.11/24").seed},
        start=False,
        parallel=1,
    )
    assert several.warnings == ("VM web-2 has the static address 192.0.2.11 too: the two cannot be on one network",)
    delete(host.again().ports, "web-1")
    assert create(host.again().ports, with_address("web-3", "192.0.2.10/24")).warnings == ()


def test_the_address_in_the_record_makes_no_difference_to_a_later_request(host):
    create(host.ports, with_address("vm", "192.0.2.10/24"))
    assert only_vm(host).record.request_fields["static_addresses"] == ["192.0.2.10"]
    sources = {"network_config": "given"}
    again = ensure(host.again(), with_address("vm", "192.0.2.10/24", sources=sources))
    assert not again.changed


def test_windows_needs_cloudbase_init_in_the_image(host):
    made = create(host.ports, with_address("vm", "192.0.2.10/24", os="windows11", memory_mib=4096, vcpus=2))
    assert "/root/vm: Windows applies it only if cloudbase-init is in the image" in made.warnings

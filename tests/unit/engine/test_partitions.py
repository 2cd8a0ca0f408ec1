# SPDX-License-Identifier: Apache-2.0
"""vGPUs on GPUs with MIG and mixed sizes: made where they were planned, and again after a boot.

Size: each form of a GPU takes the same steps, side by side.
"""

from __future__ import annotations

import pytest

from tests.mixed_sizes import FORMS, PRO, Q4, Q24, Q48, mixed, opened, overlapping, placed, seen, switch
from tests.unit.engine.test_restore import restore
from tests.vgpus import make, spec_of
from tests.worlds import Host, create, delete, open_host, picture, start, stop, wish
from vgpuctl.backends import of
from vgpuctl.domain.parse import parse
from vgpuctl.engine import queries
from vgpuctl.engine.observe import Want, observe
from vgpuctl.errors import InUse, NoCapacity, VerifyFailed, VgpuctlError
from vgpuctl.hook.run import prepare
from vgpuctl.host.nvml import NoNvml
from vgpuctl.model.gpu import Backend, Mode, Vgpu
from vgpuctl.model.vm import PromisedVgpu, VmState
from vgpuctl.value import replace

H100_MIG, H100 = "0000:3b:00.0", "0000:3f:00.0"
A16 = 'version: 1\nkernel: 5.14.0-427.el9_4.x86_64\nnvidia: {driver: "550.90.05"}\ngpus:\n  - {model: A16}\n'
OLD = """version: 1
nvidia: {driver: "550.144.02"}
gpus:
  - {model: RTX PRO 6000}
"""


def record(host: Host, name: str):
    found = host.world.hypervisor.find_domain(next(v.vm_uuid for v in seen(host) if v.vm == name))
    return parse(found.xml, VmState.STOPPED, host.world.machine_id).promise


def last_quarter(host: Host) -> None:
    """Put a vGPU on the last quarter of the GPU: a small one goes beside it, and the driver's choice is the first."""
    for number in range(4):
        create(host.world, wish(Q24, name=f"quarter-{number}"), start=False)
    for number in range(3):
        delete(host.world, f"quarter-{number}")
    assert placed(host) == {"quarter-3": 72}


def old(directory) -> Host:
    host = open_host(directory, text=OLD)
    switch(host)
    return host


@pytest.mark.parametrize("form", FORMS)
def test_it_is_moved_from_where_the_driver_put_it_and_both_places_count_meanwhile(tmp_path, form):
    host = mixed(tmp_path, form)
    last_quarter(host)
    between: list[Vgpu] = []

    class Looking:
        def write(self, path: str, text: str) -> None:
            if path.endswith("placement_id"):
                between.extend(v for v in seen(host) if v.vm == "small")
            host.sim.sysfs.write(path, text)

        def __getattr__(self, name: str) -> object:
            return getattr(host.sim.sysfs, name)

    create(replace(host.world, sysfs=Looking()), wish(Q4, name="small"), start=False)
    assert placed(host)["small"] == 68
    assert [(v.placement_id, v.due_placement_id) for v in between] == [(0, 68)]


@pytest.mark.parametrize("form", FORMS)
def test_each_size_goes_where_it_spoils_least_and_the_driver_is_told(tmp_path, form):
    host = mixed(tmp_path, form)
    for name, profile in (("small", Q4), ("big", Q48), ("half", Q24)):
        done = create(host.world, wish(profile, name=name), start=False)
        (vgpu,) = done.data["vgpus"]
        assert vgpu["placement_id"] == placed(host)[name] is not None
    assert overlapping(host) == []
    assert [v.due_placement_id for v in seen(host)] == [None] * 3
    assert record(host, "half").vgpus[0].placement_id == placed(host)["half"]
    assert {c.vm: c.placement_id for c in host.world.claims.all()} == placed(host)


def test_vgpus_of_one_vm_lie_beside_each_other(tmp_path):
    host = mixed(tmp_path)
    several = replace(wish(Q24, name="one"), profiles=((Q4, 2), (Q24, 1), (Q48, 1)))
    done = create(host.world, several)
    assert len({v["placement_id"] for v in done.data["vgpus"]}) == 4
    assert overlapping(host) == []
    free = {p["profile"]: p["free"] for p in queries.list_profiles(host.world, everything=True).data}
    assert (free[Q48], free["DC-96Q"]) == (0, 0)


@pytest.mark.parametrize("form", FORMS)
def test_the_driver_takes_as_many_as_were_counted_and_not_one_more(tmp_path, form):
    host = mixed(tmp_path, form)
    create(host.world, wish(Q48, name="big"), start=False)
    create(host.world, wish(Q4, name="small"), start=False)
    free = next(p["free"] for p in queries.list_profiles(host.world).data if p["profile"] == "DC-8Q")
    for number in range(free):
        create(host.world, wish("DC-8Q", name=f"more-{number}"), start=False)
    with pytest.raises(NoCapacity) as raised:
        create(host.world, wish("DC-8Q", name="over"), start=False)
    assert "it has mixed sizes" in str(raised.value.facts["details"])
    assert overlapping(host) == []


@pytest.mark.parametrize("form", FORMS)
def test_after_a_boot_each_is_where_it_was_also_one_that_comes_alone(tmp_path, form):
    host = mixed(tmp_path, form)
    for name, profile in (("first", Q4), ("second", Q48), ("third", Q4)):
        create(host.world, wish(profile, name=name), start=False)
    before = placed(host)
    delete(host.world, "first")
    del before["first"]
    host.sim.reboot()
    host = host.again()
    switch(host)
    assert {str(v.vm): v.placement_id for v in seen(host)} == before  # promised, and not made yet
    start(host.world, "third")
    restore(host)
    assert placed(host) == before


def test_a_place_that_somebody_took_meanwhile_is_named_with_its_taker(tmp_path):
    host = mixed(tmp_path)
    create(host.world, wish(Q24, name="mine"), start=False)
    place = placed(host)["mine"]
    host.sim.reboot()
    host = host.again()
    gpu = observe(host.world, Want(types=True)).gpus[0]
    switch(host)
    kind = next(t.type_id for t in gpu.types if t.profile == "DC-96Q")
    free = gpu.functions[-1]
    host.world.sysfs.write(f"{free.path}/nvidia/current_vgpu_type", f"{kind}\n")
    with pytest.raises((InUse, NoCapacity)) as raised:
        start(host.world, "mine")
    assert free.address in str(raised.value) or "no room" in str(raised.value)
    assert picture(host).types == {free.address: int(kind)}
    assert place is not None


def test_a_refused_move_takes_everything_back(tmp_path):
    """Somebody who asks nobody takes the place between the plan and the write."""
    host = mixed(tmp_path)
    last_quarter(host)
    before = picture(host)
    gpu = observe(host.world, Want(types=True)).gpus[0]
    kind = next(t.type_id for t in gpu.types if t.profile == Q24)

    class Stealing:
        def write(self, path: str, text: str) -> None:
            if path.endswith("placement_id"):
                other = gpu.functions[-1].path
                host.sim.sysfs.write(f"{other}/nvidia/current_vgpu_type", f"{kind}\n")
                host.sim.sysfs.write(f"{other}/nvidia/placement_id", text)
            host.sim.sysfs.write(path, text)

        def __getattr__(self, name: str) -> object:
            return getattr(host.sim.sysfs, name)

    world = replace(host.world, sysfs=Stealing())
    with pytest.raises(NoCapacity) as raised:
        create(world, wish(Q4, name="late"), start=False)
    assert "placement" in str(raised.value)
    assert {k: v for k, v in picture(host).types.items() if k != gpu.functions[-1].address} == before.types
    assert (picture(host).domains, picture(host).claims) == (before.domains, before.claims)


def test_a_driver_without_the_file_puts_each_where_it_likes_and_the_count_is_never_too_big(tmp_path):
    host = old(tmp_path)
    for name in ("one", "two"):
        create(host.world, wish(Q24, name=name), start=False)
    assert [v.placement_id for v in seen(host)] == [None, None]
    free = next(p["free_at_least"] for p in queries.list_profiles(host.world).data if p["profile"] == Q24)
    assert 0 < free <= 2


def test_mdevs_of_an_old_driver_go_where_it_puts_them_and_the_last_one_counted_fits(tmp_path):
    host = open_host(tmp_path, text=A16)
    gpu = switch(host)
    for name, profile in (("small", "A16-4Q"), ("half", "A16-8Q")):
        done = create(host.world, wish(profile, name=name, gpu=gpu), start=False)
        assert done.data["vgpus"][0]["placement_id"] is None
    with pytest.raises(NoCapacity):
        create(host.world, wish("A16-16Q", name="whole", gpu=gpu), start=False)
    left = next(t for t in queries.show_gpu(host.world, gpu).data["types"] if t["profile"] == "A16-4Q")
    assert (left["free"], left["free_at_least"]) == (None, 1)
    create(host.world, wish("A16-4Q", name="last", gpu=gpu), start=False)
    host.sim.reboot()
    host = host.again()
    switch(host)
    restore(host)
    assert {v.profile for v in seen(host) if v.present} == {"A16-4Q", "A16-8Q"}
    assert len(seen(host)) == 3


@pytest.mark.parametrize("form", FORMS)
def test_a_vm_that_lends_its_place_gets_it_again_or_another(tmp_path, form):
    host = mixed(tmp_path, form)
    create(host.world, wish(Q24, name="lends", reserve="running"))
    own = placed(host)["lends"]
    stop(host.world, "lends")
    start(host.world, "lends")
    assert placed(host)["lends"] == own
    stop(host.world, "lends")
    create(host.world, wish(Q48, name="big"), start=False)
    create(host.world, wish(Q24, name="taker"), start=False)
    start(host.world, "lends")
    assert overlapping(host) == []
    assert len(placed(host)) == 3


@pytest.mark.parametrize("form", FORMS)
def test_the_hook_makes_it_where_the_claim_says(tmp_path, form):
    host = mixed(tmp_path, form)
    create(host.world, wish(Q4, name="first"), start=False)
    create(host.world, wish(Q24, name="second"), start=False)
    before = placed(host)
    host.sim.reboot()
    host = host.again()
    switch(host)
    uuid = next(v.vm_uuid for v in seen(host) if v.vm == "second")
    xml = host.world.hypervisor.find_domain(uuid).xml
    prepare(replace(host.world, nvml=NoNvml("libvirt's hook does without it")), xml)
    (made,) = (v for v in seen(host) if v.present)
    assert (made.vm, made.placement_id, made.due_placement_id) == ("second", before["second"], None)


@pytest.mark.parametrize("form", FORMS)
def test_without_mixed_sizes_a_recorded_place_means_nothing(tmp_path, form):
    host = mixed(tmp_path, form)
    create(host.world, wish(Q24, name="one"), start=False)
    host.sim.reboot()
    host = host.again()
    start(host.world, "one")
    assert [(v.placement_id, v.present) for v in seen(host)] == [(None, True)]


@pytest.mark.parametrize("form", FORMS)
def test_a_vgpu_without_a_vm_gets_a_place_and_after_a_boot_one_that_no_vm_was_promised(tmp_path, form):
    host = mixed(tmp_path, form)
    made = make(host.world, Q24, "spare")
    create(host.world, wish(Q48, name="big"), start=False)
    assert made.data["placement_id"] is not None
    host.sim.reboot()
    host = host.again()
    switch(host)
    restore(host, spec_of(host))
    assert overlapping(host) == []
    assert len(seen(host)) == 2


def test_with_mig_each_vgpu_has_an_instance_and_the_next_is_refused(tmp_path):
    host = open_host(tmp_path, "h100-mig")
    for name in ("one", "two"):
        create(host.world, wish("H100-1-10C", name=name), start=False)
    create(host.world, wish("H100-3-40C", name="three"), start=False)
    mine = [v for v in seen(host) if v.gpu == H100_MIG]
    assert len({v.gi_id for v in mine} - {None}) == 3
    with pytest.raises(NoCapacity) as raised:
        create(host.world, wish("H100-1-10C", name="four"), start=False)
    reasons = [reason for d in raised.value.facts["gpus"] for reason in d["reasons"]]
    assert "all 2 GPU instances 1g.10gb are in use: one, two" in reasons
    assert any(f"vgpuctl set-mig {H100} --for H100-1-10C:1" in reason for reason in reasons)
    with pytest.raises(NoCapacity) as raised:
        create(host.world, wish("H100-10C", name="five", gpu=H100_MIG), start=False)
    assert f"vgpuctl set-mig {H100_MIG} --off" in str(raised.value.facts["details"])


SHARED_INSTANCES = """version: 1
nvidia: {driver: "595.45.04"}
gpus:
  - {model: RTX PRO 6000, mig: ["1g.24gb+gfx", "1g.24gb+gfx"]}
"""


def instances_of(host: Host) -> dict[str | None, int | None]:
    return {v.vm: v.gi_id for v in seen(host)}


def test_a_vgpu_joins_those_of_its_size_where_the_driver_would_take_an_empty_instance(tmp_path):
    host = open_host(tmp_path, text=SHARED_INSTANCES)
    for name, profile in (("half", "DC-1-12Q"), ("third", "DC-1-8Q")):
        create(host.world, wish(profile, name=name), start=False)
    assert instances_of(host) == {"half": 3, "third": 4}
    delete(host.world, "half")
    create(host.world, wish("DC-1-8Q", name="other"), start=False)
    assert instances_of(host) == {"third": 4, "other": 4}
    create(host.world, wish("DC-1-24Q", name="whole"), start=False)
    assert instances_of(host)["whole"] == 3


def test_after_a_boot_what_is_promised_counts_exactly_and_is_made_so(tmp_path):
    host = open_host(tmp_path, text=SHARED_INSTANCES)
    for name in ("one", "two", "three"):
        create(host.world, wish("DC-1-8Q", name=name), start=False)
    host.sim.reboot()
    host = host.again()
    gpu = observe(host.world, Want()).gpus[0]
    host.world.vendor.sriov_manage("-d", gpu.address, deadline_seconds=1)
    host.world.nvml.set_mig(gpu.address, enabled=True)
    host.world.vendor.sriov_manage("-e", gpu.address, deadline_seconds=1)
    for start_at in (0, 1):
        host.world.nvml.make_instance(gpu.address, 47, start_at)
    whole = next(p for p in queries.list_profiles(host.world).data if p["profile"] == "DC-1-24Q")
    assert (whole["free"], [v.present for v in seen(host)]) == (1, [False] * 3)
    for name in ("three", "one", "two"):
        start(host.world, name)
    assert len(set(instances_of(host).values())) == 1


def test_an_instance_that_filled_up_meanwhile_is_passed_over_and_one_that_lies_is_told(tmp_path):
    host = open_host(tmp_path, text=SHARED_INSTANCES)
    function = observe(host.world, Want()).gpus[0].functions[0]
    vgpu = PromisedVgpu(
        0, Backend.VENDOR_VF, H100_MIG, function.address, function.address, "DC-1-8Q", framebuffer_mib=8192
    )
    (step,) = of(Backend.VENDOR_VF).make(vgpu, "1555", (99, 4))
    step.perform(host.world)
    step.verify(host.world)
    path = f"{function.path}/nvidia/gpu_instance_id"
    assert host.world.sysfs.read(path) == "4\n"
    step.undo(host.world)

    class Deaf:
        def write(self, where: str, text: str) -> None:
            if where != path:
                host.sim.sysfs.write(where, text)

        def __getattr__(self, name: str) -> object:
            return getattr(host.sim.sysfs, name)

    (step,) = of(Backend.VENDOR_VF).make(vgpu, "1555", (4,))
    with pytest.raises(VerifyFailed, match="GPU instance 4 but reads back 3"):
        step.perform(replace(host.world, sysfs=Deaf()))
    step.undo(host.world)
    assert picture(host).types == {}


def test_the_modes_are_told_and_a_reboot_leaves_mig_without_instances(tmp_path):
    host = open_host(tmp_path, "h100-mig")
    assert [g.mode for g in observe(host.world, Want()).gpus] == [Mode.MIG_VGPU, Mode.VGPU]
    create(host.world, wish("H100-1-10C", name="one"), start=False)
    host.sim.reboot()
    host = host.again()
    first = observe(host.world, Want(types=True)).gpus[0]
    if first.mig is not None and first.mig.enabled:
        assert first.mig.instances == ()
    with pytest.raises(VgpuctlError):
        start(host.world, "one")


@pytest.mark.parametrize("form", FORMS)
def test_where_a_vgpu_is_is_read_only_in_these_modes_and_only_where_one_is(tmp_path, form):
    host = opened(tmp_path, form)
    create(host.world, wish(Q24, name="one"), start=False)
    assert places_read(host) == 0
    delete(host.world, "one")
    switch(host)
    for name in ("one", "two"):
        create(host.world, wish(Q24, name=name), start=False)
    assert places_read(host) == 2


def places_read(host: Host) -> int:
    """Return how many files list-gpus reads to learn where vGPUs are."""
    read: list[str] = []

    class Counting:
        def read(self, path: str) -> str:
            read.append(path.rpartition("/")[2])
            return host.sim.sysfs.read(path)

        def __getattr__(self, name: str) -> object:
            return getattr(host.sim.sysfs, name)

    queries.list_gpus(replace(host.world, sysfs=Counting()))
    return read.count("placement_id") + read.count("gpu_instance_id")


def test_one_made_without_mixed_sizes_takes_at_a_boot_nobodys_place(tmp_path):
    host = open_host(tmp_path, PRO)
    create(host.world, wish(Q24, name="before"), start=False)
    for name in ("with", ""):
        host.sim.reboot()
        host = host.again()
        switch(host)
        if name:
            create(host.world, wish(Q24, name=name), start=False)
    assert [v.placement_id for v in seen(host)] == [None, 0]
    restore(host)
    assert (placed(host)["with"], overlapping(host)) == (0, [])


def test_one_that_was_not_moved_any_more_is_moved_at_the_next_start_where_nothing_is_in_the_way(tmp_path):
    host = mixed(tmp_path)
    for name in ("first", "second"):
        create(host.world, wish(Q24, name=name), start=False)
    before = placed(host)
    host.sim.reboot()
    host = host.again()
    gpu = switch(host)
    second = next(v for v in seen(host) if v.vm == "second")
    (number,) = (t.type_id for t in observe(host.world, Want(types=True)).gpu(gpu).types if t.profile == Q24)
    host.world.sysfs.write(f"/sys/bus/pci/devices/{second.function}/nvidia/current_vgpu_type", f"{number}\n")
    assert [(v.vm, v.placement_id, v.present) for v in seen(host)] == [("first", 0, False), ("second", 0, True)]
    start(host.world, "second")
    start(host.world, "first")
    assert placed(host) == before
    assert [v.due_placement_id for v in seen(host)] == [None, None]

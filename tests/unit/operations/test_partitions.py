# SPDX-License-Identifier: Apache-2.0
"""vGPUs on GPUs with MIG and mixed sizes: created where planned, also at once, and again after a boot.

Size: each form of a GPU takes the same steps, side by side.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, create, delete, open_sim_host, picture, request, start, stop
from tests.meanwhile import rebooted, with_calls
from tests.mixed_sizes import FORMS, PRO, Q4, Q24, Q48, mixed, opened, overlapping, placed, seen, switch
from tests.processes import clean
from tests.reserving_vms import record_of
from tests.unit.operations.test_ensure_vms import ensure, names
from tests.unit.operations.test_restore import restore
from tests.vgpus import make, spec_of
from vgpuctl.backends import backend_for
from vgpuctl.errors import InUse, NoCapacity, VerifyFailed, VgpuctlError
from vgpuctl.hook.run import prepare
from vgpuctl.host.absent import AbsentNvml
from vgpuctl.host.processes import HostClock
from vgpuctl.model.gpu import Backend, Vgpu
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations import queries
from vgpuctl.value import replace

H100_MIG, H100 = "0000:3b:00.0", "0000:3f:00.0"
A16 = 'version: 1\nkernel: 5.14.0-427.el9_4.x86_64\nnvidia: {driver: "550.90.05"}\ngpus:\n  - {model: A16}\n'
OLD = """version: 1
nvidia: {driver: "550.144.02"}
gpus:
  - {model: RTX PRO 6000}
"""


def create_off(host: SimulatedHost, **profiles: str) -> None:
    """Create VMs with these profiles, in this order."""
    for name, profile in profiles.items():
        create(host.ports, request(profile, name=name), start=False)


def rebooted_mixed(host: SimulatedHost) -> SimulatedHost:
    """Return the host after a boot, with its GPU in mixed-size mode again."""
    host = rebooted(host)
    switch(host)
    return host


def last_quarter(host: SimulatedHost) -> None:
    """Put a vGPU on the last quarter of the GPU: a small one goes next to it, and the driver's choice is the first."""
    create_off(host, **{f"quarter-{number}": Q24 for number in range(4)})
    for number in range(3):
        delete(host.ports, f"quarter-{number}")
    assert placed(host) == {"quarter-3": 72}


@pytest.fixture(params=FORMS)
def host(tmp_path, request):
    """Return a host whose GPU is in mixed-size mode."""
    return mixed(tmp_path, request.param)


def test_it_is_moved_from_where_the_driver_put_it_and_both_places_count_meanwhile(host):
    last_quarter(host)
    between: list[Vgpu] = []

    def write(path: str, text: str) -> None:
        if path.endswith("placement_id"):
            between.extend(v for v in seen(host) if v.vm == "small")
        host.sim.sysfs.write(path, text)

    create(with_calls(host.ports, "sysfs", write=write), request(Q4, name="small"), start=False)
    assert placed(host)["small"] == 68
    assert [(v.placement_id, v.target_placement_id) for v in between] == [(0, 68)]


def test_each_size_gets_the_placement_id_that_the_plan_chose(host):
    for name, profile in (("small", Q4), ("big", Q48), ("half", Q24)):
        done = create(host.ports, request(profile, name=name), start=False)
        (vgpu,) = done.data.vgpus
        assert vgpu.placement_id == placed(host)[name] is not None
    assert overlapping(host) == []
    assert [v.target_placement_id for v in seen(host)] == [None] * 3
    assert record_of(host, "half").vgpus[0].placement_id == placed(host)["half"]
    assert {c.vm: c.placement_id for c in host.ports.claims.all()} == placed(host)


def test_vgpus_of_one_vm_do_not_overlap(tmp_path):
    host = mixed(tmp_path)
    several = replace(request(Q24, name="one"), profiles=((Q4, 2), (Q24, 1), (Q48, 1)))
    done = create(host.ports, several)
    assert len({v.placement_id for v in done.data.vgpus}) == 4
    assert overlapping(host) == []
    free = {p.profile: p.free for p in queries.list_profiles(host.ports, everything=True).data}
    assert (free[Q48], free["DC-96Q"]) == (0, 0)


def test_the_driver_takes_as_many_as_were_counted_and_not_one_more(host):
    create_off(host, big=Q48, small=Q4)
    free = next(p.free for p in queries.list_profiles(host.ports).data if p.profile == "DC-8Q")
    create_off(host, **{f"more-{number}": "DC-8Q" for number in range(free)})
    with pytest.raises(NoCapacity) as raised:
        create(host.ports, request("DC-8Q", name="over"), start=False)
    assert "it has mixed sizes" in str(raised.value.facts["details"])
    assert overlapping(host) == []


def test_after_a_boot_each_is_where_it_was_also_one_that_comes_alone(host):
    create_off(host, first=Q4, second=Q48, third=Q4)
    before = placed(host)
    delete(host.ports, "first")
    del before["first"]
    host = rebooted_mixed(host)
    assert {str(v.vm): v.placement_id for v in seen(host)} == before  # recorded, and not created yet
    start(host.ports, "third")
    restore(host)
    assert placed(host) == before


def test_a_place_taken_meanwhile_is_named_with_its_holder(tmp_path):
    host = mixed(tmp_path)
    create_off(host, mine=Q24)
    host = rebooted_mixed(host)
    gpu = observe(host.ports, ReadScope(types=True)).gpus[0]
    kind = next(t.type_id for t in gpu.types if t.profile == "DC-96Q")
    free = gpu.functions[-1]
    host.ports.sysfs.write(f"{free.path}/nvidia/current_vgpu_type", f"{kind}\n")
    with pytest.raises((InUse, NoCapacity)) as raised:
        start(host.ports, "mine")
    assert free.address in str(raised.value) or "no room" in str(raised.value)
    assert picture(host).types == {free.address: int(kind)}


def test_a_refused_move_takes_everything_back(tmp_path):
    """An unmanaged vGPU takes the place between the plan and the write."""
    host = mixed(tmp_path)
    last_quarter(host)
    before = picture(host)
    gpu = observe(host.ports, ReadScope(types=True)).gpus[0]
    kind = next(t.type_id for t in gpu.types if t.profile == Q24)

    def write(path: str, text: str) -> None:
        if path.endswith("placement_id"):
            other = gpu.functions[-1].path
            host.sim.sysfs.write(f"{other}/nvidia/current_vgpu_type", f"{kind}\n")
            host.sim.sysfs.write(f"{other}/nvidia/placement_id", text)
        host.sim.sysfs.write(path, text)

    with pytest.raises(NoCapacity, match="placement"):
        create(with_calls(host.ports, "sysfs", write=write), request(Q4, name="late"), start=False)
    assert {k: v for k, v in picture(host).types.items() if k != gpu.functions[-1].address} == before.types
    assert (picture(host).domains, picture(host).claims) == (before.domains, before.claims)


def test_a_driver_without_the_file_puts_each_where_it_likes_and_the_count_is_never_too_big(tmp_path):
    host = open_sim_host(tmp_path, text=OLD)
    switch(host)
    create_off(host, one=Q24, two=Q24)
    assert [v.placement_id for v in seen(host)] == [None, None]
    free = next(p.free_at_least for p in queries.list_profiles(host.ports).data if p.profile == Q24)
    assert 0 < free <= 2


def test_mdevs_of_an_old_driver_go_where_it_puts_them_and_the_last_one_counted_fits(tmp_path):
    host = open_sim_host(tmp_path, text=A16)
    gpu = switch(host)
    for name, profile in (("small", "A16-4Q"), ("half", "A16-8Q")):
        done = create(host.ports, request(profile, name=name, gpu=gpu), start=False)
        assert done.data.vgpus[0].placement_id is None
    with pytest.raises(NoCapacity):
        create(host.ports, request("A16-16Q", name="whole", gpu=gpu), start=False)
    left = next(t for t in queries.show_gpu(host.ports, gpu).data.types if t.profile == "A16-4Q")
    assert (left.free, left.free_at_least) == (None, 1)
    create(host.ports, request("A16-4Q", name="last", gpu=gpu), start=False)
    host = rebooted_mixed(host)
    restore(host)
    assert {v.profile for v in seen(host) if v.present} == {"A16-4Q", "A16-8Q"}
    assert len(seen(host)) == 3


def test_an_unreserved_vm_gets_its_old_place_or_another(host):
    create(host.ports, request(Q24, name="lends", reserve="running"))
    own = placed(host)["lends"]
    stop(host.ports, "lends")
    start(host.ports, "lends")
    assert placed(host)["lends"] == own
    stop(host.ports, "lends")
    create_off(host, big=Q48, taker=Q24)
    start(host.ports, "lends")
    assert overlapping(host) == []
    assert len(placed(host)) == 3


def test_the_hook_makes_it_where_the_claim_says(host):
    create_off(host, first=Q4, second=Q24)
    before = placed(host)
    host = rebooted_mixed(host)
    xml = host.ports.hypervisor.find_domain("second").xml
    prepare(replace(host.ports, nvml=AbsentNvml("libvirt's hook does without it")), xml)
    (made,) = (v for v in seen(host) if v.present)
    assert (made.vm, made.placement_id, made.target_placement_id) == ("second", before["second"], None)


def test_without_mixed_sizes_a_recorded_place_means_nothing(host):
    create(host.ports, request(Q24, name="one"), start=False)
    host = rebooted(host)
    start(host.ports, "one")
    assert [(v.placement_id, v.present) for v in seen(host)] == [(None, True)]


def test_after_a_boot_a_vgpu_without_a_vm_avoids_places_assigned_to_vms(host):
    made = make(host.ports, Q24, "spare")
    create_off(host, big=Q48)
    assert made.data.placement_id is not None
    host = rebooted_mixed(host)
    restore(host, spec_of(host))
    assert overlapping(host) == []
    assert len(seen(host)) == 2


def test_with_mig_each_vgpu_has_an_instance_and_the_next_is_refused(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    create_off(host, one="H100-1-10C", two="H100-1-10C", three="H100-3-40C")
    mine = [v for v in seen(host) if v.gpu == H100_MIG]
    assert len({v.gi_id for v in mine} - {None}) == 3
    with pytest.raises(NoCapacity) as raised:
        create(host.ports, request("H100-1-10C", name="four"), start=False)
    reasons = [reason for d in raised.value.facts["gpus"] for reason in d["reasons"]]
    assert "all 2 GPU instances 1g.10gb are in use: one, two" in reasons
    assert any(f"vgpuctl set-mig {H100} --for H100-1-10C:1" in reason for reason in reasons)
    with pytest.raises(NoCapacity) as raised:
        create(host.ports, request("H100-10C", name="five", gpu=H100_MIG), start=False)
    assert f"vgpuctl set-mig {H100_MIG} --off" in str(raised.value.facts["details"])


SHARED_INSTANCES = """version: 1
nvidia: {driver: "595.45.04"}
gpus:
  - {model: RTX PRO 6000, mig: ["1g.24gb+gfx", "1g.24gb+gfx"]}
"""


def instances_of(host: SimulatedHost) -> dict[str | None, int | None]:
    return {v.vm: v.gi_id for v in seen(host)}


def test_a_vgpu_joins_those_of_its_size_where_the_driver_would_take_an_empty_instance(tmp_path):
    host = open_sim_host(tmp_path, text=SHARED_INSTANCES)
    create_off(host, half="DC-1-12Q", third="DC-1-8Q")
    assert instances_of(host) == {"half": 3, "third": 4}
    delete(host.ports, "half")
    create_off(host, other="DC-1-8Q")
    assert instances_of(host) == {"third": 4, "other": 4}
    create_off(host, whole="DC-1-24Q")
    assert instances_of(host)["whole"] == 3


def test_after_a_boot_recorded_vgpus_count_and_are_created(tmp_path):
    host = open_sim_host(tmp_path, text=SHARED_INSTANCES)
    create_off(host, one="DC-1-8Q", two="DC-1-8Q", three="DC-1-8Q")
    host = rebooted(host)
    with pytest.raises(VgpuctlError):
        start(host.ports, "one")
    gpu = observe(host.ports, ReadScope()).gpus[0]
    host.ports.vendor_commands.sriov_manage("-d", gpu.address, deadline_seconds=1)
    host.ports.nvml.set_mig(gpu.address, enabled=True)
    host.ports.vendor_commands.sriov_manage("-e", gpu.address, deadline_seconds=1)
    for start_at in (0, 1):
        host.ports.nvml.create_gpu_instance(gpu.address, 47, start_at)
    whole = next(p for p in queries.list_profiles(host.ports).data if p.profile == "DC-1-24Q")
    assert (whole.free, [v.present for v in seen(host)]) == (1, [False] * 3)
    for name in ("three", "one", "two"):
        start(host.ports, name)
    assert len(set(instances_of(host).values())) == 1


def test_an_instance_that_filled_up_is_skipped_and_a_lost_write_is_reported(tmp_path):
    host = open_sim_host(tmp_path, text=SHARED_INSTANCES)
    function = observe(host.ports, ReadScope()).gpus[0].functions[0]
    vgpu = AssignedVgpu(
        0, Backend.VENDOR_VF, H100_MIG, function.address, function.address, "DC-1-8Q", framebuffer_mib=8192
    )
    (step,) = backend_for(Backend.VENDOR_VF).create_steps(vgpu, "1555", (99, 4))
    step.perform(host.ports)
    step.verify(host.ports)
    path = f"{function.path}/nvidia/gpu_instance_id"
    assert host.ports.sysfs.read(path) == "4\n"
    step.undo(host.ports)

    def write(where: str, text: str) -> None:
        if where != path:
            host.sim.sysfs.write(where, text)

    (step,) = backend_for(Backend.VENDOR_VF).create_steps(vgpu, "1555", (4,))
    with pytest.raises(VerifyFailed, match="GPU instance 4 but reads back 3"):
        step.perform(with_calls(host.ports, "sysfs", write=write))
    step.undo(host.ports)
    assert picture(host).types == {}


@pytest.mark.parametrize("form", FORMS)
def test_where_a_vgpu_is_is_read_only_in_these_modes_and_only_where_one_is(tmp_path, form):
    host = opened(tmp_path, form)
    create(host.ports, request(Q24, name="one"), start=False)
    assert places_read(host) == 0
    delete(host.ports, "one")
    switch(host)
    create_off(host, one=Q24, two=Q24)
    assert places_read(host) == 2


def places_read(host: SimulatedHost) -> int:
    """Return how many files list-gpus reads to find where vGPUs are."""
    read: list[str] = []

    def count(path: str) -> str:
        read.append(path.rpartition("/")[2])
        return host.sim.sysfs.read(path)

    queries.list_gpus(with_calls(host.ports, "sysfs", read=count))
    return read.count("placement_id") + read.count("gpu_instance_id")


def test_one_made_without_mixed_sizes_takes_no_used_place_at_boot(tmp_path):
    host = open_sim_host(tmp_path, PRO)
    create(host.ports, request(Q24, name="before"), start=False)
    host = rebooted_mixed(host)
    create(host.ports, request(Q24, name="with"), start=False)
    host = rebooted_mixed(host)
    assert [v.placement_id for v in seen(host)] == [None, 0]
    restore(host)
    assert (placed(host)["with"], overlapping(host)) == (0, [])


def test_one_that_was_not_moved_any_more_is_moved_at_the_next_start_where_nothing_is_in_the_way(tmp_path):
    host = mixed(tmp_path)
    create_off(host, first=Q24, second=Q24)
    before = placed(host)
    host = rebooted_mixed(host)
    gpu = observe(host.ports, ReadScope()).gpus[0].address
    second = next(v for v in seen(host) if v.vm == "second")
    (number,) = (t.type_id for t in observe(host.ports, ReadScope(types=True)).gpu(gpu).types if t.profile == Q24)
    host.ports.sysfs.write(f"/sys/bus/pci/devices/{second.function}/nvidia/current_vgpu_type", f"{number}\n")
    assert [(v.vm, v.placement_id, v.present) for v in seen(host)] == [("first", 0, False), ("second", 0, True)]
    start(host.ports, "second")
    start(host.ports, "first")
    assert placed(host) == before
    assert [v.target_placement_id for v in seen(host)] == [None, None]


def test_vms_that_are_made_at_once_never_wait_for_each_others_place(tmp_path):
    host = mixed(tmp_path, clock=HostClock())
    done = ensure(host.ports, request(Q24), names(4), parallel=4, start=False)
    assert {vm.changed for vm in done.data.vms} == {True}
    assert sorted(placed(host).values()) == [0, 24, 48, 72]


def _create(directory: str, profile: str, name: str, ready: object, answers: object) -> None:
    host = open_sim_host(Path(directory), PRO, clock=HostClock())
    ready.wait(60)
    try:
        create(host.ports, request(profile, name=name), start=False)
        answers.put("made")
    except VgpuctlError as error:
        answers.put(error.code)
    except Exception as error:  # noqa: BLE001 - the parent needs the error, or it waits forever
        answers.put(f"bug: {error!r}")


def test_processes_that_create_at_once_never_choose_the_same_place(tmp_path):
    host = mixed(tmp_path)
    context = clean()
    wanted = [Q48, *[Q24] * 2, *[Q4] * 2, "DC-96Q"]
    ready, answers = context.Barrier(len(wanted)), context.Queue()
    arguments = [(str(tmp_path), profile, f"vm-{n}", ready, answers) for n, profile in enumerate(wanted)]
    running = [context.Process(target=_create, args=each) for each in arguments]
    for process in running:
        process.start()
    output = Counter(answers.get(timeout=120) for _ in running)
    for process in running:
        process.join(60)
    assert set(output) <= {"made", "no-capacity"}, output
    assert len(seen(host)) == output["made"] >= 1
    assert overlapping(host) == []

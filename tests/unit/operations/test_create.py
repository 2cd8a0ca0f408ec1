# SPDX-License-Identifier: Apache-2.0
"""create-vm on every simulated host: never over capacity, as many as `explain` says, and nothing left after delete."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults import Watch
from tests.hosts import SimulatedHost, create, delete, open_sim_host, picture, request, start
from tests.meanwhile import rebooted, unchanged, with_calls
from vgpuctl.errors import Exists, Failed, HostCannot, InvalidInput, NoCapacity, NotFound, Refused, Stuck, VgpuctlError
from vgpuctl.model.vm import StuckWrite
from vgpuctl.operations import queries
from vgpuctl.operations.facts import TEMPLATE_DIRECTORY, read_template
from vgpuctl.value import replace

SMALL_L40S = "version: 1\ngpus:\n  - {model: L40S, count: 2}\n"
FULL_POOL = "storage: {filesystem_gib: 10, used_gib: 10, pools: [{name: default}]}"
NO_NVML = "version: 1\nnvidia: {nvml: absent}\ngpus:\n  - {model: A100}\n"
PROFILES = {
    "a100-40": ("A100-4C", "A100-5C", "A100-40C", "A100-1-5C"),
    "t4": ("T4-2Q", "T4-4Q", "T4-2B", "T4-16Q"),
    "a16": ("A16-2Q", "A16-4Q", "A16-16Q"),
    "l40s-x4": ("L40S-12Q", "L40S-24Q", "L40S-48Q"),
    "mixed": ("A100-10C", "T4-4Q", "mtty-1", "mtty-2"),
}


def over_capacity(host: SimulatedHost) -> list[str]:
    """Return the overcommitted GPUs: by framebuffer, by the type's maximum, by VFs."""
    state = host.sim._core.read_state()
    wrong = []
    for gpu in state.machine.gpus.values():
        made = [gpu.types[key] for key in state.vgpus_by_gpu[gpu.address].values()]
        if any(sum(t.units[n] for t in made) > total for n, total in enumerate(gpu.units)):
            wrong.append(gpu.address)
        if gpu.rule == "nvidia" and made:
            one_size = len({t.framebuffer_mib for t in made}) == 1
            if not one_size or len(made) > min(t.maximum for t in made):
                wrong.append(gpu.address)
    return wrong


@pytest.mark.parametrize("scenario", PROFILES)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_no_sequence_of_creating_and_deleting_exceeds_what_fits_or_leaves_anything(scenario, data):
    with tempfile.TemporaryDirectory() as directory:
        host = open_sim_host(Path(directory), scenario)
        before, vms = picture(host), []
        for _ in range(data.draw(st.integers(3, 10))):
            if vms and data.draw(st.booleans()):
                delete(host.ports, vms.pop(data.draw(st.integers(0, len(vms) - 1))))
                continue
            wanted = request(data.draw(st.sampled_from(PROFILES[scenario])), data.draw(st.sampled_from([1, 1, 2, 3])))
            try:
                create(host.ports, wanted, start=data.draw(st.booleans()))
                vms.append(wanted.name)
            except (NoCapacity, Refused):
                pass
            assert not over_capacity(host)
            assert {name for name, _ in picture(host).domains.values()} >= set(vms)
        for name in vms:
            delete(host.ports, name)
        assert picture(host) == before
        host.sim.close()


@pytest.mark.parametrize(
    ("scenario", "text", "profile", "expected"),
    [
        ("a100-40", None, "A100-8C", 5),
        ("t4", None, "T4-8Q", 4),
        ("a16", None, "A16-8Q", 8),
        ("l40s", SMALL_L40S, "L40S-24Q", 4),
        ("mixed", None, "T4-4Q", 3),
        ("mixed", None, "mtty-2", 12),
    ],
)
def test_explain_says_k_more_exactly_when_k_creates_succeed_and_the_next_is_refused(
    tmp_path, scenario, text, profile, expected
):
    host = open_sim_host(tmp_path, scenario, text=text)
    for left in range(expected, 0, -1):
        assert queries.explain(host.ports, profile).data.free == left
        create(host.ports, request(profile), start=left % 2 == 0)
    assert queries.explain(host.ports, profile).data.free == 0
    with pytest.raises(NoCapacity) as raised:
        create(host.ports, request(profile))
    assert raised.value.hint == f"vgpuctl explain {profile}"
    assert not over_capacity(host)


def test_without_nvml_the_number_is_unknown_and_the_driver_decides(tmp_path):
    host = open_sim_host(tmp_path, text=NO_NVML)
    for _ in range(10):
        assert queries.explain(host.ports, "A100-4C").data.free is None
        create(host.ports, request("A100-4C"))
    with unchanged(host), pytest.raises(NoCapacity):
        create(host.ports, request("A100-4C"))


def test_a_refusal_of_the_driver_makes_create_try_the_next_gpu(tmp_path):
    """What only the driver knows: without NVML, an assigned vGPU that is missing after a reboot."""
    text = "version: 1\nnvidia: {nvml: absent}\ngpus:\n  - {model: A100, count: 2}\n"
    text += 'faults:\n  - {on: sysfs-write, match: "*/0000:3b:*/nvidia/current_vgpu_type", errno: EIO}\n'
    host = open_sim_host(tmp_path, text=text)
    done = create(host.ports, request("A100-4C"))
    assert done.data.vgpus[0].gpu == "0000:3f:00.0"


def test_when_every_driver_refuses_it_is_no_capacity_and_all_is_undone(tmp_path):
    text = NO_NVML + 'faults:\n  - {on: sysfs-write, match: "*/current_vgpu_type", errno: EIO}\n'
    host = open_sim_host(tmp_path, text=text)
    with unchanged(host), pytest.raises(NoCapacity) as raised:
        create(host.ports, request("A100-4C"))
    assert "the driver refused it" in str(raised.value)


def test_a_missing_vgpu_of_a_record_keeps_its_place(host):
    for number in range(5):
        create(host.ports, request("A100-8C", name=f"vm-{number}"))
    host = rebooted(host)
    assert not picture(host).types
    assert queries.explain(host.ports, "A100-8C").data.free == 0
    with pytest.raises(NoCapacity):
        create(host.ports, request("A100-4C"))
    for number in range(5):
        start(host.ports, f"vm-{number}")
    assert len(picture(host).types) == len(picture(host).running) == 5


def test_several_vgpus_of_one_vm_are_made_all_or_none(host):
    with unchanged(host), pytest.raises(NoCapacity):
        create(host.ports, request("A100-8C", 6))
    done = create(host.ports, request("A100-8C", 5, name="all"))
    assert len({v.carrier for v in done.data.vgpus}) == 5
    assert picture(host).running[done.data.uuid] == tuple(v.carrier for v in done.data.vgpus)


@pytest.mark.parametrize("profiles", [(("T4-2B", 2),), (("T4-4Q", 1), ("A100-4C", 1)), (("T4-2B", 1), ("T4-4Q", 1))])
def test_vgpus_that_may_not_share_a_vm_are_refused_before_anything_is_written(tmp_path, profiles):
    host = open_sim_host(tmp_path, "mixed")
    with unchanged(host), pytest.raises(Refused):
        create(host.ports, replace(request(), profiles=profiles))


@pytest.mark.parametrize("gpu", ["0000:3b:00.0", "3B:00.0", "00000000:3B:00.0", "A100"])
def test_the_gpu_is_understood_in_every_spelling(tmp_path, gpu):
    host = open_sim_host(tmp_path, "mixed")
    done = create(host.ports, request("A100-4C", gpu=gpu))
    assert done.data.vgpus[0].gpu == "0000:3b:00.0"


@pytest.mark.parametrize(
    ("mode", "gpu", "backend"),
    [
        ("sriov", "0000:86:00.0", "sriov-vf"),
        ("sriov", "0000:af:00.0", "sriov-vf"),
        ("passthrough", "d8:00.0", "passthrough"),
    ],
)
def test_whole_functions_are_given_and_given_back(tmp_path, mode, gpu, backend):
    host = open_sim_host(tmp_path, "mixed")
    before = picture(host)
    done = create(host.ports, request(mode=mode, gpu=gpu, name="vm"))
    assert {v.backend for v in done.data.vgpus} == {backend}
    assert len(picture(host).running) == len(before.running) + 1
    delete(host.ports, "vm")
    assert picture(host) == before


def test_a_gpu_with_vfs_on_or_vgpus_is_not_given_away_whole(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    with pytest.raises(HostCannot) as raised:
        create(host.ports, request(mode="passthrough", gpu="0000:86:00.0"))
    assert raised.value.facts["check"] == "vfs-on"
    with pytest.raises(Refused):
        create(host.ports, request(mode="passthrough", gpu="0000:5e:00.0"))


def test_a_dry_run_writes_nothing_and_shows_the_steps(host):
    watch = Watch()
    with unchanged(host):
        done = create(watch.watch(host.ports), request("A100-4C"), dry_run=True)
    assert done.dry_run
    assert [s.split()[0] for s in done.steps] == ["claim", "define", "create", "create", "create", "record", "start"]
    assert not {"sysfs.write", "hypervisor.define", "claims.add"} & set(watch.calls)


def test_a_name_that_is_taken_is_refused_with_the_state_of_its_vm(host):
    create(host.ports, request("A100-4C", name="vm"))
    with pytest.raises(Exists) as raised:
        create(host.ports, request("A100-4C", name="vm"))
    assert "vm already exists (running)" in str(raised.value)


def test_a_read_only_host_is_not_changed(host):
    with pytest.raises(InvalidInput, match="a captured tree"):
        create(replace(host.ports, read_only_reason="a captured tree"), request("A100-4C"))


@pytest.mark.parametrize(
    ("text", "wanted", "kind", "words"),
    [
        ("libvirt: {running: false}", request("A100-4C"), HostCannot, ("libvirt", "qemu:///system")),
        ('libvirt: {version: "9.0.0"}', request("A100-4C"), HostCannot, ("libvirt 9.0.0", "10.0")),
        ("iommu: false", request("A100-4C"), HostCannot, ("IOMMU",)),
        ("networks: [{name: default, active: false}]", request("A100-4C"), HostCannot, ("default", "not active")),
        ("networks: []", request("A100-4C"), HostCannot, ("no network 'default'",)),
        ("title: x", request("A100-4D"), NotFound, ("A100-4D",)),
        ("title: x", request("A100-4C", gpu="0000:99:00.0"), NotFound, ("0000:99:00.0",)),
        ("title: x", request("A100-4C", image="/no/such.qcow2"), NotFound, ("/no/such.qcow2",)),
        ("title: x", request("A100-4C", storage_pool="fast"), NotFound, ("fast",)),
        (FULL_POOL, request("A100-4C"), NoCapacity, ("MiB",)),
    ],
)
def test_blockers_are_reported_with_a_hint_before_the_first_write(tmp_path, text, wanted, kind, words):
    host = open_sim_host(tmp_path, text=f"version: 1\n{text}\ngpus:\n  - {{model: A100}}\n")
    with unchanged(host), pytest.raises(VgpuctlError) as raised:
        create(host.ports, wanted)
    assert isinstance(raised.value, kind)
    assert all(word in str(raised.value) for word in words)
    assert raised.value.hint
    assert raised.value.facts
    assert kind is not HostCannot or raised.value.facts["check"]


def test_the_admins_template_comes_first_and_one_that_cannot_be_read_does_not_count_as_missing(ports):
    path = f"{TEMPLATE_DIRECTORY}/vm.xml.j2"

    def closed(asked):
        if asked != path:
            return ports.sysfs.read(asked)
        raise PermissionError(13, "Permission denied")

    with pytest.raises(Failed) as failed:
        create(with_calls(ports, "sysfs", read=closed), request("A100-4C"))
    assert failed.value.facts["path"] == path
    with pytest.raises(NotFound) as raised:
        create(ports, request("A100-4C", template="mine"))
    assert "built-in template: " in str(raised.value.hint)
    assert read_template(with_calls(ports, "sysfs", read=lambda _: "<domain/>"), "vm") == "<domain/>"


@pytest.mark.parametrize("nvml", ["present", "absent"])
def test_a_gpu_with_a_stuck_write_takes_no_vm(tmp_path, nvml):
    gpus = "  - {model: A100, count: 2, profiles: [A100-20C], vfs: {total: 4, enabled: 4}}\n"
    host = open_sim_host(tmp_path, text=f"version: 1\nnvidia: {{nvml: {nvml}}}\ngpus:\n{gpus}")
    first, second = sorted(row.address for row in queries.list_gpus(host.ports).data)
    host.ports.claims.add_stuck_write(StuckWrite(host.ports.operations.current().process, first, "/sys/x", "0"))
    made = [create(host.ports, request("A100-20C"), start=False).data.vgpus[0].gpu for _ in range(2)]
    assert made == [second, second]
    with pytest.raises((NoCapacity, Stuck)):
        create(host.ports, request("A100-20C"), start=False)
    assert len(picture(host).claims) == 2

# SPDX-License-Identifier: Apache-2.0
"""What a host says that it has room for is what it then takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vgpuctl.sim
from tests.hosts import create, open_sim_host, request, stop
from tests.reserving_vms import vm_of
from tests.unit.operations.test_desktops import prepared
from vgpuctl.controller.planning.fleet_room import WHOLE_GPU, Demand, FleetRoom, profiles_of
from vgpuctl.errors import HostCannot, NoCapacity, VgpuctlError
from vgpuctl.gpu.room import PLAIN_VF
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.host_room import MUCH_MIB, HostRoom
from vgpuctl.model.numbers import parse_meminfo_mib
from vgpuctl.model.result_reader import read_value
from vgpuctl.operations.host_room import _in_steps, read_room
from vgpuctl.operations.queries import list_gpus, list_profiles
from vgpuctl.value import replace

SCENARIOS = sorted(path.stem for path in (Path(vgpuctl.sim.__file__).parent / "scenarios").glob("*.yaml"))
ANY = Demand("vm", (), 1, 1024, 1, "default", (), ())


def room_of(host) -> HostRoom:
    """Return a host's room, as it is after its way through JSON."""
    return read_value(HostRoom, json.loads(json.dumps(to_json_value(read_room(host.ports)))))


def fleet_of(host) -> FleetRoom:
    return FleetRoom({"h": room_of(host)})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_numbers_are_those_of_list_profiles(tmp_path, scenario):
    host = open_sim_host(tmp_path, scenario)
    rows = {row.profile: row for row in list_profiles(host.ports, everything=True).data}
    counts = fleet_of(host).profiles("h")
    others = counts.keys() - rows.keys()
    assert others <= {PLAIN_VF, WHOLE_GPU}
    assert {name: counts.get(name, 0) for name in rows} == {name: row.free_at_least for name, row in rows.items()}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_gpu_has_its_address(tmp_path, scenario):
    host = open_sim_host(tmp_path, scenario)
    addresses = [gpu.address for gpu in room_of(host).gpus]
    assert set(addresses) <= {row.address for row in list_gpus(host.ports).data}
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in ("empty", "hgx-h100", "h100-pcie-x8")])
def test_a_host_takes_what_it_said_and_no_more(tmp_path, scenario):
    """Whatever is there already, counted without another look: small ones, then large ones, then small ones again."""
    host = open_sim_host(tmp_path, scenario)
    room = fleet_of(host)
    profiles = [name for name, count in room.profiles("h").items() if count and name not in (PLAIN_VF, WHOLE_GPU)]
    order = [profiles[0], profiles[-1], profiles[len(profiles) // 2], profiles[0]] * 2 if profiles else []
    for profile in order:
        expected = room.take("h", ANY, profile)
        try:
            create(host.ports, request(profile), start=False)
        except NoCapacity:
            assert expected is None, f"{profile} was to fit"
            continue
        if expected is None and scenario == "ascend":
            break
        assert expected == profile
        counts, own = fleet_of(host).profiles("h"), room.profiles("h")
        sure = {name: own[name] for name in own if name != WHOLE_GPU}
        real = {name: counts.get(name, 0) for name in sure}
        if scenario == "ascend":  # its driver only says how many of each fit alone: fewer are sure
            assert all(sure[name] <= real[name] for name in sure)
        else:
            assert sure == real


@pytest.mark.parametrize("scenario", ["h100-pcie-x8", "hgx-h100", "mixed", "a16"])
@pytest.mark.parametrize(("mode", "profile"), [("passthrough", WHOLE_GPU), ("sriov", PLAIN_VF)])
def test_whole_gpus_and_plain_vfs(tmp_path, scenario, mode, profile):
    host = open_sim_host(tmp_path, scenario)
    room, made = fleet_of(host), 0
    expected = room.free("h", ANY, profile).now
    for _ in range(expected + 1):
        try:
            create(host.ports, request(mode=mode, gpus=1), start=False)
        except VgpuctlError:
            break
        made += 1
        assert room.take("h", ANY, profile) == profile
        assert fleet_of(host).free("h", ANY, profile).now == expected - made == room.free("h", ANY, profile).now
    assert made == expected
    assert room.take("h", ANY, profile) is None


@pytest.mark.parametrize("scenario", ["h100-pcie-x8", "hgx-h100"])
def test_whole_gpus_that_vms_have_are_still_gpus_of_the_host(tmp_path, scenario):
    """Else its pools would get no new image once all are taken."""
    host = open_sim_host(tmp_path, scenario)
    total = fleet_of(host).free("h", ANY, WHOLE_GPU).total
    create(host.ports, request(mode="passthrough", gpus=total))
    assert fleet_of(host).free("h", ANY, WHOLE_GPU) == (0, total)
    assert profiles_of(room_of(host)) == {WHOLE_GPU}
    assert {(gpu.rule, gpu.framebuffer_mib) for gpu in room_of(host).gpus} == {(None, 81920)}, "quotas count it"


def test_a_whole_gpu_that_a_process_has_open_is_not_free(tmp_path):
    text = "version: 1\ngpus:\n  - {model: T4}\n  - {model: T4, console: true}\n"
    host = open_sim_host(tmp_path, text=text)
    free = [gpu.free for gpu in read_room(host.ports).gpus]
    with pytest.raises(VgpuctlError):
        create(host.ports, request(mode="passthrough", gpus=2))
    assert free == [True, False]


def test_free_storage_changes_in_steps():
    mib = [4095, 4096, 8191, 8192, 65535, 65536, 10**6]
    assert list(map(_in_steps, mib)) == [4095, 4096, 4096, 8192, 61440, 65536, 65536]


def test_memory_of_vms_that_run_and_of_desktops_counts(tmp_path):
    host = open_sim_host(tmp_path, "a100-40")
    total = read_room(host.ports).memory_mib
    assert total is not None
    create(host.ports, request("A100-4C", name="runs", memory_mib=4096))
    create(host.ports, request("A100-4C", name="off", memory_mib=8192), start=False)
    assert read_room(host.ports).memory_mib == total - 4096
    stop(host.ports, "runs")
    assert read_room(host.ports).memory_mib == total


def test_memory_of_a_desktop_counts_while_it_is_off(tmp_path):
    """Its controller starts it whenever its pool needs it."""
    host = prepared(tmp_path)
    total = parse_meminfo_mib(host.ports.sysfs.read("/proc/meminfo"), "MemTotal")
    own = vm_of(host, "vdi").memory_mib
    assert read_room(host.ports).memory_mib == total - own
    stop(host.ports, "vdi")
    assert read_room(host.again().ports).memory_mib == total - own


def test_cpus_and_storage(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    room = read_room(host.ports)
    pool = host.ports.storage.pool("default")
    assert pool.available_bytes >> 20 > MUCH_MIB
    assert room.storage_mib == {"default": MUCH_MIB}
    assert room.cpus


def test_a_gpu_that_is_reserved_for_names(tmp_path):
    host = open_sim_host(tmp_path, "a100-40")
    host.sim.host_file.write_text("version: 1\ngpus:\n  all: {reserved_for: [vdi-*, 'lab-{a,b}']}\n")
    room = fleet_of(host)
    fits = {name: room.free("h", replace(ANY, name=name), "A100-4C").now for name in ("vdi-7", "lab-b", "lab-c", "vm")}
    assert fits["vdi-7"] == fits["lab-b"] > 0
    assert fits["lab-c"] == fits["vm"] == 0


def test_libvirt_that_does_not_answer_is_no_room_of_nothing(tmp_path):
    host = open_sim_host(tmp_path, text="version: 1\nlibvirt: {running: false}\ngpus:\n  - {model: A100}\n")
    with pytest.raises(HostCannot):
        read_room(host.ports)

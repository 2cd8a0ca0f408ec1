# SPDX-License-Identifier: Apache-2.0
"""Mode virtio-gpu: QEMU draws for VMs on a GPU that stays the host's; nothing is taken, and nothing can leak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import CHANGING, Trial
from tests.hosts import SimulatedHost, context, create, open_sim_host, picture, request, set_vm, start, stop
from tests.vgpus import finding_kinds
from vgpuctl.config import device_rules, rules
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import HostCannot, InUse, InvalidInput, LibvirtFailed, NoCapacity
from vgpuctl.model.vm import VmState
from vgpuctl.operations import queries
from vgpuctl.operations.gpu_mode import ModeRequest, set_mode
from vgpuctl.operations.usage import read_usage
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

FIRST, SECOND, CARD = "0000:3b:00.0", "0000:3f:00.0", "0000:43:00.0"
TWO_INTEL = """version: 1
gpus:
  - {model: Flex 170, count: 2, numa_node: 1, vfs: {total: 31, enabled: 4}}
  - {model: RTX 4090}
"""


def drawn(name: str = "vm", *gpus: str, **changes: object) -> VmRequest:
    return request(name=name, mode="virtio-gpu", gpu=gpus, sources={"mode": "given", "gpu": "given"}, **changes)


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return open_sim_host(tmp_path, text=TWO_INTEL)


def gpu_of(host: SimulatedHost, name: str = "vm") -> str | None:
    return queries.show_vm(host.ports, context(), name).data.render_gpu


def draws_for(host: SimulatedHost) -> dict[str, tuple[str, ...]]:
    return {gpu.address: gpu.draws_for for gpu in queries.list_gpus(host.ports).data}


def test_vms_go_to_the_gpu_that_draws_for_the_fewest_and_take_nothing_there(host: SimulatedHost) -> None:
    for number in range(5):
        create(host.ports, drawn(f"vm-{number}"))
    assert draws_for(host) == {FIRST: ("vm-0", "vm-2", "vm-4"), SECOND: ("vm-1", "vm-3"), CARD: ()}
    now = picture(host)
    assert len(now.running) == 5
    assert not now.claims
    assert finding_kinds(host) == []
    create(host.ports, request(mode="sriov", gpu=(FIRST,), name="vf"))
    rows = {row.vm: (row.profile, row.gpu) for row in read_usage(host.ports).data.vgpus}
    assert rows["vm-1"] == ("virtio-gpu", SECOND)
    assert rows["vf"] == (None, FIRST)


def test_the_definition_names_the_link_that_stays_over_boots(host: SimulatedHost) -> None:
    create(host.ports, drawn())
    ((_, xml),) = picture(host).domains.values()
    assert f"rendernode='/dev/dri/by-path/pci-{FIRST}-render'" in xml.replace('"', "'")
    assert "accel3d='yes'" in xml.replace('"', "'")
    assert gpu_of(host) == FIRST


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": (CARD,)}, "has no render node"),
        ({"os": "windows11", "memory_mib": 4096, "vcpus": 2}, "Windows has no driver"),
        ({"numa_node": 0}, "no GPU meets all conditions|has no render node"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_written(
    host: SimulatedHost, changes: dict[str, object], message: str
) -> None:
    before = picture(host)
    with pytest.raises((HostCannot, InvalidInput, NoCapacity), match=message):
        create(host.ports, request(name="vm", mode="virtio-gpu", **changes))
    assert picture(host) == before


def test_a_host_whose_qemu_has_no_opengl_says_what_to_install(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=f'{TWO_INTEL}libvirt: {{version: "10.0.0", opengl: false}}\n')
    with pytest.raises(HostCannot, match="cannot draw") as caught:
        create(host.ports, drawn())
    assert "qemu-system-modules-opengl" in str(caught.value.hint)
    assert not picture(host).domains


def test_a_gpu_that_draws_for_running_vms_is_not_passed_through(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=TWO_INTEL.replace("enabled: 4", "enabled: 0"))
    create(host.ports, drawn("vm", FIRST))
    with pytest.raises((InUse, HostCannot)):
        create(host.ports, request(name="whole", mode="passthrough", gpu=(FIRST,)))
    assert list(draws_for(host)[FIRST]) == ["vm"]


def test_a_vm_whose_gpu_lost_its_driver_does_not_start_and_moves_to_another(host: SimulatedHost) -> None:
    create(host.ports, drawn("vm", FIRST))
    stop(host.ports, "vm")
    driver = f"/sys/bus/pci/devices/{FIRST}/driver"
    host.ports.sysfs.write_uninterruptible(f"{driver}/unbind", FIRST, gpu=FIRST, deadline_seconds=1)
    with pytest.raises(HostCannot, match="no such device now") as caught:
        start(host.ports, "vm")
    assert "vgpuctl set-vm vm --gpu ADDRESS" in str(caught.value.hint)
    with pytest.raises(LibvirtFailed, match=f"pci-{FIRST}-render"):
        host.ports.hypervisor.start(queries.show_vm(host.ports, context(), "vm").data.uuid)
    assert set_vm(host.ports, drawn("vm", SECOND), "gpu").changed
    assert gpu_of(host) == SECOND
    assert not set_vm(host.ports, drawn("vm", SECOND), "gpu").changed
    start(host.ports, "vm")
    stop(host.ports, "vm")
    with pytest.raises(HostCannot, match="no render node"):
        set_vm(host.ports, drawn("vm", CARD), "gpu")


def test_a_vm_does_not_start_on_a_gpu_that_another_vm_just_gets_as_a_whole(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=TWO_INTEL.replace("enabled: 4", "enabled: 0"))
    create(host.ports, drawn("vm", FIRST))
    stop(host.ports, "vm")
    create(host.ports, request(name="whole", mode="passthrough", gpu=(SECOND,)), start=False)
    (claim,) = host.ports.claims.all()
    taken = replace(claim, carrier=FIRST, gpu=FIRST, function=FIRST)
    host.ports.claims.add(taken)
    with pytest.raises(InUse, match=f"cannot draw on {FIRST} for vm: VM whole takes it as a whole"):
        start(host.ports, "vm")
    host.ports.claims.remove(FIRST, taken.vm_uuid)
    assert start(host.ports, "vm").changed
    with pytest.raises(HostCannot, match="it is taken as a whole by whole"):
        create(host.ports, drawn("next", SECOND))


def test_a_running_vm_that_is_drawn_on_the_named_gpu_needs_no_change(host: SimulatedHost) -> None:
    create(host.ports, drawn("vm", SECOND))
    assert not set_vm(host.ports, drawn("vm", SECOND), "gpu").changed
    with pytest.raises(InUse, match="gpu"):
        set_vm(host.ports, drawn("vm", FIRST), "gpu")


@pytest.mark.parametrize("mode", ["sriov", "unmanaged", "passthrough"])
def test_a_mode_of_host_yaml_keeps_drawing_off_only_where_the_gpu_is_for_nothing_else(
    host: SimulatedHost, mode: str
) -> None:
    for gpu in (FIRST, SECOND):
        set_mode(host.ports, context(), ModeRequest(gpu, mode))
    if mode == "sriov":
        create(host.ports, drawn())
        assert gpu_of(host) == FIRST
        return
    with pytest.raises(HostCannot, match="no GPU can draw for VMs") as caught:
        create(host.ports, drawn())
    assert f"set-mode {FIRST} virtio-gpu" not in caught.value.message


def test_a_gpu_that_draws_for_running_vms_is_not_kept_for_passthrough(host: SimulatedHost) -> None:
    create(host.ports, drawn("vm", FIRST))
    with pytest.raises(InUse, match="QEMU draws on"):
        set_mode(host.ports, context(), ModeRequest(FIRST, "passthrough"))
    stop(host.ports, "vm")
    assert set_mode(host.ports, context(), ModeRequest(FIRST, "passthrough")).changed


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("/dev/dri/by-path/../renderD128", "/dev/dri/renderD128"),
        ("/dev//dri/renderD128", "/dev/dri/renderD128"),
        (f"/dev/dri/by-path/pci-{FIRST}-render", f"/dev/dri/by-path/pci-{FIRST}-render"),
        ("foo", None),
        ("/", None),
        ("/dev/dri/render D128; reboot", None),
        (f"/dev/dri/{'x' * 4000}", None),
    ],
)
def test_a_nodes_other_spelling_is_the_same_node_and_what_is_no_node_is_none(written: str, read: str | None) -> None:
    xml = (
        "<domain type='kvm'><name>x</name><uuid>11111111-2222-4333-8444-555555555555</uuid><devices>"
        f"<graphics type='egl-headless'><gl rendernode='{written}'/></graphics>"
        "<video><model type='virtio'><acceleration accel3d='yes'/></model></video></devices></domain>"
    )
    assert parse_domain(xml, VmState.RUNNING, "").render_node == read
    plain = xml.replace("accel3d='yes'", "accel3d='no'")
    assert parse_domain(plain, VmState.RUNNING, "").render_node is None


def test_a_vm_that_names_a_node_itself_moves_to_another_gpu(host: SimulatedHost) -> None:
    create(host.ports, drawn("vm", FIRST), start=False)
    vm = queries.show_vm(host.ports, context(), "vm").data
    ((_, xml),) = picture(host).domains.values()
    node = next(g.render_node for g in queries.list_gpus(host.ports).data if g.address == FIRST)
    host.ports.hypervisor.define(xml.replace(f"/dev/dri/by-path/pci-{FIRST}-render", str(node)))
    assert draws_for(host)[FIRST] == ("vm",)
    assert set_vm(host.ports, drawn("vm", SECOND), "gpu").changed
    assert gpu_of(host) == SECOND
    assert vm.uuid in picture(host).domains


def kept(directory: Path) -> SimulatedHost:
    host = open_sim_host(directory, text=TWO_INTEL)
    create(host.ports, drawn("kept", FIRST))
    return host.again()


def is_whole(host: SimulatedHost, where: str) -> None:
    """Check that nothing is without an owner, the other VM still runs, and a VM that is there starts."""
    assert finding_kinds(host) == [], where
    assert "kept" in draws_for(host)[FIRST], where
    names = [name for name, _ in picture(host).domains.values()]
    if "vm" in names:
        start(host.ports, "vm")
    assert len(picture(host).running) == len(names), where


def make(ports: Host) -> object:
    return create(ports, drawn("vm"))


def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path) -> None:
    trial = Trial(tmp_path, kept, make, is_whole)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 3
    assert trial.failures(calls) >= 2


def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, spawn) -> None:
    trial = Trial(tmp_path, kept, make, is_whole)
    assert trial.deaths(trial.calls(), spawn) >= 1, "the kills left nothing to mend, so they prove nothing"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"profile": "A16-2Q"}, "takes a gpu, not a profile"),
        ({"gpus": 2}, "gpus counts whole GPUs"),
        ({"scheduler": "fixed_share"}, "has no vGPUs"),
        ({"spread_group": "a"}, "gives the guest no GPU"),
        ({"license": "main"}, "gives the guest no GPU"),
        ({"display": True}, "has no vGPU whose screen"),
        ({"force_reset": True}, "gives the guest no GPU"),
        ({"cpu_pin": "auto"}, "name the CPUs"),
    ],
)
def test_fields_about_a_gpu_in_the_guest_are_refused_with_it(fields: dict[str, object], message: str) -> None:
    whole = {"mode": "virtio-gpu", **fields}
    problems = [*rules.find_contradictions(whole), *device_rules.find_device_contradictions(whole)]
    assert any(message in problem.text for problem in problems)
    assert not rules.find_missing_fields({"mode": "virtio-gpu"})

# SPDX-License-Identifier: Apache-2.0
"""Differences from host.yaml by key, what another file removes by name; no change where a host is as it is."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host, request
from tests.values import A4C, A5C, T2Q, a100, assigned, snapshot, t4, taken
from vgpuctl.backends import backend_for
from vgpuctl.config.host_spec import Defaults, GpuSpec, HostSpec, VgpuSpec, parse_host_spec
from vgpuctl.errors import InUse, NoCapacity, Refused, SpecDiffers
from vgpuctl.model.gpu import GpuMode, MigSpec, Ownership
from vgpuctl.model.request import PlacementSpec
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.model.vm import HostVgpu
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.ownership import host_vgpu_owner
from vgpuctl.operations.host_vgpus import gpu_problem, plan_host_vgpus
from vgpuctl.operations.plans.host_diff import (
    current_gpu_spec,
    describe_removed,
    diff_gpu,
    diff_settings,
    find_removed_entries,
    refuse_lost_vgpus,
)
from vgpuctl.operations.plans.vgpus import (
    hostdev_element,
    placeholder_owner,
    refuse_different_request,
)
from vgpuctl.sim.host import SCENARIOS
from vgpuctl.value import replace

A100, A16, FLEX = "0000:3b:00.0", "0000:17:00.0", "0000:86:00.0"


def gpu(tmp_path, address):
    return observe(open_sim_host(tmp_path, "mixed").ports, ReadScope()).gpu(address)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_as_it_is_is_no_difference_on_any_host(tmp_path, scenario):
    for one in observe(open_sim_host(tmp_path, scenario).ports, ReadScope(every_function=True)).gpus:
        assert diff_gpu(one, current_gpu_spec(one)) == ()
        for desired in GpuMode:
            asked = replace(
                one, desired_mode=desired, cordoned=True, desired_scheduler=SchedulerSpec(SchedulerPolicy.FIXED_SHARE)
            )
            assert diff_gpu(asked, current_gpu_spec(asked)) == ()
            for mig in (MigSpec(), MigSpec(("1g.10gb",)), MigSpec(("3g.40gb", "1g.10gb", "1g.10gb"))):
                parts = replace(asked, desired_mig=mig, desired_mixed_size=True)
                assert diff_gpu(parts, current_gpu_spec(parts)) == ()


H100, MIG = "0000:3f:00.0", "0000:3b:00.0"


@pytest.mark.parametrize(
    ("address", "output", "rows"),
    [
        (MIG, GpuSpec("vgpu", mig=MigSpec(("1g.10gb", "19", "3g.40gb"))), []),
        (MIG, GpuSpec("vgpu", mig=MigSpec(vgpus=(("H100-1-10C", 2), ("H100-3-40C", 1)))), []),
        (MIG, GpuSpec("vgpu", mig=MigSpec()), [("mig", "off", ["3g.40gb", "1g.10gb", "1g.10gb"])]),
        (MIG, GpuSpec("vgpu", mig=MigSpec(("9g.9gb",))), [("mig", ["9g.9gb"], ["3g.40gb", "1g.10gb", "1g.10gb"])]),
        (
            MIG,
            GpuSpec("passthrough", mig=MigSpec(("1g.10gb",))),
            [("mode", "passthrough", "vgpu"), ("mig", "off", ["3g.40gb", "1g.10gb", "1g.10gb"])],
        ),
        (H100, GpuSpec("vgpu", mig=MigSpec(("1g.10gb",))), [("mig", ["1g.10gb"], "off")]),
        (H100, GpuSpec("vgpu", mixed_size=True), [("mixed_size", True, False)]),
        (H100, GpuSpec("vgpu", mig=MigSpec(), mixed_size=False), []),
        (H100, GpuSpec("unmanaged", mig=MigSpec(("1g.10gb",))), [("mode", "unmanaged", "vgpu")]),
    ],
)
def test_mig_and_mixed_sizes_are_compared_with_what_the_driver_says(tmp_path, address, output, rows):
    one = observe(open_sim_host(tmp_path, "h100-mig").ports, ReadScope(types=True)).gpu(address)
    assert [(d.key, d.wanted, d.is_) for d in diff_gpu(one, output)] == rows


def test_an_unconfigured_partition_differs_only_while_it_exists(tmp_path):
    one = observe(open_sim_host(tmp_path, "h100-mig").ports, ReadScope(types=True)).gpu(MIG)
    there = MigSpec(("3g.40gb", "1g.10gb", "1g.10gb"))
    assert [d.key for d in diff_gpu(replace(one, desired_mig=there), GpuSpec("vgpu"))] == ["mig"]
    assert diff_gpu(replace(one, desired_mig=MigSpec(("1g.10gb",))), GpuSpec("vgpu")) == ()
    mixed = replace(one, mig=None, mixed_size=True, desired_mixed_size=True)
    assert [d.key for d in diff_gpu(mixed, GpuSpec("vgpu"))] == ["mixed_size"]


@pytest.mark.parametrize(
    ("address", "output", "rows"),
    [
        (A16, GpuSpec("vgpu"), [("mode", "vgpu", "unmanaged")]),
        (A100, GpuSpec("passthrough"), [("mode", "passthrough", "vgpu")]),
        (A100, GpuSpec("vgpu"), []),
        (FLEX, GpuSpec("sriov"), []),
        (FLEX, GpuSpec("sriov", 8), []),
        (FLEX, GpuSpec("sriov", 4), [("vfs", 4, 8)]),
        (A100, GpuSpec(cordoned=True), [("cordoned", True, None)]),
        (A100, GpuSpec(cordoned=False), []),
        (A100, GpuSpec(profiles=("A100-4C",)), [("profiles", ["A100-4C"], None)]),
        (A100, GpuSpec(reserved_for=("a",)), [("reserved_for", ["a"], None)]),
        (A100, GpuSpec(reason="OrionX has it"), [("reason", "OrionX has it", None)]),
        (
            A100,
            GpuSpec(scheduler=SchedulerSpec(SchedulerPolicy.FIXED_SHARE)),
            [("scheduler", {"policy": "fixed_share"}, None)],
        ),
        (A100, GpuSpec(scheduler=SchedulerSpec(SchedulerPolicy.BEST_EFFORT)), []),
    ],
)
def test_each_key_is_compared_with_what_is_there(tmp_path, address, output, rows):
    assert [(d.key, d.wanted, d.is_) for d in diff_gpu(gpu(tmp_path, address), output)] == rows


def test_an_unconfigured_mode_differs_only_while_it_is_set(tmp_path):
    kept = replace(gpu(tmp_path, A100), desired_mode=GpuMode.VGPU, cordoned=True)
    assert [d.key for d in diff_gpu(kept, GpuSpec())] == ["mode", "cordoned"]
    assert diff_gpu(replace(kept, desired_mode=GpuMode.PASSTHROUGH, cordoned=False), GpuSpec()) == ()


def test_the_other_sections_are_compared_too():
    entry = VgpuSpec("A100-4C", A100, "c")
    now = HostSpec(1, Defaults(memory="4G"), vgpus={"v": entry})
    wanted = HostSpec(1, Defaults(memory="8G"), vgpus={"v": entry, "w": entry}, placement=PlacementSpec("depth"))
    assert [d.key for d in diff_settings(wanted, now)] == ["defaults.memory", "placement.policy", "vgpus.w"]
    refuse_lost_vgpus(wanted, now, "FILE")
    for lost in (HostSpec(1), HostSpec(1, vgpus={"v": replace(entry, carrier="d")})):
        with pytest.raises(Refused, match="FILE lacks or changes the vGPU v"):
            refuse_lost_vgpus(lost, now, "FILE")


def test_the_agents_section_is_compared_key_by_key():
    now = parse_host_spec("version: 1\nagent: {allow: {folders: [/a, /b]}, limits: {each_account: {vms: 1}}}", "NOW")
    text = "version: 1\nagent: {allow: {folders: /a}, accounts: {ada: operator}, limits: {each_account: {vms: 2}}}"
    wanted = parse_host_spec(text, "FILE")
    assert [(d.key, d.wanted, d.is_) for d in diff_settings(wanted, now)] == [
        ("agent.allow.folders", ["/a"], ["/a", "/b"]),
        ("agent.accounts.ada", "operator", None),
        ("agent.limits.each_account.vms", 2, 1),
    ]
    assert [describe_removed(one) for one in find_removed_entries(wanted, now, ())] == ["agent: allow.folders [/b]"]
    assert gone("version: 1", "version: 1\nagent: {accounts: {ada: fleet}}") == ["agent: accounts.ada fleet"]


CARD, T4 = "0000:3b:00.0", "0000:5e:00.0"
GPUS = (replace(a100(), address=CARD), replace(t4(), address=T4))
NOW = f"""version: 1
defaults: {{memory: 8GiB, vcpus: 4}}
placement: {{policy: breadth}}
boot: {{deadline_seconds: 60}}
gpus:
  A100: {{mode: vgpu, reserved_for: lab-*}}
  H100: {{mode: sriov}}
  "{T4}": {{cordoned: true}}
vgpus:
  lab: {{profile: A100-4C, gpu: "{CARD}", carrier: 83b8f4f2-509f-382f-3c1e-e6bfe0fa1001}}
"""


def gone(wanted: str, now: str = NOW) -> list[str]:
    result = find_removed_entries(parse_host_spec(wanted, "FILE"), parse_host_spec(now, "host.yaml"), GPUS)
    return [describe_removed(one) for one in result]


def test_everything_goes_with_a_version_alone() -> None:
    assert gone("version: 1") == [
        "gpus.A100: mode vgpu, reserved_for [lab-*]",
        "gpus.H100: mode sriov",
        f"gpus.{T4}: cordoned true",
        f"vgpus.lab: profile A100-4C, gpu {CARD}, carrier 83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
        "defaults: memory 8GiB, vcpus 4",
        "placement: policy breadth",
        "boot: deadline_seconds 60",
    ]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("", "", []),
        (", reserved_for: lab-*", "", ["gpus.A100: reserved_for [lab-*]"]),
        ("  A100: {", f'  "{CARD}": {{', []),
        ("  A100: {mode: vgpu, ", f'  "{CARD}": {{', ["gpus.A100: mode vgpu"]),
        ("  H100: {mode: sriov}\n", "", ["gpus.H100: mode sriov"]),
        ("cordoned: true", "cordoned: false", []),
        ("vcpus: 4", "vcpus: 8", []),
    ],
)
def test_what_is_changed_or_named_otherwise_does_not_go(old: str, new: str, lines: list[str]) -> None:
    assert gone(NOW.replace(old, new)) == lines


LISTS = f"""version: 1
defaults: {{memory: 8GiB, vcpus: 4}}
gpus:
  A100: {{mig: [1g.10gb, 1g.10gb, 3g.40gb], reserved_for: [vdi-*, lab-*], profiles: [A100-4C, A100-8C]}}
  H100: {{mig: {{H100-1-10C: 4, H100-2-20C: 1}}, scheduler: {{policy: equal_share, time_slice_ms: 2}}}}
vgpus:
  lab: {{profile: T4-1Q, gpu: "{T4}", carrier: "0000:5e:00.4", vgpu_params: {{a: "1", b: "2"}}}}
"""


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("", "", []),
        (", lab-*", "", ["gpus.A100: reserved_for [lab-*]"]),
        ("vdi-*, lab-*", "lab-*, vdi-*, new-*", []),
        ("lab-*", "new-*", ["gpus.A100: reserved_for [lab-*]"]),
        (", A100-8C", "", ["gpus.A100: profiles [A100-8C]"]),
        ("1g.10gb, 1g.10gb", "1g.10gb", ["gpus.A100: mig [1g.10gb]"]),
        ("[1g.10gb, 1g.10gb, 3g.40gb]", "off", []),
        (", H100-2-20C: 1", "", ["gpus.H100: mig {H100-2-20C: 1}"]),
        ("H100-1-10C: 4", "H100-1-10C: 2", []),
        (", time_slice_ms: 2", "", ["gpus.H100: scheduler {time_slice_ms: 2}"]),
        ("equal_share", "fixed_share", []),
        (", vcpus: 4", "", ["defaults: vcpus 4"]),
        (', b: "2"', "", ["vgpus.lab: vgpu_params {b: 2}"]),
    ],
)
def test_what_a_list_or_a_mapping_loses_goes(old: str, new: str, lines: list[str]) -> None:
    assert gone(LISTS.replace(old, new), LISTS) == lines


def test_what_a_shorter_list_loses_stays_where_another_entry_says_it() -> None:
    whole = "reserved_for: [vdi-*, lab-*]"
    now = f"version: 1\ngpus:\n  A100: {{{whole}}}\n"
    assert gone(f'{now.replace(", lab-*", "")}  "{CARD}": {{{whole}}}\n', now) == []


UUID = "11111111-2222-4333-8444-555555555555"


def test_the_owner_is_a_function_of_machine_and_name_and_of_nothing_else():
    assert host_vgpu_owner("m1", "spare") == host_vgpu_owner("m1", "spare")
    assert len({host_vgpu_owner(m, n) for m in ("m1", "m2", "") for n in ("spare", "other")}) == 6
    holder, record = placeholder_owner("m1", "spare", assigned(a100(), A4C))
    assert holder.uuid == record.vm_uuid == host_vgpu_owner("m1", "spare")


def test_an_mdev_is_named_to_virt_install_as_libvirt_names_the_node_device():
    vgpu = assigned(t4(), T2Q, carrier=UUID)
    assert (
        backend_for(vgpu.backend).usage_commands(vgpu)[1]
        == "virt-install --hostdev mdev_11111111_2222_4333_8444_555555555555_0000_5e_00_0"
    )
    assert f'uuid="{UUID}"' in hostdev_element(vgpu)
    assert "alias" not in hostdev_element(vgpu)


def test_a_vendors_vf_is_never_handed_to_virt_install_which_would_let_libvirt_manage_it():
    vgpu = assigned(a100(), A4C)
    assert not any("--hostdev" in line for line in backend_for(vgpu.backend).usage_commands(vgpu))
    assert 'managed="no"' in hostdev_element(vgpu)


def test_a_driver_that_hides_types_of_a_gpu_in_use_makes_no_difference():
    gpu = a100(types=())
    entry = HostVgpu("spare", "A100-4C", gpu.address, gpu.functions[0].address)
    for text in ("A100-4C", "4C", "T4-4Q|A100-4C"):
        refuse_different_request(snapshot(gpu), entry, request(text))
    with pytest.raises(SpecDiffers, match="it is A100-4C, not 5C"):
        refuse_different_request(snapshot(gpu), entry, request("5C"))


VF_CARD = a100(vfs=4)
VFS = [f.address for f in VF_CARD.functions]
NONE_SET_UP: frozenset[str] = frozenset()


def entry(number: int, profile: str = A4C.profile, carrier: str | None = None) -> HostVgpu:
    return HostVgpu(f"v{number}", profile, VF_CARD.address, carrier or VFS[number])


def test_each_entry_is_planned_with_those_before_it_there():
    first, second = plan_host_vgpus(snapshot(VF_CARD), (entry(0), entry(1, A5C.profile)), NONE_SET_UP)
    assert (first.error, first.line) == (None, f"create vGPU v0 (A100-4C on GPU {VF_CARD.address})")
    assert isinstance(second.error, NoCapacity)
    assert "another size" in second.error.message
    assert all(one.error is None for one in plan_host_vgpus(snapshot(VF_CARD), (entry(0), entry(1)), NONE_SET_UP))


def test_a_refusal_stops_no_other_entry():
    strange = replace(taken(VF_CARD, A4C, 0), owner=Ownership.UNMANAGED, vm=None, vm_uuid=None, present=True)
    refused, fine = plan_host_vgpus(snapshot(VF_CARD, vgpus=(strange,)), (entry(0), entry(1)), NONE_SET_UP)
    assert isinstance(refused.error, InUse)
    assert fine.error is None


@pytest.mark.parametrize("profile", [T2Q.profile, "T4-9Q"])
def test_a_gpu_lacks_nothing_for_an_mdev_that_its_driver_can_judge(profile):
    card = t4()
    (one,) = plan_host_vgpus(
        snapshot(card), (HostVgpu("v", profile, card.address, "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"),), NONE_SET_UP
    )
    assert gpu_problem(snapshot(card), one.record.vgpus[0]) is None
    assert (one.error is None) is (profile == T2Q.profile)

# SPDX-License-Identifier: Apache-2.0
"""apply makes the host match host.yaml: all refusals come first, it is idempotent, and a failure leaves GPUs whole."""

from __future__ import annotations

from functools import partial

import pytest

from tests.faults import CHANGING, Trial, counted, failing, outcome, sampled
from tests.hosts import context, create, open_sim_host, picture, request, run_reconcile
from tests.layouts import A16, A100, FLEX, T4, configured_modes, stand
from tests.meanwhile import with_calls
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoCapacity, NotFound, PartlyApplied, Refused, VerifyFailed
from vgpuctl.operations import queries
from vgpuctl.operations.apply import apply_host, diff_host
from vgpuctl.operations.desired_state import HostFileText, export_host, read_desired_state
from vgpuctl.value import replace

WANTED = f"""# of the GPU team
version: 1
gpus:
  A16: {{mode: vgpu}}   # desktops
  "{FLEX}": {{mode: sriov, vfs: 4}}
  "{A100}":
    scheduler: {{policy: fixed_share}}
"""
TWO = f"""version: 1
title: two cards
kernel: 6.8.0-45-generic
storage: {{pools: [{{name: default}}]}}
networks: [{{name: default}}]
gpus:
  - {{address: "{A16}", model: A16, backend: mdev-vf, vfs: {{total: 2, enabled: 0}}}}
  - {{address: "{FLEX}", model: Flex 170, vfs: {{total: 3, enabled: 2}}}}
"""
CARRIER = "0d77c06c-0000-5c06-ab36-267c38df4355"
SETS = (f"gpus[{A16}].mode=vgpu", f"gpus[{FLEX}].mode=sriov", f"gpus[{FLEX}].vfs=1")


@pytest.fixture
def scenario():
    return "mixed"


def run(ports, *sets, file=None, drain=False, dry_run=False):
    asked = read_desired_state(ports, None if file is None else HostFileText(file, "FILE"), sets)
    return apply_host(ports, context(dry_run=dry_run), asked, drain=drain)


def diff(ports, *sets, file=None):
    asked = read_desired_state(ports, None if file is None else HostFileText(file, "FILE"), sets)
    return diff_host(ports, asked, drain=False)


def rows(outcome):
    return [(g.address, d.key, d.wanted, d.is_) for g in outcome.data.gpus for d in g.differences]


def test_a_file_makes_the_host_and_becomes_host_yaml_as_it_is(host):
    result = diff(host.ports, file=WANTED)
    assert rows(result) == [
        (A16, "mode", "vgpu", "unmanaged"),
        (A100, "scheduler", {"policy": "fixed_share"}, None),
        (FLEX, "vfs", 4, 8),
    ]
    planned = run(host.ports, file=WANTED, dry_run=True)
    assert (planned.steps, planned.steps[-1]) == (result.steps, "replace /etc/vgpuctl/host.yaml with FILE")
    assert host.ports.host_file.read() is None
    done = run(host.ports, file=WANTED)
    assert (done.changed, done.steps) == (True, planned.steps)
    assert host.ports.host_file.read() == WANTED
    gpus = {g.address: g for g in queries.list_gpus(host.ports).data}
    assert (gpus[A16].vfs.enabled, gpus[FLEX].vfs.enabled) == (16, 4)
    assert gpus[A100].scheduler.running.policy == "fixed_share"
    assert host.ports.claims.all() == ()
    assert not run(host.ports, file=WANTED).changed
    assert not run(host.ports).changed
    assert (diff(host.ports).changed, rows(diff(host.ports))) == (False, [])


def test_set_edits_host_yaml_and_keeps_its_comments(host):
    host.sim.host_file.write_text("# ours\nversion: 1\ngpus:\n  all: {cordoned: true}  # fans\n")
    run(host.ports, f"gpus[{A16}].mode=vgpu", "gpus[A100].scheduler.policy=equal_share")
    text = host.ports.host_file.read()
    assert text.startswith("# ours\nversion: 1\ngpus:\n  all: {cordoned: true}  # fans\n")
    spec = parse_host_spec(text, "x")
    assert (spec.gpus[A16].mode, str(spec.gpus["A100"].scheduler.policy)) == ("vgpu", "equal_share")
    assert not run(host.ports, f"gpus[{A16}].mode=vgpu").changed


def test_the_agents_section_changes_host_yaml_alone_and_keeps_its_comments(host):
    before, text = picture(host), "version: 1\nagent:   # people\n  allow: {folders: /srv/images}  # root's alone\n"
    assert [(d.key, d.wanted) for d in diff(host.ports, file=text).data.settings] == [
        ("agent.allow.folders", ["/srv/images"])
    ]
    assert run(host.ports, file=text).changed
    assert host.sim.host_file.read_text() == text
    assert picture(host) == before
    assert not diff(host.ports).changed
    exported = export_host(host.ports).data.text
    assert parse_host_spec(exported, "FILE").agent == parse_host_spec(text, "FILE").agent
    assert run(host.ports, f"gpus[{A100}].reserved_for=vdi-*").changed
    assert host.sim.host_file.read_text().startswith(text)


def test_a_file_with_changes_becomes_the_edited_file(host):
    run(host.ports, f"gpus[{FLEX}].vfs=2", file=WANTED)
    assert host.ports.host_file.read() == WANTED.replace("vfs: 4", "vfs: 2")
    assert stand(host)[0][FLEX] == 2


def test_a_gpu_that_is_not_named_is_left_alone(host):
    before = stand(host)
    assert not run(host.ports).changed
    run(host.ports, "gpus[A100].cordoned=true")
    same = diff(host.ports, f"gpus[{FLEX}].mode=sriov")
    assert ([g.address for g in same.data.gpus], rows(same)) == ([A100, FLEX], []), "it has that mode already"
    assert rows(diff(host.ports, file="version: 1\n")) == [(A100, "cordoned", None, True)]
    assert stand(host) == before


def test_a_problem_of_a_file_names_the_file(host):
    with pytest.raises(InvalidInput, match=r"FILE:1:1"):
        run(host.ports, file="versoin: 1\n")
    host.sim.host_file.write_text("version: 2\n")
    with pytest.raises(InvalidInput, match=r"host\.yaml:1"):
        run(host.ports)


def test_what_a_wider_entry_says_of_mig_counts_for_gpus_of_the_mode_vgpu_alone(tmp_path):
    ports = open_sim_host(tmp_path, "h100-mig").ports
    wide = ("gpus[all].mode=vgpu", "gpus[all].mig={A100-1-5C: 4}")
    apart, other = diff(ports, *wide, f"gpus[{A100}].mode=passthrough").data.gpus
    assert (apart.address, apart.refused) == (A100, None)
    assert "has no vGPU profile A100-1-5C" in str(other.refused)


def test_a_profile_that_a_gpu_can_never_offer_is_noted_with_its_line(host):
    text = f"version: 1\ngpus:\n  '{A100}':\n    profiles: [A100-4C, L40S-8Q]\n  A16: {{profiles: [A16-2Qx]}}\n"
    assert [note.split("(")[0].strip() for note in diff(host.ports, file=text).notes] == [
        f"FILE:4: gpus.{A100}: {A100} can never offer the profile L40S-8Q",
        f"FILE:5: gpus.A16: {A16} can never offer the profile A16-2Qx",
    ]


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    ports = open_sim_host(tmp_path, "mixed").ports
    for act in (run, diff):
        with pytest.raises(NotFound, match=r"0000:99:00\.0") as raised:
            act(ports, "gpus[0000:99:00.0].mode=vgpu")
        assert A100 in str(raised.value.hint)
    result = diff(ports, "gpus[H100].mode=vgpu")
    assert "no GPU of this host is" in result.notes[0]


def test_every_refusal_of_every_gpu_comes_before_the_first_write(host):
    create(host.ports, request("A100-4C", name="vm"))
    before = stand(host)
    sets = (f"gpus[{A16}].mode=vgpu", f"gpus[{A100}].mode=passthrough", f"gpus[{T4}].mode=passthrough")
    with pytest.raises(InUse) as raised:
        run(host.ports, *sets)
    assert all(word in raised.value.message for word in ("2 GPUs", "vm", "old-desktop"))
    assert (stand(host), host.ports.host_file.read()) == (before, None)
    with pytest.raises(Refused) as raised:
        run(host.ports, *sets[1:], f"gpus[{FLEX}].mode=vgpu")
    assert {r["code"] for r in raised.value.facts["refused"]} == {"in-use", "host-cannot"}
    vgpu = f'version: 1\nvgpus:\n  one: {{profile: T4-4Q, gpu: "0000:99:00.0", carrier: {CARRIER}}}\n'
    with pytest.raises(Refused) as raised:
        run(host.ports, sets[1], file=vgpu)
    assert str(raised.value).startswith("1 GPU cannot be set up and 1 vGPU cannot be created, so nothing was changed:")
    assert [r["code"] for r in raised.value.facts["refused"]] == ["in-use", "host-cannot"]
    result = diff(host.ports, *sets)
    assert [g.refused is None for g in result.data.gpus] == [True, False, False]
    assert len([w for w in result.warnings if "in use by" in w]) == 2


def test_drain_stops_running_vms_and_restarts_them(host):
    create(host.ports, request(mode="sriov", gpu=FLEX, name="vm"))
    running = picture(host).running
    with pytest.raises(InUse, match="vm"):
        run(host.ports, f"gpus[{FLEX}].vfs=6", f"gpus[{FLEX}].mode=sriov")
    run(host.ports, f"gpus[{FLEX}].vfs=6", f"gpus[{FLEX}].mode=sriov", drain=True)
    assert (stand(host)[0][FLEX], picture(host).running) == (6, running)


@pytest.mark.parametrize("mode", ["passthrough", "unmanaged"])
def test_new_vfs_get_the_scheduler_requested_with_them(tmp_path, mode):
    host = open_sim_host(tmp_path)
    scheduler = f"gpus[{A100}].scheduler.policy=fixed_share"
    run(host.ports, f"gpus[{A100}].mode={mode}")
    assert len(diff(host.ports, scheduler).steps) == 1, "without VFs it is only written into host.yaml"
    run(host.ports, f"gpus[{A100}].mode=vgpu", scheduler)
    (gpu,) = queries.list_gpus(host.ports).data
    assert (gpu.vfs.enabled, gpu.scheduler.running.policy) == (16, "fixed_share")
    run(host.ports, f"gpus[{A100}].mode={mode}")
    assert not run(host.ports).changed


@pytest.mark.parametrize(
    ("sets", "kind", "text"),
    [
        ([f"gpus[{FLEX}].vfs=4"], InvalidInput, "no mode, which .* requires"),
        ([f"gpus[{FLEX}].mode=vgpu"], HostCannot, "has no mode vgpu"),
        ([f"gpus[{FLEX}].mode=sriov", f"gpus[{FLEX}].vfs=200"], InvalidInput, "1 to 31"),
        ([f"gpus[{FLEX}].scheduler.policy=fixed_share"], HostCannot, "vgpuctl cannot set"),
    ],
)
def test_what_a_gpu_cannot_be_is_refused_before_host_yaml_says_it(host, sets, kind, text):
    with pytest.raises(kind, match=text):
        run(host.ports, *sets)
    assert host.ports.host_file.read() is None


def test_a_file_that_drops_a_vgpu_without_a_vm_is_refused(host):
    entry = f'version: 1\nvgpus:\n  one: {{profile: T4-4Q, gpu: "{T4}", carrier: {CARRIER}}}\n'
    host.sim.host_file.write_text(entry)
    with pytest.raises(Refused, match="vGPU one"):
        run(host.ports, file="version: 1\n")
    assert run(host.ports, file=f"# new\n{entry}").changed


def test_a_file_may_not_come_in_the_place_of_one_that_changed_meanwhile(host):
    asked = read_desired_state(host.ports, HostFileText(WANTED, "FILE"), ())
    host.sim.host_file.write_text("version: 1\n")
    error = outcome(lambda: apply_host(host.ports, context(), asked, drain=False))
    assert error.status in (5, 75)
    assert host.ports.host_file.read() == "version: 1\n"


def test_what_is_taken_away_after_it_was_read_back_is_noticed(host):
    def replace(text, expected, *, is_undo=False):
        """The driver loses the VF count once host.yaml contains it."""
        host.ports.host_file.replace(text, expected)
        host.ports.sysfs.write(f"/sys/bus/pci/devices/{FLEX}/sriov_numvfs", "0\n")

    with pytest.raises(VerifyFailed, match="vfs is 0, not 4"):
        run(with_calls(host.ports, "host_file", replace=replace), f"gpus[{FLEX}].vfs=4", f"gpus[{FLEX}].mode=sriov")


def test_placement_respects_profiles_and_reservations(tmp_path):
    host = open_sim_host(tmp_path)
    run(host.ports, "gpus[all].profiles=[A100-4C]", "gpus[A100].reserved_for=[vdi-*, lab]")
    assert [p.profile for p in queries.list_profiles(host.ports).data] == []
    with pytest.raises(NoCapacity, match="A100-8C") as raised:
        create(host.ports, request("A100-8C", name="vdi-1"))
    assert "host.yaml allows only A100-4C" in str(raised.value.facts["details"])
    with pytest.raises(NoCapacity) as raised:
        create(host.ports, request("A100-4C", name="other"))
    assert "reserves it for VMs named vdi-* or lab" in str(raised.value.facts["details"])
    assert "reserves it" in queries.explain(host.ports, "A100-4C").data.gpus[0].reasons[0]
    create(host.ports, request("A100-4C", name="vdi-1"))
    create(host.ports, request("A100-4C", name="lab"))
    unnamed = replace(request("A100-4C"), name=None)
    with pytest.raises(NoCapacity):
        create(host.ports, unnamed)
    run(host.ports, "gpus[A100].reserved_for=vgpu-*")
    create(host.ports, unnamed)
    run(host.ports, "gpus[A100].reserved_for=null")
    assert [p.profile for p in queries.list_profiles(host.ports).data] == ["A100-4C"]


def whole(host):
    """Return the VFs of both cards, and whether host.yaml sets them."""
    return stand(host)[0], configured_modes(host)


@pytest.mark.parametrize("done", [False, True])
def test_any_failure_leaves_each_gpu_as_before_or_set_up_and_reports_the_rest(tmp_path, done):
    calls = counted(open_sim_host(tmp_path / "dry", text=TWO).ports, apply_sets)
    first = open_sim_host(tmp_path / "first", text=TWO)
    before = whole(first)
    run(first.ports, *SETS)
    after = whole(first)
    for at in sampled(range(1, len(calls) + 1)):
        host = open_sim_host(tmp_path / str(at), text=TWO)
        error = outcome(lambda at=at, host=host: run(failing(host.ports, at, done=done), *SETS))
        now = whole(host)
        if error is None or isinstance(error, VerifyFailed):
            assert now == after, calls[at - 1]
        elif not error.left:
            assert now == before, calls[at - 1]
        for card in (A16, FLEX):
            assert now[0].get(card) in (before[0].get(card), after[0].get(card)) or error.left, calls[at - 1]
        assert host.ports.claims.all() == () or (error is not None and error.left), calls[at - 1]
        assert now[1] in ({}, after[1])
        run_reconcile(host.ports)
        run(host.ports, *SETS)
        assert whole(host) == after, calls[at - 1]


def test_a_gpu_that_fails_after_another_was_set_up_says_which_stays(tmp_path):
    host = open_sim_host(tmp_path, text=TWO)

    def write(path, text):
        if not (path.endswith("sriov_numvfs") and FLEX in path):
            host.ports.sysfs.write(path, text)

    with pytest.raises(PartlyApplied) as raised:
        run(with_calls(host.ports, "sysfs", write=write), *SETS)
    assert [line for line in raised.value.left if A16 in line]
    assert "host.yaml does not have this yet" in str(raised.value.hint)
    assert configured_modes(host) == {}
    run(host.ports, *SETS)
    assert set(configured_modes(host)) == {A16, FLEX}


def apply_sets(ports):
    return run(ports, *SETS)


def finished(host, where):
    """Check that the same command finishes what a killed one began."""
    apply_sets(host.ports)
    assert stand(host)[0] == {A16: 2, FLEX: 1}, where
    assert host.ports.claims.all() == (), where


def test_killed_at_any_change_it_is_finished_by_the_same_command(tmp_path, spawn):
    trial = Trial(tmp_path, partial(open_sim_host, text=TWO), apply_sets, finished)
    calls = trial.calls()
    assert len([call for call in calls if call in CHANGING]) > 3
    trial.deaths(calls, spawn)

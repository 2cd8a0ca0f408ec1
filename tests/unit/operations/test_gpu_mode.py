# SPDX-License-Identifier: Apache-2.0
"""Setting a GPU up: only if no user of it loses anything, all or nothing, and the same again after a boot."""

from __future__ import annotations

import errno

import pytest

from tests.faults import counted, failing, outcome, sampled
from tests.hosts import context, create, delete, open_sim_host, picture, request, run_reconcile, start, stop
from tests.layouts import A16, A100, FLEX, RTX, T4, V710, Signals, Struck, configured_modes, do, stand
from tests.meanwhile import rebooted, unchanged, with_calls
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import Busy, HostCannot, Interrupted, InUse, InvalidInput, NoCapacity, PartlyApplied, Stuck
from vgpuctl.model.results.gpus import VfsResult
from vgpuctl.model.vm import StuckWrite, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.gpu_mode import restore_gpus
from vgpuctl.value import replace

SMALL = """version: 1
title: one card
kernel: 6.8.0-45-generic
storage: {{pools: [{{name: default}}]}}
networks: [{{name: default}}]
gpus: [{{address: "{gpu}", model: {model}}}]
"""


def set_up(host):
    """Return how the GPUs are set up, and what host.yaml says of it."""
    return stand(host), configured_modes(host)


@pytest.fixture
def scenario():
    return "mixed"


def test_nvidias_vfs_go_on_and_vgpus_can_be_made(host):
    done = do(host.ports, A16, "vgpu")
    assert done.data.vfs == VfsResult(16, 16, 0)
    assert (done.data.mode, done.data.desired_mode) == ("vgpu", "vgpu")
    assert configured_modes(host) == {A16: ("vgpu", None)}
    assert host.ports.claims.all() == ()
    create(host.ports, request("A16-2Q", gpu=A16))
    assert not do(host.ports, A16, "vgpu").changed


def test_plain_vfs_are_set_to_a_number_without_host_drivers(host):
    done = do(host.ports, FLEX, "sriov", 4)
    assert done.data.vfs.enabled == 4
    assert configured_modes(host) == {FLEX: ("sriov", 4)}
    assert stand(host)[1] == {FLEX: 0}
    create(host.ports, request(mode="sriov", gpu=FLEX))
    assert not do(host.ports, FLEX, "sriov", 4).changed
    assert not do(host.ports, FLEX, "sriov").changed


def test_passthrough_turns_vfs_off_and_keeps_the_gpu_for_it(tmp_path):
    host = open_sim_host(tmp_path)
    done = do(host.ports, A100, "passthrough")
    assert done.data.vfs.enabled == 0
    with pytest.raises(HostCannot, match="are off: 0 of 16 enabled"):
        create(host.ports, request("A100-4C"))
    create(host.ports, request(mode="passthrough", gpu=A100, name="vm"))
    with pytest.raises(InUse, match="vm"):
        do(host.ports, A100, "vgpu")
    delete(host.ports, "vm")
    assert do(host.ports, A100, "vgpu").data.vfs.enabled == 16
    create(host.ports, request("A100-4C"))


def test_unmanaged_changes_no_device_and_nothing_is_placed_there(host):
    with unchanged(host, stand):
        assert do(host.ports, T4, "unmanaged").changed
    with pytest.raises(NoCapacity, match="T4-4Q"):
        create(host.ports, request("T4-4Q"))


@pytest.mark.parametrize("mode", ["passthrough", "unmanaged"])
def test_nothing_changes_while_a_vm_uses_or_reserves_the_gpu(tmp_path, mode):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    for act in (lambda: None, lambda: stop(host.ports, "vm")):
        act()
        for drain in (False, True):
            with unchanged(host, set_up), pytest.raises(InUse) as raised:
                do(host.ports, A100, mode, drain=drain)
            assert raised.value.facts["vms"] == ["vm"]


def test_drain_stops_running_vms_and_starts_them_again_on_the_same_vf(host):
    create(host.ports, request(mode="sriov", gpu=FLEX, name="vm"))
    running = picture(host).running
    with pytest.raises(InUse, match="vm") as raised:
        do(host.ports, FLEX, "sriov", 6)
    assert "--drain" in str(raised.value.hint)
    assert picture(host).running == running
    planned = do(host.ports, FLEX, "sriov", 6, drain=True, dry_run=True)
    assert (planned.steps[0], planned.steps[-1]) == ("shut down VM vm", "start VM vm again")
    assert picture(host).running == running
    done = do(host.ports, FLEX, "sriov", 6, drain=True)
    assert done.data.vfs == VfsResult(31, 6, 1)
    assert picture(host).running == running


def test_a_guest_that_does_not_shut_down_keeps_the_gpu_as_it_was(tmp_path):
    text = SMALL.format(gpu=FLEX, model="Flex 170, vfs: {enabled: 8}")
    host = open_sim_host(tmp_path, text=text + 'faults: [{on: shutdown, match: "*", kind: lost}]\n')
    create(host.ports, request(mode="sriov", gpu=FLEX, name="vm"))
    with unchanged(host, set_up), pytest.raises(Busy, match="did not shut down") as raised:
        do(host.ports, FLEX, "sriov", 6, drain=True)
    assert "shuts down later: vgpuctl start-vm vm " in str(raised.value.hint)


def test_a_stopped_vm_whose_vf_would_not_come_back_is_named_and_not_to_be_deleted_for_that(host):
    for name in ("one", "two"):
        create(host.ports, request(mode="sriov", gpu=FLEX, name=name))
        stop(host.ports, name)
    with pytest.raises(InUse, match="whose VF does not exist with 1 VF") as raised:
        do(host.ports, FLEX, "sriov", 1, drain=True)
    assert raised.value.facts["vms"] == ["two"]
    assert "delete" not in raised.value.message
    (carrier,) = raised.value.facts["carriers"]
    assert str(raised.value.hint).startswith(f"vgpuctl detach-vgpu two --vgpu {carrier} takes it from the VM")
    assert do(host.ports, FLEX, "sriov", 2).data.vfs.enabled == 2
    start(host.ports, "one")


@pytest.mark.parametrize(
    ("gpu", "mode", "vfs", "kind", "text"),
    [
        (V710, "sriov", 13, InvalidInput, "1 to 12"),
        (V710, "passthrough", None, HostCannot, "turns on 1 VF at least"),
        (FLEX, "sriov", 32, InvalidInput, "1 to 31"),
        (FLEX, "sriov", 0, InvalidInput, "1 to 31"),
        (FLEX, "vgpu", None, HostCannot, "no mode vgpu"),
        (A100, "sriov", None, HostCannot, "no mode sriov"),
        (A100, "vgpu", 4, InvalidInput, "all of them"),
        (A100, "passthrough", 4, InvalidInput, "no --vfs"),
        (A100, "unmanaged", 4, InvalidInput, "no --vfs"),
        (RTX, "vgpu", None, HostCannot, "no mode vgpu"),
        (T4, "passthrough", None, InUse, "old-desktop"),
    ],
)  # fmt: skip
def test_impossible_modes_are_refused_before_any_write(host, gpu, mode, vfs, kind, text):
    with unchanged(host, set_up), pytest.raises(kind, match=text):
        do(host.ports, gpu, mode, vfs)


def test_a_gpu_that_another_process_sets_up_is_left_to_it_and_its_vms_wait(host):
    create(host.ports, request(mode="sriov", gpu=FLEX, name="vm"))
    stop(host.ports, "vm")
    seen = []

    def write(path, text):
        if path.endswith("sriov_numvfs"):
            other = open_sim_host(host.directory, host.scenario).ports
            seen.append(outcome(lambda: do(other, FLEX, "sriov", 7)))
            seen.append(outcome(lambda: create(other, request(mode="sriov", gpu=FLEX))))
            seen.append(outcome(lambda: start(other, "vm")))
        host.ports.sysfs.write(path, text)

    do(with_calls(host.ports, "sysfs", write=write), FLEX, "sriov", 6)
    assert [type(e) for e in seen[:2]] == [Busy, HostCannot]
    assert isinstance(seen[2], Busy)
    assert stand(host)[0][FLEX] == 6


def test_a_process_that_died_in_it_leaves_a_claim_that_reconcile_takes_away(host):
    def remove(carrier, vm_uuid):
        raise OSError(errno.EROFS, "Read-only file system", carrier)

    with pytest.raises(PartlyApplied):
        do(with_calls(host.ports, "claims", remove=remove), FLEX, "sriov", 6)
    host = host.again()
    assert [c.carrier for c in host.ports.claims.all()] == [FLEX]
    assert run_reconcile(host.ports).changed
    assert host.ports.claims.all() == ()


@pytest.mark.parametrize("a16", [A16, "A16"])
def test_after_a_boot_every_gpu_is_set_up_as_host_yaml_says_and_only_once(host, a16):
    host.sim.host_file.write_text(f'version: 1\ngpus:\n  all: {{mode: unmanaged}}\n  "{a16}": {{mode: vgpu}}\n')
    restore_gpus(host.ports, context(), parse_host_spec(host.ports.host_file.read(), "host.yaml").gpus)
    do(host.ports, FLEX, "sriov", 5)
    create(host.ports, request("A16-2Q", gpu=A16, name="vm"))
    host = rebooted(host)
    host.sim.host_file.write_text(host.ports.host_file.read() + '  "0000:99:00.0": {mode: vgpu}\n')
    before = host.ports.host_file.read()
    spec = parse_host_spec(before, "host.yaml")
    restored = restore_gpus(host.ports, context(), spec.gpus)
    steps = [(r.address, len(r.steps), r.error and r.error.code) for r in restored]
    assert steps == [(A16, 1, None), (FLEX, 1, None), ("0000:99:00.0", 0, "not-found")]
    assert (stand(host)[0][A16], stand(host)[0][FLEX]) == (16, 5)
    again = restore_gpus(host.ports, context(), spec.gpus)
    assert [r.steps for r in again] == [(), (), ()]
    assert host.ports.host_file.read() == before
    assert not do(host.ports, A16, "vgpu").changed
    start(host.ports, "vm")


@pytest.mark.parametrize(
    ("model", "gpu", "mode", "vfs"),
    [
        ("A16, backend: mdev-vf, vfs: {total: 2, enabled: 0}", A16, "vgpu", None),
        ("Flex 170, vfs: {total: 3, enabled: 2}", FLEX, "sriov", 1),
        ("A100, vfs: {total: 2, enabled: 2}", A100, "passthrough", None),
    ],
)
def test_whatever_fails_it_is_as_before_or_done_or_says_what_is_left(tmp_path, model, gpu, mode, vfs):
    text = SMALL.format(model=model, gpu=gpu)
    calls = counted(open_sim_host(tmp_path / "dry", text=text).ports, lambda w: do(w, gpu, mode, vfs))
    assert "claims.add" in calls
    for at in sampled(range(1, len(calls) + 1)):
        host = open_sim_host(tmp_path / str(at), text=text)
        before = stand(host)[0]
        error = outcome(lambda at=at, host=host: do(failing(host.ports, at), gpu, mode, vfs))
        now, written = stand(host)[0], configured_modes(host)
        assert (now == before) == (written == {}) or (error is not None and error.left), calls[at - 1]
        assert error is not None or written
        assert host.ports.claims.all() == () or (error is not None and error.left), calls[at - 1]


def test_a_driver_that_takes_the_number_and_keeps_its_own_is_noticed(host):
    def write(path, text):
        if not path.endswith("sriov_numvfs"):
            host.ports.sysfs.write(path, text)

    with pytest.raises(Exception, match="was set to 6 VFs but has 0"):
        do(with_calls(host.ports, "sysfs", write=write), FLEX, "sriov", 6)


def test_a_command_that_goes_on_alone_keeps_the_gpu_claimed_and_is_not_run_again(host):
    calls = []

    def sriov_manage(flag, address, *, deadline_seconds):
        calls.append(flag)
        host.ports.claims.add_stuck_write(StuckWrite(host.ports.operations.current().process, address, "/path", flag))
        raise Stuck("it continues as process 7", pid=7)

    with pytest.raises(Stuck, match="process 7") as raised:
        do(with_calls(host.ports, "vendor_commands", sriov_manage=sriov_manage), A16, "vgpu")
    assert (calls, raised.value.status, configured_modes(host)) == (["-e"], 75, {})
    assert raised.value.left
    assert raised.value.hint == "then: vgpuctl reconcile-host"
    assert [c.carrier for c in host.ports.claims.all()] == [A16]


BOOTED = SMALL.format(model="Flex 170, vfs: {total: 4, enabled: 3}", gpu=FLEX)


def after_boot(host, vfs, **more):
    """Restore the card as the boot unit does, which libvirt waits for: a call of libvirt fails."""
    spec = parse_host_spec(f"version: 1\ngpus:\n  '{FLEX}': {{mode: sriov, vfs: {vfs}}}\n", "host.yaml")
    vms = tuple(replace(vm, state=VmState.UNKNOWN) for vm in observe(host.ports, ReadScope(models=False)).vms)
    ports = replace(host.ports, hypervisor=None, **more)
    (done,) = restore_gpus(ports, context(), spec.gpus, vms=vms)
    return done


def booted(tmp_path, names):
    host = open_sim_host(tmp_path, text=BOOTED)
    for name in names:
        create(host.ports, request(mode="sriov", gpu=FLEX, name=name))
    host.sim.reboot()
    return host.again()


def test_a_gpu_that_boots_with_another_number_of_vfs_is_set_to_its_own_without_libvirt(tmp_path):
    host = booted(tmp_path, ["one", "two"])
    done = after_boot(host, 1)
    assert isinstance(done.error, InUse)
    assert (done.error.facts["vms"], stand(host)[0][FLEX]) == (["two"], 3), "no VM loses its VF"
    done = after_boot(host, 4)
    assert (done.error, len(done.steps), stand(host)[0][FLEX]) == (None, 1, 4)
    assert host.ports.claims.all() == ()
    start(host.ports, "one")


def test_a_restore_takes_no_vf_from_a_vm_that_runs(tmp_path):
    host = open_sim_host(tmp_path, text=BOOTED)
    create(host.ports, request(mode="sriov", gpu=FLEX, name="vm"))
    with unchanged(host, stand):
        done = after_boot(host, 4)
    assert isinstance(done.error, InUse)
    assert "guest=vm" in done.error.message


def test_a_signal_ends_a_restore(tmp_path):
    host, signals = booted(tmp_path, []), Signals()
    with pytest.raises(Interrupted):
        after_boot(host, 4, sysfs=Struck(host.ports.sysfs, signals, lambda name, args: name == "write"))


def test_the_vfs_of_a_gpu_that_a_vm_has_as_a_whole_go_off_after_a_boot(tmp_path):
    host = open_sim_host(tmp_path)
    do(host.ports, A100, "passthrough")
    create(host.ports, request(mode="passthrough", gpu=A100, name="vm"))
    host = rebooted(host)
    with pytest.raises(HostCannot, match="has 16 VFs enabled") as raised:
        start(host.ports, "vm")
    assert raised.value.hint == f"vgpuctl set-mode {A100} passthrough"
    assert do(host.ports, A100, "passthrough").data.vfs.enabled == 0
    assert start(host.ports, "vm").changed
    host = rebooted(host)
    (done,) = restore_gpus(host.ports, context(), parse_host_spec(host.ports.host_file.read(), "host.yaml").gpus)
    assert (done.error, start(host.ports, "vm").changed) == (None, True), "restore-host turns them off, too"

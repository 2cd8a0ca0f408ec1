# SPDX-License-Identifier: Apache-2.0
"""set-mode of GPUs with AMD's gim: it is loaded again for another number of VFs, with no VM on any of its GPUs."""

from __future__ import annotations

import pytest

from tests.adopting import define, function_xml
from tests.failed_calls import failed_calls
from tests.faults import CHANGING, Trial
from tests.hosts import context, create, open_sim_host, picture, request, run_reconcile, start
from tests.layouts import V710, configured_modes, do
from tests.meanwhile import rebooted, unchanged, with_calls
from tests.unit.operations.test_apply import diff, run
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import DeviceFailed, HostCannot, InUse, InvalidInput, PartlyApplied, Refused, Stuck
from vgpuctl.gpu_setup.gim_vfs import SetGimVfs
from vgpuctl.gpu_setup.sriov import count_vfs
from vgpuctl.model.port_values import CommandResult
from vgpuctl.model.vm import GPU_SETUP_CLAIM, StuckWrite
from vgpuctl.operations.gpu_mode import ModeRequest, restore_gpus, set_mode

FIRST, SECOND = "0000:3b:00.0", "0000:af:00.0"
CONFIG = "/etc/gim_config"


def state(host):
    """Return everything that a failed set-mode could leave behind."""
    now = host.sim._core.read_state()
    autoprobe = {gpu for gpu in now.vfs if now.autoprobe.get(gpu, 1)}
    settings = (dict(now.gim_modes), host.ports.sysfs.read(CONFIG))
    return dict(now.vfs), dict(now.drivers), autoprobe, settings, picture(host)


def partitioned(ports, gpu, vfs, compute=None, memory=None, **options):
    job = ModeRequest(gpu, "sriov", vfs, compute_partition=compute, memory_partition=memory, **options)
    return set_mode(ports, context(), job)


def modes(host):
    return dict(host.sim._core.read_state().gim_modes)


@pytest.fixture
def host(tmp_path):
    return open_sim_host(tmp_path, "mi300x")


def test_the_file_is_written_whole_and_the_other_gpu_keeps_its_number(host):
    done = do(host.ports, SECOND, "sriov", 8)
    assert done.data.vfs.enabled == 8
    assert host.ports.sysfs.read(CONFIG) == "vf_num=1,8\naccelerator_partition_mode=8\nmemory_partition_mode=1\n"
    assert configured_modes(host) == {SECOND: ("sriov", 8)}
    assert do(host.ports, FIRST, "sriov", 4).steps[0] == (
        f"turn 4 VFs of {FIRST} on instead of 1: write vf_num=4,8 to {CONFIG}, unload gim, load gim"
    )
    assert host.sim._core.read_state().vfs == {FIRST: 4, SECOND: 8}
    assert not do(host.ports, FIRST, "sriov", 4).changed


def test_the_number_survives_a_boot_and_restore_only_checks(host):
    do(host.ports, FIRST, "sriov", 8)
    host = rebooted(host)
    specs = parse_host_spec(host.ports.host_file.read(), "host.yaml").gpus
    (result,) = restore_gpus(host.ports, context(), specs)
    assert (result.error, result.steps, host.sim._core.read_state().vfs[FIRST]) == (None, (), 8)
    host.ports.system.put(CONFIG, "vf_num=2\n", 0o444)
    host = rebooted(host)
    (result,) = restore_gpus(host.ports, context(), specs)
    assert isinstance(result.error, HostCannot)
    assert "gim was loaded with 2 VFs" in result.error.message
    assert f"vgpuctl set-mode {FIRST} sriov --vfs 8 --drain" in result.error.hint
    assert host.sim._core.read_state().vfs[FIRST] == 2


def test_a_vm_on_another_gpu_of_the_driver_stops_it_too(host):
    create(host.ports, request(mode="sriov", gpu=SECOND, name="vm"))
    with unchanged(host, state), pytest.raises(InUse, match=f"{FIRST} is in use by vm: gim is loaded again") as raised:
        do(host.ports, FIRST, "sriov", 8)
    assert "--drain" in raised.value.hint
    running = picture(host).running
    done = do(host.ports, FIRST, "sriov", 8, drain=True)
    assert (done.steps[0], done.steps[-1]) == ("shut down VM vm", "start VM vm again")
    assert picture(host).running == running
    assert not picture(host).claims.keys() & {FIRST, SECOND}


def test_a_gpu_that_the_driver_could_not_initialize_may_come_back(tmp_path):
    text = "version: 1\ntitle: t\ngpus: [{model: MI300X, vfs: {enabled: 1}}, {model: MI300X, vfs: {enabled: 0}}]\n"
    host = open_sim_host(tmp_path, text=text)
    assert do(host.ports, FIRST, "sriov", 8).data.vfs.enabled == 8
    assert sorted(host.sim._core.read_state().vfs.values()) == [1, 8]


def test_every_gpu_of_the_driver_is_claimed_while_it_is_loaded_again(host):
    create(host.ports, request(mode="sriov", gpu=SECOND, name="vm"), start=False)
    held = []

    def modprobe(module, *, unload, address, deadline_seconds):
        held.append({claim.carrier for claim in host.ports.claims.all() if claim.vm == GPU_SETUP_CLAIM})
        return host.ports.vendor_commands.modprobe(module, unload=unload, address=address, deadline_seconds=1)

    do(with_calls(host.ports, "vendor_commands", modprobe=modprobe), FIRST, "sriov", 8)
    assert held == [{FIRST, SECOND}, {FIRST, SECOND}]
    assert not picture(host).claims.keys() & {FIRST, SECOND}


def test_a_gpu_that_host_yaml_excludes_is_not_loaded_again_with_another(host):
    do(host.ports, SECOND, "unmanaged")
    with unchanged(host, state), pytest.raises(Refused, match=f"host.yaml excludes {SECOND}") as raised:
        do(host.ports, FIRST, "sriov", 8)
    assert raised.value.hint == f"if vgpuctl may set it: vgpuctl set-mode {SECOND} sriov --vfs 1"
    assert len(do(host.ports, SECOND, "sriov", 1).steps) == 1
    assert do(host.ports, FIRST, "sriov", 8).data.vfs.enabled == 8


def test_a_write_that_blocks_on_another_gpu_of_the_driver_refuses_its_load(host):
    host.ports.claims.add_stuck_write(StuckWrite(host.ports.operations.current().process, SECOND, "/sys/x", "0"))
    with unchanged(host, state), pytest.raises(Stuck) as raised:
        do(host.ports, FIRST, "sriov", 8)
    assert raised.value.facts["gpu"] == SECOND


def test_a_vf_that_a_stopped_vm_needs_is_not_taken(host):
    do(host.ports, FIRST, "sriov", 8)
    for name in ("one", "two"):
        create(host.ports, request(mode="sriov", gpu=FIRST, name=name), start=False)
    with unchanged(host, state), pytest.raises(InUse, match="whose VF does not exist with 1 VF"):
        do(host.ports, FIRST, "sriov", 1, drain=True)


@pytest.mark.parametrize("vfs", [3, 5, 7])
def test_a_number_for_which_the_gpu_has_no_partition_is_refused(host, vfs):
    with unchanged(host, state), pytest.raises(InvalidInput, match=f"cannot have {vfs} VFs") as raised:
        do(host.ports, FIRST, "sriov", vfs)
    assert "--vfs 8 (CPX/NPS1, CPX/NPS4)" in raised.value.hint


def test_a_line_of_modprobe_wins_over_the_file_and_is_named(host):
    host.ports.system.put("/etc/modprobe.d/gim.conf", "# ours\noptions gim vf_num=4,4 log_level=3\n", 0o644)
    with (
        unchanged(host, state),
        pytest.raises(HostCannot, match=r"gim\.conf, line 2: options gim vf_num=4") as raised,
    ):
        do(host.ports, FIRST, "sriov", 8)
    assert raised.value.hint.startswith("sed -i '2s/[ \\t]*vf_num=[0-9,]*//' /etc/modprobe.d/gim.conf")


def test_a_file_that_gim_would_empty_is_not_written_over(host):
    host.ports.system.put(CONFIG, "# four\nvf_num=4\n", 0o444)
    with unchanged(host, state), pytest.raises(HostCannot, match="gim may empty /etc/gim_config") as raised:
        do(host.ports, FIRST, "sriov", 8)
    assert raised.value.hint.startswith("mv /etc/gim_config /etc/gim_config.bad;")


def test_a_driver_that_a_program_has_open_stays_as_it_was(tmp_path):
    text = "version: 1\ntitle: t\ngpus: [{model: MI300X, vfs: {enabled: 1}, held_by: amd-smi}]\n"
    host = open_sim_host(tmp_path, text=text)
    with unchanged(host, state), pytest.raises(InUse, match="Module gim is in use"):
        do(host.ports, FIRST, "sriov", 8)


def test_a_load_that_fails_is_undone(tmp_path):
    text = "version: 1\ntitle: t\ngpus: [{model: MI300X, vfs: {enabled: 1}}]\n"
    host = open_sim_host(tmp_path, text=text)
    calls = []

    def modprobe(module, *, unload, address, deadline_seconds):
        calls.append(unload)
        if len(calls) == 2:
            return CommandResult(1, "modprobe: ERROR: could not insert 'gim': Cannot allocate memory\n")
        return host.ports.vendor_commands.modprobe(module, unload=unload, address=address, deadline_seconds=1)

    ports = with_calls(host.ports, "vendor_commands", modprobe=modprobe)
    with unchanged(host, state), pytest.raises(DeviceFailed, match="could not insert 'gim': Cannot allocate memory"):
        do(ports, FIRST, "sriov", 8)
    assert calls == [True, False, True, False]


UNREAD = """version: 1
title: t
gpus:
  - {model: MI300X, address: "0000:3b:00.0", vfs: {enabled: 1}}
  - {model: MI300X, address: "0000:af:00.0", vfs: {enabled: 1}}
faults: [{on: sysfs-read, match: "/sys/bus/pci/devices/0000:af:00.0/device", errno: EIO}]
"""


@pytest.mark.parametrize("asked", [(8, None), (1, "CPX")])
def test_a_gpu_of_gim_that_was_not_read_forbids_the_change(tmp_path, asked):
    host = open_sim_host(tmp_path, text=UNREAD)
    before = host.sim._core.read_state().vfs
    with pytest.raises(HostCannot, match=f"gim also drives {SECOND}, which was not read.*{SECOND} is ignored"):
        partitioned(host.ports, FIRST, *asked)
    assert host.sim._core.read_state().vfs == before


def test_gpus_of_gim_are_listed_again_before_it_is_unloaded(host):
    step = SetGimVfs(
        gpu=FIRST, counts=((FIRST, 8),), previous_counts=((FIRST, 1),), text="vf_num=8\n", previous_text=""
    )
    with unchanged(host, state), pytest.raises(HostCannot, match=f"gim also drives {SECOND}"):
        step.perform(host.ports)


def test_the_undo_does_not_unload_gim_under_a_vm(host):
    def fail(*args, **options):
        vf = host.ports.sysfs.readlink(f"/sys/bus/pci/devices/{FIRST}/virtfn3").rpartition("/")[2]
        define(host, function_xml(vf, "yes"), name="other")
        host.ports.hypervisor.start(host.ports.hypervisor.domains()[0].uuid)
        raise OSError(28, "No space left on device", "/etc/vgpuctl/host.yaml")

    with pytest.raises(PartlyApplied) as raised:
        do(with_calls(host.ports, "host_file", replace=fail), FIRST, "sriov", 8)
    assert "is in use by" in "".join(raised.value.left)
    assert host.sim._core.read_state().vfs[FIRST] == 8


def test_gim_stays_loaded_when_its_file_cannot_be_written(host):
    def put(path, text, mode):
        raise OSError(28, "No space left on device", path)

    def modprobe(*args, **options):
        pytest.fail("gim is unloaded")

    ports = with_calls(with_calls(host.ports, "vendor_commands", modprobe=modprobe), "system", put=put)
    with unchanged(host, state), pytest.raises(DeviceFailed, match="No space left"):
        do(ports, FIRST, "sriov", 8)


def test_an_undo_that_cannot_write_the_file_loads_gim_with_the_one_there(host):
    puts, calls = [], []

    def put(path, text, mode):
        puts.append(text)
        if len(puts) > 1:
            raise OSError(28, "No space left on device", path)
        host.ports.system.put(path, text, mode)

    def modprobe(module, *, unload, address, deadline_seconds):
        calls.append(unload)
        if len(calls) == 2:
            return CommandResult(1, "modprobe: ERROR: could not insert 'gim': Cannot allocate memory\n")
        return host.ports.vendor_commands.modprobe(module, unload=unload, address=address, deadline_seconds=1)

    ports = with_calls(with_calls(host.ports, "vendor_commands", modprobe=modprobe), "system", put=put)
    with pytest.raises(PartlyApplied, match="could not insert"):
        do(ports, FIRST, "sriov", 8)
    assert calls == [True, False, False]
    assert host.sim._core.read_state().vfs == {FIRST: 8, SECOND: 1}


def test_a_gpu_without_vfs_gets_its_driver_back(tmp_path):
    text = "version: 1\ntitle: t\ngpus: [{model: MI300X, vfs: {enabled: 0}}]\nfaults: [{on: modprobe, nth: 2}]\n"
    host = open_sim_host(tmp_path, text=text)
    with pytest.raises(DeviceFailed, match="could not insert 'gim'"):
        do(host.ports, FIRST, "sriov", 8)
    assert host.ports.sysfs.readlink(f"/sys/bus/pci/devices/{FIRST}/driver").endswith("/gim")


# ------------------------------------------------------------- partition modes


def test_partition_modes_are_set_with_the_number_of_vfs_and_kept_over_a_boot(host):
    do(host.ports, SECOND, "sriov", 8)
    done = partitioned(host.ports, FIRST, 8, "CPX", "NPS4")
    assert (done.data.compute_partition, done.data.memory_partition) == ("CPX", "NPS4")
    assert (done.data.before.memory_partition, done.data.after.memory_partition) == ("NPS1", "NPS4")
    assert modes(host) == {FIRST: (8, 4), SECOND: (8, 4)}
    spec = parse_host_spec(host.ports.host_file.read(), "host.yaml").gpus[FIRST]
    assert (spec.mode, spec.vfs, spec.compute_partition, spec.memory_partition) == ("sriov", 8, "CPX", "NPS4")
    host = rebooted(host)
    assert modes(host) == {FIRST: (8, 4), SECOND: (8, 4)}
    assert not partitioned(host.ports, FIRST, 8, "CPX", "NPS4").changed


def test_modes_alone_are_changed_without_loading_the_driver_memory_first(host):
    done = partitioned(host.ports, FIRST, None, "CPX", "NPS4")
    assert [step for step in done.steps if "partition mode" in step] == [
        f"set the memory partition mode of {FIRST} to NPS4 (gim)",
        f"set the compute partition mode of {FIRST} to CPX (gim)",
    ]
    assert not any("load gim" in step for step in done.steps)
    assert partitioned(host.ports, FIRST, None, "CPX", "NPS1").changed
    assert modes(host)[FIRST] == (8, 1)


def test_another_number_of_vfs_drops_the_modes_and_says_so(host):
    partitioned(host.ports, FIRST, None, "CPX", "NPS4")
    done = do(host.ports, FIRST, "sriov", 8)
    assert done.steps[0].endswith("; the saved partition modes of its GPUs are dropped")
    assert modes(host)[FIRST] == (8, 1)
    spec = parse_host_spec(host.ports.host_file.read(), "host.yaml").gpus[FIRST]
    assert (spec.vfs, spec.compute_partition, spec.memory_partition) == (8, None, None)


@pytest.mark.parametrize(
    ("vfs", "compute", "memory", "text"),
    [
        (8, "SPX", None, "cannot have 8 VFs with SPX"),
        (1, "SPX", "NPS4", "cannot have 1 VF with SPX NPS4"),
        (2, None, "NPS4", "cannot have 2 VFs with NPS4"),
        (1, None, "NPS8", "cannot have 1 VF with NPS8"),
        (8, "CPX", None, f"{SECOND} has 1 VF, not 8"),
    ],
)
def test_modes_that_do_not_go_with_the_number_are_refused_before_any_write(host, vfs, compute, memory, text):
    with unchanged(host, state), pytest.raises(InvalidInput, match=text):
        partitioned(host.ports, FIRST, vfs, compute, memory)


@pytest.mark.parametrize("vfs", [None, 8])
def test_memory_of_vfs_is_refused_and_not_written(host, vfs):
    with unchanged(host, state), pytest.raises(HostCannot, match=r"driver gim of .* does not let the memory of VFs"):
        partitioned(host.ports, FIRST, vfs, vf_memory_mib=4096)
    assert host.ports.host_file.read() is None


def test_memory_of_vfs_in_host_yaml_is_an_error_with_the_command_that_removes_it(host):
    text = f"version: 1\ngpus:\n  {FIRST}: {{mode: sriov, vfs: 1, vf_memory: 4GiB}}\n"
    with unchanged(host, state), pytest.raises(HostCannot, match="does not let the memory of VFs be set"):
        run(host.ports, file=text)
    host.ports.host_file.replace(text, None)
    shown = diff(host.ports)
    assert [(row.key, row.is_) for row in shown.data.gpus[0].differences] == [("vf_memory", None)]
    assert "does not let the memory of VFs be set" in shown.data.gpus[0].refused
    (restored,) = restore_gpus(host.ports, context(), parse_host_spec(text, "host.yaml").gpus)
    assert f"vgpuctl apply --set 'gpus[{FIRST}].vf_memory=null'" in restored.error.hint
    assert run(host.ports, f"gpus[{FIRST}].vf_memory=null").changed
    assert not diff(host.ports).changed


def test_a_gpu_without_partition_modes_says_so(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    with pytest.raises(HostCannot, match="has no partition modes"):
        partitioned(host.ports, V710, 4, "CPX")
    assert do(host.ports, V710, "sriov", 12).data.vfs.enabled == 12
    with pytest.raises(HostCannot, match="has no partition modes: driver i915"):
        partitioned(host.ports, "0000:86:00.0", 4, "CPX")


def test_modes_wait_for_vms_on_every_gpu(host):
    create(host.ports, request(mode="sriov", gpu=SECOND, name="vm"))
    with unchanged(host, state), pytest.raises(InUse, match="gim changes the modes of all its GPUs"):
        partitioned(host.ports, FIRST, None, "CPX", "NPS4")
    assert partitioned(host.ports, FIRST, None, "CPX", "NPS4", drain=True).changed
    assert modes(host)[FIRST] == (8, 4)


# ---------------------------------------------------------------------- faults


def prepared(directory):
    host = open_sim_host(directory, "mi300x")
    create(host.ports, request(mode="sriov", gpu=SECOND, name="vm"))
    return host.again()


def act(ports):
    return partitioned(ports, FIRST, 1, "CPX", "NPS4", drain=True)


def load(ports):
    return do(ports, FIRST, "sriov", 8, drain=True)


def whole(host, where):
    """Check that nothing is claimed for a set-up, and that the VM starts where gim is loaded."""
    run_reconcile(host.ports)
    assert not picture(host).claims.keys() & {FIRST, SECOND}, where
    if count_vfs(host.ports, SECOND) and not picture(host).running:
        start(host.ports, "vm")


@pytest.mark.parametrize("action", [act, load])
def test_whatever_call_fails_the_gpus_are_as_before_or_the_error_says_what_is_left(tmp_path, action):
    trial = Trial(tmp_path, prepared, action)
    calls = trial.calls()
    assert any(call in CHANGING for call in calls)
    refused = 0
    for one in failed_calls(trial, calls, state):
        refused += one.error is not None
        if one.is_left:
            assert one.is_told or one.error.code == "verify-failed", (one.where, one.error)
            whole(one.host.again(), one.where)
    assert refused >= 2


def test_a_killed_command_leaves_what_one_modprobe_makes_whole(tmp_path, spawn):
    trial = Trial(tmp_path, prepared, load)
    for _, _, where, host in trial.killed(trial.calls(), spawn):
        host.ports.vendor_commands.modprobe("gim", unload=False, address=FIRST, deadline_seconds=1)
        whole(host, where)
        vfs = host.sim._core.read_state().vfs
        assert vfs in ({FIRST: 1, SECOND: 1}, {FIRST: 8, SECOND: 1}), where
        assert picture(host).running, where

# SPDX-License-Identifier: Apache-2.0
"""Claim files and stuck records below /run/vgpuctl."""

import json
import multiprocessing
import os
import stat
import subprocess
import sys

import pytest

from tests.hosts import claim_store
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.gpu import Backend
from vgpuctl.model.port_values import ClaimList
from vgpuctl.model.vm import Claim, DrainedVm, ProcessId, StuckWrite
from vgpuctl.value import as_dict, replace

CARRIER = "0000:3b:00.4"


def claim_of(vm, carrier=CARRIER):
    return Claim(
        carrier=carrier,
        backend=Backend.VENDOR_VF,
        gpu="0000:3b:00.0",
        function=carrier,
        vm=vm,
        vm_uuid=f"uuid-of-{vm}",
        profile="A100-4C",
        framebuffer_mib=4096,
        process=HostProcesses().current_process(),
        command="vgpuctl create-vm",
    )


def store_in(directory, *, read_only=False):
    return claim_store(directory / "run", read_only=read_only)


def rewritten(directory, **changes):
    """Change the fields of the claim's file; None removes one."""
    path = directory / f"run/claims/{CARRIER}"
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


@pytest.fixture
def store(tmp_path):
    return store_in(tmp_path)


def test_nothing_there_is_nothing_claimed(store):
    assert (store.all(), store.read(), store.stuck_writes()) == ((), ClaimList((), ()), ())


def test_a_claim_is_read_back_as_written(store):
    claims = [
        replace(claim_of("b", "0000:3b:00.5"), placement_id=24, spread_group="exam"),
        claim_of("a"),
        replace(claim_of("c", "mtty"), profile=None),
    ]
    for claim in claims:
        store.add(claim)
    assert store.all() == tuple(sorted(claims, key=lambda claim: claim.carrier))
    assert store.read() == ClaimList(store.all(), ())


def test_a_claim_is_renewed_in_one_step_and_never_over_that_of_another_vm(tmp_path, store):
    store.replace(claim_of("a"))
    store.replace(replace(claim_of("a"), placement_id=24, command="vgpuctl start-vm"))
    (now,) = store.all()
    assert (now.placement_id, now.command) == (24, "vgpuctl start-vm")
    with pytest.raises(FileExistsError) as raised:
        store.replace(claim_of("b"))
    assert raised.value.filename == str(tmp_path / f"run/claims/{CARRIER}")
    assert store.all() == (now,)
    assert os.listdir(tmp_path / "run/claims") == [CARRIER]
    rewritten(tmp_path, vm_uuid=None)
    with pytest.raises(FileExistsError):
        store.replace(claim_of("a"))


def test_files_are_for_root_alone(tmp_path, store):
    store.add(claim_of("a"))
    modes = {p: stat.S_IMODE(os.stat(tmp_path / p).st_mode) for p in ("run", "run/claims", f"run/claims/{CARRIER}")}
    assert modes == {"run": 0o700, "run/claims": 0o700, f"run/claims/{CARRIER}": 0o600}


def test_a_carrier_is_claimed_once(tmp_path, store):
    store.add(claim_of("a"))
    with pytest.raises(FileExistsError) as caught:
        store.add(claim_of("b"))
    assert caught.value.filename == str(tmp_path / f"run/claims/{CARRIER}")
    assert [claim.vm for claim in store.all()] == ["a"]
    assert os.listdir(tmp_path / "run/claims") == [CARRIER]


def test_only_the_owners_claim_is_removed(store):
    store.add(claim_of("a"))
    store.remove(CARRIER, "uuid-of-b")
    assert len(store.all()) == 1
    store.remove(CARRIER, "uuid-of-a")
    assert store.all() == ()
    store.remove(CARRIER, "uuid-of-a")


@pytest.mark.parametrize("carrier", ["", ".", "..", ".hidden", "a/b", "../lock", "a\0b"])
def test_a_carrier_is_a_file_name(store, carrier):
    with pytest.raises(ValueError, match="not a carrier"):
        store.add(claim_of("a", carrier))
    with pytest.raises(ValueError, match="not a carrier"):
        store.remove(carrier, "x")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"carrier": "0000:3b:00.4"}', "null", "\udcff"])
def test_what_cannot_be_read_counts_as_taken_and_stays(tmp_path, store, text):
    directory = tmp_path / "run/claims"
    directory.mkdir(parents=True)
    (directory / CARRIER).write_text(text, errors="surrogateescape")
    assert store.read() == ClaimList((), (CARRIER,))
    store.remove(CARRIER, "uuid-of-a")
    with pytest.raises(FileExistsError):
        store.add(claim_of("a"))


def test_a_claim_under_another_name_is_not_trusted(tmp_path, store):
    store.add(claim_of("a"))
    os.rename(tmp_path / f"run/claims/{CARRIER}", tmp_path / "run/claims/0000:3b:00.5")
    assert store.read() == ClaimList((), ("0000:3b:00.5",))


def test_what_a_later_version_adds_to_a_claim_is_passed_over(tmp_path, store):
    store.add(claim_of("a"))
    rewritten(tmp_path, colour=4, process={**as_dict(claim_of("a").process), "boot_id": "x"})
    assert store.read() == ClaimList((claim_of("a"),), ())
    store.remove(CARRIER, "uuid-of-a")
    assert store.all() == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "quantum"},
        {"backend": ["vendor-vf"]},
        {"process": 7},
        {"process": {"pid": "7", "start_ticks": 1}},
        {"process": {"pid": 7}},
        {"vm": 7},
        {"gpu": None},
        {"framebuffer_mib": "4096"},
        {"profile": {}},
        {"spread_group": 7},
    ],
)
def test_a_claim_with_a_field_of_another_kind_is_not_misread(tmp_path, store, changes):
    store.add(claim_of("a"))
    rewritten(tmp_path, **changes)
    assert store.read() == ClaimList((), (CARRIER,))


def test_a_claim_that_goes_while_they_are_read_is_no_unreadable_one(tmp_path, store):
    for carrier in (CARRIER, "mtty"):
        store.add(claim_of("a", carrier))
    waiting = [tmp_path / "run/claims/mtty"]

    def remove(event, arguments):
        if waiting and event == "open" and arguments[0] == CARRIER:
            waiting.pop().unlink()

    sys.addaudithook(remove)
    assert store.read() == ClaimList((claim_of("a"),), ())
    assert not waiting


def test_all_claims_are_read_in_one_pass(tmp_path, store):
    for number in range(8):
        store.add(claim_of(f"vm{number}", f"0000:3b:00.{number}"))
    opened = []

    def count(event, arguments):
        if event == "open" and not isinstance(arguments[0], int):
            opened.append(os.fspath(arguments[0]))

    sys.addaudithook(count)
    store.read()
    mine = [path for path in opened if "0000:3b:00." in path or path.startswith(str(tmp_path))]
    assert len(mine) == 9, "the directory and each claim once"


def test_what_a_crash_leaves_half_written_is_no_claim(tmp_path, store):
    store.add(claim_of("a", "mtty"))
    (tmp_path / "run/claims/.4711-0").write_text('{"carrier": "0000:')
    assert [claim.carrier for claim in store.all()] == ["mtty"]
    assert store.read().unreadable == ()


def test_a_directory_that_cannot_be_listed_is_not_empty(tmp_path, store):
    (tmp_path / "run").mkdir()
    for name, observed in (("claims", store.read), ("claims", store.all), ("stuck", store.stuck_writes)):
        (tmp_path / "run" / name).write_text("")
        with pytest.raises(NotADirectoryError) as caught:
            observed()
        assert caught.value.filename == str(tmp_path / "run" / name)


CLOSED = """
import os, sys
from pathlib import Path
from tests.hosts import claim_store
run = Path(sys.argv[1])
store = claim_store(run)
(run / "claims").mkdir(0o700)
(run / "stuck").mkdir(0o700)
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
else:
    os.chmod(run, 0)
for look in (store.read, store.stuck_writes):
    try:
        print(look())
    except PermissionError as error:
        print(error.filename)
"""


def test_unreadable_claims_are_not_no_claims(tmp_path):
    run = tmp_path / "run"
    run.mkdir(0o700)
    done = subprocess.run([sys.executable, "-c", CLOSED, str(run)], capture_output=True, text=True, check=True)
    run.chmod(0o700)
    assert done.stdout.splitlines() == [str(run / "claims"), str(run / "stuck")]


def test_a_captured_tree_is_shown_as_it_is_and_never_changed(tmp_path, store):
    gone = StuckWrite(ProcessId(os.getpid(), 1), "0000:3c:00.0", "/sys/y/remove", "1")
    store.add(claim_of("a"))
    store.add_stuck_write(gone)
    before = sorted((str(p), p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*"))
    capture = store_in(tmp_path, read_only=True)
    assert (capture.all(), capture.stuck_writes()) == ((claim_of("a"),), ())
    capture.remove_stuck_write(gone)
    acts = (
        lambda: capture.add(claim_of("b", "mtty")),
        lambda: capture.remove(CARRIER, "uuid-of-a"),
        lambda: capture.set_permissions(0o777),
        lambda: capture.add_stuck_write(gone),
    )
    for act in acts:
        with pytest.raises(OSError, match="this host is read-only"):
            act()
    with capture.lock(0):
        assert capture.is_locked
    assert not capture.is_locked
    assert sorted((str(p), p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*")) == before


def _grab(directory, number, barrier, results):
    store = store_in(directory)
    barrier.wait()
    try:
        store.add(claim_of(f"vm{number}"))
        results.put(number)
    except FileExistsError:
        results.put(None)


def test_of_many_at_once_exactly_one_gets_the_carrier(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results, count = context.Barrier(8), context.Queue(), 8
    for _round in range(3):
        racers = [context.Process(target=_grab, args=(tmp_path, n, barrier, results)) for n in range(count)]
        for racer in racers:
            racer.start()
        winners = [number for number in (results.get() for _ in racers) if number is not None]
        for racer in racers:
            racer.join()
        (claim,) = store_in(tmp_path).all()
        assert [f"vm{number}" for number in winners] == [claim.vm]
        store_in(tmp_path).remove(CARRIER, claim.vm_uuid)


def test_a_stuck_write_is_known_while_its_process_lives(tmp_path, store):
    alive = StuckWrite(HostProcesses().current_process(), "0000:3b:00.0", "/sys/x/remove", "1")
    gone = StuckWrite(ProcessId(alive.process.pid, 1), "0000:3c:00.0", "/sys/y/remove", "1")
    store.add_stuck_write(gone)
    assert not (tmp_path / "run/operations").exists()  # it names its process, so no operation begins that nobody ends
    assert store.stuck_writes() == ()
    store.add_stuck_write(gone)
    store.add_stuck_write(alive)
    assert store.stuck_writes() == (alive,)
    for text in ("{", '{"process": 1}', '{"process": {"pid": 1, "start_ticks": "x"}}'):
        (tmp_path / "run/stuck/1").write_text(text)
        assert store.stuck_writes() == (alive,)
    (tmp_path / "run/stuck/1").write_text(json.dumps({**as_dict(alive), "since": 7}))
    assert store.stuck_writes() == (alive, alive)
    (tmp_path / "run/stuck/1").unlink()
    store.remove_stuck_write(alive)
    assert store.stuck_writes() == ()


def test_a_rewritten_note_is_not_removed_for_the_old_one(store):
    former = DrainedVm("of-vm", None, ProcessId(999999, 1))
    store.add_drained_vm(former)
    store.add_drained_vm(replace(former, process=HostProcesses().current_process()))
    store.remove_drained_vm("of-vm", former)
    assert [vm.process for vm in store.drained_vms()] == [HostProcesses().current_process()]
    store.remove_drained_vm("of-vm")
    assert store.drained_vms() == ()

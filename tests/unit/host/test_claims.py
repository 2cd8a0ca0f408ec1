# SPDX-License-Identifier: Apache-2.0
"""Claim files and stuck records below /run/vgpuctl."""

import json
import multiprocessing
import os
import stat
from dataclasses import replace

import pytest

from vgpuctl.host.claims import ClaimStore
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import Claim, ProcessId, StuckWrite

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
        process=HostProcesses().this(),
        command="vgpuctl create-vm",
    )


def store_in(directory):
    return ClaimStore(directory / "run", HostProcesses(), "vgpuctl create-vm")


@pytest.fixture
def store(tmp_path):
    return store_in(tmp_path)


def test_nothing_there_is_nothing_claimed(store):
    assert (store.all(), store.unreadable(), store.stuck()) == ((), (), ())


def test_a_claim_is_read_back_as_written(store):
    claims = [claim_of("b", "0000:3b:00.5"), claim_of("a"), replace(claim_of("c", "mtty"), profile=None)]
    for claim in claims:
        store.add(claim)
    assert store.all() == tuple(sorted(claims, key=lambda claim: claim.carrier))
    assert store.unreadable() == ()


def test_files_are_for_root_alone(tmp_path, store):
    store.add(claim_of("a"))
    modes = {p: stat.S_IMODE(os.stat(tmp_path / p).st_mode) for p in ("run", "run/claims", f"run/claims/{CARRIER}")}
    assert modes == {"run": 0o700, "run/claims": 0o700, f"run/claims/{CARRIER}": 0o600}


def test_a_carrier_is_claimed_once(tmp_path, store):
    store.add(claim_of("a"))
    with pytest.raises(FileExistsError):
        store.add(claim_of("b"))
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
    assert (store.all(), store.unreadable()) == ((), (CARRIER,))
    store.remove(CARRIER, "uuid-of-a")
    with pytest.raises(FileExistsError):
        store.add(claim_of("a"))


def test_a_claim_under_another_name_is_not_trusted(tmp_path, store):
    store.add(claim_of("a"))
    os.rename(tmp_path / f"run/claims/{CARRIER}", tmp_path / "run/claims/0000:3b:00.5")
    assert (store.all(), store.unreadable()) == ((), ("0000:3b:00.5",))


def test_a_later_versions_claim_is_not_misread(tmp_path, store):
    store.add(claim_of("a"))
    path = tmp_path / f"run/claims/{CARRIER}"
    path.write_text(json.dumps({**json.loads(path.read_text()), "backend": "quantum"}))
    assert store.unreadable() == (CARRIER,)


def test_what_a_crash_leaves_half_written_is_no_claim(tmp_path, store):
    store.add(claim_of("a", "mtty"))
    (tmp_path / "run/claims/.4711-0").write_text('{"carrier": "0000:')
    assert [claim.carrier for claim in store.all()] == ["mtty"]
    assert store.unreadable() == ()


def test_a_directory_that_cannot_be_listed_is_not_empty(tmp_path, store):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/claims").write_text("")  # as closed to root as a directory of mode 0700 is to others
    assert store.unreadable() == (str(tmp_path / "run/claims"),)


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
    alive = StuckWrite(HostProcesses().this(), "0000:3b:00.0", "/sys/x/remove", "1")
    gone = StuckWrite(ProcessId(alive.process.pid, 1), "0000:3c:00.0", "/sys/y/remove", "1")
    store.record_stuck(gone)
    assert store.stuck() == ()
    store.record_stuck(gone)
    store.record_stuck(alive)
    assert store.stuck() == (alive,)
    (tmp_path / "run/stuck/1").write_text("{")
    assert store.stuck() == (alive,)
    store.forget_stuck(alive)
    assert store.stuck() == ()

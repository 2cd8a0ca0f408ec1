# SPDX-License-Identifier: Apache-2.0
"""Another program or person acts on a VM while it moves: it never runs on both hosts, and nothing of it is lost."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests import EVERYTHING
from tests.moves.meanwhile import BOOT, DEEDS, LIBVIRT, Instant, Meetings, Met
from tests.moves.pairs import KINDS

SEED, EACH = 14, 2000 if EVERYTHING else 16
REFUSED = ("start-vm", "stop-vm --force", "set-vm", "delete-vm", "virsh start")


def met(directory: Path, kind: str, count: int, *deeds: str) -> list[Met]:
    """Run so many of the trials of a kind of move, or those with these deeds."""
    meetings = Meetings(KINDS[kind], directory)
    instants = [i for i in meetings.instants(every_call=not deeds) if not deeds or i.deed in deeds]
    return [meetings.run(i) for i in Random(SEED).sample(instants, min(count, len(instants)))]


def wrong_of(results: list[Met]) -> dict[str, tuple[int, str, tuple[str, ...]]]:
    return {r.where: (r.status, r.error, r.wrong) for r in results if r.wrong}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_another_program_does_the_vm_never_runs_on_both_and_is_not_lost(tmp_path: Path, kind: str) -> None:
    assert wrong_of(met(tmp_path, kind, EACH)) == {}


@pytest.mark.parametrize("deed", [*DEEDS, LIBVIRT])
def test_whatever_is_done_before_a_change_the_vm_never_runs_on_both(tmp_path: Path, deed: str) -> None:
    results = met(tmp_path, "live, disks copied", 1000 if EVERYTHING else 3, deed)
    assert wrong_of(results) == {}


@pytest.mark.parametrize("deed", REFUSED)
def test_a_vm_that_moves_is_not_changed_by_others(tmp_path: Path, deed: str) -> None:
    meetings = Meetings(KINDS["live, disks copied"], tmp_path)
    instants = list(meetings.instants(every_call=False))
    sent = next(i.number for i in instants if i.call == "hypervisor.migrate")
    result = meetings.run(Instant(deed, "source", "source", sent, "hypervisor.migrate"))
    assert (result.effective, result.owner, result.state, result.wrong) == (False, "target", "runs", ())


@pytest.mark.parametrize(("host", "owner"), [("source", "source"), ("target", "source")])
def test_a_host_that_boots_while_memory_is_sent_leaves_the_vm_on_its_source(
    tmp_path: Path, host: str, owner: str
) -> None:
    meetings = Meetings(KINDS["live, disks copied"], tmp_path)
    sent = next(i.number for i in meetings.instants(every_call=False) if i.call == "hypervisor.migrate")
    result = meetings.run(Instant(BOOT, host, "source", sent, "hypervisor.migrate"))
    assert (result.owner, result.wrong) == (owner, ())

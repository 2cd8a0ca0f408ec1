# SPDX-License-Identifier: Apache-2.0
"""vGPUs of several sizes created at once, by threads and by processes, never take each other's place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.hosts import create, open_sim_host, request
from tests.mixed_sizes import PRO, Q4, Q24, Q48, mixed, overlapping, placed, seen
from tests.processes import clean
from tests.unit.operations.test_ensure_vms import ensure, names
from vgpuctl.errors import VgpuctlError
from vgpuctl.host.processes import HostClock


def test_vms_that_are_made_at_once_never_wait_for_each_others_place(tmp_path):
    host = mixed(tmp_path, clock=HostClock())
    done = ensure(host.ports, request(Q24), names(4), parallel=4, start=False)
    assert {vm.changed for vm in done.data.vms} == {True}
    assert sorted(placed(host).values()) == [0, 24, 48, 72]


def _create(directory: str, profile: str, name: str, ready: object, answers: object) -> None:
    host = open_sim_host(Path(directory), PRO, clock=HostClock())
    ready.wait(60)
    try:
        create(host.ports, request(profile, name=name), start=False)
        answers.put("made")
    except VgpuctlError as error:
        answers.put(error.code)
    except Exception as error:  # noqa: BLE001 - the parent needs the error, or it waits forever
        answers.put(f"bug: {error!r}")


def test_processes_that_create_at_once_never_choose_the_same_place(tmp_path):
    host = mixed(tmp_path)
    context = clean()
    wanted = [Q48, *[Q24] * 2, *[Q4] * 2, "DC-96Q"]
    ready, answers = context.Barrier(len(wanted)), context.Queue()
    arguments = [(str(tmp_path), profile, f"vm-{n}", ready, answers) for n, profile in enumerate(wanted)]
    running = [context.Process(target=_create, args=each) for each in arguments]
    for process in running:
        process.start()
    output = Counter(answers.get(timeout=120) for _ in running)
    for process in running:
        process.join(60)
    assert set(output) <= {"made", "no-capacity"}, output
    assert len(seen(host)) == output["made"] >= 1
    assert overlapping(host) == []

# SPDX-License-Identifier: Apache-2.0
"""Threads take turns on a simulated host."""

from __future__ import annotations

import sys
import threading

from tests.hosts import open_sim_host
from vgpuctl.sim.call_lock import serialize_calls

WAIT_SECONDS = 30.0


class _Core:
    def __init__(self):
        self.call_lock = threading.RLock()


@serialize_calls
class _Thing:
    def __init__(self):
        self._core = _Core()
        self.inside = 0
        self.most = 0

    def call(self, others):
        self.inside += 1
        self.most = max(self.most, self.inside)
        others.wait(0.01)
        self.inside -= 1
        return self._private()

    def _private(self):
        return "done"


def test_a_public_method_is_one_thread_at_a_time():
    thing, never = _Thing(), threading.Event()
    threads = [threading.Thread(target=thing.call, args=(never,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert thing.most == 1
    assert thing.call(never) == "done"


def test_threads_that_change_and_look_at_a_host_do_not_disturb_each_other(tmp_path):
    storage = open_sim_host(tmp_path, text="version: 1\nstorage: {pools: [{name: default}]}\ngpus: []\n").ports.storage
    wrong: list[BaseException] = []

    def make(thread):
        try:
            for number in range(60):
                storage.create_volume("default", f"{thread}-{number}.qcow2", 1 << 30)
                for _ in range(5):
                    storage.pool("default")
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=make, args=(n,)) for n in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change after nearly every step of the interpreter
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert all(storage.volume("default", f"{t}-{n}.qcow2") for t in range(4) for n in range(60))

# SPDX-License-Identifier: Apache-2.0
"""Setting the GPUs of a simulated host up: addresses of the scenario `mixed`, and what set-mode leaves behind."""

from __future__ import annotations

from tests.worlds import WAIT_SECONDS, Silent, create, open_host, picture, wish
from vgpuctl.engine.layout import Job, set_mode
from vgpuctl.errors import Interrupted
from vgpuctl.spec.host import parse_host_spec

A100, A16, FLEX, V710, T4, RTX = (f"0000:{bus}:00.0" for bus in ("3b", "17", "86", "af", "5e", "d8"))


def do(world, gpu, mode, vfs=None, *, drain=False, dry_run=False, progress=None):
    job = Job(gpu, mode, vfs, drain, wait_seconds=WAIT_SECONDS)
    return set_mode(world, job, dry_run=dry_run, progress=progress or Silent())


def stand(host):
    """What set-mode could leave behind, beside what `picture` shows."""
    state = host.sim._core.look()
    return dict(state.vfs), dict(state.autoprobe), picture(host)


def said(host):
    text = host.world.host_file.read()
    spec = parse_host_spec(text, "host.yaml") if text is not None else None
    return {a: (g.mode, g.vfs) for a, g in spec.gpus.items()} if spec else {}


def drained(tmp_path):
    """Return a host with two running VMs that a set-mode of FLEX has to drain."""
    host = open_host(tmp_path, "mixed")
    for name in ("one", "two"):
        create(host.world, wish(mode="sriov", gpu=FLEX, name=name))
    return host


def numvfs(name, args):
    """Say yes to the write that turns six VFs on."""
    return name == "write" and args[0].endswith("sriov_numvfs") and args[1] == "6\n"


def starts(*numbers):
    """Say yes to the starts of VMs with these numbers."""
    seen = []

    def at(name, args):
        seen.extend([name] if name == "start" else [])
        return name == "start" and len(seen) in numbers

    return at


class Signals(Silent):
    """Signals as the command line takes them: the first is Interrupted, and again before each step; then the keys."""

    def __init__(self):
        self.received = 0

    def come(self):
        self.received += 1
        raise Interrupted("stopped by SIGINT", signal_number=2) if self.received == 1 else KeyboardInterrupt

    def started(self, number, text):
        if self.received:
            raise Interrupted("stopped by SIGINT", signal_number=2)


class Struck:
    """A seam in which a signal comes at the calls that `at` says yes to."""

    def __init__(self, real, signals, at):
        self.real, self.signals, self.at = real, signals, at

    def __getattr__(self, name):
        def call(*args, **more):
            if self.at(name, args):
                self.signals.come()
            return getattr(self.real, name)(*args, **more)

        return call

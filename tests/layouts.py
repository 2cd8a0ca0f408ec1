# SPDX-License-Identifier: Apache-2.0
"""Helpers for set-mode: addresses of the scenario `mixed`, and what set-mode leaves on a simulated host."""

from __future__ import annotations

from tests.hosts import Silent, context, create, open_sim_host, picture, request
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import Interrupted
from vgpuctl.operations.gpu_mode import ModeRequest, set_mode

A100, A16, FLEX, V710, T4, RTX = (f"0000:{bus}:00.0" for bus in ("3b", "17", "86", "af", "5e", "d8"))


def do(ports, gpu, mode, vfs=None, *, drain=False, dry_run=False, progress=None):
    job = ModeRequest(gpu, mode, vfs, drain)
    return set_mode(ports, context(dry_run=dry_run, progress=progress), job)


def stand(host):
    """Return everything that set-mode could leave behind, with what `picture` shows."""
    state = host.sim._core.read_state()
    return dict(state.vfs), dict(state.autoprobe), picture(host)


def configured_modes(host):
    text = host.ports.host_file.read()
    spec = parse_host_spec(text, "host.yaml") if text is not None else None
    return {a: (g.mode, g.vfs) for a, g in spec.gpus.items()} if spec else {}


def drained(tmp_path):
    """Return a host with two running VMs that a set-mode of FLEX has to drain."""
    host = open_sim_host(tmp_path, "mixed")
    for name in ("one", "two"):
        create(host.ports, request(mode="sriov", gpu=FLEX, name=name))
    return host


def numvfs(name, args):
    """Match the write that turns six VFs on."""
    return name == "write" and args[0].endswith("sriov_numvfs") and args[1] == "6\n"


def starts(*numbers):
    """Match the VM starts with these ordinal numbers."""
    seen = []

    def at(name, args):
        seen.extend([name] if name == "start" else [])
        return name == "start" and len(seen) in numbers

    return at


class Signals(Silent):
    """Signals as the command line handles them.

    The first raises Interrupted, also before each later step; the next raise KeyboardInterrupt.
    """

    def __init__(self):
        self.received = 0

    def come(self):
        self.received += 1
        raise Interrupted("stopped by SIGINT", signal_number=2) if self.received == 1 else KeyboardInterrupt

    def on_step_start(self, number, text):
        if self.received:
            raise Interrupted("stopped by SIGINT", signal_number=2)


class Struck:
    """A port that raises a signal in the calls for which `at` returns true."""

    def __init__(self, real, signals, at):
        self.real, self.signals, self.at = real, signals, at

    def __getattr__(self, name):
        def call(*args, **more):
            if self.at(name, args):
                self.signals.come()
            return getattr(self.real, name)(*args, **more)

        return call


class StrikesTheRequest(Signals):
    """A signal at the last moment before the first guest is asked to shut down.

    It comes in the call `call` of libvirt: in the look-up of the step, or in the request itself, which is not sent.
    """

    def __init__(self, hypervisor, call):
        super().__init__()
        self.hypervisor, self.call, self.stopping = hypervisor, call, False

    def on_step_start(self, number, text):
        self.stopping = text.startswith("shut down VM")
        super().on_step_start(number, text)

    def port(self):
        return Struck(self.hypervisor, self, lambda name, _: name == self.call and self.stopping and not self.received)

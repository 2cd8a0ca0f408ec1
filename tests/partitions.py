# SPDX-License-Identifier: Apache-2.0
"""Partitioning the GPUs of simulated hosts: what is typed, what is there afterwards, and small hosts of one GPU."""

from __future__ import annotations

from tests.worlds import WAIT_SECONDS, Silent, open_host, picture
from vgpuctl.engine.layout import Job, set_mode
from vgpuctl.layout.mig import names_of
from vgpuctl.model.partition import MigSpec
from vgpuctl.spec.host import parse_host_spec

FIRST, SECOND = "0000:3b:00.0", "0000:3f:00.0"
OFF = MigSpec()
HOST = """version: 1
title: one card
kernel: {kernel}
storage: {{pools: [{{name: default}}]}}
networks: [{{name: default}}]
gpus: [{{model: {model}, address: "0000:3b:00.0"{more}}}]
faults: [{faults}]
"""


def mig(*names):
    return MigSpec(names)


def act(world, gpu, wanted=None, mixed=None, *, mode=None, drain=False, dry_run=False, progress=None):
    job = Job(gpu, mode, None, drain, wait_seconds=WAIT_SECONDS, mig=wanted, mixed_size=mixed)
    return set_mode(world, job, dry_run=dry_run, progress=progress or Silent())


def small(directory, model="H100", *, kernel="6.8.0-45-generic", more="", faults=""):
    more = f", {more}" if more else ""
    return open_host(directory, text=HOST.format(model=model, kernel=kernel, more=more, faults=faults))


def stands(host, gpu=FIRST):
    """Return what the driver says of a GPU's partition: MIG, its instances with their places, and mixed sizes."""
    seen = host.sim.nvml.gpu(gpu)
    there = (
        []
        if seen.mig is None
        else [f"{p}@{s}" for p, s in sorted((i.profile_id, str(i.span)) for i in seen.mig.instances)]
    )
    enabled = None if seen.mig is None else (seen.mig.enabled, seen.mig.pending)
    return enabled, there, seen.mixed_size


def names(host, gpu=FIRST):
    return list(names_of(host.sim.nvml.gpu(gpu).mig))


def everything(host, gpu=FIRST):
    """Return all that a change of a partition could leave behind."""
    seen = host.sim.nvml.gpu(gpu)
    return stands(host, gpu), seen.scheduler.state, host.world.host_file.read(), picture(host)


def said(host, gpu=FIRST):
    """Return what host.yaml says of a GPU."""
    return parse_host_spec(host.world.host_file.read(), "f").gpus[gpu]

# SPDX-License-Identifier: Apache-2.0
"""Cordon: the GPU takes nothing new, existing vGPUs stay, and the user's other text in host.yaml stays."""

from __future__ import annotations

import pytest

from tests.faults import counted, failing, outcome
from tests.hosts import context, create, open_sim_host, picture, rebooted, request, run_reconcile, start, stop
from vgpuctl.errors import InvalidInput, NoCapacity, NotFound
from vgpuctl.operations import queries
from vgpuctl.operations.desired_state import cordon
from vgpuctl.value import replace

GPU = "0000:3b:00.0"


def do(ports, gpu=GPU, *, cordoned=True, dry_run=False):
    return cordon(ports, context(dry_run=dry_run), gpu, cordoned=cordoned)


def test_a_cordoned_gpu_gets_nothing_new_and_keeps_what_it_has(host):
    create(host.ports, request("A100-4C", name="vm"))
    done = do(host.ports)
    assert (done.changed, done.data.cordoned) == (True, True)
    with pytest.raises(NoCapacity):
        create(host.ports, request("A100-4C"))
    assert queries.list_profiles(host.ports).data == ()
    assert all(t.free == 0 for t in queries.show_gpu(host.ports, GPU).data.types)
    assert "cordoned" in queries.explain(host.ports, "A100-4C").data.gpus[0].reasons[0]
    stop(host.ports, "vm")
    assert start(host.ports, "vm").data.state == "running"
    assert not run_reconcile(host.ports).changed
    before = picture(host)
    host = rebooted(host)
    assert queries.list_gpus(host.ports).data[0].cordoned
    start(host.ports, "vm")
    assert picture(host) == before
    assert do(host.ports, cordoned=False).changed
    create(host.ports, request("A100-4C"))


@pytest.mark.parametrize(("mode", "gpu"), [("sriov", "0000:86:00.0"), ("passthrough", "0000:d8:00.0")])
def test_a_cordon_covers_plain_vfs_and_whole_gpus(tmp_path, mode, gpu):
    host = open_sim_host(tmp_path, "mixed")
    do(host.ports, gpu)
    with pytest.raises(NoCapacity) as raised:
        create(host.ports, request(mode=mode, gpu=gpu))
    assert f"uncordon {gpu}" in str(raised.value.hint)


def test_it_is_idempotent_and_a_dry_run_only_plans(host):
    planned = do(host.ports, dry_run=True)
    assert (planned.changed, len(planned.steps), host.ports.host_file.read()) == (True, 1, None)
    assert not do(host.ports, cordoned=False).changed
    assert do(host.ports, "A100").changed
    written = host.ports.host_file.read()
    assert not do(host.ports).changed
    assert host.ports.host_file.read() == written


def test_one_gpu_overrides_a_cordon_of_all_and_can_return_to_it(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    host.sim.host_file.write_text("version: 1\ngpus:\n  all: {cordoned: true}\n")
    assert not do(host.ports).changed
    assert do(host.ports, cordoned=False).data.cordoned is False
    assert host.ports.host_file.read().endswith(f'  "{GPU}":\n    cordoned: false\n')
    create(host.ports, request("A100-4C"))
    assert do(host.ports).changed
    with pytest.raises(NoCapacity):
        create(host.ports, request("A100-4C"))


@pytest.mark.parametrize(
    ("scenario", "gpu", "kind", "text"),
    [
        ("mixed", "0000:99:00.0", NotFound, "0000:99:00.0"),
        ("mixed", "mtty", InvalidInput, "no PCI address"),
        ("l40s-x4", "L40S", InvalidInput, "4 GPUs"),
    ],
)
def test_which_gpu_must_be_clear(tmp_path, scenario, gpu, kind, text):
    with pytest.raises(kind, match=text):
        do(open_sim_host(tmp_path, scenario).ports, gpu)


def test_a_broken_host_yaml_is_not_touched(host):
    host.sim.host_file.write_text("version: 1\ngpu: {}\n")
    with pytest.raises(InvalidInput, match=r"host\.yaml:2:1"):
        do(host.ports)
    assert host.sim.host_file.read_text() == "version: 1\ngpu: {}\n"


def test_a_captured_host_is_read_only(tmp_path):
    with pytest.raises(InvalidInput, match="captured"):
        do(replace(open_sim_host(tmp_path).ports, read_only_reason="captured"))


def test_whatever_fails_the_file_is_the_old_or_the_new(tmp_path):
    card = f'version: 1\ntitle: one card\ngpus: [{{model: T4, address: "{GPU}"}}]\n'
    calls = counted(open_sim_host(tmp_path / "dry", text=card).ports, do)
    for at in range(1, len(calls) + 1):
        host = open_sim_host(tmp_path / str(at), text=card)
        host.sim.host_file.write_text("version: 1  # ours\n")
        error = outcome(lambda at=at, host=host: do(failing(host.ports, at)))
        text = host.sim.host_file.read_text()
        assert text.startswith("version: 1  # ours\n")
        assert ("cordoned: true" in text) or error is not None

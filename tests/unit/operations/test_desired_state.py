# SPDX-License-Identifier: Apache-2.0
"""cordon, export and import: what they write into host.yaml, or print as one.

A cordoned GPU takes nothing new, existing vGPUs stay, and the user's other text in host.yaml stays. What export prints
matches the host; what import prints of mdevctl's mdevs is accepted and created by apply.
"""

from __future__ import annotations

import json

import pytest

from tests.faults import counted, failing, outcome
from tests.hosts import context, create, open_sim_host, picture, request, run_reconcile, start, stop
from tests.layouts import A100, FLEX, do
from tests.meanwhile import rebooted, with_calls
from tests.unit.operations.test_apply import run
from tests.vgpus import finding_kinds
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.config.import_formats import parse_import
from vgpuctl.errors import InvalidInput, NoCapacity, NotFound
from vgpuctl.host.absent import AbsentNvml
from vgpuctl.model.gpu import MigSpec
from vgpuctl.operations import queries
from vgpuctl.operations.apply import apply_host, diff_host
from vgpuctl.operations.desired_state import HostFileText, cordon, export_host, read_desired_state
from vgpuctl.operations.import_host import import_host
from vgpuctl.sim.host import SCENARIOS
from vgpuctl.value import replace


def same(ports):
    text = export_host(ports).data.text
    result = diff_host(ports, read_desired_state(ports, HostFileText(text, "exported"), ()), drain=False)
    assert (result.changed, result.data.settings) == (False, ())
    assert [line for line in result.steps if not line.startswith("replace /etc/vgpuctl/host.yaml with exported")] == []
    return text


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_diff_finds_nothing_on_any_simulated_host(tmp_path, scenario):
    same(open_sim_host(tmp_path, scenario).ports)


def test_file_settings_that_the_host_cannot_show_stay(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    host.sim.host_file.write_text(
        "version: 1\ndefaults: {memory: 8GiB}\nboot: {deadline_seconds: 60}\n"
        "gpus:\n  all: {reserved_for: vdi-*}\n  A100: {cordoned: true, profiles: A100-4C}\n"
    )
    do(host.ports, FLEX, "sriov", 4)
    spec = parse_host_spec(same(host.ports), "x")
    assert (spec.defaults.memory, spec.boot.deadline_seconds) == ("8GiB", 60)
    assert spec.gpus["0000:3b:00.0"].profiles == ("A100-4C",)
    assert (spec.gpus[FLEX].mode, spec.gpus[FLEX].vfs) == ("sriov", 4)
    assert all(one.reserved_for == ("vdi-*",) for one in spec.gpus.values())


def test_an_exported_file_brings_a_host_back(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    text = export_host(host.ports).data.text
    do(host.ports, FLEX, "sriov", 2)
    asked = read_desired_state(host.ports, HostFileText(text, "exported"), ())
    apply_host(host.ports, context(), asked, drain=False)
    assert export_host(host.ports).data.text == text


CONFIGURED = """version: 1
gpus:
  A100: {mode: vgpu, scheduler: {policy: fixed_share}, mig: off, cordoned: true}
  "0000:99:00.0": {mode: sriov, vfs: 2}
  H100: {mode: vgpu}
"""


def configured(tmp_path, text):
    host = open_sim_host(tmp_path, "mixed")
    host.sim.host_file.write_text(text)
    return host


def test_missing_or_unreadable_is_not_off(tmp_path):
    host = configured(tmp_path, CONFIGURED)
    dark = replace(host.ports, nvml=AbsentNvml("the driver is down"))
    result = export_host(dark)
    spec = parse_host_spec(result.data.text, "x")
    assert (spec.gpus[A100].mig, str(spec.gpus[A100].scheduler.policy)) == (MigSpec(), "fixed_share")
    assert (spec.gpus["0000:99:00.0"].vfs, spec.gpus["H100"].mode) == (2, "vgpu")
    assert [w.partition(";")[0] for w in result.warnings if "no GPU here is" in w] == [
        "no GPU here is 0000:99:00.0",
        "no GPU here is H100",
    ]
    assert any(w.startswith(f"{A100}: NVML does not answer") for w in result.warnings)


def test_a_gpu_without_its_driver_keeps_what_host_yaml_says(tmp_path):
    host = configured(tmp_path, CONFIGURED.replace("A100:", f'"{A100}":'))

    def readlink(path):
        """No driver has the A100, as after a failed load of the module."""
        if path.endswith(f"{A100}/driver"):
            raise FileNotFoundError(2, "no such file", path)
        return host.ports.sysfs.readlink(path)

    def listdir(path):
        names = host.ports.sysfs.listdir(path)
        return tuple(n for n in names if not (path.endswith(A100) and n.startswith(("driver", "virtfn"))))

    unbound = with_calls(host.ports, "sysfs", readlink=readlink, listdir=listdir)
    result = export_host(replace(unbound, nvml=AbsentNvml("the driver is down")))
    assert any(w.startswith(f"{A100}: no driver is bound to it") for w in result.warnings)
    entry = parse_host_spec(result.data.text, "x").gpus[A100]
    assert (entry.mode, entry.cordoned, entry.mig) == ("vgpu", True, MigSpec())
    assert str(entry.scheduler.policy) == "fixed_share"


UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
OTHER = f"{UUID[:-1]}2"


def dump(parent: str, type_id: str) -> str:
    """Return what `mdevctl list -d --dumpjson` prints of two mdevs."""
    attrs = [{"nvidia/vgpu_params": "frame_rate_limiter=0"}, {"assign": "5"}]
    first = {UUID: {"mdev_type": type_id, "start": "auto", "attrs": attrs}}
    return json.dumps([{parent: [first, {OTHER: {"mdev_type": type_id, "start": "auto"}}]}])


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    ("scenario", "parent", "type_id"), [("t4", "0000:3b:00.0", "nvidia-231"), ("a16", "0000:3b:00.4", "nvidia-712")]
)
def test_what_mdevctl_dumps_is_made_or_taken_over_by_apply(host, parent, type_id, started):
    path = f"/sys/bus/pci/devices/{parent}/mdev_supported_types/{type_id}/create"
    if started:
        host.ports.sysfs.write(path, UUID)
    read = import_host(host.ports, parse_import(dump(parent, type_id), "dump", None))
    assert read.data.left_out == ("dump:1: vgpuctl does not set the attribute assign",)
    assert run(host.ports, file=read.data.text).changed
    seen = picture(host)
    assert set(seen.mdevs) == {UUID, OTHER} == set(seen.claims)
    assert (seen.params.get(UUID) or seen.mdevs[UUID][2]) == ("" if started else "frame_rate_limiter=0")
    assert (finding_kinds(host.again()), run(host.ports).changed) == ([], False)
    host = rebooted(host)
    assert run(host.ports).changed
    assert set(picture(host).mdevs) == {UUID, OTHER}


def set_cordon(ports, gpu=A100, *, cordoned=True, dry_run=False):
    return cordon(ports, context(dry_run=dry_run), gpu, cordoned=cordoned)


def test_a_cordoned_gpu_gets_nothing_new_and_keeps_what_it_has(host):
    create(host.ports, request("A100-4C", name="vm"))
    done = set_cordon(host.ports)
    assert (done.changed, done.data.cordoned) == (True, True)
    with pytest.raises(NoCapacity):
        create(host.ports, request("A100-4C"))
    assert queries.list_profiles(host.ports).data == ()
    assert all(t.free == 0 for t in queries.show_gpu(host.ports, A100).data.types)
    assert "cordoned" in queries.explain(host.ports, "A100-4C").data.gpus[0].reasons[0]
    stop(host.ports, "vm")
    assert start(host.ports, "vm").data.state == "running"
    assert not run_reconcile(host.ports).changed
    before = picture(host)
    host = rebooted(host)
    assert queries.list_gpus(host.ports).data[0].cordoned
    start(host.ports, "vm")
    assert picture(host) == before
    assert set_cordon(host.ports, cordoned=False).changed
    create(host.ports, request("A100-4C"))


@pytest.mark.parametrize(("mode", "gpu"), [("sriov", "0000:86:00.0"), ("passthrough", "0000:d8:00.0")])
def test_a_cordon_covers_plain_vfs_and_whole_gpus(tmp_path, mode, gpu):
    host = open_sim_host(tmp_path, "mixed")
    set_cordon(host.ports, gpu)
    with pytest.raises(NoCapacity) as raised:
        create(host.ports, request(mode=mode, gpu=gpu))
    assert f"uncordon {gpu}" in str(raised.value.hint)


def test_it_is_idempotent_and_a_dry_run_only_plans(host):
    planned = set_cordon(host.ports, dry_run=True)
    assert (planned.changed, len(planned.steps), host.ports.host_file.read()) == (True, 1, None)
    assert not set_cordon(host.ports, cordoned=False).changed
    assert set_cordon(host.ports, "A100").changed
    written = host.ports.host_file.read()
    assert not set_cordon(host.ports).changed
    with pytest.raises(InvalidInput, match="a captured tree"):
        set_cordon(replace(host.ports, read_only_reason="a captured tree"), cordoned=False)
    assert host.ports.host_file.read() == written


def test_one_gpu_overrides_a_cordon_of_all_and_can_return_to_it(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    host.sim.host_file.write_text("version: 1\ngpus:\n  all: {cordoned: true}\n")
    assert not set_cordon(host.ports).changed
    assert set_cordon(host.ports, cordoned=False).data.cordoned is False
    assert host.ports.host_file.read().endswith(f'  "{A100}":\n    cordoned: false\n')
    create(host.ports, request("A100-4C"))
    assert set_cordon(host.ports).changed
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
        set_cordon(open_sim_host(tmp_path, scenario).ports, gpu)


def test_a_broken_host_yaml_is_not_touched(host):
    host.sim.host_file.write_text("version: 1\ngpu: {}\n")
    with pytest.raises(InvalidInput, match=r"host\.yaml:2:1"):
        set_cordon(host.ports)
    assert host.sim.host_file.read_text() == "version: 1\ngpu: {}\n"


def test_whatever_fails_the_file_is_the_old_or_the_new(tmp_path):
    card = f'version: 1\ntitle: one card\ngpus: [{{model: T4, address: "{A100}"}}]\n'
    calls = counted(open_sim_host(tmp_path / "dry", text=card).ports, set_cordon)
    for at in range(1, len(calls) + 1):
        host = open_sim_host(tmp_path / str(at), text=card)
        host.sim.host_file.write_text("version: 1  # ours\n")
        error = outcome(lambda at=at, host=host: set_cordon(failing(host.ports, at)))
        text = host.sim.host_file.read_text()
        assert text.startswith("version: 1  # ours\n")
        assert ("cordoned: true" in text) or error is not None

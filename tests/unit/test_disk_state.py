# SPDX-License-Identifier: Apache-2.0
"""Files that version 0.2.0 left on a host are read, used and written in the same form; see disk_state/README.md."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.dom import minidom
from xml.etree import ElementTree

import pytest

from tests.disk_state import (
    ADDRESSES,
    BASE,
    GPUS,
    INSTALLED,
    LOADED,
    MAIN,
    NAMESPACE,
    NEWER,
    OTHER,
    OWN,
    PROFILES,
    PYTHON,
    SAVED,
    SEED,
    SPARE,
    WANTED,
    WHOLE,
    Site,
    canonical,
    carrier_of,
    domain_text,
    fresh,
    kept_of,
    mdev_uuid,
    plain,
    record_of,
    site,
    tree,
    written,
)
from tests.faults import Watch
from tests.hosts import create, delete, open_sim_host, picture, request
from tests.layouts import do
from tests.unit.operations.test_refresh import prepared, refresh
from vgpuctl.domain.record import FINISH_EXCHANGE
from vgpuctl.errors import VgpuctlError
from vgpuctl.hook import run as libvirt_hook
from vgpuctl.model.vm import ProcessId, StuckWrite

__all__ = ["fresh", "site"]


def test_its_files_are_read(site: Site) -> None:
    small = PROFILES[site.kind]
    vms = {vm["name"]: vm for vm in site.run("list-vms")}
    assert sorted(vms) == ["gone", "half", "idle", "lent", "off", "on", "seeded", "spare", "whole"]
    for name, vm in vms.items():
        record = written(site, name)
        assert (vm["ownership"], vm["uuid"]) == ("managed", record.attrib["vm-uuid"])
        assert vm["state"] == ("running" if name == "on" else "stopped")
        assert vm["reserve"] == ("running" if name in ("lent", "idle") else "always")
        profile, present = None if name == "whole" else small, name not in ("gone", "idle", "lent")
        shown = [(v["carrier"], v["profile"], v["present"]) for v in vm["vgpus"]]
        assert shown == [(carrier_of(record), profile, present)]
        state = {"gone": "removing", "half": "making", "idle": "making"}.get(name, "ready")
        assert site.run("show-vm", name)["record"] == state
    on = site.run("show-vm", "on")
    assert (on["spread_group"], on["labels"], on["owner"]) == ("desk", {"team": "cad"}, "kim")
    assert site.run("show-vm", "seeded")["cloud_init"] == SEED
    vgpus = {v["carrier"]: v for v in site.run("list-vgpus")}
    claimed = {path.name for path in (site.saved / "run" / "claims").iterdir()}
    assert set(vgpus) == claimed
    kept = vgpus.pop(kept_of(site)["carrier"])
    assert (kept["name"], kept["ownership"], kept["profile"], kept["gpu"]) == ("kept", "managed", small, MAIN)
    leaked = {carrier for carrier, vgpu in vgpus.items() if vgpu["ownership"] != "managed"}
    assert leaked == ({SPARE} if site.kind == "vendor-vf" else set())
    scheduler = site.run("show-gpu", LOADED)["scheduler"]
    assert (scheduler["configured"]["policy"], scheduler["running"]["policy"]) == ("fixed_share", "best_effort")


def test_leftovers_of_killed_commands_can_be_fixed_and_removed(site: Site) -> None:
    ports = site.host()
    result = [(f["kind"], f["what"].split()[1]) for f in site.run("reconcile-host", "--dry-run")["findings"]]
    whole = [("half-set-up", SPARE)] if site.kind == "vendor-vf" else []
    assert set(result) == {
        ("half-removed", "gone"), ("half-made", "half"), ("half-made", "idle"), ("half-refreshed", "refresh"),
        ("drained", "spare"), *whole,
    }  # fmt: skip
    site.run("reconcile-host")
    assert site.run("reconcile-host")["findings"] == []
    vms = {vm["name"]: vm["state"] for vm in site.run("list-vms")}
    off = ("lent", "off", "seeded", "whole")
    assert vms == {**dict.fromkeys(off, "stopped"), "on": "running", "spare": "running"}
    for name in vms:
        roles = {disk.get("role") for disk in record_of(site.xml(name)).iter(f"{NAMESPACE}disk")}
        assert roles == ({None, "seed"} if name == "seeded" else {None})
    claimed = {carrier_of(written(site, name)) for name in vms if name != "lent"} | {kept_of(site)["carrier"]}
    assert {path.name for path in (site.root / "run" / "claims").iterdir()} == claimed
    notes = ("drained", "operations", "stuck", "working")
    assert [tree(site.root / "run" / note) for note in notes] == [{}] * len(notes)
    for name in off:
        site.run("start-vm", name)
    spec = {
        "name": "on", "profile": PROFILES[site.kind], "gpu": MAIN, "image": BASE, "spread_group": "desk",
        "labels": {"team": "cad"}, "owner": "kim",
    }  # fmt: skip
    (site.root / "on.json").write_text(json.dumps(spec))
    assert site.run("ensure-vm", "--file", str(site.root / "on.json"))["steps"] == []
    site.run("refresh-vm", "on", "--image", NEWER, "--drain", "--yes")
    assert site.run("show-vm", "on")["disks"][0]["base"] == NEWER
    for name in vms:
        site.run("stop-vm", name, "--force")
        site.run("delete-vm", name, "--yes")
    site.run("delete-vgpu", "kept", "--yes")
    now = picture(ports)
    assert (now.mdevs, now.types, now.domains, now.claims) == ({}, {}, {}, {})
    assert set(now.files) == {BASE, NEWER}
    assert site.run("list-vgpus") == []


def test_after_a_boot_everything_is_made_again(site: Site) -> None:
    site.run("reconcile-host")
    site.host().sim.reboot()
    restored = {(r["kind"], r["name"]) for r in site.run("restore-host")["restored"]}
    made = {("gpu", MAIN), ("vgpu", "kept"), *(("vm", n) for n in ("off", "on", "seeded", "spare"))}
    assert restored == made
    assert [v["carrier"] for v in site.run("list-vgpus") if not v["present"]] == []
    for address, policy in ((MAIN, "equal_share"), (LOADED, "fixed_share")):  # the driver was loaded with the second
        assert site.run("show-gpu", address)["scheduler"]["running"]["policy"] == policy


EXCHANGE = "<exchange carrier='old' with-vm='other' with-carrier='new'><vgpu index='1'/></exchange>"
"""What an interrupted move of version 0.1 left in the records of its VMs."""


def test_a_vm_in_an_exchange_of_version_0_1_is_shown_and_refused(site: Site) -> None:
    hypervisor, text = site.host().ports.hypervisor, site.xml("off")
    hypervisor.redefine(written(site, "off").attrib["vm-uuid"], text.replace("<spec", f"{EXCHANGE}<spec"))
    before = site.xml("off")
    assert [vm["name"] for vm in site.run("list-vms") if vm["name"] == "off"] == ["off"]
    assert site.run("show-vm", "off")["record"] is None
    for words in ("start-vm off", "stop-vm off", "delete-vm off --yes", "set-vm off --memory 3G", "detach-vgpu off"):
        refused = site.run(*words.split(), status=3)
        assert refused["message"].startswith("off is in an exchange of places that version 0.1 left unfinished")
        assert refused["hint"] == FINISH_EXCHANGE
    site.run("reconcile-host")
    findings = site.run("reconcile-host")["findings"]
    assert [(f["kind"], f["action"]) for f in findings] == [("unreadable-record", f"nothing: {FINISH_EXCHANGE}")]
    for words in ("list-vgpus", "list-gpus", "list-images --disks", "doctor lost-vgpus leftovers", "export"):
        site.run(*words.split())
    (claim,) = (path for path in (site.root / "run" / "claims").iterdir() if '"vm": "off"' in path.read_text())
    assert claim.name == carrier_of(written(site, "off"))
    site.host().sim.reboot()
    assert "off" not in {r["name"] for r in site.run("restore-host")["restored"]}
    with pytest.raises(VgpuctlError) as raised:
        libvirt_hook.prepare(site.host().ports, before)
    assert raised.value.hint == FINISH_EXCHANGE
    assert site.xml("off") == before


def test_a_hanging_write_blocks_its_gpu_for_others(site: Site) -> None:
    (note,) = (site.root / "run" / "stuck").iterdir()
    note.unlink()
    output = json.loads((site.saved / "run" / "stuck" / note.name).read_text())
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    output["process"] = {"pid": os.getpid(), "start_ticks": ticks}
    note.with_name(str(os.getpid())).write_text(json.dumps(output))
    small = PROFILES[site.kind]
    refused = site.run("create-vm", "new", "--profile", small, "--gpu", output["gpu"], status=75)
    assert (refused["code"], refused["facts"]["pid"]) == ("stuck", os.getpid())
    assert output["path"] in refused["message"]


def test_host_yaml_is_edited_as_it_is(site: Site) -> None:
    before = tree(site.saved / "etc" / "vgpuctl")
    site.run("uncordon", SPARE)
    now = tree(site.root / "etc" / "vgpuctl")
    assert now["host.yaml"] == before["host.yaml"].replace(f'  "{SPARE}":\n    cordoned: true\n', "")
    assert [now[f"host.yaml.{n}"] for n in (1, 2, 3, 4)] == [before[f"host.yaml{n}"] for n in ("", ".1", ".2", ".3")]
    site.run("cordon", SPARE)
    assert (site.root / "etc" / "vgpuctl" / "host.yaml").read_text() == before["host.yaml"]


def test_installed_files_are_known(site: Site) -> None:
    before = tree(site.root / "etc")
    assert [step for step in site.run("install-host")["steps"] if "enable" not in step and "link" not in step] == []
    assert tree(site.root / "etc") == before
    site.run("uninstall-host")
    assert set(before) - set(tree(site.root / "etc")) == set(INSTALLED)


def test_the_installed_hook_calls_what_is_there(site: Site, tmp_path: Path) -> None:
    stub = tmp_path / "python"
    stub.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    stub.chmod(0o755)
    hook = (site.saved / "etc" / INSTALLED[0]).read_text()
    assert hook.count(PYTHON) == 1
    text = minidom.parseString(domain_text(site.kind, "lent")).toprettyxml(indent="  ")
    for operation, name in (("prepare", "begin"), ("release", "end")):
        command = ["/bin/sh", "-c", hook.replace(PYTHON, str(stub)), "qemu", "lent", operation, name, "-"]
        called = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.split("\0")
        assert (called[:3], called[4:]) == (["-I", "-m", "vgpuctl.hook"], ["lent", operation, name, "-", ""])
        assert "urn:vgpuctl:1" in called[3]
        assert text.startswith(called[3].rstrip("\n"))
    assert importlib.util.find_spec("vgpuctl.hook.__main__") is not None


@pytest.mark.parametrize("kind", GPUS)
def test_written_files_have_that_form(kind: str, fresh: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch) -> None:
    site, small = fresh(kind), PROFILES[kind]
    (site.root / "etc" / "vgpuctl" / "host.yaml").write_text((site.saved / "etc/vgpuctl/host.yaml.4").read_text())
    site.run("install-host")
    site.run("set-scheduler", MAIN, "--policy", "equal_share")
    site.run("set-scheduler", LOADED, "--policy", "fixed_share")
    site.run("cordon", SPARE)
    where = ("--profile", small, "--gpu", MAIN)
    site.run("create-vgpu", "kept", *where)
    tags = ("--spread-group", "desk", "--label", "team=cad", "--owner", "kim")
    site.run("create-vm", "on", *where, "--image", BASE, *tags)
    site.run("create-vm", "off", *where, "--no-start", "--disk", "10")
    site.run("create-vm", "lent", *where, "--no-start", "--reserve", "running")
    seed = site.root / "user-data.yaml"
    monkeypatch.chdir(site.root)
    seed.write_text("#cloud-config\nhostname: seeded\n")
    words = f"--no-start --image {BASE} --disk 10 --cloud-init user-data.yaml --vgpu-param frame_rate_limiter=0"
    site.run("create-vm", "seeded", "--profile", small, "--gpu", OTHER, *words.split())
    site.run("create-vm", "whole", "--mode", "passthrough", "--gpu", WHOLE, "--no-start")
    wanted = tree(site.saved / "etc")
    assert wanted.pop("modprobe.d/vgpuctl-nvidia.conf")  # set-scheduler --via modprobe of 0.2 wrote it
    assert tree(site.root / "etc") == wanted
    assert os.readlink(site.root / "etc" / WANTED) == f"/etc/{INSTALLED[1]}"
    assert [(site.root / "etc" / name).stat().st_mode & 0o777 for name in INSTALLED] == [0o755, 0o644]
    swaps: list[tuple[str, str]] = [(str(seed.resolve()), SEED)]
    for name in ("on", "off", "lent", "seeded", "whole"):
        new, old = record_of(site.xml(name)), written(site, name)
        ids = [(new.attrib["vm-uuid"], old.attrib["vm-uuid"])]
        if kind == "mdev-pf":
            ids.append((mdev_uuid(ids[0][0]), mdev_uuid(ids[0][1])))
        assert canonical(plain(site.xml(name), *swaps, *ids)) == canonical(domain_text(kind, name))
        swaps += ids
    directory = site.root / "run" / "claims"
    claims = {plain(name, *swaps): plain(text, *swaps) for name, text in tree(directory).items()}
    names = [carrier_of(written(site, name)) for name in ("on", "off", "seeded", "whole")]
    names.append(kept_of(site)["carrier"])
    assert claims == {name: plain((site.saved / "run" / "claims" / name).read_text()) for name in names}
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    if kind == "mdev-pf":
        assert kept_of(site)["carrier"] == mdev_uuid(kept_of(site)["vm_uuid"])


def test_notes_have_the_same_form(tmp_path: Path) -> None:
    seen: dict[str, str] = {}

    def keep(number: int, call: str, args: tuple[Any, ...]) -> None:
        seen.update(tree(tmp_path / "state" / "run"))

    host = prepared(tmp_path, "drain")
    refresh(Watch(before=keep).watch(host.ports), "drain")
    create(Watch(before=keep).watch(host.ports), request("A100-4C", name="idle", reserve="running"), start=False)
    claims: Any = host.ports.claims
    path = f"/sys/bus/pci/devices/{carrier_of(record_of(domain_text('vendor-vf', 'gone')))}/nvidia/current_vgpu_type"
    claims.add_stuck_write(StuckWrite(ProcessId(4194301, 1000), ADDRESSES[3], path, "0"))
    seen.update(tree(tmp_path / "state" / "run"))
    saved = tree(SAVED / "vendor-vf" / "run")
    for notes in ("drained", "working", "stuck"):
        ((name, text),) = ((n, t) for n, t in seen.items() if n.startswith(f"{notes}/"))
        ((as_was, wanted),) = ((n, t) for n, t in saved.items() if n.startswith(f"{notes}/"))
        assert plain(text, (Path(name).name, Path(as_was).name)) == plain(wanted)
    written_operation = next(text for name, text in seen.items() if name.startswith("operations/"))
    saved_operation = next(text for name, text in saved.items() if name.startswith("operations/"))
    assert list(json.loads(written_operation)) == list(json.loads(saved_operation))
    with claims.lock(1.0):
        held = json.loads((tmp_path / "state" / "run" / "lock").read_text())
    assert list(held) == ["pid", "start_ticks", "command"]


def test_a_gpu_being_set_up_is_claimed_in_the_same_form(tmp_path: Path) -> None:
    seen: dict[str, str] = {}
    saved = (SAVED / "vendor-vf" / "run" / "claims" / SPARE).read_text()
    gpu = json.loads(saved)["gpu"]
    text = f'version: 1\ngpus:\n  - {GPUS["vendor-vf"]}, address: "{gpu}"}}\n'
    host = open_sim_host(tmp_path, text=text)
    watch = Watch(before=lambda *_: seen.update(tree(tmp_path / "state" / "run" / "claims")))
    set_up: Any = do
    set_up(watch.watch(host.ports), gpu, "passthrough")
    wanted, now = json.loads(plain(saved)), json.loads(plain(seen[SPARE]))
    assert list(now) == list(wanted)
    assert {k: v for k, v in now.items() if k not in OWN} == {k: v for k, v in wanted.items() if k not in OWN}


def shape(record: ElementTree.Element) -> list[tuple[str, list[str]]]:
    """Return the elements and their attributes, without the one that a record of 0.2 gets when it is changed first."""
    return [(element.tag, [name for name in element.attrib if name != "generation"]) for element in record.iter()]


def test_records_of_unfinished_work_have_the_same_form(tmp_path: Path) -> None:
    seen: list[ElementTree.Element] = []

    def keep(number: int, call: str, args: tuple[Any, ...]) -> None:
        if call == "hypervisor.set_record":
            seen.append(ElementTree.fromstring(args[1]))
        elif call == "hypervisor.define":
            seen.append(record_of(args[0]))

    watch = Watch(before=keep)
    host = prepared(tmp_path / "refresh", "drain", disks=(), seed=None)
    refresh(watch.watch(host.ports), "drain")
    assert shape(record_of(domain_text("vendor-vf", "spare"))) in [shape(record) for record in seen]
    create(watch.watch(host.ports), request("A100-4C", name="new"))
    delete(watch.watch(host.ports), "new")
    states = [record.attrib["state"] for record in seen if record.attrib["vm-uuid"] == seen[-1].attrib["vm-uuid"]]
    assert list(dict.fromkeys(states)) == ["making", "ready", "removing"]
    assert {disk.get("role") for record in seen for disk in record.iter(f"{NAMESPACE}disk")} == {None, "spare"}

# SPDX-License-Identifier: Apache-2.0
"""A simulated host built from the files that version 0.2.0 wrote; see tests/unit/disk_state/README.md."""

from __future__ import annotations

import json
import re
import shutil
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.hosts import SimulatedHost, open_sim_host
from vgpuctl.cli import entry

SAVED = Path(__file__).parent / "unit" / "disk_state" / "v0.2.0"
MACHINE = "0123456789abcdef0123456789abcdef"
PYTHON = "/opt/vgpuctl/bin/python"
ADDRESSES = [f"0000:{bus}:00.0" for bus in ("17", "3b", "5e", "86", "af")]
MAIN, WHOLE, LOADED, OTHER, SPARE = ADDRESSES
GPUS = {
    "mdev-pf": "{model: T4, numa_node: 0, profiles: [T4-4Q, T4-8Q, T4-16Q]",
    "vendor-vf": "{model: A100, numa_node: 0, vfs: {total: 6, enabled: 6}, profiles: [A100-10C, A100-20C, A100-40C]",
}
PROFILES = {"mdev-pf": "T4-4Q", "vendor-vf": "A100-10C"}
NAMESPACE = "{urn:vgpuctl:1}"
INSTALLED = ("libvirt/hooks/qemu.d/vgpuctl", "systemd/system/vgpuctl-restore.service")
WANTED = "systemd/system/multi-user.target.wants/vgpuctl-restore.service"
BASE, NEWER = "/srv/images/base.qcow2", "/srv/images/newer.qcow2"
SEED = "/tmp/user-data.yaml"
OWN = ("vm_uuid", "command")
"""The fields that always differ between the claims of two commands."""


@dataclass
class Site:
    """A simulated host, its files, and a function that runs vgpuctl on it."""

    kind: str
    root: Path
    scenario: Path
    run: Callable[..., Any]

    @property
    def saved(self) -> Path:
        return SAVED / self.kind

    def host(self) -> SimulatedHost:
        return open_sim_host(self.root.parent, str(self.scenario))

    def xml(self, name: str) -> str:
        domain = self.host().ports.hypervisor.find_domain(name)
        assert domain is not None, name
        return domain.xml


def record_of(xml: str) -> ElementTree.Element:
    element = ElementTree.fromstring(xml).find(f"metadata/{NAMESPACE}vm")
    assert element is not None
    return element


def domain_text(kind: str, name: str) -> str:
    return (SAVED / kind / "domains" / f"{name}.xml").read_text()


def written(site: Site, name: str) -> ElementTree.Element:
    """Return the record of a VM from the fixture."""
    return record_of(domain_text(site.kind, name))


def canonical(xml: str) -> str:
    """Return a domain's <metadata> in canonical form, with its own namespace prefixes."""
    match = re.search("<metadata>.*</metadata>", xml)
    assert match is not None
    return ElementTree.canonicalize(match[0])


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Site]:
    """Return a function that creates a host with the fixture's machine id and only disk images on it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", PYTHON)

    def make(kind: str) -> Site:
        scenario = tmp_path / "host.yaml"
        images: dict[str, str | None] = {BASE: None, NEWER: None}
        for file in sorted((SAVED / kind / "domains").iterdir()):
            disks = record_of(file.read_text()).iter(f"{NAMESPACE}disk")
            images |= {disk.attrib["path"]: disk.get("base") for disk in disks}
        text = "version: 1\nstorage:\n  pools:\n    - {name: default}\nimages:\n"
        for path, base in images.items():
            text += f"  - {{path: {path}, size_gib: 20, firmware: both{f', base: {base}' if base else ''}}}\n"
        text += "gpus:\n"
        for address in ADDRESSES:
            gpu = GPUS[kind].replace("enabled: 6", "enabled: 0") if address == WHOLE else GPUS[kind]
            text += f'  - {gpu}, address: "{address}"}}\n'
        scenario.write_text(text)

        def run(*words: str, status: int = 0) -> Any:
            monkeypatch.setattr(sys, "argv", ["/opt/vgpuctl/bin/vgpuctl", *words])
            capsys.readouterr()
            exit_status = entry.main(["--host", f"sim:{scenario}", "--json", *words])
            document = json.loads(capsys.readouterr().out)
            assert exit_status == status, json.dumps(document, indent=1)
            return document["data"] if status == 0 else document["error"]

        run("list-gpus")
        (root,) = (tmp_path / "vgpuctl").iterdir()
        journal = root / "journal"
        text, count = re.subn(r'("machine_id": ?")[0-9a-f]{32}"', rf'\g<1>{MACHINE}"', journal.read_text(), count=1)
        assert count
        journal.write_text(text)
        (tmp_path / "state").symlink_to(root)
        return Site(kind, tmp_path / "state", scenario, run)

    return make


@pytest.fixture(params=GPUS)
def site(request: pytest.FixtureRequest, fresh: Callable[[str], Site]) -> Site:
    """The host in the state that version 0.2.0 left."""
    created = fresh(request.param)
    for part in ("run", "etc"):
        shutil.copytree(created.saved / part, created.root / part, dirs_exist_ok=True)
    ports = created.host().ports
    for line in (created.saved / "devices.txt").read_text().splitlines():
        ports.sysfs.write(*line.split())
    uuids = {f.stem: ports.hypervisor.define(f.read_text()).uuid for f in sorted((created.saved / "domains").iterdir())}
    ports.hypervisor.start(uuids["on"])
    return created


def tree(directory: Path) -> dict[str, str]:
    return {str(f.relative_to(directory)): f.read_text() for f in sorted(directory.rglob("*")) if f.is_file()}


def plain(text: str, *uuids: tuple[str, str]) -> str:
    """Return a file's text, with the values that differ between runs replaced: processes, times, operations, ids."""
    text = re.sub(r'"operation": "[0-9a-f]{16}"', '"operation": "0123456789abcdef"', text)
    for key, value in (("pid", "4194301"), ("start_ticks", "1000"), ("until", "1000.0"), ("run", '"3"')):
        text = re.sub(rf'"{key}": ("?)[\d.]+\1', f'"{key}": {value}', text)
    for new, old in uuids:
        text = text.replace(new, old).replace(new[:8], old[:8])
    return text


def mdev_uuid(vm_uuid: str, index: int = 0) -> str:
    return str(uuid.uuid5(uuid.UUID(vm_uuid), f"vgpuctl-{index}"))


def carrier_of(record: ElementTree.Element) -> str:
    vgpu = record.find(f"{NAMESPACE}vgpu")
    assert vgpu is not None
    return vgpu.attrib["carrier"]


def kept_of(site: Site) -> dict[str, Any]:
    owner = str(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:vgpuctl:1:vgpu:{MACHINE}:kept"))
    claims = [json.loads(text) for text in tree(site.saved / "run" / "claims").values()]
    (kept,) = (claim for claim in claims if claim["vm_uuid"] == owner)
    return dict(kept)

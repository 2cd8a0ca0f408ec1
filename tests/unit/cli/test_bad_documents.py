# SPDX-License-Identifier: Apache-2.0
"""Malformed documents and captured trees: each is refused with a location and a documented code, never a traceback.

One bad device of a captured tree never ends a command for the others, and no file blocks it.
"""

from __future__ import annotations

import os
import shlex
import shutil
from itertools import product
from xml.sax.saxutils import escape

import pytest

from tests import EVERYTHING
from tests.command_cases import CASES, IMAGE, lines
from tests.faults import sampled
from tests.hosts import create, open_sim_host, request
from tests.unit.cli.command_tree import has_dry_run
from vgpuctl.backends.mdev import carrier_uuid
from vgpuctl.observe.definition import read_vm
from vgpuctl.sim.host import open_host
from vgpuctl.value import replace

BOMB = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*{'a' if n == 0 else f'b{n - 1}'}, *a]\n" for n in range(30))
TEXTS = {
    "nul": "version: 1\0\n",
    "deep sequences": f"{'- ' * 3000}x\n",
    "a level more than allowed": f"gpus: {'[' * 51}{']' * 51}",
    "many unknown fields": "".join(f"field{n}: 1\n" for n in range(300)),
    "deep flow": f"gpus: {'[' * 3000}",
    "deep mappings": f"gpus: {'{a: ' * 3000}",
    "bomb": BOMB,
    "endless": "version: &a [*a]\n",
    "no such character": 'title: "\\UFFFFFFFF"\n',
    "half a character": 'title: "\\ud800"\n',
    "long number": f"version: {'9' * 6000}\n",
    "octal": "version: 1\ngpus: [{model: A100, vfs: 017}]\n",
    "directive": f"%YAML {'9' * 5000}.1\n---\nversion: 1\n",
    "tag": "!!python/object:os.system {}\n",
    "list": "- version: 1\n",
    "empty": "",
}
COMMANDS = {
    "scenario": "--host sim:{path} list-gpus",
    "spec": "--host sim:a100-40 ensure-vm -f {path} --dry-run",
    "host file": "--host sim:a100-40 diff -f {path}",
    "import": "--host sim:a100-40 import {path}",
    "cloud-init": "--host sim:a100-40 create-vm --profile A100-4C --cloud-init {path} --dry-run",
}


READ = [(where, name) for where in COMMANDS for name in TEXTS if (where, name) != ("host file", "empty")]


@pytest.mark.parametrize(("where", "name"), READ)
def test_every_reader_refuses_it_and_says_where(vgpuctl, tmp_path, name, where):
    path = tmp_path / "file.yaml"
    path.write_text(TEXTS[name])
    ran = vgpuctl("--json", *shlex.split(COMMANDS[where].format(path=path)))
    if (where, name) == ("scenario", "octal"):  # YAML 1.2 has no octal numbers of this form
        assert ran.status in (0, 2)
        return
    assert ran.status == 2, ran.out
    error = ran.document["error"]
    assert error["code"] in ("invalid-input", "usage", "not-found")
    assert str(path) in error["message"] or "--cloud-init" in error["message"], error


RECORDS = {
    "deep": "[" * 3000,
    "list": "[]",
    "number": "7",
    "half": "{",
    "types": '{"vgpu_params": 7, "placement": 9, "profile": 3, "gpu": {}, "numa_node": [], "mode": 1, "os": []}',
    "long": f'{{"numa_node": {"9" * 5000}}}',
    "surrogate": '{"gpu": "\\ud800"}',
}
ORDER = sorted(CASES, key=lambda command: (has_dry_run(command), command == "delete-vm"))
"""Commands that only read come first, and the one that deletes the VM last."""


@pytest.fixture
def damaged(request, sim):
    """A host on which the record of one of two VMs has a damaged request."""
    for name in ("vdi-1", "vdi-2"):
        assert sim(f"create-vm {name} --profile A100-4C --image {IMAGE}").status == 0
    hypervisor = open_host("a100-40", lock_held=lambda: False).hypervisor
    record = hypervisor.find_domain("vdi-1")
    before, _, rest = record.xml.partition("<spec>")
    hypervisor.redefine(
        record.uuid, f"{before}<spec>{escape(RECORDS[request.param])}</spec>{rest.partition('</spec>')[2]}"
    )
    return sim


@pytest.mark.parametrize(("damaged", "number"), [(name, n) for n, name in enumerate(RECORDS)], indirect=["damaged"])
def test_one_vm_with_a_damaged_record_never_ends_a_command(damaged, number):
    every = [line for command in ORDER for line in lines(command, "vdi-1")]
    for line in every if EVERYTHING else every[number :: len(RECORDS)]:
        ran = damaged(f"--json --yes {line}")
        assert ran.status in (0, 2, 3, 4, 6), ran.out
        if ran.status not in (0, 6):
            assert ran.document["error"]["code"] not in ("bug", "failed"), ran.out
        assert "stumbled" not in ran.out


TEMPLATES = {
    "braces": "{{" * 3000,
    "parentheses": f"{{{{ {'(' * 3000}{')' * 3000} }}}}",
    "blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "loops": "{% for a in [1] %}" * 30 + "x" + "{% endfor %}" * 30,
    "nul": "<domain>\0</domain>",
    "half a character": "<domain>{{ '\\ud800' }}</domain>",
    "a large number": "<domain>{{ 9 ** (9 ** 9) }}</domain>",
    "a large text": "<domain>{{ 'x' * 10 ** 11 }}</domain>",
    "deep elements": "<a>" * 3000,
    "nested loops": "{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}",
    "a text that doubles": "{% set n = namespace(t='xy') %}"
    "{% for a in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_that_cannot_be_is_refused(sim, tmp_path, name):
    assert sim("list-gpus").status == 0
    state = next((tmp_path / "state/vgpuctl").glob("**/journal*")).parent
    where = state / "etc/vgpuctl/templates/vm.xml.j2"
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(TEMPLATES[name])
    ran = sim("--json create-vm v1 --profile A100-4C")
    assert (ran.status, ran.document["error"]["code"]) == (2, "invalid-input"), ran.out
    assert "template" in ran.document["error"]["message"]
    assert sim("--json list-vms").document["data"] == []


def test_a_domain_whose_uuid_is_none_is_shown_and_ends_no_command(tmp_path):
    """Libvirt never sends this, but a file of the hook may contain it."""
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C"))
    for bad in ("", "none", "9" * 40, "11111111-2222-3333-4444-55555555555g"):
        record = host.ports.hypervisor.domains()[0]
        xml = record.xml.replace(record.uuid, bad)
        vm = read_vm(host.ports, replace(record, uuid=bad, xml=xml))
        assert vm.uuid == bad.lower()
        assert carrier_uuid(vm.uuid, 0) != carrier_uuid(record.uuid, 0)


def test_gpus_on_neighbouring_buses_do_not_hide_each_other(vgpuctl, tmp_path):
    path = tmp_path / "host.yaml"
    path.write_text(
        "version: 1\ngpus:\n"
        "  - {model: A100, address: '0000:3b:00.0'}\n"
        "  - {model: A100, address: '0000:3c:00.0'}\n"
        "  - {model: A100, address: '0000:3d:01.0'}\n"
    )
    listed = vgpuctl("--host", f"sim:{path}", "--json", "list-gpus")
    assert [gpu["address"] for gpu in listed.document["data"]] == ["0000:3b:00.0", "0000:3c:00.0", "0000:3d:01.0"]
    made = vgpuctl(
        "--host", f"sim:{path}", "--json", "create-vm", "v1", "--profile", "A100-4C", "--gpu", "0000:3b:00.0"
    )
    assert made.status == 0, made.out


def test_gpus_with_conflicting_functions_are_refused(vgpuctl, tmp_path):
    path = tmp_path / "host.yaml"
    path.write_text(
        "version: 1\ngpus:\n  - {model: A100, address: '0000:3b:00.0'}\n  - {model: A100, address: '0000:3b:00.4'}\n"
    )
    ran = vgpuctl("--host", f"sim:{path}", "--json", "list-gpus")
    assert ran.status == 2
    assert f"{path}:4" in ran.document["error"]["message"]
    assert "0000:3b:00.4" in ran.document["error"]["message"]


@pytest.mark.parametrize("name", ["fifo", "zero", "huge", "nul\0"])
def test_a_scenario_is_a_regular_file_that_ends(vgpuctl, tmp_path, name):
    path = tmp_path / name.rstrip("\0")
    if name == "fifo":
        os.mkfifo(path)
    elif name == "zero":
        path.symlink_to("/dev/zero")
    else:
        with open(path, "wb") as file:
            file.truncate(3 << 30)
    ran = vgpuctl("--host", f"sim:{tmp_path / name}", "--json", "list-gpus")
    assert (ran.status, ran.document["error"]["code"]) == (2, "not-found"), ran.out


DEVICES = ("0000:3b:00.0", "0000:5e:00.0")
LOOKS = ("list-gpus", "list-vgpus", "list-profiles", "export", "diff", "doctor", "list-vms", "fits --profile A16-1B")


def device(root, address, group=7):
    """One NVIDIA GPU whose driver offers an mdev type."""
    top = root / "sys/devices/pci0000:00" / address
    kind = top / "mdev_supported_types/nvidia-588"
    kind.mkdir(parents=True)
    (top / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
    (top / "iommu_group").symlink_to(f"../../../kernel/iommu_groups/{group}")
    values = {"class": "0x030200", "vendor": "0x10de", "device": "0x20b0", "numa_node": "0", "boot_vga": "0"}
    for name, text in values.items():
        (top / name).write_text(f"{text}\n")
    for name, text in {
        "name": "NVIDIA A16-1B",
        "description": "num_heads=4, framebuffer=1024M, max_instance=16",
        "available_instances": "16",
        "device_api": "vfio-pci",
    }.items():
        (kind / name).write_text(f"{text}\n")
    for where in (f"sys/bus/pci/devices/{address}", f"sys/class/mdev_bus/{address}"):
        (root / where).parent.mkdir(parents=True, exist_ok=True)
        (root / where).symlink_to(f"{'../' * where.count('/')}sys/devices/pci0000:00/{address}")
    members = root / f"sys/kernel/iommu_groups/{group}/devices"
    members.mkdir(parents=True)
    (members / address).symlink_to(f"../../../../devices/pci0000:00/{address}")
    return top


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "captured"
    for number, address in enumerate(DEVICES):
        device(root, address, 7 + number)
    return root


def path_in(tree, name):
    return tree / "sys/devices/pci0000:00" / DEVICES[0] / name


def instead(path):
    """Remove the existing file."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    return path


def a_fifo(path):
    os.mkfifo(instead(path))


def a_loop(path):
    instead(path).symlink_to(path.name)


def a_directory(path):
    instead(path).mkdir()


def huge(path):
    with open(instead(path), "wb") as file:
        file.truncate(3 << 30)


def garbage(path):
    instead(path).write_bytes(b"\xff\0nonsense\n")


def digits(path):
    instead(path).write_text("9" * 5000)


def nowhere(path):
    instead(path).symlink_to("../../nowhere")


def out(path):
    instead(path).symlink_to("/dev/zero")


NAMES = (
    "class",
    "vendor",
    "device",
    "numa_node",
    "driver",
    "iommu_group",
    "boot_vga",
    "sriov_totalvfs",
    "virtfn0",
    "mdev_supported_types",
    "mdev_supported_types/nvidia-588",
    "mdev_supported_types/nvidia-588/name",
    "mdev_supported_types/nvidia-588/description",
    "mdev_supported_types/nvidia-588/available_instances",
    "11111111-2222-3333-4444-555555555555",
)


BAD = (a_fifo, a_loop, a_directory, huge, garbage, digits, nowhere, out)


@pytest.mark.parametrize(("name", "put"), sampled(product(NAMES, BAD)))
def test_one_bad_attribute_never_hides_the_other_gpu(vgpuctl, tree, name, put):
    put(path_in(tree, name))
    assert vgpuctl("--root", str(tree), "--json", "export").status == 0
    listed = vgpuctl("--root", str(tree), "--json", "list-gpus").document
    assert DEVICES[1] in [gpu["address"] for gpu in listed["data"]]


@pytest.mark.parametrize("command", LOOKS)
def test_a_group_that_is_no_number_leaves_that_device_out_and_names_it(vgpuctl, tree, command):
    instead(path_in(tree, "iommu_group")).symlink_to("../../../kernel/iommu_groups/none")
    ran = vgpuctl("--root", str(tree), "--json", *command.split())
    assert ran.status in (0, 6, 7), ran.out
    if command == "list-gpus":
        assert [gpu["address"] for gpu in ran.document["data"]] == [DEVICES[1]]
        assert any(DEVICES[0] in warning and "iommu_group" in warning for warning in ran.document["warnings"])
    if command == "doctor":
        assert DEVICES[0] in ran.out


def test_a_link_out_of_the_tree_reads_nothing_of_this_machine(vgpuctl, tree, tmp_path):
    outside = tmp_path / "outside"
    (outside / "claims").mkdir(parents=True)
    (outside / "claims" / DEVICES[0]).write_text("{}")
    (tree / "run").mkdir()
    (tree / "run/vgpuctl").symlink_to(outside)
    (tree / "proc").symlink_to("../../../../../../../../proc")
    ran = vgpuctl("--root", str(tree), "--json", "list-gpus")
    assert ran.status == 0, ran.out
    assert len(ran.document["data"]) == 2
    assert not any(DEVICES[0] in warning for warning in ran.document["warnings"])

# SPDX-License-Identifier: Apache-2.0
"""Images, disks and sizes, from the command line to the printed error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran, Run

SCENARIO = """version: 1
storage: {filesystem_gib: 500, pools: [{name: default}, {name: small, capacity_gib: 10}]}
images:
  - {path: /srv/images/ubuntu-24.04.qcow2, size_gib: 20}
  - {path: /srv/images/appliance.vmdk, format: vmdk}
  - {path: "/srv/images/own loop.qcow2", base: "/srv/images/own loop.qcow2"}
gpus: [{model: A100}]
"""


@pytest.fixture
def run(scenario: Callable[[str], Run]) -> Run:
    return scenario(SCENARIO)


def refused(run: Run, line: str, status: int, code: str, *words: str) -> Ran:
    before = run("list-vms --json").document["data"]
    ran = run(f"{line} --json")
    assert (ran.status, ran.document["error"]["code"]) == (status, code), ran.out
    assert run("list-vms --json").document["data"] == before
    error = run(line).err
    for word in words:
        assert word in error
    return ran


def test_the_base_of_a_vms_clone_is_no_disk_of_another(run: Run, tmp_path: Path) -> None:
    base = "/srv/images/ubuntu-24.04.qcow2"
    assert run(f"create-vm v1 --profile A100-4C --image {base} --no-start").status == 0
    (tmp_path / "spec.yaml").write_text(f"name: v2\nprofile: A100-4C\ndisk: {base}\n")
    for line in (f"create-vm v2 --profile A100-4C --disk {base}", f"ensure-vm -f {tmp_path}/spec.yaml"):
        refused(run, line, 3, "in-use", f"{base} is the base image of v1's disk /var/", f"hint: --image {base}")
    assert run(f"create-vm v2 --profile A100-4C --image {base}").status == 0


def test_an_image_in_another_format_or_below_itself_is_refused(run: Run) -> None:
    line = "create-vm --profile A100-4C --image /srv/images/appliance.vmdk"
    command = "qemu-img convert -f vmdk -O qcow2 /srv/images/appliance.vmdk /srv/images/appliance-copy.qcow2"
    refused(run, line, 3, "refused", "it is a vmdk image, not raw or qcow2", command)
    refused(run, line.replace("--image", "--disk"), 3, "refused", command)
    assert run(line.replace("--image", "--cdrom")).status == 0
    loop = "create-vm --profile A100-4C --image '/srv/images/own loop.qcow2'"
    refused(run, loop, 3, "refused", "form a loop through")


@pytest.mark.parametrize("memory", ["900TiB", "513GiB"])
def test_more_memory_than_the_host_has_is_refused(run: Run, tmp_path: Path, memory: str) -> None:
    line = f"create-vm --profile A100-4C --memory {memory}"
    ran = refused(run, line, 6, "host-cannot", "this host has 512 GiB")
    assert ran.document["error"]["facts"]["check"] == "memory"
    assert run("create-vm v1 --profile A100-4C --memory 512GiB --no-start").status == 0
    (tmp_path / "spec.yaml").write_text(f"name: v1\nmemory: {memory}\n")
    line = f"ensure-vm -f {tmp_path}/spec.yaml --state stopped"
    refused(run, line, 6, "host-cannot", "this host has 512 GiB")


@pytest.mark.parametrize(("disk", "pool"), [("900TiB", "default"), ("501GiB", "default"), ("11GiB", "small")])
def test_a_disk_larger_than_its_file_system_is_refused(run: Run, disk: str, pool: str) -> None:
    line = f"create-vm --profile A100-4C --disk {disk} --storage-pool {pool}"
    refused(run, line, 4, "no-space", f"of the storage pool '{pool}' has", "--storage-pool")


def test_the_file_system_of_a_new_pool_counts_too(sim: Run) -> None:
    error = sim("create-vm --profile A100-4C --disk 900TiB").err
    assert "a disk of 921600 GiB does not fit: the file system of the storage pool 'default' has 1000 GiB" in error


def test_sizes_have_one_form_on_the_screen(run: Run) -> None:
    shown = run("create-vm --profile A100-4C --memory 1536MiB --disk 20GiB").err
    shown += "".join(run(line).out for line in ("list-gpus", "list-profiles", "list-vms", "list-images"))
    (name,) = (vm["name"] for vm in run("list-vms --json").document["data"])
    shown += run(f"show-vm {name}").out + run("show-gpu 0000:3b:00.0").out
    sizes = re.findall(r"\S*[0-9.] ?(?:KiB|MiB|GiB|TiB)", shown)
    assert {"1536 MiB", "20 GiB", "40 GiB"} <= {size.removeprefix("(") for size in sizes}
    assert [size for size in sizes if not re.fullmatch(r"\(?[0-9]+ (KiB|MiB|GiB)", size)] == []


def test_the_disk_of_a_vm_without_a_name_does_not_name_it_twice(run: Run) -> None:
    made = run("create-vm --profile A100-4C --json").document["data"]
    assert made["disks"][0]["path"] == f"/var/lib/libvirt/images/{made['name']}.qcow2"
    assert re.fullmatch(r"vgpu-[0-9a-f]{8}", made["name"])
    named = run("create-vm v1 --profile A100-4C --json").document["data"]
    assert named["disks"][0]["path"] == f"/var/lib/libvirt/images/v1-{named['uuid'][:8]}.qcow2"


@pytest.mark.parametrize("option", ["--image", "--disk", "--cdrom"])
def test_a_path_without_an_image_gets_a_suggestion(run: Run, option: str) -> None:
    line = f"create-vm --profile A100-4C {option}"
    hint = "hint: did you mean /srv/images/ubuntu-24.04.qcow2?"
    refused(run, f"{line} /srv/images/ubuntu-2404.qcow2", 2, "not-found", "does not exist", hint)
    refused(run, f"{line} /srv/images", 2, "invalid-input", "/srv/images is a directory, not an image", "ubuntu-24.04")
    empty = "hint: ls -l /var/lib/libvirt/images shows that directory; vgpuctl sees no disk image in it"
    refused(run, f"{line} /var/lib/libvirt/images", 2, "invalid-input", "is a directory", empty)
    assert run("create-vm v1 --profile A100-4C --json").status == 0
    (volume,) = (row["path"] for row in run("list-images --disks --json").document["data"] if row["role"] == "disk")
    refused(run, f"{line} /elsewhere/{volume.rpartition('/')[2]}x", 2, "not-found", f"did you mean {volume}?")
    missing = refused(run, f"{line} /srv/images/nosuch.qcow2", 2, "not-found", "hint: disk images in /srv/images: ")
    for image in ("appliance.vmdk", "own loop.qcow2", "ubuntu-24.04.qcow2"):
        assert image in missing.document["error"]["hint"]
    assert "did you mean" not in missing.document["error"]["hint"]


def test_a_missing_new_base_image_gets_a_suggestion(run: Run) -> None:
    assert run("create-vm v1 --profile A100-4C --image /srv/images/ubuntu-24.04.qcow2 --no-start").status == 0
    ran = run("refresh-vm v1 --image /srv/images/ubuntu-24.4.qcow2 --yes")
    assert (ran.status, "did you mean /srv/images/ubuntu-24.04.qcow2?" in ran.err) == (2, True)


@pytest.mark.parametrize(
    "line", ["ensure-vm -f {}", "create-vm --profile A100-4C --image /srv/images/ubuntu-24.04.qcow2 --cloud-init {}"]
)
def test_a_missing_spec_or_user_data_gets_a_suggestion(run: Run, tmp_path: Path, line: str) -> None:
    (tmp_path / "desktops.yaml").write_text("")
    missing = run(line.format(tmp_path / "desktop.yaml"))
    assert (missing.status, f"did you mean {tmp_path}/desktops.yaml?" in missing.err) == (2, True)
    directory = run(line.format(tmp_path))
    assert (directory.status, "is a directory" in directory.err) == (2, True)


UBUNTU, OTHER = "/srv/images/ubuntu-24.04.qcow2", "/srv/images/other.qcow2"


@pytest.fixture
def many(scenario: Callable[[str], Run]) -> Run:
    """Return a runner for a host with four VMs: two have the new image, and the third runs."""
    run = scenario(SCENARIO.replace("images:", f"images:\n  - {{path: {OTHER}, size_gib: 20}}"))
    assert run(f"create-vm d-{{}} --count 4 --profile A100-4C --image {UBUNTU} --no-start").status == 0
    assert run(f"refresh-vm d-1 d-2 --image {OTHER} --yes").status == 0
    assert run("start-vm d-3").status == 0
    return run


def test_an_unusable_image_is_one_error_for_many_vms(many: Run) -> None:
    ran = many("refresh-vm 'd-*' --image /srv/images/nosuch.qcow2 --yes --json")
    assert (ran.status, ran.document["error"]["code"], ran.document["changed"]) == (2, "not-found", False)
    assert many("refresh-vm 'd-*' --image /srv/images/nosuch.qcow2 --yes").err.count("nosuch") == 1


def test_a_refresh_of_the_rest_leaves_those_with_the_new_image_alone(many: Run) -> None:
    planned = many(f"refresh-vm 'd-*' --image {OTHER} --drain --dry-run")
    assert f"note: 2 of 4 VMs already have {OTHER}" in planned.err
    asked = many(f"refresh-vm 'd-*' --image {OTHER} --drain").err
    assert f"Rebuild 4 VMs from {OTHER}?" in asked
    assert f"will be lost. 2 of them are already made from {OTHER}. 1 of them is running." in asked
    asked = many(f"refresh-vm 'd-*' --from {UBUNTU} --image {OTHER} --drain").err
    assert f"Rebuild 2 VMs from {OTHER}?" in asked
    assert f"2 other VMs stay as they are, 2 of them with {OTHER}." in asked
    done = many(f"refresh-vm 'd-*' --from {UBUNTU} --image {OTHER} --yes")
    assert [line.split() for line in done.out.splitlines()[:5]] == [
        ["NAME", "RESULT", "NOW", "ERROR"],
        ["d-1", "left", "alone", "stopped", "-"],
        ["d-2", "left", "alone", "stopped", "-"],
        ["d-3", "failed", "running", "in-use"],
        ["d-4", "refreshed", "stopped", "-"],
    ]
    assert done.out.splitlines()[-1] == "1 refreshed, 2 left alone, 1 failed"
    listed = many(f"list-vms --filter image={UBUNTU} --columns name,image --no-headers").out.split()
    assert listed == ["d-3", UBUNTU]
    assert many("list-vms -o csv --columns name,image").out.splitlines()[1] == f"d-1,{OTHER}"
    assert [vm["image"] for vm in many("list-vms --json").document["data"]] == [OTHER, OTHER, UBUNTU, OTHER]


def test_a_directory_is_listed_with_the_images_in_it(run: Run) -> None:
    rows = run("list-images /srv/images --json").document["data"]
    assert "/srv/images/ubuntu-24.04.qcow2" in [row["path"] for row in rows]
    assert all(row["format"] != "directory" for row in rows)
    refused(
        run, "list-images /srv/images/nothing.qcow2", 2, "not-found", "does not exist", "disk images in /srv/images"
    )


def test_disks_of_vms_are_listed_with_an_option_alone(run):
    assert run("create-vm vdi-001 --profile A100-4C").status == 0
    short = run("list-images")
    assert "vdi-001" not in short.out
    assert "1 VM disk not listed; --disks lists all" in short.err
    assert "vdi-001" in run("list-images --disks").out

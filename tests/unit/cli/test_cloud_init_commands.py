# SPDX-License-Identifier: Apache-2.0
"""create-vm --cloud-init and refresh-vm from the command line to the printed result, with every option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
IMAGE = "/srv/images/ubuntu-24.04.qcow2"
SECRET = "hunter2"


@pytest.fixture
def user_data(tmp_path: Path) -> Path:
    path = tmp_path / "user-data"
    path.write_text(f"#cloud-config\npassword: {SECRET}\n")
    return path


def test_a_vm_gets_a_seed_whose_content_is_never_shown(sim: Run, user_data: Path) -> None:
    line = f"create-vm vdi-001 --profile A100-4C --image {IMAGE} --cloud-init {user_data}"
    for ran in (sim(f"{line} --dry-run"), sim(f"{line} --print-xml"), sim(f"-v {line} --json")):
        assert (ran.status, SECRET in ran.out + ran.err) == (0, False)
    assert [d["device"] for d in ran.document["data"]["disks"]] == ["disk", "cdrom"]
    assert "-seed.iso (cdrom)" in sim("show-vm vdi-001").out
    planned = sim(f"create-vm vdi-002 --profile A100-4C --image {IMAGE} --cloud-init {user_data} --dry-run --json")
    assert planned.document["data"]["sources"]["cloud_init"] == {"value": str(user_data), "source": "command-line"}


def test_a_spec_file_names_it_too_and_several_vms_can_have_one(sim: Run, user_data: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"name: 'vdi-{{}}'\nprofile: A100-4C\nimage: {IMAGE}\ncloud_init: {user_data}\n")
    assert sim(f"ensure-vm -f {spec} --count 2 --json").document["changed"]
    assert not sim(f"ensure-vm -f {spec} --count 2 --json").document["changed"]


@pytest.mark.parametrize(
    ("text", "output"),
    [
        (f"password: {SECRET}\n", ":1:1: cloud-init would ignore it"),
        (f"#cloud-config\npassword: [{SECRET}\n", ":3:1: it is not YAML"),
    ],
)
def test_what_cloud_init_would_ignore_is_refused_with_its_line(
    sim: Run, user_data: Path, text: str, output: str
) -> None:
    user_data.write_text(text)
    ran = sim(f"-v create-vm vdi-001 --profile A100-4C --image {IMAGE} --cloud-init {user_data}")
    assert (ran.status, SECRET in ran.err) == (2, False)
    assert f"{user_data}{output}" in ran.err
    assert sim("list-vms --json").document["data"] == []


def test_a_file_that_is_not_there_or_no_text_is_exit_2(sim: Run, user_data: Path) -> None:
    line = f"create-vm vdi-001 --profile A100-4C --image {IMAGE} --cloud-init"
    assert f"there is no user-data file {user_data}x" in sim(f"{line} {user_data}x").err
    assert "not an absolute path" in sim(f"{line} user-data").err
    user_data.write_bytes(b"#cloud-config\na: \xff\n")
    assert "is not UTF-8 text" in sim(f"{line} {user_data}").err
    user_data.write_text("#cloud-config\na: 1\n")
    assert "the VM's disk would be empty" in sim(f"create-vm --profile A100-4C --cloud-init {user_data}").err


def test_a_running_vm_is_refreshed_only_when_it_may_be_stopped(sim: Run) -> None:
    assert sim(f"create-vm vdi-001 --profile A100-4C --image {IMAGE}").status == 0
    ran = sim(f"--yes refresh-vm vdi-001 --image {IMAGE}")
    assert (ran.status, "--drain" in ran.err) == (3, True)
    planned = sim(f"refresh-vm vdi-001 --image {IMAGE} --drain --dry-run")
    assert "note: all data on" in planned.err
    assert sim(f"refresh-vm vdi-001 --image {IMAGE} --drain").status == 2
    ran = sim(f"--yes refresh-vm vdi-001 --image {IMAGE} --drain --json")
    assert (ran.document["changed"], ran.document["data"]["state"]) == (True, "running")
    assert sim("reconcile-host --json").document["data"]["findings"] == []


def test_ensure_vm_names_refresh_vm_for_another_image(sim: Run, tmp_path: Path) -> None:
    assert sim(f"create-vm vdi-001 --profile A100-4C --image {IMAGE}").status == 0
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: vdi-001\nimage: /srv/images/windows-11.qcow2\n")
    ran = sim(f"ensure-vm -f {spec}")
    assert (ran.status, "vgpuctl refresh-vm vdi-001 --image /srv/images/windows-11.qcow2" in ran.err) == (3, True)


def test_a_relative_image_is_exit_2(sim: Run) -> None:
    assert sim("refresh-vm vdi-001 --image new.qcow2").status == 2
    assert sim("refresh-vm vdi-001").status == 2

# SPDX-License-Identifier: Apache-2.0
"""create-vgpu, delete-vgpu and list-vgpus from the command line to the printed result, with every option."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.unit.cli.conftest import Run


def test_only_the_element_is_on_stdout_and_the_usage_is_on_stderr(sim: Run) -> None:
    ran = sim("create-vgpu spare --profile T4-2Q", "t4")
    assert ran.status == 0
    assert ElementTree.fromstring(ran.out).tag == "hostdev"
    assert "vGPU spare: T4-2Q on GPU" in ran.err
    assert "virsh attach-device VM FILE --persistent" in ran.err
    assert "virt-install --hostdev mdev_" in ran.err


def test_it_is_shown_where_vgpus_are_shown(sim: Run) -> None:
    assert "no such vGPU here" in sim("list-vgpus").err
    assert sim("create-vgpu spare --profile A100-4C --gpu A100 --vgpu-param frame_rate_limiter=0").status == 0
    assert "spare  A100-4C  0000:3b:00.0  yes     -   host.yaml" in sim("list-vgpus").out
    assert "vGPU spare" in sim("show-gpu 0000:3b:00.0").out
    assert "vGPU spare" in sim("explain A100-4C").out
    (row,) = sim("list-vgpus --json").document["data"]
    assert (row["name"], row["vm"], row["ownership"]) == ("spare", None, "managed")
    assert row["hostdev"].startswith("<hostdev")
    sim("sim reboot")
    assert "  no " in sim("list-vgpus").out
    assert "restore-host" in sim("doctor kept-vgpus").out


def test_a_hint_names_no_option_that_create_vgpu_lacks(sim: Run) -> None:
    ran = sim("create-vgpu spare --profile x --gpu 0000:86:00.0", "mixed")
    assert ran.status == 6
    assert "vgpuctl create-vm --mode sriov --gpu 0000:86:00.0" in ran.err


def test_json_carries_the_element_and_a_dry_run_says_the_same(sim: Run) -> None:
    planned = sim("create-vgpu spare --profile A100-4C --dry-run --json").document
    made = sim("create-vgpu spare --profile A100-4C --json").document
    assert planned["data"]["hostdev"] == made["data"]["hostdev"]
    assert planned["data"]["steps"] == made["data"]["steps"]
    assert "did you mean spare?" in sim("delete-vgpu sparr --yes").err
    assert sim("delete-vgpu spare --dry-run").out.startswith("would do:")
    assert sim("delete-vgpu spare --json").status == 2, "there is no terminal"
    gone = sim("delete-vgpu spare --yes --json").document
    assert (gone["changed"], gone["data"]["present"]) == (True, False)
    assert sim("delete-vgpu spare --yes --json").status == 2


def test_a_vgpu_is_ensured_shown_and_gone(sim: Run) -> None:
    words = "ensure-vgpu spare --profile A100-4C --gpu A100 --state present"
    assert sim(f"{words} --dry-run").out.startswith("would do:")
    assert sim(words).out == "vGPU spare: A100-4C on GPU 0000:3b:00.0 (0000:3b:00.4)\n"
    assert sim("ensure-vgpu spare --state absent").status == 2, "there is no terminal"
    assert sim("ensure-vgpu spare --state absent --yes").out == "vGPU spare: absent\n"
    assert sim("ensure-vgpu spare --state absent --dry-run").status == 0


def test_the_column_name_is_there_only_for_vgpus_that_have_one(sim: Run) -> None:
    sim("create-vm desk --profile A100-4C")
    assert sim("list-vgpus").out.splitlines()[0].split() == ["PROFILE", "GPU", "EXISTS", "VM", "OWNERSHIP"]
    assert sim("list-vgpus -o wide").out.split()[0] == "NAME"
    assert sim("list-vgpus --columns name,carrier").out.splitlines()[1].split() == ["-", "0000:3b:00.4"]
    sim("create-vgpu spare --profile A100-4C")
    assert [line.split()[0] for line in sim("list-vgpus").out.splitlines()] == ["NAME", "-", "spare"]


def test_vgpus_are_listed_with_their_owner(sim: Run) -> None:
    assert sim("create-vgpu spare --profile T4-4Q", "mixed").status == 0
    assert sim("create-vm desk --profile A100-4C", "mixed").status == 0
    assert sim("create-vm card --mode passthrough --gpu 0000:d8:00.0", "mixed").status == 0
    rows = sim("list-vgpus --json", "mixed").document["data"]
    places = [(row["gpu"], row["carrier"]) for row in rows]
    assert places == sorted(places), "which of the two on the T4 comes first is decided by the mdevs' UUIDs"
    assert [row["name"] for row in rows if row["hostdev"]] == ["spare"]
    assert rows[-1]["companions"] == ["0000:d8:00.1"]
    table = sim("list-vgpus", "mixed").out.splitlines()
    assert sorted(line.split()[-2:] for line in table[1:]) == [
        ["-", "host.yaml"], ["card", "managed"], ["desk", "managed"], ["old-desktop", "unmanaged"],
    ]  # fmt: skip
    assert [row["name"] for row in sim("list-vgpus --unassigned --json", "mixed").document["data"]] == ["spare"]

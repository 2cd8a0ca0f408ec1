# SPDX-License-Identifier: Apache-2.0
"""Several whole GPUs by the command line: what is requested is given or refused, never silently another number."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import Ran, Run

SERVER, BOARD = "h100-pcie-x8", "hgx-h100"


def gpus(ran: Ran) -> list[str]:
    """Return the buses of the GPUs of a VM's document."""
    return [vgpu["gpu"][5:7] for vgpu in ran.document["data"]["vgpus"]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--gpus 2", ["1a", "1b"]),
        ("--gpus 2 --gpu H100", ["1a", "1b"]),
        ("--gpus 3 --numa-node 1", ["9a", "9b", "bd"]),
        ("--gpu 0000:3d:00.0 --gpu be:00.0", ["3d", "be"]),
        ("--gpus 2 --gpu 1a:00.0 --gpu 9a:00.0 --gpu 9b:00.0", ["9a", "9b"]),
        ("--gpus 6 --not-gpu 1a:00.0", ["3d", "3e", "9a", "9b", "bd", "be"]),
        ("--gpu H100", ["1a"]),
    ],
)
def test_the_vm_gets_these(sim: Run, words: str, expected: list[str]) -> None:
    ran = sim(f"create-vm vm --mode passthrough {words} --json", SERVER)
    assert (ran.status, gpus(ran)) == (0, expected)
    assert ran.document["data"]["sources"]["gpus"]["value"] == len(expected)
    assert gpus(sim("show-vm vm --json", SERVER)) == expected
    assert sim("delete-vm vm --yes", SERVER).status == 0
    assert gpus(sim("create-vm all --mode passthrough --gpus 8 --json", SERVER))[0] == "1a"


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ("--mode passthrough --gpus 9", 4, "9 whole GPUs requested, but only 8 of 8 can be given now"),
        ("--mode passthrough --gpus 17", 2, "--gpus: 17 is not between 1 and 16"),
        (
            "--mode passthrough --gpu H100 --gpu 1a:00.0",
            2,
            "--gpu: 2 are given, and not all are addresses: gpus",
        ),
        ("--mode passthrough --gpu 1a:00.0 --gpu 0000:1a:00.0", 2, "--gpu: the GPU '0000:1a:00.0' is given twice"),
        ("--mode passthrough --gpu 1a:00.0 --gpus 2", 2, "--gpus: 2 are requested, but gpu names only 1"),
        ("--mode passthrough --gpu L40S --gpus 2", 2, "no GPU 'L40S' on this host"),
        (
            "--mode passthrough",
            2,
            "--mode: mode passthrough needs a gpu: the device to pass through, or gpus",
        ),
        ("--gpus 2 --profile A100-4C", 2, "--gpus: gpus counts whole GPUs or plain VFs: specify mode passthrough"),
    ],
)
def test_what_cannot_be_given_is_refused(sim: Run, words: str, status: int, text: str) -> None:
    ran = sim(f"create-vm vm {words}", SERVER)
    assert (ran.status, ran.out) == (status, "")
    assert text in ran.err
    assert sim("list-vms -o name", SERVER).out == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (8, "note: the board has 4 NVSwitches: CUDA and NVLink work in the VM only if its GPUs are a partition"),
        (3, "note: 3 GPUs of a board with 4 NVSwitches: its fabric manager has only partitions of 1, 2, 4 and 8 GPUs"),
    ],
)
def test_a_board_with_nvswitches_has_a_note(sim: Run, count: int, text: str) -> None:
    assert text in sim(f"create-vm vm --mode passthrough --gpus {count}", BOARD).err


def test_gpus_are_added_and_removed(sim: Run) -> None:
    assert sim("create-vm vm --mode passthrough --gpus 1 --no-start", SERVER).status == 0
    assert "attach 0000:1b:00.0 to VM vm" in sim("attach-gpu vm --gpu 1b:00.0 --dry-run", SERVER).out
    assert gpus(sim("attach-gpu vm --gpu 1b:00.0 --gpu bd:00.0 --json", SERVER)) == ["1a", "1b", "bd"]
    assert gpus(sim("detach-gpu vm --gpu 1a:00.0 --gpu 0000:bd:00.0 --json", SERVER)) == ["1b"]
    ran = sim("detach-gpu vm --gpu 1a:00.0", SERVER)
    assert (ran.status, "vm has no whole GPU 0000:1a:00.0" in ran.err) == (2, True)
    assert "hint: it has 0000:1b:00.0; vgpuctl show-vm vm" in ran.err
    ran = sim("attach-gpu vm", SERVER)
    assert (ran.status, "no GPU is given: gpu (--gpu) names it" in ran.err) == (2, True)


def test_fits_shows_the_gpus_or_why_the_others_cannot_be_given(sim: Run) -> None:
    assert sim("fits --gpus 4", BOARD).out.splitlines() == [
        "yes: 4 x whole GPU",
        *(f"  0000:{bus}:00.0: 1 x whole GPU" for bus in ("0f", "10", "41", "44")),
    ]
    assert sim("create-vm a --mode passthrough --gpus 6", BOARD).status == 0
    ran = sim("fits --gpus 3 --json", BOARD)
    data = ran.document["data"]
    assert (ran.status, data["fits"], data["too_many"]) == (4, False, [{"profile": "whole GPU", "count": 1}])
    assert data["gpus"][0]["reasons"] == ["in use by a"]
    assert [gpu["free"] for gpu in data["gpus"]] == [0] * 6 + [1] * 2
    assert "  0000:0f:00.0  whole GPU alone: 0 more: in use by a" in sim("fits --gpus 3", BOARD).out
    assert sim("fits --gpus 2 --gpu b8:00.0", BOARD).status == 2
    assert "specify either --profile" in sim("fits", BOARD).err
    assert "specify either --profile" in sim("fits --gpus 2 --profile H100-4C", BOARD).err


def test_where_a_gpu_is_can_be_seen(sim: Run) -> None:
    rows = sim("list-gpus --columns address,numa,switch --no-headers", SERVER).out.split()
    assert rows[:6] == ["0000:1a:00.0", "0", "0000:18:00.0", "0000:1b:00.0", "0", "0000:18:00.0"]
    assert "pcie switch: 0000:18:00.0" in sim("show-gpu 1a:00.0", SERVER).out
    assert "pcie switch" not in sim("show-gpu 3b:00.0").out

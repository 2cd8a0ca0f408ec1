# SPDX-License-Identifier: Apache-2.0
"""The commands that move VMs to other hosts, with every option, their pages, documents and questions."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran, Run
from vgpuctl.sim.host import SCENARIO_DIRECTORY

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
SEND = "--copy-storage --insecure-network"


@pytest.fixture
def target(sim: Run) -> Run:
    """Run a line on the host to which VMs move."""
    return partial(sim, host="mixed")


@pytest.fixture
def vm(sim: Run) -> str:
    assert sim(f"create-vm vdi-1 --profile A100-4C --image {IMAGE}").status == 0
    return "vdi-1"


def state(ran: Ran) -> tuple[str, str]:
    return ran.document["data"]["state"], ran.document["data"]["record"]


def test_it_moves_alive_and_back(sim: Run, target: Run, vm: str) -> None:
    ran = sim(f"migrate-vm {vm} --to sim:mixed {SEND} --max-downtime 5 --bandwidth 1000")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("vdi-1 moved from sim:a100-40 to sim:mixed alive, in ")
    assert "  A100-4C on GPU 0000:3b:00.0 there (0000:3b:00.4)\n  copied: vda\n  it stood still for " in ran.out
    assert state(target(f"show-vm {vm} --json")) == ("running", "ready")
    assert sim(f"show-vm {vm}").status == 2
    data = target(f"migrate-vm {vm} --to sim:a100-40 {SEND} --connections 2 --json").document["data"]
    assert (data["is_live"], data["is_running"], data["copied_disks"]) == (True, True, ["vda"])
    assert state(sim(f"show-vm {vm} --json")) == ("running", "ready")


def test_every_reason_of_both_hosts_is_shown_at_once_and_nothing_changes(sim: Run, target: Run, vm: str) -> None:
    before = sim("list-vms --json").out, target("list-vms --json").out
    for dry in ("", "--dry-run"):
        ran = sim(f"migrate-vm {vm} --to sim:empty {dry}")
        assert ran.status == 3
        first, *lines = ran.err.splitlines()
        assert first == "vgpuctl: vdi-1 cannot move:   [refused]"
        assert any(line.startswith("  sim:a100-40: disk vda ") for line in lines), ran.err
        assert any("certificates to encrypt the VM's memory" in line for line in lines)
        assert any(line.startswith("  sim:empty: ") and "A100-4C" in line for line in lines)
        assert sum("fix: " in line for line in lines) >= 4
    against = sim(f"migrate-vm {vm} --to sim:empty --json").document["error"]["facts"]["against"]
    assert {one["host"] for one in against} == {"sim:a100-40", "sim:empty"}
    assert (sim("list-vms --json").out, target("list-vms --json").out) == before


def test_a_dry_run_says_where_it_goes_and_how_long_it_stands_still(sim: Run, target: Run, vm: str) -> None:
    ran = sim(f"migrate-vm {vm} --to sim:mixed {SEND} --dry-run")
    assert (ran.status, ran.out.splitlines()[0]) == (0, "vdi-1 would move from sim:a100-40 to sim:mixed alive")
    assert "; the move is given up if it needs more than " in ran.out
    assert "--max-downtime allows" not in ran.err
    assert "\n    A100-4C on 0000:3b:00.4 of sim:a100-40: " in ran.out
    short = sim(f"migrate-vm {vm} --to sim:mixed {SEND} --max-downtime 0.01 --dry-run").err
    assert "about 0.6 s, and --max-downtime allows 0.01 s: use --max-downtime 1.2, or the move may be given up" in short
    assert state(sim(f"show-vm {vm} --json")) == ("running", "ready")
    assert target(f"show-vm {vm}").status == 2


def test_a_whole_gpu_and_its_audio_are_one_line_and_one_reason(sim: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text((SCENARIO_DIRECTORY / "mixed.yaml").read_text())
    source = partial(sim, host="mixed")
    assert source(f"create-vm pt-1 --mode passthrough --gpu 0000:d8:00.0 --image {IMAGE}").status == 0
    ran = source(f"migrate-vm pt-1 --to sim:{other} --offline --copy-storage --dry-run")
    assert (
        "\n  GPU 0000:d8:00.0 with 0000:d8:00.1 -> GPU 0000:d8:00.0 with 0000:d8:00.1 there\n  copied: vda\n" in ran.out
    ), ran.err
    refused = source(f"migrate-vm pt-1 --to sim:{other} {SEND} --max-downtime 3 --dry-run").err.splitlines()
    assert refused[1:] == [
        "  sim:mixed: the GPU on 0000:d8:00.0 with 0000:d8:00.1 cannot move while the VM runs: no driver can read the "
        "state of a whole GPU",
        "    fix: use --offline instead of --max-downtime, --insecure-network",
    ]


@pytest.mark.parametrize("dry", ["", "--dry-run"])
def test_a_libvirt_that_does_not_answer_on_the_other_host_is_named_with_it(
    sim: Run, vm: str, tmp_path: Path, dry: str
) -> None:
    other = tmp_path / "other.yaml"
    text = (SCENARIO_DIRECTORY / "a100-40.yaml").read_text()
    other.write_text(text.replace('qemu: "8.2.2"', 'qemu: "8.2.2", running: false'))
    first, *_, hint = sim(f"migrate-vm {vm} --to sim:{other} {SEND} {dry}").err.splitlines()
    assert first.startswith(f"vgpuctl: on sim:{other}: libvirt does not answer at qemu:///system: ")
    assert hint.startswith(f"  hint: on sim:{other}: systemctl start libvirtd")


def test_offline_asks_before_it_shuts_down_and_moves_one_that_is_off_without_a_question(
    sim: Run, target: Run, vm: str
) -> None:
    ran = sim(f"migrate-vm {vm} --to sim:mixed --offline --copy-storage")
    assert (ran.status, "Shut down VM vdi-1, move it to sim:mixed, and start it there?" in ran.err) == (2, True)
    assert state(sim(f"show-vm {vm} --json")) == ("running", "ready")
    plan = sim(f"migrate-vm {vm} --to sim:mixed --offline --copy-storage --dry-run").out
    assert "\n  it would be shut down, and started there\n" in plan
    ran = sim(f"--yes migrate-vm {vm} --to sim:mixed --offline --copy-storage")
    assert (ran.status, "\n  it was shut down, and started there\n" in ran.out) == (0, True)
    assert state(target(f"show-vm {vm} --json")) == ("running", "ready")
    assert target(f"stop-vm {vm}").status == 0
    ran = target(f"migrate-vm {vm} --to sim:a100-40 --offline --copy-storage")
    assert (ran.status, "while off" in ran.out) == (0, True)
    assert state(sim(f"show-vm {vm} --json")) == ("stopped", "ready")


def test_several_move_one_after_the_other(sim: Run, target: Run) -> None:
    assert sim(f"create-vm 'vdi-{{}}' --count 3 --profile A100-4C --image {IMAGE}").status == 0
    assert (
        "each VM was judged alone: there may not be room"
        in sim(f"migrate-vm --all --to sim:mixed {SEND} --dry-run").err
    )
    ran = sim(f"migrate-vm 'vdi-*' --to sim:mixed {SEND}")
    assert ran.status == 0, ran.err
    assert target("list-vms -o name").out.split() == ["old-desktop", "vdi-1", "vdi-2", "vdi-3"]
    assert sim("list-vms -o name").out == ""


def test_the_other_libvirt_and_the_address_can_be_named(sim: Run, target: Run, vm: str, tmp_path: Path) -> None:
    ran = sim(f"migrate-vm {vm} --to sim:mixed {SEND} --libvirt-uri qemu+ssh://nowhere/system")
    assert ran.status == 1
    assert "Failed to connect to remote libvirt URI qemu+ssh://nowhere/system" in ran.err
    assert state(sim(f"show-vm {vm} --json")) == ("running", "ready")
    assert target(f"show-vm {vm}").status == 2
    assert sim(f"migrate-vm {vm} --to sim:mixed {SEND} --address 10.1.2.3").status == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("migrate-vm vdi-1 --to gpu02", "'gpu02' is not the address of a host"),
        ("migrate-vm vdi-1 --to gpu02", "did you mean ssh://gpu02?"),
        ("migrate-vm vdi-1 --to root@gpu02", "did you mean ssh://root@gpu02?"),
        ("migrate-vm vdi-1 --to ssh:gpu02", "did you mean ssh://gpu02?"),
        ("migrate-vm vdi-1 --to local", "--to: 'local' is not the address of another host"),
        ("migrate-vm vdi-1 --to sim:mixed --offline --insecure-network", "by SSH: omit --insecure-network   [usage]"),
        (
            "migrate-vm vdi-1 --to sim:mixed --offline --bandwidth 9 --address a",
            "omit --bandwidth, --address   [usage]",
        ),
        ("migrate-vm vdi-1 --to ssh://gpu02:0", "--to ssh://gpu02:0: 0 is not a port"),
        ("migrate-vm vdi-1 --to ssh://gpu02:abc", "--to ssh://gpu02:abc is not the address of a host"),
        ("migrate-vm vdi-1 --to 'ssh://gpu{01..03}'", "--to takes one host, and ssh://gpu{01..03} may be several"),
        ("end-migration vdi-1 --with ssh://gpu02:0", "--with ssh://gpu02:0: 0 is not a port"),
        ("migrate-vm vdi-1 --to sim:mixed --address fe80::1", "an IPv6 address needs brackets: [fe80::1]"),
        ("migrate-vm vdi-1 --to sim:mixed --address 10.0.0", "'10.0.0' is not a host's name or address"),
        ("migrate-vm vdi-1 --to sim:mixed --libvirt-uri qemu:///system", "this host's own libvirt: name the other"),
        ("migrate-vm vdi-1 --to sim:mixed --libvirt-uri qemu+ssh://h/session", "is a user's own libvirt: use /system"),
        ("migrate-vm vdi-1", "--to is missing"),
        ("migrate-vm vdi-1 --to sim:mixed --max-downtime 0", "0.001<=x<=86400"),
        ("migrate-vm vdi-1 --to sim:a100-40", "they are one host"),
        ("migrate-vm nobody --to sim:mixed", "there is no VM nobody"),
        ("end-migration vdi-1", "specify one of --with HOST, --runs-here and --runs-there"),
        ("end-migration vdi-1 --with sim:mixed --runs-here", "specify one of"),
        ("end-migration vdi-1 --runs-here", "no move of vdi-1 was interrupted on this host"),
    ],
)
def test_bad_words_are_refused(sim: Run, vm: str, words: str, text: str) -> None:
    ran = sim(words)
    assert ran.status in (2, 3)
    assert text in ran.err


@pytest.fixture
def dying(tmp_path: Path) -> str:
    """A host whose libvirt dies at the end of a move: the VM is paused on both hosts then."""
    path = tmp_path / "dying.yaml"
    path.write_text(f"{(SCENARIO_DIRECTORY / 'a100-40.yaml').read_text()}\nfaults:\n- {{on: migrate, kind: unknown}}\n")
    return str(path)


def test_a_move_whose_end_is_not_known_is_ended_by_both_hosts(sim: Run, target: Run, dying: str) -> None:
    source = partial(sim, host=dying)
    assert source(f"create-vm vdi-1 --profile A100-4C --image {IMAGE}").status == 0
    ran = source(f"migrate-vm vdi-1 --to sim:mixed {SEND}")
    assert (ran.status, ran.out[:19]) == (0, "vdi-1 moved from si"), ran.err
    assert state(target("show-vm vdi-1 --json")) == ("running", "ready")
    assert source("show-vm vdi-1").status == 2
    ran = target(f"end-migration vdi-1 --with sim:{dying}")
    assert ran.out == f"vdi-1: no move between sim:mixed and sim:{dying} was interrupted\n"


def test_a_call_is_read_from_a_file_or_standard_input(sim: Run, vm: str, tmp_path: Path) -> None:
    request = json.dumps({"call": "show-migration", "arguments": {"name": vm}})
    (tmp_path / "call.json").write_text(request)
    by_file = sim(f"migration-call {tmp_path}/call.json --json").document
    assert sim("migration-call - --json", text=request).document == by_file
    assert (by_file["kind"], by_file["data"]["exists"], by_file["data"]["role"]) == ("migration-call", True, None)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"call": "delete-vm", "arguments": {"name": "vdi-1"}}', '{"call": "offer-vm"}']
)
def test_no_other_call_is_made(sim: Run, vm: str, text: str) -> None:
    ran = sim("migration-call -", text=text)
    assert (ran.status, "is not a JSON object with call" in ran.err) == (2, True)
    assert sim(f"show-vm {vm}").status == 0

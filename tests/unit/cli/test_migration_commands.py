# SPDX-License-Identifier: Apache-2.0
"""The commands that move VMs to other hosts, with every option, their pages, documents and questions."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran, Run
from vgpuctl.errors import Interrupted
from vgpuctl.library import open_host
from vgpuctl.operations.steps.migration import SendVm
from vgpuctl.operations.steps.save import SaveDomain
from vgpuctl.ports.host import Host
from vgpuctl.ports.step import LongStep, StepReport
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
        assert any("the VM's memory and disks cannot be encrypted" in line for line in lines)
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
        "    fix: use --offline (without --max-downtime, --insecure-network)",
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
    assert "unable to connect to server at 'qemu+ssh://nowhere/system'" in ran.err
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
        ("end-migration nobody", "specify one of --with HOST, --runs-here and --runs-there"),
        ("end-migration vdi-1 --runs-here", "no move of vdi-1 was interrupted on this host"),
    ],
)
def test_bad_words_are_refused(sim: Run, vm: str, words: str, text: str) -> None:
    ran = sim(words)
    assert ran.status in (2, 3)
    assert text in ran.err


def faulty(directory: Path, fault: str) -> str:
    """Return a host on which something fails."""
    path = directory / "faulty.yaml"
    path.write_text(f"{(SCENARIO_DIRECTORY / 'a100-40.yaml').read_text()}\nfaults:\n- {fault}\n")
    return str(path)


def test_a_move_whose_end_is_not_known_is_ended_by_both_hosts(sim: Run, target: Run, tmp_path: Path) -> None:
    dying = faulty(tmp_path, "{on: migrate, kind: unknown}")  # its libvirt dies when the VM is paused on both hosts
    source = partial(sim, host=dying)
    assert source(f"create-vm vdi-1 --profile A100-4C --image {IMAGE}").status == 0
    ran = source(f"migrate-vm vdi-1 --to sim:mixed {SEND}")
    assert (ran.status, ran.out[:19]) == (0, "vdi-1 moved from si"), ran.err
    assert (
        "End of file while reading data), and both hosts were asked since: vdi-1 runs there; nothing to do" in ran.err
    )
    assert "not known whether" not in ran.err
    assert "  how long it stood still is not known\n" in ran.out
    assert "given up" not in ran.out
    assert state(target("show-vm vdi-1 --json")) == ("running", "ready")
    assert source("show-vm vdi-1").status == 2
    ran = target(f"end-migration vdi-1 --with sim:{dying}")
    assert ran.out == f"vdi-1: no move between sim:mixed and sim:{dying} was interrupted\n"


@pytest.fixture
def arrived(vm: str) -> str:
    """A VM whose move died when all of it had come: it is off on its source and waits, paused, on the target."""
    with open_host("sim:a100-40") as source, open_host("sim:mixed") as target:
        place = target.prepare_incoming(source.offer_vm(vm).data, copies_disks=True, needs_tls=False).data
        source.migrate_out(vm, place, target_uri="sim:mixed", peer="sim:mixed", tls=False, limits_ms=(5000,))
    return vm


def test_a_move_that_died_is_shown_with_its_direction_and_the_command_that_ends_it(
    sim: Run, target: Run, arrived: str
) -> None:
    there, back = (f"vgpuctl end-migration {arrived} --with sim:{host}" for host in ("mixed", "a100-40"))
    unless = "if no migrate-vm works on it any more:"
    assert f"the move of {arrived} to sim:mixed has not ended; {unless} {there}\n" in sim("list-vms").err
    assert f"the move of {arrived} from sim:a100-40 has not ended; {unless} {back}\n" in target("list-vms").err
    assert f"to sim:mixed, not ended; {unless} {there}\n" in sim(f"show-vm {arrived}").out
    assert sim(f"show-vm {arrived} --json").document["data"]["moves_away"] is True
    assert target(f"show-vm {arrived} --json").document["data"]["moves_away"] is False
    refused = sim(f"start-vm {arrived}").err
    assert f"{arrived} moves from this host to sim:mixed, or that move was interrupted" in refused
    assert f"  hint: wait for migrate-vm; if none works on it any more: {there}\n" in refused
    assert "role:" not in refused
    assert f"VM {arrived} moves from sim:a100-40 to this host" in target("doctor vm-states").out
    ran = sim(f"end-migration {arrived}")
    assert (ran.status, f"  hint: {there}\n" in ran.err) == (2, True)


def test_where_it_goes_on_and_in_which_state_is_said_before_and_after(sim: Run, target: Run, arrived: str) -> None:
    dry = sim(f"end-migration {arrived} --with sim:mixed --dry-run")
    assert dry.out.startswith(f"{arrived} would run on sim:mixed\n  on sim:a100-40: record that {arrived} is on ")
    ran = sim(f"end-migration {arrived} --with sim:mixed")
    assert ran.out == dry.out.replace("would run", "runs")
    assert "  on sim:a100-40: remove vGPU A100-4C from 0000:3b:00.4\n" in ran.out
    assert state(target(f"show-vm {arrived} --json")) == ("running", "ready")


def test_one_host_alone_says_what_is_lost_and_asks_for_it(sim: Run, target: Run, arrived: str) -> None:
    dry = sim(f"end-migration {arrived} --runs-here --dry-run").out
    assert f"{arrived} would be on sim:a100-40, and off: vgpuctl --host sim:a100-40 start-vm {arrived}\n" in dry
    assert "  what it may have in its memory on sim:mixed would be lost\n" in dry
    asked = sim(f"end-migration {arrived} --runs-here")
    assert asked.status == 2
    assert (
        f"{arrived} is off here. What it had in its memory was sent to sim:mixed, and is lost if you go on" in asked.err
    )
    assert state(sim(f"show-vm {arrived} --json")) == ("stopped", "moving")
    data = sim(f"--yes end-migration {arrived} --runs-here --json").document["data"]
    assert (data["state"], data["lost_on"], data["asked_both"]) == ("stopped", "sim:mixed", False)
    assert state(sim(f"show-vm {arrived} --json")) == ("stopped", "ready")


def test_nobody_gives_up_a_running_state_without_a_question(sim: Run, target: Run, arrived: str) -> None:
    assert sim(f"--yes end-migration {arrived} --runs-here").status == 0
    before = target("list-vms --json").out
    ran = sim(f"--yes migrate-vm {arrived} --to sim:mixed --offline --copy-storage")
    assert (ran.status, "what it had in its memory came to sim:mixed, where it waits, paused" in ran.err) == (75, True)
    dry = target(f"end-migration {arrived} --with sim:a100-40 --dry-run").out
    assert "  what it had in its memory on sim:mixed would be lost\n" in dry
    assert f"  on sim:mixed: force off VM {arrived} here, where it is paused for its move\n" in dry
    ran = target(f"end-migration {arrived} --with sim:a100-40")
    assert (ran.status, f"Give up what {arrived} has in its memory?" in ran.err) == (2, True)
    assert target("list-vms --json").out == before
    data = target(f"--yes end-migration {arrived} --with sim:a100-40 --json").document["data"]
    assert (data["outcome"], data["state"], data["lost_on"]) == ("source", "stopped", "sim:mixed")
    assert target(f"show-vm {arrived}").status == 2
    assert sim(f"start-vm {arrived}").status == 0


def test_the_target_alone_says_that_the_memory_which_waits_there_is_lost(target: Run, arrived: str) -> None:
    ran = target(f"end-migration {arrived} --runs-there")
    assert "It is paused here: what it has in its memory here is lost, unless sim:a100-40 has that, too." in ran.err
    ran = target(f"--yes end-migration {arrived} --runs-there")
    assert ran.out.startswith(
        f"{arrived} is a VM of sim:a100-40\n  what it may have in its memory on sim:mixed is lost\n"
    )


def stopped_in(monkeypatch: pytest.MonkeyPatch, step: type[LongStep], number: int, *, is_late: bool) -> None:
    """Have a signal come right before or after a step's work."""
    real = step.perform_with_progress

    def perform(self: LongStep, host: Host, report: StepReport) -> str | None:
        result = real(self, host, report) if is_late else None
        raise Interrupted(f"stopped by {number} {result}", signal_number=number)

    monkeypatch.setattr(step, "perform_with_progress", perform)


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_that_comes_too_late_is_called_so(
    sim: Run, target: Run, vm: str, monkeypatch: pytest.MonkeyPatch, number: int, word: str
) -> None:
    stopped_in(monkeypatch, SendVm, number, is_late=True)
    ran = sim(f"migrate-vm {vm} --to sim:mixed {SEND}")
    assert (
        ran.status,
        f"note: {vm}: sim:mixed: {word} came too late: {vm} runs there; nothing to do\n" in ran.err,
    ) == (
        0,
        True,
    )
    assert "stopped by" not in ran.err
    assert "  how long it stood still is not known\n" in ran.out
    assert state(target(f"show-vm {vm} --json")) == ("running", "ready")


def test_a_signal_in_time_leaves_it_where_it_runs(sim: Run, vm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_in(monkeypatch, SendVm, signal.SIGINT, is_late=False)
    ran = sim(f"migrate-vm {vm} --to sim:mixed {SEND}")
    first = f"vgpuctl: the move was stopped by Ctrl-C: {vm} still runs on sim:a100-40   [interrupted]"
    assert (ran.status, first in ran.err.splitlines()) == (130, True)
    facts = sim(f"migrate-vm {vm} --to sim:mixed {SEND} --json").document["error"]["facts"]
    assert (facts["vm_host"], facts["vm_state"]) == ("sim:a100-40", "running")


def test_a_failed_move_says_where_the_vm_runs_and_which_logs_say_more(sim: Run, tmp_path: Path) -> None:
    source = partial(sim, host=faulty(tmp_path, "{on: migrate, kind: error, message: 'job: failed'}"))
    assert source(f"create-vm vdi-1 --profile A100-4C --image {IMAGE}").status == 0
    ran = source(f"migrate-vm vdi-1 --to sim:mixed {SEND}")
    assert ran.status == 1
    assert f"job: failed; vdi-1 still runs on sim:{tmp_path}/faulty.yaml   [libvirt-failed]" in ran.err
    assert "and on sim:mixed: tail -n 30 /var/log/libvirt/qemu/vdi-1.log; journalctl -n 30 -u libvirtd" in ran.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_save_that_was_stopped_too_late_is_a_save(
    sim: Run, vm: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    stopped_in(monkeypatch, SaveDomain, number, is_late=True)
    ran = sim(f"save-vm {vm}")
    word = Interrupted("", signal_number=number).stopped_by
    lines = ran.err.splitlines()[-2:]
    assert lines == [
        f"vgpuctl: {vm} is saved, and off: {word} came too late   [interrupted]",
        f"  hint: vgpuctl start-vm {vm} goes on from its saved memory",
    ]
    assert sim("reconcile-host --dry-run --json").document["changed"] is False
    assert sim(f"start-vm {vm}").status == 0


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

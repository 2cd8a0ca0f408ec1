# SPDX-License-Identifier: Apache-2.0
"""If a host.yaml is short or empty, apply removes nothing without confirmation, and --undo restores it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran, Run, child
from tests.unit.cli.test_progress import Terminal

A16, A100 = "0000:17:00.0", "0000:3b:00.0"
CONFIGURED = f"""# of the GPU team
version: 1
defaults: {{memory: 8GiB}}
gpus:
  "{A16}": {{cordoned: true, reserved_for: [vdi-*]}}
  H100: {{mode: sriov}}
"""
GONE = [f"gpus.{A16}: cordoned true, reserved_for [vdi-*]", "gpus.H100: mode sriov", "defaults: memory 8GiB"]


class Host:
    """A simulated host as a user sees it: arguments, standard input, and its /etc/vgpuctl."""

    def __init__(self, sim: Run, etc: Path) -> None:
        self.sim, self.etc, self.file = sim, etc, etc / "host.yaml"

    def __call__(self, line: str, text: str | bytes | None = "") -> Ran:
        return self.sim(line, "mixed", text)

    @property
    def etc_now(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.etc.iterdir()}


@pytest.fixture
def host(sim: Run, tmp_path: Path) -> Host:
    assert sim("cordon A16", "mixed").status == 0
    (file,) = tmp_path.rglob("host.yaml")
    file.write_text(CONFIGURED)
    (file.parent / "host.yaml.1").unlink()
    return Host(sim, file.parent)


EMPTIED: dict[str, str | bytes] = {
    "nothing": "",
    "blank": "\n\n",
    "comments": "# version: 1\n",
    "no version": "gpus: {}\n",
    "null": "~\n",
    "a list": "[]\n",
    "NULs": b"\0" * 512,
    "an end": "...\n",
    "two documents": f"version: 1\n---\n{CONFIGURED}",
    "an early end": "version: 1\n...\ngpus: {}\n",
    "half a line": CONFIGURED[:30],
    "half a mapping": CONFIGURED[: CONFIGURED.index("cordoned")],
    "half a text": CONFIGURED[: CONFIGURED.index(A16) + 3],
    "not text": b"version: 1 # caf\xe9\n",
    "two at once": f"{CONFIGURED}{CONFIGURED}",
}


@pytest.mark.parametrize("kind", EMPTIED)
@pytest.mark.parametrize(
    "command", ["apply --yes -f -", "apply --yes --dry-run -f -", "diff -f -", "diff --quiet -f -"]
)
def test_every_command_refuses_a_document_without_version_1(host: Host, kind: str, command: str) -> None:
    ran = host(command, EMPTIED[kind])
    assert (ran.status, "standard input" in ran.err) == (2, True)
    assert host.etc_now == {"host.yaml": CONFIGURED}


def test_a_pipe_whose_first_command_fails_changes_nothing(host: Host, tmp_path: Path) -> None:
    imported = host("import -", "garbage\n")
    assert (imported.status, imported.out) == (2, "")
    assert host("apply --yes -f -", imported.out).status == 2
    assert host("apply --yes -f /dev/null").status == 2
    assert host("export").status == 0
    host.file.write_text("")
    exported = host("export")
    assert (exported.status, exported.out) == (2, "")
    assert host.etc_now == {"host.yaml": ""}


SHORTER = {"version alone": "version: 1\n", "older": "version: 1\ngpus: {A16: {mode: vgpu}}\n"}


@pytest.mark.parametrize("kind", SHORTER)
def test_removals_are_listed_and_need_yes(host: Host, kind: str) -> None:
    text = SHORTER[kind]
    result = host("diff -f -", text)
    assert (result.status, [line.strip() for line in result.out.splitlines()][-3:]) == (
        7,
        [_page(one) for one in GONE],
    )
    assert [_page(one) in host("apply --dry-run -f -", text).out for one in GONE] == [True] * 3
    document = host("diff --json -f -", text).document
    assert {one["entry"] for one in document["data"]["removed"]} == {line.split(": ")[0] for line in GONE}
    for words in ("apply -f -", "apply -f - --json"):
        ran = host(words, text)
        assert ran.status == 2
        reported = ran.document["error"]["facts"]["lines"] if "--json" in words else ran.err
        assert [one in reported for one in GONE] == [True] * 3
        assert "[needs-confirmation]" in ran.err or ran.document["error"]["code"] == "needs-confirmation"
    assert host.etc_now == {"host.yaml": CONFIGURED}
    ran = host("apply --yes -f -", text)
    assert (ran.status, "gone from host.yaml:" in ran.out) == (0, True)
    assert host.etc_now == {"host.yaml": text, "host.yaml.1": CONFIGURED}


def test_a_shortened_list_needs_yes(host: Host) -> None:
    whole = f'version: 1\ngpus:\n  "{A16}":\n    reserved_for:\n    - vdi-*\n    - lab-*\n'
    assert host("apply --yes -f -", whole).status == 0
    before = host.etc_now
    ran = host("apply -f -", whole.removesuffix("    - lab-*\n"))
    assert (ran.status, f"gpus.{A16}: reserved_for [lab-*]" in ran.err, host.etc_now) == (2, True, before)
    removed = host("diff --json -f -", whole.removesuffix("    - lab-*\n")).document["data"]["removed"]
    assert removed == [{"entry": f"gpus.{A16}", "keys": {"reserved_for": ["lab-*"]}}]


def _page(line: str) -> str:
    """Return a removal in the form of a page, where a list has no brackets."""
    return line.replace("[", "").replace("]", "")


def test_a_person_may_decline_the_prompt(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "short.yaml").write_text("version: 1\n")
    for answer, status in (("n\n", 2), ("y\n", 0)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        monkeypatch.setattr("sys.stderr", screen := Terminal())
        ran = host(f"apply -f {tmp_path}/short.yaml", None)
        assert (ran.status, all(one in screen.getvalue() for one in GONE)) == (status, True)
        assert (host.file.read_text() == CONFIGURED) is (status == 2)


def test_no_prompt_when_nothing_is_removed(host: Host) -> None:
    assert host("apply -f -", f"{CONFIGURED}boot: {{deadline_seconds: 60}}\n").status == 0
    assert host(f"apply --set gpus[{A16}].reserved_for=null").status == 0
    assert host("apply -f -", host("export").out).status == 0
    assert host("diff").status == 0


def test_undo_goes_back_and_forth_and_says_what_changes(host: Host) -> None:
    assert host("uncordon A16").status == 0
    without = host.file.read_text()
    assert host("apply --undo --dry-run").out.splitlines()[-1].endswith(f"replace {_etc()} with {_etc(1)}")
    assert host("apply --undo").status == 0
    assert host.etc_now == {"host.yaml": CONFIGURED, "host.yaml.1": without, "host.yaml.2": CONFIGURED}
    ran = host("apply --undo")
    assert (ran.status, "cordoned true" in ran.err) == (2, True)
    assert host("apply --undo --yes").status == 0
    assert host.file.read_text() == without
    assert host("apply --undo 3 --json").document["changed"] is True
    assert host.file.read_text() == CONFIGURED


def _etc(number: int | None = None) -> str:
    return "/etc/vgpuctl/host.yaml" + (f".{number}" if number else "")


@pytest.mark.parametrize("broken", ["", "gpus: [", "version: 1\nnonsense: 1\n", b"version: 1 # caf\xe9\n"])
@pytest.mark.parametrize("words", ["apply --undo", "apply -f -"])
def test_a_broken_host_yaml_can_be_replaced(host: Host, broken: str | bytes, words: str) -> None:
    assert host("create-vgpu lab --profile T4-4Q").status == 0
    assert host("cordon A100").status == 0
    assert host("uncordon A100").status == 0
    wanted = (host.etc / "host.yaml.1").read_text()
    host.file.write_bytes(broken if isinstance(broken, bytes) else broken.encode())
    assert host("list-gpus").status == 0
    assert "vgpuctl apply --undo" in host("list-gpus").err
    assert "vgpuctl apply --undo" in host("cordon A100").err
    assert host(f"{words} --dry-run", wanted).status == 0
    assert host("diff -f -", wanted).status == 7
    assert host(words, wanted).status == 2
    assert host.file.read_bytes() == (broken if isinstance(broken, bytes) else broken.encode())
    assert host(f"{words} --yes", wanted).status == 0
    assert host.file.read_text() == wanted
    assert [v["name"] for v in host("list-vgpus --unassigned --json").document["data"]] == ["lab"]
    assert "nothing to do" in host("reconcile-host").out
    assert host("apply").out == "the host is as host.yaml says; nothing to do\n"


def test_an_error_keeps_the_broken_file(host: Host) -> None:
    assert child("--host", "sim:mixed", "create-vgpu", "lab", "--profile", "T4-4Q").returncode == 0
    host.file.write_text("broken")
    before = host.etc_now
    ran = host("apply --yes -f -", 'version: 1\ngpus: {"0000:99:00.0": {mode: vgpu}}\n')
    assert (ran.status, host.etc_now) == (2, before)
    ran = host("apply -f -", "version: 1\n")
    assert (ran.status, "reconcile-host removes it" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("apply --undo", "/etc/vgpuctl/host.yaml.1 does not exist"),
        ("apply --undo 4", "/etc/vgpuctl/host.yaml.4 does not exist"),
        ("apply --undo 11", "N is 1 to 10"),
        ("apply --undo x", "N is 1 to 10"),
        ("apply host.yaml", "use -f host.yaml for a file"),
        ("apply --undo -f -", "--undo and -f cannot be combined"),
    ],
)
def test_what_cannot_be_undone_is_refused(host: Host, words: str, says: str) -> None:
    ran = host(words)
    assert (ran.status, says in ran.err) == (2, True)


def test_a_version_that_is_broken_itself_names_the_one_before(host: Host) -> None:
    (host.etc / "host.yaml.1").write_text("")
    ran = host("apply --undo --yes")
    assert (ran.status, "vgpuctl apply --undo 2" in ran.err) == (2, True)
    assert host.file.read_text() == CONFIGURED


def test_every_command_that_edits_host_yaml_keeps_the_version_before(host: Host) -> None:
    lines = ("uncordon A16", "set-mode A16 vgpu", "create-vgpu vdi-1 --profile A16-2Q", "delete-vgpu vdi-1 --yes")
    for number, line in enumerate(lines, 1):
        before = host.file.read_text()
        ran = host(line)
        assert ran.status == 0, ran.err
        assert (host.etc / "host.yaml.1").read_text() == before
        assert len(host.etc_now) == number + 1


def test_undo_brings_back_a_file_that_was_removed(host: Host) -> None:
    assert host("uncordon A16").status == 0
    host.file.unlink()
    assert host("apply --undo").status == 0
    assert host.etc_now == {"host.yaml": CONFIGURED, "host.yaml.1": "version: 1\n", "host.yaml.2": CONFIGURED}


def _large(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 << 30)


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "directory": Path.mkdir,
    "large": _large,
}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("kind", ODD_FILES)
def test_a_host_yaml_that_is_no_regular_file_is_reported_with_a_hint_that_works(
    host: Host, kind: str, kept: bool
) -> None:
    """The hint moves it away and never replaces it: a link may lead to a device."""
    assert not kept or host("uncordon A16").status == 0
    host.file.unlink()
    ODD_FILES[kind](host.file)
    move = f"mv {_etc()} {_etc()}.bad"
    for line in ("diff", "apply", "apply -f -", "cordon A16", "export", "create-vm vm --profile A100-4C", "list-gpus"):
        ran = host(line, CONFIGURED)
        assert (ran.status, "host.yaml cannot be read: it is" in ran.err) == (0 if line == "list-gpus" else 2, True)
    for line in ("apply -f -", "create-vm vm --profile A100-4C", "list-gpus", "doctor host-file", "reconcile-host"):
        ran = host(line, CONFIGURED)
        text = ran.out + ran.err
        assert (move in text, "vgpuctl apply --undo" in text) == (True, kept), line
    host.file.rename(f"{host.file}.bad")
    assert host("apply --undo --yes" if kept else "apply -f -", CONFIGURED).status == 0
    assert host.file.read_text() == CONFIGURED


def test_a_fifo_among_mdevctl_definitions_does_not_block(host: Host, tmp_path: Path) -> None:
    (parent := tmp_path / "mdevctl.d" / "0000:5e:00.0").mkdir(parents=True)
    os.mkfifo(parent / "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001")
    ran = host(f"import {parent.parent}")
    assert (ran.status, "it is a pipe, not a regular file" in ran.err) == (2, True)


def test_an_ssh_host_gets_arguments_and_answer(host: Host) -> None:
    """The remote vgpuctl runs with --json and never prompts; `apply --undo N` is forwarded like any other arguments."""
    assert host("uncordon A16").status == 0
    assert host("--json apply --undo --yes").document["changed"] is True
    ran = host("--json apply --undo")
    assert ran.document["error"]["facts"]["lines"] == [f"gpus.{A16}: cordoned true"]

# SPDX-License-Identifier: Apache-2.0
"""Every error as text and as JSON, with a traceback only on request."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import click
import pytest

from tests.faults import counted, failing, outcome
from tests.hosts import create, delete, open_sim_host, request, run_reconcile
from vgpuctl.cli import failures
from vgpuctl.cli.global_options import Settings
from vgpuctl.errors import (
    Busy,
    FileFailed,
    Interrupted,
    InUse,
    Locked,
    NoCapacity,
    NotFound,
    PartlyApplied,
    Refused,
    Stuck,
    Temporary,
    VgpuctlError,
)
from vgpuctl.ports.host import Host


def printed(exc: BaseException, capsys: pytest.CaptureFixture[str], **settings: bool) -> tuple[int, str, str]:
    status = failures.report(exc, Settings(**settings))  # type: ignore[arg-type]
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_text_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    exc = NoCapacity(
        "no room for A100-4C on 0000:3b:00.0",
        hint="vgpuctl explain A100-4C",
        lines=["10 of 10 in use: vdi-001 … vdi-010"],
        gpu="0000:3b:00.0",
        used=10,
        nothing=None,
    )
    status, out, err = printed(exc, capsys)
    assert status == 4
    assert out == ""
    assert err == (
        "vgpuctl: no room for A100-4C on 0000:3b:00.0   [no-capacity]\n"
        "  10 of 10 in use: vdi-001 … vdi-010\n"
        "  used: 10\n"
        "  hint: vgpuctl explain A100-4C\n"
    )


@pytest.mark.parametrize(
    ("kind", "status"),
    [(NotFound, 2), (InUse, 3), (NoCapacity, 4), (Temporary, 75), (Locked, 75), (Busy, 75), (Stuck, 75)],
)
def test_the_exit_status_says_what_to_do_next(
    kind: type[VgpuctlError], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/reference/exit-codes.md: check the arguments, who holds it, or what exists; or retry."""
    assert printed(kind("why"), capsys)[0] == status
    assert json.loads(printed(kind("why"), capsys, json=True)[1])["error"]["exit_status"] == status


def test_json_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    exc = PartlyApplied("it failed", holders=frozenset({"b", "a"}), path=os.fspath("/x"))
    exc.undone, exc.left = ["define the VM"], ["the disk"]
    status, out, err = printed(exc, capsys, json=True)
    assert (status, err) == (5, "")
    document = json.loads(out)
    assert document["changed"] is True
    assert document["error"] == {
        "code": "partly-applied",
        "message": "it failed",
        "hint": None,
        "facts": {"holders": ["a", "b"], "path": "/x"},
        "exit_status": 5,
        "undone": ["define the VM"],
        "left": ["the disk"],
    }


def test_lists_of_what_was_undone_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    exc = PartlyApplied("it failed", hint="vgpuctl reconcile-host")
    exc.undone, exc.left = ["define the VM"], ["create vGPU: busy", "claim 0000:3b:00.4"]
    assert printed(exc, capsys)[2].splitlines() == [
        "vgpuctl: it failed   [partly-applied]",
        "  undone only in part: 1 step",
        "  left:",
        "    create vGPU: busy",
        "    claim 0000:3b:00.4",
        "  hint: vgpuctl reconcile-host",
    ]


def test_v_lists_what_was_undone_and_the_facts_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    exc = Refused("refused", errno=5)
    exc.undone = ["start", "define the VM"]
    assert "  undone completely: 2 steps\n" in printed(exc, capsys)[2]
    assert "errno" not in printed(exc, capsys)[2]
    text = printed(exc, capsys, verbose=True)[2]
    assert "  errno: 5\n  undone:\n    start\n    define the VM\n" in text


@pytest.mark.parametrize("listed", [["7g.80gb", "1g.10gb"], ["1g.10gb"]])
def test_a_list_that_the_hint_has_already_is_not_printed_again(
    listed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    exc = NotFound("no profile 1g.7gb", hint="it has 1g.10gb, 7g.80gb", profiles=listed, others=[*listed, "2g.20gb"])
    failures.report(exc, Settings())
    assert capsys.readouterr().err == (
        "vgpuctl: no profile 1g.7gb   [not-found]\n"
        f"  others: {', '.join(listed)}, 2g.20gb\n"
        "  hint: it has 1g.10gb, 7g.80gb\n"
    )


def test_a_message_of_several_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(Refused("two problems\nfirst\nsecond"), capsys)[2] == (
        "vgpuctl: two problems   [refused]\n  first\n  second\n"
    )


def test_names_are_escaped_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = printed(Refused("VM \x1b[31mred\x07", hint="a\x9bb", vm="x\x1b]0;t"), capsys)
    assert "\x1b" not in err
    assert "\x07" not in err
    assert "\x9b" not in err


@pytest.mark.parametrize(("number", "status"), [(2, 130), (15, 143)])
def test_an_interrupted_command(number: int, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    exc = Interrupted("stopped by a signal", signal_number=number)
    exc.left = ["the disk"]
    got, _, err = printed(exc, capsys)
    assert got == status
    assert "hint: 'vgpuctl reconcile-host'" in err


def test_a_second_signal_lists_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    first = Interrupted("stopped by SIGTERM", signal_number=15)
    first.undone, first.left = ["start"], ["the device"]
    second = KeyboardInterrupt()
    second.__context__ = first
    status = failures.report(second, Settings(json=True), signal_status=143)
    error = json.loads(capsys.readouterr().out)["error"]
    assert status == 143
    assert (error["undone"], error["left"]) == (["start"], ["the device"])
    assert error["code"] == "interrupted"


def test_an_interruption_reported_as_another_error(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Refused("the template is at fault: stopped by SIGINT")
    wrong.__cause__ = Interrupted("stopped by SIGINT", signal_number=2)
    wrong.undone = ["define"]
    status, _, err = printed(wrong, capsys)
    assert status == 130
    assert err.startswith("vgpuctl: stopped by SIGINT   [interrupted]\n  undone completely: 1 step")
    partly = PartlyApplied("it failed")
    partly.__cause__ = Interrupted("stopped by SIGINT", signal_number=2)
    assert printed(partly, capsys)[0] == 5


def test_an_error_that_is_its_own_cause_is_reported_without_a_loop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = Refused("no")
    own.__cause__ = own
    assert printed(own, capsys)[0] == own.status
    stop = KeyboardInterrupt()
    stop.__cause__ = own
    assert printed(stop, capsys)[0] == 130


def raised(exc: Exception) -> Exception:
    try:
        raise exc
    except Exception as caught:  # noqa: BLE001
        return caught


def test_a_bug_is_one_line_and_a_private_file(
    capsys: pytest.CaptureFixture[str], tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", os.fspath(tmp_path))
    status, out, err = printed(raised(KeyError("vgpus")), capsys)
    assert (status, out) == (1, "")
    assert err.startswith("vgpuctl: unexpected KeyError: 'vgpus'   [bug]\n")
    assert "Traceback" not in err
    path = next(word for word in err.split() if word.endswith("traceback.txt"))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    with open(path, encoding="utf-8") as file:
        assert "Traceback" in file.read()


def test_a_bug_with_v_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = printed(raised(KeyError("vgpus")), capsys, verbose=True, json=True)
    assert status == 1
    assert json.loads(out)["error"]["code"] == "bug"
    assert "Traceback" in err


def test_v_shows_the_cause_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    exc = Refused("refused")
    exc.__cause__ = raised(OSError(5, "Input/output error"))
    assert "Input/output error" not in printed(exc, capsys)[2]
    assert "Input/output error" in printed(exc, capsys, verbose=True)[2]


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "/proc is full: df -h /proc"),
        (errno.EDQUOT, "the quota on /proc is exceeded"),
        (errno.EROFS, "/proc is mounted read-only: findmnt /proc"),
        (errno.EACCES, "/proc/vgpuctl/claims/x"),
        (errno.EPERM, "/proc/vgpuctl/claims/x"),
        (errno.ELOOP, "ls -ld /proc/vgpuctl/claims/x"),
    ],
)
def test_an_oserror_is_no_bug(number: int, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = "/proc/vgpuctl/claims/x"
    for name in (path, path.encode()):
        failure = failures.failure_from_exception(OSError(number, os.strerror(number), name), Settings())
        assert (failure.status, failure.code) == (1, "os-error")
        assert failure.message == f"{os.strerror(number)}: {path}"
        assert hint in str(failure.hint)
        assert failure.facts == {"errno": number, "path": path, "file_system": "/proc"}
    status, _, err = printed(OSError(number, os.strerror(number), path), capsys)
    assert status == 1
    assert err.startswith(f"vgpuctl: {os.strerror(number)}: {path}   [os-error]\n")


def test_an_oserror_without_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = printed(OSError(errno.ENOSPC, "No space left on device"), capsys, json=True)
    error = json.loads(out)["error"]
    assert (status, error["code"], error["facts"]["path"]) == (1, "os-error", None)
    assert "df -h" in error["hint"]
    assert failures.failure_from_exception(OSError(errno.EBADF, "Bad file descriptor"), Settings()).code == "bug"


def test_a_full_run_directory_has_the_code_of_a_full_disk(tmp_path: Path) -> None:
    def make(ports: Host, **how: object) -> object:
        return create(ports, request("A100-4C", name="vm", **how), start=False)

    for number, how in enumerate(({}, {"reserve": "running"})):
        calls = counted(open_sim_host(tmp_path / f"{number}").ports, lambda w, how=how: make(w, **how))
        writes = [n for n, call in enumerate(calls, 1) if call in ("claims.add", "claims.add_vm_in_progress")]
        assert writes
        for at in writes:
            ports = open_sim_host(tmp_path / f"{number}-{at}").ports
            error = outcome(lambda ports=ports, at=at, how=how: make(failing(ports, at), **how))
            assert error is not None
            failure = failures.failure_from_exception(error, Settings())
            assert (failure.status, failure.code, failure.facts["errno"]) == (1, "os-error", errno.ENOSPC)
            assert "/run" in str(failure.hint)
    full = FileFailed("the claim cannot be written", errno=errno.ENOSPC, path="/proc/vgpuctl/claims/x")
    assert failures.failure_from_exception(full, Settings()).facts["file_system"] == "/proc"


@pytest.mark.parametrize(
    "call", ["claims.all", "claims.read", "claims.stuck_writes", "claims.drained_vms", "claims.vms_in_progress"]
)
def test_an_unreadable_run_directory_is_reported_with_its_path(tmp_path: Path, call: str) -> None:
    def work(ports: Host) -> None:
        create(ports, request("A100-4C", name="vm", reserve="running"))
        run_reconcile(ports)
        delete(ports, "vm")

    calls = counted(open_sim_host(tmp_path / "dry").ports, work)
    reads = [number for number, one in enumerate(calls, 1) if one == call]
    assert reads
    reported = set()
    for at in reads:
        error = outcome(lambda at=at: work(failing(open_sim_host(tmp_path / f"{at}").ports, at)))
        if error is not None:
            failure = failures.failure_from_exception(error, Settings())
            reported.add((failure.code, failure.facts["path"]))
            assert "cannot be read" in failure.message
            assert "ls -la" in str(failure.hint)
    assert reported <= {("os-error", call), ("partly-applied", call)}
    assert reported


def test_exit_in_library_code_is_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(SystemExit(3), capsys)[0] == 1


def test_click_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(click.UsageError("Something is wrong."), capsys)[2] == (
        "vgpuctl: something is wrong   [usage]\n  hint: 'vgpuctl --help' shows the usage\n"
    )

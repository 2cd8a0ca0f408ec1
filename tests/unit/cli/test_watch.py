# SPDX-License-Identifier: Apache-2.0
"""--watch: a line per change in a pipe, a document per change as JSON, a page that is redrawn on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import vgpuctl as library
from tests.unit.cli.conftest import child_environment, is_readable
from vgpuctl.cli import hosts, watch
from vgpuctl.cli.settings import Settings
from vgpuctl.cli.signals import SignalGuard
from vgpuctl.errors import HostCannot, Interrupted
from vgpuctl.library import GpuHost
from vgpuctl.model.outcome import AnyResult, QueryResult

HOST = "sim:a100-40"
NO_TIME = slice(9, None)


def _list_vms(host: GpuHost) -> AnyResult:
    return host.list_vms()


def _show_vm(host: GpuHost) -> AnyResult:
    return host.show_vm("a")


def _run(
    changes: list[Callable[[], object]],
    act: Callable[[GpuHost], AnyResult] = _list_vms,
    kind: str = "list-vms",
    *,
    json_: bool = False,
) -> int:
    """Watch a simulated host; each wait makes one of the changes, and after the last one Ctrl-C comes."""
    settings = Settings(host=HOST, json=json_)
    settings.watch = 2
    rest = iter(changes)

    def wait(seconds: float) -> None:
        change = next(rest, None)
        if change is None:
            raise KeyboardInterrupt
        change()

    def prepare(guard: SignalGuard) -> Callable[[], AnyResult]:
        host = hosts.open_host(settings)
        return lambda: act(host)

    return watch.run(settings, kind, prepare, wait)


def test_a_pipe_gets_the_rows_and_then_a_line_per_change(capsys: pytest.CaptureFixture[str]) -> None:
    host = library.open_host(HOST)
    host.create_vm("a", profile="A100-4C")
    status = _run(
        [
            lambda: None,
            lambda: host.create_vm("b", profile="A100-4C"),
            lambda: host.stop_vm("a", force=True),
            lambda: host.delete_vm("a"),
        ]
    )
    first, row, *lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert (first.split()[:2], row.split()[:2]) == (["NAME", "STATE"], ["a", "running"])
    assert [line[NO_TIME] for line in lines] == [
        "b added: state running, ownership managed, vgpus A100-4C on 0000:3b:00.0",
        "a changed: state running -> stopped",
        "a removed",
    ]


def test_a_page_is_watched_by_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    host = library.open_host(HOST)
    host.create_vm("a", profile="A100-4C")
    assert _run([lambda: host.stop_vm("a", force=True)], _show_vm, "show-vm") == 0
    assert capsys.readouterr().out.splitlines()[-1][NO_TIME] == "a changed: state running -> stopped"


def test_json_is_a_document_per_line_and_change(capsys: pytest.CaptureFixture[str]) -> None:
    host = library.open_host(HOST)
    assert _run([lambda: None, lambda: host.create_vm("b", profile="A100-4C")], json_=True) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [[vm["name"] for vm in document["data"]] for document in documents] == [[], ["b"]]
    assert {document["kind"] for document in documents} == {"list-vms"}


def _failing(fails: Iterator[bool]) -> Callable[[GpuHost], AnyResult]:
    def act(host: GpuHost) -> AnyResult:
        if next(fails):
            raise HostCannot("libvirt does not answer", hint="systemctl start libvirtd")
        return host.list_vms()

    return act


def test_a_look_that_fails_is_shown_once_and_the_next_ones_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    for json_ in (False, True):
        status = _run([lambda: None] * 3, _failing(iter([False, True, True, False])), json_=json_)
        captured = capsys.readouterr()
        assert status == 0
        if json_:
            assert [json.loads(line)["ok"] for line in captured.out.splitlines()] == [True, False, True]
        else:
            assert [line[NO_TIME] for line in captured.err.splitlines()] == [
                "vgpuctl: libvirt does not answer   [host-cannot]",
                "  hint: systemctl start libvirtd"[NO_TIME],
                "it can be read again",
            ]


def test_no_vm_counts_as_removed_while_libvirt_is_down(capsys: pytest.CaptureFixture[str]) -> None:
    library.open_host(HOST).create_vm("a", profile="A100-4C")
    down = QueryResult((), ("VMs are unknown: libvirt does not answer",))
    answers = iter([None, down, None])
    assert _run([lambda: None] * 2, lambda host: next(answers) or host.list_vms()) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert [line[NO_TIME] for line in captured.err.splitlines()] == [
        "vgpuctl: VMs are unknown: libvirt does not answer   [host-cannot]",
        "it can be read again",
    ]


def test_a_first_look_that_fails_is_the_commands_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run([], _failing(iter([True]))) == 6
    assert capsys.readouterr().err.startswith("vgpuctl: libvirt does not answer")


def test_a_signal_during_a_look_ends_it() -> None:
    def prepare(guard: SignalGuard) -> Callable[[], AnyResult]:
        def read() -> AnyResult:
            guard.received.append(signal.SIGTERM)
            raise Interrupted("stopped", signal_number=signal.SIGTERM)

        return read

    assert watch.run(Settings(host=HOST), "list-vms", prepare, lambda seconds: None) == 143


def test_nothing_stays_open_between_two_looks() -> None:
    opened: list[int] = []
    _run([lambda: opened.append(len(os.listdir("/proc/self/fd")))] * 20)
    assert len({*opened[1:]}) == 1


def _read_until(fd: int, text: str) -> str:
    """Return what the terminal gets until the text is in it."""
    shown = b""
    while text.encode() not in shown:
        assert is_readable(fd, 60), shown
        shown += os.read(fd, 100_000)
    return shown.decode()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_terminal_is_redrawn_and_left_clean(number: int, status: int) -> None:
    host = library.open_host(HOST)
    host.create_vm("a", profile="A100-4C")
    main, terminal = pty.openpty()
    words = [sys.executable, "-m", "vgpuctl", "--host", HOST, "list-vms", "--watch=0.1"]
    with subprocess.Popen(
        words, env=child_environment(TERM="xterm", COLUMNS="80"), stdin=terminal, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        shown = _read_until(main, "A100-4C on 0000:3b:00.0")
        assert shown.startswith(watch.ENTER_SCREEN)
        assert "every 0.1 s: vgpuctl --host sim:a100-40 list-vms --watch=0.1" in shown
        assert "\x1b[32mrunning\x1b[0m" in shown
        host.create_vm("second", profile="A100-4C")
        _read_until(main, "second")
        process.send_signal(number)
        rest = _read_until(main, watch.LEAVE_SCREEN)
        assert process.wait(timeout=60) == status
    os.close(main)
    assert rest.endswith(watch.LEAVE_SCREEN)
    assert "[interrupted]" not in rest

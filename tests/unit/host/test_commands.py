# SPDX-License-Identifier: Apache-2.0
"""Running programs."""

import os
import sys

import pytest

from vgpuctl.host import commands


def python(code, **options):
    return commands.run_command([sys.executable, "-c", code], **{"deadline_seconds": 30, **options})


def test_status_and_both_streams_come_back():
    result = python("import sys; print('out'); print('why\\n\\nlast ', file=sys.stderr); sys.exit(3)")
    assert (result.status, result.stdout, result.error_line) == (3, "out\n", "last")
    assert python("import sys; sys.exit(4)").error_line == "it ended with status 4"


def test_it_can_be_given_input_and_otherwise_has_none():
    code = "import sys; print(sys.stdin.read())"
    assert python(code, stdin="a").stdout == "a\n"
    assert python(code).stdout == "\n"


def test_its_language_is_fixed_and_its_session_its_own():
    code = "import os; print(os.environ['LC_ALL'], sorted(os.environ), os.getsid(0) == os.getpid())"
    result = python(code).stdout
    assert result.startswith("C [")
    assert "HOME" not in result
    assert result.endswith("True\n")


def test_no_shell_reads_the_arguments():
    assert (
        commands.run_command(
            [sys.executable, "-c", "import sys; print(sys.argv[1])", "$(id); *"], deadline_seconds=30
        ).stdout
        == "$(id); *\n"
    )


def test_a_name_without_its_directory_is_refused():
    with pytest.raises(ValueError, match="absolute"):
        commands.run_command(["qemu-img"], deadline_seconds=1)


def test_what_is_not_installed_is_an_oserror():
    with pytest.raises(FileNotFoundError):
        commands.run_command(["/no/such/command"], deadline_seconds=1)


def test_the_deadline_kills_the_child_alone_and_does_not_wait_for_what_it_started(tmp_path):
    fifo, mine = tmp_path / "fifo", tmp_path / "pid"
    os.mkfifo(fifo)
    # The grandchild keeps the child's pipes open, and itself waits in the FIFO.
    code = '(printf alive > "$1") & echo $$ > "$2"; wait'
    with pytest.raises(TimeoutError, match="did not end"):
        commands.run_command(["/bin/sh", "-c", code, "sh", str(fifo), str(mine)], deadline_seconds=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(mine.read_text()), 0)
    assert fifo.read_bytes() == b"alive"


def test_commands_are_looked_for_where_the_system_installs_them():
    assert commands.find_command("sh") == "/usr/bin/sh"
    assert commands.find_command("no-such-command-here") is None


def watched(code, report):
    return commands.run_watched([sys.executable, "-c", code], report)


def test_a_watched_command_reports_its_output_and_ends_with_its_status():
    seen = []
    result = watched("import sys; print('1%', flush=True); print('why', file=sys.stderr); sys.exit(3)", seen.append)
    assert (result.status, result.error_line) == (3, "why")
    assert "".join(seen) == "1%\n"


def test_a_watched_command_that_says_nothing_is_reported_too(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    seen = []

    def report(text):
        seen.append(text)
        fifo.write_text("go on")

    assert watched(f"open({str(fifo)!r}).read()", report).status == 0
    assert seen == [""]


def test_a_watched_command_dies_when_its_report_raises():
    pids = []

    def report(text):
        if text:
            pids.append(int(text))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched("import os, signal; print(os.getpid(), flush=True); signal.pause()", report)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)

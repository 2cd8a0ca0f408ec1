# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller demo`: what it tells, that its controller can be asked, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import jsonschema
import pytest

from vgpuctl.cli import schemas


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short path: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="demo-") as path:
        yield Path(path)


@contextmanager
def demo(directory: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a demonstration whose files are in a directory."""
    argv = [sys.executable, "-m", "vgpuctl", "controller", "demo", *words]
    process = subprocess.Popen(
        argv,
        env={**os.environ, "TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def agents(directory: Path) -> list[str]:
    """Return the command lines of the processes that have a directory in them."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended
    return [line for line in lines if f"{directory}/" in line]


def test_an_hour_is_told_and_nothing_is_left(directory: Path) -> None:
    with demo(directory, "--once", "--json") as process:
        out, err = process.communicate(timeout=180)
    asked_as_it_dies = r"gpu0\d does not say what it has room for: the host agent does not answer at .*\n"
    assert (process.returncode, re.sub(asked_as_it_dies, "", err, count=1)) == (0, "")
    document = json.loads(out)
    jsonschema.validate(document, schemas.document_schema("controller-demo"))
    events = document["data"]["events"]
    text = "\n".join(event["text"] for event in events)
    for pattern in (
        r"^ready: office-01, office-02$", r"^ada gets office-0\d on gpu0\d at \d+\.\d+\.\d+\.\d+, and logs on$",
        r"^the schedule .* begins 5 minutes early; ready: (office-\d\d(, )?){4}$", r"^ada logs off from office-0\d$",
        r"is refreshed for the next user$", r"^(office-\d\d(, )?){4} have it; office-0\d gets it when bob",
        r"^gpu0\d has not answered for 45 s", r"^after 10 minutes its spare desktops are replaced",
        r"^gpu0\d answers again", r"^bob keeps office-\d\d, where he is logged on; office-\d\d is nobody's any more$",
        r"^an hour is over: 4 desktops are ready, 2 have users",
    ):  # fmt: skip
        assert re.search(pattern, text, re.MULTILINE), (pattern, text)
    times = [event["time"] for event in events]
    assert times == sorted(times)
    assert (times[0], times[-1][:4]) == ("07:40", "08:4")
    assert list((directory).iterdir()) == []
    assert agents(directory) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_its_controller_can_be_asked_until_it_is_ended(directory: Path, number: signal.Signals) -> None:
    with demo(directory) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = iter(process.stdout.readline, "")
        page = next(line.strip() for line in shown if "http://127.0.0.1:" in line)
        admin, ada = re.findall(r"as (\w+) with (\S+)", next(shown))
        socket = next(line.split("=", 1)[1].strip() for line in shown if "export VGPUCTL_CONTROLLER=" in line)
        assert "runs on" in process.stderr.readline()
        assert len(agents(directory)) == 4
        done = subprocess.run(
            [sys.executable, "-m", "vgpuctl", "controller", "list-hosts", "--controller", socket, "-o", "name"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.split() == ["gpu01", "gpu02", "gpu03", "gpu04"], done.stderr
        for (name, password), words in ((admin, "gpu04"), (ada, "Take a desktop")):
            form = urlencode({"user": name, "password": password, "path": "/hosts" if name == "admin" else "/my"})
            browser = build_opener(HTTPCookieProcessor())
            assert words in browser.open(f"{page}sign-in", form.encode(), timeout=30).read().decode()
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert list((directory).iterdir()) == []
    assert agents(directory) == []


def test_one_that_is_stopped_while_it_tells_leaves_nothing(directory: Path) -> None:
    with demo(directory, "--once") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("07:40")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (130, False), err
    assert list((directory).iterdir()) == []
    assert agents(directory) == []


def test_a_host_that_does_not_start_is_named_with_its_reason(directory: Path) -> None:
    deep = directory / ("d" * 90)  # the path of a socket in it would be too long
    deep.mkdir()
    with demo(deep) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the agent of gpu01 does not answer" in err
    assert "too long" in err
    assert "Traceback" not in err
    assert list(deep.iterdir()) == []

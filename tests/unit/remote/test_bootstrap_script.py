# SPDX-License-Identifier: Apache-2.0
"""The program that is sent to a host, run as on a host: by the system's Python, with nothing of this checkout."""

from __future__ import annotations

import fcntl
import hashlib
import json
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vgpuctl.remote import bootstrap_script, ssh_session

PROGRAM = Path(bootstrap_script.__file__)
PYTHON = "/usr/bin/python3"
REFUSES = """#!python
import json, sys
if "--version" in sys.argv:
    sys.exit(print("vgpuctl 1.0"))
error = {"code": "refused", "message": "no", "hint": None, "facts": {}, "exit_status": 3, "undone": [], "left": []}
print(json.dumps({"schema": "vgpuctl/1", "kind": "install-host", "ok": False, "error": error}))
"""
WORKS = """#!python
import json, sys
if "--version" in sys.argv:
    sys.exit(print("vgpuctl 1.0"))
print(json.dumps({"schema": "vgpuctl/1", "kind": "install-host", "ok": True, "data": {"steps": ["write hook"]}}))
"""
WAITS = """#!python
import signal, sys
if "--version" in sys.argv:
    sys.exit(print("vgpuctl 1.0"))
print("waiting", file=sys.stderr, flush=True)
signal.alarm(60)
signal.pause()
"""
DIES = """#!python
import os, sys
if "--version" in sys.argv:
    sys.exit(print("vgpuctl 1.0"))
os.kill(os.getpid(), 9)
"""
OLD = '#!/bin/sh\necho "vgpuctl 0.5"\n'


VERSION = "1.0-1"
APT = """#!/bin/sh
echo "$@" >PLACE/apt-words
[ ! -e PLACE/apt-fails ] || { echo "E: no room" >&2; exit 100; }
mkdir -p PLACE/usr/bin
cp PLACE/program PLACE/usr/bin/vgpuctl
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A host with stand-ins for apt-get and dpkg-query, on which nothing is installed."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/apt-get").write_text(APT.replace("PLACE", str(tmp_path)))
    (tmp_path / "tools/apt-get").chmod(0o755)
    install(tmp_path, None)
    return tmp_path


def install(place: Path, version: str | None, program: str = WORKS) -> None:
    """Let dpkg-query name a version on a host, and the package contain this program."""
    answer = f"echo 'installed {version}'" if version else "exit 1"
    (place / "tools/dpkg-query").write_text(f"#!/bin/sh\n{answer}\n")
    (place / "program").write_text(program.replace("#!python", f"#!{PYTHON}"))
    for path in (place / "tools/dpkg-query", place / "program"):
        path.chmod(0o755)


def input_for(place: Path, act: str, content: bytes = b"a package", **more: Any) -> bytes:
    """Return the input of a host: the request and the package."""
    file = {"name": "vgpuctl.deb", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    request = {
        "act": act, "lock": str(place / "lock"), "version": VERSION, "words": ["install-host"], "package": file,
        "progress": False, "prefix": str(place / "usr"), **more,
    }  # fmt: skip
    return b"".join([json.dumps(request).encode(), b"\n", content if act == "install" else b""])


def run(place: Path, stdin: bytes, *front: str, tools: str | None = None) -> dict[str, Any]:
    """Run the program and return the document that it prints."""
    words = [*front, PYTHON, "-I", str(PROGRAM)]
    env = {"PATH": f"{place}/tools:{place}/usr/bin:/usr/bin:/bin" if tools is None else tools}
    done = subprocess.run(words, input=stdin, env=env, capture_output=True, timeout=300, check=False)
    assert done.stdout, done.stderr.decode()
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if result["ok"] else result["error"]["exit_status"])
    return result


def error(place: Path, stdin: bytes, *front: str, **more: Any) -> dict[str, Any]:
    """Run the program and return its error."""
    result: dict[str, Any] = run(place, stdin, *front, **more)["error"]
    return result


def copies() -> list[Path]:
    """Return the directories with copies of packages."""
    return list(Path(bootstrap_script.COPY_PARENT).glob(f"{bootstrap_script.COPY_PREFIX}*"))


def test_the_line_for_the_shell_finds_a_python_that_reads_its_program_from_standard_input(place: Path) -> None:
    program = PROGRAM.read_bytes()
    line = ssh_session.python_line(len(program), "root")
    done = subprocess.run(
        ["/bin/sh", "-c", line], input=program + input_for(place, "probe"), capture_output=True, check=True,
        env={"PATH": f"{place}/tools:/usr/bin:/bin"},
    )  # fmt: skip
    text = ssh_session.split_output(done.stdout)
    assert text is not None
    assert json.loads(text[2])["data"]["present"] is False


@pytest.mark.parametrize(("installed", "present"), [(VERSION, True), ("0.9-1", False), (None, False)])
def test_a_probe_changes_nothing(place: Path, installed: str | None, present: bool) -> None:
    install(place, installed)
    result = run(place, input_for(place, "probe"))
    steps = [] if present else ["copy vgpuctl.deb (1 MiB)", "apt-get install vgpuctl.deb"]
    assert result["data"] == {"present": present, "was": installed, "steps": steps}
    assert result["changed"] is False
    assert not (place / "apt-words").exists()


@pytest.mark.parametrize("newer", ["1.0-2", "1.0.1-1", "1:0.1-1", "1.1~rc1-1"])
def test_an_older_package_than_the_installed_one_is_refused(place: Path, newer: str) -> None:
    install(place, newer)
    refused = error(place, input_for(place, "probe"))
    assert (refused["code"], refused["exit_status"]) == ("refused", 3)
    assert refused["message"].startswith(f"its vgpuctl {newer} is newer than 1.0-1 of vgpuctl.deb: ")


def test_an_installation_runs_apt_and_install_host(place: Path) -> None:
    install(place, "0.9-1")
    result = run(place, input_for(place, "install"))
    assert result["data"]["brought"] == {"version": VERSION, "was": "0.9-1"}
    assert result["data"]["steps"] == ["copy vgpuctl.deb (1 MiB)", "apt-get install vgpuctl.deb", "write hook"]
    assert "install --no-install-recommends --reinstall" in (place / "apt-words").read_text()
    assert copies() == []


def test_the_host_agent_gets_its_libraries(place: Path) -> None:
    libraries = "python3-starlette python3-uvicorn python3-wsproto"
    result = run(place, input_for(place, "install", words=["install-host", "--agent"]))
    assert result["data"]["steps"][1] == f"apt-get install vgpuctl.deb {libraries}"
    assert (place / "apt-words").read_text().endswith(f"vgpuctl.deb {libraries}\n")


def test_a_package_that_apt_refuses_is_reported_with_its_words(place: Path) -> None:
    (place / "apt-fails").touch()
    refused = error(place, input_for(place, "install"))
    assert (refused["code"], refused["facts"]["lines"]) == ("failed", ["E: no room"])


def test_a_package_with_another_program_is_reported(place: Path) -> None:
    install(place, None, OLD)
    refused = error(place, input_for(place, "install"))
    assert refused["message"] == f"{place}/usr/bin/vgpuctl is not 1.0"


def test_a_host_without_apt_gets_no_package(place: Path) -> None:
    refused = error(place, input_for(place, "probe"), tools=str(place / "usr/bin"))
    assert (refused["code"], refused["exit_status"], refused["facts"]["check"]) == ("host-cannot", 6, "apt")


def test_another_vgpuctl_in_path_is_refused(place: Path) -> None:
    (place / "tools/vgpuctl").write_text(OLD)
    (place / "tools/vgpuctl").chmod(0o755)
    assert error(place, input_for(place, "probe"))["code"] == "unmanaged"


def test_an_interrupted_query_is_not_reported_as_missing(place: Path) -> None:
    (place / "tools/dpkg-query").write_text("#!/bin/sh\nkill -INT $PPID\nexec sleep 600\n")
    assert error(place, input_for(place, "probe"))["code"] == "interrupted"


def test_two_do_not_work_at_once(place: Path) -> None:
    with open(place / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("process 4242")
        held.flush()
        result = error(place, input_for(place, "install"))
    assert (result["code"], result["message"]) == ("locked", "process 4242 is installing vgpuctl")


def test_a_lock_that_is_a_link_is_not_followed(place: Path) -> None:
    (place / "lock").symlink_to(place / "elsewhere")
    assert error(place, input_for(place, "install"))["facts"]["path"] == f"{place}/lock"
    assert not (place / "elsewhere").exists()


def test_no_user_can_open_the_lock_but_root(place: Path) -> None:
    run(place, input_for(place, "install"))
    assert stat.S_IMODE((place / "lock").stat().st_mode) == 0o600


def test_a_package_that_does_not_arrive_whole_is_not_installed(place: Path) -> None:
    whole = input_for(place, "install")
    assert "did not arrive completely: 7 bytes are missing" in error(place, whole[:-7])["message"]
    assert "did not arrive completely: 0 bytes are missing" in error(place, whole[:-1] + b"?")["message"]
    assert not (place / "apt-words").exists()
    assert copies() == []


def test_a_full_disk_names_the_file_and_leaves_nothing(place: Path) -> None:
    big = input_for(place, "install", bytes(1 << 20))
    result = error(place, big, "/bin/sh", "-c", 'ulimit -f 100; exec "$@"', "sh")
    assert (result["code"], Path(result["facts"]["path"]).name) == ("os-error", "vgpuctl.deb")
    assert copies() == []


def test_the_error_of_install_host_is_the_hosts(place: Path) -> None:
    install(place, None, REFUSES)
    assert error(place, input_for(place, "install"))["code"] == "refused"


def test_an_install_host_that_dies_may_have_left_something(place: Path) -> None:
    install(place, None, DIES)
    result = error(place, input_for(place, "install"))
    assert (result["code"], result["exit_status"], len(result["left"])) == ("partly-applied", 5, 1)
    assert "ended with -9 and no result" in result["message"]


def test_a_stop_is_handed_on_to_install_host(place: Path) -> None:
    install(place, None, WAITS)
    pipe, env = subprocess.PIPE, {"PATH": f"{place}/tools:/usr/bin:/bin"}
    with subprocess.Popen([PYTHON, "-I", str(PROGRAM)], stdin=pipe, stdout=pipe, stderr=pipe, env=env) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(input_for(place, "install"))
        child.stdin.flush()
        assert child.stderr.readline() == b"waiting\n"
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    assert (json.loads(out)["error"]["code"], child.returncode) == ("interrupted", 130)

# SPDX-License-Identifier: Apache-2.0
"""The program that is sent to a host, run as on a host: by the system's Python, with nothing of this checkout.

Size: each test runs the one program once more, with another host or another fault.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vgpuctl.remote import bootstrap_script, ssh_session

PROGRAM = Path(bootstrap_script.__file__)
PYTHON = "/usr/bin/python3"
METADATA = "Metadata-Version: 2.1\nName: vgpuctl\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
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
import os, subprocess, sys
if "--version" in sys.argv:
    if os.path.exists("BEGINS"):
        os.symlink("/bin/sleep", "BEGINS/bin/python")
        child = subprocess.Popen(["BEGINS/bin/python", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not open(f"/proc/{child.pid}/cmdline").read():
            pass  # Popen returns when exec closes its pipe; the kernel fills cmdline a little later
    sys.exit(print("vgpuctl 1.0"))
os.kill(os.getpid(), 9)
"""
OLD = '#!/bin/sh\necho "vgpuctl 0.5"\n'


def input_for(place: Path, act: str, *wheels: Path, **more: Any) -> bytes:
    """Return the input of a host: the request and the wheels."""
    contents = [wheel.read_bytes() for wheel in wheels]
    described = [
        {"name": wheel.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for wheel, content in zip(wheels, contents, strict=True)
    ]
    request = {
        "act": act, "directory": str(place / "opt/vgpuctl"), "link": str(place / "bin/vgpuctl"),
        "lock": str(place / "lock"), "referring": [], "version": "1.0", "digest": "d1", "has_libvirt": True,
        "oldest_python": [3, 11], "words": ["install-host"], "needs_bytes": 1,
        "wheels": described, "progress": False, **more,
    }  # fmt: skip
    return b"".join([json.dumps(request).encode(), b"\n", *contents])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A host's directories, without any vgpuctl."""
    (tmp_path / "opt").mkdir()
    (tmp_path / "bin").mkdir()
    return tmp_path


def run(stdin: bytes, *front: str, path: str = "/usr/bin:/bin") -> dict[str, Any]:
    """Run the program and return the document that it prints."""
    words = [*front, PYTHON, "-I", str(PROGRAM)]
    done = subprocess.run(words, input=stdin, env={"PATH": path}, capture_output=True, timeout=300, check=False)
    assert done.stdout, done.stderr.decode()
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if result["ok"] else result["error"]["exit_status"])
    return result


def error(stdin: bytes, *front: str, **more: Any) -> dict[str, Any]:
    """Run the program and return its error."""
    result: dict[str, Any] = run(stdin, *front, **more)["error"]
    return result


def old_one(place: Path, *, mark: str | None = None) -> Path:
    """Create an environment with an older vgpuctl; a mark means that this program created it."""
    directory = place / "opt/vgpuctl"
    made = directory.with_name("vgpuctl-0.5-abc") if mark else directory
    (made / "bin").mkdir(parents=True)
    (made / "pyvenv.cfg").touch()
    (made / "bin/vgpuctl").write_text(OLD)
    (made / "bin/vgpuctl").chmod(0o755)
    if mark:
        (made / bootstrap_script.MARKER).write_text(mark)
        directory.symlink_to(made.name)
    return made


def wheel(directory: Path, script: str) -> Path:
    """Write a wheel of a vgpuctl that is only a script."""
    path = directory / "vgpuctl-1.0-py3-none-any.whl"
    files = {"dist-info/METADATA": METADATA, "dist-info/WHEEL": WHEEL, "data/scripts/vgpuctl": script}
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            entry = zipfile.ZipInfo(f"vgpuctl-1.0.{name}")
            entry.external_attr = (stat.S_IFREG | 0o755) << 16
            made.writestr(entry, text)
        made.writestr("vgpuctl-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in made.namelist()))
    return path


def names(place: Path) -> list[str]:
    """Return the entries of /opt."""
    return sorted(path.name for path in (place / "opt").iterdir())


def test_the_line_for_the_shell_finds_a_python_that_reads_its_program_from_standard_input(place: Path) -> None:
    program = PROGRAM.read_bytes()
    line = ssh_session.python_line(len(program), "root")
    done = subprocess.run(
        ["/bin/sh", "-c", line], input=program + input_for(place, "look"), capture_output=True, check=True
    )
    text = ssh_session.split_output(done.stdout)
    assert text is not None
    assert json.loads(text[2])["data"]["present"] is False


def test_a_look_request_changes_nothing(place: Path) -> None:
    old_one(place, mark='{"digest": "d0"}')
    result = run(input_for(place, "look"))
    assert (result["data"]["was"], result["changed"], len(result["data"]["steps"])) == ("0.5", False, 4)
    assert names(place) == ["vgpuctl", "vgpuctl-0.5-abc"]


@pytest.mark.parametrize(
    ("mark", "present"), [(None, True), ('{"digest": "d1"}', True), ('{"digest": "d2"}', False), ("broken", True)]
)
def test_the_same_version_is_there_unless_it_came_from_other_wheels(place: Path, mark: str, present: bool) -> None:
    old_one(place, mark=mark)
    assert run(input_for(place, "look", version="0.5"))["data"]["present"] is present


def test_one_that_does_not_run_is_none(place: Path) -> None:
    (old_one(place) / "bin/vgpuctl").write_text("#!/nowhere/python\n")
    assert run(input_for(place, "look", version="0.5"))["data"] | {"steps": 0} == {
        "present": False,
        "was": None,
        "steps": 0,
    }


def test_an_interrupted_check_is_not_reported_as_missing(place: Path) -> None:
    (old_one(place) / "bin/vgpuctl").write_text("#!/bin/sh\nkill -INT $PPID\nexec sleep 600\n")
    assert error(input_for(place, "look"))["code"] == "interrupted"


def test_unmanaged_files_are_refused(place: Path) -> None:
    (place / "other").mkdir()
    (place / "other/vgpuctl").write_text(OLD)
    (place / "other/vgpuctl").chmod(0o755)
    assert error(input_for(place, "look"), path=f"{place}/other:/bin")["message"].startswith(
        f"{place}/other/vgpuctl is an"
    )
    (place / "bin/vgpuctl").touch()
    assert error(input_for(place, "look"))["message"] == f"{place}/bin/vgpuctl is a file, not a link to a vgpuctl"
    (place / "opt/vgpuctl").mkdir()
    assert error(input_for(place, "bring"))["message"] == f"{place}/opt/vgpuctl is not a Python environment"


def test_too_little_space_is_reported_before_copying(place: Path) -> None:
    result = error(input_for(place, "bring", needs_bytes=1 << 60))
    assert (result["facts"]["check"], result["facts"]["needs_bytes"], result["exit_status"]) == ("space", 1 << 60, 6)
    assert names(place) == []


def test_a_python_too_old_for_the_wheel_is_reported_before_copying(place: Path) -> None:
    result = error(input_for(place, "look", oldest_python=[3, 99]))
    assert (result["facts"]["check"], result["exit_status"]) == ("python", 6)
    assert result["message"].endswith("and vgpuctl 1.0 needs 3.99 or newer")


@pytest.mark.parametrize("lacks", ["ensurepip", "venv"])
def test_a_python_that_makes_no_environments_names_the_package(place: Path, lacks: str) -> None:
    assert error(input_for(place, "look"), *hiding(place, lacks))["facts"]["check"] == "python3-venv"


def test_a_host_without_libvirts_module_names_the_package_unless_it_is_among_the_wheels(place: Path) -> None:
    words = hiding(place, "nothing")
    assert error(input_for(place, "look", has_libvirt=False), *words)["facts"]["check"] == "python3-libvirt"
    assert run(input_for(place, "look", has_libvirt=True), *words)["ok"]


def hiding(place: Path, name: str) -> list[str]:
    """Return the arguments that run a program with the standard library minus one module, and no packages."""
    (place / "lib").mkdir()
    for entry in Path(f"/usr/lib/python3.{sys.version_info[1]}").iterdir():
        if entry.stem != name:
            (place / "lib" / entry.name).symlink_to(entry)
    paths = f"sys.path[:] = ['{place}/lib', '{place}/lib/lib-dynload']"
    code = f"import sys, runpy; {paths}; runpy.run_path(sys.argv[-1], run_name='__main__')"
    return [PYTHON, "-I", "-S", "-c", code]


@contextlib.contextmanager
def running_from(environment: Path) -> Iterator[int]:
    """Run a process whose program is in this directory."""
    (environment / "bin/python").symlink_to("/bin/sleep")
    with subprocess.Popen([environment / "bin/python", "600"]) as child:
        try:
            yield child.pid
        finally:
            child.kill()


def test_an_environment_is_not_exchanged_under_a_process(place: Path) -> None:
    with running_from(old_one(place)) as pid:
        result = error(input_for(place, "look"))
    assert (result["code"], result["facts"]["pids"]) == ("busy", [pid])


def test_old_environments_go_unless_something_names_them(place: Path) -> None:
    stale = [place / f"opt/vgpuctl-0.{number}-x" for number in range(4)]
    for directory in stale:
        (directory / "bin").mkdir(parents=True)
        (directory / bootstrap_script.MARKER).write_text("{}")
    (stale[0] / bootstrap_script.MARKER).unlink()
    (place / "unit").write_text(f"ExecStart={stale[1]}/bin/python\n")
    (place / "opt" / f"{bootstrap_script.WHEELS_PREFIX}killed").mkdir()
    old_one(place, mark="{}")
    with running_from(stale[2]):
        error(input_for(place, "bring", needs_bytes=1 << 60, referring=[str(place / "unit"), "/nowhere/unit"]))
    assert names(place) == ["vgpuctl", "vgpuctl-0.0-x", "vgpuctl-0.1-x", "vgpuctl-0.2-x", "vgpuctl-0.5-abc"]


@contextlib.contextmanager
def kept_by_the_system(directory: Path) -> Iterator[None]:
    """Make a directory impossible to remove: something is mounted on a directory in it."""
    held = directory / "held"
    held.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", held], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", held], check=True)


@contextlib.contextmanager
def open_by_all(directory: Path) -> Iterator[int]:
    """Open a directory, which any user can do."""
    held = os.open(directory, os.O_RDONLY)
    try:
        yield held
    finally:
        os.close(held)


def test_two_do_not_work_at_once(place: Path) -> None:
    with open(place / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("process 4242")
        held.flush()
        result = error(input_for(place, "bring"))
    assert (result["code"], result["message"]) == (
        "locked",
        f"process 4242 is installing vgpuctl in {place}/opt/vgpuctl",
    )


def test_no_user_can_hold_the_lock_but_root(place: Path) -> None:
    """flock(2) needs no write permission: any process that opens a file or a directory can hold the lock."""
    with open_by_all(place / "opt") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert error(input_for(place, "bring", needs_bytes=1 << 60))["facts"]["check"] == "space"
    assert stat.S_IMODE((place / "lock").stat().st_mode) == 0o600


def test_a_lock_that_is_a_link_is_not_followed(place: Path) -> None:
    (place / "lock").symlink_to(place / "elsewhere")
    assert error(input_for(place, "bring"))["facts"]["path"] == f"{place}/lock"
    assert not (place / "elsewhere").exists()


def test_wheels_that_do_not_arrive_whole_are_not_installed(place: Path) -> None:
    whole = input_for(place, "bring", wheel(place, REFUSES))
    assert "did not arrive completely: 7 bytes are missing" in error(whole[:-7])["message"]
    assert "did not arrive completely: 0 bytes are missing" in error(whole[:-1] + b"?")["message"]
    assert names(place) == []


def test_a_full_disk_names_the_file_and_leaves_nothing(place: Path) -> None:
    big = place / "big-1.0-py3-none-any.whl"
    big.write_bytes(bytes(1 << 20))
    result = error(input_for(place, "bring", big), "/bin/sh", "-c", 'ulimit -f 100; exec "$@"', "sh")
    assert (result["code"], Path(result["facts"]["path"]).name) == ("os-error", big.name)
    assert names(place) == []


def test_when_install_host_refuses_the_old_one_stays(place: Path) -> None:
    old_one(place, mark="{}")
    result = error(input_for(place, "bring", wheel(place, REFUSES)))
    assert (result["code"], len(result["undone"])) == ("refused", 1)
    assert (names(place), list((place / "bin").iterdir())) == (["vgpuctl", "vgpuctl-0.5-abc"], [])


def test_it_takes_effect_at_the_end_even_if_opt_is_a_link(place: Path) -> None:
    (place / "var").mkdir()
    (place / "opt").rmdir()
    (place / "opt").symlink_to("var")
    old = old_one(place, mark="{}")
    (place / "bin").rmdir()
    (place / "bin").touch()
    request = input_for(place, "bring", wheel(place, WORKS))
    failed = error(request)
    assert (failed["code"], failed["facts"], len(failed["left"])) == ("partly-applied", {}, 1)
    assert names(place) == ["vgpuctl", old.name]

    (place / "bin").unlink()
    result = run(request)["data"]
    assert (result["brought"], len(result["steps"])) == ({"version": "1.0", "was": "0.5"}, 5)
    assert len(names(place)) == 2
    text = subprocess.run([place / "bin/vgpuctl", "--version"], capture_output=True, text=True, check=True)
    assert text.stdout == "vgpuctl 1.0\n"
    assert run(input_for(place, "look"))["data"]["present"] is True


def test_an_old_environment_that_cannot_be_removed_is_only_a_warning(place: Path) -> None:
    old = old_one(place, mark="{}")
    with kept_by_the_system(old):
        result = run(input_for(place, "bring", wheel(place, WORKS)))
        assert (result["changed"], result["data"]["brought"]) == (True, {"version": "1.0", "was": "0.5"})
        (reported,) = result["warnings"]
        assert reported.startswith(f"{old} is no longer needed, but could not be removed: ")
    error(input_for(place, "bring", needs_bytes=1 << 60))
    assert old.name not in names(place)


def test_a_process_that_begins_while_pip_works_keeps_its_environment(place: Path) -> None:
    old = old_one(place)
    try:
        result = error(input_for(place, "bring", wheel(place, DIES.replace("BEGINS", str(old)))))
    finally:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (entry / "cmdline").read_bytes().startswith(f"{old}/bin/python".encode()):
                    os.kill(int(entry.name), signal.SIGKILL)
    assert (result["code"], len(result["facts"]["pids"]), names(place)) == ("busy", 1, ["vgpuctl"])


def test_an_install_host_that_dies_may_have_left_something(place: Path) -> None:
    old_one(place)
    result = error(input_for(place, "bring", wheel(place, DIES)))
    assert (result["code"], result["exit_status"], len(result["left"])) == ("partly-applied", 5, 1)
    assert "ended with -9 and no result" in result["message"]
    assert names(place) == ["vgpuctl"]


def test_a_stop_is_handed_on_to_install_host_and_the_old_one_stays(place: Path) -> None:
    old_one(place)
    pipe = subprocess.PIPE
    with subprocess.Popen([PYTHON, "-I", str(PROGRAM)], stdin=pipe, stdout=pipe, stderr=pipe, cwd="/") as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(input_for(place, "bring", wheel(place, WAITS)))
        child.stdin.flush()
        assert child.stderr.readline() == b"waiting\n"
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    assert (json.loads(out)["error"]["code"], child.returncode) == ("interrupted", 130)
    assert names(place) == ["vgpuctl"]


DEB_VERSION = "1.0-1"
APT = """#!/bin/sh
echo "$@" >PLACE/apt-words
[ ! -e PLACE/apt-fails ] || { echo "E: no room" >&2; exit 100; }
mkdir -p PLACE/usr/bin
cp PLACE/program PLACE/usr/bin/vgpuctl
"""


def put_tools(place: Path, installed: str | None, program: str = WORKS) -> str:
    """Put stand-ins for apt-get and dpkg-query on a host, and return its PATH."""
    tools = place / "tools"
    tools.mkdir()
    answer = f"echo 'installed {installed}'" if installed else "exit 1"
    (place / "program").write_text(program.replace("#!python", f"#!{PYTHON}"))
    for name, text in (("apt-get", APT.replace("PLACE", str(place))), ("dpkg-query", f"#!/bin/sh\n{answer}\n")):
        (tools / name).write_text(text)
    for path in (*tools.iterdir(), place / "program"):
        path.chmod(0o755)
    return f"{tools}:{place}/usr/bin:/usr/bin:/bin"


def deb_input(place: Path, act: str, **more: Any) -> bytes:
    package = place / "vgpuctl.deb"
    package.write_bytes(b"a package")
    return input_for(place, act, *([package] if act == "bring-deb" else []), version=DEB_VERSION,
                     prefix=str(place / "usr"), **({"wheels": [{"name": "vgpuctl.deb", "bytes": 9}]}
                     if act == "look-deb" else {}), **more)  # fmt: skip


@pytest.mark.parametrize(("installed", "present"), [(DEB_VERSION, True), ("0.9-1", False), (None, False)])
def test_a_package_that_is_there_is_not_copied(place: Path, installed: str | None, present: bool) -> None:
    data = run(deb_input(place, "look-deb"), path=put_tools(place, installed))["data"]
    assert (data["present"], data["was"], bool(data["steps"])) == (present, installed, not present)
    assert not (place / "apt-words").exists()


def test_a_package_replaces_what_a_wheelhouse_brought(place: Path) -> None:
    old = old_one(place, mark="0.5")
    (place / "bin/vgpuctl").symlink_to(place / "opt/vgpuctl/bin/vgpuctl")
    result = run(deb_input(place, "bring-deb"), path=f"{place}/bin:{put_tools(place, None)}")
    assert result["data"]["brought"] == {"version": DEB_VERSION, "was": None}
    assert "install --no-install-recommends --reinstall" in (place / "apt-words").read_text()
    assert not (place / "bin/vgpuctl").is_symlink()
    assert not (place / "opt/vgpuctl").is_symlink()
    assert not old.exists()


def test_a_package_that_apt_refuses_is_reported_with_its_words(place: Path) -> None:
    path = put_tools(place, "0.9-1")
    (place / "apt-fails").touch()
    refused = error(deb_input(place, "bring-deb"), path=path)
    assert (refused["code"], refused["facts"]["lines"]) == ("failed", ["E: no room"])


def test_a_package_with_another_program_is_reported(place: Path) -> None:
    refused = error(deb_input(place, "bring-deb"), path=put_tools(place, None, OLD))
    assert refused["message"] == f"{place}/usr/bin/vgpuctl is not 1.0"


def test_a_host_without_apt_gets_no_package(place: Path, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    refused = error(deb_input(place, "look-deb"), path=str(tmp_path / "few"))
    assert (refused["code"], refused["exit_status"], refused["facts"]["check"]) == ("host-cannot", 6, "apt")


def test_another_vgpuctl_in_path_is_refused_before_a_package(place: Path) -> None:
    path = put_tools(place, None)
    (place / "tools/vgpuctl").write_text(OLD)
    (place / "tools/vgpuctl").chmod(0o755)
    assert error(deb_input(place, "look-deb"), path=path)["code"] == "unmanaged"

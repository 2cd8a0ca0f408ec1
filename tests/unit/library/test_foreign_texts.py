# SPDX-License-Identifier: Apache-2.0
"""Files of other hypervisors and of Kubernetes that are no text: where, and a command that runs as pasted."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from tests import foreign_vms as texts
from tests.callers import host_of
from tests.hosts import open_sim_host
from vgpuctl.errors import InvalidInput
from vgpuctl.library.foreign_files import read_vm_file

NAME = 'displayName = "Bür"\n'
LATER = f"# Büro\n  .Encoding = {{}}\n{NAME}"
NAMES = ("x.vmx", "-f $(id) 'x'.vmx")


@pytest.fixture
def host(tmp_path):
    return open_sim_host(tmp_path / "state")


def run_hint(error: InvalidInput, folder: Path) -> str:
    """Run the command of a hint in a folder and return what it prints."""
    command = str(error.hint).removeprefix("save it as UTF-8, like: ").removeprefix("remove it: ")
    return subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (NAME.encode("latin-1"), 1, "this is not UTF-8 text: byte 16 is wrong"),
        (f"a = 1\n{NAME}".encode("latin-1"), 2, "this is not UTF-8 text: byte 22 is wrong"),
        (NAME.encode("utf-16"), 1, "this is not UTF-8 text: byte 0 is wrong: it begins like UTF-16"),
        (b"\xfe\xff" + NAME.encode("utf-16-be"), 1, "this is not UTF-8 text: byte 0 is wrong: it begins like UTF-16"),
        (
            "a = 1\n".encode("utf-16-le") + b'd\0"\0"\0\n\0'[:0] + NAME.replace("ü", "u").encode("utf-16-le"),
            1,
            "it has a NUL byte",
        ),
        (NAME.replace("ü", "u").encode("utf-16-be"), 1, "it has a NUL byte"),
        (LATER.format('"ISO-8859-16"').encode("iso8859-16"), 2, ".encoding is 'iso-8859-16', which vgpuctl does not"),
        (LATER.format('"us-ascii"').encode("latin-1"), 1, ".encoding is 'us-ascii', but byte 3 is no such text"),
        (b'a = 1\ndisplayName = "Bu\x07r"\n', 2, "it has the control character"),
        (b'a = 1\ndisplayName = "Bu\rr"\n', 2, "it has a carriage return within the line"),
    ],
)
def test_the_hint_for_a_file_that_is_no_text_makes_one_that_is_read(
    host, tmp_path, monkeypatch, name, content, line, problem
):
    folder = tmp_path / "vms"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / name).write_bytes(content)
    with pytest.raises(InvalidInput) as raised:
        read_vm_file(host.ports, name)
    assert raised.value.message.startswith(f"{name}:{line}: {problem}")
    assert [fact["line"] for fact in raised.value.facts["problems"]] == [line]
    run_hint(raised.value, folder)
    (made,) = (path for path in folder.iterdir() if path.name != name)
    assert [vm.name for vm in read_vm_file(host.ports, str(made)).content.vms] in (["Bür"], ["Bur"])
    assert (folder / name).read_bytes() == content


def test_the_hint_for_a_binary_file_and_for_standard_input(host, tmp_path, monkeypatch):
    disk = tmp_path / "a b.vmdk"
    disk.write_bytes(b"KDMV\n\0\0")
    with pytest.raises(InvalidInput) as raised:
        read_vm_file(host.ports, str(disk))
    assert raised.value.message == f"{disk}:2: it has a NUL byte: this is no text file"
    assert raised.value.hint == f"file '{disk}' shows what it is"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("a\nü".encode("latin-1"))))
    with pytest.raises(InvalidInput, match=r"^standard input:2: this is not UTF-8 text: byte 2 is wrong") as raised:
        read_vm_file(host.ports, "-")
    assert raised.value.hint == "save it as UTF-8, like: iconv -f LATIN1 -t UTF-8"


def test_the_hint_for_an_ovf_in_an_ova_prints_it(host, tmp_path):
    text = texts.OVF.replace("desk-2<", "Büro<")
    path = texts.write_ova(tmp_path / "-x $(id).ova", ("a 'b.ovf", text.encode("latin-1")))
    with pytest.raises(InvalidInput) as raised:
        read_vm_file(host.ports, str(path))
    line = text[: text.index("ü")].count("\n") + 1
    assert raised.value.message.startswith(f"{path}:a 'b.ovf:{line}: this is not UTF-8 text: byte ")
    assert run_hint(raised.value, tmp_path) == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("codec", ["latin-1", "utf-16", "utf-16-le"])
def test_the_hint_for_a_manifest_makes_one_that_is_read(host, tmp_path, monkeypatch, name, codec):
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: train}\nspec:\n  containers:\n  - name: main\n"
    text = f"{pod}    env: [{{name: A, value: Bür}}]\n    resources: {{limits: {{nvidia.com/gpu: 1}}}}\n"
    text = text.replace("ü", "u") if codec == "utf-16-le" else text
    folder = tmp_path / "jobs"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / name).write_text(text, codec)
    calls = host_of(host, None)
    with pytest.raises(InvalidInput) as raised:
        calls.import_job([name])
    assert raised.value.message.startswith(f"{name}:{7 if codec == 'latin-1' else 1}: ")
    run_hint(raised.value, folder)
    (made,) = (path for path in folder.iterdir() if path.name != name)
    assert made.read_text() == text
    assert [job.name for job in calls.import_job([str(made)]).data] == ["train"]

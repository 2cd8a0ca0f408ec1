# SPDX-License-Identifier: Apache-2.0
"""The Debian package needs what pyproject.toml asks for, and each command has a manual page that roff reads whole."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

from tests.packaging import build, man_pages
from tests.unit.cli.command_tree import walk_commands

PROJECT = tomllib.loads((build.ROOT / "pyproject.toml").read_text())["project"]
REQUESTS = (".TH ", ".SH ", ".SS ", ".B ", ".BR ", ".TP", ".PP", ".nf", ".fi")


def test_the_package_depends_on_what_the_program_needs_or_has_it_inside() -> None:
    bundled = set(re.findall(r"^([\w-]+)==", build.BUNDLED.read_text(), re.MULTILINE))
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["host"]]
    needed = dict(re.findall(r"^([\w.-]+)>=([\w.]+)", "\n".join(lines), re.MULTILINE))
    names = {
        name: f"python3-{name.removesuffix('-python')}" for name in needed if name.replace(".", "-") not in bundled
    }
    declared = {line.partition(" ")[0]: line for line in build.DEPENDS}
    assert set(names.values()) | {"python3", "passwd"} == declared.keys()
    for name in set(names) & {"click", "jinja2", "lxml"}:
        assert declared[names[name]] == f"{names[name]} (>= {needed[name]})"


def test_the_package_recommends_what_the_agent_needs() -> None:
    lines = PROJECT["optional-dependencies"]["agent"]
    names = [re.sub(r"^([a-z]+)>=([\d.]+)$", r"python3-\1 (>= \2)", line) for line in lines]
    assert set(names) <= set(build.RECOMMENDS)


@pytest.mark.parametrize("name", ["preinst", "postinst", "prerm", "postrm", "rtupdate"])
def test_maintainer_scripts_are_valid_shell(name: str) -> None:
    text = (build.DEBIAN / name).read_text().replace("#RUNNING#\n", (build.DEBIAN / "running.sh").read_text())
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)


def test_every_command_has_a_page() -> None:
    pages = man_pages.render_pages(0)
    assert pages.keys() == {"vgpuctl.1"} | {f"{name.replace(' ', '-')}.1" for name, _ in walk_commands()}
    assert "1970\\-01\\-01" not in pages["vgpuctl.1"]
    assert '"1970-01-01"' in pages["vgpuctl.1"]
    for name, text in pages.items():
        for line in text.splitlines():
            assert line.startswith(REQUESTS) or not line.startswith((".", "'")), (name, line)
        assert ".SH EXAMPLES" in text or name.count("-") == 0 or ".SH COMMANDS" in text

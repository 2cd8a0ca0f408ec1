# SPDX-License-Identifier: Apache-2.0
"""The inventory and the playbook of docs/howto/ansible.md run as they are pasted, on five simulated hosts."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.ansible.plays import ANSIBLE, PROGRAMS, ROOT, Ran, played


def test_the_playbook_for_simulated_hosts_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/ansible.md").read_text()
    files = {name: text for name, text in re.findall(r"```yaml\n# (\S+\.yml)\n(.*?)```", page, re.DOTALL)}
    assert list(files) == ["hosts.yml", "desktops.yml"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    path = f"{ANSIBLE}:{PROGRAMS}:{os.environ['PATH']}"

    def play(*arguments: str) -> Ran:
        ran = played(tmp_path, tmp_path / "hosts.yml", tmp_path / "desktops.yml", arguments, PATH=path)
        assert ran.status == 0, ran.output
        return ran

    for arguments in (("--check", "--diff"), ()):
        ran = play(*arguments)
        assert len(ran.changed) == 10, ran.output
    assert play().changed == []
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == [f"gpu-{n}" for n in range(1, 6)]

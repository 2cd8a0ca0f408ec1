# SPDX-License-Identifier: Apache-2.0
"""The role monitoring on a Prometheus server: the real promtool, and a stand-in for systemctl that notes reloads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ansible.plays import PROGRAMS, Ran, Site
from tests.monitoring.servers import PROGRAMS as PROMETHEUS

DEBIANS = """\
global:
  scrape_interval:     15s # Set the scrape interval to every 15 seconds.

# Load rules once and periodically evaluate them.
rule_files:
  # - "first_rules.yml"

scrape_configs:
  - job_name: 'prometheus'
    static_configs:
      - targets: ['localhost:9090']
"""
SYSTEMCTL = """\
#!/bin/sh
case $1 in
    show) printf 'Id=%s\\nLoadState=loaded\\nActiveState=active\\n' "$2" ;;
    reload) echo "reload $2" >> '{}' ;;
esac
"""


class Server:
    """A Prometheus server's directory, and the role that changes it."""

    def __init__(self, directory: Path, ansible: Path) -> None:
        self.site = Site(directory, {"gpu-1": "a100-40"}, ansible)
        self.directory = directory / "prometheus"
        self.directory.mkdir()
        self.config = self.directory / "prometheus.yml"
        self.config.write_text(DEBIANS)
        self.noted = directory / "noted"
        programs = directory / "bin"
        programs.mkdir()
        (programs / "systemctl").write_text(SYSTEMCTL.format(self.noted))
        (programs / "systemctl").chmod(0o755)
        self.path = f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"

    def run(self, *arguments: str, targets: tuple[str, ...] = ("127.0.0.1:19935",), **variables: str) -> Ran:
        given = {
            "monitoring_targets": targets,
            "monitoring_source": "gpu-1",
            "monitoring_vgpuctl": str(PROGRAMS / "vgpuctl"),
            "monitoring_directory": str(self.directory),
            "monitoring_promtool": str(PROMETHEUS / "promtool"),
            "monitoring_group": "root",
            **variables,
        }
        roles = [{"role": "vgpuctl.vgpuctl.monitoring", "vars": given}]
        environment = {**self.site.environment("gpu-1"), "PATH": self.path}
        play = {"hosts": "gpu_hosts", "gather_facts": False, "environment": environment, "roles": roles}
        path = self.site.directory / "play.yml"
        path.write_text(json.dumps([play]))
        return self.site.playbook(path, arguments)

    def files(self) -> dict[str, str]:
        """Return the text of each file in the directory."""
        paths = (path for path in self.directory.rglob("*") if path.is_file())
        return {str(path.relative_to(self.directory)): path.read_text() for path in paths}


@pytest.fixture
def server(tmp_path: Path, ansible: Path) -> Server:
    return Server(tmp_path, ansible)


def test_rules_and_job_are_added_once_and_prometheus_is_reloaded_once(server: Server) -> None:
    before = server.files()
    checked = server.run("--check", "--diff")
    assert checked.status == 0, checked.output
    assert (server.files(), server.noted.exists()) == (before, False)

    first = server.run()
    assert first.status == 0, first.output
    files = server.files()
    assert files.keys() == {"prometheus.yml", "vgpuctl-rules.yml"}
    assert "alert: GpuLost" in files["vgpuctl-rules.yml"]
    assert f"  - {server.directory}/vgpuctl-rules.yml\n" in files["prometheus.yml"]
    assert "  - job_name: vgpuctl\n    scrape_interval: 15s\n" in files["prometheus.yml"]
    assert "  - job_name: 'prometheus'\n" in files["prometheus.yml"]
    assert server.noted.read_text() == "reload prometheus.service\n"

    again = server.run()
    assert (again.status, again.changed) == (0, []), again.output
    assert server.noted.read_text() == "reload prometheus.service\n"


def test_a_configuration_that_prometheus_would_refuse_is_not_written(server: Server) -> None:
    """Targets on other machines need certificates, which are missing at first."""
    targets = ("gpu-01.example.org:19935", "gpu-02.example.org:19935")
    failed = server.run(targets=targets)
    (task,) = failed.failed
    assert f"{server.directory}/vgpuctl/client.pem: no such file" in task.result["msg"]
    assert "gpu-01.example.org" not in server.config.read_text()

    certificates = server.site.directory / "certificates"
    certificates.mkdir()
    for name in ("ca.pem", "client.pem", "client.key"):
        (certificates / name).write_text(name)
    done = server.run(targets=targets, monitoring_certificates=str(certificates))
    assert done.status == 0, done.output
    key = server.directory / "vgpuctl/client.key"
    assert (key.read_text(), oct(key.stat().st_mode & 0o7777)) == ("client.key", "0o640")
    assert (
        "    - targets:\n      - gpu-01.example.org:19935\n      - gpu-02.example.org:19935\n"
        in server.config.read_text()
    )

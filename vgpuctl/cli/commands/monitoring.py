# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl monitoring`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.run import CommandOutput
from vgpuctl.config.arguments import MONITORING_FILES


@make_command(
    "monitoring",
    examples=(
        ("vgpuctl monitoring --print rules > /etc/prometheus/vgpuctl-rules.yml", "alerts and recording rules"),
        (
            "vgpuctl monitoring --print scrape --target gpu-01.example.org:19935 --target gpu-02.example.org:19935",
            "a job for prometheus.yml that scrapes two hosts",
        ),
        ("vgpuctl monitoring --print dashboard:gpu > gpu.json", "a dashboard to import into Grafana"),
    ),
)
@click.option("--print", "name", metavar="WHAT", type=click.Choice(MONITORING_FILES), required=True, help="Which file.")
@click.option(
    "--target",
    "targets",
    metavar="HOST:PORT",
    multiple=True,
    help="An agent to scrape, for scrape and servicemonitor. [127.0.0.1:19935] Repeatable.",
)
@click.pass_obj
def monitoring(settings: Settings, name: str, targets: tuple[str, ...]) -> int:
    """Print a file for Prometheus, Alertmanager, Grafana or kube-prometheus. It reads only host.yaml.

    WHAT is rules, scrape, alertmanager, servicemonitor, or a dashboard: dashboard:fleet, dashboard:gpu, dashboard:vm,
    dashboard:capacity. In host.yaml, agent: alerts: has the thresholds of the alerts GpuHot and GpuBusy. Agents on
    other machines are scraped with certificates.
    """
    return run.call(
        settings,
        "monitoring",
        lambda host: host.monitoring(name, targets=targets),
        lambda result: CommandOutput(result, raw=result.data.text),
    )

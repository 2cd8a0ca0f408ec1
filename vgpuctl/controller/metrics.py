# SPDX-License-Identifier: Apache-2.0
"""The controller's metrics for Prometheus: what its pools and hosts are, at the moment of the scrape."""

from __future__ import annotations

from collections import Counter

from vgpuctl.controller.database.store import Store
from vgpuctl.controller.planning.phase import phase_of


def metrics_text(store: Store) -> str:
    """Return the metrics as Prometheus' text format has them."""
    now = store.now()
    hosts = {host.id: host for host in store.hosts.list()}
    lines = [
        "# HELP vgpuctl_fleet_desktops Desktops of a pool, by phase.",
        "# TYPE vgpuctl_fleet_desktops gauge",
    ]
    pools = store.pools.list()
    for pool in pools:
        desktops = store.desktops.of_pool(pool.id)
        words = Counter(phase_of(one, pool, hosts.get(one.host_id or ""), now).word for one in desktops)
        lines += [
            f'vgpuctl_fleet_desktops{{pool="{pool.name}",phase="{word}"}} {count}'
            for word, count in sorted(words.items())
        ]
    lines += ["# HELP vgpuctl_fleet_pool_active Whether a pool is active.", "# TYPE vgpuctl_fleet_pool_active gauge"]
    lines += [f'vgpuctl_fleet_pool_active{{pool="{pool.name}"}} {int(pool.state == "active")}' for pool in pools]
    lines += [
        "# HELP vgpuctl_fleet_host_seen_seconds How long ago a host's agent answered last.",
        "# TYPE vgpuctl_fleet_host_seen_seconds gauge",
    ]
    lines += [
        f'vgpuctl_fleet_host_seen_seconds{{host="{host.name}"}} {max(0.0, now - host.seen_at):.1f}'
        for host in hosts.values()
        if host.seen_at is not None
    ]
    lines += [
        "# HELP vgpuctl_fleet_host_held Whether a host waits for an admin.",
        "# TYPE vgpuctl_fleet_host_held gauge",
    ]
    lines += [f'vgpuctl_fleet_host_held{{host="{host.name}"}} {int(host.held is not None)}' for host in hosts.values()]
    return "\n".join(lines) + "\n"

# SPDX-License-Identifier: Apache-2.0
"""Compares `vgpuctl list-gpus` over SSH on ten hosts with one host. Each host runs a real sshd.

The ten test hosts share this machine's CPUs; ten real hosts have their own. So there are two measurements. In the
first, each host plays back the document of a real list-gpus, after the time that list-gpus takes. In the second, each
host runs the real list-gpus on the shared CPUs.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.conftest import Tell
from tests.bench.paired import paired, runs, seconds
from tests.remote.network import Host, Network

LIMIT = 2.0
HOSTS = 10
ON_A_HOST_SECONDS = 0.25
"""The time that list-gpus takes on a host with its own CPUs, including the start of Python."""
PLAYED = "#!/bin/sh\nsleep {seconds}\nexec cat {document}\n"


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Yield ten hosts with vgpuctl and ten that play back its output."""
    with tempfile.TemporaryDirectory(prefix="vgpuctl-bench-") as directory:
        document = Path(directory) / "document.json"
        played = PLAYED.format(seconds=ON_A_HOST_SECONDS, document=shlex.quote(str(document)))
        real = [Host(f"real-{number}") for number in range(HOSTS)]
        others = [Host(f"played-{number}", commands={"vgpuctl": played}) for number in range(HOSTS)]
        result = Network(Path(directory), [*real, *others])
        try:
            document.write_text(result.vgpuctl(*_hosts(result, "real", 1), "list-gpus", "--json").stdout)
            yield result
        finally:
            result.close()


@pytest.mark.parametrize(
    ("kind", "how"), [("played", "each answers after 0.25 s"), ("real", "all on this machine's CPUs")]
)
def test_list_gpus_over_ten_hosts(network: Network, bench: Tell, kind: str, how: str) -> None:
    ten, one = (network.argv(*_hosts(network, kind, number), "list-gpus", "--json") for number in (HOSTS, 1))
    _check(network, kind)
    env = network.environment()
    pair = paired(lambda: seconds(ten, env), lambda: seconds(one, env), runs(2, 15))
    bench(f"list-gpus over {HOSTS} SSH hosts, {how}", pair.ratio, LIMIT, f"{pair.medians()} of one host")


def _check(network: Network, kind: str) -> None:
    """Check that both sides do the same work: each of the ten returns the same document as the one."""
    one = json.loads(network.vgpuctl(*_hosts(network, kind, 1), "list-gpus", "--json").stdout)
    ten = json.loads(network.vgpuctl(*_hosts(network, kind, HOSTS), "list-gpus", "--json").stdout)
    assert [row["document"] for row in ten["data"]["hosts"]] == [one] * HOSTS


def _hosts(network: Network, kind: str, number: int) -> list[str]:
    return [f"--host=ssh://{network.hosts[f'{kind}-{n}'].address}" for n in range(number)]

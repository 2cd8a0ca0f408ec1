# SPDX-License-Identifier: Apache-2.0
"""The metrics: Prometheus' own parser reads them, each appears, nothing unknown is 0; and where they are served."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import EVERYTHING
from tests.agent import full_host
from tests.agent.conftest import ROOT
from tests.agent.test_growth import assert_same, objects, size_of
from tests.callers import host_of
from tests.hosts import EagerClock, SimulatedHost, open_sim_host
from tests.licenses import put_license, token_text
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.host_state import HostState
from vgpuctl.agent.metrics import FAMILIES, render_metrics
from vgpuctl.agent.metrics_text import PREFIX, Family, render
from vgpuctl.agent.usage_sampler import SampledUsage, UsageSampler
from vgpuctl.makers.nvidia_releases import support_end
from vgpuctl.model.event import EventType
from vgpuctl.model.numbers import format_utc
from vgpuctl.observe import observe
from vgpuctl.operations.usage import SCOPE, read_usage
from vgpuctl.value import replace

HOST = "sim:l40s-x4"
SAMPLES = 5760 if EVERYTHING else 120
"""A day of them, or half an hour."""
GPU = "0000:3b:00.0"
DAY = 86_400.0
LIVELY = """
version: 1
gpus: [{model: L40S, count: 2}]
nvidia: {guest_driver: "550.90.07"}
"""
PAGE = ROOT / "docs" / "reference" / "metrics.md"
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"
LABELS = {"agent": (), "gpu": ("gpu",), "profile": ("profile",), "vm": ("vm",), "vgpu": ("vm", "vgpu")}
"""The labels of each kind of thing."""
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: bytes) -> Series:
    """Return the samples, as Prometheus' parser reads them."""
    families = list(text_string_to_metric_families(text.decode()))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(series: Series, name: str, **labels: str) -> list[float]:
    """Return the values of a metric whose labels include these."""
    return [v for (n, own), v in series.items() if n == PREFIX + name and labels.items() <= dict(own).items()]


class Sampled:
    """A sampler of a simulated host, driven by hand."""

    def __init__(self, host: SimulatedHost) -> None:
        self.host = host
        self.calls = host_of(host, None)
        self.clock: Any = host.ports.clock
        self.events = EventLog(self.clock)
        assert host.ports.usage is not None
        self.sampler = UsageSampler(host.ports, SampledUsage(host.ports.usage), self.events)

    def next(self, seconds: float = 15.0) -> Series:
        """Take the next sample and return its metrics."""
        self.clock.seconds += seconds
        self.sampler.sample()
        return read(self.sampler.metrics)

    def types(self) -> list[str]:
        """Return the types of the events until now."""
        return [str(event.type) for event in self.events.since(None)]


@pytest.fixture
def sampled(tmp_path: Path) -> Sampled:
    """A host with two GPUs; VM `a` runs on the first."""
    host = open_sim_host(tmp_path, text=LIVELY)
    host_of(host, None).create_vm("a", profile="L40S-4Q", gpu=GPU, owner="ada", labels={"pool": "cad"})
    return Sampled(host)


# ------------------------------------------------------------------------ text


def test_the_samples_are_what_prometheus_reads(sampled: Sampled) -> None:
    series = sampled.next()
    assert value(series, "gpu_up", gpu=GPU) == [1]
    assert value(series, "vm_state", vm="a", state="running") == [1]
    assert value(series, "vm_info", vm="a", owner="ada", pool="cad", managed="true") == [1]
    assert value(series, "vgpu_memory_size_bytes", vm="a", vgpu="0") == [4 << 30]
    used = value(series, "vgpu_memory_used_bytes", vm="a")
    assert 0 < used[0] < 4 << 30
    assert value(series, "gpu_memory_used_bytes", gpu=GPU) == used
    assert value(series, "vgpu_guest_driver_info", vm="a", version="550.90.07", release="17", fit="supported") == [1]
    assert value(series, "driver_support_end_timestamp_seconds") == [support_end("550.90.05")]
    assert value(series, "gpu_memory_given_bytes", gpu=GPU) == [4 << 30]
    assert value(series, "profile_used", profile="L40S-4Q") == [1]
    assert value(series, "profile_capacity", profile="L40S-4Q") == [24]


def test_what_can_still_be_created_follows_each_change(sampled: Sampled) -> None:
    assert value(sampled.next(), "profile_free", profile="L40S-4Q") == [23]
    sampled.calls.create_vm("b", profile="L40S-4Q")
    assert value(sampled.next(), "profile_free", profile="L40S-4Q") == [22]
    sampled.calls.delete_vm("b")
    assert value(sampled.next(), "profile_free", profile="L40S-4Q") == [23]
    sampled.calls.cordon(GPU)
    assert value(sampled.next(), "profile_free", profile="L40S-4Q") == [12]


def test_what_is_unknown_is_absent(sampled: Sampled) -> None:
    sampled.calls.stop_vm("a")
    series = sampled.next()
    assert value(series, "vm_state", vm="a", state="stopped") == [1]
    assert value(series, "vm_state", vm="a", state="running") == []
    for name in ("vgpu_memory_used_bytes", "vgpu_license_state", "vgpu_engine_utilization_ratio", "vm_vgpus_missing"):
        assert value(series, name, vm="a") == [], name


def _write_token(host: SimulatedHost, expiry: float, name: str = "cad") -> Path:
    """Write the token of a license, which expires then; return it."""
    return put_license(host.sim.host_file.parent, name, a_tok=token_text(exp=expiry)) / "a.tok"


def test_a_token_that_ends_is_an_event_once_before_and_once_after(sampled: Sampled) -> None:
    _write_token(sampled.host, sampled.clock.now() + 31 * DAY)
    sampled.next()
    assert sampled.types() == []
    expiry = sampled.clock.now() + 30 * DAY
    token = _write_token(sampled.host, expiry)
    for seconds in (15, 15, 30 * DAY, 15):
        sampled.next(seconds)
        text = token.read_text()
        token.unlink()
        sampled.next()
        token.write_text(text)
    reasons = [e.reason for e in sampled.events.since(None) if e.type is EventType.LICENSE_ENDS]
    assert reasons == [
        f"the token of the license cad expires at {format_utc(int(expiry))}",
        f"the token of the license cad expired at {format_utc(int(expiry))}",
    ]
    _write_token(sampled.host, sampled.clock.now() + DAY)
    sampled.next()
    assert sampled.types()[-1] == "license-token-ends", "another token that ends is another event"


def test_a_token_and_the_host_lock_are_told(sampled: Sampled) -> None:
    series = sampled.next()
    assert value(series, "license_token_expiry_timestamp_seconds") == [], "there is no license"
    assert value(series, "host_lock_wait_seconds") == [0]
    token = _write_token(sampled.host, 1_800_000_000)
    _write_token(sampled.host, 1_900_000_000, "lab")
    with sampled.host.again().ports.claims.lock(1):
        series = sampled.next()
    assert value(series, "license_token_expiry_timestamp_seconds") == [1_800_000_000, 1_900_000_000]
    assert value(series, "host_lock_wait_seconds") == [1]
    token.write_text("rubbish")
    assert value(sampled.next(), "license_token_expiry_timestamp_seconds", license="cad") == [0]


def test_every_metric_can_be_told(sampled: Sampled) -> None:
    """A sample that knows everything, which no one source does."""
    ports = sampled.host.ports
    usage = read_usage(ports).data
    row, vgpu = usage.gpus[0], usage.vgpus[0]
    assert row.use is not None
    assert vgpu.use is not None
    counts = sampled.events.counts
    counts.note_xid(GPU, 31)
    counts.note_crash(str(vgpu.vm_uuid))
    counts.note_start(str(vgpu.vm_uuid))
    gpu_use = replace(
        row.use,
        clock_event_reasons=("hw-thermal",),
        retired_pages={"double-bit": 1},
        nvlink_errors={"replay": 2},
    )
    full = replace(
        usage,
        gpus=(replace(row, use=gpu_use, time_slice_ns=2_000_000), *usage.gpus[1:]),
        vgpus=(replace(vgpu, time_share=0.5, use=replace(vgpu.use, license_expiry=1e9, capture=vgpu.use.encoder)),),
    )
    snapshot = observe(ports, SCOPE)
    mig = open_sim_host(sampled.host.directory / "mig", "h100-mig")
    host_of(mig, None).set_mig(GPU, "1g.10gb:1")
    gpu = replace(snapshot.gpus[0], mig=observe(mig.ports, SCOPE).gpus[0].mig, desired_mode=snapshot.gpus[0].mode)
    state = HostState(
        version="1",
        usage=full,
        snapshot=replace(snapshot, gpus=(gpu, *snapshot.gpus[1:])),
        profiles=sampled.calls.list_profiles(everything=True).data,
        counts=counts.read(),
        source_errors={"nvml": 3},
        token_expiries={"cad": 1e9},
        lock_wait_seconds=0.1,
    )
    names = {name.removeprefix(PREFIX) for name, _ in read(render_metrics(state))}
    assert {family.name for family in FAMILIES} - names == set()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_follow_prometheus_guide(family: Family) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
    assert not re.search(r"(percent|milli|micro|_ms|_mib|_gib|_us|_mhz)(_|$)", family.name)
    assert not {"instance", "host", "job"} & {*family.labels}
    assert family.help.endswith(".") or family.help.count(":"), "a sentence, or what a number means"
    if any(word in family.name for word in ("memory_size", "memory_used", "memory_given", "memory_reserved")):
        assert family.name.endswith("_bytes")


def test_the_page_lists_every_metric() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    rows = [
        f"| `{PREFIX}{family.name}` | {', '.join((*LABELS[family.of], *family.labels))} | {family.help} |\n"
        for family in FAMILIES
    ]
    wanted = f"{before}{BEGIN}| metric | labels | meaning |\n|---|---|---|\n{''.join(rows)}{END}{after}"
    if os.environ.get("VGPUCTL_REGENERATE"):
        PAGE.write_text(wanted, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == wanted, "run the tests with VGPUCTL_REGENERATE=1"


def test_no_name_of_a_guest_breaks_a_line() -> None:
    evil = 'a"} 1\nvgpuctl_up 0\\\x1b[31m\u202e'
    family = Family("x", "Text.", "thing", ("word",), lambda _: {evil: 1})
    text = render((family,), {"thing": [("", None)]})
    assert len(text.splitlines()) == 3
    ((_, labels),) = read(text)
    assert dict(labels) == {"word": 'a"} 1vgpuctl_up 0\\[31m'}


# -------------------------------------------------------------------- bad days


def test_a_lost_gpu_is_down_and_the_others_go_on(tmp_path: Path) -> None:
    text = LIVELY + "faults: [{on: nvml-usage, match: '0000:3b:00.0', code: 15}]\n"
    series = Sampled(open_sim_host(tmp_path, text=text)).next()
    assert sorted(value(series, "gpu_up")) == [0, 1]
    assert value(series, "gpu_up", gpu=GPU) == [0]
    assert len(value(series, "gpu_power_watts")) == 1
    assert value(series, "gpus_expected") == [2]


def test_a_source_that_fails_is_counted(tmp_path: Path) -> None:
    text = LIVELY + "faults: [{on: nvml-usage, match: '*', message: broken}]\n"
    sampled = Sampled(open_sim_host(tmp_path, text=text))
    sampled.next()
    series = sampled.next()
    assert value(series, "agent_sample_errors_total", source="nvml") == [2]
    assert value(series, "gpu_up") == []
    assert value(series, "gpu_info", gpu=GPU) == [1]


@pytest.mark.parametrize("fault", ["faults: [{on: domains, match: '*'}]", "libvirt: {running: false}"])
def test_without_libvirt_the_gpus_are_still_told(tmp_path: Path, fault: str) -> None:
    text = f"{LIVELY}{fault}\n"
    series = Sampled(open_sim_host(tmp_path, text=text)).next()
    assert value(series, "agent_libvirt_up") == [0]
    assert value(series, "gpu_up", gpu=GPU) == [1]


def test_a_clock_that_steps_back_makes_no_events_and_nothing_negative(sampled: Sampled) -> None:
    sampled.next()
    series = sampled.next(-3600)
    assert min(series.values()) >= 0
    assert value(series, "agent_last_sample_timestamp_seconds") == [sampled.clock.now()]
    assert sampled.types() == []


def test_a_sample_that_cannot_be_read_is_counted_and_the_next_one_works(
    sampled: Sampled, caplog: pytest.LogCaptureFixture
) -> None:
    sampled.next()
    journal = sampled.host.sim.run_dir.parent / "journal"
    kept = journal.read_bytes()
    journal.write_bytes(b"{damaged\n")
    before = sampled.sampler.metrics
    sampled.next()
    assert sampled.sampler.metrics == before, "the last values stay; their time tells that they are old"
    journal.write_bytes(kept)
    assert value(sampled.next(), "agent_sample_errors_total", source="agent") == [1]
    assert "the use of GPUs is not read" in caplog.text


def test_xids_and_crashes_are_counted(sampled: Sampled) -> None:
    for _ in range(2):
        sampled.events.counts.note_xid(GPU, 79)
    uuid = sampled.calls.show_vm("a").data.uuid
    sampled.events.counts.note_crash(uuid)
    series = sampled.next()
    assert value(series, "gpu_xid_errors_total", gpu=GPU, xid="79") == [2]
    assert value(series, "gpu_xid_last_timestamp_seconds", xid="79") == [sampled.clock.now() - 15]
    assert value(series, "vm_crashes_total", vm="a") == [1]
    sampled.calls.stop_vm("a", force=True)
    sampled.calls.delete_vm("a")
    sampled.next()
    sampled.next()
    assert sampled.events.counts.read().crashes == {}


def test_during_a_change_of_a_layout_nothing_is_told_of_guests(sampled: Sampled) -> None:
    sampled.next()
    assert sampled.host.ports.usage is not None
    with sampled.host.ports.usage.pause():
        series = sampled.next()
        assert value(series, "agent_nvml_paused") == [1]
        assert value(series, "vgpu_memory_used_bytes") == []
        sampled.next()
    sampled.next()
    assert sampled.types() == ["nvml-paused"], "a driver that was not seen meanwhile did not start"


def test_a_guest_whose_driver_starts_is_an_event(sampled: Sampled) -> None:
    sampled.next()
    sampled.calls.create_vm("b", profile="L40S-4Q")
    sampled.next()
    assert sampled.types() == [], "a vGPU that the last sample did not have was no change of its driver"
    sampled.calls.stop_vm("a")
    sampled.next()
    sampled.calls.start_vm("a")
    sampled.next()
    assert [EventType(t) for t in sampled.types()] == [EventType.GUEST_DRIVER_UP]


# ---------------------------------------------------------------------- growth


def test_hours_of_samples_leave_nothing_behind(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=LIVELY, clock=EagerClock())
    host_of(host, None).create_vms("vm-{}", 8, profile="L40S-4Q")
    sampled = Sampled(host)
    keeps_its_size(sampled)


@pytest.mark.long
def test_a_day_of_samples_of_a_full_host_leaves_nothing_behind(tmp_path: Path) -> None:
    text = Path(full_host.write_scenario(tmp_path).removeprefix("sim:")).read_text()
    keeps_its_size(Sampled(open_sim_host(tmp_path / "host", text=text, clock=EagerClock())))


def keeps_its_size(sampled: Sampled) -> None:
    """Take samples; memory, descriptors and threads stay as they are after the first ones."""
    for _ in range(40):
        sampled.next()
    sampled.sampler.close()  # what waits to be written is no growth
    before = size_of(os.getpid(), objects)
    for _ in range(SAMPLES):
        sampled.clock.seconds += 15
        sampled.sampler.sample()
    sampled.sampler.close()
    assert_same(before, size_of(os.getpid(), objects), 50)

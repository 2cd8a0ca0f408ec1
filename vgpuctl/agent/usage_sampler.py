# SPDX-License-Identifier: Apache-2.0
"""Reads the use of the host's GPUs every 15 seconds, for `top`, for the metrics and for events.

    used = SampledUsage(host.usage)         # a reader's port: answers with the agent's last sample
    sampler = UsageSampler(replace(host, usage=used, snapshots=cache), events)
    await sampler.run()                     # until cancelled
    sampler.metrics                         # Prometheus' text, made once for each sample

A source that fails or hangs is named in the sample, and counted; the port answers all the same. So this is never a
reason to restart the agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from threading import Lock

from vgpuctl.agent.events import EventLog, shorten_reason
from vgpuctl.agent.host_state import HostState
from vgpuctl.agent.metrics import render_metrics
from vgpuctl.agent.usage_changes import compare_usage
from vgpuctl.config.license_token import EXPIRY_WARNING
from vgpuctl.errors import Locked, VgpuctlError
from vgpuctl.model.event import EventType
from vgpuctl.model.numbers import format_utc
from vgpuctl.model.results.gpus import ProfileResult
from vgpuctl.model.results.usage import UsageResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.usage import LICENSED, ProcessUse, ReaderProgram, UsageSample, UsageTarget, VgpuUse
from vgpuctl.model.vm import Vm
from vgpuctl.observe import observe, observe_devices
from vgpuctl.observe.licenses import read_token_expiries
from vgpuctl.operations.queries import profile_results
from vgpuctl.operations.usage import SCOPE, join, read_sample
from vgpuctl.ports.devices import UsageReader
from vgpuctl.ports.host import Host
from vgpuctl.value import Value, replace
from vgpuctl.version import __version__

log = logging.getLogger("vgpuctl.agent")

LOCK_SECONDS = 1.0
"""So long it waits for the host lock, to tell how long others hold it."""
SAMPLE_SECONDS = 15.0
"""Prometheus scrapes about as often; a sample of 4,096 vGPUs can take half of it (monitoring.md, measured)."""


class LicensedGuest(Value):
    """A VM whose guest is to have a license, and the use of its vGPUs; None where that is not known."""

    vm: Vm
    uses: tuple[VgpuUse | None, ...]

    @property
    def has_driver(self) -> bool:
        """Whether NVIDIA's driver runs in the guest."""
        return any(use is not None and use.guest_driver is not None for use in self.uses)

    @property
    def is_licensed(self) -> bool:
        """Whether all its vGPUs have a license."""
        return bool(self.uses) and all(use is not None and use.license_state == LICENSED for use in self.uses)


class SampledUsage:
    """The use of GPUs as the agent read it last. Implements `ports.devices.UsageReader`, for the agent's readers."""

    def __init__(self, reader: UsageReader) -> None:
        self._reader = reader
        self._lock = Lock()
        self._last: UsageSample | None = None

    def read(self, targets: tuple[UsageTarget, ...], programs: tuple[ReaderProgram, ...]) -> UsageSample:
        """Return the last sample. Before there is one, only these GPUs are read, and that is not kept."""
        return self._last or self._reader.read(targets, programs)

    def refresh(self, targets: tuple[UsageTarget, ...], programs: tuple[ReaderProgram, ...]) -> UsageSample:
        """Read a new sample, one caller at a time."""
        with self._lock:
            self._last = self._reader.read(targets, programs)
            return self._last

    def read_processes(self, gpu: str) -> tuple[ProcessUse, ...] | None:
        """Return the guests' processes that use a GPU, now."""
        return self._reader.read_processes(gpu)

    def pause(self) -> AbstractContextManager[None]:
        """Keep every reader of the host from opening a driver."""
        return self._reader.pause()


class UsageSampler:
    """Samples one host. `host`: with the agent's snapshots; its use is read through `usage`."""

    def __init__(self, host: Host, usage: SampledUsage, events: EventLog) -> None:
        self._host = replace(host, usage=None)
        self._usage = usage
        self._events = events
        self._errors: Counter[str] = Counter()
        self._seen_gpus: frozenset[str] = frozenset()
        self._snapshot: Snapshot | None = None
        self._profiles: tuple[ProfileResult, ...] | None = None
        """What can still be created, as `_snapshot` says: computed again only after a change."""
        self._last: UsageResult | None = None
        """The last sample that all sources answered: two of those are compared."""
        self._is_paused = False
        self._token_notices: dict[str, tuple[float, bool] | None] = {}
        """By license, the expiry of a token that ends soon or has ended, and whether it has; as published last."""
        self._text = b""

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await asyncio.to_thread(self.sample)
            await asyncio.sleep(SAMPLE_SECONDS)

    @property
    def metrics(self) -> bytes:
        """The metrics of the last sample; empty before the first one."""
        return self._text

    def read_licenses(self) -> tuple[float, tuple[LicensedGuest, ...]]:
        """Return the VMs whose record names a license, as they were at the last sample, and when that was; 0: none."""
        sample, snapshot = self._last, self._snapshot
        if sample is None or snapshot is None:
            return 0.0, ()
        uses: dict[str | None, list[VgpuUse | None]] = {}
        for row in sample.vgpus:
            uses.setdefault(row.vm_uuid, []).append(row.use)
        vms = [vm for vm in snapshot.vms if vm.record is not None and vm.record.requested("license", str) is not None]
        return sample.time, tuple(LicensedGuest(vm, tuple(uses.get(vm.uuid, ()))) for vm in vms)

    def sample(self) -> None:
        """Read the use of the GPUs once. It never raises: the next sample may succeed."""
        try:
            self._sample()
        except Exception as error:  # noqa: BLE001 - whatever a host's files hold, the agent goes on
            self._errors["agent"] += 1
            log.warning("the use of GPUs is not read: %s", error)

    def _sample(self) -> None:
        snapshot = self._snapshot or self._observe()
        sample = read_sample(self._host, snapshot, self._usage.refresh)
        if self._snapshot is None or not (sample.nvml_hangs or sample.nvml_paused):
            snapshot = self._observe()  # else whoever asks the driver may hang, or hold up a change of a GPU's layout
        self._errors.update(sample.failed_sources.keys())
        result = join(self._host, snapshot, sample)
        known = frozenset(vm.uuid for vm in snapshot.vms)
        if not snapshot.unread_texts and self._snapshot is not None:
            earlier = frozenset(vm.uuid for vm in self._snapshot.vms)
            self._events.counts.forget_vms(known | earlier)  # one that has just started may be in neither alone
        if self._profiles is None or snapshot != self._snapshot:
            shown = tuple(gpu for gpu in snapshot.gpus if gpu.is_display_class)
            self._profiles = profile_results(snapshot, shown, everything=True)
        self._snapshot = snapshot
        state = self._state(snapshot, result, self._profiles)
        self._text = render_metrics(state)
        self._report_tokens(state.token_expiries)
        if sample.nvml_paused and not self._is_paused:
            self._events.publish(EventType.NVML_PAUSED, reason="vgpuctl changes the layout of a GPU")
        self._is_paused = sample.nvml_paused
        if not (sample.nvml_paused or sample.failed_sources):
            before, self._last = self._last, result
            for change in () if before is None else compare_usage(before, result):
                change.publish(self._events)
        self._add_to_history(result)

    def _report_tokens(self, expiries: Mapping[str, float]) -> None:
        """Publish once for each license that its token expires soon, and once that it has expired.

        A license that is missing here, or cannot be used, perhaps gets a new token at this moment: its notice stays.
        """
        for name, expiry in expiries.items():
            if not expiry:
                continue
            left = expiry - self._host.clock.now()
            notice = (expiry, left < 0) if left < EXPIRY_WARNING.total_seconds() else None
            if notice not in (None, self._token_notices.get(name)):
                word = "expired" if left < 0 else "expires"
                reason = f"the token of the license {name} {word} at {format_utc(int(expiry))}"
                self._events.publish(EventType.LICENSE_ENDS, reason=reason)
            self._token_notices[name] = notice

    def _add_to_history(self, result: UsageResult) -> None:
        """Add a sample, and publish when the history cannot be written, and when it can again."""
        history = self._host.usage_history
        if history is None:
            return
        before = history.problem
        history.add(result)
        if history.problem is not None and before is None:
            self._events.publish(EventType.HISTORY_PROBLEM, reason=shorten_reason(history.problem))
        elif before is not None and history.problem is None:
            self._events.publish(EventType.HISTORY_BACK)

    def close(self) -> None:
        """Write what the history has not written yet."""
        if self._host.usage_history is not None:
            self._host.usage_history.flush()

    def _observe(self) -> Snapshot:
        """Return a snapshot; without VMs if libvirt fails, for the GPUs are there all the same."""
        try:
            return observe(self._host, SCOPE)
        except VgpuctlError as error:
            log.warning("the VMs cannot be listed: %s", error)
            status = replace(self._host.hypervisor.status(), available=False, reason=str(error))
            return observe_devices(self._host, SCOPE, vms=(), status=status)

    def _state(self, snapshot: Snapshot, result: UsageResult, profiles: tuple[ProfileResult, ...]) -> HostState:
        recorded = {v.gpu for vm in snapshot.vms if vm.record is not None for v in vm.record.vgpus}
        self._seen_gpus |= (
            {gpu.address for gpu in snapshot.gpus if gpu.is_display_class}
            | recorded
            | {vgpu.gpu for vgpu in snapshot.host_vgpus}
        )
        return HostState(
            version=__version__,
            usage=result,
            snapshot=snapshot,
            profiles=profiles,
            counts=self._events.counts.read(),
            expected_gpus=self._seen_gpus,
            source_errors=dict(self._errors),
            subscribers=self._events.reader_count,
            token_expiries=read_token_expiries(self._host),
            lock_wait_seconds=self._wait_for_lock(),
        )

    def _wait_for_lock(self) -> float | None:
        """Return how long the host lock lets a command wait now, at most `LOCK_SECONDS`; None if that is unknown."""
        begin = self._host.clock.monotonic()
        try:
            with self._host.claims.lock(LOCK_SECONDS):
                return self._host.clock.monotonic() - begin
        except Locked:
            return LOCK_SECONDS
        except VgpuctlError:
            return None

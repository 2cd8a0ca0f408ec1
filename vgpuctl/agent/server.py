# SPDX-License-Identifier: Apache-2.0
"""Runs the agent: one process, one socket. The kernel says who is at the other end of a connection (SO_PEERCRED).

The loop's thread answers; the library's calls run in threads. SIGTERM: no new operations, the running ones end or,
after a time, are undone; then the process ends. Nothing on the host needs the agent to run.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import grp
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from vgpuctl.agent.api import Api, Policy
from vgpuctl.agent.bin_purger import BinPurger
from vgpuctl.agent.boot_starts import BootStarter
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.fleet_api import FleetApi, has_desktops
from vgpuctl.agent.fleet_fence import FleetFence
from vgpuctl.agent.guest_helpers import AgentGuestHelpers, HelperWatch
from vgpuctl.agent.healing import HostHealer
from vgpuctl.agent.http_server import PeerProtocol, make_server
from vgpuctl.agent.image_api import ImageApi
from vgpuctl.agent.image_copies import ImageCopies
from vgpuctl.agent.join_seeds import JoinSeeds
from vgpuctl.agent.license_seeds import LicenseSeeds
from vgpuctl.agent.metrics_server import MetricsServer
from vgpuctl.agent.operation_store import OperationStore, StoredOperation
from vgpuctl.agent.operations import AgentOperations, OpenHost
from vgpuctl.agent.planned_changes import PlannedChanger
from vgpuctl.agent.sinks import SinkDelivery
from vgpuctl.agent.snapshot_cache import SnapshotCache
from vgpuctl.agent.usage_sampler import SampledUsage, UsageSampler
from vgpuctl.agent.vm_streams import VmStreams
from vgpuctl.agent.watcher import HostWatcher
from vgpuctl.config.agent_metrics import MetricsSpec
from vgpuctl.errors import FileFailed, FileNeeded, InvalidInput, Locked, NeedsConfirmation, Refused, VgpuctlError
from vgpuctl.library.requests import read_spec_of_host
from vgpuctl.model.agent_service import OPERATORS_GROUP, SOCKET_MODE
from vgpuctl.model.event import EventType, Severity
from vgpuctl.operations.images import refuse_used_image
from vgpuctl.ports.host import Host, for_another_operation
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import Value, replace

log = logging.getLogger("vgpuctl.agent")

STOP_SECONDS = 60.0
"""So long a running operation may go on after SIGTERM; then it is undone."""
BACKLOG = 128
QUESTIONS = frozenset({FileNeeded.code, NeedsConfirmation.code})
"""Ends of an operation that are no failure: its caller sends the request again, with the answer."""
DRAIN_SECONDS = 5.0
"""So long a client that does not read its answer can hold up the end."""


@contextlib.contextmanager
def only_agent(state: Path) -> Iterator[None]:
    """Hold the lock of the state directory, which need not be writable.

    Raises:
        Locked: another agent has it.
        FileFailed: it cannot be made or opened.
    """
    try:
        with contextlib.suppress(FileExistsError):
            state.mkdir(mode=0o700, parents=True)
        descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FileFailed(
            f"the agent's state directory {state} cannot be used: {error.strerror}",
            hint=f"ls -ld {state}; --state DIR uses another one",
            path=str(state),
            errno=error.errno,
        ) from error
    try:
        _lock_directory(descriptor, state)
        yield
    finally:
        os.close(descriptor)


def _lock_directory(descriptor: int, state: Path) -> None:
    """Lock a directory, which works on a disk that is full or read-only, too; the file `lock` says for whom."""
    file = state / "lock"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = "unknown"
        with contextlib.suppress(OSError):
            pid = read_regular_file(file, 20).decode("ascii", "replace").strip()
        raise Locked(
            f"another agent runs with {state}: pid {pid}", hint="systemctl status vgpuctl-agent", pid=pid
        ) from None
    with contextlib.suppress(OSError):
        file.write_text(f"{os.getpid()}\n", encoding="ascii")


def bind(path: str) -> socket.socket:
    """Return the listening socket at a path, which the group `vgpuctl` may use if it exists.

    Raises:
        Refused: something else is at the path, or others than root may write to its directory.
        FileFailed: it cannot be made.
    """
    directory = os.path.dirname(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    old_mask = os.umask(0o022)
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        _check_directory(directory)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise Refused(f"{path} is not a socket", hint=f"ls -l {path}; then remove it", path=path)
            os.unlink(path)
        os.umask(0o177)
        listening.bind(path)
        with contextlib.suppress(KeyError):
            os.chown(path, -1, grp.getgrnam(OPERATORS_GROUP).gr_gid)
        os.chmod(path, SOCKET_MODE)
    except OSError as error:
        listening.close()
        reason = "it is too long" if error.errno is None else error.strerror
        raise FileFailed(f"the socket {path} cannot be made: {reason}", path=path, errno=error.errno) from error
    finally:
        os.umask(old_mask)
    listening.listen(BACKLOG)
    return listening


def _check_directory(directory: str) -> None:
    status = os.stat(directory)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(
            f"{directory}: others may write there (owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}), "
            "and could put a socket of their own there",
            hint=f"chown root {directory}; chmod 755 {directory}",
            path=directory,
        )


def check_socket(listening: socket.socket) -> None:
    """Check a socket that systemd made.

    Raises:
        Refused: others than its owner and group may use it.
        InvalidInput: it is no Unix socket.
    """
    if listening.family != socket.AF_UNIX:
        raise InvalidInput("the socket of the agent is not a Unix socket", hint="systemctl cat vgpuctl-agent.socket")
    path = listening.getsockname()
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o007:
        raise Refused(
            f"{path} has the mode {mode:04o}: everybody may use it",
            hint="set SocketMode=0660 in vgpuctl-agent.socket, then systemctl restart vgpuctl-agent.socket",
            path=path,
        )


class Agent(Value):
    """What an agent is made of. `open_host` opens the host for an operation, `open_reader` with the snapshots.

    `ports`: the host with the snapshots, for what the agent itself watches. `usage`: the use of its GPUs, None where it
    cannot be read. `helpers`: of its guests, None where there are none. `metrics`: where they are served; None: where
    host.yaml says.
    """

    open_host: OpenHost
    open_reader: OpenHost
    ports: Host
    snapshots: SnapshotCache
    policy: Policy
    state: Path
    usage: SampledUsage | None = None
    helpers: AgentGuestHelpers | None = None
    metrics: MetricsSpec | None = None


async def serve(
    agent: Agent, listening: socket.socket, stop: asyncio.Event, ready: Callable[[Callable[[], bool]], None]
) -> None:
    """Answer until `stop` is set. `ready` is called when it answers, with what says whether its sources still do.

    Raises:
        FileFailed: the state directory cannot be read or written.
    """
    store = _open_store(agent.state)
    events = EventLog(agent.ports.clock)
    events.start()
    deliveries = _start_deliveries(agent.ports, events)
    watcher = HostWatcher(agent.ports, agent.snapshots, events, _boots_noted(agent))
    watcher.start()
    fence = FleetFence(agent.state, agent.ports.clock.now, partial(has_desktops, agent.ports))
    operations = _open_operations(agent, store, fence, events)
    sampler = None if agent.usage is None else UsageSampler(agent.ports, agent.usage, events)
    read_metrics = (lambda: b"") if sampler is None else (lambda: sampler.metrics)
    scraped = _open_metrics(agent, read_metrics)
    api = _open_api(agent, operations, events, fence, read_metrics)
    server = make_server(api.app, PeerProtocol)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    scraping = None if scraped is None else asyncio.create_task(scraped.serve())
    operations.recover()
    tasks = _begin_work(agent, operations, events, watcher, sampler)
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    ready(watcher.answers)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    log.info("the agent stops")
    await operations.stop(STOP_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(watcher.close)
    if sampler is not None:
        await asyncio.to_thread(sampler.close)
    events.close()
    for delivery in deliveries:
        await asyncio.to_thread(delivery.close)
    await api.close()
    if scraped is not None and scraping is not None:
        await scraped.close(scraping)
    server.should_exit = True
    await asyncio.wait((serving,), timeout=DRAIN_SECONDS)
    server.force_exit = True
    await serving


def _open_api(
    agent: Agent,
    operations: AgentOperations,
    events: EventLog,
    fence: FleetFence,
    read_metrics: Callable[[], bytes],
) -> Api:
    fleet = FleetApi(agent.ports, fence)
    images = _open_images(agent, fleet)
    streams = VmStreams(agent.ports, fence, events, agent.policy)
    return Api(
        agent.open_reader, operations, events, agent.policy, agent.snapshots, fleet, images, read_metrics, streams
    )


def _open_images(agent: Agent, fleet: FleetApi) -> ImageApi:
    copies = ImageCopies(agent.ports, agent.state, partial(_refuse_used_image, agent.ports))
    return ImageApi(agent.ports, copies, fleet, agent.policy)


def _refuse_used_image(host: Host, path: str) -> None:
    other = for_another_operation(replace(host, snapshots=None))
    try:
        refuse_used_image(other, path)
    finally:
        other.operations.end()


def _open_operations(agent: Agent, store: OperationStore, fence: FleetFence, events: EventLog) -> AgentOperations:
    """Return the operations, whose begin and end are events; whoever knows of an end reads what it changed."""

    def end(stored: StoredOperation) -> None:
        agent.snapshots.drop()  # not each one leaves a trace that the host's sources report: host.yaml, a cordon
        _publish(events, EventType.OPERATION_END, stored)

    operations = AgentOperations(agent.open_host, store, fence)
    operations.on_begin = partial(_publish, events, EventType.OPERATION_BEGIN)
    operations.on_end = end
    operations.on_read_only = partial(_publish_read_only, events, agent.state)
    return operations


def _boots_noted(agent: Agent) -> Callable[[str], None]:
    helpers = agent.helpers
    return (lambda _: None) if helpers is None else helpers.note_boot


def _begin_work(
    agent: Agent, operations: AgentOperations, events: EventLog, watcher: HostWatcher, sampler: UsageSampler | None
) -> list[asyncio.Task[None]]:
    """Begin what the agent does by itself; return the tasks."""
    tasks = [asyncio.create_task(watcher.run())]
    tasks += [] if sampler is None else [asyncio.create_task(sampler.run())]
    if agent.helpers is not None and agent.ports.guest_channels is not None:
        helper_watch = HelperWatch(agent.ports, agent.ports.guest_channels, agent.helpers, events)
        tasks.append(asyncio.create_task(helper_watch.run()))
    if agent.ports.read_only_reason is None:
        healer = HostHealer(agent.ports, operations, events, watcher.libvirt_returned)
        starter = BootStarter(agent.ports, operations, events, agent.state)
        purger = BinPurger(agent.ports, operations)
        changer = PlannedChanger(agent.ports, operations, events)
        tasks += [] if sampler is None else [asyncio.create_task(LicenseSeeds(agent.ports, sampler, operations).run())]
        if agent.helpers is not None:
            tasks.append(asyncio.create_task(JoinSeeds(agent.ports, agent.helpers, operations).run()))
        tasks += [asyncio.create_task(one.run()) for one in (healer, starter, purger, changer)]
    return tasks


def _open_metrics(agent: Agent, read: Callable[[], bytes]) -> MetricsServer | None:
    """Return what serves metrics on TCP, None if nothing asks for it or what host.yaml says does not work.

    Raises:
        InvalidInput, FileFailed: the command line asks for it, and it does not work.
    """
    if agent.metrics is not None:
        return MetricsServer(agent.metrics, read)
    try:
        spec = read_spec_of_host(agent.ports).agent.metrics
        return None if spec is None else MetricsServer(spec, read)
    except VgpuctlError as error:
        log.error("metrics are served on no port: %s", error)
        return None


def _start_deliveries(host: Host, events: EventLog) -> list[SinkDelivery]:
    """Start to deliver events to host.yaml's `agent: notify:`; what is wrong there is logged, and stops nothing."""
    deliveries: list[SinkDelivery] = []
    try:
        for name, sink in read_spec_of_host(host).agent.notify.items():
            try:
                deliveries.append(SinkDelivery(events, sink))
            except InvalidInput as error:
                log.error("events are not delivered to %s: %s", name, error)
    except InvalidInput as error:
        log.error("events are delivered to nobody: %s", error)
    for delivery in deliveries:
        delivery.start()
    return deliveries


def _publish(events: EventLog, kind: EventType, stored: StoredOperation) -> None:
    words = f"{stored.call} of {stored.account}"
    severity = None
    if stored.document is not None and stored.document.get("ok"):
        words += ": done"
    elif stored.document is not None:
        error = stored.document.get("error")
        asks = isinstance(error, Mapping) and error.get("code") in QUESTIONS
        words += ": asks the caller" if asks else ": failed"
        severity = None if asks else Severity.WARNING
    events.publish(kind, operation=stored.id, vm=stored.vm, reason=words, severity=severity)


def _publish_read_only(events: EventLog, state: Path, error: OSError | None) -> None:
    if error is None:
        events.publish(EventType.READ_ONLY_END)
        return
    log.error("the state directory %s cannot be written, so operations are refused: %s", state, error)
    events.publish(EventType.READ_ONLY_BEGIN, reason=f"{error.strerror or error}: {error.filename or state}")


def _open_store(state: Path) -> OperationStore:
    try:
        return OperationStore(state)
    except OSError as error:
        raise FileFailed(
            f"the agent's state directory {state} cannot be used: {error.strerror}",
            hint=f"ls -la {state}; df -h {state}",
            path=error.filename or str(state),
            errno=error.errno,
        ) from error

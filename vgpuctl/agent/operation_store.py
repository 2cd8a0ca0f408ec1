# SPDX-License-Identifier: Apache-2.0
"""The agent's operations on disk: one file each, for 7 days, so that a result is found again after a restart.

A file has no argument of its call: those may have passwords. A request is recognized by a keyed digest.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from vgpuctl.host.atomic_files import HostUnfinishedFiles, temporary_file, write_file
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.documents import Failure, failure_document, to_json_value
from vgpuctl.model.result_reader import Mismatch, read_value
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import Value, replace

log = logging.getLogger("vgpuctl.agent")

_SECRET_BYTES, _PROBE_BYTES = 32, 4096
MAX_FILE_BYTES = 64 << 20
KEPT_SECONDS = 7 * 86400.0
_SET_ASIDE = ".damaged"
_FILE_NAME = re.compile(r"[0-9a-f]{32}\.json")
State = Literal["waiting", "running", "finished", "interrupted"]
SECRET_FIELDS = frozenset({"digest"})
"""Fields of an operation that the disk keeps and the API does not show."""


class StoredOperation(Value):
    """An operation. Times are seconds since the epoch.

    `account`, `uid`: who began it. `state`: `interrupted` is one that a former agent did not end; `reconcile-host`
    finished or undid it. `key`: the Idempotency-Key that it came with. `document`: its result, as --json prints it;
    null until it has ended. `vm`: the one VM that the call names, by name or uuid.
    """

    id: str
    call: str
    account: str
    uid: int
    state: State
    created: float
    started: float | None = None
    finished: float | None = None
    key: str | None = None
    digest: str | None = None
    document: Mapping[str, object] | None = None
    vm: str | None = None


class OperationStore:
    """The directory of operations: `DIRECTORY/operations/ID.json`, and `DIRECTORY/secret`, the key of digests.

    One that cannot be written is read all the same; each write tries again.
    """

    def __init__(self, directory: Path) -> None:
        """Raises: OSError: the secret cannot be read."""
        self._directory = directory / "operations"
        self._secret_path = directory / "secret"
        secret = self._read_secret()
        self.secret = secret or secrets.token_bytes(_SECRET_BYTES)
        self._is_secret_stored = secret is not None
        self._finished: dict[str, float] = {}
        self._lost: list[str] = []

    def load(self) -> list[StoredOperation]:
        """Return what is kept. What a former agent did not end is `interrupted` now; a damaged file is set aside.

        What was set aside is kept for 7 days, too. Files that a killed agent had not finished writing are removed;
        those that they were to replace are complete.

        Raises:
            OSError: the directory cannot be read.
        """
        unfinished = HostUnfinishedFiles([self._directory.parent, self._directory], HostProcesses())
        with contextlib.suppress(OSError):  # on a read-only disk the next start removes them
            for file in unfinished.all():
                unfinished.remove(file)
            for path in self._directory.glob(f"*{_SET_ASIDE}"):
                if path.stat().st_mtime < time.time() - KEPT_SECONDS:
                    path.unlink()
        kept: list[StoredOperation] = []
        for path in sorted(self._directory.iterdir()) if self._directory.is_dir() else ():
            if not _FILE_NAME.fullmatch(path.name):
                continue
            try:
                stored = self.read(path.stem)
            except OSError as error:
                log.error("%s is damaged and set aside: %s", path, error)
                with contextlib.suppress(OSError):
                    path.replace(path.with_suffix(_SET_ASIDE))
                continue
            if stored.document is None:
                # not written: until `recover` has begun reconcile-host, the next start must find it again
                stored = replace(stored, state="interrupted", finished=time.time(), document=_interrupted(stored))
                if stored.started is not None:
                    self._lost.append(stored.id)
                else:
                    with contextlib.suppress(OSError):  # a full disk: the next start does the same
                        self.write(stored)
            self._finished[stored.id] = stored.finished or stored.created
            kept.append(stored)
        return kept

    def read(self, operation_id: str) -> StoredOperation:
        """Return an operation from its file.

        Raises:
            OSError: the file cannot be read, or is damaged.
        """
        path = self._directory / f"{operation_id}.json"
        try:
            content = json.loads(read_regular_file(str(path), MAX_FILE_BYTES))
            stored: StoredOperation = read_value(StoredOperation, content, path.name)
        except (ValueError, Mismatch) as error:
            raise OSError(errno.EIO, f"it is damaged: {error}", str(path)) from error
        return stored

    def lost(self) -> tuple[str, ...]:
        """Return the ids of the operations that the former agent had begun and did not end."""
        return tuple(self._lost)

    def probe(self) -> None:
        """Make what is missing in the directory, and see that files can be written there.

        Raises:
            OSError: they cannot.
        """
        self._make()
        with temporary_file(self._directory / "probe", bytes(_PROBE_BYTES)):
            pass

    def write(self, stored: StoredOperation) -> None:
        """Write an operation's file.

        Raises:
            OSError: it cannot be written.
        """
        self._make()
        if stored.finished is not None:
            self._finished[stored.id] = stored.finished
        text = json.dumps(to_json_value(stored), ensure_ascii=False)
        write_file(self._directory / f"{stored.id}.json", text.encode())

    def remove_old(self) -> list[str]:
        """Remove the files of operations that ended long ago; return their ids."""
        limit = time.time() - KEPT_SECONDS
        old = [operation_id for operation_id, finished in list(self._finished.items()) if finished < limit]
        self.remove(old)
        return old

    def remove(self, ids: list[str]) -> None:
        """Remove operations' files; on a read-only disk they stay until a later start."""
        for operation_id in ids:
            self._finished.pop(operation_id, None)
            with contextlib.suppress(OSError):
                (self._directory / f"{operation_id}.json").unlink()

    def _make(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._is_secret_stored:
            write_file(self._secret_path, self.secret)
            self._is_secret_stored = True

    def _read_secret(self) -> bytes | None:
        """Return the secret; None if there is none."""
        try:
            secret = self._secret_path.read_bytes()
        except FileNotFoundError:
            return None
        return secret if len(secret) == _SECRET_BYTES else None


def _interrupted(stored: StoredOperation) -> Mapping[str, object]:
    began = stored.started is not None
    message = "the agent ended while it ran" if began else "the agent ended before it began"
    hint = "the agent ran reconcile-host when it started again: facts.reconcile is that operation" if began else None
    failure = Failure("interrupted", message, 130, hint, {"operation": stored.id}, changed=began)
    document: Mapping[str, object] = to_json_value(failure_document(failure, stored.call))
    return document

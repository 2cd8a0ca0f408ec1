# SPDX-License-Identifier: Apache-2.0
"""Which images controllers brought to this host: the file `images.json` in the agent's state directory.

It is written before anything else of an image is. Where it is lost, the images stay, and are never deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from vgpuctl.agent.protocol import StateNotWritable
from vgpuctl.errors import Busy
from vgpuctl.host.atomic_files import write_file
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.result_reader import read_value
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import Value

log = logging.getLogger("vgpuctl.agent")

FILE_NAME, MAX_FILE_BYTES = "images.json", 4 << 20
MAX_RECORDS = 1000


class ImageRecord(Value):
    """An image that was brought here, or is on its way. `bytes` None: its server has not said it yet."""

    bytes: int | None
    sha256: str
    url: str | None = None
    ready: bool = False


class ImageRecords:
    """The records of one host, by path."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._records = self._load()

    @property
    def by_path(self) -> Mapping[str, ImageRecord]:
        """All records."""
        return self._records

    def put(self, path: str, record: ImageRecord) -> None:
        """Store a record.

        Raises:
            Busy: there are too many. StateNotWritable: it cannot be written.
        """
        if path not in self._records and len(self._records) >= MAX_RECORDS:
            raise Busy(f"{MAX_RECORDS} images are known on this host", hint="delete images that nothing uses")
        if self._records.get(path) != record:
            self._store({**self._records, path: record})

    def forget(self, path: str) -> None:
        """Remove a record, if there is one.

        Raises:
            StateNotWritable: it cannot be written.
        """
        if path in self._records:
            self._store({other: record for other, record in self._records.items() if other != path})

    def _load(self) -> dict[str, ImageRecord]:
        try:
            content = json.loads(read_regular_file(str(self._path), MAX_FILE_BYTES))
            records: Mapping[str, ImageRecord] = read_value(Mapping[str, ImageRecord], content, FILE_NAME)
            return dict(records)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.error("%s cannot be read: %s; images that controllers brought here stay", self._path, error)
            return {}

    def _store(self, records: dict[str, ImageRecord]) -> None:
        text = json.dumps({path: to_json_value(record) for path, record in records.items()})
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._path, text.encode())
        except OSError as error:
            raise StateNotWritable(
                f"the host agent cannot remember its images: {error.strerror}: {error.filename or self._path}",
                hint=f"df -h {self._path.parent}",
                path=str(self._path),
            ) from error
        self._records = records

# SPDX-License-Identifier: Apache-2.0
"""The last report of each guest's helper, in /run/vgpuctl/guests: the host agent writes them, any command reads them.

Implements `ports.guests.GuestReports`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vgpuctl.host.atomic_files import write_file
from vgpuctl.host.file_lock import make_private_directories
from vgpuctl.model.guest_report import GuestReport, parse_report
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import as_dict

DIRECTORY = "guests"
_MAX_BYTES = 16 << 10
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class GuestReportFiles:
    """A file for each VM, named by its uuid."""

    def __init__(self, run_dir: Path) -> None:
        self._directory = run_dir / DIRECTORY

    def read(self) -> Mapping[str, GuestReport]:
        """Return all reports; a file that cannot be read is left out."""
        try:
            names = [name for name in os.listdir(self._directory) if _UUID.fullmatch(name)]
        except OSError:
            return {}
        reports = {}
        for name in names:
            with suppress(OSError, ValueError, KeyError, TypeError):
                value = json.loads(read_regular_file(self._directory / name, _MAX_BYTES))
                reports[name] = parse_report(value, float(value["seen"]))
        return reports

    def write(self, uuid: str, report: GuestReport) -> None:
        """Keep a VM's last report.

        Raises:
            OSError: it cannot be written.
        """
        make_private_directories(self._directory)
        write_file(self._directory / uuid, json.dumps(as_dict(report)).encode(), durable=False)

    def remove(self, uuid: str) -> None:
        """Remove a VM's report; a missing one is no error.

        Raises:
            OSError: it cannot be removed.
        """
        (self._directory / uuid).unlink(missing_ok=True)

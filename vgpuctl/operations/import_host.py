# SPDX-License-Identifier: Apache-2.0
"""Convert another program's files to the text of a host.yaml; writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config.host_editor import render_host_file
from vgpuctl.config.import_formats import ImportedConfig
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.host import ImportedResult
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.plans.imports import convert_import

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def import_host(host: Host, imported_config: ImportedConfig) -> QueryResult[ImportedResult]:
    """Return the text of a host.yaml, and the lines that were left out of it.

    Raises:
        NotFound, InvalidInput: the imported configuration does not fit this host.
    """
    snapshot = observe(host, ReadScope(types=True))
    converted = convert_import(imported_config, snapshot)
    header_lines = (
        f"from the files of {imported_config.source}",
        *(f"ignored: {line}" for line in converted.left_out),
    )
    text = render_host_file(converted.host_spec, {g.address: g.model for g in snapshot.gpus}, header_lines)
    data = ImportedResult(text, imported_config.source, tuple(converted.left_out))
    return QueryResult(data, (*snapshot.warnings, *(f"ignored: {line}" for line in converted.left_out)))

# SPDX-License-Identifier: Apache-2.0
"""The live screen of `vgpuctl top`. Only this package imports textual, when the screen starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpuctl.cli.global_options import Settings


def run(settings: Settings, interval: float) -> int:
    """Show the live screen until the user leaves it, and return the exit status. `interval`: in seconds."""
    from vgpuctl.cli import entry, failures, listings, output, streams, top_source
    from vgpuctl.library import never_cancelled

    settings.kind = "top"
    with entry.handle_signals() as guard:
        try:
            with entry.block_signals():
                from vgpuctl.cli.live.app import TopApp
            import os
            import sys

            for name in ("COLUMNS", "LINES"):  # textual would take them for the size, also after a resize
                os.environ.pop(name, None)
            source = top_source.open_source(settings, never_cancelled)
            app = TopApp(
                source.sample,
                source.read_processes,
                listings.view_of(settings),
                interval=interval,
                has_colours=output.has_colours(settings, sys.stdout),
                has_unicode=streams.supports_unicode(sys.stdout),
            )
            app.run()
            guard.ignore_signals()
        except BaseException as error:  # noqa: BLE001
            guard.ignore_signals()
            return failures.report(error, settings, signal_status=guard.exit_status)
    return app.return_code or 0

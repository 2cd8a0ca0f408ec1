# SPDX-License-Identifier: Apache-2.0
"""The connection that ssh_config's ProxyCommand makes: a program whose standard streams are one end of a socket.

Not paramiko.ProxyCommand. That one stays in the terminal's process group, so that Ctrl-C ends the connection before
the command there is told to stop; it does not notice that its program ended; and nobody reads what it says on stderr.
"""

from __future__ import annotations

import shlex
import socket
import subprocess

_END_SECONDS = 1.0


class Proxy:
    """The running program. `way` is the connection: its other end is closed when the program ends."""

    def __init__(self, line: str) -> None:
        """Start it, in a session of its own.

        Raises:
            OSError, ValueError: there is no such program, or the line's quotes are not closed.
        """
        words = shlex.split(line)
        self.way, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a list of words from the user's own ssh_config, no shell
                words, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL, start_new_session=True
            )
        except BaseException:
            self.way.close()
            raise
        finally:
            theirs.close()

    def close(self) -> None:
        """Hang up, and end the program."""
        self.way.close()
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

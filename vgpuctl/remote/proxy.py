# SPDX-License-Identifier: Apache-2.0
"""The connection through ssh_config's ProxyCommand: a program whose standard streams are one end of a socket.

It replaces paramiko.ProxyCommand, which stays in the terminal's process group, so that Ctrl-C ends the connection
before the remote command gets the stop; does not notice that its program ended; and never reads the program's stderr.
"""

from __future__ import annotations

import shlex
import socket
import subprocess

_END_SECONDS = 1.0


class ProxyProcess:
    """The running program. `connection`: the other end of this socket closes when the program ends."""

    def __init__(self, line: str) -> None:
        """Start it, in a session of its own.

        Raises:
            OSError, ValueError: the program does not exist, or a quote in the line is not closed.
        """
        words = shlex.split(line)
        self.connection, child_end = socket.socketpair()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a list of words from the user's own ssh_config, no shell
                words,
                stdin=child_end.fileno(),
                stdout=child_end.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self.connection.close()
            raise
        finally:
            child_end.close()

    def close(self) -> None:
        """Close the connection and end the program."""
        self.connection.close()
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

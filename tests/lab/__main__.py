"""The lab for people: `python3 -m tests.lab build|boot|shell|kills|moves|clean|where`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.lab import build, cache, kills, move_kills, snapshot
from tests.lab.errors import LabError
from tests.lab.machine import Lab

HELP = {
    "build": "make everything that is not in the cache yet, with the snapshot",
    "boot": "build if needed, start the virtual GPU host, print how to reach it, stay until Ctrl-C",
    "shell": "the same with a root shell in it; leaving the shell stops the host",
    "kills": "kill vgpuctl at random instants in it, and write what came of that to docs/reports/kills.md",
    "moves": "interrupt moves between two of them, and write what came of that to docs/reports/moves-lab.md",
    "clean": "remove the whole cache",
    "where": "print the cache directory and the names of the present stages",
}


def main() -> int:
    """Exit status 0, or 1 with one clear message."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in HELP.items():
        command = commands.add_parser(name, help=text)
        if name in {"build", "boot", "shell"}:
            command.add_argument("--flavour", choices=("normal", "apparmor"), default="normal")
        if name in {"boot", "shell"}:
            command.add_argument("--cold", action="store_true", help="boot instead of loading the snapshot")
        if name == "moves":
            command.add_argument("--count", type=int, default=20, help="so many moves (%(default)s)")
        if name == "kills":
            command.add_argument("--count", type=int, default=200, help="so many kills (%(default)s)")
            command.add_argument("--seconds", type=float, default=36000, help="begin no round after so long")
            command.add_argument("--results", type=Path, help="keep each kill in this file; those in it count too")
    options = parser.parse_args()
    try:
        return _perform(options)
    except LabError as exc:
        print(f"lab: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _perform(options: argparse.Namespace) -> int:
    root = cache.cache_dir()
    if options.command == "where":
        print(root)
        for stage, name in vars(build.plan()).items():
            print(f"  {stage}-{name}{'' if (root / f'{stage}-{name}').is_dir() else '   (not built)'}")
        return 0
    if options.command == "clean":
        shutil.rmtree(root, ignore_errors=True)
        return 0
    if options.command == "build":
        print(snapshot.snapshot(build.build(), options.flavour))
        return 0
    if options.command == "kills":
        return kills.kill_many(options.count, options.seconds, options.results)
    if options.command == "moves":
        return move_kills.interrupt_many(options.count)
    return _interactive(options)


def _interactive(options: argparse.Namespace) -> int:
    built = build.build()
    kept = None if options.cold else snapshot.snapshot(built, options.flavour)
    lab = Lab(built, flavour=options.flavour, snapshot=kept)
    try:
        started = time.monotonic()
        lab.start()
        cache.say(f"up after {time.monotonic() - started:.1f} s; files in {lab.work}")
        if options.command == "shell":
            return subprocess.run(lab.remote.argv("bash -l", tty=os.isatty(0)), check=False).returncode
        print(" ".join(lab.remote.argv("")[:-1]), flush=True)
        lab.emulator.process.wait()
        return 1
    finally:
        lab.stop()


if __name__ == "__main__":
    sys.exit(main())

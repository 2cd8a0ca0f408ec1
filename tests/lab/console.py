"""Talks to a guest through the serial console that every VM of vgpuctl has."""

from __future__ import annotations

import re

from tests.lab.machine import Lab

# Runs inside L2. A new line wakes the guest's shell; what it was asked is answered between two marks.
TALK = r"""
import os, re, select, subprocess, sys, termios, time, tty
name, question, deadline = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
path = subprocess.run(["virsh", "ttyconsole", name], capture_output=True, text=True, check=True).stdout.strip()
line = os.open(path, os.O_RDWR | os.O_NOCTTY)
tty.setraw(line)
seen, asked = b"", 0.0
while not re.search(rb"answer-begin-42.*answer-end-42", seen, re.S):
    now = time.monotonic()
    if now > deadline:
        sys.exit("no answer: " + seen.decode(errors="replace")[-3000:])
    if now - asked > 3:
        os.write(line, f"\n echo answer-begin-$((6*7)); {question}; echo answer-end-$((6*7))\n".encode())
        asked = now
    if select.select([line], [], [], 0.2)[0]:
        seen += os.read(line, 65536)
print(seen.decode(errors="replace"))
"""


def ask_guest(lab: Lab, name: str, question: str, *, timeout: float = 120) -> str:
    """What the guest's shell answers; waits until there is a shell."""
    said = lab.run(["python3", "-c", TALK, name, question, f"{timeout:g}"], timeout=timeout + 30).stdout
    answers = re.findall(r"answer-begin-42(.*?)answer-end-42", said, re.DOTALL)
    assert answers, said
    return answers[-1]


def guest_devices(lab: Lab, name: str) -> list[str]:
    """`vendor:device` of every PCI function that the guest sees."""
    script = "for d in /sys/bus/pci/devices/*; do echo pci $(cat $d/vendor) $(cat $d/device); done"
    return [f"{v}:{d}" for v, d in re.findall(r"pci 0x(\S+) 0x(\S+)", ask_guest(lab, name, script))]

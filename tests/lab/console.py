"""Talks to a guest through its serial console. Every VM that vgpuctl creates has one."""

from __future__ import annotations

import random
import re

from tests.lab.machine import Lab

# Runs inside L2. Until its shell reads, a guest loses some of what it is sent, and a slow one boots for minutes. So a
# short line is repeated until the shell has carried it out; its number is unique, because a slow guest may still
# answer those of an earlier question. A terminal holds 4 KiB: what is sent meanwhile must fit. The question itself is
# sent once, and its answer is what the shell prints between two markers.
TALK = r"""
import os, re, select, subprocess, sys, termios, time, tty
name, question, deadline, number = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3]), int(sys.argv[4])
path = subprocess.run(["virsh", "ttyconsole", name], capture_output=True, text=True, check=True).stdout.strip()
line = os.open(path, os.O_RDWR | os.O_NOCTTY)
tty.setraw(line)
total = f"$(({number - 1}+1))"
def wait(wanted, text, repeat_seconds):
    seen, asked = b"", -repeat_seconds
    while not re.search(wanted.encode(), seen, re.S):
        now = time.monotonic()
        if now > deadline:
            sys.exit(f"no {wanted}: " + seen.decode(errors="replace")[-3000:])
        if now - asked > repeat_seconds:
            os.write(line, text.encode())
            asked = now
        if select.select([line], [], [], 0.2)[0]:
            seen += os.read(line, 65536)
    return seen
wait(f"awake-{number}", f"\n echo awake-{total}\n", 5)
command = f" echo answer-begin-{total}; {question}; echo answer-end-{total}\n"
seen = wait(f"answer-begin-{number}.*answer-end-{number}", command, 1e9)
print(seen.decode(errors="replace"))
"""


# The same for a guest without a shell: reads the console until the output matches a pattern, then prints it.
LISTEN = r"""
import os, re, select, subprocess, sys, termios, time, tty
name, wanted, deadline = sys.argv[1], sys.argv[2].encode(), time.monotonic() + float(sys.argv[3])
path = subprocess.run(["virsh", "ttyconsole", name], capture_output=True, text=True, check=True).stdout.strip()
line = os.open(path, os.O_RDWR | os.O_NOCTTY)
tty.setraw(line)
seen = b""
while not re.search(wanted, seen):
    if time.monotonic() > deadline:
        sys.exit("it did not say so: " + seen.decode(errors="replace")[-3000:])
    if select.select([line], [], [], 0.2)[0]:
        seen += os.read(line, 65536)
print(seen.decode(errors="replace"))
"""


def read_console(lab: Lab, name: str, wanted: str, *, timeout: float) -> str:
    """Return what a guest prints from now on, up to the first match of the pattern `wanted`."""
    return lab.run(["python3", "-c", LISTEN, name, wanted, f"{timeout:g}"], timeout=timeout + 30).stdout


def ask_guest(lab: Lab, name: str, question: str, *, timeout: float = 480) -> str:
    """Return the answer of the guest's shell; wait until the shell is ready."""
    number = random.randrange(10**6, 10**7)
    words = ["python3", "-c", TALK, name, question, f"{timeout:g}", str(number)]
    output = lab.run(words, timeout=timeout + 30).stdout
    answers = re.findall(rf"answer-begin-{number}(.*?)answer-end-{number}", output, re.DOTALL)
    assert answers, output
    return str(answers[-1])


def guest_devices(lab: Lab, name: str) -> list[str]:
    """`vendor:device` of every PCI function that the guest sees."""
    script = "for d in /sys/bus/pci/devices/*; do echo pci $(cat $d/vendor) $(cat $d/device); done"
    return [f"{v}:{d}" for v, d in re.findall(r"pci 0x(\S+) 0x(\S+)", ask_guest(lab, name, script))]

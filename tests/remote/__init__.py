"""Other hosts over SSH, with a real sshd on each: tests/remote/network.py."""

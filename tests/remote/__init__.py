"""Tests of commands on other hosts over SSH. tests/remote/network.py runs a real sshd for each host."""

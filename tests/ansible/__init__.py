"""Tests of the Ansible collection: its options, its modules on simulated hosts, its plugins, and its linters."""

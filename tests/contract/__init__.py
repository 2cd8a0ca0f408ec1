"""The same assertions on the simulator and, inside the lab, on a real kernel and libvirt: tests/lab/test_contract.py."""

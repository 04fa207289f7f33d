"""Faults on purpose, one after the other, on a host of the lab: `make faults`."""

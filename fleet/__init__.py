"""The engine: inventory, pins, SSH, jobs, converge, run directory and the pytest plugin around them."""

__version__ = "0.1.0"

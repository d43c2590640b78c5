"""Read the requests to measure from a file, a built-in suite or a data set."""

from draftbench.traffic.query import TrafficQuery
from draftbench.traffic.sample import Traffic, load

__all__ = ["Traffic", "TrafficQuery", "load"]

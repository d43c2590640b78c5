"""Read the requests to measure from a file, a built-in suite or a data set."""

from draftbench.traffic.sample import Traffic, TrafficQuery, load

__all__ = ["Traffic", "TrafficQuery", "load"]

"""Reads requests from a file, a suite or a data set; the files in the order of data.

query              which traffic to read, and how
files              a log → its raw rows; `datasets` and `suites` find theirs
rows               a raw row → a `Request`, with what the following find in it
request_formats    where the request is, whoever wrote the row (`json_paths` gets there)
messages           its conversation
request_settings   its settings, by any API's names (`setting_names`, `constraints`)
answers            its logged answer (`streams` joins its chunks)
sample             all rows → `Traffic`: the chosen requests and a `summary`
"""

from draftbench.traffic.query import TrafficQuery
from draftbench.traffic.sample import Traffic, load

__all__ = ["Traffic", "TrafficQuery", "load"]

"""A row of a log, read alone."""

import json
from dataclasses import replace

from draftbench.traffic import TrafficQuery
from draftbench.traffic.rows import read_request

QUERY = TrafficQuery("log.jsonl", b"key")
TOOL = {"name": "f", "description": "d"}
FUNCTION = {"type": "function", "function": {**TOOL, "parameters": {"type": "object"}}}


def read(row, **fields):
    """What is read of a row, which may be bytes."""
    data = row if isinstance(row, bytes) else json.dumps(row).encode()
    return read_request(data, "log:1", replace(QUERY, **fields))


def asked(row, **fields):
    return read(row, **fields).request

"""A row of a log, read alone."""

import json

from draftbench.traffic.rows import Fields, read_request

TOOL = {"name": "f", "description": "d"}
FUNCTION = {"type": "function", "function": {**TOOL, "parameters": {"type": "object"}}}


def read(row, **fields):
    """What is read of a row, which may be bytes."""
    data = row if isinstance(row, bytes) else json.dumps(row).encode()
    return read_request(data, "log:1", Fields(**fields), b"key")


def asked(row, **fields):
    return read(row, **fields).request

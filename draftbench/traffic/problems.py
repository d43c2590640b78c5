"""Why a row becomes no request. These two stay in this room: a user meets a count or a
`TrafficError`."""

from __future__ import annotations


class BadRowError(Exception):
    """A row that cannot be read as a request. The message says why and never repeats the row's
    text."""

    hint = "mend the row, or count bad rows and go on with --skip-bad"


class NotRepresentableError(Exception):
    """A request whose distribution a `Request` cannot express; `str()` is the field."""

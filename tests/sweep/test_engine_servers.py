"""When requests of a log are sent."""

from types import SimpleNamespace

import pytest

from draftbench.errors import TrafficError
from draftbench.sweep.engine_servers import arrival_times
from draftbench.sweep.options import ServingOptions


def sent(*timestamps, scale=1.0):
    asked = [
        (SimpleNamespace(request=SimpleNamespace(id=str(at), timestamp=timestamp)), 0)
        for at, timestamp in enumerate(timestamps)
    ]
    serving = ServingOptions(arrivals="log", time_scale=scale)
    times = arrival_times(asked, serving, seed=0)
    return [times[str(at), 0] for at in range(len(timestamps))]


@pytest.mark.parametrize(
    ("timestamps", "seconds"),
    [
        (("5", "3", "6.5"), [2, 0, 3.5]),
        (("1700000000", "1700000004"), [0, 4]),
        (("1700000000000", "1700000004500"), [0, 4.5]),
        (("1700000000000000", "1700000004500000"), [0, 4.5]),
        (("1700000000000000000", "1700000004500000000"), [0, 4.5]),
        (("1.7e12", "1700000000.25"), [0, 0.25]),
        (("99999999999", "99999999998"), [1, 0]),  # seconds still
        (("2026-01-31T12:00:00Z", "2026-01-31T13:00:01+01:00"), [0, 1]),
        (("2026-01-31T12:00:00", "1769860802"), [0, 2]),
        (("-3", "2"), [0, 5]),
        (("20260131", "20260201"), [0, 70]),  # no dates
    ],
)
def test_a_time_is_a_date_or_seconds_or_too_large_to_be_seconds(timestamps, seconds):
    assert sent(*timestamps) == pytest.approx(seconds)
    assert sent(*timestamps, scale=2.0) == pytest.approx([each / 2 for each in seconds])


@pytest.mark.parametrize("timestamp", ["nan", "inf", "-Infinity", "1e400", "1e25", "soon", None])
def test_what_is_no_time_is_missing(timestamp):
    with pytest.raises(TrafficError, match="1 of 2 requests do not say when they came"):
        sent("1", timestamp)


def test_a_log_without_any_time_is_one_clear_error():
    with pytest.raises(TrafficError, match="log: the requests do not say when they came") as caught:
        sent("nan", None)
    assert "--arrivals poisson:RATE" in caught.value.hint

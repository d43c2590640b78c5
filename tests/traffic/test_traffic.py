"""From a source to its requests: merging, counting, sampling, errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftbench.errors import TrafficError
from draftbench.traffic import Traffic, TrafficQuery, load, suites

MARKER = "planted-marker-text"


def query(source: Path | str, **changes: Any) -> TrafficQuery:
    fields: dict[str, Any] = {
        "sample": None,
        "seed": 0,
        "segment_by": None,
        "prompt_field": None,
        "response_field": None,
        "skip_bad": False,
        "key": b"key",
    }
    return TrafficQuery(source=str(source), **(fields | changes))


def log(folder: Path, *rows: Any, name: str = "log.jsonl") -> Path:
    path = folder / name
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def weights(traffic: Traffic) -> dict[str | None, float]:
    return {request.prompt: request.weight for request in traffic.requests}


def test_exact_duplicates_merge_and_keep_their_weight(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        {"prompt": "a", "response": "first"},
        {"prompt": "b"},
        {"prompt": "a", "response": "second"},
        {"prompt": "a", "n": 3},
        {"prompt": "a", "temperature": 0.5},
    )
    traffic = load(query(path))
    assert [(r.prompt, r.weight, r.source) for r in traffic.requests] == [
        ("a", 5.0, "log.jsonl:1"),
        ("b", 1.0, "log.jsonl:2"),
        ("a", 1.0, "log.jsonl:5"),
    ]
    assert traffic.requests[0].response == "first"
    assert (traffic.rows, traffic.merged, traffic.dropped) == (5, 2, {})


def test_a_duplicate_of_two_segments_counts_under_the_first_by_name(tmp_path: Path) -> None:
    rows = [{"prompt": "a"}, {"prompt": "a", "segment": "y"}, {"prompt": "a", "segment": "x"}]
    for order in (rows, rows[::-1]):
        (request,) = load(query(log(tmp_path, *order))).requests
        assert request.segment == "x"


def test_what_was_dropped_is_counted_by_reason(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "a"}]}
    path = log(
        tmp_path,
        {"body": body},
        {"body": body | {"logit_bias": {"1": 5}}},
        {"body": body | {"logit_bias": {"2": 5}}},
        {"body": body | {"frobnicate": 1}},
        "no json",
        {"prompt": ""},
        {"prompt": "b"},
    )
    traffic = load(query(path, skip_bad=True))
    assert traffic.dropped == {
        "not representable: logit_bias": 2,
        "not representable: frobnicate": 1,
        "bad row": 2,
    }
    assert traffic.rows == 7
    assert traffic.bad_rows == (
        "log.jsonl:5: not JSON (invalid character (byte 4))",
        "log.jsonl:6: the prompt is empty",
    )
    assert traffic.form == "OpenAI request, prompt"


def test_only_the_first_bad_rows_are_named(tmp_path: Path) -> None:
    traffic = load(query(log(tmp_path, {"prompt": "a"}, *["x"] * 50), skip_bad=True))
    assert traffic.dropped == {"bad row": 50}
    assert [row.split(": ")[0] for row in traffic.bad_rows] == [
        f"log.jsonl:{line}" for line in range(2, 7)
    ]


def test_a_bad_row_stops_the_reading_by_file_and_line(tmp_path: Path) -> None:
    path = log(tmp_path, {"prompt": "a"}, {"prompt": "b", "temperature": MARKER})
    with pytest.raises(TrafficError) as raised:
        load(query(path))
    assert raised.value.message == "log.jsonl:2: `temperature` is not a number"
    assert "--skip-bad" in raised.value.hint


def test_an_unknown_form_lists_the_forms_understood(tmp_path: Path) -> None:
    with pytest.raises(TrafficError) as raised:
        load(query(log(tmp_path, {"instruction": MARKER})))
    assert raised.value.message == "log.jsonl:1: no known form of request"
    assert "conversations" in raised.value.hint
    assert load(query(tmp_path / "log.jsonl", prompt_field="instruction")).rows == 1


def test_a_source_without_a_usable_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match=r"`log.jsonl` holds no rows"):
        load(query(log(tmp_path)))
    path = log(tmp_path, "x", {"prompt": "a", "min_tokens": 5})
    with pytest.raises(TrafficError) as raised:
        load(query(path, skip_bad=True))
    assert "bad row (1), not representable: min_tokens (1); log.jsonl:1:" in raised.value.message


@pytest.mark.parametrize("bad", ['"%s', '{"prompt": "%s", "n": 0}', '{"x": "%s"}', '{"%s": }'])
def test_no_text_of_a_row_stands_in_an_error(tmp_path: Path, bad: str) -> None:
    with pytest.raises(TrafficError) as raised:
        load(query(log(tmp_path, bad % MARKER)))
    assert MARKER not in repr(raised.value) + raised.value.hint


def test_a_field_that_no_row_has_is_a_mistake(tmp_path: Path) -> None:
    path = log(tmp_path, {"prompt": "a", "segment": "s"})
    with pytest.raises(TrafficError, match=r"no row has a segment under `tags\.team`"):
        load(query(path, segment_by="tags.team"))
    with pytest.raises(TrafficError, match="no chosen request has a response under `answer`"):
        load(query(path, response_field="answer"))


def test_a_sample_is_stratified_and_repeatable(tmp_path: Path) -> None:
    rows = [{"prompt": str(i), "segment": "ab"[i % 10 == 0]} for i in range(200)]
    path = log(tmp_path, *rows)
    traffic = load(query(path, sample=20))
    segments = [request.segment for request in traffic.requests]
    assert (segments.count("a"), segments.count("b")) == (18, 2)
    assert sum(request.weight for request in traffic.requests) == pytest.approx(200)
    lines = [int(request.source.split(":")[1]) for request in traffic.requests]
    assert lines == sorted(lines)
    assert load(query(path, sample=20)) == traffic
    assert weights(load(query(path, sample=20, seed=1))) != weights(traffic)
    turned = log(tmp_path, *rows[::-1], name="turned.jsonl")
    assert weights(load(query(turned, sample=20))) == weights(traffic)


def test_a_sample_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="a sample of no requests"):
        load(query(log(tmp_path, {"prompt": "a"}), sample=0))


def test_the_digest_tells_whether_the_traffic_changed(tmp_path: Path) -> None:
    first = load(query(log(tmp_path, {"prompt": "a"}, {"prompt": "b"}))).digest
    again = load(query(log(tmp_path, {"prompt": "b"}, {"prompt": "a"}), sample=1)).digest
    assert first == again
    others = [
        load(query(log(tmp_path, {"prompt": "a"}, {"prompt": "c"}))).digest,
        load(query(log(tmp_path, {"prompt": "a"}, {"prompt": "b"}, {"prompt": "b"}))).digest,
        load(query(log(tmp_path, {"prompt": "a"}, {"prompt": "b"}), key=b"other")).digest,
    ]
    assert len({first, *others}) == 4


def test_a_suite_is_read_by_name_and_by_its_own_segments() -> None:
    for suite in suites():
        traffic = load(query(f"suite:{suite.name}"))
        assert traffic.rows == suite.requests
        assert not traffic.dropped
        assert all(request.segment for request in traffic.requests)
    with pytest.raises(TrafficError) as raised:
        load(query("suite:chatt"))
    assert raised.value.hint == "did you mean `suite:chat`?"


def test_a_suite_name_is_not_a_path() -> None:
    with pytest.raises(TrafficError, match="not found"):
        load(query("suite:../suites/chat"))

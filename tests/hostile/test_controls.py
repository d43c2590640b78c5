"""Text that could move a cursor is harmless wherever it is read."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import query

from draftbench.safe_files import json_without_controls, without_controls
from draftbench.traffic import load


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain – ünïcode 🧑‍💻 خانه‌ها", "plain – ünïcode 🧑‍💻 خانه‌ها"),
        ("\x1b[2J", "�[2J"),
        ("a\nb\tc\x7f", "a�b�c�"),
        ("\x9b31m", "�31m"),
        ("\u202eevil\u2066", "�evil�"),
        ("\udc80", "�"),
    ],
)
def test_controls_go_and_writing_stays(text, clean):
    assert without_controls(text) == clean


@settings(max_examples=30)
@given(st.recursive(st.text() | st.integers() | st.none(), lambda inner: st.lists(inner)
                    | st.dictionaries(st.text(), inner)), st.booleans())  # fmt: skip
def test_a_document_keeps_everything_but_controls(document, escaped):
    raw = json.dumps(document, ensure_ascii=escaped).encode()

    def clean(value):
        if isinstance(value, str):
            return without_controls(value)
        if isinstance(value, list):
            return [clean(inner) for inner in value]
        if isinstance(value, dict):
            return {clean(key): clean(inner) for key, inner in value.items()}
        return value

    assert json.loads(json_without_controls(raw)) == clean(document)


def test_lines_are_kept_where_they_may_be():
    assert without_controls("a\n\x1bb\r\n", lines=True) == "a\n�b�\n"


def test_a_document_of_plain_ascii_is_not_touched():
    raw = b'{"a":  "plain", "b": [1.50, 1e-7]}'
    assert json_without_controls(raw) is raw


@pytest.mark.parametrize("raw", [b'{"a": "\\n', b'"\\n" x', b"\x7f"])
def test_no_document_is_an_error(raw):
    with pytest.raises(msgspec.DecodeError):
        json_without_controls(raw)


def test_a_segment_of_the_traffic_is_a_label(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"prompt": "a", "segment": "\x1b[31mred"}) + "\n")
    found = load(query(log))
    assert found.requests[0].segment == "�[31mred"

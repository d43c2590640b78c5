"""What is read of a log, shown without any model."""

import json

import pytest

from draftbench.traffic.suites import suites

ROWS = [
    {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "passage": "long"},
    {"messages": [{"role": "user", "content": "[REDACTED]"}]},
    {"prompt": "a", "guided_regex": "a+"},
]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "prod.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_a_log_is_described_without_its_texts(command, log):
    outcome = command("traffic", log)
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "2 requests from 3 rows; formats: messages (1), prompt (1)",
        "ignored fields: passage",
        "1 left out: redacted by the logger",
        "assumed where rows do not say it: temperature 0, greedy (1); temperature 1, the default",
        "  of servers (1); no limit on output tokens (2); no top_k (1); top_p 1 (1)",
        "  (--temperature sets another)",
        "1 of 2 requests with structured output, which only an engine applies: the built-in",
        "  decoder leaves them out; beside an engine draft models are replayed without it, so α",
        "  holds only for the other 50%",
        "first request: roles user",
        "temperatures: 0 (1), 1 (1); no limit on output tokens; prompts of 3 characters (median;",
        "  at most 5)",
        "logged answers: 0 of 2 rows",
        "model: m (1)",
    ]


def test_one_look_says_how_many_rows_were_answered_and_by_which_models(command, tmp_path):
    def row(model, answer):
        body = {"model": model, "prompt": "Once", "temperature": 0}
        return {"request": body, "response": {"choices": [{"text": answer}]}}

    log = tmp_path / "log.jsonl"
    printed = "<generator object at 0x7f>"
    rows = [row("m", "upon"), row("m", "upon a time"), row("other", "upon"), row("m", printed)]
    log.write_text("".join(json.dumps(each) + "\n" for each in rows))
    lines = command("traffic", log).out.splitlines()
    assert "models: m (3), other (1); --segment-by request.model reports on each" in lines
    assert "logged answers: 3 of 4 rows, of 4 characters (median; at most 4)" in lines
    apart = command("traffic", log, "--segment-by", "request.model").out
    assert "segments: m (1), other (1)" in apart  # the same request to another is another
    told = json.loads(command("traffic", log, "--format", "json").out)
    assert (told["models"], told["answered"]) == ({"m": 3, "other": 1}, 3)
    assert told["model_field"] == "request.model"
    assert told["figures"]["answers"] == [4, 4]


def test_the_end_of_the_first_request_is_shown_on_request_and_for_a_suite(command, log):
    assert (
        "first request: roles user; ends with 'Hello'"
        in command("traffic", log, "--show-prompt").out
    )
    assert "message); ends with" in " ".join(command("traffic", "suite:completion").out.split())


def test_json_and_markdown_say_the_same(command, log):
    told = json.loads(command("traffic", log, "--format", "json").out)
    assert (told["forms"], told["unread"]) == ({"messages": 1, "prompt": 1}, {"passage": 1})
    assert told["first"] == {"roles": ["user"], "end": None}
    lines = command("traffic", log, "--format", "markdown").out.splitlines()
    assert lines[0] == "- 2 requests from 3 rows; formats: messages (1), prompt (1)"


def test_what_requests_ask_for_is_counted(command, tmp_path):
    rows = [
        {"prompt": "a" * size, "temperature": heat, "max_tokens": most, "segment": segment}
        for size, heat, most, segment in (
            (1, 0, 32, "chat"),
            (2, 0.7, 320, "code"),
            (9, 0.7, 64, "code"),
        )
    ]
    rows[0]["timestamp"] = "2026-01-01T00:00:00Z"
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command("traffic", log).out.splitlines()[-5:] == [
        "temperatures: 0 (1), 0.7 (2); max output tokens 32–320; prompts of 2 characters (median;",
        "  at most 9)",
        "logged answers: 0 of 3 rows",
        "segments: code (2), chat (1)",
        "times of arrival: 1 request",
    ]


def test_how_often_a_request_counts_and_what_was_guessed_of_a_table_is_said(command, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("model;prompt;n\nm;a;\nm;a;\nm;a;4\n")
    assert command("traffic", log).out.splitlines()[:4] == [
        "1 request from 3 rows; format: prompt",
        "2 rows repeated: a request counts once per row",
        "1 row asking for several answers (n): the request counts n times",
        "the file is read as columns separated by semicolons",
    ]


def test_a_bad_row_is_named_with_its_reason(command, log):
    log.write_text('{"prompt": "a"}\n{"question": "b"}\n{"prompt": \n{"question": "c"}\n')
    outcome = command("traffic", log)
    assert (outcome.code, outcome.out) == (2, "")
    assert "prod.jsonl:2: no prompt or messages found; its fields are `question`" in outcome.err
    assert "prod.jsonl:3: not JSON" in outcome.err
    skipped = " ".join(command("traffic", log, "--skip-bad").out.split())
    assert "bad row prod.jsonl:2: no prompt or messages found" in skipped
    assert "(2 such rows)" in skipped


def test_only_a_sweep_samples_so_a_log_is_shown_without_a_seed(command, log):
    assert "--seed" not in command("traffic", "--help").out
    assert "--seed" in command("sweep", "--help").out


def test_without_a_source_the_built_in_suites_are_listed_as_a_sweep_takes_them(command):
    outcome = command("traffic")
    assert (outcome.code, outcome.err) == (0, "")
    named = [line.split()[0] for line in outcome.out.splitlines() if line.startswith("suite:")]
    assert named == [f"suite:{suite.name}" for suite in suites()]
    listed = json.loads(command("traffic", "--format", "json").out)
    assert [row["name"] for row in listed] == [suite.name for suite in suites()]

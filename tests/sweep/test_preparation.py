"""What a sweep finds out before it loads any weights, and what its manifest keeps of it."""

from __future__ import annotations

import json

import pytest

from draftbench.errors import TrafficError
from draftbench.measure.prompts import TextSide
from draftbench.run_folder.manifest import Effort
from draftbench.sweep import prepare
from draftbench.traffic import TrafficQuery


def logged(tmp_path, *answers):
    """A log with these answers as the traffic."""
    path = tmp_path / "prod.jsonl"
    rows = [{"prompt": f"def f{i}():\n", "response": answer} for i, answer in enumerate(answers)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TrafficQuery(str(path), None, 0, None, None, None, False, b"key")


@pytest.fixture
def tokenless(monkeypatch):
    """A tokenizer that makes nothing of some answers."""
    answer = TextSide.answer

    def some(self, request):
        return [] if request.response == "nothing" else answer(self, request)

    monkeypatch.setattr(TextSide, "answer", some)


def test_a_logged_answer_without_tokens_is_left_out_and_counted(small, tmp_path, tokenless):
    """Known fault: a response of no tokens made a run that could not be read again."""
    traffic = logged(tmp_path, "    return 1\n", "nothing")
    options = small.options("ngram", traffic=traffic, responses="log")
    prepared = prepare(options, "draftbench sweep", small.notes())
    assert [len(prompt.logged) > 0 for prompt in prepared.prompts] == [True]
    assert prepared.manifest.traffic.requests == 1
    assert prepared.manifest.traffic.dropped == {"a logged answer without any token": 1}


def test_a_log_of_answers_without_tokens_is_refused(small, tmp_path, tokenless):
    options = small.options("ngram", traffic=logged(tmp_path, "nothing"), responses="log")
    with pytest.raises(TrafficError, match="a logged answer without any token: 1"):
        prepare(options, "draftbench sweep", small.notes())


def test_a_logged_answer_is_cut_at_the_limit(small, tmp_path):
    traffic = logged(tmp_path, "    return sum(value for value in values if value)\n")
    options = small.options("ngram", traffic=traffic, responses="log", max_new_tokens=3)
    (prompt,) = prepare(options, "draftbench sweep", small.notes()).prompts
    assert (len(prompt.logged), prompt.request.response) == (3, None)


def test_the_manifest_keeps_the_effort_and_the_drafts_as_they_were_given(small, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(small.models / "draft")
    options = small.options(link, "ngram", measure="best", measure_requests=7, controls=True)
    manifest = prepare(options, "draftbench sweep", small.notes()).manifest
    assert manifest.specs == {"draft": str(link)}
    assert manifest.effort == Effort(measure="best", measure_requests=7, controls=True, sample=2)

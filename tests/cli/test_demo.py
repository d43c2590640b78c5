"""`draftbench demo`: what it runs is tested where it lives; here what it adds."""

import re

import pytest

from draftbench import notebook
from draftbench.cli import demo


def test_a_sweep_that_ended_in_an_error_is_not_judged(command, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "run_sweep", lambda *_: (3, None))
    outcome = command("demo", "--out", tmp_path / "run")
    assert (outcome.code, outcome.out) == (3, "")
    assert "next:" not in outcome.err


@pytest.mark.slow
def test_the_tour_is_short_and_shows_what_the_gate_makes_of_a_better_and_a_worse_draft(
    command, tmp_path
):
    outcome = command("demo", "--out", tmp_path / "run")
    assert outcome.code == 0
    assert len((outcome.out + outcome.err).splitlines()) <= 80  # two screens; 66 on a quiet machine
    # A better draft passes if the machine is quiet enough to tell that it pays as much.
    better = re.search(r"(\w+) \(exit code (\d)\): `distilled` replaces `draft`", outcome.out)
    assert better.groups() in (("pass", "0"), ("inconclusive", "3"))
    assert "fail (exit code 1): `draft` replaces `distilled`" in outcome.out
    assert outcome.out.count("another draft: speed-up ") == 2
    assert "next: draftbench recommend" in outcome.err
    own = "draftbench sweep --target ./target --drafts ./draft --traffic prod.jsonl"
    assert outcome.err.rstrip().endswith(own)
    answer = notebook.recommend(notebook.read(tmp_path / "run"))
    best = next(each for each in answer.by_candidate if each.draft in (demo.WORSE, demo.BETTER))
    assert f"`draft` and `distilled` at k = {best.k}:" in outcome.out

"""`draftbench demo`: what it runs is tested where it lives; here what it adds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from draftbench import notebook
from draftbench.cli import demo
from draftbench.gate.baseline import read_baseline


def evaluation(draft, speedup, c, v, k=3):
    values = {"draft_cost_ratio": c, "verify_ratio": v, "speedup_expected": speedup}
    figures = {name: SimpleNamespace(value=value) for name, value in values.items()}
    return SimpleNamespace(draft=draft, k=k, best=True, speedup_predicted=None, **figures)


def test_where_no_draft_pays_its_own_figures_say_why():
    answer = SimpleNamespace(evaluations=[evaluation("distilled", 0.9, c=0.25, v=1.75)])
    said = " ".join(" ".join(demo._why_not(answer)).split())
    # Four tokens for 3 · 0.25 + 1.75 = 2.5 target steps.
    assert "c = 0.25 target steps and verifying v(4) = 1.75" in said
    assert "would reach 1.60×, this one reaches 0.90×" in said


def test_where_a_draft_pays_there_is_nothing_to_explain():
    drafts = [evaluation("draft", 0.9, 0.1, 1.5), evaluation("distilled", 1.2, 0.1, 1.5)]
    assert demo._why_not(SimpleNamespace(evaluations=drafts)) == []


def test_a_sweep_that_ended_in_an_error_is_not_judged(command, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "run_sweep", lambda *_: (3, None))
    outcome = command("demo", "--out", tmp_path / "run")
    assert (outcome.code, outcome.out) == (3, "")
    assert "next:" not in outcome.err


@pytest.mark.slow
def test_the_tour_fits_a_screen_and_shows_a_gate_that_passes_and_one_that_fails(command, tmp_path):
    outcome = command("demo", "--out", tmp_path / "run")
    assert outcome.code == 0
    assert len((outcome.out + outcome.err).splitlines()) <= 60
    assert "pass (exit code 0): `distilled` replaces `draft`" in outcome.out
    assert "fail (exit code 1): `draft` replaces `distilled`" in outcome.out
    assert "next: draftbench recommend" in outcome.err
    own = "draftbench sweep --target ./target --drafts ./draft --traffic prod.jsonl"
    assert outcome.err.rstrip().endswith(own)
    answer = notebook.recommend(notebook.read(tmp_path / "run"))
    best = next(each for each in answer.by_candidate if each.draft in (demo.WORSE, demo.BETTER))
    saved = read_baseline(tmp_path / "run" / "baseline.json")
    assert (saved.candidate, saved.question.k) == (str(best.candidate), best.k)

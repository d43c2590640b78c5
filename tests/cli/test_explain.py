"""Caveats explained by name."""

import json

from draftbench.planner.caveat_kinds import ACCEPTANCE, CAVEATS, SPEED


def test_a_caveat_is_explained_with_its_threshold_and_what_to_do(command):
    outcome = command("explain", "drift")
    assert (outcome.code, outcome.err) == (0, "")
    shown = " ".join(outcome.out.split())
    assert "Plain decoding changed by more than 5% (on an engine 10%) from the first half" in shown
    assert "Affects: Every answer about speed" in shown
    assert "What to do: Sweep again" in shown
    found = json.loads(command("explain", "drift", "--format", "json").out)
    assert found["drift"]["doubts"] == "speed"


def test_without_a_name_all_are_listed(command):
    shown = command("explain").out.splitlines()
    assert [line.split()[0] for line in shown if line[:1].strip()][2:] == [*CAVEATS]


def test_an_unknown_caveat_is_an_error(command):
    outcome = command("explain", "drfit")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: there is no caveat `drfit`\nhint: did you mean `drift`?")


def test_none_is_about_acceptance_and_speed_at_once_and_each_says_when_and_what_to_do():
    assert not ACCEPTANCE & SPEED
    for about in CAVEATS.values():
        for words in (about.means, about.when, about.advice):
            assert words[0].isupper() or words[0] == "`"
            assert words.endswith(".")

"""`draftbench demo`: in which order it says what; what it runs is tested where it lives."""

from __future__ import annotations

import typer

from draftbench.cli import demo


def say_instead(monkeypatch, codes):
    """Stand-ins of the sweep and of the gate that say that they ran."""

    def of(name):
        def ran(*args, **flags):
            typer.echo(f"{name} ran", err=True)
            return codes[name]

        return ran

    monkeypatch.setattr(demo, "run_sweep", of("sweep"))
    monkeypatch.setattr(demo, "gate", of("gate"))


def test_what_to_do_next_comes_last_as_commands_to_paste(command, monkeypatch, tmp_path):
    say_instead(monkeypatch, {"sweep": 1, "gate": 0})
    run = tmp_path / "a run"
    outcome = command("demo", "--out", run)
    assert outcome.code == 0
    assert outcome.err.splitlines() == [
        "sweep ran",
        "gate ran",
        "gate ran",
        "",
        f"next: draftbench recommend '{run}' --all",
        f"      draftbench report '{run}' --html '{run}/report.html'",
        f"      draftbench gate --baseline '{run}/baseline.json' '{run}'",
    ]


def test_quiet_says_nothing_of_it(command, monkeypatch, tmp_path):
    say_instead(monkeypatch, {"sweep": 0, "gate": 0})
    outcome = command("demo", "--quiet", "--out", tmp_path / "run")
    assert "next:" not in outcome.err


def test_a_sweep_that_ended_in_an_error_is_not_judged(command, monkeypatch, tmp_path):
    say_instead(monkeypatch, {"sweep": 3, "gate": 0})
    outcome = command("demo", "--out", tmp_path / "run")
    assert (outcome.code, outcome.err) == (3, "sweep ran\n")

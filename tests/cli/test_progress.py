"""What a sweep shows while it works, on a console of known width."""

import io

import hand
import pytest
from rich.console import Console
from scenes import trajectory

from draftbench.cli import progress
from draftbench.cli.progress import TerminalWatcher
from draftbench.records import Candidate


@pytest.fixture
def console():
    """A watcher and everything that it printed so far."""

    def make(*, terminal=False, quiet=False, verbose=False):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=80, color_system=None)
        return TerminalWatcher(console, quiet=quiet, verbose=verbose), stream.getvalue

    return make


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only a test moves."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("done", "line"),
    [(1, "small: replay (stopped after 1 of 5): 2.0 s"), (5, "small: replay (5): 2.0 s")],
)
def test_a_stage_ends_with_its_time_and_what_was_done_of_it(console, clock, done, line):
    watcher, text = console(verbose=True)
    with watcher:
        watcher.stage("replay", 5, Candidate(draft="small"))
        watcher.advance(done)
        clock[0] = 2.0
    assert text().splitlines() == [f"small: replay: {done} of 5", line]


@pytest.mark.parametrize(
    ("how", "printed"),
    [
        ({}, "a note\n"),
        ({"quiet": True, "verbose": True}, ""),
        ({"quiet": True, "verbose": True, "terminal": True}, ""),
    ],
)
def test_without_a_terminal_only_notes_are_printed_and_quietly_what_has_to_be_known(
    console, how, printed
):
    watcher, text = console(**how)
    with watcher:
        watcher.expect(["small"], [1])
        watcher.stage("replay", 2, Candidate(draft="small"))
        watcher.advance()
        watcher.note("a note")
        watcher.note("device: cpu", always=True)
    assert text() == f"{printed}device: cpu\n"


def test_without_a_terminal_a_long_stage_prints_a_line_every_20_seconds(console, clock):
    """A model that takes long to load is kept before its first replay: no time left is guessed. A
    note counts as a line.
    """
    watcher, text = console()
    with watcher:
        watcher.stage("replay", 10, Candidate(draft="small"))
        clock[0] = 21.0
        watcher.advance(0)
        for clock[0] in (27.0, 33.0, 42.0, 50.0):
            watcher.advance()
        clock[0] = 60.0
        watcher.note("a note")
        for clock[0] in (62.0, 81.0):
            watcher.advance()
    assert text().splitlines() == [
        "small: replay: 0 of 10",
        "small: replay: 3 of 10   about 1.6 min left",  # 42 s / 3 * 7
        "a note",
        "small: replay: 6 of 10   about 54 s left",
    ]


def test_without_a_terminal_short_stages_print_a_line_every_20_seconds_together(console, clock):
    watcher, text = console()
    with watcher:
        for stage in range(4):
            watcher.stage(f"step times, {stage} rows", 3, Candidate(draft="small"))
            clock[0] += 15.0
            watcher.advance(2)
    # After 30 s and, two stages later, 60 s.
    assert [line.partition(":")[0] for line in text().splitlines()] == ["small", "small"]
    assert [line.partition(" rows")[0][-1] for line in text().splitlines()] == ["1", "3"]


def test_the_view_shows_alpha_tau_and_the_speed_of_the_candidate_at_work(console, clock):
    watcher, text = console(terminal=True)
    with watcher:
        watcher.expect(["small", "big"], [1, 2])
        watcher.recorded([trajectory(f"r{at}") for at in range(5)])
        watcher.stage("replay", 4, Candidate(draft="small"))
        watcher.recorded([hand.replay(f"r{at}", (1.0,) * 8) for at in range(5)])
        # Eight tokens: 8 s without a draft, 4 s with k = 2.
        watcher.recorded([hand.decode("r1", 0, 8.0), hand.decode("r1", 2, 4.0)])
        clock[0] = 3.0
        watcher.advance()
    # All accepted at k = 2: rounds of 3, 3 and 2 tokens.
    assert "α 1.00 ±0.00   τ 2.67 ±0.00 at k = 2\n" in text()
    assert "tokens/s: 1 without a draft, 2 at k = 2\n" in text()
    assert "1/4\n" in text().replace(" \n", "\n")
    assert "candidate 1 of 2, about 9 s left" in text()


def test_a_row_of_a_batch_is_shown_with_its_share_of_the_speed(console):
    watcher, text = console(terminal=True)
    with watcher:
        watcher.expect(["small"], [1, 2])
        watcher.recorded([hand.decode("r1", 0, 8.0, concurrency=4)])
        watcher.stage("decode", 2, Candidate(draft="small"))
    # Eight tokens in 8 s.
    assert "tokens/s of each of 4 requests: 1 without a draft\n" in text()


A, B = Candidate(draft="a"), Candidate(draft="b")
# 100 s in all, 4 s of them until the target is loaded and 2 s until B is.
PLAN = [
    (None, "responses", 4.0, 6.0),
    (A, "replay", 0.0, 5.0),
    (A, "decoding", 0.0, 35.0),
    (B, "replay", 2.0, 3.0),
    (B, "decoding", 0.0, 45.0),
]


@pytest.fixture
def planned(console, clock):
    """planned(): a watcher of this plan, whose first stage took twice as long as planned, and what
    it says is left.
    """
    watcher, text = console(terminal=True)

    def left():
        _, _, last = text().rpartition(", about ")
        return last.partition(" left in all")[0]

    watcher.expect(["a", "b"], [1], PLAN)
    with watcher:
        clock[0] = 4.0  # the target is loaded
        watcher.stage("responses of the target", 2)
        clock[0] = 20.0
        watcher.advance(2)
        yield watcher, left


def test_what_is_left_takes_as_many_times_its_plan_as_what_is_done_took(planned, clock):
    """A fifth of the plan, 20 s, counts as done in its time."""
    watcher, left = planned
    watcher.stage("replay", 1, A)
    assert left() == "2 min"  # 90 s, times 20 + 20 over 10 + 20
    clock[0] = 40.0
    watcher.advance()
    watcher.stage("decoding at k = 3", 10, A)
    assert left() == "2.4 min"  # 85 s, times 40 + 20 over 15 + 20


def test_the_time_left_moves_within_a_stage(planned, clock):
    """Half of the decoding took 52.5 s: with what went before 82.5 s instead of 32.5 s. What is
    left of it, 17.5 s, and the rest, 50 s, takes as many times its plan.
    """
    watcher, left = planned
    clock[0] = 30.0
    watcher.stage("replay", 1, A)
    watcher.advance()
    watcher.stage("decoding at k = 3", 10, A)
    clock[0] = 82.5
    watcher.advance(5)
    assert 131 < (17.5 + 50) * (82.5 + 20) / (32.5 + 20) < 132
    assert left() == "2.2 min"


def test_a_stage_that_is_longer_than_planned_has_that_much_more_left(planned, clock):
    """Decoding at two k's and without a draft takes 1.5 times what one k was planned at: 52.5 s."""
    watcher, left = planned
    watcher.stage("decoding at k = 2, 3", 10, A, 1.5)
    assert left() == "2.3 min"  # 52.5 + 50 s, times 20 + 20 over 10 + 20


def test_between_two_units_the_time_left_is_counted_down(planned, clock):
    watcher, left = planned
    watcher.stage("replay", 1, A)
    assert left() == "2 min"
    clock[0] = 50.0
    watcher.advance(0)
    assert left() == "1.5 min"


def test_what_an_earlier_run_has_done_is_not_waited_for(planned):
    watcher, left = planned
    watcher.stage("replay", 1, B)
    assert left() == "1 min"  # 48 s, times 20 + 20 over 10 + 2 + 20: b is loaded


@pytest.mark.parametrize("at_most", [False, True])
def test_what_is_loaded_for_a_stage_is_done_when_it_begins(console, clock, at_most):
    watcher, text = console(terminal=True)
    watcher.expect(["a", "b"], [1], PLAN, at_most=at_most)
    with watcher:
        clock[0] = 4.0
        watcher.stage("responses of the target", 2)
    # 96 s, as planned; a sweep may end early.
    assert f"{'at most' if at_most else 'about'} 1.6 min left in all" in text()


def test_of_a_plan_of_proportions_nothing_is_said_while_nothing_is_done(console):
    watcher, text = console(terminal=True)
    stages = [(A, "one by one", 0.0, 5.0)]
    watcher.expect(["a"], [1], stages, in_seconds=False)
    with watcher:
        watcher.stage("one by one", 2, A)
    assert "left in all" not in text()


def test_a_note_in_the_middle_of_a_stage_does_not_end_it(console, clock):
    """A server that answers one request with an error goes on."""
    watcher, text = console(terminal=True)
    with watcher:
        watcher.stage("k = 3, one by one", 2, A)
        watcher.note("r1: an error")
        clock[0] = 3.0
        watcher.advance()
        assert "about 3 s left" in text()
    assert text().count("k = 3, one by one (") == 1


def test_the_line_of_a_minute_says_what_is_left_of_the_whole(console, clock):
    watcher, text = console()
    watcher.expect(["a", "b"], [1], PLAN)
    with watcher:
        watcher.stage("responses of the target", 2)
        clock[0] = 61.0
        watcher.advance()
    # 4 s and 3 s of the plan took 61 s, and 20 s count as done: the 93 s that are left of it take
    # three times that.
    assert text() == "responses of the target: 1 of 2   about 4.7 min left in all\n"


def test_drawing_is_a_small_share_of_the_time(console, clock, monkeypatch):
    """A view that takes 1 s to draw is drawn once in 50 s."""
    watcher, _ = console(terminal=True)
    drawn = []

    def slow(renderable, refresh):
        drawn.append(clock[0])
        clock[0] += 1.0

    with watcher:
        monkeypatch.setattr(watcher._view, "update", slow)
        watcher.stage("replay", 100, Candidate(draft="a"))
        for _ in range(100):
            clock[0] += 1.0
            watcher.advance()
        monkeypatch.undo()
    assert len(drawn) == 2


def test_names_from_files_do_not_move_the_cursor(console):
    watcher, text = console(terminal=True)
    with watcher:
        watcher.stage("replay", 1, Candidate(draft="evil\x1b[31m"))
        watcher.advance()
    assert "\x1b[31m" not in text()

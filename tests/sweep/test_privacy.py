"""No error about a row of the traffic quotes it, and a run without its texts says the same.

What may be shared is searched in `tests/hostile/test_marker.py`.
"""

from __future__ import annotations

import json

import pytest

from draftbench.cli import main

MARKER = "zebra-quartz-4711 lives at 12 Elm Street"


@pytest.fixture
def traffic(tmp_path):
    path = tmp_path / "prod.jsonl"
    rows = [{"prompt": f"def f{i}():\n    return", "temperature": 0.7 * i} for i in range(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sweep(small, traffic, out, *more):
    models = ["--target", str(small.models / "target"), "--drafts", str(small.models / "draft")]
    effort = ["--measure", "all", "--k", "1-2", "--max-new-tokens", "10", "--threads", "1"]
    return main(["sweep", *models, "--traffic", str(traffic), "--out", str(out), *effort, *more])


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [MARKER]},
        {"prompt": "x", "temperature": MARKER},
        {"messages": [{"role": MARKER, "content": MARKER}]},
        {"messages": [{"role": "user", "content": MARKER}]},
        {MARKER: "x"},
    ],
)
def test_no_error_about_a_row_quotes_it(tmp_path, small, capfd, row):
    path = tmp_path / "prod.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert sweep(small, path, tmp_path / "run") == 2
    told = capfd.readouterr()
    assert "error: " in told.err
    assert "zebra" not in told.out + told.err


def test_redacting_changes_no_figure(tmp_path, small, traffic, capsys):
    out = tmp_path / "run"
    assert sweep(small, traffic, out, "--format", "json") == 0
    answers = []
    for command in (["runs", "redact", str(out)], None):
        capsys.readouterr()
        assert main(["recommend", str(out), "--format", "json"]) == 0
        answers.append(capsys.readouterr().out)
        if command:
            assert main(command) == 0
    assert answers[0] == answers[1]
    assert not (out / "private").exists()

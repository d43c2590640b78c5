"""`draftbench report` on a run made by hand."""

import hand
import pytest

from draftbench.run_folder.folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    run = RunFolder.create(tmp_path / "run", hand.manifest())
    with run.writer() as writer:
        writer.append(hand.perfect())
        run.note_sweep(run.manifest, None)
    return str(run.path)


def test_a_page_and_charts_are_written_and_named_on_stderr(folder, tmp_path, command):
    out, charts = tmp_path / "report.html", tmp_path / "charts"
    outcome = command("report", folder, "--html", out, "--plots", charts)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == f"wrote {out}\nwrote charts to {charts}\n"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(list(charts.glob("*.svg"))) == len(list(charts.glob("*.png"))) == 6


def test_without_a_file_the_page_is_written_into_the_run_folder(folder, command, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or False)
    page = f"{folder}/report.html"
    assert command("report", folder).err == f"wrote {page}\n"
    said = command("report", folder, "--open").err.splitlines()
    assert said == [f"wrote {page}", "no browser can be started here; open the file yourself"]
    assert opened == [f"file://{page}"]


def test_a_second_run_or_one_without_candidates_is_a_usage_error(folder, tmp_path, failing):
    page = ("--html", tmp_path / "x.html")
    failing(2, "report", folder, folder, *page)
    RunFolder.create(tmp_path / "empty", hand.manifest())
    assert "no candidate was measured" in failing(2, "report", tmp_path / "empty", *page)

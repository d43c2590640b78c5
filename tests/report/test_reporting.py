import pytest

from draftbench.cli import main
from draftbench.run_folder.folder import RunFolder


@pytest.fixture
def folder(hand, tmp_path):
    run = RunFolder.create(tmp_path / "run", hand.manifest())
    writer = run.writer()
    writer.append(hand.perfect())
    writer.close()
    return str(run.path)


def test_a_page_and_charts_are_written_and_named_on_stderr(folder, tmp_path, capsys):
    out, charts = tmp_path / "report.html", tmp_path / "charts"
    assert main(["report", folder, "--html", str(out), "--plots", str(charts)]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(list(charts.glob("*.svg"))) == len(list(charts.glob("*.png"))) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"wrote {out}\nwrote charts to {charts}\n"


def test_one_run_as_text_is_what_recommend_prints(folder, capsys):
    main(["recommend", folder, "--format", "json"])
    expected = capsys.readouterr().out
    main(["report", folder, "--format", "json"])
    assert capsys.readouterr().out == expected


def test_text_draws_nothing_of_the_page(folder, monkeypatch, capsys):
    monkeypatch.setattr("draftbench.report.charts.charts_of", None)
    assert main(["report", folder]) == 0
    assert capsys.readouterr().out.startswith("Speculate: small")


def test_a_second_run_is_a_usage_error(folder, capsys):
    assert main(["report", folder, folder]) == 2
    assert "error:" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_a_usage_error(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "x.html")]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_a_run_without_candidates_is_a_usage_error(hand, tmp_path, capsys):
    RunFolder.create(tmp_path / "run", hand.manifest())
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "no candidate was measured" in capsys.readouterr().err

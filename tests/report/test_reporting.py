import csv
import json

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


def test_a_page_is_written_and_named_on_stderr(folder, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert main(["report", folder, "--html", str(out)]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(out) in printed.err


def test_one_run_as_text_is_what_recommend_prints(folder, capsys):
    main(["recommend", folder, "--format", "json"])
    expected = capsys.readouterr().out
    main(["report", folder, "--format", "json"])
    assert capsys.readouterr().out == expected


def test_several_runs_are_one_json_list_and_one_csv_table(folder, capsys):
    main(["report", folder, folder, "--format", "json"])
    answers = json.loads(capsys.readouterr().out)
    assert [answer["run"] for answer in answers] == [folder, folder]
    main(["report", folder, folder, "--format", "csv"])
    head, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert head[:2] == ["run", "draft"]
    assert [row[0] for row in rows] == [folder] * 4


def test_plots_of_several_runs_lie_in_a_folder_each(folder, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(
        "draftbench.report.plots.save", lambda drawing, where: found.append((drawing.name, where))
    )
    assert main(["report", folder, folder, "--plots", str(tmp_path)]) == 0
    assert ("memory", tmp_path / "1-run") in found
    assert ("memory", tmp_path / "2-run") in found
    assert ("speedup-by-run", tmp_path) in found


def test_a_folder_that_is_no_run_is_a_usage_error(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "x.html")]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_a_run_without_candidates_is_a_usage_error(hand, tmp_path, capsys):
    RunFolder.create(tmp_path / "run", hand.manifest())
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "no candidate was measured" in capsys.readouterr().err

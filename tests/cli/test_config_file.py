"""A sweep from a YAML file: what it sets, what overrides it, and what is refused."""

import pytest
import yaml


@pytest.fixture
def file(tmp_path):
    """Write a sweep file."""

    def write(text):
        path = tmp_path / "sweep.yaml"
        path.write_text(text)
        return path

    return write


WHOLE = "target: ./t\ntraffic: prod.jsonl\ndrafts: [a]\n"


@pytest.fixture
def printed(command):
    def run(*words):
        outcome = command("sweep", *words, "--print-config")
        assert (outcome.code, outcome.err) == (0, "")
        return yaml.safe_load(outcome.out)

    return run


def test_keys_are_long_flags_with_dashes_or_underscores(file, printed):
    found = printed(
        file(WHOLE + "max_new_tokens: 24\nmeasure-requests: 3\nformat: json\ncontrols: false\n")
    )
    assert (found["target"], found["traffic"]) == ("./t", "prod.jsonl")
    assert (found["max-new-tokens"], found["measure-requests"]) == (24, 3)
    assert (found["format"], found["controls"]) == ("json", False)


def test_the_command_line_overrides_the_file(file, printed):
    path = file(WHOLE + "k: 1-4\ncontrols: false\n")
    found = printed(path, "--k", "2", "--drafts", "c", "--controls")
    assert (found["k"], found["drafts"], found["controls"]) == ("2", ["c"], True)


def test_lists_serve_flags_that_repeat_and_flags_with_commas(file, printed):
    found = printed(
        file("target: t\ntraffic: x\ndrafts: ./one\nquant: [none, int4]\nk: [1, 2, 8]\n")
    )
    assert (found["drafts"], found["quant"], found["k"]) == (["./one"], ["none", "int4"], "1,2,8")


def test_what_is_printed_gives_the_same_again_and_an_empty_value_leaves_the_default(file, printed):
    found = printed(file(WHOLE + "temperature: 0.7\nout: runs/x\nsample:\nseed:\n"))
    assert (found["out"], found["seed"], "sample" in found) == ("runs/x", 0, False)
    assert printed(file(yaml.safe_dump(found))) == found
    assert printed("--target", "t", "--traffic", "x", "--drafts", "d")["k"] == "1-8"


def test_a_sweep_from_a_file_runs(file, command, embedded):
    path = file(
        f"target: {embedded / 'target'}\ntraffic: suite:completion\ndrafts: [ngram]\nk: 3\n"
    )
    outcome = command("sweep", path, "--sample", 2, "--dry-run")
    assert outcome.code == 0
    assert "k = 3, or fewer" in outcome.out
    assert "2 requests with" in outcome.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WHOLE + "xyzzy: 1\n", ["unknown key `xyzzy`", "long flags"]),
        (WHOLE + "no-controls: true\n", ["unknown key `no-controls`", "`controls`"]),
        (WHOLE + "print-config: true\n", ["unknown key `print-config`"]),
        (WHOLE + "help: true\n", ["unknown key `help`"]),
        (WHOLE + "q: true\n", ["unknown key `q`"]),
        (WHOLE + "skip-bad: true\nskip_bad: false\n", ["is given twice"]),
        (WHOLE + "controls: 3\n", ["must be true or false"]),
        (WHOLE + "sample: true\n", ["must be text, a number or a list"]),
        ("target: t\ndrafts: [[a]]\n", ["must be text, a number or a list"]),
        (WHOLE + "sample: 1.5\n", ["--sample"]),
        (WHOLE + "sample: 0\n", ["--sample"]),
        (WHOLE + "mode: gredy\n", ["did you mean `greedy`?"]),
        ("target: t\ndrafts: a\n", ["`--traffic`"]),
        ("- target\n", ["holds no flags"]),
        ("", ["holds no flags"]),
    ],
)
def test_files_that_are_refused(failing, file, text, words):
    """Besides those of errors.json."""
    said = failing(2, "sweep", file(text), "--print-config")
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(
    ("name", "said"),
    [(".", "is a folder"), ("model.gguf", "is not YAML")],
)
def test_what_is_no_text_file_is_refused(failing, tmp_path, name, said):
    (tmp_path / "model.gguf").write_bytes(b"\xff\xfe\x00\x80")
    assert said in failing(2, "sweep", tmp_path / name)

"""One small sweep that all tests of this folder share."""

from __future__ import annotations

import contextlib
import io

import pytest
from scenes import EMBEDDED, Outcome, stranger, with_fields

from draftbench.cli import main


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """A BERT with the vocabulary of the embedded target, as masked language models are saved."""
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    folder = tmp_path_factory.mktemp("models") / "bert"
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForMaskedLM(BertConfig(vocab_size=2048, **small)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(EMBEDDED / "target").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sweep_words(tmp_path_factory):
    """A sweep of the embedded pair that takes seconds; `stranger` cannot pair and fails."""
    other = stranger(tmp_path_factory.mktemp("models"))
    words = ["sweep", "--target", EMBEDDED / "target", "--traffic", "suite:completion"]
    for draft in (EMBEDDED / "draft", "ngram", other):
        words += ["--drafts", draft]
    words += ["--sample", 6, "--max-new-tokens", 24, "--k", "1,2", "--no-controls"]
    return [*words, "--measure", "all", "--threads", 1]


@pytest.fixture(scope="session")
def once():
    """A command line that several tests look at, run for the first of them."""

    def run(*words) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DRAFTBENCH_KEY", "the key of the tests")
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main([str(word) for word in words])
        return Outcome(code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture(scope="session")
def swept(sweep_words, once, tmp_path_factory):
    """The run folder of that sweep and what the command left behind."""
    folder = tmp_path_factory.mktemp("swept") / "run"
    return folder, once(*sweep_words, "--out", folder)


@pytest.fixture
def pinned(command, swept, tmp_path):
    """A baseline of the draft at k = 2, as a file that a test may change, and as of a run before
    that measured the same.
    """
    file = tmp_path / "baseline.json"
    outcome = command("gate", "--save", file, swept[0], "--candidate", "draft", "--k", 2)
    assert (outcome.code, outcome.out) == (0, "")
    assert "saved draft at k = 2 on 6 requests" in outcome.err
    return with_fields(file, run="the one before")


@pytest.fixture
def no_weights(monkeypatch):
    """Whatever is found out here must be before any weights load."""
    from draftbench.models.source import ModelSource

    def load(self, dtype, device):
        raise AssertionError(f"the weights of {self.spec} were loaded")

    monkeypatch.setattr(ModelSource, "load", load)

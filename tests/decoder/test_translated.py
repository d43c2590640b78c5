"""A draft behind another vocabulary: what it reads and continues, by hand."""

import pytest
import torch

from draftbench.decoder.scripted_model import ScriptedRunner
from draftbench.decoder.translated import TranslatedRunner

NEVER = -torch.inf


@pytest.fixture
def read():
    """The draft's ids that were read so far."""
    return []


@pytest.fixture
def runner(read):
    """Target ids 0, 1, 3 and 4 of five are the draft's 2, 0, 3 and 1; its 4 is unknown to both."""

    def script(tokens):
        read.append(tokens[-1])
        return torch.tensor([0.0, 1.0, 2.0, 3.0, 9.0])

    return TranslatedRunner(ScriptedRunner(script, 5), 5, {0: 2, 1: 0, 3: 3, 4: 1}, unknown=4)


def test_a_draft_reads_its_own_ids_and_an_unknown_one_for_what_it_lacks(runner, read):
    runner.forward(torch.tensor([0, 1, 2, 3, 4]), runner.new_cache(8), every=True)
    assert read == [2, 0, 4, 3, 1]


def test_it_continues_with_the_targets_ids_and_never_with_what_it_lacks(runner):
    logits = runner.forward(torch.tensor([0, 2]), runner.new_cache(8), every=True)
    assert logits.tolist() == [[2.0, 0.0, NEVER, 3.0, 1.0]] * 2


def test_a_target_with_other_rows_has_logits_for_its_own(read):
    """The draft's best token, 2, is nobody's here."""
    draft = ScriptedRunner(lambda tokens: torch.tensor([1.0, 2.0, 3.0]), 3)
    for rows in (2, 4):
        runner = TranslatedRunner(draft, rows, {0: 0, 1: 1}, unknown=2)
        logits = runner.forward(torch.tensor([rows - 1]), runner.new_cache(8), every=False)
        assert logits.tolist() == [[1.0, 2.0, *[NEVER] * (rows - 2)]]
        assert runner.vocab_size == rows

"""Teacher forcing by chunks against transformers' one pass over the whole."""

import pytest
import torch

from draftbench.decoder.scripted_model import ScriptedRunner, markov
from draftbench.drafts.model.draft import replay_model
from draftbench.errors import ModelError
from draftbench.measure import teacher
from draftbench.measure.teacher import teacher_forced
from draftbench.records import Candidate, DraftingMode

PROMPT, RESPONSE = tuple(range(5, 25)), tuple(range(100, 140))


@pytest.fixture(scope="module")
def one_pass(text_source):
    model = text_source.load(torch.float32, "cpu")
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + RESPONSE])).logits[0]
    return logits[len(PROMPT) - 1 : -1]


def alone(runner, prompt, response, first):
    parts = list(teacher_forced(runner, [(prompt, response)], first))
    assert {row for row, _, _ in parts} <= {0}
    return [(start, logits) for _, start, logits in parts]


@pytest.mark.parametrize("chunk", [1, 7, 39, 128])
@pytest.mark.parametrize("first", [0, 1])
def test_chunks_give_the_logits_of_one_pass(target, one_pass, monkeypatch, chunk, first):
    monkeypatch.setattr(teacher, "CHUNK", chunk)
    parts = alone(target, PROMPT, RESPONSE, first)
    assert parts[0][0] == first
    together = torch.cat([logits for _, logits in parts])
    torch.testing.assert_close(together, one_pass[first:], rtol=1e-4, atol=1e-4)
    assert max(len(logits) for _, logits in parts) <= chunk
    # Every part begins where the one before ended.
    ends = [j + len(logits) for j, logits in parts]
    assert [j for j, _ in parts[1:]] == ends[:-1]


def scripted(context_length=100, vocabulary=4):
    table = torch.arange(vocabulary**2, dtype=torch.float32).reshape(vocabulary, vocabulary)
    return ScriptedRunner(markov(table), vocabulary, context_length=context_length)


@pytest.mark.parametrize(
    ("context", "response", "first", "parts"),
    [
        # Context 5 = 2 of prompt and 3 of the response, which predict the tokens 1, 2 and 3.
        (5, (1, 2, 3, 0, 1, 2), 1, [(1, 3)]),
        (2, (1, 2), 1, []),
        (1, (1, 2), 0, []),
        # A response of one token is predicted by the prompt alone.
        (100, (2,), 0, [(0, 1)]),
        (100, (2,), 1, []),
    ],
)
def test_it_ends_where_the_context_or_the_response_does(context, response, first, parts):
    found = alone(scripted(context), (0, 1), response, first)
    assert [(start, len(logits)) for start, logits in found] == parts


def test_logits_that_are_no_numbers_stop_the_measurement():
    broken = ScriptedRunner(lambda tokens: torch.tensor([0.0, float("nan")]), 2)
    with pytest.raises(ModelError, match="NaN") as caught:
        alone(broken, (0,), (1, 1), 0)
    assert "dtype" in caught.value.hint


@pytest.mark.parametrize("mode", [DraftingMode.GREEDY, DraftingMode.SAMPLED])
def test_responses_replayed_side_by_side_give_the_records_of_each_alone(
    five_prompts, target, draft, make, mode
):
    text, prompts = five_prompts
    together = make.written(prompts, target, text)
    for one, response in zip(prompts, together, strict=True):
        (alone,) = make.written([one], target, text)
        assert alone.trajectory.argmax == response.trajectory.argmax
    candidate = Candidate(draft="draft")
    replays = replay_model(draft, target, together, candidate, mode, 4)
    for scored, replay in zip(together, replays, strict=True):
        (own,) = replay_model(draft, target, [scored], candidate, mode, 4)
        assert replay.accept == pytest.approx(own.accept, abs=0.002)
        assert replay.rank == own.rank
        assert replay.confidence_of_ten == pytest.approx(own.confidence_of_ten, abs=0.002)
        if mode is DraftingMode.SAMPLED and scored.trajectory.sampling.temperature > 0:
            assert replay.off_path is own.off_path is None
        else:
            assert replay.off_path.lengths == own.off_path.lengths
            assert replay.off_path.of_all == pytest.approx(own.off_path.of_all, abs=0.002)

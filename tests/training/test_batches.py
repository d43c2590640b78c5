"""What of a batch is learned."""

import scenes

from draftbench.measure.prompts import Prompt
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Request, Sampling
from draftbench.training.draft_model import IGNORED, side_by_side


def response(prompt, tokens, temperature=0.0):
    sampling = Sampling(temperature=temperature)
    along = scenes.trajectory("r", len(tokens), prompt_tokens=len(prompt), sampling=sampling)
    return ScoredResponse(Prompt(Request(id="r", source=""), prompt, 9), tokens, along)


def test_the_prompt_the_first_token_of_a_response_and_padding_are_not_learned():
    batch = side_by_side([response((5, 6), (7, 8, 9)), response((4,), (3, 2), 0.5)], 100)
    assert batch["ids"].tolist() == [[5, 6, 7, 8, 9], [4, 3, 2, 0, 0]]
    assert batch["attended"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    no = IGNORED
    assert batch["learned"].tolist() == [[no, no, no, 8, 9], [no, no, 2, no, no]]
    assert batch["temperature"].tolist() == [0.0, 0.5]


def test_a_response_is_cut_at_the_context_of_the_draft():
    batch = side_by_side([response((5, 6), (7, 8, 9, 1))], 4)
    assert batch["ids"].tolist() == [[5, 6, 7, 8]]
    assert batch["learned"].tolist() == [[IGNORED] * 3 + [8]]

"""Real models in float32: rows of a batch, at their own lengths and with their own acceptance,
decode what they decode alone, and replays side by side are those of each alone.
"""

import pytest

from draftbench.decoder.drafters import LookupDrafter, ModelDrafter
from draftbench.decoder.runner import HostClock
from draftbench.decoder.speculate import decode, decode_all
from draftbench.measure.prompts import TextSide
from draftbench.measure.replay import replay_model
from draftbench.measure.trajectories import task_of
from draftbench.records import Candidate, DraftingMode, Sampling

PROMPTS = [
    "import os\n\n\ndef main():\n",
    "class Stack:\n    def __init__(self):\n",
    "for key, value in sorted(table.items()):\n    print(",
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n",
    "import os\n",
]


@pytest.fixture(scope="module")
def asked(text_source, make):
    """Five requests of different prompts and limits, two of them sampled."""
    text, how = TextSide(text_source), [Sampling(), Sampling(temperature=0.8, top_p=0.9)]
    requests = [
        make.request(prompt, id=str(at), max_tokens=12 + 5 * at, sampling=how[at % 2])
        for at, prompt in enumerate(PROMPTS)
    ]
    return text, [(text.prompt(request, request.max_tokens, 512), 0) for request in requests]


def rounds(response):
    return response.tokens, response.finish, response.proposed, response.accepted, response.cut


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("mode", [DraftingMode.GREEDY, DraftingMode.SAMPLED, None])
def test_rows_of_a_batch_decode_what_they_decode_alone(asked, target, draft, mode, rows):
    text, prompts = asked
    tasks = [task_of(prompt, sample, text) for prompt, sample in prompts]

    def drafter():
        if mode is None:
            return LookupDrafter(4, 2, "cpu")
        return ModelDrafter(draft, mode)

    together = decode_all(tasks, target, drafter(), 3, HostClock(), rows)
    alone = [decode(task, target, drafter(), 3, HostClock()) for task in tasks]
    assert list(map(rounds, together)) == list(map(rounds, alone))
    assert any(sum(r.accepted) < sum(r.proposed) for r in together)


@pytest.mark.parametrize("mode", [DraftingMode.GREEDY, DraftingMode.SAMPLED])
def test_responses_replayed_side_by_side_give_the_records_of_each_alone(
    asked, target, draft, make, mode
):
    text, prompts = asked
    together = make.written(prompts, target, text)
    for one, response in zip(prompts, together, strict=True):
        (alone,) = make.written([one], target, text)
        assert alone.trajectory.argmax == response.trajectory.argmax
    candidate = Candidate(draft="draft")
    replays = replay_model(draft, target, together, candidate, mode)
    for scored, replay in zip(together, replays, strict=True):
        (own,) = replay_model(draft, target, [scored], candidate, mode)
        assert replay.accept == pytest.approx(own.accept, abs=0.002)
        assert replay.rank == own.rank

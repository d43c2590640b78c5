"""transformers' assisted generation stops a draft by its threshold where a replay says."""

import pytest
import torch
from engines.stepped_draft import SteppedDraft, after
from scenes import EMBEDDED
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation import candidate_generator

TEXTS = (
    "import os\n\ndef main(argv):\n    ",
    'class Reader:\n    """Reads lines."""\n',
    # The embedded target ends a few tokens after this.
    "    args = parser.parse_args()\n    main(args)\n\n\nif __name__ == '__main__':\n",
)
LIMIT, K = 32, 5


@pytest.fixture(scope="module")
def models():
    def load(name):
        return AutoModelForCausalLM.from_pretrained(EMBEDDED / name, dtype=torch.float32)

    return load("target"), load("distilled"), AutoTokenizer.from_pretrained(EMBEDDED / "target")


@pytest.fixture(scope="module")
def stepped():
    return SteppedDraft("distilled", K)


@pytest.fixture
def rounds(monkeypatch):
    """The tokens that each of transformers' rounds proposes and writes."""
    found, kind = [], candidate_generator.AssistedCandidateGenerator
    get, update = kind.get_candidates, kind.update_candidate_strategy

    def get_candidates(own, ids, **others):
        proposal = get(own, ids, **others)
        found.append([proposal[0].shape[1] - ids.shape[1]])
        return proposal

    def update_candidate_strategy(own, ids, scores, matches):
        found[-1].append(int(matches) + 1)
        return update(own, ids, scores, matches)

    monkeypatch.setattr(kind, "get_candidates", get_candidates)
    monkeypatch.setattr(kind, "update_candidate_strategy", update_candidate_strategy)
    # It would move the threshold from round to round.
    monkeypatch.setattr(candidate_generator, "is_sklearn_available", lambda: False)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 0.9])
def test_transformers_proposes_the_unsure_token_and_stops(models, stepped, rounds, threshold):
    """And after an end token, whatever rule there is. The first round drafts the first token."""
    target, draft, tokenizer = models
    own = draft.generation_config
    own.num_assistant_tokens, own.num_assistant_tokens_schedule = K, "constant"
    own.assistant_confidence_threshold = threshold
    lengths = set()
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        settings = {"do_sample": False, "max_new_tokens": LIMIT, "assistant_model": draft}
        (output,) = target.generate(**inputs, **settings).tolist()
        begin, end = inputs["input_ids"].shape[1], target.generation_config.eos_token_id
        told = stepped.rounds(tuple(output), begin, begin + LIMIT, after(threshold, end))
        assert rounds == [[proposed, written] for proposed, _, written in told]
        lengths.add(len(output) - begin)
        rounds.clear()
    assert max(lengths) == LIMIT > min(lengths)

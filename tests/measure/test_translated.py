"""The embedded target and a draft of half its vocabulary: rounds by one pass, by decoding, and by
transformers' own assistance across vocabularies.
"""

from itertools import pairwise

import pytest
import torch
from measure.conftest import _source
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation import candidate_generator

from draftbench.acceptance.rounds import expected_rounds
from draftbench.decoder.runner import DecodeTask, HostClock
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.speculate import decode
from draftbench.drafts.laws import law_of
from draftbench.drafts.model.draft import replay_model
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.models.quantize import Build, build_runner
from draftbench.models.translation import translated
from draftbench.records import Candidate, DraftingMode, Sampling

FOREIGN = Candidate(draft="foreign")
GREEDY = DraftingMode.GREEDY


@pytest.fixture(scope="module")
def foreign(text_source):
    source = _source("foreign")
    runner, _ = build_runner(source, Build(torch.float32, "none", "cpu"), "foreign")
    return translated(runner, text_source, source)


def asked(prompt, limit, sampling):
    # Of draws that are no near ties: other streams meet one, whatever drafts.
    return DecodeTask(
        list(prompt), limit, sampling, Uniforms("r1", 0, limit + 1), lambda output: False
    )


@pytest.mark.parametrize("mode", list(DraftingMode))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decoded_rounds_are_those_of_replay_and_the_output_is_the_targets(
    target, foreign, text, make, mode, temperature
):
    sampling = Sampling(temperature=temperature)
    greedy = mode is GREEDY or temperature == 0
    prompt, limit = text.tokenizer("class Reader:\n    def read(self):\n")["input_ids"], 40
    plain = decode(asked(prompt, limit, sampling), target, None, 0, HostClock())
    if greedy:
        response = make.unscored(tuple(plain.tokens), tuple(prompt), sampling)
        (record,) = replay_model(foreign, target, [response], FOREIGN, mode)
        assert 0 < sum(record.accept) < limit - 1
    for k in (1, 3, 6):
        drafter = ModelDrafter(foreign, mode)
        fast = decode(asked(prompt, limit, sampling), target, drafter, k, HostClock())
        assert sum(fast.accepted) > 0
        if greedy:
            assert fast.tokens == plain.tokens
            rounds = expected_rounds([law_of(response.trajectory, record)], k)
            assert rounds.target_passes[0] == len(fast.proposed)
            assert rounds.accepted[0] == sum(fast.accepted)


def test_rounds_are_those_of_transformers_across_vocabularies(
    target, foreign, text, make, monkeypatch
):
    """Its assistance reads a prompt in the draft's own tokens and encodes what the draft lacks
    anew; here the prompt is of shared tokens, and what is lacking is told to be unknown.
    """
    models, tokenizers = [], []
    for name in ("target", "foreign"):
        spec = _source(name).spec
        models.append(AutoModelForCausalLM.from_pretrained(spec, dtype=torch.float32).eval())
        tokenizers.append(AutoTokenizer.from_pretrained(spec))
    cache = candidate_generator.AssistantVocabTranslatorCache
    words = cache.get_translator(*tokenizers, models[0].config.vocab_size)
    lacking = dict.fromkeys(range(1024, 2048), tokenizers[1].eos_token_id)
    words.target_to_assistant_input_ids.update(lacking)
    lengths, k, limit = [], 4, 60
    generator = candidate_generator.UniversalSpeculativeDecodingGenerator
    monkeypatch.setattr(
        generator, "update_candidate_strategy", lambda self, ids, *_: lengths.append(ids.shape[1])
    )
    settings = models[1].generation_config
    settings.num_assistant_tokens, settings.assistant_confidence_threshold = k, 0.0
    settings.num_assistant_tokens_schedule = "constant"
    compared = 0
    for prompt in ("import os\nimport sys\n\n\ndef main(", "class A:\n    def b(self):\n        "):
        ids = tokenizers[1](prompt)["input_ids"]
        lengths.clear()
        (written,) = models[0].generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=True,  # greedy requests are not translated token by token; top-k 1 is greedy
            top_k=1,
            max_new_tokens=limit,
            assistant_model=models[1],
            tokenizer=tokenizers[0],
            assistant_tokenizer=tokenizers[1],
            pad_token_id=0,
        )
        tokens = written.tolist()
        # It drafts the first token of a response too, so the last of the prompt begins it here.
        response = make.unscored(tuple(tokens[len(ids) - 1 :]), tuple(ids[:-1]))
        (record,) = replay_model(foreign, target, [response], FOREIGN, GREEDY)
        at, rounds = 1, []
        while at <= len(record.accept):
            accepted = 0
            most = min(k, len(record.accept) - at)
            while accepted < most and record.accept[at - 1 + accepted] == 1:
                accepted += 1
            rounds.append(accepted)
            at += accepted + 1
        theirs = [b - a - 1 for a, b in pairwise([len(ids), *lengths])]
        both = min(len(theirs), len(rounds)) - 1  # the last is cut by the limit
        assert rounds[:both] == theirs[:both]
        assert sum(rounds) > 0
        compared += both
    assert compared > 50

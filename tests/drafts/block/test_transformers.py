"""Rounds of DFlash drafters with random weights, against those of transformers' own decoding.

transformers has one such drafter, Muse Glimmer's, whose layers are those of DFlash with sliding
windows that see both ways. It drafts whole blocks. At the edge of a window each engine has its own
rule (ours is vLLM's), so the windows are longer than the text.
"""

import pytest
import random_blocks
import random_heads
import torch
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.generation import candidate_generator

from draftbench.decoder.linear import unquantized_linear
from draftbench.decoder.llama import LlamaRunner
from draftbench.decoder.runner import DecodeTask, HostClock
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.speculate import decode
from draftbench.drafts.block.draft import BlockDrafter
from draftbench.drafts.block.head import BlockHead
from draftbench.drafts.block.shape import shape_of
from draftbench.drafts.heads.tensors import rotary_of
from draftbench.records import Sampling

LIMIT = 60
PROMPTS = [[1, 2, 3, 4, 5], [7, 3], [2, 2, 9, 0, 4, 1, 8, 3]]


@pytest.mark.parametrize("kinds", [("full_attention",) * 2, ("sliding_attention",) * 2])
def test_rounds_are_those_of_transformers(kinds, monkeypatch):
    sliding = {"layer_types": list(kinds), "sliding_window": 100, "use_sliding_window": True}
    config = random_blocks.config(**sliding, sliding_window_non_causal=True)
    weights = random_blocks.tensors(config)
    model = random_heads.target()
    assistant = assistant_of(config, weights)
    # It uses the target's embedding and output head.
    of_target = ("embed_tokens.weight", "lm_head.weight")
    weights = {name: weight for name, weight in weights.items() if name not in of_target}
    shape, target = shape_of(config), LlamaRunner(random_heads.target(), "none")
    rotary = rotary_of(shape.layer)
    head = BlockHead(shape, weights, target, rotary, unquantized_linear, torch.float32)
    compared = 0
    for prompt in PROMPTS:
        uniforms = Uniforms("r", 0, LIMIT + 1)
        task = DecodeTask(prompt, LIMIT, Sampling(), uniforms, lambda output: False)
        ours = decode(task, target, BlockDrafter(head), head.shape.most, HostClock())
        text, accepted = generated(model, assistant, prompt, monkeypatch)
        assert text == ours.tokens
        # The last round may be cut by the length.
        assert accepted[:-1] == ours.accepted[: len(accepted) - 1]
        compared += len(accepted) - 1
    assert compared > 60


def assistant_of(config, weights):
    layer = config["transformer_layer_config"]
    same = (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings"),
        *("layer_types", "sliding_window"),
    )
    made = MuseGlimmerAssistantConfig(
        **{name: layer[name] for name in same},
        rope_parameters={"rope_type": "default", "rope_theta": layer["rope_theta"]},
        block_size=config["block_size"],
        mask_token_id=config["mask_token_id"],
        target_layer_ids=[i - 1 for i in config["aux_hidden_state_layer_ids"]],
    )
    model = MuseGlimmerAssistantModel(made).eval()
    renamed = {"fc": "encoder.fc", "hidden_norm": "encoder.output_norm_enc"}
    renamed = {f"{here}.weight": f"{there}.weight" for here, there in renamed.items()}
    known = model.state_dict().keys()
    there = {renamed.get(name, name): weight for name, weight in weights.items()}
    model.load_state_dict({name: weight for name, weight in there.items() if name in known})
    return model


def generated(model, assistant, prompt, monkeypatch):
    """A response, and how many tokens each of its rounds accepted."""
    accepted, cls = [], candidate_generator.DFlashTokenCandidateGenerator
    whole = cls.get_candidates

    def watched(self, input_ids, *args, n_last_matches, is_first_iteration, **kwargs):
        if not (is_first_iteration or self.is_main_model_prefill):
            accepted.append(int(n_last_matches))
        return whole(
            self,
            input_ids,
            *args,
            n_last_matches=n_last_matches,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )

    monkeypatch.setattr(cls, "get_candidates", watched)
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        assistant_model=assistant,
        speculation_type="dflash",
        max_new_tokens=LIMIT,
        do_sample=False,
    )
    monkeypatch.undo()
    return found[0, len(prompt) :].tolist(), accepted

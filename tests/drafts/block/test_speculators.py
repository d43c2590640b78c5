"""What block drafters draft, against speculators' own forward pass.

Runs only where DRAFTBENCH_SPECULATORS_PYTHON names the interpreter of an environment with it; last
run with speculators 0.9.0, transformers 5.19.0 and torch 2.13.0 on a CPU. Elsewhere the plain
formulas of `random_blocks` stand in.
"""

import json
import os
import subprocess

import pytest
import random_blocks
import random_heads
import torch
from safetensors.torch import save_file

from draftbench.decoder.linear import unquantized_linear
from draftbench.decoder.llama import LlamaRunner
from draftbench.drafts.block.head import BlockHead
from draftbench.drafts.block.shape import shape_of
from draftbench.drafts.heads.tensors import rotary_of

PYTHON = os.environ.get("DRAFTBENCH_SPECULATORS_PYTHON")
WORDS, DRAFTED, ROWS, FIRST = 300, 200, 60, 3
# What blocks draft that begin at every token from the given one on, with the model's own modules.
DRAFT = """
import json, sys
import torch
from safetensors.torch import load_file
import speculators.models.dflash.core as core
from speculators import SpeculatorModel

folder, first, k = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
asked, weights = load_file(folder + "/asked.safetensors"), load_file(folder + "/model.safetensors")
kind = json.load(open(folder + "/config.json"))["speculators_model_type"]
cls = SpeculatorModel.registry[kind]
config = cls.config_class.from_pretrained(folder)
config.block_size = k if config.sample_from_anchor else k + 1
config.transformer_layer_config._attn_implementation = "eager"
model = cls(config)
missing, unknown = model.load_state_dict(weights, strict=False)
model = model.float().eval()
tokens = asked["tokens"][None]
anchors = torch.arange(first, tokens.shape[1] - config.block_size)
core.select_anchors = lambda *_: (anchors, torch.ones_like(anchors, dtype=torch.bool))
with torch.no_grad():
    hidden, logits, *_ = model._backbone_forward(
        asked["states"][None],
        tokens,
        torch.ones_like(tokens),
        torch.zeros(1, tokens.shape[1], asked["states"].shape[1] // 3),
        torch.zeros_like(tokens),
        max_anchors=len(anchors),
    )
    blocks = len(anchors), config.block_size, -1
    hidden, logits = (x[0].view(blocks)[:, -k:] for x in (hidden, logits))
    previous, found = tokens[0, anchors], []
    chain = previous[:, None]
    for place in range(k):
        scores = logits[:, place]
        if kind == "dspark":
            seen = hidden[:, : place + 1]
            bias = model.markov_head.block_bias(prev_token_ids=chain, hidden_states=seen)
            scores = scores + bias[:, -1]
        if kind == "dflash2":
            ids, best = model.candidate_selector.select(scores, hidden[:, place], previous)
            previous = ids.gather(1, best.argmax(-1)[:, None])[:, 0]
        else:
            previous = scores.argmax(-1)
            if getattr(model, "d2t", None) is not None:
                previous = previous + model.d2t[previous]
        found.append(previous)
        chain = torch.cat([chain, previous[:, None]], dim=1)
left_out = [name for name in missing if not name.startswith("verifier")]
drafted = torch.stack(found, 1).tolist()
print(json.dumps({"drafted": drafted, "missing": left_out, "unknown": unknown}))
"""

pytestmark = pytest.mark.skipif(
    PYTHON is None, reason="DRAFTBENCH_SPECULATORS_PYTHON names no speculators"
)


@pytest.mark.parametrize("k", [2, 5])
# It knows neither scales nor a word for all layers.
@pytest.mark.parametrize(
    "variant", sorted(random_blocks.VARIANTS.keys() - {"dflash, scaled", "dflash, causal"})
)
def test_every_start_drafts_what_speculators_drafts(tmp_path, variant, k):
    assert PYTHON is not None
    fields = dict(random_blocks.VARIANTS[variant])
    if "draft_vocab_size" in fields:
        fields["draft_vocab_size"] = DRAFTED
    # Their sliding layers see a window before the block's first place, ours before each: as far as
    # this text goes, the same.
    fields |= {"sliding_window": 80} if "sliding_window" in fields else {}
    config = random_blocks.config(WORDS, **fields)
    verifier = {"name_or_path": str(tmp_path / "target"), "architectures": ["LlamaForCausalLM"]}
    method = {"proposal_type": "greedy", "speculative_tokens": k}
    config["speculators_config"] = {
        "algorithm": config["speculators_model_type"],
        "default_proposal_method": "greedy",
        "proposal_methods": [method],
        "verifier": verifier,
    }
    model = random_heads.target(WORDS)
    model.save_pretrained(tmp_path / "target")
    weights = random_blocks.tensors(config)
    folder = random_heads.save(tmp_path / "head", config, weights)
    generator = torch.Generator().manual_seed(5)
    text = torch.randint(WORDS, (ROWS,), generator=generator)
    states = torch.randn(ROWS, 3 * random_blocks.HIDDEN, generator=generator)
    save_file({"tokens": text, "states": states}, folder / "asked.safetensors")
    quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    words = [PYTHON, "-c", DRAFT, str(folder), str(FIRST), str(k)]
    ran = subprocess.run(words, env=os.environ | quiet, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    shape = shape_of(config)
    target = LlamaRunner(model, "none")
    head = BlockHead(
        shape, weights, target, rotary_of(shape.layer), unquantized_linear, torch.float32
    )
    found = head.along(text, states, FIRST, [k])[k].tokens.tolist()
    assert found[: len(said["drafted"])] == said["drafted"]
    assert len(said["drafted"]) > 50
    assert (said["missing"], said["unknown"]) == ([], [])

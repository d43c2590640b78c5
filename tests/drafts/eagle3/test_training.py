"""A head in training drafts what it drafts in decoding, in every variant."""

import json

import pytest
import random_heads
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from draftbench.drafts.eagle3.draft import shape_of
from draftbench.drafts.eagle3.training import (
    DEPTHS,
    HeadInTraining,
    TrainableHead,
    loss_over_depths,
    read_by_head,
)
from draftbench.drafts.heads.tensors import rotary_of
from draftbench.models.source import ModelSource
from draftbench.training.trainable import IGNORED

TEXT = [1, 2, 3, 4, 5, 2, 2, 9, 0, 4, 1, 8, 3, 7, 6, 5]


@pytest.fixture(params=random_heads.VARIANTS)
def variant(request):
    config = random_heads.config(**random_heads.VARIANTS[request.param])
    return config, random_heads.tensors(config)


def trainable(config, weights):
    shape = shape_of(config, random_heads.LAYERS)
    return TrainableHead(shape, weights, weights["embed_tokens.weight"], rotary_of(shape.layer))


def batch_of(*texts, learned_from=0, temperature=0.0):
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
    learned, attended = torch.full_like(ids, IGNORED), torch.zeros_like(ids)
    for at, text in enumerate(texts):
        ids[at, : len(text)], attended[at, : len(text)] = torch.tensor(text), 1
        learned[at, learned_from : len(text)] = ids[at, learned_from : len(text)]
    heat = torch.full((len(texts),), temperature)
    return {"ids": ids, "attended": attended, "learned": learned, "temperature": heat}


def loss_of(head, target, batch):
    return loss_over_depths(head, target, batch).item()


def states_of(target, text):
    states, _ = read_by_head(target, random_heads.READS, batch_of(text))
    return states


def test_every_row_drafts_at_every_depth_what_the_plain_formulas_say(variant):
    config, weights = variant
    target, head = random_heads.target(), trainable(*variant)
    states = states_of(target, TEXT)
    with torch.no_grad():
        depths = [logits[0] for logits in head(torch.tensor([TEXT]), states[:, :-1])]
    for newest in range(1, len(TEXT) - DEPTHS):
        along = TEXT[newest + 1 : newest + DEPTHS]
        from_there = config, weights, TEXT, states[0], newest
        wanted = random_heads.drafted_from(*from_there, DEPTHS, along)
        drafted = [int(head.kept[logits[newest - 1].argmax()]) for logits in depths]
        assert drafted == wanted


def test_a_row_learns_the_same_beside_a_longer_one():
    config = random_heads.config()
    head, target = trainable(config, random_heads.tensors(config)), random_heads.target()
    alone = loss_of(head, target, batch_of(TEXT[:9]))
    padded = batch_of(TEXT[:9], TEXT)
    padded["learned"][1] = IGNORED
    assert loss_of(head, target, padded) == pytest.approx(alone, rel=1e-5)


def test_only_learned_tokens_count():
    config = random_heads.config()
    head, target = trainable(config, random_heads.tensors(config)), random_heads.target()
    whole, end = batch_of(TEXT), batch_of(TEXT, learned_from=10)
    assert loss_of(head, target, whole) != pytest.approx(loss_of(head, target, end))
    # Of the last learned token alone: the cross entropy of each depth by hand.
    last = batch_of(TEXT, learned_from=len(TEXT) - 1)
    states, logits = read_by_head(target, random_heads.READS, last)
    wanted = logits[0, -2, head.kept].softmax(-1)
    depths = list(head(last["ids"], states[:, :-1]))
    by_hand = sum(
        0.8**depth * -(wanted * guesses[0, len(TEXT) - 3 - depth].log_softmax(-1)).sum()
        for depth, guesses in enumerate(depths)
    )
    assert loss_of(head, target, last) == pytest.approx(by_hand.item(), rel=1e-5)


@pytest.fixture
def saved(tmp_path):
    """A head in the layout of its authors, whose layer is called `midlayer`."""
    config = random_heads.config()
    weights = {
        name.replace("layers.0.", "midlayer."): tensor.bfloat16()
        if tensor.is_floating_point()
        else tensor
        for name, tensor in random_heads.tensors(config).items()
    }
    return random_heads.save(tmp_path / "head", config, weights)


def test_a_saved_head_has_the_names_and_numbers_of_the_original(saved, tmp_path):
    target: LlamaForCausalLM = random_heads.target()
    draft = HeadInTraining(ModelSource(str(saved)), target)
    with torch.no_grad():
        for weight in draft.module.parameters():
            weight.add_(1.0)
    draft.save(tmp_path / "out")
    before, after = (load_file(each / "model.safetensors") for each in (saved, tmp_path / "out"))
    assert {n: (t.dtype, t.shape) for n, t in after.items()} == {
        n: (t.dtype, t.shape) for n, t in before.items()
    }
    moved = {n for n in before if not torch.equal(before[n], after[n])}
    assert moved == {n for n, t in before.items() if t.is_floating_point()} - {
        "embed_tokens.weight"
    }
    configs = [json.loads((each / "config.json").read_text()) for each in (saved, tmp_path / "out")]
    assert configs[0] == configs[1]

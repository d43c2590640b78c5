"""Relatives of the embedded DFlash drafter that draft sensibly without training, and faults planted
in their files.

DSpark's bias and DFlash 2's selector are made of what the target says after each token alone;
confidences and convolutions are random, but small. An anchored drafter uses each place for the
token after the one that it learned, so little but the bias is right there.

    python scripts/block_kin.py OUT

writes the target, the drafters and the faulty ones as .gguf files.

    python scripts/block_kin.py serve FAULT.gguf llama-server ARGS…

starts llama-server with another draft than its -md names. So a sweep replays the right one:

    draftbench sweep --engine llama.cpp --target OUT/target.gguf --drafts dflash:OUT/dflash.gguf \\
        --engine-command "python scripts/block_kin.py serve OUT/FAULT.gguf llama-server {args}" …
"""

from __future__ import annotations

import bisect
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import torch
from embedded_gguf import KINDS, write, write_block
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftbench.decoder.runner import HiddenStates
from draftbench.drafts.block.choice import Chosen
from draftbench.drafts.block.draft import load
from draftbench.drafts.loading import Loading
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import Candidate, DraftingMode

EMBEDDED = Path(str(files("draftbench"))) / "embedded"
_LAST = 7  # the target's last layer, whose input may be read
SHARE = 0.5  # of the target's logits after a token alone that are added to a drafter's
RANK, CANDIDATES, TAPS, GROUP = 32, 8, 3, 64
_SPARK = {
    "architectures": ["DSparkDraftModel"],
    "speculators_model_type": "dspark",
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
_TWO = {
    "architectures": ["DFlash2DraftModel"],
    "speculators_model_type": "dflash2",
    "conv_kernel_size": TAPS,
    "conv_group_size": GROUP,
    "selector_rank": RANK,
    "selector_top_k": CANDIDATES,
}
# By what their config.json says beside that of the embedded drafter.
KIN: Mapping[str, dict[str, Any]] = {
    "dflash": {},
    "dflash-alike": {},  # its layers norm keys by the same weights
    "dflash2": _TWO,
    "dspark": {**_SPARK, "sample_from_anchor": False},
    "dspark-anchored": {**_SPARK, "sample_from_anchor": True, "block_size": 7},
    "dspark-unsure": {**_SPARK, "sample_from_anchor": False, "enable_confidence_head": False},
}

Parts = tuple[dict[str, Any], dict[str, Tensor]]


def _layers(by: int) -> Callable[[Parts], None]:
    def planted(parts: Parts) -> None:
        config, _ = parts
        name = "aux_hidden_state_layer_ids"
        config[name] = [min(layer + by, _LAST) for layer in config[name]]

    return planted


def _says(name: str, value: int) -> Callable[[Parts], None]:
    def planted(parts: Parts) -> None:
        parts[0][name] = value

    return planted


def _other_predecessor(parts: Parts) -> None:
    """Every candidate is scored after the token whose id is one less."""
    name = "candidate_selector.predecessor_codebook"
    parts[1][name] = parts[1][name].roll(1, 0)


def _swapped(parts: Parts) -> None:
    """Candidates are scored as what comes before, not after."""
    before, after = (f"candidate_selector.{n}_codebook" for n in ("predecessor", "successor"))
    parts[1][before], parts[1][after] = parts[1][after], parts[1][before]


def _unbiased(parts: Parts) -> None:
    """Every bias is that after the token whose id is one less."""
    parts[1]["markov_head.markov_w1.weight"] = parts[1]["markov_head.markov_w1.weight"].roll(1, 0)


# What a file may say wrongly, by the drafter in which it is planted.
FAULTS: Mapping[str, tuple[str, Callable[[Parts], None]]] = {
    "layers-one-less": ("dflash", _layers(-1)),
    "layers-one-more": ("dflash", _layers(1)),
    "other-mask": ("dflash", _says("mask_token_id", 300)),
    "block-of-4": ("dflash", _says("block_size", 4)),
    "block-of-16": ("dflash", _says("block_size", 16)),
    "selector-after-another": ("dflash2", _other_predecessor),
    "selector-swapped": ("dflash2", _swapped),
    "bias-after-another": ("dspark", _unbiased),
}
# And what llama-server may be started with beside the right file.
FAULTY_FLAGS: Mapping[str, str] = {
    "keys-in-8-bits": "--cache-type-k-draft q8_0",
    "keys-in-4-bits": "--cache-type-k-draft q4_0",
}


def make(folder: Path, name: str, fault: str | None = None) -> Path:
    """Write a relative of the embedded drafter in the format of speculators; its folder."""
    config = json.loads((EMBEDDED / "block" / "config.json").read_text()) | KIN[name]
    stored = load_file(EMBEDDED / "block" / "model.safetensors")
    tensors = {name: tensor.float() for name, tensor in stored.items()}
    generator = torch.Generator().manual_seed(1)
    hidden = config["target_hidden_size"]

    def random(*size: int, scale: float) -> Tensor:
        return scale * torch.randn(size, generator=generator)

    if name == "dflash-alike":
        first, second = (f"layers.{index}.self_attn.k_norm.weight" for index in range(2))
        tensors[second] = tensors[first].clone()
    if "markov_rank" in config:
        # An anchored drafter's own logits are of other places.
        before, after = follows(1.0 if config["sample_from_anchor"] else SHARE)
        tensors["markov_head.markov_w1.weight"] = before
        tensors["markov_head.markov_w2.weight"] = after
        if config["enable_confidence_head"]:
            tensors["confidence_head.proj.weight"] = random(1, hidden + RANK, scale=0.05)
            tensors["confidence_head.proj.bias"] = torch.tensor([0.5])
        if config["sample_from_anchor"]:
            tensors["norm.weight"] = tensors["norm.weight"] * 0.2
    if "selector_rank" in config:
        before, after = follows(SHARE)
        tensors["candidate_selector.predecessor_codebook"] = before
        tensors["candidate_selector.successor_codebook"] = after
        tensors["candidate_selector.hidden_projection.weight"] = torch.zeros(RANK, hidden)
        for at in (f"layers.{index}." for index in range(2)):
            for half in ("attention_conv", "mlp_conv"):
                base = random(2, TAPS, hidden, scale=0.01)
                base[:, 0] += 1
                tensors[f"{at}{half}.base_kernel"] = base
                tensors[f"{at}{half}.kernel_projection.weight"] = random(
                    2 * TAPS * (hidden // GROUP), hidden, scale=0.001
                )
        _save(folder, config, tensors)
        weight = _direction(folder).expand(RANK, hidden)
        tensors["candidate_selector.hidden_projection.weight"] = weight
    if fault is not None:
        assert FAULTS[fault][0] == name
        FAULTS[fault][1]((config, tensors))
    return _save(folder, config, tensors)


def _save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@cache
def _follows() -> tuple[Tensor, Tensor]:
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(EMBEDDED / "target", dtype=torch.float32)
    with torch.no_grad():
        logits = target(torch.arange(target.config.vocab_size)[:, None]).logits[:, 0]
    torch.manual_seed(0)
    left, sizes, right = torch.svd_lowrank(logits.log_softmax(-1), RANK)
    return left * sizes.sqrt(), right * sizes.sqrt()


def follows(share: float) -> tuple[Tensor, Tensor]:
    """A share of what the target says after each token alone, as a product of two matrices
    [vocabulary, RANK].
    """
    before, after = _follows()
    return share * before, after


def _direction(folder: Path) -> Tensor:
    """A direction along which the states behind a drafter's logits are all near 1 [hidden]."""
    source, build = ModelSource(str(EMBEDDED / "target")), Build(torch.float32, "none", "cpu")
    target = build_runner(source, build, None)[0]
    loading = Loading(
        *(Candidate(draft="dflash:kin"), ModelSource(str(folder)), build, source, target),
        DraftingMode.GREEDY,
    )
    head = load(loading)[0].head
    ids = torch.tensor(source.tokenizer(inspect.getsource(bisect))["input_ids"][:400])
    hidden, found, choose = HiddenStates(head.reads), [], head.choose
    target.forward(ids[:-1], target.new_cache(len(ids)), every=False, hidden=hidden)

    def listening(logits: Tensor, states: Tensor, lasts: Tensor) -> Chosen:
        found.append(states.flatten(0, 1))
        return choose(logits, states, lasts)

    head.choose = listening
    head.along(ids, hidden.joined(), 8, [head.shape.most])
    states = torch.cat(found)
    square = states.T @ states + 0.01 * len(states) * torch.eye(states.shape[1])
    return torch.linalg.solve(square, states.sum(0))


def write_all(out: Path) -> dict[str, Path]:
    """The target, its drafters and the faulty ones as .gguf files, by name."""
    out.mkdir(parents=True, exist_ok=True)
    found = {"target": out / "target.gguf"}
    write(found["target"], EMBEDDED / "target", KINDS["f32"])
    named = {name: (name, None) for name in KIN} | {f: (of, f) for f, (of, _) in FAULTS.items()}
    for name, (kin, fault) in named.items():
        found[name] = out / f"{name}.gguf"
        write_block(found[name], make(out / name, kin, fault), EMBEDDED / "target")
    return found


def serve(file: str, server: str, *args: str) -> NoReturn:
    """Become a llama-server that drafts, where it is to draft, with this file."""
    named = [file if before == "-md" else word for before, word in pairwise(("", *args))]
    os.execvp(server, [server, *named])


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"] and len(sys.argv) > 3:
        serve(*sys.argv[2:])
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, path in write_all(Path(sys.argv[1])).items():
        print(f"{name}: {path}")

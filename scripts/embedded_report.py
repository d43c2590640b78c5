"""Writes the embedded models as transformers directories, with a README of their figures."""

from __future__ import annotations

import math
import platform
from pathlib import Path

import numpy as np
import torch
from embedded_block import BLOCK, LAYERS, TrainableBlock, new_block, save_block
from embedded_block import READS as BLOCK_READS
from embedded_family import BATCH, CONTEXT, END, PROMPT_TOKENS, SPECS, greedy, load, source_files
from embedded_head import DEPTHS, DRAFTED, READS, batch_of, load_head, new_head, save_head
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from draftbench.drafts.eagle3.training import TrainableHead, read_by_head

PROMPTS, RESPONSE_TOKENS = 40, 128

README = """# The embedded models

Four small Llama models, an EAGLE-3 head and a DFlash drafter that ship with draftbench, so that it
can be tried without a network. They imitate Python source and are good for nothing else. Written by
`scripts/train_embedded.py`, whose last step prints every figure below.

| model | layers x hidden | parameters | tokens seen | minutes | held-out nats/token | bits/byte \
| greedy agreement |
|---|---|---|---|---|---|---|---|
{rows}

- **Text**: the standard library of CPython {python} (Python Software Foundation License 2.0,
  © Python Software Foundation) without its tests, `encodings` and `pydoc_data`: {train} tokens
  to train on, and held out, by a hash of the path, {held}.
- **Tokenizer**: byte-level BPE of 2048 entries trained on the same text; `<|endoftext|>` ends a
  file. `foreign` has 1024 entries, so that its bits/byte compare and its nats/token do not.
- **Recipe**: windows of 256, then 512 tokens, {batch} tokens a step; Muon on the matrices of the
  layers, AdamW on the rest; warm-up, then linear decay to zero; gradients clipped at 1; bfloat16
  autocast on {threads} CPU thread(s) for the minutes in the table. `distilled` minimises
  KL(target || model), half of its steps on {written} tokens of greedy text by the target.
- **Head**, in the format of speculators: reads what enters the layers {reads} of `target`, and its
  embedding; drafts {drafted} of its tokens. It starts as the target's last layer and minimises
  KL(target || head) over {depths} depths, on the text of `distilled`.
- **Block**, a DFlash drafter in the format of speculators: {block_layers} layers that read what
  enters the layers {block_reads} of `target`, whose embedding and output head they use; its mask is
  the token that the text uses least. It starts as the target's last layers and minimises
  KL(target || block) over {block_drafts} places, on the text of `distilled`.
- **Greedy agreement**: share of the target's own greedy tokens ({prompts} held-out prompts of
  {prompt_tokens} tokens, {response_tokens} written after each) that are the model's argmax too, of
  the head and the block the first token that they draft; in float32.
- **Size**: {bytes} bytes in all, weights in bfloat16.
"""


def save(name: str, work: Path, out: Path) -> LlamaForCausalLM:
    """Writes the transformers directory and returns what it holds, in float32."""
    model = load(work, name).bfloat16()
    model.generation_config.pad_token_id = 0
    model.save_pretrained(out / name)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(work / f"tokenizer-{SPECS[name].vocab}.json")),
        eos_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(out / name)
    return model.float()


def held_out_nats(model: LlamaForCausalLM, stream: np.ndarray) -> float:
    """Mean nats per token over non-overlapping windows of CONTEXT."""
    rows = torch.from_numpy(stream[: len(stream) // CONTEXT * CONTEXT].astype(np.int64))
    losses = [model(input_ids=row, labels=row).loss.item() for row in rows.view(-1, 1, CONTEXT)]
    return float(np.mean(losses))


def agreement(model: LlamaForCausalLM, full: np.ndarray) -> float:
    """Share of the target's greedy tokens that are the model's argmax at the same place."""
    ids = torch.from_numpy(full)
    guesses = model(input_ids=ids).logits[:, PROMPT_TOKENS - 1 : -1].argmax(-1)
    return float((guesses == ids[:, PROMPT_TOKENS:]).float().mean())


def row(name: str, model: LlamaForCausalLM, work: Path, full: np.ndarray) -> str:
    """The model's line of the README's table; `full` is the target's greedy text."""
    spec, state = SPECS[name], torch.load(work / f"{name}.pt")
    stream = np.load(work / f"held-{spec.vocab}.npy")
    nats = held_out_nats(model, stream)
    bits = nats * len(stream) / held_out_size() / math.log(2)
    shared = spec.vocab == SPECS["target"].vocab
    cells = [
        f"`{name}`",
        f"{spec.layers} x {spec.hidden}",
        f"{model.num_parameters():,}",
        f"{state['tokens'] / 1e6:.1f} M",
        f"{state['seconds'] / 60:.0f}",
        f"{nats:.3f}",
        f"{bits:.3f}",
        f"{agreement(model, full):.3f}" if shared else "another tokenizer",
    ]
    return f"| {' | '.join(cells)} |"


def head_row(head: TrainableHead, target: LlamaForCausalLM, work: Path, full: np.ndarray) -> str:
    """The head's line: row t of the first depth drafts token t + 2."""
    ids, state = torch.from_numpy(full), torch.load(work / "head.pt")
    states, _ = read_by_head(target, READS, batch_of(ids))
    best = next(head(ids, states[:, :-1]))[:, PROMPT_TOKENS - 2 : -1].argmax(-1)
    agrees = (head.kept[best] == ids[:, PROMPT_TOKENS:]).float().mean()
    cells = [
        "`head`",
        f"1 x {target.config.hidden_size}",
        f"{sum(weight.numel() for weight in head.parameters()):,}",
        f"{state['tokens'] / 1e6:.1f} M",
        f"{state['seconds'] / 60:.0f}",
        *("–", "–"),
        f"{agrees:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def block_row(block: TrainableBlock, target: LlamaForCausalLM, work: Path, full: np.ndarray) -> str:
    """The block's line: the first place with a mask drafts the token that belongs there."""
    ids, state = torch.from_numpy(full), torch.load(work / "block.pt")
    answer = target(input_ids=ids, output_hidden_states=True)
    states = torch.cat([answer.hidden_states[layer] for layer in block.shape.reads], -1)
    starts = torch.arange(PROMPT_TOKENS - 1, ids.shape[1] - 1)
    best = block(ids, states, starts)[:, :, 0].argmax(-1)
    agrees = (best == ids[:, PROMPT_TOKENS:]).float().mean()
    cells = [
        "`block`",
        f"{LAYERS} x {target.config.hidden_size}",
        f"{sum(weight.numel() for weight in block.parameters()):,}",
        f"{state['tokens'] / 1e6:.1f} M",
        f"{state['seconds'] / 60:.0f}",
        *("–", "–"),
        f"{agrees:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def held_out_size() -> int:
    """Bytes of the held-out text."""
    return sum(len(text.encode()) for text in source_files()[1])


def report(work: Path, out: Path) -> None:
    """Writes the model directories and README.md with the figures that it prints."""
    kept = {name: save(name, work, out) for name in SPECS}
    head = new_head(work, kept["target"]).requires_grad_(False)
    head.load_state_dict(torch.load(work / "head.pt")["model"])
    save_head(head, kept["target"], out / "head")
    head = load_head(out / "head", kept["target"]).requires_grad_(False)
    block = new_block(work, kept["target"]).requires_grad_(False)
    block.load_state_dict(torch.load(work / "block.pt")["model"])
    save_block(block, kept["target"], out / "block")
    stream = np.load(work / "held-2048.npy")
    starts = np.linspace(0, len(stream) - PROMPT_TOKENS, PROMPTS, dtype=int)
    prompts = np.stack([stream[s : s + PROMPT_TOKENS] for s in starts])
    full = greedy(kept["target"], prompts, RESPONSE_TOKENS)
    text = README.format(
        rows="\n".join(
            [
                *(row(name, model, work, full) for name, model in kept.items()),
                head_row(head, kept["target"], work, full),
                block_row(block, kept["target"], work, full),
            ]
        ),
        reads=", ".join(map(str, READS)),
        drafted=f"{DRAFTED:,}",
        depths=DEPTHS,
        block_layers=LAYERS,
        block_reads=", ".join(map(str, BLOCK_READS)),
        block_drafts=BLOCK - 1,
        bytes=f"{sum(f.stat().st_size for f in out.glob('*/*')):,}",
        python=platform.python_version(),
        train=f"{len(np.load(work / 'train-2048.npy')):,}",
        held=f"{len(source_files()[1])} files, {held_out_size():,} bytes",
        threads=torch.get_num_threads(),
        batch=BATCH,
        prompts=PROMPTS,
        prompt_tokens=PROMPT_TOKENS,
        response_tokens=RESPONSE_TOKENS,
        written=f"{np.load(work / 'written.npy').size:,}",
    )
    (out / "README.md").write_text(text)
    print(text)

"""Faults of a decoder, planted into a loaded draft: each takes a copy of the draft, and returns
what drafts. They are made by other means than the hypotheses that should name them, where there are
any.
"""

from copy import copy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from audit.made import of_small_queries
from safetensors.torch import load_file
from scenes import EMBEDDED

from draftbench.decoder.attention import Rotary
from draftbench.decoder.drafters import Draft, going_on
from draftbench.decoder.llama_model import RootMeanSquare
from draftbench.decoder.translated import TranslatedRunner
from draftbench.drafts.block.draft import BlockDrafter
from draftbench.drafts.heads.head import HeadDrafter
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.models.source import ModelSource

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from block_kin import make


def on_head(**fields):
    """Fields of the head are others, each computed from the head."""

    def fault(draft, loaded):
        head = copy(draft.head)
        for name, value in fields.items():
            setattr(head, name, value(draft.head))
        draft.head = head
        draft.reads = head.reads
        return draft

    return fault


def without_a_norm(draft, loaded):
    """The weight of one norm is not loaded."""
    head = copy(draft.head)
    norm = head.norms["embedded"]
    without = RootMeanSquare(torch.ones_like(norm.weight), norm.eps)
    head.norms = {**head.norms, "embedded": without}
    draft.head = head
    return draft


def standing_still(draft, loaded):
    """Each step of a round rotates as the first one."""
    head, sound = copy(draft.head), draft.head
    depth = [0]

    def entering(states):
        depth[0] = 0
        return sound.entering(states)

    def step(*given):
        tables = (table.roll(depth[0], 0) for table in sound.rotary)
        depth[0] += 1
        other = copy(sound)
        other.rotary = Rotary(*tables)
        return other.step(*given)

    head.entering, head.step = entering, step
    draft.head = head
    return draft


def late_states(draft, loaded):
    """Every token is read beside the state of the token before."""
    head, sound = copy(draft.head), draft.head
    last = []

    def entering(states):
        before = last[-1] if last and len(states) < 8 else states[:1]
        last[:] = [states[-1:]]
        return sound.entering(torch.cat([before, states[:-1]]))

    head.entering = entering
    draft.head = head
    return draft


def rounding(function):
    """Keys and values are rounded once they are rotated."""

    class Rounded(Rotary):
        def cached(self, new):
            return function(new)

    def fault(draft, loaded):
        if hasattr(draft, "head"):
            draft.head = copy(draft.head)
            draft.head.rotary = Rounded(*draft.head.rotary)
        else:
            draft.runner = draft.runner.with_rotary(Rounded(*draft.runner.rotary))
        return draft

    return fault


def sixteenths(values):
    """4 bits by the words of ggml: 32 values, the largest of which is -8."""
    out = values.clone().view(-1, 32)
    for block in out:
        largest = float(block[block.abs().argmax()])
        if largest:
            scale = largest / -8
            kept = float(torch.tensor(scale).half())
            codes = torch.tensor([min(15, int(float(x) / scale + 8.5)) for x in block])
            block.copy_((codes - 8) * kept)
    return out.view_as(values)


def at_level(level):
    """The draft is quantized."""
    return lambda draft, loaded: loaded.loaded(level=level)


def from_checkpoint(folder):
    """The draft's weights are of another checkpoint."""
    return lambda draft, loaded: loaded.loaded(ModelSource(str(folder)))


def reading(prompt):
    """The draft reads another prompt."""

    class Reading(ModelDrafter):
        def begin(self, row, task, states=None):
            super().begin(row, replace(task, prompt=prompt(task.prompt)))
            self.shift = len(task.prompt) - len(prompt(task.prompt))

        def propose(self, asks, stop=None):
            shifted = [ask._replace(context=ask.context[self.shift :]) for ask in asks]
            return super().propose(shifted, stop)

        def keep(self, row, length, states=None):
            super().keep(row, length - self.shift)

    def fault(draft, loaded):
        draft.drafter = lambda: Reading(draft.runner, draft.mode)
        return draft

    return fault


def rejected_tokens_read(draft, loaded):
    """Every round reads the text anew, with what earlier rounds had read of wrong tokens in it."""

    class Rereading(ModelDrafter):
        def begin(self, row, task, states=None):
            self.read, self.known = list(task.prompt), len(task.prompt)

        def propose(self, asks, stop=None):
            (ask,), self.drafted = asks, []
            self.read += ask.context[self.known :]
            self.known, draft = len(ask.context), Draft(ask, ask.k, stop)
            going = ask.k > 0
            while going:
                text = torch.tensor(self.read + self.drafted)
                logits = self.runner.forward(text, self.runner.new_cache(len(text)), every=False)
                draft.tokens.append(logits.argmax(dim=-1))
                self.drafted.append(int(draft.tokens[-1]))
                going = going_on([draft], logits, stop)
            return [draft.proposal]

        def keep(self, row, length, states=None):
            read = self.drafted[:-1]  # the last one is read by the next round, if it is right
            self.read += read
            self.known = min(self.known + len(read), length)

    draft.drafter = lambda: Rereading(draft.runner, draft.mode)
    return draft


def states_behind_the_norm(draft, loaded):
    """Of each layer the head reads what the target's last norm makes of its state."""
    path = loaded.target.spec
    weight = load_file(f"{path}/model.safetensors")["model.norm.weight"].float()
    head, sound, hidden = copy(draft.head), draft.head, len(weight)

    def entering(states):
        parts = states.split(hidden, dim=1)
        normed = [p / (p.square().mean(1, keepdim=True) + 1e-6).sqrt() * weight for p in parts]
        return sound.entering(torch.cat(normed, dim=1))

    head.entering = entering
    draft.head = head
    return draft


def unknown_as_pad(draft, loaded):
    """The draft reads tokens that it lacks as its token 5, not as its end."""
    old = draft.runner
    pairs = enumerate(zip(old._ids.tolist(), old._lacking.tolist(), strict=True))
    shared = {token: own for token, (own, lacking) in pairs if not lacking}
    draft.runner = TranslatedRunner(old.runner, old.vocab_size, shared, 5)
    return draft


def rewritten(change):
    """The draft reads a prompt whose lines are changed."""

    def fault(draft, loaded):
        tokenizer = loaded.target.tokenizer

        def other(prompt):
            lines = change(tokenizer.decode(prompt).split("\n"))
            return tokenizer("\n".join(lines), add_special_tokens=False)["input_ids"]

        return reading(other)(draft, loaded)

    return fault


def in_float16(draft, loaded):
    """Its checkpoint was cast."""
    with TemporaryDirectory() as folder:
        cast = of_small_queries(Path(folder) / "cast", torch.float16)
        return from_checkpoint(cast)(draft, loaded)


def sharing(draft, loaded):
    """The target's embedding serves, which is what the embedded drafter has."""
    return from_checkpoint(EMBEDDED / "block")(draft, loaded)


def biased_otherwise(draft, loaded):
    """Every bias is the one after another token."""
    with TemporaryDirectory() as folder:
        path = make(Path(folder) / "faulty", "dspark", "bias-after-another")
        return from_checkpoint(path)(draft, loaded)


def drafted_rows_read(draft, loaded):
    """Every round reads all rows anew, with those of tokens that earlier rounds drafted."""

    class Rereading(HeadDrafter):
        def begin(self, row, task, states=None):
            self.tokens, self.known = list(task.prompt[1:]), len(task.prompt)
            self.left, self.unread = self.head.entering(states[:-1]), states[-1:]

        def propose(self, asks, stop=None):
            (ask,) = asks
            self.tokens += ask.context[self.known :]
            self.left = torch.cat([self.left, self.head.entering(self.unread)])
            self.known, draft = len(ask.context), Draft(ask, ask.k, stop)
            going = ask.k > 0
            while going:
                read, n = torch.tensor(self.tokens), len(self.tokens)
                logits, left = self.head.step(read, self.left, self.head.new_cache(n), [n])
                draft.tokens.append(self.head.chosen(logits))
                token = int(draft.tokens[-1])
                if going := going_on([draft], logits, stop):
                    self.tokens.append(token)
                    self.left = torch.cat([self.left, left])
            return [draft.proposal]

        def keep(self, row, length, states=None):
            self.unread = states[: length - self.known + 1]

    draft.drafter = lambda: Rereading(draft.head)
    return draft


def blocks_kept(draft, loaded):
    """The text goes on behind every block."""

    class Growing(BlockDrafter):
        blocks = 0

        def open(self, rows, capacity, widths=()):
            super().open(rows, 3 * capacity)

        def propose(self, asks, stop=None):
            found = super().propose(asks, stop)
            places = self.head.shape.places(asks[0].length)
            self.cache.lengths, self.blocks = [self.cache.lengths[0] + places], self.blocks + places
            return found

        def keep(self, row, length, states=None):
            super().keep(row, length + self.blocks, states)

    draft.drafter = lambda: Growing(draft.head)
    return draft


def of_another_base(draft, loaded):
    """Angles of a base of 1,000,000 where the draft's is 10,000."""
    old = draft.runner.rotary
    head_dim = old.cos.shape[-1]
    angles = 1_000_000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    turned = torch.arange(len(old.cos)).float()[:, None] * angles
    sin = turned.sin()
    tables = torch.cat([turned.cos()] * 2, 1)[:, None], torch.cat([-sin, sin], 1)[:, None]
    draft.runner = draft.runner.with_rotary(Rotary(*(t.to(old.cos.dtype) for t in tables)))
    return draft


def block_shape(**fields):
    return on_head(
        shape=lambda head: replace(
            head.shape, **{name: value(head.shape) for name, value in fields.items()}
        )
    )


def whole_block(draft, loaded):
    """The whole block is drafted, of which the first tokens are proposed."""
    head, sound = copy(draft.head), draft.head

    def block(lasts, k, cache, rows):
        chosen = sound.draft(lasts, sound.shape.most, cache, rows)
        return replace(chosen, tokens=chosen.tokens[:, :k], scores=chosen.scores[:, :k])

    head.draft = block
    draft.head = head
    return draft


def one_further(draft, loaded):
    """The block stands one position further than its first token."""
    head, sound = copy(draft.head), draft.head
    head.rotary = Rotary(*(torch.cat([table[1:], table[-1:]]) for table in sound.rotary))
    head.read = sound.read
    draft.head = head
    return draft


def without_block_norm(draft, loaded):
    """The norm of what the target's states give is not loaded."""
    norm = draft.head.hidden_norm
    return on_head(hidden_norm=lambda head: RootMeanSquare(torch.ones_like(norm.weight), norm.eps))(
        draft, loaded
    )


def keys_of_the_first_layer(draft, loaded):
    """The keys that every layer keeps of the text are normed as those of the first."""
    head, sound = copy(draft.head), draft.head
    other = copy(sound)
    other.layers = [replace(each, k_norm=sound.layers[0].k_norm) for each in sound.layers]
    head.read = other.read
    draft.head = head
    return draft


def without_layer_norms(draft, loaded):
    """The norms before the feed-forward parts of a model are not loaded."""
    runner = copy(draft.runner)
    runner._model = copy(runner._model)

    def plain(norm):
        return RootMeanSquare(torch.ones_like(norm.weight), norm.eps)

    layers = runner._model.layers
    runner._model.layers = [replace(each, mlp_norm=plain(each.mlp_norm)) for each in layers]
    draft.runner = runner
    return draft


def with_tensor(name, change):
    """A tensor of the checkpoint is another one."""
    return lambda draft, loaded: loaded.changed(
        lambda found, tensor: change(tensor) if found == name else tensor
    )


HEAD = {
    "layers-higher": on_head(reads=lambda head: tuple(at + 1 for at in head.reads)),
    "layers-lower": on_head(reads=lambda head: tuple(at - 1 for at in head.reads)),
    "layers-reordered": on_head(reads=lambda head: head.reads[::-1]),
    "states-late": late_states,
    "states-normed": states_behind_the_norm,
    "weights-4-bit": at_level("int4"),
    "tensors-missing": without_a_norm,
    "stale-keys": drafted_rows_read,
    "draft-ids": on_head(target_ids=lambda head: torch.arange(len(head.target_ids))),
    "flags": on_head(shape=lambda head: replace(head.shape, norm_before_residual=True)),
}
BLOCK = {
    "layers-lower": on_head(reads=lambda head: tuple(at - 1 for at in head.reads)),
    "mask-token": block_shape(mask=lambda shape: 0),
    "block-length": whole_block,
    "first-layers": keys_of_the_first_layer,
    "stale-keys": blocks_kept,
    "cache-4-bit": rounding(sixteenths),
    "weights-4-bit": at_level("int4"),
}
MODEL = {
    "stale-keys": rejected_tokens_read,
    "rotary-base": of_another_base,
    "cache-4-bit": rounding(sixteenths),
    "weights-4-bit": at_level("int4"),
    "tensors-missing": without_layer_norms,
    "prompt-unseen": reading(lambda tokens: tokens[-1:]),
}
# Those that the embedded drafts cannot have.
OF_OTHERS = {
    ("own table", "tables"): sharing,
    ("biased", "choice"): biased_otherwise,
    ("foreign", "foreign-tokens"): unknown_as_pad,
    ("chat", "no-generation-prompt"): rewritten(lambda lines: [*lines[:-1], ""]),
    # The template's own date where it cannot tell the time.
    ("chat", "template-date"): rewritten(lambda lines: [*lines[:-2], "# 26 Jul 2024", lines[-1]]),
    ("stack", "rotary-base"): of_another_base,
}
# Those that move three rounds in a hundred, or fewer.
SMALL = {
    ("head", "positions"): standing_still,
    ("head", "cache-4-bit"): rounding(sixteenths),
    ("block", "block-positions"): one_further,
    ("block", "tensors-missing"): without_block_norm,
    ("small", "weights-16-bit"): in_float16,
}

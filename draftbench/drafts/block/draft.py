"""A block drafter: checked for a target, loaded, and used in rounds, along responses, and timed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import msgspec
import torch
from torch import Tensor

from draftbench.decoder.drafters import Draft, Proposal, ProposalRequest
from draftbench.decoder.quantized_linear import make_linear
from draftbench.decoder.runner import DecodeTask, HiddenStates, Runner, on_device, whole
from draftbench.drafts.block.head import BlockHead
from draftbench.drafts.block.shape import BlockShape, shape_of, unknown_keys
from draftbench.drafts.heads.config import layers_of, read_otherwise
from draftbench.drafts.heads.draft import finite_states, refuse_unless_finite
from draftbench.drafts.heads.served import check_head_for, not_started
from draftbench.drafts.heads.served import held as held
from draftbench.drafts.heads.tensors import (
    first_of,
    layer_not_run,
    misfitting,
    reads_outside,
    rotary_of,
    unusable,
)
from draftbench.drafts.kind import Method
from draftbench.drafts.kinds import kind_of
from draftbench.drafts.loading import Loading, Pairing
from draftbench.drafts.stopping import STOP_RULES
from draftbench.measure.replay import (
    ServedTarget,
    confidences_of,
    from_every_start,
    least_margins,
    matching,
)
from draftbench.measure.timed_passes import (
    CostGrid,
    Record,
    Sizes,
    TimedPass,
    in_a_row,
    queued_passes,
)
from draftbench.measure.trajectories import Group, ScoredResponse
from draftbench.models.quantize import check_build, model_facts
from draftbench.models.source import ModelSource
from draftbench.records import Candidate, Confidences, InBlock, LookupReplay, ModelFacts, StopRule


class BlockDraft:
    """A block drafter on the target whose states it reads."""

    def __init__(self, head: BlockHead, target: Runner) -> None:
        self.head, self.target = head, target
        self.reads: Sequence[int] = head.reads
        self.context_length = head.context_length

    def drafter(self) -> BlockDrafter:
        return BlockDrafter(self.head)

    def replay(
        self, candidate: Candidate, group: Group, window: int, *, stops: bool = True
    ) -> list[LookupReplay]:
        head, target, stops = self.head, self.target, stops and self.head.shape.tells
        return [replay_blocks(each, candidate, head, target, window, stops=stops) for each in group]

    def passes(self, record: Record, grid: CostGrid, first: Sizes = None) -> Iterator[TimedPass]:
        """Its catch-up over each number of tokens that may be left to read, the blocks of each
        number of drafted tokens at each context, and whole prompts. The states of any text serve.
        """
        head, rows = self.head, grid.concurrency
        sizes = first or grid.verify_sizes
        most_drafted = head.shape.most
        lengths = sorted({min(n - 1, most_drafted) for n in grid.verify_sizes if n > 1})
        contexts = [c for c in grid.contexts if c + max(sizes) <= head.context_length]
        most = max([*sizes, *grid.prompts])
        hidden, text = HiddenStates(head.reads), grid.tokens(0, most)
        tokens = torch.tensor(text, device=self.target.device)
        self.target.forward(tokens, self.target.new_cache(most), every=False, hidden=hidden)
        states = hidden.joined()
        room = max([*contexts, most]) + max(sizes)
        cache = head.new_cache(room, rows, grid.verify_sizes, lengths)

        def point(what: str, size: int, context: int, at_once: int = rows) -> TimedPass:
            counts = [size] * at_once + [0] * (rows - at_once)
            read, lasts = states[:size].repeat(at_once, 1), tokens[:1].repeat(at_once)

            def once() -> Tensor:
                cache.lengths = [context] * rows
                if what == "block":
                    return head.draft(lasts, size, cache, range(at_once)).tokens
                head.read(read, cache, counts)
                return cache.slabs[0, 0, 0, 0, 0]  # to wait for

            where = {"new_tokens": size, "context": context, "concurrency": at_once}
            of_point = partial(record, what=what, **where, runner=head.name)
            passes = 1 if what == "prefill" else queued_passes(head.device, grid)
            return TimedPass(in_a_row(once, passes), of_point, passes, what == "prefill")

        for context in contexts:
            yield from (point("catch-up", size, context) for size in sizes)
            yield from (point("block", length, context) for length in lengths)
        yield from (point("prefill", length, 0, 1) for length in grid.prompts)


class BlockDrafter:
    """A block drafter in rounds: it reads what the target has read since the last round, then
    drafts a block as long as the rounds, of which it proposes as much as is asked for.
    """

    def __init__(self, head: BlockHead) -> None:
        self.head = head
        self.reads: Sequence[int] = head.reads

    def open(self, rows: int, capacity: int, widths: Collection[int] = ()) -> None:
        length = min(max(widths, default=1) - 1, self.head.shape.most)
        self.cache = self.head.new_cache(capacity, rows, widths, (length,) if length else ())
        # The target's states at the tokens that it has not read yet, by row.
        self._unread = [torch.empty(0)] * rows

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        assert states is not None
        self.cache.rewind(row, 0)
        self._read({row: states})

    def propose(
        self, asks: Sequence[ProposalRequest], stop: StopRule | None = None
    ) -> list[Proposal | None]:
        drafting = [ask for ask in asks if ask.k > 0]
        if not drafting:
            return [None] * len(asks)
        self._read({ask.row: self._unread[ask.row] for ask in drafting})
        length = min(drafting[0].length, self.head.shape.most)
        lasts = on_device([ask.context[-1] for ask in drafting], self.head.device)
        chosen = self.head.draft(lasts, length, self.cache, [ask.row for ask in drafting])
        drafts = {}
        for ask, tokens in zip(drafting, chosen.tokens, strict=True):
            drafts[ask.row] = Draft(ask, ask.k, stop)
            drafts[ask.row].tokens.extend(tokens[: ask.k].split(1))
        if stop is not None:
            every = chosen.sure(STOP_RULES[stop.kind].among).tolist()
            for ask, sure in zip(drafting, every, strict=True):
                drafts[ask.row].cut(sure[: ask.k])
        return [drafts[ask.row].proposal if ask.k > 0 else None for ask in asks]

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        """Keep the states of a round's accepted tokens; the next round reads them."""
        assert states is not None
        unread = self._unread[row]
        both = torch.cat([unread, states]) if len(unread) else states
        self._unread[row] = both[: length - self.cache.lengths[row]]

    def _read(self, states: Mapping[int, Tensor]) -> None:
        """Read states at the next tokens of some rows."""
        rows = range(len(self._unread))
        counts = [len(states[row]) if row in states else 0 for row in rows]
        if any(counts):
            joined = whole([states[row] for row in rows if row in states])
            self.head.read(joined, self.cache, counts)
        for row, read in states.items():
            self._unread[row] = read[:0]


def replay_blocks(
    response: ScoredResponse,
    candidate: Candidate,
    head: BlockHead,
    target: Runner,
    window: int,
    *,
    stops: bool = True,
) -> LookupReplay:
    """What blocks of each number of tokens, up to `window` or to as many as it was trained for,
    draft from every position at which a round may start, by one pass of the target over the
    response; where rounds may stop, with how sure it is.

    Raises:
        ModelError: states of the target or logits of the drafter that are NaN or infinite.
    """
    states, window = finite_states(response, head.reads, target), min(window, head.shape.most)
    text = torch.tensor([*response.prompt.tokens, *response.tokens], device=head.device)
    lengths = [window] if head.shape.same_at_every_length else range(1, window + 1)
    blocks, proposals, margins = list[InBlock](), list[list[int]](), list[list[float]]()
    confidences: Confidences | None = None
    first = len(response.prompt.tokens)
    for chosen in head.along(text, states, first, lengths, stops=stops).values():
        refuse_unless_finite(chosen.margins, "the drafter's logits")
        proposals, margins = chosen.tokens.tolist(), chosen.margins.tolist()
        matched = matching(response, proposals)
        if chosen.sure is not None:
            of_all, of_ten = (chosen.sure[..., column].tolist() for column in (0, 1))
            confidences = confidences_of(of_all, of_ten)
        blocks.append(InBlock(matched, least_margins(margins, matched), confidences))
    return from_every_start(
        response,
        candidate,
        window,
        proposals,
        margins,
        confidences,
        at_once=True,
        blocks=blocks[:-1],
    )


def check(source: ModelSource, pairing: Pairing, method: Method) -> tuple[str, ...] | None:
    """By its configuration and its tensors. Over an engine's answers it is replayed here, unless
    only the engine can run it.
    """
    caveats = check_head_for(source, pairing, method, misfits)
    if caveats is None:
        return None
    most = most_drafted(source)
    return (*caveats, f"it drafts at most {most} tokens a round, as many as it was trained for")


def most_drafted(source: ModelSource) -> int:
    """The most tokens that it drafts in a round."""
    return shape_of(source.raw_config).most


def refused_by(engine: str, target: ModelSource, source: ModelSource, method: Method) -> str | None:
    """Where the engine does not take it, or reads it otherwise than it was trained."""
    why = not_started(engine, target, source, method)
    return why and f"it {why}"


def load(loading: Loading) -> tuple[BlockDraft, ModelFacts]:
    """Load it on the target."""
    target = loading.runner
    assert not isinstance(target, ServedTarget)
    head, facts = build_block(loading, target)
    method, layers = kind_of(loading.candidate.draft).method, layers_of(loading.target)
    misread = read_otherwise(loading.source.raw_config, method, loading.engine, layers)
    return BlockDraft(head, target), msgspec.structs.replace(facts, misread=misread)


def build_block(loading: Loading, target: Runner) -> tuple[BlockHead, ModelFacts]:
    """Load, quantize, and count.

    Raises:
        ModelError: it cannot be loaded or quantized.
    """
    source, build = loading.source, loading.build
    has_kernel = check_build(source, build)
    tensors, shape = by_name(source), shape_of(source.raw_config)
    linear = partial(make_linear, level=build.level, two_layouts=build.two_layouts)
    head = BlockHead(
        shape, tensors, target, rotary_of(shape.layer), linear, build.dtype, build.longest
    )
    slow = head.record_short_passes()
    parameters = sum(t.numel() for t in tensors.values() if t.is_floating_point())
    facts = model_facts(
        head,
        source,
        build,
        loading.candidate.draft,
        parameters=parameters,
        layer=shape.layer,
        vocab_size=shape.drafted,
        has_kernel=has_kernel,
        slow=slow,
    )
    return head, facts


def misfits(target: ModelSource, source: ModelSource) -> tuple[list[str], list[str]]:
    """Why its tensors do not fit the target, whatever drafts with it; and what of it the built-in
    decoder does not run.

    Raises:
        ModelError: it cannot be read.
    """
    raw, text = source.raw_config, target.config.get_text_config()
    if unknown := unknown_keys(raw):
        return [], [f"its config.json says {', '.join(unknown)}, which is not known here"]
    try:
        shape = shape_of(raw)
        not_run = layer_not_run(shape.layer)
        if not not_run:
            rotary_of(shape.layer)
    # Anyone may have written the configuration, and code that builds from it raises anything.
    except Exception as error:
        reason = str(error).strip().rpartition("\n")[2].rpartition("Error: ")[2]
        return [], [reason or f"its config.json cannot be read: {type(error).__name__}"]
    tensors = by_name(source)
    wanted, optional = _sizes(shape, text.hidden_size, text.vocab_size)
    known = {**wanted, **optional}
    wrong = misfitting(tensors, known, drafted=shape.drafted, vocabulary=text.vocab_size)
    if missing := sorted(wanted.keys() - tensors.keys()):
        wrong.append(f"it has no tensor {first_of(missing)}")
    if "embed_tokens.weight" not in tensors and not 0 <= shape.mask < text.vocab_size:
        wrong.append(
            f"its mask is token {shape.mask}, and the target's vocabulary has {text.vocab_size}"
        )
    return wrong, [
        *not_run,
        *reads_outside(shape.reads, text.num_hidden_layers),
        *unusable(tensors, known),
    ]


def by_name(source: ModelSource) -> dict[str, Tensor]:
    """The tensors of a checkpoint by the names of the speculators format, without those that only
    training uses.
    """
    found = {name.removeprefix("model."): tensor for name, tensor in source.tensors().items()}
    return {name: tensor for name, tensor in found.items() if not name.startswith("verifier_")}


def _sizes(
    shape: BlockShape, states: int, vocabulary: int
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """The sizes of the tensors that a block drafter must have and of those that it may have."""
    layer = shape.layer
    hidden, inner, drafted = layer.hidden_size, layer.intermediate_size, shape.drafted
    queries, keys = (
        n * shape.head_dim for n in (layer.num_attention_heads, layer.num_key_value_heads)
    )
    of_layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (shape.head_dim,),
        "self_attn.k_norm.weight": (shape.head_dim,),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    biases = {"q": queries, "k": keys, "v": keys, "o": hidden}
    if (conv := shape.convolutions) is not None:
        for half in ("attention_conv", "mlp_conv"):
            of_layer[f"{half}.base_kernel"] = (2, conv.taps, hidden)
            of_layer[f"{half}.kernel_projection.weight"] = (
                2 * conv.taps * (hidden // conv.group),
                hidden,
            )
    wanted: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(shape.reads) * states),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    optional: dict[str, tuple[int, ...]] = {"t2d": (vocabulary,)}
    for index in range(layer.num_hidden_layers):
        wanted |= {f"layers.{index}.{name}": size for name, size in of_layer.items()}
        named = {f"layers.{index}.self_attn.{name}_proj.bias": (n,) for name, n in biases.items()}
        optional |= named
    # The target's embedding and output head serve where they fit.
    shared = optional if hidden == states else wanted
    shared["embed_tokens.weight"] = (vocabulary, hidden)
    (shared if drafted == vocabulary else wanted)["lm_head.weight"] = (drafted, hidden)
    optional["d2t"] = (drafted,)
    if (selector := shape.selector) is not None:
        for side in ("predecessor", "successor"):
            wanted[f"candidate_selector.{side}_codebook"] = (vocabulary, selector.rank)
        wanted["candidate_selector.hidden_projection.weight"] = (selector.rank, hidden)
    if (markov := shape.markov) is not None:
        rank = markov.rank
        wanted["markov_head.markov_w1.weight"] = (vocabulary, rank)
        wanted["markov_head.markov_w2.weight"] = (drafted, rank)
        mixing = {
            "gated": ("gate_proj", (rank, hidden + rank)),
            "rnn": ("joint_proj", (3 * rank, 2 * rank + hidden)),
        }
        if markov.kind in mixing:
            name, size = mixing[markov.kind]
            wanted[f"markov_head.{name}.weight"] = size
            wanted[f"markov_head.{name}.bias"] = size[:1]
        read = hidden + rank * markov.confident_of_both
        (wanted if markov.confident else optional)["confidence_head.proj.weight"] = (1, read)
        optional["confidence_head.proj.bias"] = (1,)
    return wanted, optional

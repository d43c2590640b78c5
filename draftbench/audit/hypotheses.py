"""What may be wrong where a decoder's rounds are not those that replay says: a row for each, with
how the replay changes if it is so.

What rotary positions cannot show is no row: if all of a draft's positions are off by the same
number, it drafts the same.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import permutations, product
from typing import Any

import msgspec
import torch
from torch import Tensor

from draftbench.audit.along_rounds import AlongRounds, room
from draftbench.audit.replaying import Replaying, of_lengths
from draftbench.decoder.attention import LaterDepths, Rotary
from draftbench.decoder.llama import LlamaRunner
from draftbench.decoder.llama_model import rotary_tables
from draftbench.decoder.translated import TranslatedRunner
from draftbench.drafts.block.choice import EachForItself, Following
from draftbench.drafts.heads.tensors import rotary_of
from draftbench.measure.candidate import Replays
from draftbench.measure.trajectories import Group
from draftbench.models.source import ModelSource
from draftbench.records import Candidate

# What a hypothesis makes of a draft, in words that complete its own, and how it is loaded.
Variants = Iterator[tuple[str, Callable[[], Any]]]

HEADS = ("eagle3", "dflash", "dspark")
BLOCKS = ("dflash", "dspark")
EVERY = ("draft-model", *HEADS)
# Elements that share a scale in llama.cpp's types.
_BLOCK = 32
# Elements that newer builds of it turn together before they round them.
_TURNED = 64
# Rotary bases of published families.
_BASES = (10_000.0, 500_000.0, 1_000_000.0)
# Numbers of tokens of a block in published drafters.
_BLOCK_SIZES = (4, 8, 10, 16)


@dataclass(frozen=True)
class Hypothesis:
    """What may be wrong."""

    says: str  # what is then so, in words
    of: tuple[str, ...]  # the kinds of draft that it can be true of
    seen: str  # where it occurred
    advice: str  # what to do
    variants: Callable[[Replaying], Variants]  # how the draft changes
    # Whether it is about number types alone, which also decide between tokens that nearly tie.
    numeric: bool = False


# --- What a head reads of the target


def _other_layers(by: int) -> Callable[[Replaying], Variants]:
    def variants(replaying: Replaying) -> Variants:
        reads = tuple(layer + by for layer in replaying.draft.reads)
        if min(reads) >= 0 and max(reads) <= replaying.known_target.layers:
            named = ", ".join(map(str, reads))
            yield f"it reads layers {named}", partial(replaying.with_head, reads=reads)

    return variants


def _reordered(replaying: Replaying) -> Variants:
    own = tuple(replaying.draft.reads)
    orders = permutations(own) if len(own) <= 3 else (tuple(sorted(own)), own[::-1])
    for reads in dict.fromkeys(orders):
        if reads != own:
            named = ", ".join(map(str, reads))
            yield f"in the order {named}", partial(replaying.with_head, reads=reads)


def _normed(replaying: Replaying) -> Variants:
    runner = replaying.known_target.runner
    if isinstance(runner, LlamaRunner):
        yield "", partial(replaying.with_states, runner.last_norm)


def _late(replaying: Replaying) -> Variants:
    def late(states: Tensor) -> Tensor:
        return torch.cat([states[:1], states[:-1]])

    yield "", partial(replaying.with_states, late)


# --- Positions


class _Standing(LaterDepths):
    advance = 0


class _Skipping(LaterDepths):
    advance = 2


def _still(replaying: Replaying) -> Variants:
    for words, depths in (("they stand still", _Standing), ("they advance by two", _Skipping)):
        yield words, partial(replaying.with_head, later_depths=depths)


class _Moved(Rotary):
    by = 1

    def at(self, place: Tensor) -> Rotary:
        return super().at((place + self.by).clamp(min=0))


class _MovedBack(_Moved):
    by = -1


def _block_moved(replaying: Replaying) -> Variants:
    head = replaying.draft.head
    for words, kind in (("one further", _Moved), ("one back", _MovedBack)):
        # The text's own keys are where they were.
        yield words, partial(replaying.with_head, rotary=kind(*head.rotary), read=head.read)


def _other_base(replaying: Replaying) -> Variants:
    own = _layer(replaying).rope_parameters["rope_theta"]
    target = replaying.target.config.get_text_config().rope_parameters or {}
    for base in dict.fromkeys((*_BASES, target.get("rope_theta", own))):
        if base != own:
            yield f"{base:,.0f}, not {own:,.0f}", partial(_with_base, replaying, base)


def _with_base(replaying: Replaying, base: float) -> Any:
    layer = copy(_layer(replaying))
    layer.rope_parameters = {**layer.rope_parameters, "rope_theta": base}
    old = _rotary(replaying)
    return _with_rotary(replaying, rotary_tables(rotary_of(layer), old.cos[0], len(old.cos)))


def _layer(replaying: Replaying) -> Any:
    if replaying.method in HEADS:
        return replaying.draft.head.shape.layer
    return replaying.source.config.get_text_config()


def _rotary(replaying: Replaying) -> Rotary:
    if replaying.method in HEADS:
        rotary: Rotary = replaying.draft.head.rotary
        return rotary
    return _llama(replaying).rotary


def _with_rotary(replaying: Replaying, rotary: Rotary) -> Any:
    if replaying.method in HEADS:
        return replaying.with_head(rotary=rotary)
    draft, inner = copy(replaying.draft), _llama(replaying).with_rotary(rotary)
    draft.runner = inner
    if isinstance(replaying.draft.runner, TranslatedRunner):
        draft.runner = replaying.draft.runner.around(inner)
    return draft


def _llama(replaying: Replaying) -> LlamaRunner:
    runner = replaying.draft.runner
    inner = runner.runner if isinstance(runner, TranslatedRunner) else runner
    if not isinstance(inner, LlamaRunner):
        raise NotImplementedError("it does not run through draftbench's own forward pass")
    return inner


# --- What a round leaves behind


def _stale(replaying: Replaying) -> Variants:
    part = "head" if replaying.method in HEADS else "runner"
    ks = {answer.length.k for some in replaying.answers.values() for answer in some}
    most = max(room(each, max(ks)) for each in replaying.run.trajectories)
    tables = rotary_tables(rotary_of(_layer(replaying)), _rotary(replaying).cos[0], most)
    front = Rotary(*(torch.cat([table[:1].expand_as(table), table]) for table in tables))

    def behind(stale: int, moves: bool = False) -> Any:
        first = most - moves * stale
        rotary = Rotary(*(table.narrow(0, first, most) for table in front))
        return getattr(_with_rotary(replaying, rotary), part)

    along = partial(AlongRounds, replaying.draft, part, answers=replaying.answers)
    yield "what follows stands behind them", lambda: along(behind)
    yield "what follows stands at its own place", lambda: along(partial(behind, moves=True))


# --- Number types


def in_8_bits(values: Tensor) -> Tensor:
    """As llama.cpp's q8_0 keeps them: 32 with a scale in float16."""
    blocks = values.float().unflatten(-1, (-1, _BLOCK))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    codes = (blocks / scale.clamp(min=1e-30)).round()
    return (codes * scale.half().float()).flatten(-2).to(values.dtype)


def in_4_bits(values: Tensor) -> Tensor:
    """As llama.cpp's q4_0 keeps them: 32 with a scale in float16, whose largest one is code -8."""
    blocks = values.float().unflatten(-1, (-1, _BLOCK))
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = largest / -8
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    codes = (blocks * inverse + 8.5).floor().clamp(0, 15) - 8
    return (codes * scale.half().float()).flatten(-2).to(values.dtype)


def turned(rounding: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """As newer builds of llama.cpp keep a quantized cache: turned by a Hadamard matrix first."""
    matrix = torch.ones(1, 1)
    while len(matrix) < _TURNED:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    matrix = matrix.to(values.device) / _TURNED**0.5
    parts = values.float().unflatten(-1, (-1, _TURNED))
    kept = rounding((parts @ matrix).flatten(-2)).unflatten(-1, (-1, _TURNED))
    return (kept @ matrix.T).flatten(-2).to(values.dtype)


def in_type(dtype: torch.dtype, values: Tensor) -> Tensor:
    """As a type of fewer bits keeps them."""
    return values.to(dtype).to(values.dtype)


_ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "in float16": partial(in_type, torch.float16),
    "in bfloat16": partial(in_type, torch.bfloat16),
    "in 8 bits": in_8_bits,
    "in 4 bits": in_4_bits,
}


def _cache_in(words: str) -> Callable[[Replaying], Variants]:
    def variants(replaying: Replaying) -> Variants:
        rotary = _rotary(replaying)
        if "bits" in words and rotary.cos.shape[-1] % _BLOCK:
            return
        roundings = {"": _ROUNDINGS[words]}
        if "bits" in words and rotary.cos.shape[-1] % _TURNED == 0:
            roundings[", turned"] = partial(turned, _ROUNDINGS[words])
        for part, (how, rounding) in product(
            ("both", "the keys alone", "the values alone"), roundings.items()
        ):
            kept = _rounds_in_cache(rounding, part)
            yield f"{part}{how}", partial(_with_rotary, replaying, kept(*rotary))

    return variants


def _rounds_in_cache(rounding: Callable[[Tensor], Tensor], part: str) -> type[Rotary]:
    """A rotary whose cache rounds keys, values or both."""

    class Rounded(Rotary):
        def cached(self, new: Tensor) -> Tensor:
            rounded = rounding(new)
            keys = new.shape[1] // 2
            if part == "the keys alone":
                rounded[:, keys:] = new[:, keys:]
            elif part == "the values alone":
                rounded[:, :keys] = new[:, :keys]
            return rounded

    return Rounded


def _rounded(words: str, name: str, tensor: Tensor) -> Tensor:
    """A tensor in another type: a cast is of all tensors, scales are of matrices."""
    cast = "bits" not in words or (tensor.ndim == 2 and tensor.shape[1] % _BLOCK == 0)
    return _ROUNDINGS[words](tensor) if cast and tensor.is_floating_point() else tensor


def _weights_in(*words: str) -> Callable[[Replaying], Variants]:
    def variants(replaying: Replaying) -> Variants:
        for each in words:
            yield each, partial(replaying.changed, partial(_rounded, each))
        for level in ("int8", "int4"):
            if level[3:] in "".join(words) and replaying.build.level == "none":
                yield f"at level {level}", partial(replaying.loaded, level=level)

    return variants


def _other_level(replaying: Replaying) -> Variants:
    if replaying.build.level != "none":
        yield "", partial(replaying.loaded, level="none")


# --- Weights


def _as_they_are(replaying: Replaying) -> Variants:
    yield "", lambda: replaying.draft


def other_weights(path: str) -> Callable[[Replaying], Variants]:
    """The weights in another file or folder."""

    def variants(replaying: Replaying) -> Variants:
        yield path, partial(replaying.loaded, ModelSource(path))

    return variants


def _parts(replaying: Replaying) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """What of a draft's tensors may have been left out together."""
    if replaying.method in HEADS:
        names = [name.removeprefix("model.") for name in replaying.tensors]
    else:
        names = list(replaying.source.stored_tensors())
    matrices = [name for name in names if name.endswith(".weight")]
    layers = dict.fromkeys(
        part for name in names for part in [_layer_name(name)] if part is not None
    )
    for layer in layers if len(layers) > 1 else ():
        yield f"all of {layer}", partial(_in_layer, layer)
    kinds = dict.fromkeys(_without_layer(name) for name in matrices)
    for kind in kinds:
        if not any(word in kind for word in ("embed_tokens", "lm_head")):
            yield kind, partial(_of_kind, kind)


def _in_layer(layer: str, name: str) -> bool:
    return f"{layer}." in name


def _of_kind(kind: str, name: str) -> bool:
    return _without_layer(name) == kind


def _layer_name(name: str) -> str | None:
    words = name.split(".")
    at = words.index("layers") if "layers" in words else None
    return None if at is None else ".".join(words[at : at + 2])


def _without_layer(name: str) -> str:
    name = name.removeprefix("model.").replace("midlayer.", "layers.0.")
    layer = _layer_name(name)
    return name.replace(f"{layer}.", "") if layer else name


def _missing(replaying: Replaying) -> Variants:
    for words, belongs in _parts(replaying):
        yield words, partial(replaying.changed, partial(_emptied, belongs))


def _emptied(belongs: Callable[[str], bool], name: str, tensor: Tensor) -> Tensor:
    """What a program has in place of a tensor that it did not load: a norm that only norms, or a
    matrix of zeros.
    """
    if not belongs(name) or not tensor.is_floating_point():
        return tensor
    return torch.ones_like(tensor) if tensor.ndim == 1 else torch.zeros_like(tensor)


def _first_layers(replaying: Replaying) -> Variants:
    known, reading = replaying.tensors, copy(replaying.draft.head)
    first = reading.layers[0].k_norm
    if len(reading.layers) > 1:
        reading.layers = [replace(layer, k_norm=first) for layer in reading.layers]
        words = "self_attn.k_norm.weight, for keys of the text alone"
        yield words, partial(replaying.with_head, read=reading.read)
    if len({_layer_name(name) for name in known} - {None}) > 1:
        for kind in dict.fromkeys(_without_layer(name) for name in known if _layer_name(name)):
            yield kind, partial(replaying.changed, partial(_of_first_layer, kind, known))


def _of_first_layer(kind: str, known: Mapping[str, Tensor], name: str, tensor: Tensor) -> Tensor:
    layer = _layer_name(name)
    if layer is None or not _of_kind(kind, name):
        return tensor
    return known.get(name.replace(f"{layer}.", "layers.0."), tensor)


def _own_tables(replaying: Replaying) -> Variants:
    head, target = replaying.draft.head, replaying.known_target
    if head.embedding is not target.embedding and head.embedding.shape == target.embedding.shape:
        yield (
            "its embedding is the target's",
            lambda: replaying.with_head(embedding=target.embedding),
        )
    if head.shape.drafted == target.vocab_size:
        yield "its lm_head is the target's", lambda: replaying.with_head(logits=target.continued)


def _own_ids(replaying: Replaying) -> Variants:
    head = replaying.draft.head
    own = head.target_ids if replaying.method == "eagle3" else head.choose.target_ids
    plain = torch.arange(len(own), device=own.device)
    if torch.equal(plain, own):
        return
    for words, ids in (("they are not mapped", plain), ("they are off by one", own.roll(1))):
        if replaying.method == "eagle3":
            yield words, partial(replaying.with_head, target_ids=ids)
        else:
            choose = replace(head.choose, target_ids=ids)
            yield words, partial(replaying.with_head, choose=choose)


# --- What config.json does not say


def _flags(replaying: Replaying) -> Variants:
    head = replaying.draft.head
    for flag in ("norm_before_residual", "norm_output"):
        value = not getattr(head.shape, flag)
        shape = replace(head.shape, **{flag: value})
        words = f"{flag} is {str(value).lower()}"
        yield words, partial(replaying.with_head, shape=shape)


def _block_flags(replaying: Replaying) -> Variants:
    shape = replaying.draft.head.shape
    causal = tuple(each._replace(causal=True) for each in shape.sees)
    both_ways = tuple(each._replace(causal=False) for each in shape.sees)
    open_sees = tuple(each._replace(window=None) for each in shape.sees)
    for words, sees in (
        ("each token sees only those before it", causal),
        ("each token sees the whole block", both_ways),
        ("no layer has a window", open_sees),
    ):
        if sees != shape.sees:
            changed = replace(shape, sees=sees)
            yield words, partial(replaying.with_head, shape=changed)
    anchored = replace(shape, anchored=not shape.anchored)
    words = f"sample_from_anchor is {str(anchored.anchored).lower()}"
    yield words, partial(replaying.with_head, shape=anchored)


def _mask(replaying: Replaying) -> Variants:
    shape, config = replaying.draft.head.shape, replaying.target.config.get_text_config()
    named = {
        "0": 0,
        "the pad token": config.pad_token_id,
        "the end token": config.eos_token_id,
        "the start token": config.bos_token_id,
        "the last token": config.vocab_size - 1,
    }
    tried = {shape.mask}
    for words, token in named.items():
        token = token[0] if isinstance(token, list) else token
        if token is not None and token not in tried:
            tried.add(token)
            changed = replace(shape, mask=token)
            yield f"it is {words}", partial(replaying.with_head, shape=changed)


def _block_length(replaying: Replaying) -> Variants:
    shape = replaying.draft.head.shape
    for block in dict.fromkeys((shape.block, *_BLOCK_SIZES)):
        changed = replace(shape, block=block)
        draft = partial(replaying.with_head, shape=changed)
        if block < shape.block:
            yield f"a block has {block} tokens at most", draft
        if not shape.same_at_every_length:
            yield f"always {block} tokens", partial(_of_one_length, draft)


def _of_one_length(draft: Callable[[], Any]) -> _OfOneLength:
    return _OfOneLength(draft())


@dataclass(frozen=True)
class _OfOneLength:
    """A block drafter whose blocks are always as long as the longest."""

    draft: Any

    def replay(self, candidate: Candidate, group: Group, window: int, *, stops: bool) -> Replays:
        most = self.draft.head.shape.most
        alone = of_lengths(self.draft, {most})
        found = alone.replay(candidate, group, most, stops=stops)
        return [
            msgspec.structs.replace(each, blocks=(), window=max(window, most)) for each in found
        ]


def _choice(replaying: Replaying) -> Variants:
    choose = replaying.draft.head.choose
    if isinstance(choose, EachForItself):
        return
    plain = EachForItself(choose.target_ids)
    yield "each for itself", partial(replaying.with_head, choose=plain)
    for words, by in (("one less", 1), ("one more", -1)):
        other = replace(choose, before=choose.before.roll(by, 0))
        yield f"after the token whose id is {words}", partial(replaying.with_head, choose=other)
    if isinstance(choose, Following) and choose.before.shape == choose.after.shape:
        swapped = replace(choose, before=choose.after, after=choose.before)
        yield "as what comes before", partial(replaying.with_head, choose=swapped)


# --- What the draft sees of the text


@dataclass(frozen=True)
class _Reading:
    """A draft that reads another prompt than the target."""

    draft: Any
    prompt: Callable[[Sequence[int]], Sequence[int]]

    def replay(self, candidate: Candidate, group: Group, window: int, *, stops: bool) -> Replays:
        other = [
            replace(each, prompt=replace(each.prompt, tokens=self.prompt(each.prompt.tokens)))
            for each in group
        ]
        found: Replays = self.draft.replay(candidate, other, window, stops=stops)
        return found


def _reading(
    replaying: Replaying, prompt: Callable[[Sequence[int]], Sequence[int]]
) -> Callable[[], _Reading]:
    return lambda: _Reading(replaying.draft, prompt)


def _unseen_prompt(replaying: Replaying) -> Variants:
    yield "", _reading(replaying, lambda tokens: tokens[-1:])


def _start_token(replaying: Replaying) -> Variants:
    yield (
        "it does not read the prompt's first token",
        _reading(replaying, lambda tokens: tokens[1:] if len(tokens) > 1 else tokens),
    )
    starts = [
        getattr(source.config.get_text_config(), "bos_token_id", None)
        for source in (replaying.target, replaying.source)
    ]
    for start in dict.fromkeys(starts):
        if isinstance(start, int):
            more = partial(_after, start)
            yield f"it reads token {start} before the prompt", _reading(replaying, more)


def _after(start: int, tokens: Sequence[int]) -> Sequence[int]:
    return [start, *tokens]


def _unended_prompt(replaying: Replaying) -> Variants:
    ending = _generation_prompt(replaying.target)
    if ending:

        def without(tokens: Sequence[int]) -> Sequence[int]:
            ends = list(tokens[-len(ending) :]) == ending and len(tokens) > len(ending)
            return tokens[: -len(ending)] if ends else tokens

        yield "", _reading(replaying, without)


def _other_date(replaying: Replaying) -> Variants:
    """What a template has instead where it cannot tell the time, and the days before, at and after
    the run's beginning, one of which stands in its prompts.
    """
    tokenizer = replaying.target.tokenizer
    template = str(getattr(tokenizer, "chat_template", None) or "")
    begun = datetime.fromisoformat(replaying.run.manifest.created)
    for form in dict.fromkeys(re.findall(r"strftime_now\(\s*['\"](.+?)['\"]", template)):
        quoted = re.findall(r"['\"](.+?)['\"]", template)
        days = (begun + timedelta(days=by) for by in (-1, 0, 1))
        dates = [each for each in quoted if _is_date(each, form)]
        dates += [day.strftime(form) for day in days]
        for date in dict.fromkeys(dates):
            yield f"it reads {date}", _reading(replaying, partial(_dated, tokenizer, dates, date))


def _is_date(text: str, form: str) -> bool:
    with contextlib.suppress(ValueError):
        datetime.strptime(text, form)
        return True
    return False


def _dated(tokenizer: Any, dates: Sequence[str], date: str, tokens: Sequence[int]) -> Sequence[int]:
    """A prompt with another date, if it has one and its text gives its tokens."""
    text = tokenizer.decode(tokens)
    written = next((each for each in dates if each in text), date)
    as_they_are, other = (
        tokenizer(each, add_special_tokens=False)["input_ids"]
        for each in (text, text.replace(written, date, 1))
    )
    return other if as_they_are == list(tokens) else tokens


def _foreign(replaying: Replaying) -> Variants:
    runner, config = replaying.draft.runner, replaying.source.config.get_text_config()
    if not isinstance(runner, TranslatedRunner):
        return
    named = {
        "0": 0,
        "its pad": config.pad_token_id,
        "its end": config.eos_token_id,
        "its start": config.bos_token_id,
        "its unknown": replaying.source.tokenizer.unk_token_id,
    }
    for words, token in named.items():
        if isinstance(token, int):
            yield f"as {words} token", partial(_with_runner, replaying, runner.reading(token))


def _with_runner(replaying: Replaying, runner: TranslatedRunner) -> Any:
    draft = copy(replaying.draft)
    draft.runner = runner
    return draft


def _generation_prompt(target: ModelSource) -> list[int]:
    """The tokens with which a template begins the answer; none without a template."""
    tokenizer = target.tokenizer
    if not getattr(tokenizer, "chat_template", None):
        return []
    chat = [{"role": "user", "content": "a"}]
    texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=add)
        for add in (False, True)
    ]
    added = texts[1].removeprefix(texts[0]) if texts[1].startswith(texts[0]) else ""
    ids: list[int] = tokenizer(added, add_special_tokens=False)["input_ids"]
    return ids


# The most telling first: of two that explain the same rounds, the first is named first.
HYPOTHESES: dict[str, Hypothesis] = {
    "changed-since": Hypothesis(
        "the run's replay is of other files: replayed today, the draft explains its rounds",
        EVERY,
        "a checkpoint overwritten between two sweeps into one folder",
        "sweep again into another folder; the decoder is sound",
        _as_they_are,
    ),
    "layers-lower": Hypothesis(
        "the head reads the target's layers one lower than it was trained for",
        HEADS,
        "engines that count a layer's output where the checkpoint counts inputs",
        "correct the layer ids in config.json, or how the engine reads them",
        _other_layers(-1),
    ),
    "layers-higher": Hypothesis(
        "the head reads the target's layers one higher than it was trained for",
        HEADS,
        "engines that count a layer's input where the checkpoint counts outputs",
        "correct the layer ids in config.json, or how the engine reads them",
        _other_layers(1),
    ),
    "layers-reordered": Hypothesis(
        "the head reads the right layers in another order",
        HEADS,
        "engines that sort the layer ids",
        "train the head with sorted ids, or keep their order",
        _reordered,
    ),
    "states-normed": Hypothesis(
        "the head reads states behind the target's last norm, not before it",
        HEADS,
        "engines that hand on what their output head reads",
        "hand on the states before the norm",
        _normed,
    ),
    "states-late": Hypothesis(
        "the head reads each token beside the state of the token before the right one",
        HEADS,
        "drafting loops that shift tokens against states",
        "look at how both are paired after a round",
        _late,
    ),
    "positions": Hypothesis(
        "positions within a round are wrong",
        ("eagle3",),
        "drafting loops that reuse a step's positions, or add to them twice",
        "advance positions by one with each drafted token",
        _still,
    ),
    "block-positions": Hypothesis(
        "the block's positions are off by one against the text",
        BLOCKS,
        "engines that begin a block behind the last known token",
        "place the last known token at its own position",
        _block_moved,
    ),
    "stale-keys": Hypothesis(
        "keys of rejected tokens stay in the draft's cache, and later drafts attend to them",
        EVERY,
        "drafting loops that do not cut the cache after a round",
        "cut the cache to the accepted tokens",
        _stale,
    ),
    "rotary-base": Hypothesis(
        "the draft rotates by another base",
        EVERY,
        "config.json without rope_theta, which programs fill in differently",
        "write rope_theta into it",
        _other_base,
    ),
    "cache-8-bit": Hypothesis(
        "the draft's keys and values are kept in 8 bits",
        EVERY,
        "llama-server with -ctkd q8_0 -ctvd q8_0",
        "leave the draft's cache in 16 bits; it is small",
        _cache_in("in 8 bits"),
        numeric=True,
    ),
    "cache-4-bit": Hypothesis(
        "the draft's keys and values are kept in 4 bits",
        EVERY,
        "llama-server with -ctkd q4_0 -ctvd q4_0",
        "leave the draft's cache in 16 bits; it is small",
        _cache_in("in 4 bits"),
        numeric=True,
    ),
    "cache-float16": Hypothesis(
        "the draft's keys and values are kept in float16",
        EVERY,
        "llama-server's default",
        "nothing: these are near ties",
        _cache_in("in float16"),
        numeric=True,
    ),
    "cache-bfloat16": Hypothesis(
        "the draft's keys and values are kept in bfloat16",
        EVERY,
        "a type set for the cache alone",
        "nothing, unless acceptance matters more than memory",
        _cache_in("in bfloat16"),
        numeric=True,
    ),
    "weights-8-bit": Hypothesis(
        "the decoder drafts with weights in 8 bits",
        EVERY,
        "a quantized copy under the draft's name",
        "serve the draft that was replayed, or replay the copy",
        _weights_in("in 8 bits"),
        numeric=True,
    ),
    "weights-4-bit": Hypothesis(
        "the decoder drafts with weights in 4 bits",
        EVERY,
        "a quantized copy under the draft's name",
        "serve the draft that was replayed, or replay the copy",
        _weights_in("in 4 bits"),
        numeric=True,
    ),
    "weights-16-bit": Hypothesis(
        "the decoder drafts with weights rounded to 16 bits",
        EVERY,
        "a cast while loading",
        "load the draft in the type in which it is stored",
        _weights_in("in bfloat16", "in float16"),
        numeric=True,
    ),
    "weights-not-quantized": Hypothesis(
        "the decoder drafts with weights that are not quantized",
        EVERY,
        "a level that an engine ignores",
        "replay the draft without a level",
        _other_level,
        numeric=True,
    ),
    "tensors-missing": Hypothesis(
        "some of the draft's tensors were not loaded",
        EVERY,
        "loaders that skip unknown names without an error",
        "compare the checkpoint's names with those that the engine loads",
        _missing,
    ),
    "first-layers": Hypothesis(
        "a weight of the first layer is used in every layer",
        BLOCKS,
        "vLLM's CPU build 0.32, for the norms of keys",
        "report it to the engine",
        _first_layers,
    ),
    "tables": Hypothesis(
        "a table of the head is not its own",
        HEADS,
        "engines that always share the target's embedding and output head",
        "load the head's own tables",
        _own_tables,
    ),
    "draft-ids": Hypothesis(
        "drafted ids are not turned into the target's as d2t says",
        HEADS,
        "engines that ignore d2t, or take its differences for ids",
        "apply d2t",
        _own_ids,
    ),
    "flags": Hypothesis(
        "a flag of the head's layer is read otherwise",
        ("eagle3",),
        "config.json without norm_before_residual, which programs fill in differently",
        "write the flag into it",
        _flags,
    ),
    "block-attention": Hypothesis(
        "the block is laid out otherwise",
        BLOCKS,
        "engines that draft with a causal mask, or from another place",
        "compare is_causal, windows and sample_from_anchor with the training",
        _block_flags,
    ),
    "mask-token": Hypothesis(
        "another token stands for what is to be drafted",
        BLOCKS,
        "engines that do not read mask_token_id",
        "let the engine read it",
        _mask,
    ),
    "block-length": Hypothesis(
        "blocks have another number of tokens",
        BLOCKS,
        "another block_size, or passes that are always as wide as in training",
        "correct block_size; a pass that is always as wide is no fault",
        _block_length,
    ),
    "choice": Hypothesis(
        "the selector, or the bias by the token before, is applied otherwise",
        BLOCKS,
        "engines that run a second-generation drafter as a first",
        "use a version that knows the drafter's kind",
        _choice,
    ),
    "prompt-unseen": Hypothesis(
        "the draft does not see the prompt",
        ("draft-model",),
        "prefix caches, and prompts that another process read",
        "let the draft read the prompt; try without a prefix cache",
        _unseen_prompt,
    ),
    "start-token": Hypothesis(
        "the draft reads another start of the prompt",
        ("draft-model",),
        "tokenizers that differ in add_bos_token",
        "give both the same start token",
        _start_token,
    ),
    "template-date": Hypothesis(
        "the draft reads another date in the prompt",
        ("draft-model",),
        "drafts that render the chat themselves, by a template with strftime_now",
        "give the draft the target's tokens",
        _other_date,
    ),
    "foreign-tokens": Hypothesis(
        "tokens that the draft lacks are read as another one",
        ("draft-model",),
        "drafts with another vocabulary: programs differ in the unknown token",
        "nothing; replay cannot follow each program",
        _foreign,
    ),
    "no-generation-prompt": Hypothesis(
        "the draft reads the prompt without the template's beginning of the answer",
        ("draft-model",),
        "drafts that render the chat themselves",
        "give the draft the target's tokens",
        _unended_prompt,
    ),
}
OTHER_WEIGHTS = "other-weights"

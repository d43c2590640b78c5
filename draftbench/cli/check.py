"""`draftbench check`: configurations and tokenizers of target and drafts → can they work?"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from draftbench.cli.flags import traffic_flag, traffic_query
from draftbench.cli.output import TextOutput, note, width
from draftbench.flags import drafts_flag, flag, pickle_flag, size_of, target_flag, trust_flag
from draftbench.hub import Trust, refuse_missing
from draftbench.memory import format_size
from draftbench.models.check_result import (
    CheckResult,
    EngineAnswer,
    HeadSheet,
    ModelSheet,
    Overlap,
    OwnDraft,
    PairFacts,
    PairSheet,
    Works,
)
from draftbench.models.drafting import DRAFT_KINDS, parsed
from draftbench.records import SELF, draft_of_stack, to_json
from draftbench.report.text import Section, counted, parameters, render_sections, shortened

if TYPE_CHECKING:
    from draftbench.models.source import ModelSource


_STACKED = (
    "prompt lookup goes with every draft, and among the engines only llama.cpp looks up first "
    "(--spec-type ngram-simple,draft-…; before a head it accepts a little less than replay says)"
)
# A chat template may be one line of ten thousand characters.
_DIFF_LINES, _DIFF_COLUMNS = 12, 300
_NAME = 28
_NONE = "none"  # of chat templates
CAN_WORK: dict[Works, str] = {"yes": "can work", "maybe": "may work", "no": "cannot work"}
_CAN_DRAFT: dict[Works, str] = {
    "yes": "can draft for",
    "maybe": "may be able to draft for",
    "no": "cannot draft for",
}
_LENGTH = "vLLM and TensorRT-LLM need a draft length, here 1; a sweep finds the one that pays."
_MORE = "Chat templates, sizes, memory and options of engines: the same command with --all."


def check(
    *,
    target: str = target_flag(),
    drafts: tuple[str, ...] = drafts_flag(),
    traffic: str | None = traffic_flag(
        None, "Count how often logged answers, or else prompts, use tokens that the drafts lack."
    ),
    sample: int = flag(256, "How many requests of --traffic to read.", min=1),
    memory: int | None = flag(
        None,
        "The memory for target and draft together, e.g. 24GB (default: this machine's).",
        "SIZE",
        parse=partial(size_of, "--memory"),
    ),
    everything: bool = flag(
        False, "Show chat templates, sizes, memory and engine options too.", names=("--all",)
    ),
    trust_remote_code: bool = trust_flag(),
    allow_pickle: bool = pickle_flag(),
    output: TextOutput,
) -> int:
    """Check whether drafts can work with a target, before any weights load. Exits 1 if one cannot.

    draftbench check --target ./big --drafts ./small,./tiny
    draftbench check --target ./big --drafts ./small --traffic prod.jsonl
    draftbench check --target ./big --drafts ./small --memory 24GB
    """
    for name in drafts:
        if parsed(name) and draft_of_stack(name):
            note(f"note: `{name}` is checked as its draft: {_STACKED}")
    methods = {n: parsed(n)[0] for n in dict.fromkeys(draft_of_stack(d) or d for d in drafts)}
    for name, method in list(methods.items()):
        if why := DRAFT_KINDS["ngram" if name == SELF else method].unchecked:
            note(f"note: `{name}` is not a model: {why}")
            del methods[name]
    for spec in (target, *(name for name in methods if methods[name] == "draft-model")):
        refuse_missing(spec)  # before libraries load
    from draftbench.models.check import check_models, memory_here
    from draftbench.models.heads import checkpoint_of
    from draftbench.models.source import ModelSource

    trust = Trust(remote_code=trust_remote_code, pickle=allow_pickle)
    source = ModelSource(target, trust)
    models = [checkpoint_of(name, trust) for name in methods if methods[name] == "draft-model"]
    heads = [name for name, method in methods.items() if method != "draft-model"]
    for model in (source, *models):
        if model.on_hub:
            note(
                f"note: the configuration and tokenizer of {model.spec} are fetched from the "
                "model hub unless they are cached"
            )
    tokens = None if traffic is None else _token_counts(source, traffic, sample)
    answer = check_models(source, models, memory or memory_here(), tokens, heads=heads)
    output.write(render(answer, output.style, width(), everything=everything))
    obstacles = [each.obstacles for each in answer.pairs] + [
        each.obstacles for each in answer.heads
    ]
    return 1 if any(obstacles) else 0


def _token_counts(target: ModelSource, traffic: str, sample: int) -> dict[int, float]:
    """How often each of the target's token ids occurs in the logged answers, which are what would
    be drafted, and in the prompts of requests without one.
    """
    from draftbench.measure.prompts import TextSide
    from draftbench.traffic import load

    query = traffic_query(traffic, sample)
    if query.on_hub:
        note(f"note: {traffic} is fetched from the dataset hub unless it is cached")
    text, counts = TextSide(target), defaultdict[int, float](float)
    for request in load(query).requests:
        prompt = text.prompt(request, 1, sys.maxsize)
        for token in text.answer(request) or (prompt.tokens if prompt else ()):
            counts[token] += request.weight
    return counts


def render(answer: CheckResult, style: str, width: int, *, everything: bool = False) -> str:
    """As table, json (which always holds everything) or markdown."""
    if style == "json":
        return to_json(answer)
    carried = own_draft_section(answer.target.name, answer.own_draft)
    heads = [_head(answer, head, everything=everything) for head in answer.heads]
    if everything:
        parts = [part for pair in answer.pairs for part in _every_part(answer, pair)]
        sections = [*carried, *heads, *parts, _sizes(answer), _levels(answer)]
        return render_sections(sections, style, width)
    sections = [_several(answer)] if len(answer.pairs) > 1 else []
    if len(answer.pairs) == 1:
        sections = _one(answer, answer.pairs[0])
    elif not answer.pairs and not heads:
        sections = [_sizes(answer)]
    return render_sections([*carried, *heads, *sections], style, width, "--all")


def own_draft_section(target: str, carried: OwnDraft | None) -> list[Section]:
    """The draft that a target carries, with each engine's option; empty if it carries none."""
    if carried is None:
        return []
    note = (
        f"It needs no draft model ({carried.why}): try its own layers first, if the engine "
        "supports them. `draftbench sweep --drafts mtp` measures them if transformers loads them, "
        "with `--engine vllm` on vLLM."
    )
    if carried.unused:
        note += f" Unused by {', '.join(carried.unused)} in such a model."
    code = [f"{engine}: {option}" for engine, option in carried.options.items()]
    return [Section(f"{shortened(target, _NAME)} carries its own draft", notes=[note], code=code)]


def _head(answer: CheckResult, head: HeadSheet, *, everything: bool) -> Section:
    title = _verdict(head.name, answer.target.name, "no" if head.obstacles else "yes")
    engines = [
        f"{each.engine}: {'not ' * (each.standing == 'refuses')}supported ({each.reason})"
        for each in head.engines
    ]
    notes = [*head.obstacles, *head.caveats, *engines]
    options = [f"{engine.engine}: {engine.option}" for engine in head.engines if engine.option]
    return Section(title, notes=notes, code=options if everything else [])


def _one(answer: CheckResult, pair: PairSheet) -> list[Section]:
    rows = _side_by_side(answer, pair)
    same = [name for name, target, draft in rows if target == draft != _NONE]
    differing = [
        [name, shortened(target, _NAME), shortened(draft, _NAME)]
        for name, target, draft in rows
        if target != draft
    ]
    notes = [f"Same in both: {', '.join(same)}."] if same else []
    if ["chat template", _NONE, _NONE] in rows:
        notes.append("Chat template: none in either, so chats cannot be measured.")
    notes += _vocabulary_notes(answer, pair)
    verdict = _verdict_on(pair, shortened(pair.draft.name, 30), shortened(answer.target.name, 24))
    differences = Section("Differences", ["", "target", "draft"], differing, notes)
    if pair.facts is None:
        return [verdict, differences]
    if not pair.engines:
        return [verdict]
    engines = [*_engines(pair.engines), _MORE]
    return [verdict, differences, Section("Engines, by their own rules", notes=engines)]


def _several(answer: CheckResult) -> Section:
    rows, of_text = [], defaultdict[str, list[str]](list)
    for pair in answer.pairs:
        models, name = (pair.draft.name, answer.target.name), shortened(pair.draft.name, _NAME)
        taking = [engine for engine in pair.engines if engine.standing != "refuses"]
        starred = [f"{e.engine}{'*' * (e.standing == 'with an option')}" for e in taking]
        every = bool(taking) and all(engine.standing == "accepts" for engine in pair.engines)
        rows.append(
            [
                name,
                pair.works,
                _size(pair.draft),
                _share(pair.facts.vocabulary.all_tokens.same_id) if pair.facts else "unknown",
                "all" if every else ", ".join(starred) or ("none" if pair.facts else "unknown"),
            ]
        )
        # A text that begins with a model's name needs no further name.
        named = tuple(f"{mark}{each}{mark} " for each in models for mark in ("", "`"))
        for text in (*pair.obstacles, *pair.caveats):
            of_text[text].append("" if text.startswith(named) else name)
    notes = []
    for text, names in of_text.items():
        whose = "every draft" if len(names) == len(rows) else ", ".join(names)
        notes.append(f"{whose}: {text}" if names[0] else text)
    if any(e.standing == "with an option" for pair in answer.pairs for e in pair.engines):
        notes.append("* only with an option of that engine.")
    works = [pair.works for pair in answer.pairs]
    may = f", {works.count('maybe')} may" if "maybe" in works else ""
    title = f"{works.count('yes')} of {counted(len(rows), 'draft')} can work with "
    title += f"{answer.target.name}{may}"
    head = ["draft", "works", "parameters", "same tokens", "engines that take it"]
    return Section(title, head, rows, [*notes, _MORE])


def _every_part(answer: CheckResult, pair: PairSheet) -> list[Section]:
    diff, notes = (
        pair.facts.template_difference if pair.facts else (),
        _vocabulary_notes(answer, pair),
    )
    notes += ["The chat templates differ:"] if diff else []
    code = [f"{line[:_DIFF_COLUMNS]}{'…' * (len(line) > _DIFF_COLUMNS)}" for line in diff]
    if len(diff) > _DIFF_LINES:
        code[_DIFF_LINES:] = [f"… {len(diff) - _DIFF_LINES} more lines"]
    options = [f"{engine.engine}: {engine.option}" for engine in pair.engines if engine.option]
    parts = [
        _verdict_on(pair, pair.draft.name, answer.target.name),
        Section("Side by side", ["", "target", "draft"], _side_by_side(answer, pair), notes, code),
    ]
    if pair.engines:
        rules = [*_engines(pair.engines), _LENGTH]
        parts.append(Section("Engines, by their own rules", notes=rules, code=options))
    if pair.rooms:
        rows = [
            [
                room.level,
                format_size(room.weight_bytes),
                "does not fit" if room.tokens is None else f"{room.tokens:,}",
            ]
            for room in pair.rooms
        ]
        device = format_size(answer.memory_bytes)
        title = f"Memory: {device} for both models, the target as it is stored"
        head = ["draft at", "weights of both", "tokens of cache that fit"]
        second, notes = max(room.second_layout_bytes for room in pair.rooms), []
        if second:
            notes.append(
                f"A sweep on this CPU takes up to {format_size(second)} more: a second layout of "
                "the weights, for passes over several tokens (not with --one-layout)."
            )
        parts.append(Section(title, head, rows, notes))
    return parts


def _verdict(draft: str, target: str, works: Works) -> str:
    return f"`{draft}` {_CAN_DRAFT[works]} `{target}`"


def _verdict_on(pair: PairSheet, draft: str, target: str) -> Section:
    notes = [*pair.obstacles, *pair.caveats]
    return Section(_verdict(draft, target, pair.works), notes=notes)


def _side_by_side(answer: CheckResult, pair: PairSheet) -> list[list[str]]:
    models = (answer.target, pair.draft)
    contexts = [
        "no limit" if model.context is None else f"{model.context:,} tokens" for model in models
    ]
    rows = [
        ["family", *(model.family for model in models)],
        ["layers × width", *(f"{model.layers} × {model.width}" for model in models)],
        ["context", *contexts],
        ["weights read per step", *(format_size(model.read_at("none")) for model in models)],
    ]
    if any(model.mixture for model in models):
        rows.append(["experts of a token", *map(_experts, models)])
    return rows + (_of_tokenizers(pair.facts) if pair.facts else [])


def _of_tokenizers(facts: PairFacts) -> list[list[str]]:
    sizes = facts.vocabulary
    tokenizers = target, draft = facts.target_tokenizer, facts.draft_tokenizer
    special = [
        [
            role.replace("_", " "),
            *(
                f"{side.special[role]} ({side.ids.get(role)})" if role in side.special else "–"
                for side in tokenizers
            ),
        ]
        for role in dict.fromkeys((*target.special, *draft.special))
    ]
    templates = ("yes" if side.has_template else _NONE for side in tokenizers)
    return [
        ["vocab_size", f"{sizes.target_rows:,}", f"{sizes.draft_rows:,}"],
        ["tokenizer entries", f"{sizes.target_tokens:,}", f"{sizes.draft_tokens:,}"],
        ["tokenizer type", target.kind, draft.kind],
        *special,
        ["adds bos token", *("yes" if side.adds_bos else "no" for side in tokenizers)],
        ["chat template", *(("its own", "another") if facts.template_difference else templates)],
    ]


def _experts(model: ModelSheet) -> str:
    mixture = model.mixture
    return f"{mixture.per_token} of {mixture.experts}" if mixture else "no mixture"


def _size(model: ModelSheet) -> str:
    active = f", {parameters(model.active_parameters)} active" if model.mixture else ""
    return parameters(model.parameters) + active


def _vocabulary_notes(answer: CheckResult, pair: PairSheet) -> list[str]:
    if pair.facts is None:
        return []
    vocabulary = pair.facts.vocabulary
    all_tokens = _overlap(vocabulary.all_tokens, "the target's tokens")
    notes = [f"The draft has {all_tokens}."]
    if vocabulary.traffic is not None:
        traffic = f"the {answer.traffic_tokens:,} tokens of the traffic"
        notes.append(f"It has {_overlap(vocabulary.traffic, traffic)}.")
    return notes


def _engines(engines: Sequence[EngineAnswer]) -> list[str]:
    words = {"with an option": "accepts with an option"}
    return [
        f"{each.engine} {words.get(each.standing, each.standing)}: {each.reason}"
        for each in engines
    ]


def _sizes(answer: CheckResult) -> Section:
    sheets = [answer.target, *(p.draft for p in answer.pairs if p.draft != answer.target)]
    levels = list(answer.target.weight_bytes)
    rows = [
        [
            sheet.name,
            _size(sheet),
            sheet.dtype,
            *(format_size(sheet.weight_bytes[level]) for level in levels),
            format_size(sheet.kv_bytes_per_token),
        ]
        for sheet in sheets
    ]
    note = (
        "Linear layers at the given level with their scales (4-bit in groups of 32), everything "
        "else as in the checkpoint; a tied head counts twice if a CPU packs it. Activations are "
        "not counted."
    )
    return Section("Sizes", ["model", "parameters", "dtype", *levels, "KV/token"], rows, [note])


def _levels(answer: CheckResult) -> Section:
    rows = [
        [
            row.level,
            row.kernel or "none: only acceptance can be measured",
            "as loaded" if row.bytes_per_weight is None else f"{row.bytes_per_weight:.3g}",
        ]
        for row in answer.levels
    ]
    notes = [
        f"{row.level}: {row.meaning}; {row.layers}." + (f" {row.moves}." if row.moves else "")
        for row in answer.levels
    ]
    return Section("Quantization here", ["level", "kernel", "bytes/weight"], rows, notes)


def _overlap(overlap: Overlap, tokens: str) -> str:
    by_id, by_text = _share(overlap.same_id), _share(overlap.same_text)
    if by_id == by_text:
        return f"{by_id} of {tokens}, by id and by text"
    return f"{by_id} of {tokens} under the same id, {by_text} by text"


def _share(share: float) -> str:
    """A share in percent, "all" only if it is exactly 1."""
    return "all" if share == 1 else f"{min(share, 0.9999):.2%}"

"""What `check` found out about target and drafts: one screen, or everything with `--all`."""

from __future__ import annotations

from collections.abc import Sequence

from draftbench.memory import format_size
from draftbench.models.check_result import CheckResult, LevelRow, ModelSheet, Overlap, PairSheet
from draftbench.records import to_json
from draftbench.report.terminal.text import (
    SCREEN_COLUMNS,
    Section,
    clipped,
    counted,
    shortened,
)

_DIFF_LINES = 12
# A template may be one line of ten thousand characters.
_DIFF_COLUMNS = 300
_NAME = 28
_MORE = "Chat templates, sizes, memory and options of engines: the same command with --all."


def render(answer: CheckResult, style: str, width: int, *, everything: bool = False) -> str:
    """As table, json (which always holds everything) or markdown."""
    if style == "json":
        return to_json(answer)
    if everything:
        sections = _all(answer)
    elif len(answer.pairs) == 1:
        sections = _one(answer, answer.pairs[0])
    else:
        sections = [_several(answer)]
    if style == "markdown":
        return "\n\n".join(section.markdown() for section in sections)
    if everything:
        return "\n\n".join(section.text(width) for section in sections)
    screen = "\n\n".join(section.text(min(width, SCREEN_COLUMNS)) for section in sections)
    return clipped(screen, "--all")


def _one(answer: CheckResult, pair: PairSheet) -> list[Section]:
    rows = _side_by_side(answer, pair)
    same = [name for name, target, draft in rows if target == draft]
    differing = [
        [name, shortened(target, _NAME), shortened(draft, _NAME)]
        for name, target, draft in rows
        if target != draft
    ]
    notes = [f"Same in both: {', '.join(same)}."] if same else []
    return [
        _verdict(shortened(pair.draft.name, 30), shortened(answer.target.name, 24), pair),
        Section(
            "Differences", ["", "target", "draft"], differing, [*notes, *_tokens(answer, pair)]
        ),
        Section("Engines, by their own rules", notes=[*_engines(pair), _MORE]),
    ]


def _several(answer: CheckResult) -> Section:
    rows, notes = [], []
    for pair in answer.pairs:
        name = shortened(pair.draft.name, _NAME)
        engines = [
            f"{engine.engine}*" if engine.standing == "with an option" else engine.engine
            for engine in pair.engines
            if engine.standing != "refuses"
        ]
        taken = "all" if len(engines) == len(pair.engines) and "*" not in "".join(engines) else None
        rows.append(
            [
                name,
                "no" if pair.obstacles else "yes",
                _parameters(pair.draft),
                _share(pair.facts.vocabulary.all_tokens.same_id),
                taken or ", ".join(engines) or "none",
            ]
        )
        notes += [
            text if f"`{pair.draft.name}`" in text else f"{name}: {text}"
            for text in (pair.obstacles or pair.caveats)[:1]
        ]
    if any("*" in row[-1] for row in rows):
        notes.append("* only with an option of that engine.")
    head = ["draft", "works", "size", "same tokens", "engines that take it"]
    working = sum(not pair.obstacles for pair in answer.pairs)
    title = f"{working} of {counted(len(rows), 'draft')} can work with {answer.target.name}"
    return Section(title, head, rows, [*notes, _MORE])


def _all(answer: CheckResult) -> list[Section]:
    sections = []
    for pair in answer.pairs:
        options = [f"{engine.engine}: {engine.option}" for engine in pair.engines if engine.option]
        diff = pair.facts.template_difference
        notes = _tokens(answer, pair)
        if diff:
            notes.append("The chat templates differ:")
        head = ["", "target", "draft"]
        rows = _side_by_side(answer, pair)
        sections += [
            _verdict(pair.draft.name, answer.target.name, pair),
            Section("Side by side", head, rows, notes, _excerpt(diff)),
            Section("Engines, by their own rules", notes=_engines(pair), code=options),
        ]
        if pair.rooms:
            sections.append(_memory_left(answer, pair))
    sections.append(_sizes(answer))
    return [*sections, _levels(answer.levels)] if answer.levels else sections


def _verdict(draft: str, target: str, pair: PairSheet) -> Section:
    words = "cannot work" if pair.obstacles else "can work"
    title = f"{draft} as the draft of {target}: {words}"
    return Section(title, notes=[*pair.obstacles, *pair.caveats])


def _excerpt(diff: Sequence[str]) -> list[str]:
    left_out = len(diff) - _DIFF_LINES
    lines = [line if len(line) <= _DIFF_COLUMNS else f"{line[:_DIFF_COLUMNS]}…" for line in diff]
    return [*lines[:_DIFF_LINES], *([f"… {left_out} more lines"] if left_out > 0 else [])]


def _side_by_side(answer: CheckResult, pair: PairSheet) -> list[list[str]]:
    facts, sizes = pair.facts, pair.facts.vocabulary
    target, draft = facts.target_tokenizer, facts.draft_tokenizer
    roles = dict.fromkeys((*target.special, *draft.special))
    return [
        ["family", answer.target.family, pair.draft.family],
        ["layers × width", *(f"{m.layers} × {m.width}" for m in (answer.target, pair.draft))],
        ["context", *map(_context, (facts.target_context, facts.draft_context))],
        ["rows of vocabulary", str(sizes.target_rows), str(sizes.draft_rows)],
        ["tokens of vocabulary", str(sizes.target_tokens), str(sizes.draft_tokens)],
        ["tokenizer", target.kind, draft.kind],
        *(
            [
                role.replace("_", " "),
                *(
                    f"{side.special[role]} ({side.ids.get(role)})" if role in side.special else "–"
                    for side in (target, draft)
                ),
            ]
            for role in roles
        ),
        ["adds bos token", _yes(target.adds_bos), _yes(draft.adds_bos)],
        ["chat template", _yes(target.has_template), _yes(draft.has_template)],
    ]


def _tokens(answer: CheckResult, pair: PairSheet) -> list[str]:
    vocabulary = pair.facts.vocabulary
    all_tokens = _overlap(vocabulary.all_tokens, "the target's tokens")
    notes = [f"The draft has {all_tokens}."]
    if vocabulary.traffic is not None:
        traffic = f"the {answer.traffic_tokens} tokens of the traffic"
        notes.append(f"It has {_overlap(vocabulary.traffic, traffic)}.")
    return notes


def _engines(pair: PairSheet) -> list[str]:
    words = {"with an option": "accepts with an option"}
    return [
        f"{each.engine} {words.get(each.standing, each.standing)}: {each.reason}"
        for each in pair.engines
    ]


def _memory_left(answer: CheckResult, pair: PairSheet) -> Section:
    rows = [
        [
            room.level,
            format_size(room.weight_bytes),
            "does not fit" if room.tokens is None else str(room.tokens),
        ]
        for room in pair.rooms
    ]
    device = format_size(answer.memory_bytes)
    title = f"Memory: {device} for both models, the target as in its checkpoint"
    second, notes = max(room.second_layout_bytes for room in pair.rooms), []
    if second:
        notes.append(
            f"A sweep on this CPU takes up to {format_size(second)} more: a second layout of "
            "unquantized weights (none with --one-layout)."
        )
    return Section(title, ["draft at", "weights of both", "tokens of cache that fit"], rows, notes)


def _sizes(answer: CheckResult) -> Section:
    sheets = [answer.target, *(p.draft for p in answer.pairs if p.draft != answer.target)]
    levels = list(answer.target.weight_bytes)
    rows = [
        [
            sheet.name,
            _parameters(sheet),
            sheet.dtype,
            *(format_size(sheet.weight_bytes[level]) for level in levels),
            format_size(sheet.kv_bytes_per_token),
        ]
        for sheet in sheets
    ]
    note = (
        "Bytes as an engine stores them: linear layers at the level with their scales (4-bit in "
        "groups of 32), everything else as in the checkpoint. Activations are not counted."
    )
    return Section("Sizes", ["model", "size", "dtype", *levels, "KV/token"], rows, [note])


def _levels(levels: Sequence[LevelRow]) -> Section:
    rows = [
        [
            row.level,
            row.kernel or "none: only acceptance can be measured",
            "as loaded" if row.bytes_per_weight is None else f"{row.bytes_per_weight:.3g}",
        ]
        for row in levels
    ]
    notes = [f"{row.level}: {row.meaning}; {row.layers}." for row in levels]
    return Section("Quantization here", ["level", "kernel", "bytes/weight"], rows, notes)


def _overlap(overlap: Overlap, tokens: str) -> str:
    by_id, by_text = _share(overlap.same_id), _share(overlap.same_text)
    if by_id == by_text:
        return f"{by_id} of {tokens}, by id and by text"
    return f"{by_id} of {tokens} under the same id, {by_text} by text"


def _share(share: float) -> str:
    """Never rounded up to all."""
    return "all" if share == 1 else f"{min(share, 0.9999):.2%}"


def _parameters(sheet: ModelSheet) -> str:
    return f"{sheet.parameters / 1e6:.4g} M"


def _context(tokens: int | None) -> str:
    return "no limit" if tokens is None else f"{tokens} tokens"


def _yes(value: bool) -> str:
    return "yes" if value else "no"

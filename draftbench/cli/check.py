"""`draftbench check`: configurations and tokenizers of target and drafts → can they work?"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from draftbench.cli.flags import traffic_flag, traffic_query
from draftbench.cli.output import TextOutput, note
from draftbench.drafts import lookup
from draftbench.drafts.kinds import kind_drafting, parsed, with_weights
from draftbench.drafts.mtp.families import BLOCK
from draftbench.drafts.mtp.own_draft import DSPARK_HINT
from draftbench.engines.engine import USUAL_K
from draftbench.engines.every import ENGINES, listed
from draftbench.engines.pair_rules import Overlap
from draftbench.errors import UsageError
from draftbench.flags import drafts_flag, flag, size_of, target_flag
from draftbench.hub import Trust, refuse_missing
from draftbench.memory import format_size
from draftbench.models.check_result import CheckResult, ModelSheet, OwnDraft, PairSheet, Works
from draftbench.records import SELF
from draftbench.report.text import Section, counted, parameters, shortened

_STACKING = [engine.name for engine in ENGINES.values() if engine.stacks]
_STACKED = (
    "prompt lookup goes with every draft, and among the engines only "
    f"{listed(_STACKING, 'and')} looks up first"
)
# A chat template may be one line of ten thousand characters.
_DIFF_LINES, _DIFF_COLUMNS = 12, 300
_NAME = 28
_NONE = "none"  # of chat templates
_SIGNS = {True: "works", False: "FAILS", None: "–"}  # of what was tried on a device
CAN_WORK: dict[Works, str] = {"yes": "can work", "maybe": "may work", "no": "cannot work"}
_CAN_DRAFT: dict[Works, str] = {
    "yes": "can draft for",
    "maybe": "may be able to draft for",
    "no": "cannot draft for",
}
_LENGTH = f"The options draft {USUAL_K} tokens a round: a sweep finds how many pay."
_MORE = "Chat templates, sizes, memory and options of engines: the same command with --all."


def check(
    *,
    target: str | None = target_flag(None, "--device"),
    drafts: tuple[str, ...] | None = drafts_flag(default=None),
    device: str | None = flag(
        None, "Try what a sweep needs on this machine instead: cpu, cuda or cuda:1.", "DEVICE"
    ),
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
    trust: Trust,
    output: TextOutput,
) -> int:
    """Check whether drafts can work with a target, before any weights load, or whether a device
    works. Exits 1 if not.

    draftbench check --target ./big --drafts ./small,./tiny
    draftbench check --target ./big --drafts ./small --traffic prod.jsonl
    draftbench check --target ./big --drafts ./small --memory 24GB
    draftbench check --device cuda
    """
    if device is not None:
        of_models: dict[str, object] = {
            "--target": target,
            "--drafts": drafts,
            "--traffic": traffic,
        }
        of_models |= {"--memory": memory, "--all": everything or None}
        for name, given in of_models.items():
            if given is not None:
                raise UsageError(f"--device and {name} are two checks", hint="leave one out")
        return _check_device(device, output)
    if target is None or drafts is None:
        missing = "--target" if target is None else "--drafts"
        raise UsageError(
            f"missing option {missing}",
            hint="`draftbench check --target MODEL --drafts MODEL,…` checks models, `draftbench "
            "check --device cuda` a device",
        )
    for name in drafts:
        if parsed(name) and with_weights(name) != name:
            note(f"note: `{name}` is checked as its draft: {_STACKED}")
    names, heads = list[str](), list[str]()
    for name in dict.fromkeys(map(with_weights, drafts)):
        kind = kind_drafting(name)
        if why := (lookup.KIND if name == SELF else kind).unchecked:
            note(f"note: `{name}` is not a model: {why}")
        else:
            (names if kind.is_model else heads).append(name)
    for spec in (target, *names):
        refuse_missing(spec)  # before libraries load
    from draftbench.drafts.check import check_models
    from draftbench.drafts.heads.config import checkpoint_of
    from draftbench.models.check import memory_here
    from draftbench.models.source import ModelSource

    source = ModelSource(target, trust)
    models = [checkpoint_of(name, trust) for name in names]
    for model in (source, *models):
        if model.on_hub:
            note(
                f"note: the configuration and tokenizer of {model.spec} are fetched from the "
                "model hub unless they are cached"
            )
    counts: dict[int, float] | None = None
    chats = traffic is None  # unknown
    if traffic is not None:
        # How often each of the target's token ids occurs in the logged answers, which are what
        # would be drafted, and in the prompts of requests without one.
        from draftbench.measure.prompts import TargetText
        from draftbench.traffic import load

        query = traffic_query(traffic, sample)
        if query.on_hub:
            note(f"note: {traffic} is fetched from the dataset hub unless it is cached")
        text, counts = TargetText(source), defaultdict(float)
        for request in load(query).requests:
            chats = chats or request.messages is not None
            prompt = text.prompt(request, 1, sys.maxsize)
            for token in text.answer(request) or (prompt.tokens if prompt else ()):
                counts[token] += request.weight
    answer = check_models(source, models, memory or memory_here(), counts, heads=heads, chats=chats)
    output.show(answer, sections(answer, everything=everything), "" if everything else "--all")
    obstacles = [pair.obstacles for pair in answer.pairs]
    return 1 if any([*obstacles, *(head.obstacles for head in answer.heads)]) else 0


def _check_device(device: str, output: TextOutput) -> int:
    """Try versions, CUDA graphs, quantization levels and a small sweep on a device."""
    from draftbench.cli.progress import TerminalWatcher
    from draftbench.decoder.device import device_of
    from draftbench.sweep.device_check import check_device

    chosen = device_of(device)
    if "auto" in (device, chosen):
        raise UsageError("a check tries one device", hint="--device cpu, cuda or cuda:1")
    note(f"trying {chosen}; this takes a minute")
    found = {}
    for finding in check_device(
        chosen, traffic_query("suite:completion", 2), TerminalWatcher(quiet=True)
    ):
        found[finding.what] = finding
        note(f"tried: {finding.what}")
    failed, untried = (
        "; ".join(what for what, finding in found.items() if finding.works is works) or "nothing"
        for works in (False, None)
    )
    rows = [[_SIGNS[each.works], each.what, each.found] for each in found.values()]
    where = f"{found['device'].found}; {found['versions'].found}"
    report = f"For a report: {where}; fails: {failed}; not tried: {untried}"
    output.show([*found.values()], [Section("", ["", "what", "found"], rows, [report])])
    return 1 if failed != "nothing" else 0


def sections(answer: CheckResult, *, everything: bool = False) -> Iterator[Section]:
    """The verdict on every draft, with each engine's; with `everything` also the facts in which the
    models agree, sizes, memory and levels.
    """
    yield from own_draft_section(answer.target.name, answer.own_draft)
    for head in answer.heads:
        engines = [
            f"{each.engine}: {'not ' * (each.standing == 'refuses')}supported ({each.reason})"
            for each in head.engines
        ]
        options = [f"{each.engine}: {each.option}" for each in head.engines if each.option]
        yield Section(
            _verdict(head.name, answer.target.name, "no" if head.obstacles else "yes"),
            notes=[
                *head.obstacles,
                *head.caveats,
                *engines,
                *([_LENGTH] if options and everything else []),
            ],
            code=options if everything else [],
        )
    if everything or len(answer.pairs) == 1:
        for pair in answer.pairs:
            yield from _of_pair(answer, pair, everything=everything)
    elif answer.pairs:
        yield _several(answer)
    if everything or not (answer.pairs or answer.heads):
        yield _sizes(answer)
    if everything:
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
        yield Section("Quantization here", ["level", "kernel", "bytes/weight"], rows, notes)


def own_draft_section(target: str, carried: OwnDraft | None) -> list[Section]:
    """The draft that a target carries, with each engine's option; empty if it carries none."""
    if carried is None:
        return []
    recipe = "no recipe for it is known; most draft 1 to 3"
    if carried.source is not None:
        recipe = carried.source + (f", {carried.date}" if carried.date else "")
    elif carried.method == "dspark":
        recipe = "its block; no recipe for it is known"
    if carried.method == "mtp":
        note = (
            f"It needs no draft model ({carried.why}): try its own layers first, if the engine "
            "supports them. `draftbench sweep --drafts mtp` measures them if transformers loads "
            "them, with `--engine vllm` on vLLM."
        )
    else:
        note = (
            f"It needs no draft model, and no MTP layers come with it ({carried.why}): a DSpark "
            f"drafter does. {DSPARK_HINT[0].upper()}{DSPARK_HINT[1:]}."
        )
    note += (
        f" The options draft {carried.k} tokens a round ({recipe}): the sweep finds how many pay."
    )
    if carried.method == "dspark":
        note += (
            " DSPARK.gguf is what llama.cpp's `convert_hf_to_gguf.py --dspark` makes of it, BLOCK "
            f"its {BLOCK}, and TARGET itself."
        )
    if carried.unused:
        note += f" Unused by {', '.join(carried.unused)} in such a model."
    code = [f"{engine}: {option}" for engine, option in carried.options.items()]
    return [Section(f"{shortened(target, _NAME)} carries its own draft", notes=[note], code=code)]


def _verdict(draft: str, target: str, works: Works) -> str:
    return f"`{draft}` {_CAN_DRAFT[works]} `{target}`"


def _of_pair(answer: CheckResult, pair: PairSheet, *, everything: bool) -> Iterator[Section]:
    """The verdict on one draft, first in draftbench and then in each engine, and what differs."""
    draft, target = (
        shortened(m.name, 200 if everything else _NAME) for m in (pair.draft, answer.target)
    )
    yield Section(_verdict(draft, target, pair.works), notes=[*pair.obstacles, *pair.caveats])
    if pair.engines:
        words = {"with an option": "accepts with an option"}
        rules = [
            f"{each.engine} {words.get(each.standing, each.standing)}: {each.reason}"
            for each in pair.engines
        ]
        options = [f"{engine.engine}: {engine.option}" for engine in pair.engines if engine.option]
        rules += [_LENGTH] if everything else []
        yield Section(
            "Engines, by what they ask of vocabularies",
            notes=rules,
            code=options if everything else [],
        )
    elif pair.facts and not everything:
        return  # it cannot draft at all

    rows, notes, code = _side_by_side(answer, pair), list[str](), list[str]()
    if ["chat template", _NONE, _NONE] in rows:
        notes.append("Chat template: none in either, so chats cannot be measured.")
    if pair.facts is not None:
        vocabulary = pair.facts.vocabulary
        overlap = _overlap(vocabulary.all_tokens, "the target's tokens")
        notes.append(f"The draft has {overlap}.")
        if vocabulary.traffic is not None:
            traffic = f"the {answer.traffic_tokens:,} tokens of the traffic"
            notes.append(f"It has {_overlap(vocabulary.traffic, traffic)}.")
    if not everything:
        differing = [
            [row[0], *(shortened(v, _NAME) for v in row[1:])] for row in rows if row[1] != row[2]
        ]
        yield Section("Differences", ["", "target", "draft"], differing, [*notes, _MORE])
        return
    if diff := pair.facts.template_difference if pair.facts else ():
        notes.append("The chat templates differ:")
        code = [f"{line[:_DIFF_COLUMNS]}{'…' * (len(line) > _DIFF_COLUMNS)}" for line in diff]
        if len(diff) > _DIFF_LINES:
            code[_DIFF_LINES:] = [f"… {len(diff) - _DIFF_LINES} more lines"]
    yield Section("Side by side", ["", "target", "draft"], rows, notes, code)
    memory = [
        [
            room.level,
            format_size(room.weight_bytes),
            "does not fit" if room.tokens is None else f"{room.tokens:,}",
        ]
        for room in pair.rooms
    ]
    if memory:
        device = format_size(answer.memory_bytes)
        title = f"Memory: {device} for both models, the target as it is stored"
        yield Section(title, ["draft at", "weights of both", "tokens of cache that fit"], memory)


def _several(answer: CheckResult) -> Section:
    """A row for each draft; below them each obstacle and caveat, with the drafts that have it."""
    rows, of_text, optional = [], defaultdict[str, list[str]](list), False
    for pair in answer.pairs:
        name = shortened(pair.draft.name, _NAME)
        taking = [engine for engine in pair.engines if engine.standing != "refuses"]
        starred = [f"{e.engine}{'*' * (e.standing == 'with an option')}" for e in taking]
        every = bool(taking) and all(engine.standing == "accepts" for engine in pair.engines)
        optional = optional or any(engine.endswith("*") for engine in starred)
        rows.append(
            [
                name,
                pair.works,
                _size(pair.draft),
                _share(pair.facts.vocabulary.all_tokens.same_id) if pair.facts else "unknown",
                "all" if every else ", ".join(starred) or ("none" if pair.facts else "unknown"),
            ]
        )
        for text in (*pair.obstacles, *pair.caveats):
            of_text[text].append(name)
    notes = []
    for text, names in of_text.items():
        whose = "every draft" if len(names) == len(rows) else ", ".join(names)
        notes.append(f"{whose}: {text}")
    notes += ["* only with an option of that engine."] if optional else []
    works = [pair.works for pair in answer.pairs]
    may = f", {works.count('maybe')} may" if "maybe" in works else ""
    title = f"{works.count('yes')} of {counted(len(rows), 'draft')} can work with "
    title += f"{answer.target.name}{may}"
    head = ["draft", "works", "parameters", "same tokens", "engines that take it"]
    return Section(title, head, rows, [*notes, _MORE])


def _side_by_side(answer: CheckResult, pair: PairSheet) -> list[list[str]]:
    """Facts of both models; those of the tokenizers only if both are here."""
    models = (answer.target, pair.draft)
    contexts = ("no limit" if m.context is None else f"{m.context:,} tokens" for m in models)
    rows = [
        ["family", *(model.family for model in models)],
        ["layers × width", *(f"{model.layers} × {model.width}" for model in models)],
        ["context", *contexts],
        ["weights read per step", *(format_size(model.read_at("none")) for model in models)],
    ]
    if any(model.mixture for model in models):
        experts = (
            f"{m.mixture.per_token} of {m.mixture.experts}" if m.mixture else "no mixture"
            for m in models
        )
        rows.append(["experts of a token", *experts])
    if pair.facts is None:
        return rows
    sizes = pair.facts.vocabulary
    tokenizers = target, draft = pair.facts.target_tokenizer, pair.facts.draft_tokenizer
    rows += [
        ["vocab_size", f"{sizes.target_rows:,}", f"{sizes.draft_rows:,}"],
        ["tokenizer entries", f"{sizes.target_tokens:,}", f"{sizes.draft_tokens:,}"],
        ["tokenizer type", target.kind, draft.kind],
    ]
    for role in dict.fromkeys((*target.special, *draft.special)):
        tokens = (
            f"{side.special[role]} ({side.ids.get(role)})" if role in side.special else "–"
            for side in tokenizers
        )
        rows.append([role.replace("_", " "), *tokens])
    templates = ("yes" if side.has_template else _NONE for side in tokenizers)
    differing = pair.facts.template_difference
    return [
        *rows,
        ["adds bos token", *("yes" if side.adds_bos else "no" for side in tokenizers)],
        ["chat template", *(("its own", "another") if differing else templates)],
    ]


def _size(model: ModelSheet) -> str:
    active = f", {parameters(model.active_parameters)} active" if model.mixture else ""
    return parameters(model.parameters) + active


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


def _overlap(overlap: Overlap, tokens: str) -> str:
    by_id, by_text = _share(overlap.same_id), _share(overlap.same_text)
    if by_id == by_text:
        return f"{by_id} of {tokens}, by id and by text"
    return f"{by_id} of {tokens} under the same id, {by_text} by text"


def _share(share: float) -> str:
    """A share in percent, "all" only if it is exactly 1."""
    return "all" if share == 1 else f"{min(share, 0.9999):.2%}"

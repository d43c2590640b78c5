"""Prepares a sweep: checks traffic, pairs and levels, and renders prompts, before weights load.

Only configurations and tokenizers are read. What passes may still fail later, for lack of memory or
because of a damaged file.
"""

from __future__ import annotations

import time
import uuid
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import msgspec

import draftbench
from draftbench.decoder.device import card_names
from draftbench.drafts.built_in import SERVED, WITH_WEIGHTS, most_drafted
from draftbench.drafts.kinds import draft_name, kind_drafting, kind_of, parsed
from draftbench.drafts.loading import Pairing
from draftbench.engines.secrets import without_values
from draftbench.errors import (
    DraftbenchError,
    ModelError,
    PairError,
    RefusedError,
    TrafficError,
    UsageError,
)
from draftbench.measure.prompts import LostAnswerError, Prompt, PromptMaker, TargetText
from draftbench.models.prequantized import stored_level
from draftbench.models.quantize import Build
from draftbench.models.source import ModelSource
from draftbench.records import SELF, Candidate, Failure, Request
from draftbench.run_folder.key import key_id, keyed_hash
from draftbench.run_folder.manifest import (
    SCHEMA_VERSION,
    STOPS,
    Effort,
    Manifest,
    Question,
    TrafficFacts,
    environment,
    portable,
)
from draftbench.sweep.decoder_prepare import BuiltInDecoder
from draftbench.sweep.engine_prepare import ServingEngine
from draftbench.sweep.estimates import check_side_by_side
from draftbench.sweep.failures import failure, known_error
from draftbench.sweep.options import SweepOptions, Watcher
from draftbench.sweep.prepared import Prepared
from draftbench.traffic import Traffic, load
from draftbench.traffic.summary import TrafficSummary, first_request

DEFAULT_LIMIT = 256


def prepare(options: SweepOptions, command: str, watcher: Watcher) -> Prepared:
    """Prepare a sweep of the built-in decoder or of a serving engine.

    Raises:
        DraftbenchError: nothing could be measured, or the input cannot be used.
    """
    # 1. Options, as this machine, the cluster or the engine allows them.
    specs = specs_of(options)
    system = (ServingEngine if options.serving else BuiltInDecoder)(options, specs, watcher)
    # 2. Traffic.
    watcher.note(f"reading traffic from {options.traffic.source}")
    if options.traffic.on_hub:
        watcher.note("it is fetched from the dataset hub unless it is cached")
    traffic = load(system.options.traffic)
    # 3. The target, before its drafts, so that its faults are not blamed on them.
    text, context = system.read_target()
    # 4. Prompts.
    prompts, summary = render(system.options, traffic, text, context)
    # 5. Drafts.
    tokens = Counter(chain.from_iterable(p.logged or p.tokens for p in prompts))
    engine = system.replays_over(prompts, summary.rows)
    pairing = Pairing(system.target, tokens, summary.chats > 0, engine)
    checked = check_drafts(system.options, specs, pairing, system.refused_levels)
    if not checked.candidates and (checked.refusals or not system.may_draft):
        hint = "give --drafts a smaller model of the target's family, or `ngram` (no model)"
        raise next(iter(checked.refusals), UsageError("no draft is given", hint=hint))
    candidates = system.candidates(checked.candidates, checked.sources, prompts)
    # 6. CPU threads, after all that may be refused at once.
    threads = system.threads()
    # 7. The question, and the manifest around it.
    options = system.options
    question = system.question(question_of(options, traffic, system.build))
    timing = f"cuda:{options.cards[0]}" if options.cards else question.device
    bad = {"bad row": traffic.bad} if traffic.bad else {}
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        draftbench=draftbench.__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        run=uuid.uuid4().hex,
        command=portable(without_values(command) if options.serving else command),
        key_id=key_id(options.traffic.key),
        question=question,
        traffic=TrafficFacts(
            form=summary.form,
            rows=summary.rows,
            requests=summary.requests,
            merged=summary.merged,
            dropped={**bad, **summary.left_out},
            revision=traffic.revision,
            constrained=summary.constrained,
            chats=summary.chats,
            longer=summary.longer,
        ),
        environment=system.machine or environment(threads, card_names(timing)),
        effort=Effort(
            measure=options.measure,
            measure_requests=options.measure_requests,
            controls=options.controls,
            sample=options.traffic.sample,
            processes=options.repeats,
        ),
        specs={name: portable(spec) for name, spec in system.specs.items()},
    )
    prepared = Prepared(
        options,
        system.target,
        drafts=checked.sources,
        most_drafted=checked.most_drafted,
        candidates=candidates,
        failures=tuple(checked.failures),
        caveats=checked.caveats,
        prompts=prompts,
        traffic=summary,
        manifest=manifest,
        build=system.build,
        servers=system.servers,
    )
    check_side_by_side(prepared)
    return prepared


def specs_of(options: SweepOptions) -> dict[str, str]:
    """The entries of `--drafts` by the names that the run gives them: the short name of the model,
    unless it is taken. What is put together comes after its parts, which are measured too.
    """
    specs: dict[str, str] = {}
    parts = {draft: kind_of(draft).parts(draft) for draft in options.drafts}
    alone = (draft for draft, of in parts.items() if not of)
    with_weights = (of[-1] for of in parts.values() if of)
    others = chain.from_iterable(of[:-1] for of in parts.values())
    for spec in dict.fromkeys((*alone, *with_weights, *others)):
        is_model = kind_drafting(spec).is_model and spec != SELF
        name = ModelSource(spec).name if is_model else draft_name(spec)
        # A folder may be called like a way of drafting.
        reserved = is_model and (name == SELF or not kind_of(name).is_model)
        taken = name in specs or reserved
        specs[portable(spec) if taken else name] = spec
    names = {spec: name for name, spec in specs.items()}
    together = {"+".join(names[part] for part in of): draft for draft, of in parts.items() if of}
    return specs | together


def render(
    options: SweepOptions, traffic: Traffic, text: PromptMaker, context: int
) -> tuple[tuple[Prompt, ...], TrafficSummary]:
    """Render every request; those that cannot be replayed are counted among the rows left out.

    Args:
        context: how many tokens the target reads.

    Raises:
        TrafficError: the template refuses a request (unless `skip_bad`), or no request is left.
    """
    prompts: list[Prompt] = []
    dropped: Counter[str] = Counter()
    refused: dict[str, list[RefusedError]] = {}
    first: Request | None = None
    with_tools, chats = list[Request](), 0
    for request in traffic.requests:
        if options.responses == "log" and not request.response:
            dropped["no logged answer"] += 1
            continue
        sampling = request.sampling
        if options.temperature is not None:
            sampling = msgspec.structs.replace(sampling, temperature=options.temperature)
        limits = filter(None, (request.max_tokens, options.max_new_tokens))
        sampled = msgspec.structs.replace(request, sampling=sampling)
        try:
            prompt = text.prompt(sampled, min(limits, default=DEFAULT_LIMIT), context)
            if prompt is not None and options.responses == "log":
                prompt = replace(prompt, logged=array("i", text.answer(request)[: prompt.limit]))
        except RefusedError as error:
            refused.setdefault(error.reason, []).append(error)
            continue
        except LostAnswerError as error:
            dropped[f"its logged answer had {error}"] += 1
            continue
        if prompt is None:
            dropped["longer than the target's context"] += 1
        elif options.responses == "log" and not prompt.logged:
            dropped["a logged answer without any token"] += 1
        else:
            first = first or request
            chats += request.messages is not None
            with_tools += [request] if request.tools else []
            prompts.append(prompt)
    if refused and not (options.traffic.skip_bad and prompts):
        count, firsts = sum(map(len, refused.values())), [each[0] for each in refused.values()]
        many = f"{count} of {len(traffic.requests)} requests cannot be turned into prompts: "
        reasons = "; ".join(error.message for error in firsts)
        raise TrafficError(many * (count > 1) + reasons, hint=firsts[0].hint)
    dropped.update({reason: len(errors) for reason, errors in refused.items()})
    if first is None:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in dropped.items())
        raise TrafficError(
            f"no request can be replayed ({reasons})",
            hint="let the target answer itself: `--responses target`"
            if options.responses == "log"
            else f"the target reads {context} tokens: take shorter prompts, or another target",
        )
    summary, unread = traffic.summary, traffic.summary.unread
    if with_tools and isinstance(text, TargetText) and text.drops_tools(with_tools[0]):
        unwritten = "tools (the target's chat template does not write them)"
        unread = {unwritten: len(with_tools), **unread}
    shown = options.show_prompt or options.traffic.source.startswith("suite:")
    rendered = text.shown(prompts[0].tokens) if shown else None
    return tuple(prompts), msgspec.structs.replace(
        summary,
        source=Path(options.traffic.source).name,
        requests=len(prompts),
        unread=unread,
        left_out={**summary.left_out, **dropped},
        assumed={
            what: rows
            for what, rows in summary.assumed.items()
            if options.temperature is None or not what.startswith("temperature")
        },
        constrained=sum(prompt.request.constraint is not None for prompt in prompts),
        chats=chats,
        first=first_request(first, rendered, shown=shown),
    )


@dataclass
class CheckedDrafts:
    """The drafts that can be measured, with sources, the most tokens of a round if they were
    trained for so many, and caveats by name; and the refused ones.
    """

    sources: dict[str, ModelSource] = field(default_factory=dict)
    most_drafted: dict[str, int] = field(default_factory=dict)
    caveats: dict[str, tuple[str, ...]] = field(default_factory=dict)
    candidates: dict[Candidate, None] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    refusals: list[DraftbenchError] = field(default_factory=list)


def check_drafts(
    options: SweepOptions,
    specs: Mapping[str, str],
    pairing: Pairing,
    refused_levels: Mapping[str, ModelError] = MappingProxyType({}),
) -> CheckedDrafts:
    """Find out which drafts can be measured at which levels, before any weights load; a checkpoint
    that is stored at a level has no other.
    """
    checked = CheckedDrafts()
    checks = SERVED if pairing.serving else WITH_WEIGHTS
    for name, spec in specs.items():
        # What holds for the part with weights, which comes before, holds for the whole.
        if parts := kind_of(name).parts(name):
            last = parts[-1]
            if last in checked.sources:
                checked.sources[name] = checked.sources[last]
                checked.caveats[name] = checked.caveats[last]
            levels = [each.quant for each in checked.candidates if each.draft == last]
            checked.candidates |= dict.fromkeys(Candidate(draft=name, quant=q) for q in levels)
            checked.failures += [
                msgspec.structs.replace(each, candidate=Candidate(draft=name, quant=of.quant))
                for each in checked.failures
                if (of := each.candidate) is not None and of.draft == last
            ]
            continue
        method, model = parsed(spec)
        if spec == SELF or method not in checks:
            checked.candidates[Candidate(draft=name)] = None
            continue
        # The checkpoint of layers that the target carries is the target's own.
        source, quants = ModelSource(model or options.target, options.trust), options.quants
        try:
            caveats = checks[method].check(source, pairing, method)
            if caveats is None:
                checked.candidates[Candidate(draft=name)] = None
                continue
            most = most_drafted(method, source)
            if most is not None and most < min(options.ks):
                raise PairError(
                    f"`{name}` drafts at most {most} tokens a round", hint=f"add --k {most} or less"
                )
            if not kind_of(spec).reads_states and (stored := stored_level(source)):
                quants = (stored,)
        # A checkpoint's own code may raise anything; the other drafts are still measured.
        except Exception as error:
            checked.refusals.append(known_error(f"the draft {name}", error))
            stage = "pair" if isinstance(error, PairError) else "load"
            refused = (Candidate(draft=name, quant=level) for level in quants)
            checked.failures += [failure(candidate, error, stage) for candidate in refused]
            continue
        checked.sources[name], checked.caveats[name] = source, caveats
        if most is not None:
            checked.most_drafted[name] = most
        for level in quants:
            candidate, obstacle = Candidate(draft=name, quant=level), refused_levels.get(level)
            if obstacle is None:
                checked.candidates[candidate] = None
            else:
                checked.failures.append(failure(candidate, obstacle, "load"))
    return checked


def question_of(options: SweepOptions, traffic: Traffic, build: Build) -> Question:
    """The question of a run, from the options of the same names; an engine adds more."""
    chosen = "".join(request.id for request in traffic.requests)
    resolved = {
        "target": portable(options.target),
        "dtype": str(build.dtype).removeprefix("torch."),
        "device": build.device,
        "drafts": tuple(map(portable, options.drafts)),
        "lookup_longest": options.lookup.longest,
        "lookup_shortest": options.lookup.shortest,
        "concurrency": options.concurrency,
        "stop": STOPS if options.stops else STOPS[:1],
        "traffic": Path(options.traffic.source).name,
        "traffic_digest": keyed_hash(options.traffic.key, (traffic.digest + chosen).encode()),
    }
    named = vars(options).keys() & Question.__struct_fields__
    return Question(**{name: getattr(options, name) for name in named} | resolved)

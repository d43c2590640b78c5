"""What preparing a sweep on a serving engine has of its own: running servers are asked what they
are, requests are turned into token ids by the target's template or the server's, and drafts with
another vocabulary are refused. The target is never loaded here. The order is `preparation`'s.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from draftbench.decoder.device import device_of, device_words, dtype_of, set_threads
from draftbench.drafts.built_in import SERVED
from draftbench.drafts.heads.config import WHERE_HEADS_ARE
from draftbench.drafts.kind import DraftKind
from draftbench.drafts.kinds import kind_of, remembers
from draftbench.drafts.loading import LEAVE_OUT, Serving
from draftbench.drafts.mtp.own_draft import DSPARK_HINT, no_mtp, own_draft_of
from draftbench.drafts.speculation import Speculation, speculation_of
from draftbench.engines.connect import connect
from draftbench.engines.engine import ServerStart
from draftbench.engines.every import ENGINES, NUMBER_TYPES, SERVERS
from draftbench.engines.secrets import form_of, hidden_in
from draftbench.engines.server import Server, ServerFacts
from draftbench.engines.start import HOST, launch
from draftbench.errors import EngineError, ModelError, PairError, RefusedError, UsageError
from draftbench.flags import LARGEST_CONCURRENCY
from draftbench.hub import or_beside, short_name
from draftbench.measure.prompts import LostAnswerError, Prompt, PromptMaker, TargetText, fitted
from draftbench.measure.replay import ServedTarget
from draftbench.measure.trajectories import PromptSample
from draftbench.memory import LEVELS, format_size
from draftbench.models.check import memory_free
from draftbench.models.compatibility import check_writes, context_length_of
from draftbench.models.quantize import Build, check_level
from draftbench.models.source import ModelSource
from draftbench.models.translation import needs_translation, rows_of
from draftbench.records import LOOKUP, SELF, Candidate, DraftingMode, Request
from draftbench.run_folder.key import keyed_hash
from draftbench.run_folder.manifest import Question, portable
from draftbench.sweep.engine_check import find_drafting
from draftbench.sweep.engine_servers import Servers, arrival_times
from draftbench.sweep.options import DEFAULT_CONCURRENCY, SweepOptions, Watcher
from draftbench.traffic import TrafficQuery, load

_CONTEXT_STEP, _CONTEXT_SLACK = 256, 64
# Settings that tell apart two models of one name.
_OF_WEIGHTS = set(NUMBER_TYPES) - {"dtype"}
_MODELS = "give a directory with config.json, a .gguf file, or a hub id like org/name"
# A text on which tokenizers of different families disagree.
PROBE = 'def f(x):\n    return x + 12345  # naïve café, 東京 привет 🙂\t{"a": [1, 2]}'
# An output layer has at most this many rows without a token: their number is rounded up.
_PADDING = 4096
# What to do about a chat without a template here.
# The controls, which are replayed where the engine drafts so. A server is started only with a draft
# that is named.
_FREE = LOOKUP, "suffix"
_TEMPLATE_OF_STARTED = (
    "give --tokenizer a folder of the target that has its template, or use plain prompts (built "
    "in: `--traffic suite:completion`)"
)
_TEMPLATE_OF_RUNNING = (
    "give --tokenizer a folder of the target that has its template, or leave --target and "
    "--tokenizer out: then the server applies its own"
)


class ServingEngine:
    """The engine with its `options`, as a running server allows them, and in the end its `servers`.

    Raises:
        DraftbenchError: the input cannot be used, or a running server is not what it should be.
    """

    machine = None
    refused_levels: Mapping[str, ModelError] = MappingProxyType({})
    servers: Servers | None = None

    def __init__(self, options: SweepOptions, specs: dict[str, str], watcher: Watcher) -> None:
        assert options.serving is not None
        self.options, self.serving = options, options.serving
        self.specs, self.watcher = specs, watcher
        self.speculations = {
            name: speculation_of(spec, 1, lookup=options.lookup, mode=options.mode)
            for name, spec in specs.items()
        }
        if SELF in options.drafts:
            raise UsageError(
                "the target cannot draft for itself on a serving engine",
                hint="that control is the built-in decoder's; leave `self` out",
            )
        for quant in options.quants:
            check_level(quant, "cpu", simulate=True)
        for name, speculation in self.speculations.items():
            if self.serving.server is not None and not speculation.kind.replayed:
                raise UsageError(
                    f"`{specs[name]}` cannot be replayed: only a server that drafts with it shows "
                    "it",
                    hint=LEAVE_OUT,
                )
        if self.serving.server is None:
            self._check_starts()
        device = device_of(options.device)
        # Replays are not timed, so no level needs a kernel.
        self.build = Build(dtype_of(options.dtype, device), "none", device, simulate=True)
        self.server, self.baseline = self._connected()
        self.facts = self.server.facts() if self.server is not None else None
        engine = self.facts.engine if self.facts is not None else self.serving.engine
        assert engine is not None
        self.engine = engine
        held = replace(options.traffic, constraints=SERVERS[engine].constraints)
        self.options = replace(options, traffic=held)
        self.may_draft = self.server is not None

    def threads(self) -> int:
        """How many CPU threads are used from here on."""
        used = set_threads(self.options.threads)
        self.watcher.note(f"device: {device_words(self.build.device)}", always=True)
        return used

    def _check_starts(self) -> None:
        """Check models and drafting before any server is started; a user's command may see other
        files. Raises: ModelError, EngineError, UsageError, PairError.
        """
        options, serving, speculations = self.options, self.serving, self.speculations.values()
        assert serving.engine is not None
        engine = ENGINES[serving.engine]
        if engine.converter and not options.target.endswith(".gguf"):
            raise ModelError(
                f"{engine.name} serves .gguf files, and `{options.target}` is not one",
                hint=f"give the target's .gguf file, which {engine.converter} makes, and with "
                "--tokenizer what it was made from",
            )
        plain = ServerStart(
            serving.engine,
            options.target,
            args=serving.args,
            command=serving.command,
            stop_command=serving.stop_command,
        )
        launch(plain, HOST, 0)
        for speculation in speculations:
            # Replay works in any mode; no server drafts for it.
            mode = speculation.mode if options.most_ks else DraftingMode.GREEDY
            for k in options.ks:
                launch(replace(plain, speculation=replace(speculation, k=k, mode=mode)), HOST, 0)
        if any(speculation.method == "mtp" for speculation in speculations):
            _check_mtp(options.target)
        models: list[tuple[str, str, DraftKind | None]] = [("--target", options.target, None)]
        models += [("--drafts", d.model, d.kind) for d in speculations if d.model]
        for flag, spec, kind in models:
            replayed_here, is_head = kind and kind.is_model, kind and not kind.is_model
            source = ModelSource(spec)
            if source.local or source.on_hub:
                continue
            if serving.command is not None and not replayed_here:
                self.watcher.note(
                    f"{flag}: no model at `{spec}` here; --engine-command has to find it"
                )
                continue
            what = (
                f"no head at `{kind.written}{spec}`"
                if kind and is_head
                else f"no model at `{spec}`"
            )
            hint = WHERE_HEADS_ARE if is_head else _MODELS
            hint = "give a .gguf file" if engine.converter and not replayed_here else hint
            raise ModelError(f"{flag}: {what}", hint=or_beside(spec, hint))

    def _connected(self) -> tuple[Server | None, Server | None]:
        """The user's server and the one without speculation, if they are given.

        Raises:
            EngineError: one does not answer or takes too few requests at a time, or the two differ
                in model or engine.
        """
        options, serving = self.options, self.serving
        if serving.server is None:
            return None, None
        server = connect(serving.server, serving.engine, target=options.target)
        ours = server.facts()
        _check_concurrency(server, ours, options)
        if serving.baseline is None:
            return server, None
        baseline = connect(serving.baseline, serving.engine, target=options.target)
        theirs = baseline.facts()
        _check_concurrency(baseline, theirs, options)
        for what, one, other in (
            ("engine", ours.engine, theirs.engine),
            ("version", ours.version, theirs.version),
            ("model", ours.model, theirs.model),
            *((name, ours.settings.get(name), theirs.settings.get(name)) for name in _OF_WEIGHTS),
        ):
            if one != other and (what not in _OF_WEIGHTS or None not in (one, other)):
                raise EngineError(
                    f"the two servers differ in more than their drafting: {what} {one} and {other}",
                    hint="--baseline-server is the same engine and model without speculation",
                )
        if theirs.method not in (None, "none"):
            raise EngineError(
                f"the server at --baseline-server drafts itself ({theirs.method})",
                hint="start it without speculation"
                + (", or exchange the two addresses" if ours.method in (None, "none") else ""),
            )
        return server, baseline

    def read_target(self) -> tuple[PromptMaker, int]:
        """What makes its prompts, and its context length: from the model that the user names or
        else from its server.

        Raises:
            EngineError: its context length is unknown, or its tokenizer is not the server's.
            ModelError: there is no such tokenizer, or the model does not write text.
        """
        options, server, facts = self.options, self.server, self.facts
        if facts is not None and facts.model and options.target:
            served, named = short_name(facts.model), short_name(options.target)
            if served != named:
                self.watcher.note(f"the server calls its model {served}: it is taken to be {named}")
        spec = self.serving.tokenizer or options.target
        self.name = options.target or (facts and (facts.model or facts.engine)) or ""
        self.target = source = ModelSource(spec or self.name, options.trust)
        if spec and server is not None:
            try:
                theirs = server.tokenize(PROBE)
            except EngineError:
                self.watcher.note(
                    "the server does not tokenize texts, so its tokenizer was not compared"
                )
            else:
                ours: list[int] = source.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
                if theirs[-len(ours) :] != ours:
                    raise EngineError(
                        f"the tokenizer of `{source.name}` is not the server's",
                        hint="give --target or --tokenizer of the model that is served",
                    )
        self.configured = False  # whether its configuration is at hand, not only a tokenizer
        if spec:
            with contextlib.suppress(ModelError):
                self.configured = source.config is not None
        if self.configured:
            check_writes(source)
        lengths = [
            facts.context_length if facts else None,
            context_length_of(source) if self.configured else None,
        ]
        context = min((length for length in lengths if length is not None), default=None)
        if context is None:
            if spec:
                _ = source.tokenizer  # where nothing can be read, the reason
            raise EngineError(
                "neither the server nor its model states a context length",
                hint="give --tokenizer a folder of the target that holds config.json too",
            )
        self.context, self.ids = context, sys.maxsize  # every token id is below
        if not spec:
            assert server is not None
            self.text: PromptMaker = ServerText(server)
        else:
            rows = rows_of(source) if self.configured else None
            self.ids = rows or len(source.tokenizer) + _PADDING
            hint = _TEMPLATE_OF_STARTED if server is None else _TEMPLATE_OF_RUNNING
            self.text = TargetText(source, hint)
        return self.text, context

    def replays_over(self, prompts: Sequence[Prompt], rows: int) -> Serving:
        """The engine whose answers drafts are replayed over; `rows` are those of the log.

        Raises:
            TrafficError: the log does not say when its requests came.
            UsageError: a draft cannot be replayed here.
        """
        options, serving = self.options, self.serving
        sent = len(prompts) * options.samples
        if serving.arrivals == "log" and sent < rows:
            self.watcher.note(
                f"{sent} requests are sent for the log's {rows} rows: {sent / rows:.0%} of its "
                f"load (--time-scale {rows / sent:.3g} makes up for it)",
                always=True,
            )
        self.arrivals = None
        if serving.arrivals != "closed":  # when each request is sent, at the log's own speed
            samples = [PromptSample(prompt, 0) for prompt in prompts]
            times = arrival_times(samples, serving, options.traffic.seed)
            at = sorted((key, round(t * serving.time_scale, 6)) for key, t in times.items())
            self.arrivals = keyed_hash(options.traffic.key, repr(at).encode())
        drafting = [(self.specs[name], each.kind) for name, each in self.speculations.items()]
        models = [spec for spec, kind in drafting if kind.is_model]
        if models and not self.configured:
            raise UsageError(
                f"`{models[0]}` cannot be replayed: the served model is not named",
                hint="name it with --target: its configuration and tokenizer are enough",
            )
        heads = [spec for spec, kind in drafting if kind.replayed and kind.reads_states]
        no_states = self._no_states() if heads else None
        if no_states and self.server is not None:
            raise UsageError(f"`{heads[0]}` cannot be replayed: {no_states}", hint=LEAVE_OUT)
        return Serving(self.engine, self.server is not None, no_states, self.watcher.note)

    def _no_states(self) -> str | None:
        """Why the target's states along its answers cannot be computed here; None if they can."""
        source = ModelSource(self.options.target, self.options.trust)
        if not self.options.target or not (source.local or source.on_hub):
            return "--target names no weights on this machine, and it reads the target's states"
        try:
            source.check_weights()
            needed = source.skeleton.num_parameters() * self.build.dtype.itemsize
        except ModelError as error:
            return error.message
        if needed <= (free := memory_free(self.build.device)):
            return None
        return f"the target takes {format_size(needed)} here, and {format_size(free)} are free"

    def candidates(
        self,
        checked: dict[Candidate, None],
        sources: Mapping[str, ModelSource],
        prompts: Sequence[Prompt],
    ) -> tuple[Candidate, ...]:
        """The candidates, among them what a running server drafts with; finds the `servers`.

        Raises:
            UsageError: the server does not draft, and no draft is given.
            EngineError: how the server drafts remains unknown.
        """
        options, engine, candidates = self.options, self.engine, dict(checked)
        # How the engine drafts when it has to translate tokens, and why it is not started with
        # some.
        speculations, levels = self.speculations, dict[Candidate, str]()
        refusals = dict[str, str]()
        for name, source in sources.items():
            how = speculations[name]
            if how.kind.is_model and needs_translation(self.target, source):
                speculations[name] = replace(how, translated=True)
            if refusal := SERVED[how.method].refused_by(engine, self.target, source, how.method):
                refusals[name] = refusal
        for candidate in candidates:
            level = _level_served(engine, speculations[candidate.draft], candidate.quant)
            why = refusals.get(candidate.draft)
            if level is not None and why is None:
                levels[candidate] = level
            elif self.server is None:
                why = why or "it does not serve it at this level"
                self.watcher.note(f"{candidate} is replayed only, not started on {engine}: {why}")
        if options.controls and (self.server is None or options.drafts):
            known = ENGINES.get(engine)
            for name in _FREE:
                if known is None or kind_of(name).method in known.methods:
                    speculations.setdefault(name, speculation_of(name, 1, lookup=options.lookup))
                    candidates.setdefault(Candidate(draft=name))
        named = [str(each) for each in levels if remembers(each)]
        if named and self.server is None and options.measure_requests < len(prompts):
            self.watcher.note(
                f"servers that draft by {', '.join(named)} are asked all {len(prompts)} requests, "
                f"in the order of the log: they remember what they answered"
            )
        # Prompts outside the sample, for warming up.
        sampled = {prompt.request.id for prompt in prompts}
        others = load(TrafficQuery("suite:completion", options.traffic.key)).requests
        outside = [request for request in others if request.id not in sampled]
        outside = outside or [Request(id="", source="", prompt=PROBE)]
        rendered = (self.text.prompt(request, 1, self.context) for request in outside)
        longest = max(len(prompt.tokens) + prompt.limit for prompt in prompts)
        rounded = math.ceil((longest + _CONTEXT_SLACK) / _CONTEXT_STEP) * _CONTEXT_STEP
        servers = Servers(
            engine=engine,
            options=options,
            serving=self.serving,
            target=ServedTarget(self.context),
            speculations=speculations,
            levels=levels,
            warm_up=tuple(prompt.tokens for prompt in rendered if prompt is not None),
            context_length=min(rounded, self.context),
            given=self.server,
            facts=self.facts,
            baseline=self.baseline,
            ids=self.ids,
        )
        fewest = servers.minimum_k(Candidate(draft=LOOKUP))
        if Candidate(draft=LOOKUP) in levels and self.server is None and min(options.ks) < fewest:
            too_short = ENGINES[engine].too_short(fewest)
            self.watcher.note(f"ngram is not started below k = {fewest}: {too_short}")
        if self.server is not None:
            servers, candidates, stated = find_drafting(
                servers, self.server, candidates, prompts, self.watcher
            )
            if not candidates:
                raise UsageError(
                    f"the server at {self.server.url} does not draft, and no draft is given",
                    hint="give a server that speculates; a sweep can replay --drafts over this one",
                )
            self.specs = stated | self.specs
        if servers.drafting is not None:
            # Drafts are replayed at the k's asked for; the server's own is the one that is decided
            # on.
            self.options = replace(options, ks=tuple(sorted({*options.ks, servers.drafting.k})))
            servers = replace(servers, options=self.options)
        self.servers = servers
        return tuple(candidates)

    def question(self, question: Question) -> Question:
        """The question with what an engine adds to it."""
        serving, key = self.serving, self.options.traffic.key
        # How many requests the server answers at once with --arrivals; None: the engine's default,
        # or unknown for a running server.
        max_concurrency = None
        if serving.arrivals != "closed" and self.facts is not None:
            max_concurrency = _max_concurrency_of(self.facts)
        elif serving.arrivals != "closed":
            needed = DEFAULT_CONCURRENCY if ENGINES[self.engine].shares_context else None
            max_concurrency = serving.max_concurrency or needed
        whose = "started side by side" if serving.side_by_side else "started"
        if self.server is not None:
            whose = "given" if serving.baseline is None else "given with a baseline"
        raw = (each.raw for each in self.speculations.values() if each.raw is not None)
        return msgspec.structs.replace(
            question,
            target=portable(self.name),
            engine=self.engine,
            engine_args=_without_values(serving.args, key),
            arrivals=serving.arrivals,
            arrivals_digest=self.arrivals,
            servers=whose,
            engine_command=_without_values(serving.command or "", key),
            spec_files=tuple(hidden_in(portable(json.dumps(each, sort_keys=True))) for each in raw),
            time_scale=serving.time_scale,
            tokenizer=portable(serving.tokenizer or ""),
            max_concurrency=max_concurrency,
            replay="local",
        )


def _without_values(text: str, key: bytes) -> str:
    """The user's extra flags without their values, plus a keyed hash, so that a changed value is
    noticed.
    """
    form = " ".join(form_of(shlex.split(text)))
    return f"{form} ({keyed_hash(key, text.encode())})" if text else ""


def _check_mtp(target: str) -> None:
    """Raise a PairError if the target carries a draft, and not MTP layers: by its configuration if
    it is here, else by its name. An engine would find that out only after reading the weights.
    """
    source, config = ModelSource(target), None
    if source.local and not target.endswith(".gguf"):
        with contextlib.suppress(ModelError):
            config = source.raw_config
    own = own_draft_of(config, target)
    if own is not None and own.method != "mtp":
        raise PairError(no_mtp(source.name, own), hint=DSPARK_HINT)


def _check_concurrency(server: Server, facts: ServerFacts, options: SweepOptions) -> None:
    """Raise an EngineError if a server answers fewer requests at a time than should be in flight:
    the others would wait, and the load would never be reached.
    """
    most, able = max(options.concurrency), _max_concurrency_of(facts)
    if able is not None and able < most:
        _, flag = ENGINES[facts.engine].max_concurrency_names
        raise EngineError(
            f"the server at {server.url} answers {able} at a time, and {most} requests are "
            "to be in flight",
            hint=f"start it with `{flag} {most}`; a sweep can ask for --concurrency {able}",
        )


def _max_concurrency_of(facts: ServerFacts) -> int | None:
    """How many requests a server says it answers at once; None if it does not say."""
    engine = ENGINES.get(facts.engine)
    stated = facts.settings.get(engine.max_concurrency_names[0], "") if engine else ""
    return min(int(stated), LARGEST_CONCURRENCY) if stated.isdecimal() else None


def _level_served(engine: str, speculation: Speculation, level: str) -> str | None:
    """What makes an engine serve a draft at a level; None if it cannot."""
    as_stored = "none" if level == "none" or level not in LEVELS else None
    if not speculation.kind.is_model:
        return as_stored
    known = ENGINES.get(engine)
    if known is None or known.converter:
        # A converted file is served at the level that it is stored at.
        return as_stored if (speculation.model or "").endswith(".gguf") else None
    return level if level in known.quantizes else as_stored


@dataclass(frozen=True)
class ServerText:
    """The server's own template and tokenizer."""

    server: Server

    def prompt(self, request: Request, limit: int, context_length: int) -> Prompt | None:
        """The request as token ids, as `measure.prompts.TargetText` makes them.

        Raises:
            RefusedError: the request asks for what cannot be asked over HTTP.
            EngineError: the server has no such route.
        """
        text: str | list[int] | None = request.prompt
        if request.messages is not None:
            if request.tools or request.template:
                raise RefusedError(
                    f"{request.source} has tools or arguments of the template",
                    reason="it has tools or arguments of the template",
                    hint="name the target's folder or id with --tokenizer, which renders them",
                )
            text = self.server.apply_template(request.messages)
        if isinstance(text, str):
            text = self.server.tokenize(text)
        return fitted(request, text or (), limit, context_length)

    def answer(self, request: Request) -> list[int]:
        """The logged answer as token ids.

        Raises:
            LostAnswerError: it holds more than text, which only a template can write.
        """
        if isinstance(request.response, dict):
            raise LostAnswerError("reasoning or calls of tools, which --tokenizer could put back")
        return self.server.tokenize(request.response or "")

    def shown(self, tokens: Sequence[int]) -> str | None:
        """None, since not every server says what ids mean."""
        return None

"""The target of a serving engine, which is never loaded here: renders its prompts by its tokenizer
and template or by the server's, and checks that a tokenizer is the server's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.engines.engine import Server, ServerFacts
from draftbench.errors import EngineError, ModelError, PairError, TrafficError
from draftbench.hub import short_name
from draftbench.measure.prompts import Prompt, TextSide, fitted
from draftbench.models.compatibility import check_writes, context_length_of
from draftbench.models.source import ModelSource
from draftbench.records import Request
from draftbench.sweep.options import SweepOptions, Watcher
from draftbench.sweep.preparation import PromptMaker
from draftbench.traffic import TrafficQuery, load

# A text on which tokenizers of different families disagree.
PROBE = 'def f(x):\n    return x + 12345  # naïve café, 東京 привет 🙂\t{"a": [1, 2]}'
# At most so many rows of an output layer have no token: their number is rounded up.
_PADDING = 4096
# What helps where a chat has no template here.
_TEMPLATE_OF_STARTED = (
    "give --tokenizer a folder of the target that has its template, or use plain prompts (built "
    "in: `--traffic suite:completion`)"
)
_TEMPLATE_OF_RUNNING = (
    "give --tokenizer a folder of the target that has its template, or leave --target and "
    "--tokenizer out: then the server applies its own"
)


@dataclass(frozen=True)
class EngineTarget:
    """A target that is not loaded: `configured` is whether its configuration is at hand,
    `vocabulary` the rows of its output layer, `ids` an upper bound on token ids.
    """

    name: str
    source: ModelSource
    text: PromptMaker
    configured: bool
    context: int
    vocabulary: int = sys.maxsize
    ids: int = sys.maxsize


def target_of(
    options: SweepOptions, server: Server | None, facts: ServerFacts | None, watcher: Watcher
) -> EngineTarget:
    """The target by the model that the user names, or else by its server.

    Raises:
        EngineError: its context length is unknown, or its tokenizer is not the server's.
        ModelError: there is no such tokenizer, or the model does not write text.
    """
    asked = options.serving
    assert asked is not None
    if facts is not None and facts.model and options.target:
        served, named = short_name(facts.model), short_name(options.target)
        if served != named:
            watcher.note(f"the server calls its model {served}: it is taken to be {named}")
    spec = asked.tokenizer or options.target
    name = options.target or (facts and (facts.model or facts.engine)) or ""
    source = ModelSource(spec or name, options.trust)
    if spec and server is not None:
        _check_tokenizer(source, server, watcher)
    configured = bool(spec) and _configured(source)
    lengths = [
        facts.context_length if facts else None,
        context_length_of(source) if configured else None,
    ]
    context = min((length for length in lengths if length is not None), default=None)
    if context is None:
        if spec:
            _ = source.tokenizer  # where nothing can be read, the reason
        raise EngineError(
            "neither the server nor its model says how many tokens it reads",
            hint="give --tokenizer a folder of the target that holds config.json too",
        )
    if not spec:
        assert server is not None
        return EngineTarget(name, source, ServerText(server), configured, context)
    rows = source.config.get_text_config().vocab_size if configured else None
    return EngineTarget(
        name,
        source,
        TextSide(source, _TEMPLATE_OF_STARTED if server is None else _TEMPLATE_OF_RUNNING),
        configured,
        context,
        vocabulary=rows or sys.maxsize,
        ids=rows or len(source.tokenizer) + _PADDING,
    )


def _configured(source: ModelSource) -> bool:
    """Whether there is a model's configuration, not only a tokenizer.

    Raises:
        ModelError: it is of a model that does not write text.
    """
    try:
        if source.config is None:
            return False
    except ModelError:
        return False
    check_writes(source)
    return True


@dataclass(frozen=True)
class ServerText:
    """The server's own template and tokenizer."""

    server: Server

    def prompt(self, request: Request, longest: int, context_length: int) -> Prompt | None:
        """As `measure.prompts.TextSide` does.

        Raises:
            TrafficError: the request asks for what cannot be asked over HTTP.
            EngineError: the server has no such route.
        """
        text: str | list[int] | None = request.prompt
        if request.messages is not None:
            if request.tools or request.template:
                raise TrafficError(
                    f"{request.source} has tools or arguments of the template",
                    hint="name the target's folder or id with --tokenizer, which renders them",
                )
            text = self.server.apply_template(request.messages)
        if isinstance(text, str):
            text = self.server.tokenize(text)
        return fitted(request, text or (), longest, context_length)

    def answer(self, request: Request) -> list[int]:
        """The logged answer as token ids."""
        return self.server.tokenize(request.response or "")


def _check_tokenizer(target: ModelSource, server: Server, watcher: Watcher) -> None:
    """Raise an EngineError where the target's tokenizer is not the server's."""
    try:
        theirs = server.tokenize(PROBE)
    except EngineError:
        watcher.note("the server does not tokenize texts, so its tokenizer was not compared")
        return
    ours = target.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    if theirs[-len(ours) :] != ours:
        raise EngineError(
            f"the tokenizer of `{target.name}` is not the server's",
            hint="give --target or --tokenizer of the model that is served",
        )


def same_words(source: ModelSource, server: Server | None) -> tuple[str, ...]:
    """A caveat that only one text was compared, for want of the target's configuration.

    Raises:
        PairError: the draft's tokenizer and the server's differ on it.
    """
    assert server is not None  # one to be started has a context by its target's configuration
    ours: list[int] = source.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    if server.tokenize(PROBE)[-len(ours) :] != ours:
        raise PairError(
            f"`{source.name}` cannot draft for this server: their vocabularies differ",
            hint="take a draft of the target's family and generation, or `ngram` (no model)",
        )
    return ("only one text was compared with the server's tokenizer (--target compares all ids)",)


def warm_up_prompts(
    options: SweepOptions, text: PromptMaker, context: int, prompts: Sequence[Prompt]
) -> tuple[Sequence[int], ...]:
    """Prompts outside the sample."""
    query = TrafficQuery("suite:completion", options.traffic.key)
    sampled = {prompt.request.id for prompt in prompts}
    others = [request for request in load(query).requests if request.id not in sampled]
    others = others or [Request(id="", source="", prompt=PROBE)]
    made = (text.prompt(request, 1, context) for request in others)
    return tuple(prompt.tokens for prompt in made if prompt is not None)

"""Decides from configurations whether a head can draft for a target.

A head reads the target's states, so it must match the target's width, layers and vocabulary. Its
config.json is in the speculators format or in that of the head's authors.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from draftbench.drafts.kind import Method
from draftbench.drafts.kinds import DRAFT_KINDS, WORDS, parsed
from draftbench.drafts.speculation import Speculation
from draftbench.engines.engine import USUAL_K
from draftbench.engines.every import ENGINES, listed
from draftbench.engines.pair_rules import EngineAnswer
from draftbench.errors import ModelError, PairError, closest
from draftbench.hub import Trust, or_beside, refuse_missing
from draftbench.models.check_result import HeadSheet
from draftbench.models.source import ModelSource

WHERE_HEADS_ARE = (
    "give the folder of the head, which holds its config.json, or its hub id (org/name)"
)


class _LayerIds(msgspec.Struct):
    """The fields in which a config.json may name the layers that a head reads."""

    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    target_layer_ids: list[int] | None = None
    aux_hidden_state_layer_ids: list[int] | None = None


class _TrainedFor(msgspec.Struct):
    verifier: dict[str, Any] | None = None


class _Stated(_LayerIds):
    """The fields that are read from a head's config.json, with types, since a "false" would be
    true.
    """

    architectures: list[str] | None = None
    speculators_model_type: str | None = None
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    num_target_layers: int | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None
    transformer_layer_config: dict[str, Any] | None = None
    eagle_config: _LayerIds | None = None
    dflash_config: _LayerIds | None = None
    speculators_config: _TrainedFor | None = None


def check_head(target: ModelSource, head: str) -> HeadSheet:
    """Whether this entry of `--drafts` can draft for the target, and which engines know it.

    Raises:
        ModelError: its configuration cannot be loaded.
    """
    method, model = parsed(head)
    engines: list[EngineAnswer] = []
    source = checkpoint_of(head, target.trust)
    raw = source.raw_config
    try:
        msgspec.convert(raw, _Stated)
    except msgspec.ValidationError as error:
        raise ModelError(
            f"cannot load the configuration of `{source.spec}`: config.json: {error}",
            hint="correct the file, or download the head again",
        ) from error
    caveats = tuple(_caveats(raw, method, target))
    if obstacles := tuple(_obstacles(raw, method, model, target)):
        return HeadSheet(head, method, obstacles, caveats, ())
    misread = misread_by(raw, method, layers_of(target))
    for key, engine in ENGINES.items():
        known = method in engine.methods
        if not known or key in misread:
            words = f"it {misread[key]}" if known else f"not known to draft by {method}"
            engines.append(EngineAnswer(engine.name, "refuses", words, None))
            continue
        file = engine.file_of(model)
        option = engine.option(Speculation(method, file, USUAL_K))
        reason = f"method {method}"
        if engine.converter:
            reason = "as a .gguf file"
            if file != model:
                reason += f", which {engine.head_converter} makes"
        engines.append(EngineAnswer(engine.name, "accepts", reason, option))
    return HeadSheet(head, method, (), caveats, tuple(engines))


def checkpoint_of(draft: str, trust: Trust) -> ModelSource:
    """The model or head that an entry of `--drafts` names.

    Raises:
        ModelError: there is none, or it is a head but not named as one.
    """
    method, model = parsed(draft)
    source = ModelSource(model, trust)
    if method == "draft-model":
        if not source.local and (near := closest(model, WORDS)):
            raise ModelError(
                f"`{model}` is neither a model here nor a drafting method",
                hint=f"did you mean `{near}`? A model of the hub is named org/name",
            )
        refuse_missing(model)
        raw: Mapping[str, Any] = {}
        with suppress(ModelError):  # what cannot be read is refused where it is needed
            raw = source.raw_config if source.local else {}
        if meant := next(methods_of(raw), None):
            raise ModelError(f"`{draft}` is a head", hint=f"name it `{meant}:{draft}`")
    elif not (source.local or source.on_hub):
        raise ModelError(f"no head at `{draft}`", hint=or_beside(model, WHERE_HEADS_ARE))
    return source


def check_fit(target: ModelSource, head: ModelSource, method: Method) -> tuple[str, ...]:
    """The caveats about a head whose configuration fits the target.

    Raises:
        ModelError: the configuration cannot be loaded.
        PairError: it does not fit.
    """
    sheet = check_head(target, f"{method}:{head.spec}")
    if sheet.obstacles:
        raise unfit(target, head, sheet.obstacles)
    names = [ENGINES[key].name for key in misread_by(head.raw_config, method, layers_of(target))]
    if not names:
        return sheet.caveats
    cannot = listed(names, "and") + " cannot serve it as it was trained"
    return (*sheet.caveats, f"{cannot} (`draftbench check` says why)")


def unfit(target: ModelSource, head: ModelSource, obstacles: Iterable[str]) -> PairError:
    """A head that cannot draft for a target."""
    return PairError(
        f"the head `{head.name}` cannot draft for `{target.name}`: {'; '.join(obstacles)}",
        hint=f"`draftbench suggest --target {shlex.quote(target.spec)}` lists heads that fit it",
    )


def layers_of(target: ModelSource) -> int:
    """How many layers a target has."""
    layers: int = target.config.get_text_config().num_hidden_layers
    return layers


def misread_by(raw: Mapping[str, Any], method: Method, layers: int) -> dict[str, str]:
    """How engines use a head differently from its training, so that they accept little, with a
    target of so many layers.
    """
    reads, usual = layer_ids(raw), usual_layers(layers)
    found = {key: engine.misreads(method, raw, reads, usual) for key, engine in ENGINES.items()}
    return {key: words for key, words in found.items() if words}


def silent_flags(raw: Mapping[str, Any], engine: str | None) -> dict[str, bool]:
    """The flags that an engine takes as true if a head's config.json does not give them; None: the
    built-in decoder, which like speculators takes none.
    """
    known = ENGINES.get(engine or "")
    return dict(known.head_defaults) if known and "speculators_model_type" in raw else {}


def read_otherwise(
    raw: Mapping[str, Any], method: Method, engine: str | None, layers: int
) -> dict[str, str]:
    """How engines use a head differently from its training or, if its config.json does not say,
    from the engine that measured it (None: the built-in decoder).
    """
    found, measured = misread_by(raw, method, layers), silent_flags(raw, engine)
    if method != "eagle3":
        return found
    for other in ENGINES:
        taken = silent_flags(raw, other)
        for flag in (taken.keys() | measured.keys()) - raw.keys():
            if taken.get(flag) != measured.get(flag):
                value = str(bool(taken.get(flag))).lower()
                found[other] = f"takes {flag} for {value}, which config.json does not say"
    return found


def _stated_kind(raw: Mapping[str, Any]) -> str:
    """The kind of model according to its config.json."""
    named = [raw.get("speculators_model_type"), *(raw.get("architectures") or ())]
    return " ".join(str(name).lower() for name in named if name)


def methods_of(raw: Mapping[str, Any]) -> Iterator[Method]:
    """The methods for which a draft with this config.json is a head."""
    words = _stated_kind(raw)
    heads = (method for method, kind in DRAFT_KINDS.items() if kind.written == f"{method}:")
    return (method for method in heads if method in words)


def _obstacles(
    raw: Mapping[str, Any], method: Method, head: str, target: ModelSource
) -> Iterator[str]:
    """Why a head with this config.json cannot read the target's states or write its tokens."""
    if not raw:
        yield "it has no config.json"
        return
    heads = list(methods_of(raw))
    if method not in heads:
        named = f" (it says {words})" if (words := _stated_kind(raw)) else ""
        name = f"name it `{heads[0]}:{head}`" if heads else f"if it is a model, name it `{head}`"
        yield f"its config.json is not that of a head for {method}{named}: {name}"
        return
    text, own = target.config.get_text_config(), layer_of(raw)
    width = raw.get("target_hidden_size") or own.get("hidden_size")
    if width not in (None, text.hidden_size):
        yield f"it reads states of width {width}, and the target's have {text.hidden_size}"
    if len(lists := _lists_of_layers(raw)) > 1:
        yield f"it names the target's layers twice, differently: {lists[0]} and {lists[1]}"
    layers, ids = text.num_hidden_layers, layer_ids(raw)
    made_for = raw.get("num_target_layers")
    if made_for not in (None, layers):
        yield f"it was made for {made_for} layers, and the target has {layers}"
    elif max(ids, default=0) > layers:
        yield f"it reads the target's layer {max(ids)}, and the target has {layers}"
    rows = own.get("vocab_size")
    if rows not in (None, text.vocab_size):
        yield f"its vocabulary has {rows} rows, and the target's {text.vocab_size}"


def _caveats(raw: Mapping[str, Any], method: Method, target: ModelSource) -> Iterator[str]:
    drafted, rows = raw.get("draft_vocab_size"), target.config.get_text_config().vocab_size
    if isinstance(drafted, int) and drafted < rows:
        yield f"its draft vocabulary covers {drafted:,} of the target's {rows:,} tokens"
    verifier = (raw.get("speculators_config") or {}).get("verifier") or {}
    trained_for = str(verifier.get("name_or_path") or "").rpartition("/")[2]
    if trained_for and trained_for.lower() != target.name.lower():
        yield f"it was trained for {trained_for}"
    positions = layer_of(raw).get("max_position_embeddings")
    longest = getattr(target.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(positions, int) and longest and positions < longest:
        yield f"it was made for {positions:,} positions: beyond these it may accept less"
    for key, engine in ENGINES.items():
        for flag in silent_flags(raw, key).keys() - raw.keys() if method == "eagle3" else ():
            yield (
                f"it does not say {flag}, which {engine.name} takes for true and speculators for "
                "false: write it into its config.json as it was trained"
            )


def layer_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json with the sizes of a head's own layer."""
    return raw.get("transformer_layer_config") or raw


def layer_ids(raw: Mapping[str, Any]) -> list[int]:
    """The target's layers whose inputs a head reads; empty if the engine's default applies."""
    return next(iter(_lists_of_layers(raw)), [])


def usual_layers(layers: int) -> list[int]:
    """The layers whose inputs engines take where a head's config.json names none."""
    return [2, layers // 2, layers - 3]


def _lists_of_layers(raw: Mapping[str, Any]) -> list[list[int]]:
    """The different lists of layers in a config.json, which engines read at different places. In
    `eagle_config` (SpecForge) and as `target_layer_ids` (the authors of block drafters) they count
    what leaves a layer, which enters the next one.
    """
    parts = [(raw, 0), *((raw.get(name) or {}, 1) for name in ("eagle_config", "dflash_config"))]
    different: list[list[int]] = []
    for part, later in parts:
        for name in _LayerIds.__struct_fields__:
            if ids := part.get(name):
                found = [i + (later or name == "target_layer_ids") for i in ids]
                different += [found] if found not in different else []
    return different

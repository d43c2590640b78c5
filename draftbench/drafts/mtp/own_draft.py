"""What `check` and `suggest` say of the draft that a target carries itself, and how many tokens
the options draft: as a recipe for this target does, else as most recipes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftbench.drafts.mtp.families import READ, OwnLayers, engines_for, own_layers_of
from draftbench.drafts.speculation import Speculation
from draftbench.engines.engine import USUAL_K, Engine
from draftbench.engines.every import ENGINES
from draftbench.engines.pair_rules import EngineAnswer
from draftbench.models.check_result import HeadSheet, OwnDraft
from draftbench.models.known_pairs import known_own_drafts

# The draft length of SGLang for a DSpark drafter without a recipe.
USUAL_BLOCK = 7
DSPARK_HINT = (
    "measure it on an engine: `--drafts spec:FILE.json --engine vllm`, the file holding "
    '{"method": "dspark", "num_speculative_tokens": "{k}"}'
)


def own_draft_of(config: Mapping[str, Any] | None, name: str = "") -> OwnDraft | None:
    """What a target with this config.json carries, and what engines are passed; None if nothing.

    Args:
        config: None if it cannot be read: then only what is known of this very name.
        name: the target's path or hub id; its recipe says how many tokens to draft.
    """
    _, known = known_own_drafts()
    hub_id = name.partition("@")[0].lower()
    recipe = next((row for row in known if row.target.lower() == hub_id), None)
    if config is not None:
        own = own_layers_of(config)
    elif recipe is not None:
        why = "that is known of its name; its configuration was not read"
        own = OwnLayers(recipe.method, why, engines_for(recipe.type, recipe.method))
    else:
        own = None
    if own is None:
        return None
    if recipe is not None and recipe.method != own.method:
        recipe = None
    k = recipe.k if recipe else _usual(own)
    options, unused = dict[str, str](), list[str]()
    for key, engine in ENGINES.items():
        option = _option(engine, own, k)
        # An engine whose source was not read may use it if it knows the method at all.
        if option is not None and (key in own.engines or key not in READ):
            options[engine.name] = option
        else:
            unused.append(engine.name)
    return OwnDraft(
        method=own.method,
        field=own.field,
        layers=own.layers,
        k=k,
        source=None if recipe is None else recipe.source,
        date=None if recipe is None else recipe.date,
        why=own.why,
        options=options,
        unused=tuple(unused),
    )


def sheet_of(target: str, own_draft: OwnDraft | None) -> HeadSheet:
    """Whether MTP layers can draft, by the target's configuration, and which engines use them."""
    if own_draft is None or own_draft.method != "mtp":
        hints = () if own_draft is None else (DSPARK_HINT,)
        return HeadSheet("mtp", "mtp", (no_mtp(target, own_draft),), hints, ())
    engines = [
        EngineAnswer(name, "accepts", own_draft.why, option)
        for name, option in own_draft.options.items()
    ]
    unused = "it does not use them in such a model"
    engines += [EngineAnswer(name, "refuses", unused, None) for name in own_draft.unused]
    return HeadSheet("mtp", "mtp", (), (), tuple(engines))


def no_mtp(target: str, own_draft: OwnDraft | None) -> str:
    """Why a target has no MTP layers, where it carries nothing or a drafter of another kind."""
    if own_draft is None:
        return f"`{target}` carries no layers that draft for it"
    return f"`{target}` carries a DSpark drafter ({own_draft.why}), not an MTP head"


def _usual(own: OwnLayers) -> int:
    """A draft length where no recipe is known."""
    if own.method == "dspark":
        return own.block or USUAL_BLOCK
    # vLLM refuses more tokens than layers, unless they are a multiple.
    layers = own.layers or 1
    return USUAL_K // layers * layers or USUAL_K


def _option(engine: Engine, own: OwnLayers, k: int) -> str | None:
    """What to pass to an engine so that it drafts k tokens by it; None if it knows no such way."""
    if own.method == "dspark":
        return engine.own_dspark and engine.own_dspark(k)
    return engine.option(Speculation("mtp", None, k)) if "mtp" in engine.methods else None

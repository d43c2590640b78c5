"""What `check` and `suggest` say of the layers with which a target drafts for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftbench.drafts.mtp.families import OwnLayers, own_layers_by_name, own_layers_of
from draftbench.drafts.speculation import Speculation
from draftbench.models.check_result import EngineAnswer, HeadSheet, OwnDraft
from draftbench.models.engine_rules import ENGINE_RULES


def own_draft_of(config: Mapping[str, Any]) -> OwnDraft | None:
    """The layers that a target with this config.json carries, and what engines are passed."""
    return _with_options(own_layers_of(config))


def own_draft_by_name(target: str) -> OwnDraft | None:
    """The same for models of this path or hub id."""
    return _with_options(own_layers_by_name(target))


def _with_options(own: OwnLayers | None) -> OwnDraft | None:
    if own is None:
        return None
    rows, how = ENGINE_RULES.items(), Speculation("mtp", None, 1)
    options = {rules.name: rules.option(how) for name, rules in rows if name in own.engines}
    unused = tuple(rules.name for name, rules in rows if name not in own.engines)
    return OwnDraft(own.field, own.layers, own.why, options, unused)


def sheet_of(target: str, own_draft: OwnDraft | None) -> HeadSheet:
    """Whether they can draft, by the target's configuration, and which engines use them."""
    if own_draft is None:
        missing = f"`{target}` carries no layers that draft for it"
        return HeadSheet("mtp", "mtp", (missing,), (), ())
    engines = [
        EngineAnswer(name, "accepts", own_draft.why, option)
        for name, option in own_draft.options.items()
    ]
    unused = "it does not use them in such a model"
    engines += [EngineAnswer(name, "refuses", unused, None) for name in own_draft.unused]
    return HeadSheet("mtp", "mtp", (), (), tuple(engines))

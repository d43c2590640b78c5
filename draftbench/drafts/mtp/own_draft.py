"""What `check` and `suggest` say of the layers with which a target drafts for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftbench.drafts.mtp.families import READ, own_layers_by_name, own_layers_of
from draftbench.drafts.speculation import Speculation
from draftbench.engines.every import ENGINES
from draftbench.engines.pair_rules import EngineAnswer
from draftbench.models.check_result import HeadSheet, OwnDraft


def own_draft_of(target: str | Mapping[str, Any]) -> OwnDraft | None:
    """The layers that a target with this config.json carries, or models of this path or hub id; and
    what engines are passed.
    """
    own = own_layers_by_name(target) if isinstance(target, str) else own_layers_of(target)
    if own is None:
        return None
    engines, how = ENGINES.items(), Speculation("mtp", None, 1)
    # An engine whose source was not read may use them if it knows the method at all.
    using = [*own.engines, *(key for key, e in engines if key not in READ and "mtp" in e.methods)]
    options = {engine.name: engine.option(how) for key, engine in engines if key in using}
    unused = tuple(engine.name for key, engine in engines if key not in using)
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

"""What an engine cannot do with a setting → a sentence for its user, or the error that ends it."""

from __future__ import annotations

from draftbench.errors import UsageError
from draftbench.export.schedule import in_words
from draftbench.export.setting import Setting

BITS = {"int8": 8, "int4": 4}


def unmapped(setting: Setting, engine: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """What to do about a draft at a level that the engine does not make by itself."""
    if setting.draft is None or setting.quant in known:
        return ()
    form = f"{BITS[setting.quant]}-bit" if setting.quant in BITS else setting.quant
    said = (
        f"the run measured this draft at {setting.quant}, quantized while loading, by kernels that "
        f"{engine} does not have: make a {form} checkpoint of it (llm-compressor, GPTQ or AWQ), "
        "name it with --draft and measure it; an unquantized draft is not the one recommended"
    )
    return (said,)


def other_mode(setting: Setting, engine: str, does: str) -> list[str]:
    """A warning where drafting in another mode than measured changes acceptance."""
    if not setting.sampled:
        return []
    return [
        f"{engine} drafts `{does}`, the run measured `{setting.mode}`: above temperature 0 "
        "acceptance will differ"
    ]


def fixed(setting: Setting, engine: str) -> list[str]:
    """What an engine without lengths by load leaves to its user."""
    if not setting.schedule:
        return []
    return [
        f"{engine} has no draft length by load, k stays {setting.k}; the run's answer is "
        f"{in_words(setting.schedule)}"
    ]


def untranslated(setting: Setting, engine: str) -> list[str]:
    """A warning of an engine that compares no vocabularies."""
    if not sizes_differ(setting):
        return []
    sizes = "{} and {}".format(*setting.vocabularies or ())
    return [
        f"the vocabularies have {sizes} entries: {engine} needs the same tokenizer and does not "
        "look; `draftbench check` says whether the ids agree"
    ]


def sizes_differ(setting: Setting) -> bool:
    """Whether target and draft are known to have vocabularies of two sizes."""
    return setting.vocabularies is not None and len(set(setting.vocabularies)) > 1


def too_old(engine: str, oldest: str, what: str) -> UsageError:
    """A version that lacks what the setting needs."""
    return UsageError(
        f"{engine} before {oldest} has no {what}", hint=f"use {engine} {oldest} or newer"
    )

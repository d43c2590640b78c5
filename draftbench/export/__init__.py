"""The configuration that makes an engine serve what a run recommends."""

from __future__ import annotations

import difflib
import re
import textwrap

from draftbench.errors import UsageError
from draftbench.export.engines import (
    Configuration,
    llamacpp,
    sglang,
    tensorrt_llm,
    transformers,
    vllm,
)
from draftbench.export.setting import Setting

_BY_NUMBER = {
    "vllm": vllm,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "transformers": transformers,
}
ENGINES = (*_BY_NUMBER, "llamacpp")
_CANNOT = {
    "tgi": "TGI cannot do this: it serves no draft model; its `--speculate K` looks up n-grams",
}
_RENAMING = ("before-rename", "after-rename")
_COMMENT = textwrap.TextWrapper(
    100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
)


def export(setting: Setting, engine: str, version: str | None = None) -> Configuration:
    """What `engine` in `version` (default: the newest known) accepts.

    Raises:
        UsageError: an engine or a version that cannot serve this, or that is not known.
    """
    if engine in _CANNOT:
        raise UsageError(_CANNOT[engine], hint=f"one of {', '.join(ENGINES)} can")
    engine = engine.replace(".", "")
    if engine not in ENGINES:
        near = difflib.get_close_matches(engine, ENGINES, 1)
        meant = f"did you mean `{near[0]}`? " if near else ""
        raise UsageError(
            f"cannot do this for the engine `{engine}`: no configuration of it is known",
            hint=f"{meant}the engines are {', '.join(ENGINES)}",
        )
    written = _written(setting, engine, version)
    unlike = (*setting.unlike, *written.unlike)
    # JSON, alone of the formats, has no comments.
    text = written.text if engine == "vllm" else _commented(written.text, unlike)
    notes = (*unlike, *written.notes, *setting.notes, *_names(setting))
    return Configuration(text, notes, unlike)


def _commented(text: str, remarks: tuple[str, ...]) -> str:
    """A configuration that itself says how it is not what was recommended."""
    return "\n".join([*map(_COMMENT.fill, remarks), text])


def _written(setting: Setting, engine: str, version: str | None) -> Configuration:
    if engine in _BY_NUMBER:
        return _BY_NUMBER[engine](setting, _number(version))
    if version not in (None, *_RENAMING):
        raise UsageError(
            f"llama.cpp's flags are known before and after their renaming, not for `{version}`",
            hint=f"give --engine-version {' or '.join(_RENAMING)}",
        )
    return llamacpp(setting, renamed=version != "before-rename")


def _number(version: str | None) -> tuple[int, int] | None:
    if version is None:
        return None
    found = re.match(r"v?(\d{1,9})\.(\d{1,9})(?![0-9])", version)
    if not found:
        raise UsageError(f"`{version}` is not a version", hint="for example 0.26 or 1.4.0rc1")
    return int(found[1]), int(found[2])


def _names(setting: Setting) -> list[str]:
    """What must be done about names that mean something on the measuring machine only."""
    notes = []
    if setting.target_quant != "none":
        notes.append(f"the target was measured at {setting.target_quant}: serve it so")
    for name in filter(None, (setting.target, setting.draft)):
        if name.startswith(("~", "./", "../")):
            notes.append(f"`{name}` is a path of the measuring machine: write it out")
    pins = (
        f"the run measured `{spec}`: pin this revision in the engine" for spec in setting.pinned
    )
    return [*notes, *pins]

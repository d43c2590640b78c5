"""Which models carry a draft of their own, MTP layers or a DSpark drafter, and who uses it.

config.json tells: a field of DSpark; else a count of layers, or its model type. The file is read
without transformers, which would fill in defaults. Model types come from vLLM 0.33
(`hf_config_override`), SGLang 0.5.23 (`_config_draft_model`) and transformers 5.24, whose
`generate` refuses all others and models with recurrent state; fields of DSpark
from SGLang's `checkpoint_bundles_dspark_draft`. llama.cpp and TensorRT-LLM were not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, Literal, NamedTuple

CHECKED = date(2026, 11, 29)  # the day on which those sources were last read
# Fields of config.json that count the layers, at the top or one level down.
FIELDS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules")
# What fields of a DSpark drafter begin with, and the tokens it drafts at once; 0 switches it off.
DSPARK_FIELDS, BLOCK = "dspark_", "dspark_block_size"
_ALL, _SERVERS = "vllm sglang transformers", "vllm sglang"
Own = Literal["mtp", "dspark"]  # the kinds of drafts that targets carry


class OwnLayers(NamedTuple):
    """What a target carries to draft for itself."""

    method: Own  # its kind
    why: str  # what tells that it carries them
    engines: tuple[str, ...]  # of those read, that use them
    field: str | None = None  # of config.json, which counts them or is DSpark's; None: none does
    layers: int | None = None  # how many; None: not counted
    block: int | None = None  # tokens that DSpark drafts at once; None: not said


class Family(NamedTuple):
    """A family of models that carry a draft of their own."""

    types: str  # model types, separated by spaces
    engines: str  # the engines that use MTP layers, separated by spaces; empty: it never has them
    dspark: str = ""  # the engines that use a DSpark drafter in it, separated by spaces
    counted: bool = False  # whether a model whose file does not count the layers has none


FAMILIES = (
    Family("deepseek_v3", _ALL),
    Family("deepseek_v32", _SERVERS),
    Family("deepseek_v4", _SERVERS, dspark=_SERVERS, counted=True),
    Family("deepseek_v41", "", dspark=_SERVERS, counted=True),
    Family("glm4_moe", _ALL),
    Family("glm4_moe_lite glm_moe_dsa glm5_next glm_ocr", _SERVERS),
    Family("qwen3_next", _SERVERS),
    Family("qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text", _SERVERS),
    Family("qwen4_exp qwen4_exp_text", _SERVERS),
    Family("qwen3_moe", "sglang", counted=True),
    Family("mimo mimo_v2 mimo_v2_flash", _SERVERS),
    Family("ernie4_5_moe", _SERVERS),
    Family("longcat_flash", _SERVERS),
    Family("step3p5 step3p7", _ALL),
    Family("step5 step5_vl", "vllm"),
    Family("hy_v3 hy_v4", _SERVERS),
    Family("exaone_moe", _SERVERS),
    Family("exaone4_5 minimax_m3_vl kimi_k3 pangu_ultra_moe", "vllm"),
    Family("dots3_note", _SERVERS),
    Family("intern_s2_preview interns2_mobius", _SERVERS),
    Family("bailing_hybrid", _SERVERS, counted=True),
    Family("nemotron_h nemotron_h_puzzle", _SERVERS, counted=True),
    Family("inkling_mm_model inkling_model inkling_text", _ALL, counted=True),
    Family("bailing_moe bailing_moe_v2 gigachat3_5", "sglang", counted=True),
    Family("mellum", "transformers", counted=True),
)
# The engines whose sources were read.
READ = {engine for family in FAMILIES for engine in family.engines.split()}


def own_layers_of(config: Mapping[str, Any]) -> OwnLayers | None:
    """Those of a target with this config.json; None if it carries none."""
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    types = [part.get("model_type") for part in parts]
    family = next((f for f in FAMILIES for kind in f.types.split() if kind in types), None)
    counts = {
        field: part[field]
        for field in FIELDS
        for part in parts
        if field in part and not isinstance(part[field], bool)
    }
    positive = ((name, n) for name, n in counts.items() if isinstance(n, int) and n > 0)
    field, layers = next(positive, (None, None))
    if dspark := _dspark_of(parts):
        # Where a checkpoint has such stages, the count is of them: no MTP layers can be told.
        field = BLOCK if BLOCK in dspark else next(iter(dspark))
        why = f"{field} is {dspark[field]} in its configuration"
        block = dspark.get(BLOCK)
        block = block if isinstance(block, int) else None
        return OwnLayers("dspark", why, _using(family, "dspark"), field, layers, block)
    if family is not None and not family.engines:
        return None
    using = _using(family, "mtp")
    if field is not None:
        return OwnLayers("mtp", f"{field} is {layers} in its configuration", using, field, layers)
    if counts or family is None or family.counted:
        return None
    kind = next(kind for kind in types if kind in family.types.split())
    why = f"models of type {kind} do; its configuration does not count them"
    return OwnLayers("mtp", why, using)


def engines_for(model_type: str, method: Own) -> tuple[str, ...]:
    """The engines, of those read, that use an own draft of this kind in models of this type."""
    return _using(next((f for f in FAMILIES if model_type in f.types.split()), None), method)


def _using(family: Family | None, method: Own) -> tuple[str, ...]:
    if family is None:
        return ()
    return tuple((family.engines if method == "mtp" else family.dspark).split())


def _dspark_of(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of a DSpark drafter that say something, as SGLang reads them: what is null, false
    or empty does not, and a mapping is of a drafter's own file.
    """
    said = {
        field: value
        for part in parts
        for field, value in part.items()
        if field.startswith(DSPARK_FIELDS) and not isinstance(value, dict)
    }
    if said.get(BLOCK, 1) == 0:
        return {}
    return {field: value for field, value in said.items() if value}

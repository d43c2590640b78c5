"""Which models carry layers that draft for them, and which engines use them.

A count of layers in config.json tells, else its model type, and without the file the model's name.
The file is read without transformers, which would fill in defaults. Model types come from vLLM 0.32
(`hf_config_override`), SGLang 0.5.23 (`_config_draft_model`) and transformers 5.23, whose
`generate` refuses all others and models with recurrent state. Those of llama.cpp and TensorRT-LLM
were not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

# Fields of config.json that count the layers, at the top or one level down.
FIELDS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_ALL, _SERVERS = "vllm sglang transformers", "vllm sglang"


class OwnLayers(NamedTuple):
    """The layers that a target carries to draft for itself."""

    why: str  # what tells that it carries them
    engines: tuple[str, ...]  # of those read, that use them
    field: str | None = None  # of config.json, which counts them; None: it does not
    layers: int | None = None  # how many; None: not counted


class Family(NamedTuple):
    """A family of models that carry layers which draft for them."""

    types: str  # model types, separated by spaces
    engines: str  # the engines that use the layers, separated by spaces
    names: str = "(?!)"  # a pattern of model names in lower case
    counted: bool = False  # whether a model whose file does not count the layers has none


FAMILIES = (
    Family("deepseek_v3", _ALL, r"deepseek-(?:v3(?!\.2)|r1)(?!.*(?:distill|draft|qwen))"),
    Family("deepseek_v32", _SERVERS, r"deepseek-v3\.2"),
    Family("deepseek_v4", _SERVERS, r"deepseek-v4(?!\.)"),
    Family("glm4_moe", _ALL, r"glm-4\.[5-7](?!v|.*(?:flash|draft))"),
    Family("glm4_moe_lite", _SERVERS, r"glm-4\.7-flash"),
    Family("glm_moe_dsa", _SERVERS, r"glm-5(?!.*flash)"),
    Family("glm5_next", _SERVERS, r"glm-5\.\d-flash"),
    Family("glm_ocr", _SERVERS, r"glm-ocr"),
    Family("qwen3_next", _SERVERS, r"qwen3-next"),
    Family("qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text", _SERVERS, r"qwen3\.[568]-\d"),
    Family("qwen4_exp qwen4_exp_text", _SERVERS, r"qwen3\.8-flash-next"),
    Family("mimo mimo_v2 mimo_v2_flash", _SERVERS, r"mimo-(?:7b|v2)"),
    Family("ernie4_5_moe", _SERVERS, r"ernie-4\.5-\d+b-a"),
    Family("longcat_flash", _SERVERS, r"longcat-flash"),
    Family("step3p5 step3p7", _ALL, r"step-3\.[57]"),
    Family("hy_v3 hy_v4", _SERVERS, r"^hy[34]\b"),
    Family("exaone_moe", _SERVERS, r"k-exaone"),
    Family("exaone4_5", "vllm", r"exaone-4\.5"),
    Family("minimax_m3_vl", "vllm", r"minimax-m3"),
    Family("kimi_k3", "vllm", r"kimi-k3"),
    Family("pangu_ultra_moe", "vllm", r"pangu-ultra-moe"),
    Family("dots3_note", _SERVERS),
    Family("intern_s2_preview interns2_mobius", _SERVERS),
    Family("bailing_hybrid", _SERVERS, r"(?:ling|ring)-(?:2\.[56]|3)", counted=True),
    Family("nemotron_h nemotron_h_puzzle", _SERVERS, r"nemotron-3-super", counted=True),
    Family("inkling_mm_model inkling_model inkling_text", _ALL, r"^inkling", counted=True),
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
    for field, layers in counts.items():
        if isinstance(layers, int) and layers > 0:
            why = f"{field} is {layers} in its configuration"
            return OwnLayers(why, _using(family), field, layers)
    if counts or family is None or family.counted:
        return None
    kind = next(kind for kind in types if kind in family.types.split())
    why = f"models of type {kind} do; its configuration does not count them"
    return OwnLayers(why, _using(family))


def own_layers_by_name(target: str) -> OwnLayers | None:
    """Those that models of this path or hub id carry; None if none is known to."""
    name = target.rstrip("/").rpartition("/")[2].lower()
    family = next((f for f in FAMILIES if re.search(f.names, name)), None)
    if family is None:
        return None
    return OwnLayers("models of its name do; its configuration was not read", _using(family))


def _using(family: Family | None) -> tuple[str, ...]:
    return tuple(family.engines.split()) if family else ()

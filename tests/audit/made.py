"""Models for faults that the embedded ones cannot have, made of these."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file
from scenes import EMBEDDED

BEGINNING = "def "
DATED = (
    "{% for message in messages %}{{ message.content }}{% endfor %}\n"
    "# {{ strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' }}\n"
    "{% if add_generation_prompt %}" + BEGINNING + "{% endif %}"
)


def of_small_queries(folder, dtype=torch.float32):
    """The embedded draft with queries that float16 hardly holds, and large keys."""

    def scaled(name, tensor):
        power = {"q_proj": -19, "k_proj": 17}.get(name.split(".")[-2], 0)
        return (tensor.float() * 2.0**power).to(dtype)

    return _written(folder, "draft", scaled)


def with_a_table(folder):
    """The embedded block drafter with an embedding of its own, which is nearly the target's."""
    table = load_file(EMBEDDED / "target" / "model.safetensors")["model.embed_tokens.weight"]
    noise = torch.randn(table.shape, generator=torch.Generator().manual_seed(1))
    own = table.float() + 0.5 * table.float().std() * noise
    return _written(folder, "block", lambda name, tensor: tensor, {"embed_tokens.weight": own})


def with_a_pad(folder):
    """The embedded draft with another vocabulary, whose token 5 pads."""
    shutil.copytree(EMBEDDED / "foreign", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": 5}))
    return folder


def with_a_template(folder):
    """The embedded target with a chat template that writes the date, and begins the answer."""
    shutil.copytree(EMBEDDED / "target", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": DATED}))
    return folder


def _written(folder, name, change, more=None):
    shutil.copytree(EMBEDDED / name, folder)
    tensors = load_file(folder / "model.safetensors")
    changed = {name: change(name, tensor) for name, tensor in tensors.items()} | (more or {})
    save_file(changed, folder / "model.safetensors")
    return folder

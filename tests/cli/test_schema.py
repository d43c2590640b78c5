"""The schemas: every field is described, and what a command prints is as its schema says."""

import json
import re
from pathlib import Path

import pytest
from scenes import EMBEDDED, REFERENCE, ROOT

from draftbench.cli import schema as schemas
from draftbench.cli.commands import COMMANDS

RUN = REFERENCE / "qwen2.5-coder"
PRINTED = (
    ("traffic", "suite:completion"),
    ("traffic",),
    ("check", "--target", EMBEDDED / "target", "--drafts", EMBEDDED / "draft"),
    ("suggest", "--target", EMBEDDED / "target"),
    ("sweep", "--dry-run", "--target", EMBEDDED / "target", "--drafts", EMBEDDED / "draft",
     "--traffic", "suite:completion"),
    ("recommend", RUN),
    ("explain",),
    ("explain", "drift"),
    ("acceptance", RUN),
    ("compare", REFERENCE / "tinyllama-gsm8k", REFERENCE / "tinyllama-stories"),
    ("compare", RUN, REFERENCE / "tinyllama-gsm8k", REFERENCE / "tinyllama-stories"),
    ("gate", "--baseline", ROOT / "results/baselines/qwen2.5-coder.json", RUN),
    ("estimate", "--alpha", "0.7", "--draft-cost", "0.1"),
    ("runs", "list", REFERENCE),
)  # fmt: skip


def name(words):
    return " ".join(Path(word).name for word in words)


TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
TYPES |= {"null": type(None), "number": (int, float)}


def faults(value, about, parts, place="$"):
    """Where a value is not as its schema says, by the words that these schemas use."""
    if "$ref" in about:
        about = parts[about["$ref"].rpartition("/")[2]]
    if "anyOf" in about:
        each = [list(faults(value, one, parts, place)) for one in about["anyOf"]]
        yield from min(each, key=len)
        return
    if "enum" in about and value not in about["enum"]:
        yield f"{place}: {value!r} is none of {about['enum']}"
    kind = TYPES.get(about.get("type"), object)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
        yield f"{place}: {value!r:.40} is no {about['type']}"
        return
    if isinstance(value, dict):
        known, others = about.get("properties", {}), about.get("additionalProperties", {})
        for name in {*about.get("required", ())} - {*value}:
            yield f"{place}: no {name}"
        for name, part in value.items():
            # An open object has no properties; a record has no others.
            if known and name not in known:
                yield f"{place}.{name} is not described"
            further = others if isinstance(others, dict) else {}
            yield from faults(part, known.get(name, further), parts, f"{place}.{name}")
    if isinstance(value, list) and isinstance(items := about.get("items", {}), dict):
        for at, part in enumerate(value):
            yield from faults(part, items, parts, f"{place}[{at}]")


@pytest.fixture
def schema(command):
    """The schema of something, as the command prints it."""

    def of(what):
        outcome = command("schema", what)
        assert (outcome.code, outcome.err) == (0, "")
        return json.loads(outcome.out)

    return of


@pytest.mark.parametrize("what", schemas.ANSWERS)
def test_every_field_is_described(schema, what):
    parts = schema(what)["$defs"]
    records = {name: part for name, part in parts.items() if "properties" in part}
    assert records
    bare = [
        f"{name}.{field}"
        for name, part in records.items()
        for field, about in part["properties"].items()
        if "description" not in about
    ]
    assert bare == []


def test_every_meaning_describes_a_field(schema, monkeypatch):
    used = set()

    class Seen(dict):
        def get(self, key, default=None):
            if key in self:
                used.add(key)
            return super().get(key, default)

    monkeypatch.setattr(schemas, "MEANINGS", Seen(schemas.MEANINGS))
    for what in schemas.ANSWERS:
        schemas.schema_of(what)
    assert used == set(schemas.MEANINGS)


def test_a_command_that_prints_json_has_a_schema():
    assert {*COMMANDS} - {*schemas.ANSWERS} == {"demo", "report", "export", "schema"}


@pytest.mark.parametrize("words", PRINTED, ids=name)
def test_what_a_command_prints_is_as_its_schema_says(command, schema, words):
    about = schema(words[0])
    printed = json.loads(command(*words, "--format", "json").out)
    assert list(faults(printed, about, about["$defs"])) == []


@pytest.mark.parametrize("folder", sorted(REFERENCE.iterdir()), ids=lambda folder: folder.name)
def test_the_files_of_a_kept_run_are_as_their_schema_says(schema, folder):
    about = schema("run")
    written = [json.loads((folder / "run.json").read_text())]
    for file in sorted((folder / "observations").iterdir()):
        for line in map(json.loads, file.read_text().splitlines()[:3]):
            # What was written at once stands in one line, as a list.
            written += line[:3] if isinstance(line, list) else [line]
    assert len(written) > 5
    for record in written:
        assert list(faults(record, about, about["$defs"])) == [], str(record)[:80]


def test_a_baseline_is_as_its_schema_says(schema):
    about = schema("baseline")
    kept = json.loads((ROOT / "results/baselines/qwen2.5-coder.json").read_text())
    assert list(faults(kept, about, about["$defs"])) == []
    kept["requests"][0]["id"] = 1
    kept["unknown"] = 1
    found = list(faults(kept, about, about["$defs"]))
    assert len(found) == 2
    assert re.search(r"unknown is not described", found[1] + found[0])


def test_what_has_no_schema_is_an_error(command):
    outcome = command("schema", "recomend")
    assert (outcome.code, outcome.out) == (2, "")
    assert "hint: did you mean `recommend`? there is one of traffic, " in outcome.err

"""What a sweep finds out before it loads any weights, and what its manifest keeps of it."""

import json
import re
from types import SimpleNamespace

import pytest
from scenes import query
from sweep.engine import FakeServer

from draftbench.cli import main
from draftbench.cli.traffic import traffic_lines
from draftbench.errors import RunFolderError, TrafficError, UsageError
from draftbench.measure.prompts import LostAnswerError, TargetText
from draftbench.models.source import ModelSource
from draftbench.run_folder.manifest import Effort
from draftbench.sweep.options import ServingOptions, SweepOptions
from draftbench.sweep.preparation import specs_of

COMMIT = "c" * 40
MARKER = "zebra-quartz-4711 lives at 12 Elm Street"


@pytest.fixture
def logged(tmp_path):
    """A log with these answers as the traffic."""

    def logged(*answers):
        rows = [{"prompt": f"def f{i}():\n", "response": each} for i, each in enumerate(answers)]
        path = tmp_path / "prod.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"traffic": query(path), "responses": "log"}

    return logged


@pytest.fixture
def tokenless(monkeypatch):
    """A tokenizer that makes nothing of some answers, and a template that loses a part of some."""
    answer = TargetText.answer

    def some(self, request):
        if request.response == "lost":
            raise LostAnswerError("reasoning that is not in the log")
        return [] if request.response == "nothing" else answer(self, request)

    monkeypatch.setattr(TargetText, "answer", some)


def lines_of(prepared):
    return [" ".join(line.split()) for line in traffic_lines(prepared.traffic)]


@pytest.mark.parametrize("drops", [True, False])
def test_tools_that_the_template_does_not_write_are_named(small, tmp_path, monkeypatch, drops):
    path = tmp_path / "prod.jsonl"
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    rows = [{"prompt": "def f():\n", "tools": [tool]}, {"prompt": "def g():\n"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(TargetText, "drops_tools", lambda self, request: drops)
    said = " ".join(lines_of(small.prepared("ngram", traffic=query(path))))
    assert ("tools (the target's chat template does not write them)" in said) is drops


def test_a_logged_answer_without_tokens_or_with_a_lost_part_is_left_out_and_counted(
    small, logged, tokenless
):
    """Known fault: a response of no tokens made a run that could not be read again."""
    prepared = small.prepared("ngram", **logged("    return 1\n", "nothing", "lost"))
    assert [len(prompt.logged) > 0 for prompt in prepared.prompts] == [True]
    assert prepared.manifest.traffic.requests == 1
    assert prepared.manifest.traffic.dropped == {
        "a logged answer without any token": 1,
        "its logged answer had reasoning that is not in the log": 1,
    }
    with pytest.raises(TrafficError, match="a logged answer without any token: 1"):
        small.prepared("ngram", **logged("nothing"))


def test_a_logged_answer_is_cut_at_the_limit(small, logged):
    traffic = logged("    return sum(value for value in values if value)\n")
    (prompt,) = small.prepared("ngram", **traffic, max_new_tokens=3).prompts
    assert (len(prompt.logged), prompt.request.response) == (3, None)


@pytest.mark.parametrize(
    ("stated", "option", "limit"),
    [(24, 64, 24), (24, 16, 16), (None, 64, 64), (24, None, 24), (None, None, 256)],
)
def test_a_response_is_limited_by_its_request_and_the_option(
    small, tmp_path, stated, option, limit
):
    path = tmp_path / "prod.jsonl"
    row = {"prompt": "import os\n"} | ({"max_tokens": stated} if stated else {})
    path.write_text(json.dumps(row) + "\n")
    prepared = small.prepared("ngram", traffic=query(path), max_new_tokens=option)
    assert [prompt.limit for prompt in prepared.prompts] == [limit]


def test_the_longest_row_is_known_before_anything_loads(small, logged):
    """Three tokens after the longer prompt, and two passes of five tokens."""
    prepared = small.prepared("ngram", **logged("x" * 40, "y"), max_new_tokens=3, ks=(1, 4))
    longer = max(len(prompt.tokens) for prompt in prepared.prompts)
    assert all(prompt.limit == 3 for prompt in prepared.prompts)
    assert prepared.build.longest == longer + 3 + 2 * 5


@pytest.mark.parametrize(
    ("temperature", "said"),
    [
        (
            None,
            "temperature 0, greedy (1); temperature 1, the default of servers (2); no limit on "
            "output tokens (4); no top_k (3); top_p 1 (3) (--temperature sets another)",
        ),
        (0.5, "no limit on output tokens (4); no top_k (3); top_p 1 (3)"),
    ],
)
def test_what_is_assumed_since_the_log_leaves_it_out_is_said_once(
    small, tmp_path, temperature, said
):
    asked = {"model": "m", "prompt": "def f():\n"}
    rows = [asked, asked, {"prompt": "import os\n"}, {"prompt": "x = 1\n", "temperature": 1}]
    path = tmp_path / "prod.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepared = small.prepared("ngram", traffic=query(path), temperature=temperature)
    (line,) = [line for line in lines_of(prepared) if "assumed" in line]
    assert line == f"assumed where rows do not say it: {said}"


def test_prompts_that_a_tool_renders_are_read_as_they_are_unless_asked_otherwise(small, tmp_path):
    path = tmp_path / "custom.jsonl"
    path.write_text('{"prompt": "def f():\\n", "output_tokens": 3}\n')
    prepared = small.prepared("ngram", traffic=query(path))
    assert [prompt.limit for prompt in prepared.prompts] == [3]
    assert any("(--as-chat" in line for line in lines_of(prepared))
    with pytest.raises(TrafficError, match="is a chat, and `target` has no chat template"):
        small.prepared("ngram", traffic=query(path, as_chat=True))


@pytest.fixture
def strict(monkeypatch):
    """A target whose template refuses a system message."""
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{{ messages[0].content }}"
    )
    tokenizer = ModelSource.tokenizer.func

    def strict(self):
        loaded = tokenizer(self)
        loaded.chat_template = template
        return loaded

    monkeypatch.setattr(ModelSource, "tokenizer", property(strict))


def chats(tmp_path, *roles):
    rows = [{"messages": [{"role": r, "content": f"import a{n}"}]} for n, r in enumerate(roles)]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_requests_that_the_template_refuses_are_skipped_and_counted(small, tmp_path, strict):
    path = chats(tmp_path, "user", "system", "system")
    prepared = small.prepared("ngram", traffic=query(path, skip_bad=True))
    assert len(prepared.prompts) == 1
    assert prepared.manifest.traffic.dropped == {
        "the chat template refuses it (System role not supported)": 2
    }
    with pytest.raises(TrafficError) as caught:
        small.prepared("ngram", traffic=query(path))
    assert caught.value.message == (
        "2 of 3 requests cannot be turned into prompts: the chat template of `target` refuses "
        "chats.jsonl:2 (System role not supported)"
    )
    assert "--skip-bad" in caught.value.hint
    with pytest.raises(TrafficError, match="System role not supported"):
        small.prepared("ngram", traffic=query(chats(tmp_path, "system"), skip_bad=True))


@pytest.mark.parametrize(("asked", "end"), [({}, None), ({"show_prompt": True}, "import a0")])
def test_the_first_prompt_is_shown_where_that_is_asked_for_and_of_a_suite(
    small, tmp_path, strict, asked, end
):
    prepared = small.prepared("ngram", traffic=query(chats(tmp_path, "user")), **asked)
    first = prepared.traffic.first
    assert (first.roles, first.end) == (("user",), end)
    assert prepared.manifest.traffic.chats == 1
    assert small.prepared("ngram", traffic=query("suite:completion", sample=1)).traffic.first.end


def test_structured_output_is_left_out_of_the_built_in_decoder_and_kept_for_an_engine(
    small, tmp_path
):
    path = tmp_path / "a.jsonl"
    row = {"model": "m", "prompt": "def f():\n"}
    held = [{"response_format": {"type": "json_object"}}, {}, {"guided_choice": ["a"]}]
    path.write_text("".join(json.dumps(row | each) + "\n" for each in held))
    here = small.prepared("ngram", traffic=query(path))
    assert [prompt.request.constraint for prompt in here.prompts] == [None]
    where = "which only an engine applies"
    assert here.manifest.traffic.dropped == {
        f"structured output (json_object), {where}": 1,
        f"structured output (choice), {where}": 1,
    }
    on = small.prepared("ngram", traffic=query(path), serving=ServingOptions(engine="sglang"))
    kept = [prompt.request.constraint for prompt in on.prompts]
    assert kept == [{"json_object": True}, None]
    assert on.manifest.traffic.constrained == 1
    assert on.manifest.traffic.chats == 0
    assert on.manifest.traffic.dropped == {
        "structured output (choice), which this engine does not apply": 1
    }
    assert any("α holds only for the other 50%" in line for line in lines_of(on))


@pytest.mark.parametrize(
    ("on", "hint"),
    [
        (None, "give --tokenizer a folder .* or use plain prompts"),
        ([FakeServer(k=4, method="ngram")], "leave --target and --tokenizer out: then the server"),
    ],
    ids=["started", "running"],
)
def test_a_chat_without_a_template_on_an_engine_says_whose_template_would_do(
    served, tmp_path, on, hint
):
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}) + "\n")
    with pytest.raises(TrafficError, match="has no chat template") as caught:
        served("ngram", on=on, traffic=query(path))
    assert re.search(hint, caught.value.hint)


def test_the_manifest_keeps_the_effort_and_the_drafts_as_they_were_given(small, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(small.models / "draft")
    asked = {"measure": "best", "measure_requests": 7, "controls": True}
    manifest = small.prepared(link, "ngram", **asked).manifest
    assert manifest.specs == {"draft": str(link), "ngram": "ngram"}
    assert manifest.effort == Effort(**asked, sample=2)


def test_every_draft_is_kept_as_drafts_called_it_those_of_an_engine_too(served, small, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spec.json").write_text('{"method": "suffix"}')
    drafts = [
        "mtp",
        "eagle3:org/head",
        f"spec:{tmp_path}/a/spec.json",
        f"spec:{tmp_path}/b/spec.json",
    ]
    specs = small.prepared(*drafts, serving=ServingOptions(engine="vllm")).manifest.specs
    assert list(specs) == ["mtp", "eagle3:head", "spec:spec.json", drafts[-1]]
    assert list(specs.values()) == drafts


@pytest.mark.parametrize(
    ("name", "others"),
    [
        *((name, [name]) for name in ("mtp", "suffix", "ngram", "self", "eagle3:x")),
        ("ngram+mtp", ["ngram", "ngram+./ngram+mtp"]),  # a stack
    ],
)
def test_a_folder_called_as_a_way_of_drafting_has_its_path_for_a_name(
    tmp_path, monkeypatch, name, others
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    for drafts in ((f"./{name}", *others), (*others, f"./{name}")):
        options = SweepOptions("t", drafts, query("suite:completion"))
        assert specs_of(options) == {each: each for each in drafts}


def test_the_built_in_decoder_refuses_what_only_an_engine_drafts_by(small):
    with pytest.raises(UsageError, match="`spec:x`: only a serving engine can draft") as caught:
        small.prepared("ngram", "spec:x")
    assert caught.value.hint == "name it with --engine"


@pytest.fixture
def hub(monkeypatch):
    """The library with one data set; `when` is called as soon as the hub is asked."""
    hub = SimpleNamespace(
        when=lambda: None,
        hash=COMMIT,
        info=SimpleNamespace(splits={"train": None}),
        config=SimpleNamespace(data_files=None),
        download_and_prepare=lambda: None,
        as_dataset=lambda split: [{"prompt": "def f():\n"}, {"prompt": "import os\n"}],
    )

    def ask(path, config, *, revision):
        hub.when()
        return hub

    monkeypatch.setattr("datasets.load_dataset_builder", ask)
    return hub


def test_traffic_of_the_hub_is_announced_before_it_is_fetched_and_its_commit_kept(small, hub):
    before = []
    hub.when = lambda: before.extend(small.notes)
    facts = small.prepared("ngram", traffic=query("hf:org/name@v1")).manifest.traffic
    assert before[-2:] == [
        "reading traffic from hf:org/name@v1",
        "it is fetched from the dataset hub unless it is cached",
    ]
    assert (facts.revision, facts.requests) == (COMMIT, 2)


def test_traffic_of_no_hub_is_not_announced_and_has_no_commit(small):
    assert small.prepared("ngram").manifest.traffic.revision is None
    assert not [note for note in small.notes if "fetched" in note]


def test_check_announces_what_it_fetches(small, hub, capsys):
    before = []
    hub.when = lambda: before.append(capsys.readouterr().err)
    models = ["--target", str(small.models / "target"), "--drafts", str(small.models / "draft")]
    assert main(["check", *models, "--traffic", "hf:org/name", "--format", "json"]) == 0
    assert "note: hf:org/name is fetched from the dataset hub unless it is cached" in before[0]
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [MARKER]},
        {"prompt": "x", "temperature": MARKER},
        {"messages": [{"role": MARKER, "content": MARKER}]},
        {"messages": [{"role": "user", "content": MARKER}]},
        {MARKER: "x"},
    ],
)
def test_no_error_about_a_row_quotes_it(tmp_path, small, capfd, row):
    path = tmp_path / "prod.jsonl"
    path.write_text(json.dumps(row) + "\n")
    models = ["--target", str(small.models / "target"), "--drafts", "ngram"]
    assert main(["sweep", *models, "--traffic", str(path), "--out", str(tmp_path / "run")]) == 2
    printed = capfd.readouterr()
    assert "error: " in printed.err
    assert "zebra" not in printed.out + printed.err


@pytest.mark.parametrize(("given", "recorded"), [(None, 2), (1, 1)])
def test_threads_of_the_environment_are_said_and_recorded(small, monkeypatch, given, recorded):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    prepared = small.prepared("ngram", threads=given)
    assert prepared.manifest.environment.threads == recorded
    assert any("OMP_NUM_THREADS" in note for note in small.notes) is (given is None)


def test_a_run_is_not_resumed_with_other_threads_of_the_environment(small, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    small.sweep("ngram", measure="replay", threads=None)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with pytest.raises(RunFolderError, match=r"another environment \(threads: 1 → 2\)"):
        small.sweep("ngram", measure="replay", threads=None)
    small.sweep("ngram", measure="replay", threads=1)

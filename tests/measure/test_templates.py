"""A chat template is a stranger's program: one that never ends or wants gigabytes costs seconds and
is an error that does not quote the chat.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from scenes import EMBEDDED

from draftbench.cli import main
from draftbench.errors import ModelError, TrafficError
from draftbench.measure import templates
from draftbench.measure.prompts import TargetText
from draftbench.models.source import ModelSource
from draftbench.records import Request

MARKER = "zebra-quartz-4711"
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "nested loops": LOOP,
    "a power of whole numbers, which is native code": "{{ 9 ** (9 ** 9) }}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}"
    "{% endif %}{% endmacro %}{{ m(60) }}",
}
HUGE = {
    "a constant, multiplied when it is compiled": "{{ ('a' * 10**10) | length }}",
    "the chat, multiplied": "{{ (messages[0].content * 10**10) | length }}",
    "doubled over and over": "{% set n = namespace(x='12345678') %}"
    "{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "written piece by piece": "{% for a in range(99999) %}{% for b in range(10) %}"
    "{{ messages[0].content * 9999 }}{% endfor %}{% endfor %}",
}


def chat(content: str = MARKER) -> Request:
    return Request(id="r", source="log.jsonl:3", messages=({"role": "user", "content": content},))


@pytest.fixture
def text():
    """Makes the text of the embedded target with another template."""

    def with_template(template: str) -> TargetText:
        target_text = TargetText(ModelSource(str(EMBEDDED / "target")))
        target_text.tokenizer.chat_template = template
        return target_text

    return with_template


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_never_ends_is_ended(text, monkeypatch, name):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(ModelError) as caught:
        text(ENDLESS[name]).prompt(chat(), 64, 512)
    assert caught.value.message == (
        "the chat template of `target` did not end within 0.5 s on log.jsonl:3"
    )
    assert "chat_template.jinja" in caught.value.hint
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("name", HUGE)
def test_a_template_that_wants_gigabytes_gets_them_nowhere(text, monkeypatch, name):
    monkeypatch.setattr(templates, "MEMORY_BYTES", 1 << 28)
    target_text = text(HUGE[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match=r"needs more than .* of memory on log\.jsonl:3"):
        target_text.prompt(chat(), 64, 512)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_after_a_chat_that_was_given_up_the_next_is_rendered(text, monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    target_text = text("{% if messages[0].content == 'a' %}" + LOOP + "{% endif %}b")
    with pytest.raises(ModelError, match="did not end"):
        target_text.prompt(chat("a"), 64, 512)
    prompt = target_text.prompt(chat("c"), 64, 512)
    assert target_text.tokenizer.decode(prompt.tokens) == "b"


def test_time_between_two_chats_is_not_counted(text, monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    target_text = text("{{ messages[0].content }}")
    target_text.prompt(chat(), 64, 512)
    time.sleep(0.8)
    assert target_text.prompt(chat(), 64, 512) is not None


def test_a_template_that_ends_its_process_ends_no_other(text):
    target_text = text("{{ messages }}")
    target_text.tokenizer.apply_chat_template = lambda *_, **__: os.kill(
        os.getpid(), signal.SIGKILL
    )
    with pytest.raises(ModelError, match=r"ended its process on log\.jsonl:3"):
        target_text.prompt(chat(), 64, 512)


def test_the_process_ends_with_the_targets_text(text):
    others = set(multiprocessing.active_children())
    target_text = text("{{ messages[0].content }}")
    target_text.prompt(chat(), 64, 512)
    (child,) = set(multiprocessing.active_children()) - others
    del target_text
    assert not child.is_alive()


def test_a_chat_nested_too_deeply_to_be_sent_is_refused_in_words(text):
    content: list = []
    for _ in range(100_000):
        content = [content]
    with pytest.raises(Exception, match=r"refuses log\.jsonl:3 \(RecursionError\)"):
        text("b").prompt(chat(content), 64, 512)


def renderer(apply: Callable[[str], Any]) -> templates.Renderer:
    """Of a tokenizer that makes `apply` of a chat's text."""
    stranger = SimpleNamespace(apply_chat_template=lambda chat, **_: apply(chat[0]["content"]))
    return templates.Renderer(stranger, "target")


def disarm(_: str) -> list[int]:
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(12)
    return [1]


def leave_a_process_with_the_pipe(_: str) -> None:
    if os.fork():
        os._exit(0)
    time.sleep(12)
    os._exit(0)


def disarm_and_close_the_pipe(_: str) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.closerange(3, 1000)
    time.sleep(12)


@pytest.mark.parametrize(
    ("apply", "what"),
    [
        (disarm, "did not end within 0.5 s"),
        (leave_a_process_with_the_pipe, "ended its process"),
        (disarm_and_close_the_pipe, "did not end within 0.5 s"),
    ],
)
def test_no_child_is_waited_for_without_end(monkeypatch, apply, what):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    monkeypatch.setattr(templates, "SLACK", 0.5)
    began = time.monotonic()
    with pytest.raises(ModelError, match=rf"{what} on log\.jsonl:3"):
        renderer(apply).tokens(chat())
    assert time.monotonic() - began < 8


def test_after_an_interrupt_no_chat_gets_the_tokens_of_the_one_before():
    parent = os.getpid()

    def apply(text: str) -> list[int]:
        if text == "second":
            return [2]
        os.kill(parent, signal.SIGINT)
        time.sleep(0.2)
        return [1]

    rendering = renderer(apply)
    with pytest.raises(KeyboardInterrupt):
        rendering.tokens(chat("first"))
    assert rendering.tokens(chat("second")) == [2]


@pytest.mark.parametrize("answer", [[[1, 2]], ["7"], "77", [1.5], [2**70], {"input_ids": [1]}, 7])
def test_an_answer_that_is_no_list_of_whole_numbers_is_refused_in_words(answer):
    others = set(multiprocessing.active_children())
    rendering = renderer(lambda text: [5] if text == "good" else answer)
    assert rendering.tokens(chat("good")) == [5]
    (child,) = set(multiprocessing.active_children()) - others
    with pytest.raises(TrafficError, match=r"refuses log\.jsonl:3 \(\w+Error\)"):
        rendering.tokens(chat("bad"))
    assert child.is_alive()


def test_truth_values_and_numbers_of_numpy_are_whole_numbers():
    assert renderer(lambda _: [True, numpy.int64(3)]).tokens(chat()) == [1, 3]


def test_the_process_writes_no_core_and_nothing_to_stdout_or_stderr(capfd):
    def apply(text: str) -> list[int]:
        for stream in (1, 2):
            os.write(stream, text.encode())
        return [resource.getrlimit(resource.RLIMIT_CORE)[0]]

    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        assert renderer(apply).tokens(chat()) == [0]
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["sweep", "check"])
def test_a_command_ends_in_one_error_and_leaves_nothing(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    target, log = tmp_path / "mine", tmp_path / "log.jsonl"
    shutil.copytree(EMBEDDED / "target", target)
    (target / "chat_template.jinja").write_text(LOOP)
    log.write_text(json.dumps({"messages": [{"role": "user", "content": MARKER}]}) + "\n")
    words = ["--target", str(target), "--drafts", str(EMBEDDED / "draft"), "--traffic", str(log)]
    out = ["--out", str(tmp_path / "run")] if command == "sweep" else []
    assert main([command, *words, *out]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert (
        "error: the chat template of `mine` did not end within 0.5 s on log.jsonl:1\n" in output.err
    )
    assert "\nhint: " in output.err
    assert MARKER not in output.err
    assert not (tmp_path / "run").exists()


class Endless:
    """A tokenizer whose pattern never ends on some texts."""

    def __call__(self, text, **_):
        while "endless" in text:
            pass
        return {"input_ids": [len(text)]}


@pytest.mark.parametrize("field", ["prompt", "response"])
def test_a_plain_text_that_a_tokenizer_does_not_end_on_is_refused_in_words(monkeypatch, field):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    renderer = templates.Renderer(Endless(), "target")
    read = renderer.tokens if field == "prompt" else renderer.answer
    assert read(Request(id="a", source="log.jsonl:1", **{field: "four"})) == [4]
    with pytest.raises(ModelError, match=r"the tokenizer of `target` did not end within 0\.5 s"):
        read(Request(id="b", source="log.jsonl:2", **{field: "endless"}))
    assert read(Request(id="c", source="log.jsonl:3", **{field: "again"})) == [5]

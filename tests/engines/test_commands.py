import json
import sys

import pytest

from draftbench.engines.commands import ServerStart, launch
from draftbench.errors import EngineError, UsageError
from draftbench.models.drafting import doubtful_fields, speculation_of
from draftbench.records import NGRAMS, DraftingMode

VLLM = (
    "--model T --no-enable-prefix-caching --logprobs-mode processed_logprobs "
    "--enable-per-request-metrics --enable-prompt-tokens-details --disable-uvicorn-access-log"
)
LLAMA = "--metrics --no-cache-prompt --cache-ram 0"
SGLANG = "--model-path T --disable-radix-cache --enable-metrics"
WHERE = ["--host", "127.0.0.1", "--port", "8123"]


@pytest.fixture
def started():
    """The words and the whole launch of an engine with a drafter and other settings."""

    def launched(engine, draft=None, k=4, *, lookup=NGRAMS, quant="none", mode="greedy", **changes):
        drafts = draft and speculation_of(
            draft, k, lookup=lookup, quant=quant, mode=DraftingMode(mode)
        )
        start = ServerStart(engine, changes.pop("target", "T"), drafts, **changes)
        return launch(start, "127.0.0.1", 8123)

    return launched


def speculative(launched):
    words = list(launched.words)
    return json.loads(words[words.index("--speculative-config") + 1])


def after(launched, usual):
    """The words beside the usual ones and the address."""
    words = list(launched.words)
    assert words[-4:] == WHERE
    assert words[: len(usual)] == usual
    return words[len(usual) : -4]


def test_vllm_without_speculation_asks_for_what_is_read_from_its_answers(started):
    plain = started("vllm", context_length=512, concurrency=256)
    usual = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *VLLM.split()]
    assert after(plain, usual) == ["--max-model-len", "512"]
    assert plain.environment == {"VLLM_NO_USAGE_STATS": "1"}
    assert plain.stop == ()


@pytest.mark.parametrize(
    ("draft", "changes", "fields"),
    [
        ("org/d", {}, {"method": "draft_model", "model": "org/d"}),
        ("org/d@v1", {}, {"method": "draft_model", "model": "org/d", "revision": "v1"}),
        (
            "org/d@refs/pr/1",
            {},
            {"method": "draft_model", "model": "org/d", "revision": "refs/pr/1"},
        ),
        (
            "org/d@feature/x",
            {},
            {"method": "draft_model", "model": "org/d", "revision": "feature/x"},
        ),
        (
            "org/d",
            {"quant": "fp8", "mode": "sampled-temperature-only"},
            {"method": "draft_model", "model": "org/d", "quantization": "fp8_per_channel"}
            | {"draft_sample_method": "probabilistic"},
        ),
        ("ngram", {}, {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
        ("mtp", {}, {"method": "mtp"}),
        ("suffix", {}, {"method": "suffix"}),
        ("eagle3:org/e", {}, {"method": "eagle3", "model": "org/e"}),
        ("dflash:./f", {}, {"method": "dflash", "model": "./f"}),
    ],
)
def test_vllm_is_told_the_drafter_and_its_length_in_one_object(started, draft, changes, fields):
    launched = started("vllm", draft, 3, **changes)
    assert speculative(launched) == fields | {"num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("version", "asked"),
    [
        (None, True),
        ("0.32.0", True),
        ("0.29.0rc1+cu130", True),
        ("1.0", True),
        ("a build of ours", True),
        ("0.28.1+cpu", False),
        ("v0.26.0.dev7", False),
    ],
)
def test_vllm_is_asked_for_every_round_unless_it_told_that_it_is_older_than_0_29(
    started, version, asked
):
    words = started("vllm", "ngram", version=version).words
    assert (words[-6:-4] == ("--per-request-spec-decode-metrics", "detailed")) is asked
    assert ("--per-request-spec-decode-metrics" in words) is asked


@pytest.mark.parametrize(
    ("draft", "changes", "flags"),
    [
        (None, {"concurrency": 4, "context_length": 100}, "-np 4 -c 400 {usual}"),
        (None, {"threads": 3}, "-np 1 -c 0 {usual} --threads 3"),
        (
            "d.gguf",
            {},
            "-np 1 -c 0 {usual} -md d.gguf --spec-type draft-simple --spec-draft-n-max 4 "
            "--spec-draft-n-min 0 --spec-draft-p-min 0",
        ),
        (
            "ngram",
            {},
            "-np 1 -c 0 {usual} --spec-type ngram-simple --spec-ngram-simple-size-n 2 "
            "--spec-ngram-simple-size-m 4",
        ),
        (
            "eagle3:e.gguf",
            {},
            "-np 1 -c 0 {usual} -md e.gguf --spec-type draft-eagle3 --spec-draft-n-max 4 "
            "--spec-draft-n-min 0 --spec-draft-p-min 0",
        ),
        (
            "ngram+d.gguf",
            {},
            "-np 1 -c 0 {usual} -md d.gguf --spec-type ngram-simple,draft-simple "
            "--spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 4 --spec-draft-n-max 4 "
            "--spec-draft-n-min 0 --spec-draft-p-min 0",
        ),
        (
            "mtp",
            {},
            "-np 1 -c 0 {usual} --spec-type draft-mtp --spec-draft-n-max 4 "
            "--spec-draft-n-min 0 --spec-draft-p-min 0",
        ),
    ],
)
def test_llama_server_shares_its_context_out_and_drafts_k_tokens_always(
    started, draft, changes, flags
):
    launched = started("llama.cpp", draft, target="t.gguf", **changes)
    usual = ["llama-server", "-m", "t.gguf"]
    assert after(launched, usual) == flags.format(usual=LLAMA).split()


@pytest.mark.parametrize(
    ("draft", "flags"),
    [
        (None, ""),
        (
            "org/d@v1",
            "--speculative-algorithm STANDALONE --speculative-draft-model-path org/d "
            "--speculative-num-steps 4 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 5 --speculative-draft-model-quantization unquant "
            "--speculative-draft-model-revision v1",
        ),
        (
            "ngram",
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 5 "
            "--speculative-ngram-max-bfs-breadth 1",
        ),
        (
            "eagle3:e",
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path e "
            "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5",
        ),
        (
            "mtp",
            "--speculative-algorithm NEXTN --speculative-num-steps 4 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 5",
        ),
        (
            "dflash:f",
            "--speculative-algorithm DFLASH --speculative-draft-model-path f "
            "--speculative-dflash-block-size 5",
        ),
    ],
)
def test_sglang_drafts_a_chain(started, draft, flags):
    usual = [sys.executable, "-m", "sglang.launch_server", *SGLANG.split()]
    assert after(started("sglang", draft), usual) == flags.split()


@pytest.mark.parametrize(
    ("engine", "raw", "flags"),
    [
        ("llama.cpp", {"--spec-type": "ngram-mod", "--spec-ngram-mod-n-max": "{k}"}, None),
        ("sglang", {"--speculative-algorithm": "UNO", "--speculative-num-steps": "{k}"}, None),
        ("sglang", {"--disable-overlap-schedule": True}, ["--disable-overlap-schedule"]),
    ],
)
def test_a_file_of_flags_is_passed_through_with_the_draft_length(
    started, tmp_path, engine, raw, flags
):
    file = tmp_path / "raw.json"
    file.write_text(json.dumps(raw))
    flags = flags or [word if word != "{k}" else "7" for pair in raw.items() for word in pair]
    words = list(started(engine, f"spec:{file}", 7).words)
    assert words[-4 - len(flags) : -4] == flags


@pytest.mark.parametrize("length", [{}, {"num_speculative_tokens": "{k}"}])
def test_a_file_of_vllms_is_passed_through_with_the_draft_length(started, tmp_path, length):
    file = tmp_path / "raw.json"
    file.write_text(json.dumps({"method": "medusa", "model": "m", **length}))
    fields = {"method": "medusa", "model": "m", "num_speculative_tokens": 7}
    assert speculative(started("vllm", f"spec:{file}", 7)) == fields


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1]", "is no JSON object"),
        ("{", "is no JSON object"),
        ('{"a":' * 5000, "is no JSON object"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_holds_no_object_is_refused(tmp_path, text, problem):
    if text is not None:
        (tmp_path / "raw.json").write_text(text)
    with pytest.raises(UsageError, match=problem):
        speculation_of(f"spec:{tmp_path}/raw.json", 4)


def test_a_file_of_another_draft_length_is_refused(started, tmp_path):
    file = tmp_path / "raw.json"
    file.write_text('{"method": "medusa", "num_speculative_tokens": 5}')
    with pytest.raises(UsageError, match="drafts 5 tokens, not 7"):
        started("vllm", f"spec:{file}", 7)


@pytest.mark.parametrize(
    ("engine", "mode", "hint"),
    [
        ("vllm", "sampled", "--mode greedy or sampled-temperature-only"),
        ("llama.cpp", "sampled-temperature-only", "--mode greedy"),
        ("sglang", "sampled", "--mode greedy"),
    ],
)
def test_a_mode_that_cannot_be_measured_on_an_engine_is_refused(started, engine, mode, hint):
    """llama.cpp draws from the ten best tokens, SGLang takes the best."""
    with pytest.raises(UsageError, match=f"{engine} is not measured in --mode {mode}") as caught:
        started(engine, "d", mode=mode)
    assert caught.value.hint == f"give {hint}"


@pytest.mark.parametrize(
    ("engine", "key", "doubts"),
    [
        (
            "vllm",
            "num_speculative_token",
            ["did you mean `num_speculative_tokens`? see what your version calls it"],
        ),
        ("vllm", "widgets", ["see what your version calls it"]),
        ("vllm", "draft_sample_method", []),
        ("sglang", "num_speculative_token", []),
    ],
)
def test_a_field_that_vllm_is_not_known_to_have_is_doubted(tmp_path, engine, key, doubts):
    """Not refused: another version may have it."""
    file = tmp_path / "raw.json"
    file.write_text(json.dumps({"method": "mtp", key: 2}))
    found = doubtful_fields(engine, speculation_of(f"spec:{file}", 2))
    assert [sentence.partition(": ")[2] for sentence in found] == doubts


@pytest.mark.parametrize(
    ("engine", "key", "problem", "meant"),
    [
        ("llama.cpp", "spec-type", "no flag of llama.cpp", "--spec-type"),
        ("sglang", "speculative-algorithm", "no flag of sglang", "--speculative-algorithm"),
        ("vllm", "--draft-model", "no field of vllm", "draft_model"),
    ],
)
def test_the_keys_of_a_file_are_written_as_its_engine_writes_them(
    started, tmp_path, engine, key, problem, meant
):
    file = tmp_path / "raw.json"
    file.write_text(json.dumps({key: "x"}))
    with pytest.raises(UsageError, match=rf"`{key}` in spec:FILE\.json is {problem}") as caught:
        started(engine, f"spec:{file}")
    assert f"write `{meant}`" in caught.value.hint


def test_a_head_without_its_weights_is_refused():
    with pytest.raises(UsageError) as caught:
        speculation_of("eagle3:", 4)
    assert caught.value.hint == "write eagle3:MODEL"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_without_stacks_is_not_started_with_one(started, engine):
    with pytest.raises(EngineError, match="by one method, not by prompt lookup and then"):
        started(engine, "ngram+org/d")


@pytest.mark.parametrize("draft", ["ngram+", "ngram+ngram", "ngram+self", "ngram+ngram+d"])
def test_prompt_lookup_goes_before_drafts_with_weights_alone(draft):
    with pytest.raises(
        UsageError, match="an EAGLE-3 head or the target's own layers; it was not tried"
    ):
        speculation_of(draft, 4)


@pytest.mark.parametrize(("engine", "draft"), [("llama.cpp", "suffix"), ("sglang", "suffix")])
def test_a_drafter_that_an_engine_is_not_known_to_have_is_refused(started, engine, draft):
    with pytest.raises(EngineError, match=f"{engine} is not known to draft by"):
        started(engine, draft)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("serve", ["serve", "ARGS"]),
        ("/opt/my\\ vllm/python -m vllm", ["/opt/my vllm/python", "-m", "vllm", "ARGS"]),
        ("run {args} last", ["run", "ARGS", "last"]),
        ("serve -p {port} {model} {args}", ["serve", "-p", "8123", "T", "ARGS"]),
        ("{python} serve.py", [sys.executable, "serve.py", "ARGS"]),
        (
            "docker --format '{{.ID}}' ${home} i",
            ["docker", "--format", "{{.ID}}", "${home}", "i", "ARGS"],
        ),
    ],
)
def test_a_users_command_takes_the_flags_where_it_asks_for_them_or_last(started, command, words):
    flags = list(started("llama.cpp", "d.gguf").words[1:])
    at = words.index("ARGS")
    expected = [*words[:at], *flags, *words[at + 1 :]]
    assert list(started("llama.cpp", "d.gguf", command=command).words) == expected


def test_within_a_line_for_another_shell_the_flags_are_quoted_for_it(started):
    launched = started("vllm", "org/d", command="ssh gpu 'cd /models; vllm serve {args}'")
    program, host, line = launched.words
    assert (program, host) == ("ssh", "gpu")
    assert line.startswith("cd /models; vllm serve --model T ")
    fields = '\'{"method":"draft_model","model":"org/d","num_speculative_tokens":4}\''
    assert f"--speculative-config {fields} " in line


def test_the_stop_command_knows_the_port_that_was_taken(started):
    launched = started(
        "vllm", command="docker run --name d{port} i", stop_command="docker stop d{port}"
    )
    assert launched.stop == ("docker", "stop", "d8123")


@pytest.mark.parametrize(
    ("command", "stop", "may_survive"),
    [
        ("docker run i", None, True),
        ("/usr/bin/ssh gpu serve", None, True),
        ("docker run i", "docker stop i", False),
        ("python serve.py", None, False),
    ],
)
def test_a_server_in_a_container_may_survive_without_a_stop_command(
    started, command, stop, may_survive
):
    assert started("vllm", command=command, stop_command=stop).may_survive is may_survive


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        (
            {"command": "serve {prot}"},
            "unknown placeholder {prot} in --engine-command",
            "did you mean `port`?",
        ),
        (
            {"stop_command": "stop {args}"},
            "unknown placeholder {args} in --engine-stop-command",
            "known are",
        ),
        ({"command": "serve 'a"}, "cannot read --engine-command: no closing quotation", "quote it"),
        ({"args": "--x 'a"}, "cannot read --engine-args: no closing quotation", "quote it"),
        ({"args": "--port 1"}, "--engine-args cannot hold --port", "leave it out"),
        (
            {"args": "--speculative_config={}"},
            "--engine-args cannot hold --speculative_config:",
            "leave",
        ),
        (
            {"args": "--speculative-config.method ngram"},
            "--engine-args cannot hold --speculative-config.method:",
            "leave",
        ),
    ],
)
def test_commands_and_arguments_that_cannot_be_used_are_refused(started, changes, message, hint):
    with pytest.raises(UsageError) as caught:
        started("vllm", **changes)
    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)


def test_every_name_of_a_draft_is_draftbenchs(started):
    with pytest.raises(UsageError, match="cannot hold --spec-draft-model"):
        started("llama.cpp", args="--spec-draft-model other.gguf")


def test_what_the_user_adds_comes_last_and_so_wins(started):
    launched = started("llama.cpp", args="--host 0.0.0.0 -ngl 99 --name 'a b'")
    assert launched.words[-6:] == ("--host", "0.0.0.0", "-ngl", "99", "--name", "a b")


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm"])
def test_threads_are_set_for_every_engine_and_vllm_does_not_bind_them(started, engine):
    assert started(engine, threads=2).environment == {
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


@pytest.mark.parametrize(
    ("engine", "flag", "most"),
    [("vllm", "--max-num-seqs", 256), ("sglang", "--max-running-requests", 48)],
)
def test_an_engine_is_told_of_more_requests_than_it_takes_by_itself(started, engine, flag, most):
    assert flag not in started(engine, concurrency=most).words
    words = started(engine, concurrency=most + 1).words
    assert words[words.index(flag) + 1] == str(most + 1)


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("vllm", "--max-num-seqs"), ("llama.cpp", "-np"), ("sglang", "--max-running-requests")],
)
def test_an_engine_answers_as_many_requests_at_once_as_were_asked_for(started, engine, flag):
    words = started(engine, concurrency=4, max_concurrency=4).words
    assert words[words.index(flag) + 1] == "4"

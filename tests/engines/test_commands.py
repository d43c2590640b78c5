"""The command line that starts an engine, written out."""

import json
import sys

import pytest

from draftbench.drafts.speculation import speculation_of
from draftbench.engines.engine import ServerStart
from draftbench.engines.start import launch
from draftbench.errors import EngineError, UsageError
from draftbench.records import NGRAMS, DraftingMode, StopRule

PYTHON = f"{sys.executable} -m"
USUAL = {
    "vllm": f"{PYTHON} vllm.entrypoints.openai.api_server --model T --no-enable-prefix-caching "
    "--logprobs-mode processed_logprobs --enable-per-request-metrics "
    "--enable-prompt-tokens-details --disable-uvicorn-access-log",
    "llama.cpp": "llama-server -m T",
    "sglang": f"{PYTHON} sglang.launch_server --model-path T --disable-radix-cache "
    "--enable-metrics",
}
NO_CACHE = "--metrics --no-cache-prompt --cache-ram 0"
SURE = "--spec-draft-n-max 4 --spec-draft-n-min 0 --spec-draft-p-min 0"
CHAIN = "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"


@pytest.fixture
def started():
    """The whole launch of an engine with a drafter and other settings."""

    def launched(engine, draft=None, k=4, *, lookup=NGRAMS, quant="none", mode="greedy", **changes):
        drafting = {"quant": quant, "mode": DraftingMode(mode), "stop": changes.pop("stop", None)}
        drafts = draft and speculation_of(draft, k, lookup=lookup, **drafting)
        start = ServerStart(engine, changes.pop("target", "T"), drafts, **changes)
        return launch(start, "127.0.0.1", 8123)

    return launched


def after(launched, usual):
    """The words beside the usual ones and the address."""
    words, usual = list(launched.words), usual.split()
    assert words[-4:] == ["--host", "127.0.0.1", "--port", "8123"]
    assert words[: len(usual)] == usual
    return words[len(usual) : -4]


@pytest.mark.parametrize(
    ("draft", "changes", "fields"),
    [
        ("org/d", {}, {"method": "draft_model", "model": "org/d"}),
        *(
            (f"org/d@{rev}", {}, {"method": "draft_model", "model": "org/d", "revision": rev})
            for rev in ("v1", "refs/pr/1", "feature/x")
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
        ("suffix-alone", {}, {"method": "suffix", "suffix_decoding_max_cached_requests": 0}),
        ("eagle3:org/e", {}, {"method": "eagle3", "model": "org/e"}),
        ("dflash:./f", {}, {"method": "dflash", "model": "./f"}),
        ("dspark:./f", {}, {"method": "dspark", "model": "./f"}),
    ],
)
def test_vllm_is_told_the_drafter_and_its_length_in_one_object(started, draft, changes, fields):
    flag, told, *metrics = after(started("vllm", draft, 3, **changes), USUAL["vllm"])
    assert flag == "--speculative-config"
    assert json.loads(told) == fields | {"num_speculative_tokens": 3}
    assert metrics == ["--per-request-spec-decode-metrics", "detailed"]


@pytest.mark.parametrize(
    ("version", "asked"),
    [
        *((newer, True) for newer in ("0.32.0", "0.29.0rc1+cu130", "1.0", "a build of ours")),
        *((older, False) for older in ("0.28.1+cpu", "v0.26.0.dev7")),
    ],
)
def test_vllm_is_asked_for_every_round_unless_it_told_that_it_is_older_than_0_29(
    started, version, asked
):
    words = started("vllm", "ngram", version=version).words
    assert ("--per-request-spec-decode-metrics" in words) is asked


@pytest.mark.parametrize(
    ("engine", "draft", "changes", "flags"),
    [
        ("vllm", None, {"context_length": 512, "concurrency": 256}, "--max-model-len 512"),
        ("llama.cpp", None, {"concurrency": 4, "context_length": 100}, f"-np 4 -c 400 {NO_CACHE}"),
        ("llama.cpp", None, {"threads": 3}, f"-np 1 -c 0 {NO_CACHE} --threads 3"),
        *(
            ("llama.cpp", draft, {}, f"-np 1 -c 0 {NO_CACHE} {flags}")
            for draft, flags in (
                ("d.gguf", f"-md d.gguf --spec-type draft-simple {SURE}"),
                (
                    "ngram",
                    "--spec-type ngram-simple --spec-ngram-simple-size-n 2 "
                    "--spec-ngram-simple-size-m 4",
                ),
                ("eagle3:e.gguf", f"-md e.gguf --spec-type draft-eagle3 {SURE}"),
                (
                    "ngram+d.gguf",
                    "-md d.gguf --spec-type ngram-simple,draft-simple "
                    f"--spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 4 {SURE}",
                ),
                ("mtp", f"--spec-type draft-mtp {SURE}"),
                ("dspark:b.gguf", f"-md b.gguf --spec-type draft-dspark {SURE}"),
            )
        ),
        # Known fault: at -np 4 two thirds of what is accepted one at a time were rejected.
        *(
            (
                "llama.cpp",
                f"{kind}:b.gguf",
                {"concurrency": 4},
                f"-np 4 -c 0 {NO_CACHE} -md b.gguf --spec-type draft-{kind} {SURE} "
                "--no-spec-draft-backend-sampling",
            )
            for kind in ("dflash", "dspark", "eagle3")
        ),
        ("sglang", None, {}, ""),
        (
            "sglang",
            "org/d@v1",
            {},
            "--speculative-algorithm STANDALONE --speculative-draft-model-path org/d "
            f"{CHAIN} --speculative-draft-model-quantization unquant "
            "--speculative-draft-model-revision v1",
        ),
        (
            "sglang",
            "ngram",
            {},
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 5 "
            "--speculative-ngram-max-bfs-breadth 1",
        ),
        (
            "sglang",
            "eagle3:e",
            {},
            f"--speculative-algorithm EAGLE3 --speculative-draft-model-path e {CHAIN}",
        ),
        ("sglang", "mtp", {}, f"--speculative-algorithm NEXTN {CHAIN}"),
        (
            "sglang",
            "dflash:f",
            {},
            "--speculative-algorithm DFLASH --speculative-draft-model-path f "
            "--speculative-dflash-block-size 5",
        ),
        (
            "sglang",
            "dspark:f",
            {},
            "--speculative-algorithm DSPARK --speculative-draft-model-path f "
            "--speculative-dspark-block-size 4",
        ),
    ],
)
def test_an_engine_is_started_with_these_words(started, engine, draft, changes, flags):
    """llama-server shares its context out, and drafts k tokens however sure; SGLang a chain."""
    assert after(started(engine, draft, **changes), USUAL[engine]) == flags.split()


@pytest.mark.parametrize("draft", ["d.gguf", "ngram+d.gguf", "eagle3:e.gguf", "mtp"])
@pytest.mark.parametrize(("threshold", "said"), [(0.95, "0.95"), (0.5, "0.5")])
def test_llama_server_is_told_how_sure_the_draft_must_be(started, draft, threshold, said):
    stop = StopRule(kind="before", threshold=threshold)
    (usual, asked) = (list(started("llama.cpp", draft, stop=s).words) for s in (None, stop))
    assert usual[usual.index("--spec-draft-p-min") + 1] == "0"
    usual[usual.index("--spec-draft-p-min") + 1] = said
    assert asked == usual


@pytest.mark.parametrize(
    ("engine", "draft", "kind", "hint"),
    [
        ("llama.cpp", "d.gguf", "after", "transformers does; or stop by another rule"),
        ("vllm", "d", "before", "llama.cpp does; or"),
        ("sglang", "eagle3:e", "before", "llama.cpp does; or"),
        ("vllm", "d", "product", "stop by another rule, or draft k tokens in every round"),
        # It has no confidence, or another one.
        ("llama.cpp", "ngram", "before", "stop by another rule"),
    ],
)
def test_a_rule_that_an_engine_does_not_follow_is_refused(started, engine, draft, kind, hint):
    rule = StopRule(kind=kind, threshold=0.4)
    with pytest.raises(EngineError, match="does not stop such a draft by this rule: stop") as no:
        started(engine, draft, stop=rule)
    assert "under 0.4 sure" in no.value.message
    assert no.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("engine", "raw", "flags"),
    [
        (
            "llama.cpp",
            {"--spec-type": "ngram-mod", "--spec-ngram-mod-n-max": "{k}"},
            "--spec-type ngram-mod --spec-ngram-mod-n-max 7",
        ),
        (
            "sglang",
            {"--disable-overlap-schedule": True, "--speculative-num-steps": "{k}"},
            "--disable-overlap-schedule --speculative-num-steps 7",
        ),
        (
            "llama.cpp",
            {"--spec-draft-n-max": "{k}", "--off": False, "--none": None, "--zero": 0, "--x": "y"},
            "--cache-ram 0 --spec-draft-n-max 7 --zero 0 --x y --host",
        ),
        (
            "vllm",
            {"method": "medusa", "a": {"n": "{k}", "b": ["{k}", None, False]}},
            '--speculative-config {"num_speculative_tokens":7,"method":"medusa","a":'
            '{"n":7,"b":[7,null,false]}}',
        ),
        (
            "vllm",
            {"method": "medusa"},
            '--speculative-config {"num_speculative_tokens":7,"method":"medusa"}',
        ),
        (
            "vllm",
            {"method": "medusa", "num_speculative_tokens": "{k}"},
            '--speculative-config {"num_speculative_tokens":7,"method":"medusa"}',
        ),
    ],
)
def test_what_a_file_holds_is_passed_through_with_the_draft_length(
    started, tmp_path, engine, raw, flags
):
    file = tmp_path / "raw.json"
    file.write_text(json.dumps(raw))
    assert f" {flags} " in " ".join(started(engine, f"spec:{file}", 7).words)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1]", "is no JSON object"),
        ("{", "is no JSON object"),
        ('{"a":' * 5000, "is no JSON object"),
        (None, "cannot read"),
        ('{"method": "medusa", "num_speculative_tokens": 5}', "drafts 5 tokens, not 7"),
        ('{"method": "medusa", "num_speculative_tokens": "7"}', 'drafts "7" tokens, not 7'),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(started, tmp_path, text, problem):
    if text is not None:
        (tmp_path / "raw.json").write_text(text)
    with pytest.raises(UsageError, match=problem):
        started("vllm", f"spec:{tmp_path}/raw.json", 7)


@pytest.mark.parametrize("engine", ["llama.cpp", "sglang"])
@pytest.mark.parametrize("value", [[1, 2], {"n": 1}])
def test_a_file_that_gives_a_flag_several_values_is_refused(started, tmp_path, engine, value):
    (tmp_path / "raw.json").write_text(json.dumps({"--list": value}))
    with pytest.raises(UsageError, match="the value of `--list` is"):
        started(engine, f"spec:{tmp_path}/raw.json", 7)


@pytest.mark.parametrize(
    ("engine", "draft", "mode", "message"),
    [
        ("vllm", "d", "sampled", "in --mode sampled"),
        # It draws from the ten best tokens.
        ("llama.cpp", "d", "sampled-temperature-only", "in --mode sampled-temperature-only"),
        ("sglang", "d", "sampled", "in --mode sampled"),
        *((e, "ngram+d", "greedy", "not by prompt lookup and then") for e in ("vllm", "sglang")),
        *((e, "suffix", "greedy", f"{e} is not known to") for e in ("llama.cpp", "sglang")),
    ],
)
def test_how_an_engine_cannot_draft_is_refused(started, engine, draft, mode, message):
    with pytest.raises((UsageError, EngineError), match=message):
        started(engine, draft, mode=mode)


@pytest.mark.parametrize(
    ("draft", "problem"),
    [
        ("eagle3:", "names no model"),
        *((f"{kind}:x", f"`{kind}` takes no model") for kind in ("mtp", "suffix", "ngram")),
        ("ngram+mtp:x", "`mtp` takes no model"),
        *(
            (f"ngram+{behind}", "it was not tried before any other")
            for behind in ("", "ngram", "self", "ngram+d")
        ),
    ],
)
def test_a_draft_that_cannot_be_is_refused(draft, problem):
    with pytest.raises(UsageError, match=problem):
        speculation_of(draft, 4)


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
    stopped = started("vllm", command="docker run i", stop_command="docker stop d{port}")
    assert stopped.stop == ("docker", "stop", "d8123")


@pytest.mark.parametrize(
    ("engine", "changes", "message", "hint"),
    [
        (
            "vllm",
            {"command": "serve {prot}"},
            "unknown placeholder {prot} in --engine-command",
            "did you mean `port`?",
        ),
        (
            "vllm",
            {"stop_command": "stop {args}"},
            "unknown placeholder {args} in --engine-stop-command",
            "known are",
        ),
        ("vllm", {"command": "serve 'a"}, "cannot read --engine-command: no closing", "quote it"),
        *(
            (engine, {"args": args}, f"--engine-args cannot hold {args.split()[0]}", "leave it out")
            for engine, args in (
                ("vllm", "--port 1"),
                ("vllm", "--speculative_config {}"),
                ("vllm", "--speculative-config.method ngram"),
                ("llama.cpp", "--spec-draft-model other.gguf"),
                # Known fault: these could change how a run drafted, unseen.
                ("llama.cpp", "--spec-draft-p-min 0.5"),
                ("llama.cpp", "--spec-draft-n-min 2"),
            )
        ),
    ],
)
def test_commands_and_arguments_that_cannot_be_used_are_refused(
    started, engine, changes, message, hint
):
    with pytest.raises(UsageError) as caught:
        started(engine, **changes)
    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)


def test_what_the_user_adds_comes_last_and_so_wins(started):
    launched = started("llama.cpp", args="--host 0.0.0.0 -ngl 99 --name 'a b'")
    assert launched.words[-6:] == ("--host", "0.0.0.0", "-ngl", "99", "--name", "a b")


def test_threads_are_set_for_every_engine_and_vllm_does_not_bind_them(started):
    ours, threads = {"VLLM_NO_USAGE_STATS": "1"}, {"OMP_NUM_THREADS": "2"}
    assert started("vllm").environment == ours
    assert started("llama.cpp", threads=2).environment == threads
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    assert started("vllm", threads=2).environment == ours | threads | bound


@pytest.mark.parametrize(
    ("engine", "flag", "most"),
    [
        ("vllm", "--max-num-seqs", 256),
        ("sglang", "--max-running-requests", 48),
        ("llama.cpp", "-np", None),
    ],
)
def test_an_engine_is_told_how_many_requests_it_answers_at_once_where_it_must(
    started, engine, flag, most
):
    """Where it would take fewer, or was asked to take no more."""
    words = started(engine, concurrency=4, max_concurrency=4).words
    assert words[words.index(flag) + 1] == "4"
    if most is not None:
        assert flag not in started(engine, concurrency=most).words
        words = started(engine, concurrency=most + 1).words
        assert words[words.index(flag) + 1] == str(most + 1)

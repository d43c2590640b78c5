#!/usr/bin/env bash
# What only a GPU can show, in ten minutes and without internet:
#
#   DRAFTBENCH_VLLM_PYTHON=/opt/vllm/bin/python scripts/on_a_card.sh OUT
#   scripts/on_a_card.sh --list     # what each minute buys; nothing is run
#
# It writes table.md with the figures of this one run beside what is wanted of them, the run folders
# and a log of every step to OUT, and says what it could not do. Every step has its own time limit;
# what matters most comes first, so that what is cut off is what matters least. SECONDS_IN_ALL says
# how long it may take, PYTHON which interpreter has draftbench's packages, TMPDIR where 20 GB of
# models may lie meanwhile. SIZE=card, 8gb or small chooses their shapes; without it a GPU with less
# than 28 GiB free is given those that fit into 8, and a CPU small ones, which show that the script
# works and nothing else.
set -uo pipefail
OUT=$(realpath -m -- "${1:?usage: scripts/on_a_card.sh OUT, or --list}")
LIST=
[ "$1" = --list ] && LIST=1
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
DRAFTBENCH=("$PYTHON" -m draftbench)
VLLM=${DRAFTBENCH_VLLM_PYTHON:-}
END=$((SECONDS + ${SECONDS_IN_ALL:-600} - 20)) # the table takes some, too
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
if [ -z "$LIST" ]; then
    mkdir -p "$OUT" || exit 2
    rm -rf "${OUT:?}"/{built-in,levels,embedded,by-worker,by-ray,trained,vllm}
    rm -f "$OUT"/{steps.txt,peers.jsonl,kernels.jsonl,training.json,table.md,*.log}
fi
MODELS=$(mktemp -d) || exit 2
trap 'rm -rf "$MODELS"' EXIT
RUNNING=
trap '[ -n "$RUNNING" ] && kill "$RUNNING" && wait; exit 130' INT TERM

# step NAME SECONDS WORTH COMMAND…: run it, its output in OUT/NAME.log, and say how it ended; or list
# it with what it buys. A CPU is given three times as long.
PLANNED=0
step() {
    local name=$1 limit=$2 worth=$3 begun=$SECONDS code
    shift 3
    if [ -n "$LIST" ]; then
        printf 'from %2d:%02d, at most %3d s  %-20s %s\n' \
            $((PLANNED / 60)) $((PLANNED % 60)) "$limit" "$name" "$worth"
        PLANNED=$((PLANNED + limit))
        return 0
    fi
    [ "$DEVICE" = cpu ] && limit=$((3 * limit))
    ((limit > END - SECONDS)) && limit=$((END - SECONDS))
    if ((limit < 5)); then
        missing "$name" "no time was left"
        return 1
    fi
    timeout --kill-after=5 "$limit" "$@" >"$OUT/$name.log" 2>&1 &
    RUNNING=$!
    wait "$RUNNING"
    code=$?
    RUNNING=
    if ((code == 0)); then
        printf '%4d s  %s\n' $((SECONDS - begun)) "$name" | tee -a "$OUT/steps.txt"
    elif ((SECONDS - begun >= limit)); then
        missing "$name" "it took longer than $limit s"
    else
        missing "$name" "exit code $code; $(why "$OUT/$name.log")"
    fi
    return $code
}

missing() {
    local said="NOT DONE  $1: $2"
    if [ -n "$LIST" ]; then echo "$said"; else echo "$said" | tee -a "$OUT/steps.txt"; fi
}

# why LOG: its first error, from which others follow, or its last line.
why() { grep -m 1 -oE '(\berror:|\b[A-Za-z.]*Error:) .*' "$1" || tail -n 1 "$1"; }

inflate() { # NAME SOURCE HIDDEN LAYERS INNER HEADS KEY-HEADS
    step "model-$1" 40 "a model of that shape, for what follows" "$PYTHON" scripts/inflate.py "draftbench/embedded/$2" "$MODELS/$1" \
        --hidden "$3" --layers "$4" --inner "$5" --heads "$6" --kv-heads "$7" --vocab "$VOCAB" \
        --device "$DEVICE"
}

if [ -n "$LIST" ]; then
    FOUND="cuda card"
elif ! FOUND=$(timeout 60 "$PYTHON" -c '
import draftbench.cli, torch
cuda = torch.cuda.is_available()
free = torch.cuda.mem_get_info()[0] if cuda else 0
print("cuda" if cuda else "cpu", "card" if free >= 28 << 30 else "8gb" if cuda else "small")
'); then
    echo "error: $PYTHON cannot import draftbench and PyTorch" >&2
    echo "hint: set up with scripts/setup, or name another interpreter: PYTHON=/path/to/python" >&2
    exit 2
fi
read -r DEVICE FITS <<<"${FOUND##*$'\n'}"
SIZE=${SIZE:-$FITS}
[ -n "$LIST" ] || echo "on $DEVICE, models of size $SIZE; output in $OUT"

# The embedded pair accepts what it accepts at any cost: that of 8.03B with drafts of 1.50B and
# .32B, or of 1.50B with drafts of .32B and .15B. `distilled` is accepted more often than `draft`.
ROWS=1,8,32 REQUESTS=32 ALONE=12 TOKENS=64 VOCAB=128256 ENGINE_ARGS="--dtype bfloat16 --max-model-len 1024"
case $SIZE in
    card)
        NAMES=(embedded-8b embedded-1.5b embedded-0.3b)
        inflate "${NAMES[0]}" target 4096 32 14336 64 16
        inflate "${NAMES[1]}" distilled 2048 16 8192 32 8
        inflate "${NAMES[2]}" draft 1024 4 4096 32 8
        ;;
    8gb)
        NAMES=(embedded-1.5b embedded-0.3b embedded-0.1b)
        inflate "${NAMES[0]}" target 2048 16 8192 32 8
        inflate "${NAMES[1]}" distilled 1024 4 4096 32 8
        inflate "${NAMES[2]}" draft 512 2 2048 16 4
        ;;
    small)
        NAMES=(small smaller smallest)
        ROWS=1,2 REQUESTS=4 ALONE=2 TOKENS=24 VOCAB=4096
        inflate "${NAMES[0]}" target 512 12 1408 8 4
        inflate "${NAMES[1]}" distilled 384 2 1024 6 2
        inflate "${NAMES[2]}" draft 192 2 512 6 2
        ;;
    *)
        echo "error: unknown size $SIZE" >&2
        echo "hint: SIZE is card, 8gb or small" >&2
        exit 2
        ;;
esac
if [ "$DEVICE" = cpu ]; then
    # vLLM compiles nothing there, and keeps to one GiB beside whatever else runs.
    ENGINE_ARGS+=" --enforce-eager"
    export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
fi
TARGET=$MODELS/${NAMES[0]} LARGER=$MODELS/${NAMES[1]} DRAFT=$MODELS/${NAMES[2]} K=3
EMBEDDED=draftbench/embedded
SWEEP=("${DRAFTBENCH[@]}" sweep --dtype bfloat16 --device "$DEVICE" --temperature 0 --no-controls)
LARGE=(--target "$TARGET" --traffic suite:completion --max-new-tokens "$TOKENS")
# The embedded models as they are, on as many requests as a training asks for.
[ -n "$LIST" ] || cat suites/{completion,stories}.jsonl >"$OUT/traffic.jsonl"
SMALL=(--target $EMBEDDED/target --traffic "$OUT/traffic.jsonl" --max-new-tokens 32 --k 1,3)
# Commands that are done with exit code 1 too: a level without a kernel, a draft that did not gain.
# shellcheck disable=SC2016
MAY_SAY_NO=(sh -c '"$@"; code=$?; [ $code = 1 ] || exit $code' sh)

# By what they are worth to somebody who serves a model.
step sweep 150 "whether a draft pays at 1, 8 and 32 requests, and how right predictions are" \
    "${SWEEP[@]}" "${LARGE[@]}" --drafts "$LARGER,$DRAFT" --sample "$REQUESTS" \
    --k 1-8 --concurrency "$ROWS" --out "$OUT/built-in"
if [ -n "$VLLM" ]; then
    step vllm-sweep 240 "whether the same draft pays on vLLM" \
        "${SWEEP[@]}" "${LARGE[@]}" --engine vllm --drafts "$DRAFT" \
        --engine-command "$VLLM -m vllm.entrypoints.openai.api_server {args}" \
        --engine-args "$ENGINE_ARGS" --sample "$REQUESTS" --k $K --concurrency "$ROWS" \
        --out "$OUT/vllm"
else
    missing vllm-sweep "DRAFTBENCH_VLLM_PYTHON names no interpreter that has vLLM"
fi
step embedded 45 "what a step of an EAGLE-3 head costs, recorded, and whether it gives the same text" \
    "${SWEEP[@]}" "${SMALL[@]}" --drafts "$EMBEDDED/draft,eagle3:$EMBEDDED/head" \
    --measure all --measure-requests 10 --out "$OUT/embedded"
step selfcheck 60 "what works on this card, and how fast weights are read" \
    "${DRAFTBENCH[@]}" check --device "$DEVICE"
step transformers 80 "how fast transformers is, plain and assisted" \
    "$PYTHON" scripts/card_peers.py transformers "$OUT/peers.jsonl" \
    --target "$TARGET" --draft "$DRAFT" --k $K --requests "$ALONE" --tokens "$TOKENS"
step levels 60 "whether a quantized draft pays" \
    "${MAY_SAY_NO[@]}" "${SWEEP[@]}" "${LARGE[@]}" --drafts "$LARGER,$DRAFT" \
    --quant int8,fp8,int4 --sample "$ALONE" --k $K --out "$OUT/levels"
if [ "$DEVICE" = cuda ]; then
    # A plugin for benchmarks, where there is one, would warn, and warnings are errors.
    step tests-cuda 90 "whether a proposal waits for nothing, and kernels compute what they should" \
        "$PYTHON" -m pytest -n 8 -p no:benchmark -q -k "not check_of_the_device" tests/cuda \
        tests/decoder/test_fused.py
    step kernels 60 "how near its kernels are to the memory's speed" \
        "$PYTHON" scripts/bench_kernels.py "$OUT/kernels.jsonl"
else
    missing tests-cuda "PyTorch finds no GPU here"
    missing kernels "PyTorch finds no GPU here"
fi
# vLLM without a server.
if [ -n "$VLLM" ]; then
    for drafting in "" "--draft $DRAFT"; do
        # shellcheck disable=SC2086
        step "vllm${drafting:+-drafting}" 100 "vLLM's own speed, without a server in between" \
            "$VLLM" scripts/card_peers.py vllm "$OUT/peers.jsonl" \
            --target "$TARGET" $drafting --k $K --requests "$ALONE" --rows "$ROWS" --tokens "$TOKENS"
    done
fi
# Whether other processes replay to the bit what `embedded` did.
REPLAY=("${SWEEP[@]}" "${SMALL[@]}" --drafts $EMBEDDED/draft --measure replay)
WORTH="whether a worker replays to the bit what one process does"
if [ "$DEVICE" = cuda ]; then
    step worker 40 "$WORTH" "${REPLAY[@]}" --cards 0 --out "$OUT/by-worker"
else
    step worker 40 "$WORTH" "${REPLAY[@]}" --workers 1 --out "$OUT/by-worker"
fi
if "$PYTHON" -c "import ray" 2>/dev/null; then
    step ray 60 "the same by Ray" "${REPLAY[@]}" --workers ray --out "$OUT/by-ray"
else
    missing ray "it is not installed"
fi
step training 60 "whether a draft trains here" \
    "${MAY_SAY_NO[@]}" "${DRAFTBENCH[@]}" train "$OUT/embedded" \
    --draft $EMBEDDED/draft --device "$DEVICE" --epochs 2 --anyway --out "$OUT/trained" \
    --format json -o "$OUT/training.json"
if [ -n "$LIST" ]; then
    echo "It ends after ${SECONDS_IN_ALL:-600} s whatever is left, keeps what ran, and prints the table."
    exit
fi
timeout --kill-after=5 60 "$PYTHON" scripts/card_table.py "$OUT" | tee "$OUT/table.md"

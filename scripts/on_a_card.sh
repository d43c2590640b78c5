#!/usr/bin/env bash
# What only a GPU can show, in ten minutes and without internet:
#
#   DRAFTBENCH_VLLM_PYTHON=/opt/vllm/bin/python scripts/on_a_card.sh OUT
#
# It writes table.md with the figures of this one run beside what is wanted of them, the run folders
# and a log of every step to OUT, and says what it could not do. Every step has its own time limit;
# what matters most comes first. On a CPU it goes through the same steps with small models, which
# shows that it works and nothing else; SIZE=card or SIZE=small chooses. PYTHON names draftbench's
# interpreter, SECONDS_IN_ALL how long it may take.
set -uo pipefail
OUT=$(realpath -m "${1:?usage: scripts/on_a_card.sh OUT}")
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
DRAFTBENCH=("$PYTHON" -m draftbench)
VLLM=${DRAFTBENCH_VLLM_PYTHON:-}
END=$((SECONDS + ${SECONDS_IN_ALL:-590}))
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
mkdir -p "$OUT"
rm -rf "${OUT:?}"/{built-in,levels,embedded,by-worker,by-ray,trained,vllm,peers.jsonl,kernels.jsonl}
MODELS=$(mktemp -d)
trap 'rm -rf "$MODELS"' EXIT

# step NAME SECONDS COMMAND…: run it, its output in OUT/NAME.log, and say how it ended. A CPU is
# given three times as long.
step() {
    local name=$1 limit=$2 begun=$SECONDS code
    shift 2
    [ "$DEVICE" = cpu ] && limit=$((3 * limit))
    ((limit > END - SECONDS)) && limit=$((END - SECONDS))
    if ((limit < 5)); then
        missing "$name" "no time was left"
        return 1
    fi
    timeout --kill-after=5 "$limit" "$@" >"$OUT/$name.log" 2>&1
    code=$?
    case $code in
        0) printf '%4d s  %s\n' $((SECONDS - begun)) "$name" ;;
        124 | 137) missing "$name" "it took longer than $limit s" ;;
        *) missing "$name" "exit code $code; its log ends: $(tail -n 1 "$OUT/$name.log")" ;;
    esac
    return $code
}

missing() { printf 'NOT DONE  %s: %s\n' "$1" "$2" | tee -a "$OUT/not-done.txt"; }

inflate() { # NAME SOURCE HIDDEN LAYERS INNER HEADS KEY-HEADS
    step "model-$1" 90 "$PYTHON" scripts/inflate.py "draftbench/embedded/$2" "$MODELS/$1" \
        --hidden "$3" --layers "$4" --inner "$5" --heads "$6" --kv-heads "$7" --vocab "$VOCAB" \
        --device "$DEVICE"
}

rm -f "$OUT/not-done.txt"
DEVICE=$("$PYTHON" -c "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')") || exit 1
SIZE=${SIZE:-$([ "$DEVICE" = cuda ] && echo card || echo small)}
echo "on $DEVICE, models of size $SIZE; output in $OUT"

# The embedded pair accepts what it accepts at any cost: 8.03B with drafts of 1.50B and .32B.
if [ "$SIZE" = card ]; then
    ROWS=1,8,32 REQUESTS=32 ALONE=12 TOKENS=64 VOCAB=128256 EAGER=
    inflate target target 4096 32 14336 64 16
    inflate d1 distilled 2048 16 8192 32 8
    inflate d03 draft 1024 4 4096 32 8
else
    ROWS=1,2 REQUESTS=4 ALONE=2 TOKENS=24 VOCAB=4096 EAGER=--enforce-eager
    inflate target target 512 12 1408 8 4
    inflate d1 distilled 384 2 1024 6 2
    inflate d03 draft 192 2 512 6 2
fi
TARGET=$MODELS/target DRAFT=$MODELS/d03 K=3 EMBEDDED=draftbench/embedded
SWEEP=("${DRAFTBENCH[@]}" sweep --dtype bfloat16 --device "$DEVICE" --temperature 0 --no-controls)
LARGE=(--target "$TARGET" --traffic suite:completion --max-new-tokens "$TOKENS")
# The embedded models as they are, on as many requests as a training asks for.
cat suites/{completion,stories}.jsonl >"$OUT/traffic.jsonl"
SMALL=(--target $EMBEDDED/target --traffic "$OUT/traffic.jsonl" --max-new-tokens 32 --k 1,3)
# Commands that are done with exit code 1 too: a level without a kernel, a draft that did not gain.
# shellcheck disable=SC2016
MAY_SAY_NO=(sh -c '"$@" || [ $? = 1 ]' sh)

step sweep 150 "${SWEEP[@]}" "${LARGE[@]}" --drafts "$MODELS/d1,$DRAFT" --sample "$REQUESTS" \
    --k 1-8 --concurrency "$ROWS" --out "$OUT/built-in"
step levels 60 "${MAY_SAY_NO[@]}" "${SWEEP[@]}" "${LARGE[@]}" --drafts "$MODELS/d1,$DRAFT" \
    --quant int8,fp8,int4 --sample "$ALONE" --k $K --out "$OUT/levels"
if [ "$DEVICE" = cuda ]; then
    step kernels 60 "$PYTHON" scripts/bench_kernels.py "$OUT/kernels.jsonl"
else
    missing kernels "PyTorch finds no GPU here"
fi
step embedded 45 "${SWEEP[@]}" "${SMALL[@]}" --drafts "$EMBEDDED/draft,eagle3:$EMBEDDED/head" \
    --measure all --measure-requests 10 --out "$OUT/embedded"
step transformers 60 "$PYTHON" scripts/card_peers.py transformers "$OUT/peers.jsonl" \
    --target "$TARGET" --draft "$DRAFT" --k $K --requests "$ALONE" --tokens "$TOKENS"
if [ -n "$VLLM" ]; then
    for drafting in "" "--draft $DRAFT"; do
        # shellcheck disable=SC2086
        step "vllm${drafting:+-drafting}" 100 "$VLLM" scripts/card_peers.py vllm "$OUT/peers.jsonl" \
            --target "$TARGET" $drafting --k $K --requests "$ALONE" --rows "$ROWS" --tokens "$TOKENS"
    done
else
    missing vllm "DRAFTBENCH_VLLM_PYTHON names no interpreter that has it"
fi
# Whether other processes replay to the bit what `embedded` did.
REPLAY=("${SWEEP[@]}" "${SMALL[@]}" --drafts $EMBEDDED/draft --measure replay)
if [ "$DEVICE" = cuda ]; then
    step worker 40 "${REPLAY[@]}" --cards 0 --out "$OUT/by-worker"
else
    step worker 40 "${REPLAY[@]}" --workers 1 --out "$OUT/by-worker"
fi
if "$PYTHON" -c "import ray" 2>/dev/null; then
    step ray 60 "${REPLAY[@]}" --workers ray --out "$OUT/by-ray"
else
    missing ray "it is not installed"
fi
step training 60 "${MAY_SAY_NO[@]}" "${DRAFTBENCH[@]}" train "$OUT/embedded" \
    --draft $EMBEDDED/draft --device "$DEVICE" --epochs 2 --anyway --out "$OUT/trained" \
    --format json -o "$OUT/training.json"
if [ "$DEVICE" = cuda ]; then
    # A plugin for benchmarks, where there is one, would warn, and warnings are errors.
    step tests-cuda 90 "$PYTHON" -m pytest -n 8 -p no:benchmark -q -k "not selfcheck" tests/cuda \
        tests/decoder/test_fused.py
else
    missing tests-cuda "PyTorch finds no GPU here"
fi
step selfcheck 60 "${DRAFTBENCH[@]}" selfcheck --device "$DEVICE"
if [ -n "$VLLM" ]; then
    step vllm-sweep 250 "${SWEEP[@]}" "${LARGE[@]}" --engine vllm --drafts "$DRAFT" \
        --engine-command "$VLLM -m vllm.entrypoints.openai.api_server {args}" \
        --engine-args "--dtype bfloat16 --max-model-len 1024 $EAGER" \
        --sample "$REQUESTS" --k $K --concurrency "$ROWS" --out "$OUT/vllm"
fi
"$PYTHON" scripts/card_table.py "$OUT" | tee "$OUT/table.md"

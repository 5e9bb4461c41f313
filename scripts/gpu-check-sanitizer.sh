#!/usr/bin/env bash
# Runs compute-sanitizer over small sweeps of every kernel, with whole and broken warps; all must be clean.
#
#   scripts/gpu-check-sanitizer.sh [FOLDER]     the tools' words go to FOLDER/sanitizer-<tool>.txt (default: $OUT, then .)
#   GINLAB=path TOOLS="memcheck synccheck"      another binary; some of the tools
#
# Needs a GPU and CUDA's compute-sanitizer; without the latter it says so and does nothing. About half a minute a tool.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

ginlab=${GINLAB:-target/release/ginlab}
out=${1:-${OUT:-.}}
tools=${TOOLS:-memcheck initcheck synccheck racecheck}
failures=0

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [[ -z $sanitizer ]]; then
    echo '== sanitizer: skipped: no compute-sanitizer'
    exit 0
fi

# sanitize TOOL NAME ARGUMENTS...: one small sweep, which must end well and without a word of the tool.
sanitize() {
    local tool=$1 name=$2 start=$SECONDS text=$out/sanitizer-$1.txt code
    shift 2
    echo "== $tool: ginlab $*" | tee -a "$text"
    timeout 150 "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 99 "$ginlab" "$@" --no-header -t 100 \
        >"$text.now" 2>&1
    code=$?
    cat "$text.now" >>"$text"
    if [[ $code == 0 ]] && ! grep -E 'ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]' "$text.now"; then
        echo "   ok, $((SECONDS - start)) s" | tee -a "$text"
    else
        echo "   FAILED: $name under $tool: code $code after $((SECONDS - start)) s: $(grep -m 3 '=====' "$text.now" | tail -n 1)" |
            tee -a "$text"
        failures=$((failures + 1))
    fi
    rm -f "$text.now"
}

for tool in $tools; do
    : >"$out/sanitizer-$tool.txt"
    sanitize "$tool" queue queue -d gpu --grid 2 --block 1,32,33,64,96,256 -n 4 -r 1 --ring-slots 64
    sanitize "$tool" queue-warp queue -d gpu --scope warp --grid 2 --block 32,33,96 -n 4 -r 1 --rings 2
    sanitize "$tool" lanes queue -d gpu -a lanes --grid 2 --block 32,33,96 -n 4 -r 1 --rings 1,3,32
    sanitize "$tool" put proxy -p null -d gpu --grid 2 --block 1,32,33,64,256,1024 -b 64 -e 64K -f 1024 -n 4 -w 1 -r 1 --window 2
    sanitize "$tool" put-thread proxy -p null -d gpu --scope thread --grid 2 --block 32,33,96 -b 64 -e 64 -n 4 -w 1 -r 1
done
if [[ " $tools " == *" memcheck "* && $(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') -ge 2 ]]; then
    sanitize memcheck ipc ipc -d gpu -b 64K -e 64K --grid 2 --block 256 -o write,copy,read -r 1
fi
echo "sanitizer: $failures failed"
exit $((failures > 0))

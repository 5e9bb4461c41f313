# shellcheck shell=bash
# Part of gpu-check.sh that compares the ring with a reference in CUDA C++ (experiments/queue/baseline/prototype.cu),
# both alternating in one process. Sourced; takes about a minute.
#
#   GINLAB_PROTOTYPE  compiled library of the reference [default: compiled with nvcc]

# shellcheck disable=SC2154,SC2034  # gpu-check.sh sets work, log, out, and its `run` reads experiment
experiment=queue
prototype=${GINLAB_PROTOTYPE:-}
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
if [[ -z $prototype && -n $nvcc ]]; then
    if "$nvcc" -O3 -arch=native -std=c++17 -shared -Xcompiler -fPIC -o "$work/libprototype.so" \
        experiments/queue/baseline/prototype.cu >>"$log" 2>&1; then
        prototype=$work/libprototype.so
    else
        say "   FAILED: $nvcc does not compile experiments/queue/baseline/prototype.cu: $(tail -n 1 "$log")"
        failures=$((failures + 1))
    fi
fi
if [[ -z $prototype ]]; then
    say '== ring compared with its prototype: skipped: no nvcc'
else
    run ring 100 -d gpu -a ticket -m nbi --prototype "$prototype" --grid 32,132 --block 32,256,1024 -r "$(repeats 15)"
    run ring-264 60 -d gpu -a ticket -m nbi --prototype "$prototype" --grid 264 --block 512 -r "$(repeats 15)"
    run ring-grids 200 -d gpu -a ticket -m nbi --prototype "$prototype" --grid 7,32,100,132,264,1024 \
        --block 33,96,256,384,1024 -r "$(repeats 9)"
    run ring-small 60 -d gpu -a ticket -m nbi --prototype "$prototype" --grid 1,4,8 --block 1,32 -r "$(repeats 9)"
    # Lanes of one warp over several rings, with verification.
    run lanes 60 -d gpu -a ticket,lanes --rings 1,3,32 --consumers 1 --grid 2,8 --block 32,96 -r "$(repeats 5)"
    # ratios FILE MINIMUM CONDITION: prints the ratio of each selected grid; a ratio below MINIMUM is a failure.
    ratios() {
        awk -F, -v least="$2" 'NR == 1 { for (i = 1; i <= NF; i++) n[$i] = i; next }
            { for (name in n) c[name] = $n[name] } c["case"] == "ticket" && ('"$3"') {
                low = c["baseline_ratio"] < least; bad += low
                printf "   %sx%s %.0f Mops, %.2f of the prototype%s\n", c["grid"], c["block"], c["rate_mops"], c["baseline_ratio"],
                    low ? ": FAILED: below " least : "" }
            END { exit bad > 0 }' "$work/$1.csv" | tee -a "$log"
        if [[ ${PIPESTATUS[0]} != 0 ]]; then failures=$((failures + 1)); fi
    }
    ratios ring 0.95 'c["grid"] c["block"] ~ /^(3232|13232|132256|1321024)$/'
    ratios ring-264 0.95 '1'
    ratios ring-grids 0.6 '1'
fi

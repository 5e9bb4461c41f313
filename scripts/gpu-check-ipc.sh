# shellcheck shell=bash
# Part of gpu-check.sh for two or more GPUs: the measurements of experiments/ipc. Sourced; takes about two minutes on
# two GPUs.
#
#   GINLAB_CUBIN  compiled module of experiments/ipc/baseline/ipc.cu [default: compiled with nvcc]

# shellcheck disable=SC2154,SC2034  # gpu-check.sh sets work, log, quick, ginlab, gpus, and its `run` reads experiment
experiment=ipc
cubin=${GINLAB_CUBIN:-}
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
if [[ -z $cubin && -n $nvcc ]]; then
    if "$nvcc" -O3 -arch=native -cubin -o "$work/ipc.cubin" experiments/ipc/baseline/ipc.cu >>"$log" 2>&1; then
        cubin=$work/ipc.cubin
        say "== baseline compiled by $("$nvcc" --version | grep release)"
    else
        say "   FAILED: $nvcc does not compile experiments/ipc/baseline/ipc.cu: $(tail -n 1 "$log")"
        failures=$((failures + 1))
    fi
elif [[ -z $cubin ]]; then
    say '== no nvcc: without the cuda-c++ cases'
fi
module=()
if [[ -n $cubin ]]; then module=(--cuda-module "$cubin"); fi
# Count the 16-byte stores in the machine code.
if command -v cuobjdump >/dev/null && [[ -n $cubin ]]; then
    say "== nvcc's ipc_write_16: $(cuobjdump -sass -fun ipc_write_16 "$cubin" | grep -c 'STG.E.128') stores of 16 bytes"
fi

# At 1 GiB: limit of one SM, 8 blocks, 128 blocks; all operations; widths.
run ipc-1g 120 -d gpu -b 1G -e 1G --grid 1,8,128 -o write,copy,read --store plain,bulk -r "$(repeats 10)" "${module[@]}"
run ipc-widths 60 -d gpu -b 1G -e 1G --grid 1,8,128 --width 4,8,16 -r "$(repeats 10)" "${module[@]}"
# The knee, and the dip at 16 blocks.
run ipc-knee 60 -d gpu -b 1G -e 1G --grid auto --store plain,bulk -r "$(repeats 10)"
run ipc-dip 60 -d gpu -b 1G -e 1G --grid 8,12,14,15,16,17,18,20,24,32,48,64,96,112,120,128,132,160,192 -r "$(repeats 10)"
# 8 MiB; and 64 KiB to 1 MiB with launch costs.
run ipc-8m 60 -d gpu -b 8M -e 8M --launch stream,graph --grid 16,32,64,128 --block 256,512 -o write,copy -r "$(repeats 20)" "${module[@]}"
run ipc-small 100 -d gpu -b 64K -e 1M -f 2 --launch stream,graph --grid 8,16,32,64 --block 256,512 -r "$(repeats 20)"
# Both directions at the same time.
run ipc-both 60 -d gpu -b 8M -e 1G -f 128 --direction one,both --grid 8,32,128 -o write,copy,read -r "$(repeats 10)"
# The table of the earlier C++ program.
run ipc-table 60 -d gpu -b 8M -e 1G -f 2 --grid 1,16,128 --block 256 --volume 512M -r "$(repeats 10)" "${module[@]}"
run ipc-table-1024 60 -d gpu -b 8M -e 1G -f 2 --grid 1 --block 1024 --volume 512M -r "$(repeats 10)" "${module[@]}"
if ((gpus > 2)); then
    run ipc-matrix 100 -d gpu --pairs matrix -b 1G -e 1G --grid 128 -r "$(repeats 10)"
    run ipc-matrix-both 100 -d gpu --pairs matrix --direction both -b 1G -e 1G --grid 128 -r "$(repeats 10)"
    run ipc-all 100 -d gpu --pairs all -b 64M -e 1G -f 4 --grid 8,16,32,64,128 -r "$(repeats 10)"
    run ipc-all-bulk 100 -d gpu --pairs all -b 1G -e 1G --grid 16,44,64 --store bulk -o write,read -r "$(repeats 10)"
fi

# Invalid options, and a peer that is killed while kernels write to it.
expect ipc-too-many-ranks 2 'ranks need' -d gpu --np 64 -b 64K -e 64K
expect ipc-too-large-a-block 2 'refused' -d gpu --block 2048 -b 64K -e 64K
expect ipc-wrong-bytes 1 'verification failed' -d gpu --fault corrupt -b 1M -e 1M --grid 8 -r 2
kill_peer() {
    say '== a rank is killed while GPUs write to each other'
    timeout 60 "$ginlab" ipc -d gpu --direction both -b 64M -e 64M --grid 64 -r 100000 --no-header -t 10 >>"$log" 2>"$work/killed" &
    local parent=$! child='' tries=0 got
    while [[ -z $child && $tries -lt 200 ]]; do
        child=$(pgrep -P "$(pgrep -P "$parent" | head -n 1)" 2>/dev/null | head -n 1)
        tries=$((tries + 1))
        sleep 0.05
    done
    sleep 6
    kill -9 "$child" 2>>"$log"
    wait "$parent"
    got=$?
    cat "$work/killed" >>"$log"
    if [[ $got == 1 ]] && grep -q 'rank 1' "$work/killed"; then
        say "   ok: code $got: $(tail -n 1 "$work/killed")"
    else
        say "   FAILED: code $got: $(tail -n 1 "$work/killed")"
        failures=$((failures + 1))
    fi
}
kill_peer

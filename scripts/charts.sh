#!/usr/bin/env bash
# The pictures of the pages in experiments/, from data/.
#   scripts/charts.sh [PAGE...]      proxy, queue, quiet-vs-nbi, ipc, write, all2all, model, collectives, jacobi, moe; all of them without. readme: docs/puts.svg
#   GINLAB=path                      another binary than target/release/ginlab
# A newer run: its folder takes the place of the older one below, as it does in the page's figures.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ginlab=${GINLAB:-target/release/ginlab}
h200=data/2026-11-21-h200-4
ring=data/2026-11-22-h200-ring
four=data/2026-11-21-h200x4
lab=data/2026-11-21-lab
ladder=data/2026-11-21-lab-2
virtual=data/2026-11-21-virtual

# draw FILE TITLE ARGUMENTS...
draw() {
    local file=$1 title=$2
    shift 2
    "$ginlab" chart "$@" --title "$title" -o "$file"
    echo "$file"
}
# chart PAGE NAME TITLE ARGUMENTS...
chart() { draw "experiments/$1/$2.svg" "${@:3}"; }

pages=("$@")
if ((${#pages[@]} == 0)); then pages=(proxy queue quiet-vs-nbi ipc write all2all model collectives jacobi moe); fi
for page in "${pages[@]}"; do
    case $page in
        proxy)
            chart proxy rate 'puts of 64 bytes by number of blocks, null rail, one proxy thread' \
                "$h200/null-grids-no-fill.csv" -x grid -y rate_mops --series case,mode --where case=put,cpu-write --log x,y
            chart proxy ratio 'puts over CPU-initiated writes of the same size, tcp on the loopback' \
                "$h200/tcp-sizes.csv" -x size_bytes -y baseline_ratio --series mode,rails --where case=put --log x --linear y
            ;;
        queue)
            chart queue nbi '32-byte commands per second by grid, one consumer' \
                "$ring/ring-small.csv" "$ring/ring.csv" "$ring/ring-264.csv" -x grid,block -y rate_mops --series case --where case=ticket,prototype,stores --log y
            chart queue blocking 'acknowledged pushes: time of each, by blocks that push at once' \
                "$h200/blocking-thread.csv" "$h200/blocking-warp.csv" "$h200/blocking-warp-64.csv" -x grid -y time_us_p50 \
                --series scope,slot_bytes --where case=ticket --log x
            chart queue compare 'commands per second by algorithm and memory' \
                "$h200/compare.csv" "$h200/compare-managed.csv" -x grid,block -y rate_mops --series case,memory --where mode=nbi --log y
            chart queue payload 'commands per second by size of the element, 32 blocks' \
                "$h200/payload.csv" -x size_bytes -y rate_mops --series case,block --where case=ticket,stores --log x,y
            ;;
        quiet-vs-nbi)
            study=$h200/quiet-vs-nbi
            chart quiet-vs-nbi ratio 'puts over CPU-initiated writes of the same size, modelled p5' \
                "$study/0-as-it-was-pinned.csv" "$study/0-as-it-was-managed.csv" "$study/3-four-buffers.csv" \
                --names 'ring pinned,ring managed,four buffers' -x size_bytes -y baseline_ratio \
                --series file,rails --where case=put --log x --linear y
            chart quiet-vs-nbi stages 'life of a put + quiet of 8 MiB, modelled p5: microseconds by stage' \
                "$study"/{0-as-it-was-managed-8M,0-as-it-was-pinned-8M,0a-pinned-payload,1-block-1024}.life.csv \
                --names 'ring managed,ring pinned,payload in host memory,1024 threads' -x file,rails --x-label 'what is different, and rails' -y mean_us \
                --series stage --where size_bytes=8388608 --stacked --height 620
            ;;
        ipc)
            chart ipc table 'stores to the other GPU by size and grid, four H200' \
                "$four/ipc-table.csv" "$four/ipc-table-1024.csv" -x size_bytes -y bandwidth_gbytes_s --series case,grid,block --where case=write,int-loop
            chart ipc knee 'stores to the other GPU by number of blocks, 1 GiB' \
                "$four/ipc-knee.csv" -x grid -y bandwidth_gbytes_s --series case --where case=write,bulk-write,int-loop --log x
            chart ipc small 'small sizes, 16 blocks of 256 threads: by stream and by graph' \
                "$four/ipc-small.csv" -x size_bytes -y bandwidth_gbytes_s --series case,launch --where case=write,copy-engine --where grid=16, --where block=256, --log x
            ;;
        write)
            chart write ladder 'one change per rung, 64 KiB, rails of 1 Gbit/s' \
                "$ladder"/[1-8]-*.csv -x file --x-label 'what each changes of the one before' -y bandwidth_gbytes_s --where case=write,cpu-write
            ;;
        all2all)
            chart all2all rails 'all-to-all of four nodes, blocks of 4 MiB, rails of 100 Mbit/s' \
                "$lab/all2all-rails.csv" -x rails -y busbw_gbytes_s --series strategy --where size_bytes=4194304
            ;;
        model)
            chart model nodes 'all-to-all of 64 KiB in virtual time: bandwidth of a GPU by number of GPUs' \
                "$virtual/nodes.csv" -x ranks -y bandwidth_gbytes_s --series rails --log x
            ;;
        collectives)
            published=experiments/collectives/published/p5.csv
            whole=data/2026-11-22-virtual/whole.csv
            two=data/2026-11-22-h200-collective/gpus2
            chart collectives small 'all-to-all of two H200 in CUDA graphs, time by size' \
                "$two/small.csv" -x size_bytes -y time_us_p50 --series case --where case=gin-all-to-all,nccl-all-to-all --where launch=graph \
                --log x,y
            chart collectives device-host 'all-to-all of two H200: inside a kernel (device) and launched on a stream (host), bus bandwidth by size' \
                "$two/small.csv" "$two/host.csv" -x size_bytes -y busbw_gbytes_s --series launch --where case=gin-all-to-all \
                --where launch=persistent,stream --log x,y
            chart collectives whole 'all-to-all of 2 GiB: modelled p5 (all2all) and published NCCL, bus bandwidth of a GPU' \
                "$whole" "$published" -x ranks -y busbw_gbytes_s --series case --where case=all2all,nccl-all-to-all \
                --where total_bytes=2147483648 --log x --linear y
            chart collectives whole-sizes 'all-to-all by size: modelled p5 and published NCCL, bus bandwidth of a GPU' \
                "$whole" "$published" -x total_bytes -y busbw_gbytes_s --series case,ranks --where case=all2all,nccl-all-to-all \
                --where ranks=16,64,256 --log x --linear y
            chart collectives published 'published: NCCL on p5, 2 GiB, bus bandwidth of a GPU' "$published" -x ranks -y busbw_gbytes_s \
                --series case --where case=nccl-all-reduce,nccl-all-gather,nccl-all-to-all --where size_bytes=2147483648 --log x --linear y
            chart collectives published-nvshmem 'published: NVSHMEM all-to-all, which does not change with the number of GPUs' \
                "$published" -x size_bytes -y algbw_gbytes_s --series case,ranks --where ranks=16,256 \
                --where case=nvshmem-all-to-all-device,nvshmem-all-to-all-host --log x,y
            ;;
        jacobi)
            published=experiments/jacobi/published/p5.csv
            chart jacobi published 'published: an iteration of 16384 x 16384 on p5, built with an atomic addition of each thread' \
                "$published" -x ranks -y time_us_p50 --series case --log x,y
            chart jacobi corrected 'the same less those additions (derived): what is left is communication' \
                "$published" -x ranks -y exposed_us --series case --log x,y
            four=data/2026-11-22-h200x4-jacobi
            chart jacobi fields 'four H200: time of an iteration by field, norm of each iteration' \
                "$four/scaling-4.csv" -x nx -y time_us_p50 --series case --where status=ok --log x,y
            chart jacobi scaling 'one, two and four H200: speed-up at 4096 x 4096, over the launched kernel on one' \
                "$four"/scaling-{1,2,4}.csv -x ranks -y speedup --series case --where nx=4096 --where status=ok --linear x,y
            ;;
        moe)
            chart moe dispatch 'dispatch by number of GPUs: modelled p5en (expert, rank, node) and published' \
                data/2026-11-25-virtual-moe/low-latency.csv -x ranks -y dispatch_us --series case --where 'fabric=model:p5en,efa p5en' --log x,y
            ;;
        readme)
            draw docs/puts.svg 'puts by size over tcp on one H200, four rails: quiet after each, nbi, and CPU-initiated' \
                "$h200/tcp-sizes.csv" -x size_bytes -y bandwidth_gbytes_s --series case,mode --where rails=4 --log x
            ;;
        *)
            echo "charts.sh: no page $page has pictures" >&2
            exit 2
            ;;
    esac
done

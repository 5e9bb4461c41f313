#!/usr/bin/env bash
# Makes the vectors that hold crates/efa_queue to vendors' headers: a header that defines the structs of an EFA card's queues is compiled into a
# small program, which fills them field by field and prints fields and bytes. All headers that are named must give the same bytes. Nothing of a
# header comes into the repository.
#
#   scripts/efa-vectors.sh .../rdma-core/providers/efa/efa_io_defs.h "rdma-core 691953d8 (version 65.0)" \
#       .../nccl_device/transport/net_efa_gda/efa-dp-direct/include/common/efa_io_defs.h "nvidia-nccl-cu13 2.32.3 (efa-dp-direct 1.1.0)" \
#       > crates/efa_queue/tests/fixtures/vectors.txt
set -euo pipefail
if (($# < 2 || $# % 2)); then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
echo "# Made by scripts/efa-vectors.sh from efa_io_defs.h of:"
while (($#)); do
    [[ -f $1 ]] || { echo "no such header: $1" >&2; exit 2; }
    "${CC:-gcc}" -O1 -Wall -o "$folder/program" -include stdint.h "-DHEADER=\"$(realpath "$1")\"" "$(dirname "$0")/efa-vectors.c"
    "$folder/program" >"$folder/new"
    if [[ -f $folder/vectors ]] && ! cmp "$folder/vectors" "$folder/new" >&2; then
        echo "$2 gives other bytes than the header before it" >&2
        exit 1
    fi
    mv "$folder/new" "$folder/vectors"
    echo "# $2, sha256 $(sha256sum "$1" | cut -c1-16)"
    shift 2
done
cat "$folder/vectors"

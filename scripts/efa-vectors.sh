#!/usr/bin/env bash
# Generates the test vectors of crates/efa_queue from vendors' headers that define the structs of an EFA device's
# queues. A small program fills the structs field by field and prints fields and bytes; all headers must give the same
# bytes.
#
#   scripts/efa-vectors.sh .../rdma-core/providers/efa/efa_io_defs.h "rdma-core 691953d8 (version 65.0)" \
#       .../nccl_device/transport/net_efa_gda/efa-dp-direct/include/common/efa_io_defs.h "nvidia-nccl-cu13 2.32.3 (efa-dp-direct 1.1.0)" \
#       > crates/efa_queue/tests/fixtures/vectors.txt
#
#   CC  C compiler [default: gcc]
#
# No text of a header enters the repository. Exit codes: 0 ok, 1 headers differ, 2 usage.
set -euo pipefail
if (($# < 2 || $# % 2)); then
    sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
echo "# Made by scripts/efa-vectors.sh from efa_io_defs.h of:"
while (($#)); do
    [[ -f $1 ]] || { echo "no such header: $1" >&2; exit 2; }
    "${CC:-gcc}" -O1 -Wall -o "$folder/program" -include stdint.h "-DHEADER=\"$(realpath "$1")\"" "$(dirname "$0")/../crates/efa_queue/tests/fixtures/vectors.c"
    "$folder/program" >"$folder/new"
    if [[ -f $folder/vectors ]] && ! cmp "$folder/vectors" "$folder/new" >&2; then
        echo "$2 gives other bytes than the preceding header" >&2
        exit 1
    fi
    mv "$folder/new" "$folder/vectors"
    echo "# $2, sha256 $(sha256sum "$1" | cut -c1-16)"
    shift 2
done
cat "$folder/vectors"

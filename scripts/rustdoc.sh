#!/usr/bin/env bash
# Replaces rustdoc when cargo runs documentation tests: also builds the pages of the crate from the same libraries, so
# that broken links are detected.
#
#   RUSTDOC=$PWD/scripts/rustdoc.sh GINLAB_PAGES=DIR cargo test --doc     DIR: for the pages
#
# Also checks the one crate with MPI support without it, as `make demo` builds it, from the same libraries: cargo would
# rebuild all dependents of procedural macros (54 s). Exit codes: those of rustdoc.
set -euo pipefail
without_mpi() {
    if [[ " ${pages[*]} " != *' --crate-name ginlab_bootstrap '* ]]; then return; fi
    # Drops the options that only rustdoc has.
    local words=() asked=''
    set -- "${pages[@]}"
    while (($#)); do
        case $1 in
        --test-args) shift ;;
        'feature="mpi"') asked=yes && unset 'words[-1]' ;;
        *) words+=("$1") ;;
        esac
        shift
    done
    if [[ -z $asked ]]; then return; fi
    echo 'ginlab_bootstrap without MPI' >&2
    ${RUSTC_WORKSPACE_WRAPPER:-} rustc "${words[@]}" -D warnings --emit metadata -o "$GINLAB_PAGES/without-mpi.rmeta"
}
pages=()
is_test=
arguments=("$@")
while (($#)); do
    case $1 in
    --test) is_test=yes ;;
    --test-run-directory) shift ;;
    *) pages+=("$1") ;;
    esac
    shift
done
if [[ $is_test ]]; then
    # Concurrent with the tests: each uses one core most of the time.
    mkdir -p "$GINLAB_PAGES"
    { rustdoc "${pages[@]}" --out-dir "$GINLAB_PAGES" && without_mpi; } &
    code=0
    rustdoc "${arguments[@]}" || code=1
    wait $! || code=1
    exit "$code"
fi
exec rustdoc "${arguments[@]}"

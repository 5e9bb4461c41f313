#!/usr/bin/env bash
# In place of rustdoc where cargo runs the tests of a crate's documentation: first its pages, from the same libraries, into
# $GINLAB_PAGES, so that what only a page shows (a broken link) is found too. Pages of the same libraries, the crate's own among them, are
# not made again, and tests that have passed with the same libraries are not repeated (10 s on two cores): their text is the crate's.
#
# The one crate that asks for MPI is checked without it, too, as `make demo` builds it: from the same libraries. Left to cargo, that changes the features
# of procedural macros, and what uses them is built again (21 s for this crate alone, 54 s for all).
set -euo pipefail
without_mpi() {
    if [[ " ${pages[*]} " != *' --crate-name ginlab_bootstrap '* ]]; then return; fi
    # What is rustdoc's alone stays out.
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
    made_of() {
        printf '%s\n' "${pages[@]}" "${RUSTDOCFLAGS-}"
        for word in "${pages[@]}"; do
            if [[ $word == *=*.@(rlib|rmeta|so) ]]; then stat -c '%n %s %y' "${word#*=}"; fi
        done
    }
    stamp=$GINLAB_PAGES/.made-of-$(printf '%s\n' "${pages[@]}" | cksum | cut -d ' ' -f 1)
    key=$(made_of | cksum)
    making=
    if [[ $key != "$(cat "$stamp" 2>/dev/null)" ]]; then
        # Beside the tests: each of the two takes one core most of its time.
        mkdir -p "$GINLAB_PAGES"
        { rustdoc "${pages[@]}" --out-dir "$GINLAB_PAGES" && without_mpi && echo "$key" >"$stamp"; } >"$stamp.said" 2>&1 &
        making=$!
    fi
    passed=$(printf '%s\n' "$key" "${arguments[@]}" "$(rustdoc --version)" | cksum)
    code=0
    if [[ $passed == "$(cat "$stamp.passed" 2>/dev/null)" ]]; then
        echo "tests of documentation: passed with these libraries before" >&2
    elif rustdoc "${arguments[@]}"; then
        echo "$passed" >"$stamp.passed"
    else
        code=1
    fi
    if [[ -n $making ]]; then
        wait "$making" || code=1
        cat "$stamp.said" >&2
    fi
    exit "$code"
fi
exec rustdoc "${arguments[@]}"

#!/usr/bin/env bash
# In place of rustdoc where cargo runs the tests of a crate's documentation: first its pages, from the same libraries, into
# $GINLAB_PAGES, so that what only a page shows (a broken link) is found too.
set -euo pipefail
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
if [[ $is_test ]]; then rustdoc "${pages[@]}" --out-dir "$GINLAB_PAGES"; fi
exec rustdoc "${arguments[@]}"

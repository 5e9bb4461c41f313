#!/usr/bin/env bash
# Builds the pages as a book in target/book/html, in the order of docs/SUMMARY.md. Fails if a page is missing in that
# list or does not exist. Installs mdBook in target/tools once.
#
#   scripts/book.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}
version=0.5.4
tool=$target/tools/bin/mdbook
if [[ $("$tool" --version 2>/dev/null) != "mdbook v$version" ]]; then
    # Without the features of its server, it has half of the dependencies.
    env -u RUSTC_WORKSPACE_WRAPPER -u RUSTFLAGS cargo install --quiet --locked --no-default-features --root "$target/tools" \
        --target-dir "$target/tools/build" "mdbook@$version"
    rm -rf "$target/tools/build"
fi

# Pages link to each other and to sources by relative paths, so the book has the repository's directories.
source=$target/book/source
rm -rf "$target/book"
mkdir -p "$source"
git ls-files -z -- . ':!data/**/*.csv' ':!data/**/*.json' ':!data/**/*.jsonl' | xargs -0 cp --parents -t "$source"
sed -E 's#\]\(\.\./#](#; t; s#\]\(([^)]+\.md)\)#](docs/\1)#' docs/SUMMARY.md >"$source/SUMMARY.md"

listed=$(grep -oE '\]\([^)]+\)' "$source/SUMMARY.md" | tr -d '()]' | sort)
pages=$(git ls-files '*.md' | grep -vE '^(data|tests)/|^docs/SUMMARY.md$' | sort)
if [[ $listed != "$pages" ]]; then
    echo "docs/SUMMARY.md does not list every page once (< listed, > existing):" >&2
    diff <(echo "$listed") <(echo "$pages") >&2
    exit 1
fi
cat >"$source/book.toml" <<END
[book]
title = "ginlab"
description = "A laboratory for GPU-initiated networking in Rust"
src = "."
[build]
build-dir = "../html"
create-missing = false
[output.html]
no-section-label = true
END
"$tool" build "$source"
echo "$target/book/html/index.html"

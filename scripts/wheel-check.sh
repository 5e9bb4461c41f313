#!/usr/bin/env bash
# Installs the wheel in a bare root file system that has only python3, without a network, and uses it there.
#
#   scripts/wheel-check.sh BASE.tar WHEEL     BASE.tar: see scripts/fresh.sh --only wheel
#
#   PIP   file of pip's own wheel   [default: downloaded by this machine's pip]
#
# Needs root. Exit codes: 0 ok, 1 failed, 2 usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { printf 'wheel-check.sh: %s\n' "$1" >&2; exit "${2:-1}"; }
[[ $# == 2 && -f $1 && -f $2 ]] || fail 'expected the tar file of a root file system and a wheel; see the head of scripts/wheel-check.sh' 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [[ -n ${PIP:-} ]]; then
    cp "$PIP" "$folder/"
else
    python3 -m pip download -q --disable-pip-version-check --no-deps -d "$folder" pip || fail 'no pip: set PIP to the file of its wheel'
fi
scripts/bare.sh "$1" "$folder"/*.whl "$2" python/tests/bare.py <<'SCRIPT'
echo "$(python3 --version), without pip and compilers"
if command -v pip cc gcc cargo; then exit 1; fi
python3 -m venv --without-pip environment
environment/bin/python "$(echo pip-*.whl)/pip" install -q --no-index --disable-pip-version-check --root-user-action ignore ./ginlab-*.whl
environment/bin/ginlab --version
PATH=/root/environment/bin:$PATH
ginlab proxy -p shared --np 2 --rails 1,4 -b 4K -e 64K -n 20 -r 3 --mode nbi --no-header
environment/bin/python bare.py
SCRIPT

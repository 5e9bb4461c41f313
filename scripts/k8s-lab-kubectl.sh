#!/usr/bin/env bash
# Replacement for kubectl on top of scripts/k8s-lab.sh, for tests that run the commands of a page without a cluster:
# `apply -k` runs the commands of the overlay's containers, each in its own root file system, `wait` reports that doctor
# has stopped the workers, and `logs` prints their output. Lines of the lab begin with `lab:`. Other commands go to the
# real kubectl. Must be first on PATH as kubectl.
#
#   LAB_PODS  working directory
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
out=${LAB_PODS:?LAB_PODS names a folder}
real=$(type -ap kubectl | grep -vxF "$0" | head -n 1)
case "${1:-} ${2:-}" in
"apply -k")
    mkdir -p "$out"
    "$real" kustomize "$3" >"$out/manifest.yaml"
    code=0
    MANIFEST=$out/manifest.yaml "$here/k8s-lab.sh" "$out" >"$out/lab.txt" 2>&1 || code=$?
    if ((code)); then tail -n 40 "$out/lab.txt" >&2 && exit "$code"; fi
    echo "lab: no cluster: the commands of the containers of $3, in three root file systems, have ended"
    ;;
"wait "*)
    echo 'lab: the software NICs are on no PCI bus: doctor stops the workers, and the lab goes on' >&2
    exit 1
    ;;
"logs -l") cat "$out/doctor.log" ;;
"delete -k") echo "lab: the pods of $3 have ended" ;;
"logs -f") cat "$out/launcher.log" ;;
*) exec "$real" "$@" ;;
esac

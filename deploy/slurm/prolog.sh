#!/usr/bin/env bash
# Slurm prolog: runs `ginlab doctor --gate` before a job. If the node has a fault, the prolog fails, and Slurm drains the
# node and requeues the job.
#
#   slurm.conf: Prolog=/opt/ginlab-VERSION-ARCH-linux/deploy/slurm/prolog.sh
#               PrologFlags=Alloc
#
#   GINLAB    program                                            [default: that of the archive, otherwise of PATH]
#   INSTANCE  instance type, if the firmware does not report it
#   LIMIT     seconds for the checks                             [default: 120]
#   REPORTS   directory of the JSON documents                    [default: /var/log/ginlab]
#
# Exit codes: 0 the node has no fault, or doctor could not check it; 1 a figure exceeds its limit (3 of doctor), or the
# checks did not end in time.
set -uo pipefail
say() { printf 'prolog.sh: %s\n' "$1" >&2; }
archive=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../..
ginlab=${GINLAB:-$archive/ginlab}
if [[ ! -x $ginlab ]]; then ginlab=$(command -v ginlab) || ginlab=; fi
if [[ -z $ginlab ]]; then
    say 'no program ginlab: the node was not checked'
    exit 0
fi
reports=${REPORTS:-/var/log/ginlab}
mkdir -p "$reports" || reports=$(mktemp -d)
report=$reports/gate-${SLURM_JOB_ID:-0}.json
instance=()
if [[ -n ${INSTANCE:-} ]]; then instance=(--instance "$INSTANCE"); fi
output=$(timeout "${LIMIT:-120}" "$ginlab" doctor --gate "${instance[@]}" --json "$report" 2>&1 >/dev/null) && code=0 || code=$?
case $code in
0) exit 0 ;;
3 | 124)
    say "the node has a fault, or the checks took too long (exit code $code, $report): ${output##*$'\n'}"
    exit 1
    ;;
*)
    say "the node was not checked (exit code $code): ${output##*$'\n'}"
    exit 0
    ;;
esac

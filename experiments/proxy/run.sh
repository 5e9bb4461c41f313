#!/usr/bin/env bash
# Runs `ginlab proxy` with each way of starting ranks. Prints the command first; further arguments are passed on.
#
#   experiments/proxy/run.sh local  [OPTIONS]     two ranks on this machine
#   experiments/proxy/run.sh mpirun [OPTIONS]     two ranks through mpirun (build with --features mpi)
#   experiments/proxy/run.sh srun   [OPTIONS]     one rank per GPU in an allocation of two nodes (not run yet)
#
#   GINLAB  program                    [default: target/release/ginlab]
#   HOSTS   hosts for mpirun, as a,b   [default: this machine]
#   GPUS    ranks per node for srun    [default: 8]
#
# Exit codes: those of ginlab or the launcher, 2 usage.
set -euo pipefail
ginlab=${GINLAB:-$(dirname "${BASH_SOURCE[0]}")/../../target/release/ginlab}
how=${1:-local}
shift || true
case $how in
    local) command=("$ginlab" proxy --np 2 "$@") ;;
    mpirun)
        command=(mpirun -np 2 --bind-to none)
        if [[ -n ${HOSTS:-} ]]; then command+=(--host "$HOSTS"); fi
        if [[ $(id -u) == 0 ]]; then command+=(--allow-run-as-root); fi
        command+=("$ginlab" proxy "$@")
        ;;
    srun) command=(srun -N 2 --ntasks-per-node "${GPUS:-8}" --mpi=pmix --cpu-bind=none "$ginlab" proxy "$@") ;;
    *)
        echo "usage: run.sh local|mpirun|srun [options of ginlab proxy]" >&2
        exit 2
        ;;
esac
printf '%q ' "${command[@]}" >&2
printf '\n' >&2
exec "${command[@]}"

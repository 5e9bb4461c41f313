#!/usr/bin/env bash
# The proxy experiment by each way of starting ranks. Prints the command before it runs it; more arguments are passed on.
#
#   experiments/proxy/run.sh local  [OPTIONS]     two ranks on this machine
#   experiments/proxy/run.sh mpirun [OPTIONS]     two ranks by mpirun (build with --features mpi); HOSTS=a,b for two hosts
#   experiments/proxy/run.sh srun   [OPTIONS]     inside an allocation of two nodes: one rank per GPU (not run yet)
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

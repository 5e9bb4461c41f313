#!/usr/bin/env bash
# Checks the launch files with the MPI operator's schema, Kubernetes' schema (strict), SkyPilot's parser and shellcheck,
# and the AWS lines of docs/two-p5.md with the AWS command line, which makes no request.
#
#   scripts/deploy-check.sh [--no-sky] [CRD.yaml]     CRD.yaml: schema of mpi-operator [default: fetched]
#
# Needs kubectl (kustomize), python3 with venv, and the package index. Exit codes: 0 ok, 1 a file is wrong, 77 skipped
# with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
skip() { printf 'deploy-check.sh: skipped: %s\n' "$1" >&2; exit 77; }
# https://github.com/kubeflow/mpi-operator/blob/v0.8.2/manifests/base/kubeflow.org_mpijobs.yaml
command -v kubectl >/dev/null || skip 'no kubectl here'
version=v0.8.2
checksum=78b0131f931fcc8d99f6ce0407281f41b62527e443ec691d26d9634b390ad3bb
sky=yes
if [[ ${1:-} == --no-sky ]]; then sky=no && shift; fi
folder=${CARGO_TARGET_DIR:-target}/deploy-check
mkdir -p "$folder"
crd=${1:-$folder/mpijobs-$version.yaml}
if [[ ! -f $crd ]]; then
    curl -sSf -m 60 -o "$crd" "https://raw.githubusercontent.com/kubeflow/mpi-operator/$version/manifests/base/kubeflow.org_mpijobs.yaml" ||
        skip 'cannot fetch the schema of the MPI operator; pass it as a file'
fi
sha256sum --quiet -c - <<<"$checksum  $crd" || { echo "deploy-check.sh: $crd is not the schema of $version" >&2; exit 1; }
python3 -m venv "$folder/venv" || skip 'no python3-venv here'
packages=(pyyaml==6.0.2 jsonschema==4.23.0 kubernetes-validate==1.34.1 awscli==1.46.3)
if [[ $sky == yes ]]; then packages+=(skypilot); fi
"$folder/venv/bin/pip" install -q "${packages[@]}" || skip 'cannot install the packages'
if command -v shellcheck >/dev/null; then shellcheck deploy/*.sh deploy/aws/*.sh deploy/slurm/*.sbatch; fi
"$folder/venv/bin/python" scripts/deploy-check.py "$crd" "$sky"

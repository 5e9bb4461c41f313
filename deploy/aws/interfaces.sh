#!/usr/bin/env bash
# Prints launch template data, as JSON, for an instance with all its EFA devices: one IP address, and an efa-only
# interface on each network card.
#
#   deploy/aws/interfaces.sh INSTANCE SUBNET GROUP
#   aws ec2 create-launch-template --launch-template-name ginlab --launch-template-data "$(deploy/aws/interfaces.sh p5.48xlarge subnet-... sg-...)"
#
# Network card 0 has the ENA interface (device 0) and, except on p6-b300, an efa-only interface (device 1). Every other
# card has an efa-only interface (device 0). Source: AWS EC2 User Guide, "Maximize network bandwidth on Amazon EC2
# instances with multiple network cards", use case 1 of p5, p6-b200 and p6-b300 and its general advice for the others;
# read 2026-11-23. No instance has been launched with it. Exit codes: 0 ok, 2 usage.
set -euo pipefail
if (($# != 3)); then
    echo 'usage: interfaces.sh INSTANCE SUBNET GROUP, e.g. interfaces.sh p5.48xlarge subnet-0123 sg-0123' >&2
    exit 2
fi
# First and last network card with EFA.
case $1 in
p4d.24xlarge | p4de.24xlarge | g6e.48xlarge) first=0 last=3 ;;
p5.48xlarge | p5e.48xlarge) first=0 last=31 ;;
p5en.48xlarge) first=0 last=15 ;;
p6-b200.48xlarge) first=0 last=7 ;;
p6-b300.48xlarge) first=1 last=16 ;;
g6e.12xlarge) first=0 last=0 ;;
*)
    echo "interfaces.sh: unknown instance \"$1\": expected p4d.24xlarge, p4de.24xlarge, p5.48xlarge, p5e.48xlarge, p5en.48xlarge, p6-b200.48xlarge," \
        'p6-b300.48xlarge, g6e.12xlarge or g6e.48xlarge' >&2
    exit 2
    ;;
esac
interface() { # CARD DEVICE TYPE
    printf '    {"NetworkCardIndex": %d, "DeviceIndex": %d, "InterfaceType": "%s", "SubnetId": "%s", "Groups": ["%s"], "DeleteOnTermination": true}' \
        "$1" "$2" "$3" "$subnet" "$group"
}
subnet=$2 group=$3
printf '{\n  "InstanceType": "%s",\n  "NetworkInterfaces": [\n' "$1"
interface 0 0 interface
for ((card = first; card <= last; card++)); do
    printf ',\n'
    interface "$card" "$((card == 0 ? 1 : 0))" efa-only
done
printf '\n  ]\n}\n'

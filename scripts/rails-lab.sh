#!/usr/bin/env bash
# Creates a network on one machine: nodes are network namespaces, connected by rate-limited rails. See --help.
set -euo pipefail

usage() {
    cat <<'HELP'
Creates nodes with rate-limited rails between them on one machine: network namespaces, veth pairs and `tc tbf`.

  rails-lab.sh up     [--name NAME] [--nodes N] [--rails R] [--rate RATE] [--mtu BYTES] [--queue MS]
  rails-lab.sh status [--name NAME]
  rails-lab.sh exec   [--name NAME] NODE [--] COMMAND...
  rails-lab.sh down   [--name NAME]

  --name NAME   name of the lab; several labs can exist at the same time [default: rails]
  --nodes N     number of nodes, 2 to 64; with 3 or more, each rail is a bridge in a separate namespace [default: 2]
  --rails R     number of rails, 1 to 64 [default: 4]
  --rate RATE   rate of each rail and direction in kbit, mbit or gbit, or none for unlimited [default: 1gbit]
  --mtu BYTES   576 to 65535 [default: 1500]
  --queue MS    maximum time in the queue of a rail before data is dropped, 1 to 10000 [default: 50]

Rail I of node N is the interface railI with the address 10.99.I.(N+1). Nothing is created outside the namespaces
ginlab-lab-NAME-N and ginlab-lab-NAME-bridge. A failing `up` removes what it has created. After a pause, the first
128 KiB of a direction (or 1 ms of data, if that is more) pass a rail at full speed: measure with more data.

exec runs a command on a node as one rank of a job with one rank per node: it sets RANK, WORLD_SIZE, MASTER_ADDR,
MASTER_PORT and GINLAB_TOKEN unless they are set already. (For ranks within a node: exec 0 -- env -u RANK -u WORLD_SIZE ...)

Exit codes: 0 ok, 1 failed (no root, no ip, no tc, no such lab, ...), 2 usage; exec: that of the command.

Examples:
  scripts/rails-lab.sh up --rate 1gbit --mtu 9000
  scripts/rails-lab.sh exec 1 -- target/release/ginlab proxy -p tcp --rails 1,4 &
  scripts/rails-lab.sh exec 0 -- target/release/ginlab proxy -p tcp --rails 1,4
  scripts/rails-lab.sh exec 0 -- target/release/ginlab efa
  scripts/rails-lab.sh down
  scripts/rails-lab.sh up --name three --nodes 3 --rails 2 --rate 200mbit
HELP
}

say() { printf 'rails-lab.sh: %s\n' "$1" >&2; }
die() {
    say "$1"
    exit 1
}
misused() {
    say "$1; see rails-lab.sh --help"
    exit 2
}

# Runs a command that prints nothing on success; on failure prints one line with the command and its message.
try() {
    local said
    said=$("$@" 2>&1) || die "$*: ${said//$'\n'/; }"
}

number() { # NAME VALUE FROM TO
    # No more digits than shell arithmetic supports; 08 would be octal.
    if ! [[ $2 =~ ^(0|[1-9][0-9]{0,5})$ ]] || (($2 < $3 || $2 > $4)); then
        misused "invalid $1 \"$2\": expected a number from $3 to $4"
    fi
}

if (($# == 0)); then misused 'no command: expected up, down, exec or status'; fi
command=$1
shift
name=rails nodes=2 rails=4 rate=1gbit mtu=1500 queue=50
case $command in
    -h | --help | help)
        usage
        exit 0
        ;;
    up | down | exec | status) ;;
    *) misused "unknown command \"$command\": expected up, down, exec or status" ;;
esac
while (($#)); do
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --name | --nodes | --rails | --rate | --mtu | --queue)
            if [[ $1 != --name && $command != up ]]; then misused "$1 is an option of up"; fi
            if (($# < 2)); then misused "$1 needs a value"; fi
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        -*) misused "unknown option \"$1\"" ;;
        *) break ;;
    esac
done
if ! [[ $name =~ ^[A-Za-z0-9_-]{1,32}$ ]]; then
    misused "invalid --name \"$name\": expected 1 to 32 letters, digits, - and _"
fi
prefix=ginlab-lab-$name
node='' bits=''
case $command in
    up)
        if (($#)); then misused "up takes options only, not \"$1\""; fi
        number --nodes "$nodes" 2 64
        number --rails "$rails" 1 64
        number --mtu "$mtu" 576 65535
        number --queue "$queue" 1 10000
        if [[ $rate =~ ^([1-9][0-9]{0,5})(k|m|g)bit$ ]]; then
            bits=${BASH_REMATCH[1]}
            case ${BASH_REMATCH[2]} in
                k) bits=$((bits * 1000)) ;;
                m) bits=$((bits * 1000000)) ;;
                g) bits=$((bits * 1000000000)) ;;
            esac
        elif [[ $rate != none ]]; then
            misused "invalid --rate \"$rate\": expected a rate like 1gbit, 200mbit or 64kbit, or none"
        fi
        ;;
    exec)
        if (($# == 0)); then misused 'exec: no node'; fi
        node=$1
        number node "$node" 0 63
        shift
        if [[ ${1-} == -- ]]; then shift; fi
        if (($# == 0)); then misused 'exec: no command'; fi
        ;;
    *) if (($#)); then misused "$command takes options only, not \"$1\""; fi ;;
esac

for tool in ip tc; do
    if ! command -v "$tool" >/dev/null; then die "no $tool here: apt-get install iproute2"; fi
done
if ((EUID != 0)); then die 'network namespaces need root: try sudo'; fi

# Lists all namespaces. If one of another process disappears at the same time, ip prints an error that is ignored here.
list() {
    ip netns list 2>/dev/null
}

# Lists the namespaces of this lab: nodes in order, then the bridges.
namespaces() {
    local all
    all=$(list) || die 'ip netns list failed'
    { grep -Eo "^$prefix-([0-9]+|bridge)( |$)" <<<"$all" || true; } | tr -d ' ' | sort -V
}
mapfile -t there < <(namespaces)
if [[ $command == up ]]; then
    # A name without a namespace: left by a run that was killed in its own mount namespace.
    for namespace in "${there[@]}"; do
        ip -n "$namespace" link show >/dev/null 2>&1 || ip netns delete "$namespace" 2>/dev/null || true
    done
    mapfile -t there < <(namespaces)
fi
# The number of nodes.
world=0
for namespace in "${there[@]}"; do
    if [[ $namespace != *-bridge ]]; then world=$((world + 1)); fi
done

made=()
remove() {
    local namespace link busy left=()
    for namespace in "$@"; do
        busy=$(ip netns pids "$namespace" 2>/dev/null | tr '\n' ' ' || true)
        if [[ -n $busy ]]; then say "$namespace: processes continue without its network: ${busy% }"; fi
        # A process keeps an unnamed namespace and the links in it.
        for link in $(ip -n "$namespace" -o link show type veth 2>/dev/null | grep -Eo '(rail|port)[0-9]+[-0-9]*' || true); do
            # May have been deleted together with its peer.
            ip -n "$namespace" link delete "$link" 2>/dev/null || true
        done
        ip netns delete "$namespace" || left+=("$namespace")
    done
    if ((${#left[@]})); then die "cannot remove: ${left[*]}"; fi
}

# At most --queue of data is queued; TCP retransmits dropped data. The bucket holds 1 ms of data and at least 128 KiB.
# The kernel passes up to 64 KiB at a time, and splits it into packets if it does not fit the bucket. Two cores are too
# slow for that: four rails of 1 Gbit/s at MTU 1500 reach 220 to 260 MB/s with a bucket of 16 to 64 KiB, 477 with
# 128 KiB. After a pause, one bucket passes unshaped.
shape() { # NAMESPACE LINK
    if [[ $rate == none ]]; then return; fi
    local burst=$((bits / 8000))
    if ((burst < 131072)); then burst=131072; fi
    try tc -n "$1" qdisc add dev "$2" root tbf rate "${bits}bit" burst "$burst" latency "${queue}ms"
}

namespace() { # NAME
    try ip netns add "$1"
    made+=("$1")
    try ip -n "$1" link set lo up
}

carrier() { # NAMESPACE: the kernel detects a link's carrier within a second; until then libfabric ignores its address.
    local deadline=$((SECONDS + 20))
    until (($(ip -n "$1" -brief link show type veth up | grep -c ' UP ') == rails)); do
        if ((SECONDS > deadline)); then die "the links of $1 are not up after 20 s"; fi
        sleep 0.02
    done
}

up() {
    if ((${#there[@]})); then die "lab $name already exists: ${there[*]}; rails-lab.sh down --name $name removes it"; fi
    trap 'remove "${made[@]}"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    local i rail bridge=$prefix-bridge
    for ((i = 0; i < nodes; i++)); do namespace "$prefix-$i"; done
    if ((nodes > 2)); then namespace "$bridge"; fi
    for ((rail = 0; rail < rails; rail++)); do
        if ((nodes == 2)); then
            try ip -n "$prefix-0" link add "rail$rail" mtu "$mtu" type veth peer name "rail$rail" mtu "$mtu" netns "$prefix-1"
        else
            try ip -n "$bridge" link add name "bridge$rail" type bridge
            # No addresses on ports: a bridge only connects.
            try ip -n "$bridge" link set "bridge$rail" addrgenmode none mtu "$mtu" up
        fi
        for ((i = 0; i < nodes; i++)); do
            if ((nodes > 2)); then
                local port=port$rail-$i
                try ip -n "$prefix-$i" link add "rail$rail" mtu "$mtu" type veth peer name "$port" mtu "$mtu" netns "$bridge"
                try ip -n "$bridge" link set "$port" addrgenmode none master "bridge$rail" up
                # Also shapes the traffic of several nodes to one.
                shape "$bridge" "$port"
            fi
            try ip -n "$prefix-$i" link set "rail$rail" addrgenmode none
            try ip -n "$prefix-$i" address add "10.99.$rail.$((i + 1))/24" dev "rail$rail"
            try ip -n "$prefix-$i" link set "rail$rail" up
            shape "$prefix-$i" "rail$rail"
        done
    done
    for ((i = 0; i < nodes; i++)); do carrier "$prefix-$i"; done
    trap - EXIT INT TERM
    say "lab $name: $nodes nodes, $rails rails of $rate, mtu $mtu"
}

missing() {
    local others
    others=$(list | grep -Eo '^ginlab-lab-.*-0( |$)' | sed -E 's/^ginlab-lab-(.*)-0 ?$/\1/' | paste -sd ' ' || true)
    printf 'no such lab: %s%s' "$name" "${others:+; existing labs: $others}"
}

status() {
    local namespace link address words rate mtu state
    printf '%-5s %-7s %-15s %-9s %-6s %s\n' node rail address rate mtu link
    for namespace in "${there[@]}"; do
        if [[ $namespace == *-bridge ]]; then continue; fi
        for link in $(ip -n "$namespace" -o link show type veth | grep -Eo 'rail[0-9]+' | sort -uV); do
            address=$(ip -n "$namespace" -4 -o address show dev "$link" | awk '{print $4}')
            rate=$(tc -n "$namespace" qdisc show dev "$link" root | sed -nE 's/.* rate ([^ ]+).*/\1/p')
            words=$(ip -n "$namespace" -o link show dev "$link")
            mtu=$(sed -nE 's/.* mtu ([0-9]+).*/\1/p' <<<"$words")
            state=$(sed -nE 's/.* state ([A-Z]+).*/\1/p' <<<"$words")
            printf '%-5s %-7s %-15s %-9s %-6s %s\n' "${namespace##*-}" "$link" "${address:--}" "${rate:-none}" "$mtu" "${state,,}"
        done
    done
}

case $command in
    up) up ;;
    down)
        if ((${#there[@]} == 0)); then
            say "$(missing)"
            exit 0
        fi
        remove "${there[@]}"
        ;;
    status)
        if ((${#there[@]} == 0)); then die "$(missing)"; fi
        status
        ;;
    exec)
        if ((${#there[@]} == 0)); then die "$(missing)"; fi
        if ((node >= world)); then die "lab $name has nodes 0 to $((world - 1)), not $node"; fi
        export RANK=${RANK:-$node} WORLD_SIZE=${WORLD_SIZE:-$world} MASTER_ADDR=${MASTER_ADDR:-10.99.0.1}
        export MASTER_PORT=${MASTER_PORT:-29400} GINLAB_TOKEN=${GINLAB_TOKEN:-$prefix}
        exec ip netns exec "$prefix-$node" "$@"
        ;;
esac

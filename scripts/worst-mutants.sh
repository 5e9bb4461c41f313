#!/usr/bin/env bash
# Checks that scripts/worst-matrix.sh detects errors: leaves out one rule or one wait of the product at a time, and runs
# the combinations of the matrix that must fail then.
#
#   scripts/worst-mutants.sh [DIR]     DIR: for results [default: target/worst-mutants]
#
#   SEEDS  maximum seeds per combination; stops at the first that fails   [default: 20]
#   JOBS   commands at the same time, each on its own core   [default: number of cores]
#   ONLY   regular expression of mutations, anchored at the start of the name   [default: all]
#   LIST   1: only list the mutations and the number of combinations of each
#
# One build contains all mutations: in a copy of the tree (DIR/tree), each place asks by name whether it is left out,
# which an environment variable selects. The same program with nothing left out must pass all commands first. Kernels
# are not compiled to PTX (--no-default-features) and run on the emulated device, whose code is the same.
#
# Writes worst-mutants.csv: name, file, found (yes or no), seeds run, failing command, its message. Exit codes: 0 ok, 1
# a mutation was not found or the program fails with nothing left out, 2 a mutation does not fit the code or does not
# compile.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
out=${1:-target/worst-mutants}
mkdir -p "$out"
out=$(realpath "$out") || exit
tree=$out/tree
seeds=${SEEDS:-20} jobs=${JOBS:-$(nproc)} only=${ONLY:-}

# Time limit of a command; several times the deadline of every wait (30 s). A command that exceeds it counts as failed.
EACH=150
# Seeds are run in two passes, because most mutations fail early: the first few seeds of all combinations, then the
# others.
FIRST_PASS=3

script=worst-mutants.sh library=crates/cuda_std/src/lib.rs question=cuda_std::kept
# shellcheck source=scripts/mutations.sh
source scripts/mutations.sh

# Not listed here, because no run over this network can detect it (tried with all combinations that contain it, except
# for barriers of many PEs):
#  - The order of `sequence`: nothing may rely on it (`Signal` in kernels/src/gin/mod.rs). Without it the rule equals
#    `count` with one more immediate; host/proxy/signal_order/tests.rs detects it.
#  - The rules of NCCL's plugin: no subcommand runs it without a GPU and NCCL; host/nccl_plugin/tests/double/order.rs
#    detects it.
#  - Credits: they prevent overflow of a completion queue, and this network has unlimited ones;
#    host/proxy/signal_order/credits.rs detects it.
#  - The windows of write and sendrecv, and the quiet after shmem's exchange with puts: they protect identical bytes.
#  - sendrecv's last completions: implied by the receiver's last message.
#  - The quiet of Jacobi's norms: tickets complete in order, and the next iteration's rows are later tickets of a ring.
#  - halo::finish: the next user of the rows waits itself, after a wait for their arrival.
#  - Dissemination barriers: they need more PEs than the matrix has.
#  - moe's two slots of answers (by the parity of the round): an answer's signal implies that nothing of it is written
#    again, and no PE sends in a round before all answers of the preceding one are read (260 seeds of 13 combinations).

# --- the four rules for a put and its signal ---
rules=host/proxy/engine/signalled.rs accounts=host/proxy/signal_order.rs
# Programs that detect a late byte; puts with one transfer and with several.
order='--cases signal-order .*-n 12 .*'
data='shmem .*--np [23] .*--rule (count|sequence) .*--cases data-order .*'
# The count of a put's transfers at the target.
mutation rule-count $accounts "shmem .*--np 2 .*longest.*--rule count .*$order" \
    '(slot.arrived >= slot.parts || self.early)' '(slot.arrived >= slot.parts || self.early || !KEPT)'
# Its own completion.
mutation rule-own $rules "shmem .*--np 2 .*--rule own .*$order" 'if self.signals.early {
            self.signals.ready.push(ticket);' 'if self.signals.early || !KEPT {
            self.signals.ready.push(ticket);'
# The completion of all transfers in flight to that PE.
mutation rule-drain $rules "shmem .*--np 2 .*--rule drain .*$order" 'if self.signals.early {
                    self.enqueue_signal(ticket, route, peer, signal);' 'if self.signals.early || !KEPT {
                    self.enqueue_signal(ticket, route, peer, signal);'
# The transfers of the next put in sequence.
mutation rule-sequence $accounts "shmem .*--np 2 .*--rule sequence .*$order" 'if self.in_order && self.early {' 'if self.in_order && (self.early || !KEPT) {'
# A slot in the target's account is reused only after the target permits it.
mutation rule-slots $accounts 'shmem .*--rule sequence .*signal-order .*--grid 16 .*' 'if outgoing.taken - outgoing.freed >= self.window {' \
    'if KEPT && outgoing.taken - outgoing.freed >= self.window {'

# --- the proxy ---
# A put's ticket is complete when its transfers are, not when it was taken from the ring.
mutation proxy-completion host/proxy/serve.rs "$data" 'let watermark = self.engine.watermark();' \
    'let watermark = if KEPT { self.engine.watermark() } else { self.ring.consumer.as_ref().map_or(0, Consumer::cursor) };'
# All of its transfers.
mutation proxy-transfers $rules 'shmem .*--np 2 .*longest.*data-order .*' 'if pieces > 1 {' 'if pieces > 1 && KEPT {'
# CPU-initiated puts are complete when the call returns.
mutation proxy-host-put host/proxy/serve.rs 'jacobi .*host-write .*' 'let settled = posted.and_then(|()| self.settle());' \
    'let settled = posted.and_then(|()| if KEPT { self.settle() } else { Ok(()) });'

# --- rounds and messages ---
round=kernels/src/gin/round.rs message=kernels/src/gin/message.rs fold=kernels/src/gin/fold.rs
resident='jacobi .*--rule (count|sequence) .*--exchange resident .*'
# A round waits for the completion of the round before the last: all such waits; that of `put_round_nbi` and `send`;
# that of `reclaim_round`.
mutation round-before-last $round "$resident|$data" 'match ring.wait(ticket) {' 'match if KEPT { ring.wait(ticket) } else { Ok(0) } {'
mutation round-send $round "$data" 'let (stop, known) = wait_for_last_apart(sent, number, 1, self.known);' \
    'let (stop, known) = if KEPT { wait_for_last_apart(sent, number, 1, self.known) } else { (0, self.known) };'
without round-reclaim $round "$resident" 'self.wait_sent(signal, 1, round, pe);'
# The signal of a round, and of a message, identifies the round.
sum='WaitCondition::at_least(3 * (round as u64 / 2) + round as u64 % 2)'
mutation round-parity $round "$resident" 'NO_PE, signal, WaitCondition::round(round));' "NO_PE, signal, if KEPT { WaitCondition::round(round) } else { $sum });"
mutation message-parity $message "$data" 'pe, signal, WaitCondition::round(round));' "pe, signal, if KEPT { WaitCondition::round(round) } else { $sum });"
# A message has arrived before it is copied.
without message-arrival $message 'shmem .*--np 2 .*message-ping-pong .*' 'self.wait_message(inbox, round, pe);'
# An exchange returns when its source can be overwritten.
mutation all-to-all-source $message "$data" '        self.reclaim_all(inbox, round);' '        if KEPT { self.reclaim_all(inbox, round); }'
# All messages have arrived before they are added, and the own ones have left before the sum overwrites them.
sums='collective .*--path rails .*--rule count .*gin-(all-reduce|reduce-scatter) .*-b 64 .*'
mutation fold-arrival $fold "$sums" 'if self.heap_of(pe) == 0 {
                    self.wait' 'if KEPT && self.heap_of(pe) == 0 {
                    self.wait'
without fold-source $fold "$sums" 'self.reclaim_all(inbox, round);'

# --- calls of a context ---
context=kernels/src/gin/context.rs barrier=kernels/src/gin/barrier.rs
mutation quiet $context 'shmem .*--np 2 .*--rule count .*put-(latency|bandwidth) .*' '        self.finish(call, NO_PE, 0)' \
    '        if KEPT { self.finish(call, NO_PE, 0) } else { self.agreed() }'
mutation get $context "$data" '        self.finish(Call::Get, pe, from.bytes())' \
    '        if KEPT { self.finish(Call::Get, pe, from.bytes()) } else { self.agreed() }'
# A barrier waits for the other PEs, and for this PE's puts.
without barrier-others $barrier 'jacobi .*--sync barrier .*' 'self.wait_signal(Call::Barrier, NO_PE, flat, passed * (team.pes as u64 - 1));'
without barrier-puts $barrier "$data" 'self.wait_for_tickets(Call::Barrier, NO_PE, 0);'

# --- collectives ---
puts=kernels/src/collective/puts.rs messages=kernels/src/collective/messages.rs
# With puts: all PEs have started; sums and gathered data have arrived; other nodes' chunks; this node's chunks, and the
# node has read.
by_puts='collective .*--np 3 .*--rule count .*'
for signal in READY PARTS CROSS; do
    mutation "collective-${signal,,}" $puts "$by_puts" '        *counted += count;' "        *counted += count;
        if signal == $signal && !KEPT { return Ok(()); }"
done
mutation collective-local $puts 'collective .*--node-size 2 .*--rule count .*' '        *counted += count;' '        *counted += count;
        if signal == LOCAL && !KEPT { return Ok(()); }'
# Sources of puts over rails can be overwritten when the kernel ends.
mutation collective-puts-quiet $puts "$by_puts" 'if line.world().ring_count == 0 {' 'if line.world().ring_count == 0 || !KEPT {'
mutation collective-messages-quiet $messages 'collective .*--np 2 .*--rule count .*' 'if line.world().ring_count == 0 {' 'if line.world().ring_count == 0 || !KEPT {'
# A broadcast's root waits until the round before the last has been received.
without collective-acknowledged $messages 'collective .*gin-broadcast .*-b 64 .*' 'line.signal_wait_until(acknowledged, *counted)?;'

# --- Jacobi ---
door=kernels/src/jacobi/halo.rs launched=kernels/src/jacobi/exchange.rs
# Resident rows: the neighbour's row.
mutation jacobi-resident-row $door "$resident" '|()| line.wait_round(link.rounds[side], tag));' '|()| if KEPT { line.wait_round(link.rounds[side], tag) } else { Ok(()) });'
# Launched kernels: the neighbour's row, and that the own row can be overwritten; also for single values.
mutation jacobi-row $launched 'jacobi .*--rule count .*--exchange (host-write|p|block|row) .*' 'link.world.context(Block).signal_wait_until(link.signals[side], wanted);' \
    'if KEPT { link.world.context(Block).signal_wait_until(link.signals[side], wanted) } else { Ok(()) };'
mutation jacobi-quiet $launched 'jacobi .*--rule count .*--exchange (block|row) .*' 'if line.is_mapped(self.peer) { Ok(()) }' 'if line.is_mapped(self.peer) || !KEPT { Ok(()) }'
mutation jacobi-values $launched 'jacobi .*--exchange p .*' 'let stop = line.quiet().map_or_else(|stop| stop.0, |()| 0);' \
    'let stop = if KEPT { line.quiet().map_or_else(|stop| stop.0, |()| 0) } else { 0 };'

# --- a mixture of experts ---
moe=kernels/src/moe/round.rs
by_rails='moe .*--path rails .*--rule count .*' by_node='moe .*--node-size 2 .*--rule count .*'
# Messages; puts between PEs of a node; answers.
mutation moe-arrived kernels/src/gin/counts.rs "$by_rails" 'self.wait_more(&counts.arrived, pe, count)' 'self.wait_more(&counts.arrived, pe, if KEPT { count } else { 0 })'
mutation moe-node $moe "$by_node" 'first.barrier(TeamKind::Node)' '(if KEPT { first.barrier(TeamKind::Node) } else { Ok(()) })'
mutation moe-answered $moe "$by_rails" 'turn.planned(pe).max(1).into()' '(if KEPT { turn.planned(pe).max(1) } else { 1 }).into()'
# Data has arrived before the barrier, also over rails.
mutation moe-fence $moe 'moe .*--np [34] --path rails .*--rule count .*' 'self.near.fence()' 'if KEPT { self.near.fence() } else { Ok(()) }'
# Puts are complete before the next round.
mutation moe-quiet $moe "$by_rails|$by_node" 'self.line.quiet().and(self.alone.quiet())' 'if KEPT { self.line.quiet().and(self.alone.quiet()) } else { Ok(()) }'
# A signal before its data: of a message, of an answer.
mutation moe-message-order $moe "$by_rails" 'self.line.put_signal_nbi(to, from, signal, add.into(), pe)' \
    'if KEPT { self.line.put_signal_nbi(to, from, signal, add.into(), pe) } else { self.line.signal_op(signal, add.into(), pe).and(self.line.put_nbi(to, from, pe)) }'
mutation moe-answer-order $moe "$by_rails" 'self.line.put_signal_nbi(to, from, signal, 1, pe)' \
    'if KEPT { self.line.put_signal_nbi(to, from, signal, 1, pe) } else { self.line.signal_op(signal, 1, pe).and(self.line.put_nbi(to, from, pe)) }'
# A count read too early: before its signal; of the preceding round, if it is sent as a value.
without moe-count-signal kernels/src/gin/counts.rs "$by_rails" 'self.signal_wait_until(signal, seen + 1)?;'
mutation moe-count-value kernels/src/gin/counts.rs "$by_rails" 'self.wait_value(counts.values.at(pe as u64), round)? as u64' \
    'self.wait_value(counts.values.at(pe as u64), if KEPT || round == 1 { round } else { round - 1 })? as u64'
# A message of the round before the last is in no list.
mutation moe-round $moe "$by_rails" 'self.header(object, number, 0) == self.round' \
    '(self.header(object, number, 0) == self.round || !KEPT && self.header(object, number, 0) + 2 == self.round)'
# A value is complete.
mutation moe-value kernels/src/gin/value.rs "$by_rails" 'word & 0xf0f0_f0f0_f0f0_f0f0 == value_word(0, round)' \
    'word & if KEPT { 0xf0f0_f0f0_f0f0_f0f0 } else { 0xf0 } == value_word(0, round) & if KEPT { u64::MAX } else { 0xf0 }'

# --- other programs ---
check=kernels/src/signal_check.rs kernel=kernels/src/put_kernel.rs
# `signal-order`: data has arrived, data has been checked, and sources can be overwritten.
mutation order-arrived $check "shmem .*--np 2 .*--rule count .*$order" 'if line.signal_wait_until(args.arrived' 'if KEPT && line.signal_wait_until(args.arrived'
mutation order-checked $check "shmem .*--rule count .*$order" 'if line.signal_wait_until(args.checked' 'if KEPT && line.signal_wait_until(args.checked'
mutation order-quiet $check "shmem .*watch=strict .*--rule count .*$order" 'if slot == 0 && line.quiet()' 'if KEPT && slot == 0 && line.quiet()'
mutation ping-pong kernels/src/shmem/latency.rs 'shmem .*put-signal-ping-pong .*-n 1 .*' 'line.signal_wait_until(args.signal, args.counted + turns as u64)' \
    'if KEPT { line.signal_wait_until(args.signal, args.counted + turns as u64) } else { Ok(()) }'
without exchange-puts kernels/src/shmem/exchange.rs 'shmem .*all-to-all --message-limit .*' 'line.signal_wait_until(args.exchanged.at(pe), (args.rounds + turn) as u64 + 1)?;'
# `ginlab proxy`: a slot's put is complete before the slot is filled again, by a thread and by a block; at the end all
# are.
mutation put-window $kernel 'proxy .*--mode nbi .*--scope thread .*' 'stop = code(channel.quiet_until(unsafe { *args.ticket(producer, first) }));' \
    'stop = if KEPT { code(channel.quiet_until(unsafe { *args.ticket(producer, first) })) } else { 0 };'
mutation put-window-ahead $kernel 'proxy .*--mode nbi .*' 'stop = code(channel.quiet_until(unsafe { *args.ticket(producer, last) }));' \
    'stop = if KEPT { code(channel.quiet_until(unsafe { *args.ticket(producer, last) })) } else { 0 };'
mutation put-quiet $kernel 'proxy .*--mode nbi .*' '    if stop == 0 && leads {
        stop' '    if stop == 0 && leads && KEPT {
        stop'
mutation write-completion experiments/write/measure.rs 'write .*' 'in flight.into_iter().flatten() {
            write.await?;' 'in flight.into_iter().flatten() {
            if KEPT { write.await?; }'
without all2all-arrival experiments/all2all/round.rs 'all2all .*' 'self.job.wait_signal(self.step, expected, all).await?;'
without all2all-completion experiments/all2all/round.rs 'all2all .*' 'write.await?;'
without sendrecv-arrival experiments/sendrecv/mod.rs 'sendrecv .*' 'self.expect(tuple, oldest.await?)?;'

commands_of() { LIST=1 DEVICE=emulated ONLY=$1 scripts/worst-matrix.sh; }
if [[ -n ${LIST:-} ]]; then
    for index in "${!names[@]}"; do
        printf '%-28s %-44s %4d\n' "${names[index]}" "${files[index]}" "$(commands_of "${checks[index]}" | wc -l)"
    done
    exit
fi

copy || fail "cannot copy the tree to $tree"
began=$SECONDS
# A fixed commit, because a new one would recompile everything.
(cd "$tree" && GINLAB_COMMIT=worst-mutants nice cargo build --quiet --locked --profile demo --no-default-features --bin ginlab) 2>"$out/build.txt" || {
    grep -A 12 '^error' "$out/build.txt" | head -n 60 >&2
    fail "the mutations do not compile ($out/build.txt)"
}
echo "built in $((SECONDS - began)) s: ${#names[@]} mutations"

# soak NAME FIRST SEEDS WORK COMMAND: runs these seeds up to the first that fails; NAME: the mutation, or nothing.
# Writes errors to WORK.err. Prints the number of seeds that were run.
soak() {
    local name=$1 first=$2 count=$3 work=$4 code ran
    shift 4
    # shellcheck disable=SC2086,SC2048,SC2154  # the command is words; xargs sets slot
    GINLAB_LEFT_OUT=$name timeout -k 5 "$EACH" taskset -c "$((slot % $(nproc)))" "$ginlab" soak --stop --first "$first" --seeds "$count" --no-header --csv "$work.csv" -- $* >/dev/null 2>"$work.err"
    code=$?
    # Quoted fields contain commas.
    ran=$(sed 's/"[^"]*"//g' "$work.csv" 2>/dev/null | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) n[$i] = i } NR == 2 { print $n["seeds"] }')
    rm -f "$work.csv" "$work.header.json"
    case $code in
    0 | 1) ;;
    2 | 3) echo "cannot run: ginlab $*" >>"$work.err" ;;
    # A kernel that uses data before it has arrived may fail in any way.
    *) echo "exit code $code" >>"$work.err" ;;
    esac
    echo "${ran:-1}"
    return $code
}
# control COMMAND: runs all seeds with nothing left out. Prints the command if it fails.
control() {
    local work
    work=$(mktemp "$out/work.XXXXXX")
    soak '' 1 "$seeds" "$work" "$*" >/dev/null || printf 'nothing is left out: ginlab %s\n%s\n' "$*" "$(tail -n 3 "$work.err")"
    rm -f "$work" "$work.err"
}
# search NAME FILE: writes a row for one mutation.
search() {
    local name=$1 file=$2 work total=0 found=no command='' said='' first count ran code
    work=$(mktemp "$out/work.XXXXXX")
    for first in 1 $((FIRST_PASS + 1)); do
        count=$((first == 1 ? FIRST_PASS : seeds - FIRST_PASS))
        if ((count > seeds)); then count=$seeds; fi
        if ((count < 1)); then continue; fi
        while IFS= read -r command; do
            ran=$(soak "$name" "$first" "$count" "$work" "$command")
            code=$?
            total=$((total + ran))
            if ((code == 2 || code == 3)); then
                found=error
                break 2
            elif ((code)); then
                found=yes
                break 2
            fi
        done <"$out/rows/$name.txt"
    done
    if [[ $found == no ]]; then
        command="$(wc -l <"$out/rows/$name.txt") combinations"
    else
        # The line of the failing seed, or the last line.
        said=$(grep -m 1 'seed [0-9]*: ' "$work.err" || tail -n 1 "$work.err")
        said=$(sed 's/^ginlab: //; s/: ginlab [a-z0-9]* -.*//' <<<"$said" | tr -d '"')
    fi
    printf '%s,%s,%s,%d,"%s","%s"\n' "$name" "$file" "$found" "$total" "$command" "$said" | tee "$out/rows/$name.csv"
    rm -f "$work" "$work.err"
}
export -f soak control search
export ginlab=$tree/target/demo/ginlab out seeds EACH FIRST_PASS
rm -rf "$out/rows"
mkdir -p "$out/rows"
began=$SECONDS
for index in "${!names[@]}"; do
    list=$out/rows/${names[index]}.txt
    commands_of "${checks[index]}" >"$list"
    [[ -s $list ]] || fail "${names[index]}: the matrix has no such combination: ${checks[index]}"
done
sort -u "$out"/rows/*.txt >"$out/commands.txt"
# shellcheck disable=SC2016  # the inner shell's
tr '\n' '\0' <"$out/commands.txt" | xargs -0 -r --process-slot-var=slot -P "$jobs" -I{} bash -c 'control "$1"' control {} >"$out/control.txt"
if [[ -s $out/control.txt ]]; then
    cat "$out/control.txt" >&2
    echo "worst-mutants.sh: the program fails with nothing left out" >&2
    exit 1
fi
echo "nothing left out: $(wc -l <"$out/commands.txt") combinations of $seeds seeds passed in $((SECONDS - began)) s"
began=$SECONDS
for index in "${!names[@]}"; do
    printf '%s\0%s\0' "${names[index]}" "${files[index]}"
done | xargs -0 -r -n 2 --process-slot-var=slot -P "$jobs" bash -c 'search "$@"' search
{
    echo 'name,file,found,seeds,command,error'
    for name in "${names[@]}"; do cat "$out/rows/$name.csv"; done
} >"$out/worst-mutants.csv"
found=$(grep -c '^[^,]*,[^,]*,yes,' "$out/worst-mutants.csv")
echo "found $found of ${#names[@]} in $((SECONDS - began)) s: $out/worst-mutants.csv"
if grep -q '^[^,]*,[^,]*,error,' "$out/worst-mutants.csv"; then exit 2; fi
((found == ${#names[@]}))

#!/usr/bin/env bash
# Do the tests of NCCL's plugin find what they are for? Leaves out one rule of its order, its completions or its closing at a time, and runs the
# tests (host/nccl_plugin/tests/double and unit tests) that must fail then. host/nccl_plugin/MUTANTS.md has the rules and the last result.
#
#   scripts/nccl-mutants.sh [FOLDER]     results go to FOLDER (default: target/nccl-mutants)
#   ROUNDS=3             rounds of the tests with chance (GINLAB_ROUNDS)
#   TIMES=1              runs of each mutation; the table has the number of runs in which a test failed
#   ONLY='turn|get'      some of the mutations, by the beginning of their name
#   LIST=1               only list the mutations, their rules and their tests
#
# One build has all mutations (scripts/mutations.sh). The same program without a mutation must pass all tests first.
#
# Leaves nccl-mutants.md, a table: mutation, rule, code, caught by. Exit code 1: one was not caught, or a test fails with nothing left out. 2: a mutation
# no longer fits the code, or does not compile.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
out=${1:-target/nccl-mutants}
mkdir -p "$out"
out=$(realpath "$out") || exit
# shellcheck disable=SC2034  # for mutations.sh
tree=$out/tree only=${ONLY:-} script=nccl-mutants.sh library=host/nccl_plugin/src/testing.rs question=crate::testing::kept
rounds=${ROUNDS:-3} times=${TIMES:-1}
# shellcheck source=scripts/mutations.sh
source scripts/mutations.sh

# Limits in seconds: a wait of the double, and a run of the tests of one mutation.
PATIENCE=15
EACH=200

declare -A rules places
# rule NAME RULE FILE TESTS FROM TO: a mutation of the plugin. TESTS: filters; those of unit tests begin with `lib:`.
rule() {
    local file=host/nccl_plugin/src/$3 before
    before=$(<"$file")
    before=${before%%"$5"*}
    before=${before//[!$'\n']/}
    rules[$1]=$2 places[$1]=$3:$((${#before} + 1))
    mutation "$1" "$file" "$4" "$5" "$6"
}

# --- the order of signals ---
order=endpoint/order.rs signals=endpoint/signals.rs incoming=endpoint/incoming.rs
rule turn 'a signal waits for earlier puts and signals of its context and peer' $order 'stepped::signals_of_random visible::signals_of_context' \
    'started + 1 < header.turn ||' 'KEPT && started + 1 < header.turn ||'
rule weak 'a weak signal waits for the put before it' $order 'stepped::signals_of_random visible::weak visible::signals_of_context' \
    'started + 1 < header.turn' '(KEPT || header.total > 0) && started + 1 < header.turn'
rule line 'later signals of a context join a queued one or wait' $order 'stepped:: visible::strong visible::reset' \
    'match (course.and_then(|course| course.line), word) {' 'match (course.filter(|_| KEPT).and_then(|course| course.line), word) {'
rule line-host 'a GPU signal waits for a queued one in host memory' $order 'stepped:: visible::strong' \
    ' | (Some((Line::Host, _)), Word::Counted | Word::Read) => None,' ' => None,
            (Some((Line::Host, _)), Word::Counted | Word::Read) if KEPT => None,
            (Some((Line::Host, _)), Word::Counted) => Some(None),
            (Some((Line::Host, _)), Word::Read) => Some(Some(Line::Read)),'
rule line-read 'a host signal waits for a queued one whose word is read' $order 'stepped:: visible::strong' \
    '(Some((Line::Read, _)), Word::Host(_))' '(Some((Line::Read, _)), Word::Host(_)) if !KEPT => Some(Some(Line::Host)),
            (Some((Line::Read, _)), Word::Host(_))'
rule started 'an operation has arrived when its signal is written' $order 'stepped:: visible::signal_of_complete' \
    'course.line = Some((line, course.line.map_or(0, |(_, count)| count) + 1));' 'course.line = Some((line, course.line.map_or(0, |(_, count)| count) + 1));
        if !KEPT { self.is_here(header.number); }'
rule words-merged 'only consecutive signals of a word are merged' $signals 'stepped:: visible::signals_of_context' \
    'if read.get(at + 1).is_none_or(|next| next.header.then != header.then) {' \
    'if if KEPT { read.get(at + 1).is_none_or(|next| next.header.then != header.then) } else { !read[at + 1..].iter().any(|next| next.header.then == header.then) } {'
rule words-read 'a word that a program may reset is read before it is written' $signals 'stepped::reset shared_memory' \
    'Some(region) if !region.never_reset => Word::Read,' 'Some(region) if !region.never_reset && KEPT => Word::Read,'
rule words-mark 'a word is up to date when its copy is complete' $signals 'visible::signals_of_several shared_memory' \
    'if mark > passed {' 'if mark > passed && KEPT {'
rule host-copies 'a signal in host memory waits for earlier copies' $signals 'stepped:: visible::signals_of_context' \
    'Word::Host(self.inc.copied || self.copies.passed(Queue::In)? < self.inc.last_mark)' 'Word::Host(KEPT && (self.inc.copied || self.copies.passed(Queue::In)? < self.inc.last_mark))'
rule parts 'a signal waits for all fragments of its put' $incoming 'order:: queues::queues_work_over_worst exchanges_work_over_worst' \
    '*left = left.saturating_sub(1);' '*left = left.saturating_sub(if KEPT { 1 } else { header.parts - 1 });'

# --- completions ---
outgoing=endpoint/outgoing.rs filling=endpoint/filling.rs
rule complete-signals 'a signal waits for completed operations of other contexts' $order 'stepped:: visible::signal_of_complete' \
    '!self.here.covers((header.behind, header.among))' 'KEPT && !self.here.covers((header.behind, header.among))'
rule complete-written 'a signal waits for their signals, not only their bytes' $order 'stepped:: visible::signal_of_complete' \
    '!self.here.covers(' '!(if KEPT { &self.here } else { &self.bytes }).covers('
rule complete-puts 'a put waits for completed operations' $order 'order:: lib:endpoint::order' \
    'let waits = !self.may_land(&arrival.header);' 'let waits = !self.may_land(&arrival.header) && (KEPT || arrival.header.kind != Kind::Put);'
rule complete-gets 'a get waits for completed operations' $order 'stepped::get order:: lib:endpoint::order' \
    '!self.may_land(&arrival.header)' '!self.may_land(&arrival.header) && (KEPT || arrival.header.kind != Kind::Get)'
rule gets-signals 'a get waits for their signals, not only their bytes' $order 'stepped::get lib:endpoint::order' \
    'if header.kind == Kind::Get { &self.here }' 'if header.kind == Kind::Get && KEPT { &self.here }'
rule gets-copies 'a get waits for earlier copies' endpoint/answering.rs 'stepped::get order::' \
    'region.is_some_and(|region| region.cuda)' 'KEPT && region.is_some_and(|region| region.cuda)'
rule complete-named 'a slot names the operations that were complete' $filling 'order::' \
    'let (behind, among) = complete.summary();' 'let (behind, among) = if KEPT { complete.summary() } else { (0, 0) };'
rule complete-among 'also those after an incomplete one' $filling 'order::' '            among,
        };' '            among: if KEPT { among } else { 0 },
        };'
rule put-complete 'a put is complete when the rails report it' $outgoing 'closing:: order::' \
    '|(ticket, _)| *ticket < watermark)' '|(ticket, _)| *ticket < watermark || !KEPT)'
rule put-copied 'a slot is sent when its bytes have left the GPU' $outgoing 'shared_memory' \
    'while self.out.copying.front().is_some_and(|(mark, _)| *mark <= passed)' 'while self.out.copying.front().is_some_and(|(mark, _)| *mark <= passed || !KEPT)'
rule get-complete 'a get is complete when its bytes are in memory' $incoming 'stepped::complete_get' \
    'self.inc.ended.push(Ended { from, slot, note: None, answer: Some((header.get, bytes)) });' 'if KEPT {
                self.inc.ended.push(Ended { from, slot, note: None, answer: Some((header.get, bytes)) });
            } else {
                self.inc.end(from, slot);
                if let Some(wanted) = self.out.answered(header.get, bytes) {
                    wanted.complete();
                    self.readers.note(true);
                }
            }'
rule get-parts 'a get is complete with its last fragment' $outgoing 'shared_memory queues::queues_over_shared' 'if wanted.left == 0 {' 'if wanted.left == 0 || !KEPT {'
rule slot-returned 'a slot is reused when the peer has returned it' $outgoing 'shared_memory' \
    'if state.gone && state.returned {' 'if state.gone && (state.returned || !KEPT) {'
rule slot-copied 'a slot is returned when its bytes are copied' $incoming 'shared_memory stepped::' \
    'let mark = self.mark_in()?;
        for ended' 'let mark = if KEPT { self.mark_in()? } else { 0 };
        for ended'

# --- closing and failures ---
leaving=endpoint/leaving.rs
rule leaving-losses 'a disconnected peer fails single transfers' endpoint/mod.rs 'closing::' \
    'engine.keep_losses();' 'if KEPT { engine.keep_losses(); }'
rule leaving-dropped 'replies to a disconnected peer are dropped' $leaving 'closing::' \
    '                    None => {}' '                    None if KEPT => {}
                    None => return Err(format!("a transfer has failed: {error}")),'
rule leaving-received 'a slot that was returned had arrived' $leaving 'closing::' \
    'asks && !self.out.peers[part.peer].has_returned(part.slot)' 'asks && !(KEPT && self.out.peers[part.peer].has_returned(part.slot))'
rule leaving-forgotten 'signals that wait for a disconnected peer are dropped' $leaving 'closing::' \
    'self.engine.forget_peer(peer, &error);' 'if KEPT { self.engine.forget_peer(peer, &error); }'
rule leaving-named 'an operation that has not arrived names its peer' $leaving 'closing::dead' \
    'Some(part) if self.is_missed(part) =>' 'Some(part) if self.is_missed(part) && KEPT =>'
rule close-waits 'closing waits until the peers have received everything' pool.rs 'closing::' \
    'let waits = || coll.failure()' 'let waits = || KEPT && coll.failure()'
rule failed-asks 'a failed communicator refuses operations' coll.rs 'refusals::calls_after_failure' \
    'if let Some(why) = self.failure() {' 'if let Some(why) = self.failure().filter(|_| KEPT) {'
rule failed-tests 'requests of a failed communicator end with an error' puts.rs 'refusals::calls_after_failure faults' \
    'if !ended && joined.coll.failure().is_some() {' 'if !ended && KEPT && joined.coll.failure().is_some() {'
rule failed-turns 'a failed communicator is not driven' pool.rs 'lib:pool' \
    'if driven.coll().failure().is_some() {' 'if driven.coll().failure().is_some() && KEPT {'
rule panic-caught 'a panic ends only its communicator' pool.rs 'lib:pool' \
    'catch_unwind(AssertUnwindSafe(act)).ok()' 'if KEPT { catch_unwind(AssertUnwindSafe(act)).ok() } else { Some(act()) }'
rule panic-fails 'a panic fails its communicator' pool.rs 'lib:pool' \
    'None => coll.fail(MISTAKE),' 'None if KEPT => coll.fail(MISTAKE),
                None => {}'
rule region-reserved 'a context reserves its region number first' queues/build.rs 'queues::region' \
    '    let region = coll.reserve();' '    if !KEPT { Shape::of(config, coll.ranks)?; }
    let region = coll.reserve();'
rule region-early 'a slot for an unregistered region waits' $incoming 'early::' \
    'if region.is_none() {
                self.inc.early.push(arrival);' 'if region.is_none() && KEPT {
                self.inc.early.push(arrival);'
rule region-early-signal 'a slot whose signal is in such a region waits' $incoming 'early::' \
    'if header.signals && self.signal_is_early(&arrival)? {' 'if header.signals && KEPT && self.signal_is_early(&arrival)? {'
rule open-pins 'a failed open unpins the zones' endpoint/mod.rs 'driver::' \
    'self.pinned += 1;' 'if KEPT { self.pinned += 1; }'
rule open-streams 'a failed open destroys the streams' cuda.rs 'driver::' \
    'let _ = sys::cuStreamDestroy_v2(self.stream);' 'if KEPT { let _ = sys::cuStreamDestroy_v2(self.stream); }'
rule open-words 'a failed open frees pinned memory' cuda.rs 'driver::' \
    'let _ = unsafe { sys::cuMemFreeHost(self.0) };' 'if KEPT { let _ = unsafe { sys::cuMemFreeHost(self.0) }; }'

if [[ -n ${LIST:-} ]]; then
    for index in "${!names[@]}"; do
        printf '%-20s %-26s %-84s %s\n' "${names[index]}" "${places[${names[index]}]}" "${rules[${names[index]}]}" "${checks[index]}"
    done
    exit
fi

copy || fail "cannot copy the tree to $tree"
began=$SECONDS
(cd "$tree" && GINLAB_COMMIT=nccl-mutants cargo test --locked -p nccl_plugin --lib --test double --no-run) >"$out/build.txt" 2>&1 || {
    grep -A 12 '^error' "$out/build.txt" | head -n 60 >&2
    fail "the mutations do not compile ($out/build.txt)"
}
program_of() { sed -n "s|^ *Executable.*$1.*(\(.*\))\$|$tree/\1|p" "$out/build.txt"; }
unit=$(program_of 'src/lib.rs') double=$(program_of 'double/main.rs')
[[ -x $unit && -x $double ]] || fail "no tests in $out/build.txt"
echo "built in $((SECONDS - began)) s: ${#names[@]} mutations"

# run_tests NAME LOG FILTERS...: runs tests; prints those that fail, one a line. NAME: what is left out, or nothing.
run_tests() {
    local name=$1 log=$2 of_unit=() of_double=() filter code=0 failed
    shift 2
    for filter; do
        if [[ $filter == lib:* ]]; then of_unit+=("${filter#lib:}"); else of_double+=("$filter"); fi
    done
    : >"$log"
    local set=(env "GINLAB_LEFT_OUT=$name" "GINLAB_ROUNDS=$rounds" "GINLAB_PATIENCE=$PATIENCE" timeout -k 5 "$EACH")
    if ((${#of_unit[@]})); then "${set[@]}" "$unit" "${of_unit[@]}" >>"$log" 2>&1 || code=$?; fi
    if ((${#of_double[@]})); then "${set[@]}" "$double" "${of_double[@]}" >>"$log" 2>&1 || code=$?; fi
    if ((code == 0)); then return 0; fi
    # shellcheck disable=SC2016  # a name in Markdown
    failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/`\1`/p' "$log" | sort -u)
    # 134: a panic that nothing could catch. 124: tests that have not ended.
    echo "${failed:-the tests end with $code}"
    return 1
}
cd host/nccl_plugin || exit
((${#names[@]})) || fail "no mutation begins with $only"
mapfile -t all < <(printf '%s\n' "${checks[@]}" | tr ' ' '\n' | sort -u)
began=$SECONDS
if ! failed=$(EACH=$((10 * EACH)) PATIENCE=100 run_tests '' "$out/control.txt" "${all[@]}"); then
    printf '%s: with nothing left out these fail (%s):\n%s\n' "$script" "$out/control.txt" "$failed" >&2
    exit 1
fi
echo "nothing left out: passed in $((SECONDS - began)) s"
mkdir -p "$out/logs"
table=$out/nccl-mutants.md
printf '| mutation | rule | code | caught by |\n|---|---|---|---|\n' >"$table"
missed=0
for index in "${!names[@]}"; do
    name=${names[index]}
    declare -A by=()
    ran=0
    for ((time = 1; time <= times; time++)); do
        # shellcheck disable=SC2086  # filters are words
        if failed=$(run_tests "$name" "$out/logs/$name.txt" ${checks[index]}); then continue; fi
        ((ran++))
        while IFS= read -r one; do by[$one]=$((${by[$one]:-0} + 1)); done <<<"$failed"
    done
    said=
    if ((ran == 0)); then
        said='NOT CAUGHT'
        ((missed++))
    fi
    while IFS= read -r one; do
        if [[ -n $one ]]; then said+=", $one$( ((times > 1)) && echo " ${by[$one]} of $times")"; fi
    done < <(printf '%s\n' "${!by[@]}" | sort)
    unset by
    echo "| \`$name\` | ${rules[$name]} | ${places[$name]} | ${said#, } |" | tee -a "$table"
done
echo "caught $((${#names[@]} - missed)) of ${#names[@]} in $((SECONDS - began)) s: $table"
((missed == 0))

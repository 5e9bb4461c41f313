//! Tests of a source to which another put or get writes while it is sent: the error names that put, and the missing
//! wait.

use super::*;
use crate::Messages as _;
use std::sync::{Mutex, PoisonError};

const BYTES: usize = 4096;
const SLOT: u64 = 1000;
/// Token of the forwarding put.
const FORWARD: u64 = 7;

/// Serializes these tests, which use separate rank numbers, because the ranks of a process share one record of their
/// traffic.
static ALONE: Mutex<()> = Mutex::new(());

fn chain(spec: &str) -> [Node; 3] {
    let spec = spec.parse().unwrap();
    connected(std::array::from_fn(|rank| node(&spec, 40 + rank as u32, BYTES)))
}

/// Puts with a signal into slot 0 of rank 41, from node `sender`.
fn fill(nodes: &mut [Node; 3], sender: usize, token: u64) {
    bytes_of(&nodes[sender])[..SLOT as usize].fill(token as u8);
    let put = Transfer { immediate: Some(token as u32), ..put(&nodes[1], 1, 0, 0, SLOT, token) };
    write(&mut nodes[sender], &put).unwrap();
}

/// Sends the slot from node 1 to rank 42.
fn forward(nodes: &mut [Node; 3]) {
    let put = Transfer { immediate: Some(9), ..put(&nodes[2], 2, 0, 0, SLOT, FORWARD) };
    write(&mut nodes[1], &put).unwrap();
}

/// Signals rank 40 from node 1.
fn signal(nodes: &mut [Node; 3], token: u64) {
    let signal = Transfer { immediate: Some(8), ..put(&nodes[0], 0, 0, 0, 0, token) };
    write(&mut nodes[1], &signal).unwrap();
}

/// Polls until `enough` or until the forwarding put has ended. Returns its error in the latter case.
fn until_end(nodes: &mut [Node; 3], mut enough: impl FnMut(usize, &Completion) -> bool) -> Result<(), Option<String>> {
    let mut end = Ok(());
    until(nodes, |_, node, completion| {
        match completion {
            Some(Completion::Failed { token: Some(FORWARD), error }) => end = Err(Some(error.to_string())),
            Some(Completion::Done { token: FORWARD }) if node == 1 => end = Err(None),
            Some(other) => return enough(node, &other),
            None => return false,
        }
        true
    });
    end
}

/// Polls until a node has received an immediate.
fn told(nodes: &mut [Node; 3], at: usize, value: u32) -> Result<(), Option<String>> {
    until_end(nodes, |node, completion| {
        node == at && matches!(completion, Completion::Immediate { value: told } if *told == value)
    })
}

fn ended(nodes: &mut [Node; 3]) -> Result<(), Option<String>> {
    until_end(nodes, |_, _| false)
}

/// Runs a mistake with each of 24 seeds. At least one seed must detect it, each with these parts of the message. The
/// number of seeds that do depends on the load of the machine, since a progress thread adds events.
fn finds(run: impl Fn(&mut [Node; 3]) -> Result<(), Option<String>>, parts: &[&str]) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = 0;
    for seed in 0..24 {
        let mut nodes = chain(&format!("worst:seed={seed},again=0,delay=1000"));
        let Err(Some(error)) = run(&mut nodes) else { continue };
        found += 1;
        for part in parts {
            assert!(error.contains(part), "{part}: {error}");
        }
        let said = error.split(" (worst:").next().unwrap();
        assert!(error.lines().count() == 1 && said.len() <= 300, "{}: {error}", said.len());
    }
    assert!(found > 0, "none of 24 seeds: {parts:?}");
}

const LANDED: &str = "source rewritten while its put is in flight: put_signal ";

#[test]
fn put_without_slot_wait_names_sender() {
    let run = |nodes: &mut [Node; 3]| {
        fill(nodes, 0, 1);
        told(nodes, 1, 1)?;
        forward(nodes);
        fill(nodes, 0, 2);
        ended(nodes)
    };
    let waits = "; rank 40 did not wait for a signal of rank 41 that its forwarding put has completed; put_signal ";
    finds(
        run,
        &[
            LANDED,
            " of rank 40 to rank 41 (1000 B) was written into it",
            waits,
            " of rank 41 to rank 42: 1000 B from offset 0",
        ],
    );
}

#[test]
fn put_before_forwarding_put_names_sender() {
    let run = |nodes: &mut [Node; 3]| {
        fill(nodes, 0, 1);
        told(nodes, 1, 1)?;
        fill(nodes, 0, 2);
        forward(nodes);
        ended(nodes)
    };
    finds(run, &[LANDED, "; rank 40 did not wait for a signal of rank 41 that its forwarding put has completed; "]);
}

#[test]
fn early_slot_release_names_forwarding_rank() {
    for before in [true, false] {
        let run = |nodes: &mut [Node; 3]| {
            fill(nodes, 0, 1);
            told(nodes, 1, 1)?;
            if before {
                signal(nodes, 3);
            }
            forward(nodes);
            if !before {
                signal(nodes, 3);
            }
            told(nodes, 0, 8)?;
            fill(nodes, 0, 2);
            ended(nodes)
        };
        finds(
            run,
            &[LANDED, "; rank 41 signalled rank 40 before its forwarding put had completed: wait for it (quiet), then"],
        );
    }
}

#[test]
fn bytes_sent_on_before_their_arrival_are_named() {
    let run = |nodes: &mut [Node; 3]| {
        fill(nodes, 0, 1);
        forward(nodes);
        ended(nodes)
    };
    let waits =
        "; rank 41 forwarded the bytes before they had arrived: wait for that put's own signal (one for each slot)";
    finds(run, &[LANDED, " of rank 40 to rank 41 (1000 B) was written into it", waits]);
}

#[test]
fn get_into_source_is_reported() {
    let run = |nodes: &mut [Node; 3]| {
        bytes_of(&nodes[0]).fill(3);
        forward(nodes);
        let get = put(&nodes[0], 0, 0, 0, SLOT, 2);
        // SAFETY: the effect of the get on the source is what is tested.
        while unsafe { nodes[1].rail.read(&nodes[1].region, &get) }.unwrap() == Post::Again {}
        ended(nodes)
    };
    let waits = "; rank 41 did not wait for its forwarding put (quiet) before its get into the put's source; ";
    finds(
        run,
        &[
            "source rewritten while its put is in flight: get ",
            " of rank 41 from rank 40 (1000 B) was written into it",
            waits,
        ],
    );
}

#[test]
fn put_into_message_source_is_reported() {
    let run = |nodes: &mut [Node; 3]| {
        let message = Message { token: FORWARD, offset: 0, bytes: SLOT };
        // SAFETY: the memory outlives the rails, and its concurrent change is what is tested.
        unsafe {
            nodes[2].rail.receive(&nodes[2].region, &message).unwrap();
            nodes[1].rail.send(&nodes[1].region, 2, &message).unwrap();
        }
        fill(nodes, 0, 1);
        ended(nodes)
    };
    let waits =
        "; rank 40 did not wait for a signal of rank 41 that its forwarding message has completed; send (ticket 7) of ";
    finds(run, &["source rewritten while its message is in flight: put_signal ", waits]);
}

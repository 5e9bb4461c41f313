//! Fills the send queue of an EFA device for two laps, and reads it as the device would.
//!
//! ```text
//! cargo run -p efa_queue --example write_request
//! ```

use efa_queue::request::{self, Head};
use efa_queue::rules::{doorbell, rung, send_phase, slot};
use efa_queue::{DecodedRequest, Local, To};

/// Number of slots.
const DEPTH: u32 = 4;

fn main() -> Result<(), String> {
    let mut queue = [[0; 8]; DEPTH as usize];
    let mut seen = 0;
    for number in 0..u64::from(2 * DEPTH) {
        let to = To { handle: 1, pair: 2, key: 3 };
        let head = Head { id: number, phase: send_phase(number, DEPTH), to, ..Head::default() };
        let local = Local { address: 0x1000, length: 4096, key: 5 };
        queue[slot(number, DEPTH) as usize] = request::write(&head, local, 0x2000, 9);

        // The device reads the doorbell, and the requests up to it.
        let bell = doorbell(number + 1);
        let end = rung(seen, seen, bell, DEPTH, DEPTH).map_err(|why| format!("doorbell {bell}: {why:?}"))?;
        for number in seen..end {
            let words = &queue[slot(number, DEPTH) as usize];
            let read = DecodedRequest::decode(words).map_err(|why| format!("request {number}: {why:?}"))?;
            println!("doorbell {bell}: request {} of {} B, phase {}", read.head.id, read.bytes(), read.head.phase);
        }
        seen = end;
    }
    Ok(())
}

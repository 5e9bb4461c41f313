//! Addresses of cards, and the names under which what belongs to one lies in shared memory.

/// A card's address.
pub type Gid = [u8; 16];

fn hex(gid: &Gid) -> String {
    gid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Name of what the cards of this address have in common on this machine.
pub fn card_name(gid: &Gid) -> String {
    format!("card-{}", hex(gid))
}

/// Name of a queue pair's page.
pub fn queue_name(gid: &Gid, number: u32) -> String {
    format!("qp-{}-{number}", hex(gid))
}

/// Name of an open device's table of registrations.
pub fn table_name(gid: &Gid, pid: i32, context: u32) -> String {
    format!("mr-{}-{pid}-{context}", hex(gid))
}

/// Name of an open device's address handles.
pub fn handles_name(gid: &Gid, pid: i32, context: u32) -> String {
    format!("ah-{}-{pid}-{context}", hex(gid))
}

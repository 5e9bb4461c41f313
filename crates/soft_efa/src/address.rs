//! Addresses of devices, and the names of their shared memory.

/// Address of a device.
pub type Gid = [u8; 16];

fn hex(gid: &Gid) -> String {
    gid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the name of the memory that all processes share for the device with this address.
pub fn card_name(gid: &Gid) -> String {
    format!("card-{}", hex(gid))
}

/// Returns the name of a queue pair's page.
pub fn queue_name(gid: &Gid, number: u32) -> String {
    format!("qp-{}-{number}", hex(gid))
}

/// Returns the name of the registration table of an open device.
pub fn table_name(gid: &Gid, pid: i32, context: u32) -> String {
    format!("mr-{}-{pid}-{context}", hex(gid))
}

/// Returns the name of the address handles of an open device.
pub fn handles_name(gid: &Gid, pid: i32, context: u32) -> String {
    format!("ah-{}-{pid}-{context}", hex(gid))
}

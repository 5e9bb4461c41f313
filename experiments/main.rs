//! The `ginlab` command.
fn main() {}

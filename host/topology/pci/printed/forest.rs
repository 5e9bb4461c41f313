//! The tree format of `lspci -t`, `-tv` and `-tvnn`.

use super::super::PciAddress;
use super::super::identity::Identity;
use super::{LspciFunction, add};
use std::collections::BTreeMap;

/// Position in the tree of the next token of a line.
#[derive(Clone, Debug, Default)]
struct TreePosition {
    domain: u32,
    /// Bus of the next devices; `None` before the first bracket.
    bus: Option<u8>,
    /// Path of the bridges so far; empty before a root bus.
    path: String,
}

/// Parser of a tree.
#[derive(Default)]
pub struct Forest {
    /// Branches with their columns, and whether another line of the branch follows.
    branches: Vec<(usize, TreePosition, bool)>,
    /// Whether a tree has ended within a branch.
    is_cut: bool,
}

/// Returns whether a line is part of a tree.
pub fn is_branch(line: &str) -> bool {
    let drawn = line.trim_start_matches([' ', '|']);
    // Options and prompts also start with a hyphen, but not with one of these strings.
    ["-[", "-+-", "+-", "\\-"].iter().any(|start| drawn.starts_with(start))
        || drawn.strip_prefix('-').is_some_and(|rest| device(rest.trim_start_matches('-')).is_some())
}

/// Parses a device, such as `1b.0`, at the start of a text. Also returns the remaining text.
fn device(text: &str) -> Option<(u8, u8, &str)> {
    let (device, rest) = (text.get(..2)?, text.get(4..)?);
    let function = text.get(2..4)?.strip_prefix('.')?;
    let (device, function) = (u8::from_str_radix(device, 16).ok()?, u8::from_str_radix(function, 16).ok()?);
    (device < 32 && function < 8).then_some((device, function, rest))
}

impl Forest {
    /// Returns whether every outermost branch has its last line. Recorded trees of p5 instances draw the last line of
    /// inner branches like the others.
    pub fn is_whole(&self) -> bool {
        !self.is_cut && self.branches.first().is_none_or(|(.., continues)| !continues)
    }

    /// Parses a line. Returns `None` if this fails.
    pub fn line(&mut self, line: &str, found: &mut BTreeMap<PciAddress, LspciFunction>) -> Option<()> {
        let column = line.find(|c| c != ' ' && c != '|')?;
        let mut rest = line.get(column..)?;
        let mut place = if rest.starts_with('-') {
            self.is_cut = !self.is_whole();
            self.branches.clear();
            TreePosition::default()
        } else {
            let continues = rest.starts_with('+');
            rest = rest.get(1..)?;
            self.branches.truncate(self.branches.partition_point(|(known, ..)| *known <= column));
            let branch = self.branches.last_mut().filter(|(known, ..)| *known == column)?;
            branch.2 = continues;
            branch.1.clone()
        };
        loop {
            rest = rest.trim_start_matches('-');
            let at = line.len() - rest.len();
            match rest.chars().next() {
                // A bridge or a bus without devices.
                None => return Some(()),
                Some('+' | '\\') => {
                    // An excerpt may consist of the first line of a branch.
                    self.branches.push((at, place.clone(), false));
                    rest = rest.get(1..)?;
                }
                Some('[') => {
                    let (inside, after) = rest.get(1..)?.split_once(']')?;
                    place.enter(inside)?;
                    rest = after;
                }
                Some(_) => {
                    let (device, function, after) = device(rest)?;
                    let address = place.step(device, function)?;
                    if !after.starts_with('-') {
                        let identity = match after.strip_prefix("  ") {
                            Some(name) => Identity::of_text(None, name),
                            None if after.is_empty() => Identity::default(),
                            None => return None,
                        };
                        add(found, address, identity, Some(place.path));
                        return Some(());
                    }
                    (place.bus, rest) = (None, after);
                }
            }
        }
    }
}

impl TreePosition {
    /// Enters the bus of a bracket: `0000:20`, `20`, or `20-2f`, whose first number is the next bus.
    fn enter(&mut self, inside: &str) -> Option<()> {
        let first = inside.split('-').next()?;
        let (domain, bus) = first.split_once(':').map_or((None, first), |(domain, bus)| (Some(domain), bus));
        if let Some(domain) = domain {
            self.domain = u32::from_str_radix(domain, 16).ok()?;
        }
        let bus = u8::from_str_radix(bus, 16).ok()?;
        self.bus = Some(bus);
        if self.path.is_empty() {
            self.path = format!("/sys/devices/pci{:04x}:{bus:02x}", self.domain);
        }
        Some(())
    }

    /// Descends to a device of the bus. A tree without brackets starts at bus 0.
    fn step(&mut self, device: u8, function: u8) -> Option<PciAddress> {
        if self.path.is_empty() {
            self.enter("00")?;
        }
        let address = PciAddress { domain: self.domain, bus: self.bus?, device, function };
        self.path += &format!("/{address}");
        Some(address)
    }
}

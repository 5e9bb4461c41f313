//! Summary for a machine with limited capabilities.

use super::machine::Machine;

/// Returns one line about the runs that are possible on a machine without an EFA device and without a GPU that is
/// visible to CUDA. `None` if more is possible, or if the PCI bus is unknown.
#[must_use]
pub fn only_emulated(machine: &Machine) -> Option<String> {
    machine.tree.as_ref()?;
    if !machine.usable_gpus().is_empty() || !machine.efa_cards().is_empty() {
        return None;
    }
    let gpus = match machine.gpus().len() {
        0 => "no GPU".to_owned(),
        count => format!("{count} GPUs that CUDA does not show"),
    };
    let listed = match &machine.listing {
        Some(Ok(listing)) => listing.default_provider().is_some(),
        Some(Err(_)) => false,
        None => true,
    };
    // Modelled cards transfer data between ranks of one machine, even without libfabric.
    let run = if listed {
        "ginlab proxy --np 2 --rails 1,4 -b 4K -e 4M -f 32 --mode quiet,nbi --check; EFA's own provider over software \
         NICs: ginlab write -p soft-efa:p5 --rails 1,4"
    } else {
        "ginlab proxy -p model:p5 --np 2 --rails 1,4 -b 4K -e 4M -f 32 --mode quiet,nbi --check"
    };
    Some(format!("fit only for the emulated device ({gpus}, no EFA device). Run: {run}"))
}

//! What a machine is fit for, when that is little.

use super::machine::Machine;

/// One line for a machine without a GPU that CUDA shows and without an EFA card: what it is fit for, and what to run there.
/// `None` where more can be run, and where the PCI bus is not known.
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
    // Without libfabric the modelled cards still carry bytes between ranks of one machine.
    let run = if listed {
        "ginlab proxy --np 2 --rails 1,4 -b 4K -e 4M -f 32 --mode quiet,nbi --check; \
         EFA's own provider over cards in software: ginlab write -p soft-efa:p5 --rails 1,4"
    } else {
        "ginlab proxy -p model:p5 --np 2 --rails 1,4 -b 4K -e 4M -f 32 --mode quiet,nbi --check"
    };
    Some(format!("fit for the emulated device alone ({gpus}, no EFA card). Run: {run}"))
}

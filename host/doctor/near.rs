//! Pairs of GPUs and NICs for trials: each GPU with the NICs that its rank would use.

use ginlab_topology::near;
use ginlab_topology::pci::PciAddress;
use ginlab_topology::tree::Tree;

/// Returns, for each of `gpus`, the indexes of the NICs to try with it. Each NIC is assigned to a GPU to which it is
/// nearest, and each GPU has at least one NIC, if there are any. NICs with unknown addresses are distributed evenly.
#[must_use]
pub fn share_out(tree: Option<&Tree>, gpus: &[Option<PciAddress>], nics: &[Option<PciAddress>]) -> Vec<Vec<usize>> {
    let near: Vec<_> = tree.map(near).unwrap_or_default();
    let is_near = |gpu: Option<PciAddress>, nic: Option<PciAddress>| {
        let of_gpu = near.iter().find(|near| Some(near.gpu.address) == gpu);
        nic.is_some_and(|nic| of_gpu.is_some_and(|near| near.nics.iter().any(|known| known.address == nic)))
    };
    let mut shares: Vec<Vec<usize>> = gpus.iter().map(|_| Vec::new()).collect();
    for (nic, address) in nics.iter().enumerate() {
        let nearest: Vec<usize> = (0..gpus.len()).filter(|gpu| is_near(gpus[*gpu], *address)).collect();
        let candidates = if nearest.is_empty() { (0..gpus.len()).collect() } else { nearest };
        if let Some(gpu) = candidates.into_iter().min_by_key(|gpu| shares[*gpu].len()) {
            shares[gpu].push(nic);
        }
    }
    // If there are fewer NICs than GPUs, GPUs share them.
    for (gpu, share) in shares.iter_mut().enumerate().filter(|(_, share)| share.is_empty() && !nics.is_empty()) {
        let nearest = (0..nics.len()).find(|nic| is_near(gpus[gpu], nics[*nic]));
        share.push(nearest.unwrap_or(gpu % nics.len()));
    }
    shares
}

//! Number of GPUs that this process will see, and number of ranks per GPU. Both are determined before CUDA is
//! initialized.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use ginlab_topology::visible;

/// Returns the number of GPUs that CUDA will show to this process.
///
/// `visible` is the value of CUDA_VISIBLE_DEVICES. `asked` queries NVML, which reports the GPUs that a container may
/// use. If `asked` returns `None`, the entries of the driver's directory below `root` are counted.
pub fn count(root: &Path, visible: Option<&OsStr>, asked: impl FnOnce() -> Option<usize>) -> usize {
    let listed = || fs::read_dir(root.join("proc/driver/nvidia/gpus")).map_or(0, Iterator::count);
    let all = asked().unwrap_or_else(listed);
    let Some(visible) = visible else { return all };
    visible::shown(&visible.to_string_lossy(), all).count
}

/// Returns the maximum number of ranks on a GPU, if rank `r` of this machine opens GPU `r % gpus`
/// ([`Device::open`](ginlab_cuda::Device::open)).
pub fn most_on_one(ranks: usize, gpus: usize) -> usize {
    if gpus == 0 { 0 } else { ranks.div_ceil(gpus) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn gpus_are_counted_without_cuda() {
        let root = tempfile::tempdir().unwrap();
        let count = |visible: Option<&str>, asked: Option<usize>| count(root.path(), visible.map(OsStr::new), || asked);
        assert_eq!((count(None, None), count(Some("0"), None)), (0, 0), "no driver");
        for bus in ["0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0"] {
            fs::create_dir_all(root.path().join("proc/driver/nvidia/gpus").join(bus)).unwrap();
        }
        assert_eq!(count(None, None), 3);
        assert_eq!(count(None, Some(1)), 1, "a container that may use one, and sees the machine's /proc");
        for (visible, seen) in
            [("", 0), ("-1", 0), ("1", 1), ("2,0", 2), ("0,7,1", 1), ("GPU-1b,GPU-2c", 2), ("MIG-1", 1), (" 1, 2", 2)]
        {
            assert_eq!(count(Some(visible), None), seen, "{visible:?}");
        }
    }

    #[test]
    fn ranks_are_dealt_out_to_gpus_in_turn() {
        let most = [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (8, 8), (9, 8), (2, 0)].map(|(r, g)| most_on_one(r, g));
        assert_eq!(most, [1, 2, 1, 2, 2, 1, 2, 0]);
    }
}

//! The PTX of the kernels: which module has one, and what it has for later GPUs than it is for: instructions behind a mark that makes
//! them comments.

use cuda_std::grid::LATER;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The PTX of `kernels/` by module, with the modules' names; empty in a build without it.
#[cfg(feature = "ptx")]
pub const PTX: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
/// The PTX of `kernels/` by module, with the modules' names; empty in a build without it.
#[cfg(not(feature = "ptx"))]
pub const PTX: &[(&str, &str)] = &[];

/// The lowest GPU that the modules run on, as `sm_80`, when this build has them; `bulk` needs compute capability 9.0.
pub const PTX_ARCH: Option<&str> = option_env!("GINLAB_PTX_ARCH");

/// The compiler that wrote the PTX and its LLVM, as `1.96.0, LLVM 22.1.8`, when this build has any.
pub const PTX_RUSTC: Option<&str> = option_env!("GINLAB_PTX_RUSTC");

/// The entry points, and the number of the module that has each.
static MODULE_OF: LazyLock<HashMap<&str, usize>> = LazyLock::new(|| {
    let entries = |(number, (_, text)): (usize, &(&'static str, &'static str))| {
        let name = |line: &'static str| line.split_once(".entry ").and_then(|(_, rest)| rest.split('(').next());
        text.lines().filter_map(name).map(move |name| (name, number)).collect::<Vec<_>>()
    };
    PTX.iter().enumerate().flat_map(entries).collect()
});

/// Which of the modules has this kernel.
pub(super) fn module_of(kernel: &str) -> Option<usize> {
    MODULE_OF.get(kernel).copied()
}

/// The lowest compute capability that a module runs on, as 90 for 9.0.
pub(super) fn capability_of(ptx: &str) -> Option<u32> {
    let target = ptx.lines().find_map(|line| line.strip_prefix(".target sm_"))?;
    let digits = target.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(target.len());
    target[..digits].parse().ok()
}

/// The PTX ISA and the GPU of the instructions behind the mark.
const ISA: (u32, u32) = (7, 8);
const CAPABILITY: u32 = 90;

/// The PTX as a GPU of this compute capability gets it: from 9.0 on with what stands behind [`LATER`], and said to be for 9.0, since otherwise
/// these instructions would be refused.
#[must_use]
pub fn for_capability(ptx: &str, (major, minor): (u32, u32)) -> Cow<'_, str> {
    if major * 10 + minor < CAPABILITY || !ptx.contains(LATER) {
        return Cow::Borrowed(ptx);
    }
    let raised = |line: &str| {
        if let Some(version) = line.strip_prefix(".version ").and_then(|version| {
            let (major, minor) = version.trim().split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        }) {
            let (major, minor): (u32, u32) = std::cmp::max(version, ISA);
            return format!(".version {major}.{minor}");
        }
        let target = line.strip_prefix(".target sm_");
        // One that is later already, such as sm_90a, stays.
        match target.and_then(|target| target.trim().parse::<u32>().ok()) {
            Some(target) if target < CAPABILITY => format!(".target sm_{CAPABILITY}"),
            _ => line.replace(LATER, ""),
        }
    };
    let lines: Vec<String> = ptx.lines().map(raised).collect();
    Cow::Owned(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernels_module_is_found_by_its_entry() {
        for (name, capability) in [("put_kernel", 80), ("jacobi_step", 80), ("ipc_bulk_write", 90)] {
            let found = module_of(name).map(|number| PTX[number].1);
            assert_eq!(found.and_then(capability_of), (!PTX.is_empty()).then_some(capability), "{name}");
        }
        assert_eq!((module_of("put_kern"), module_of("")), (None, None));
        assert_eq!((capability_of(".target sm_100a, debug"), capability_of("")), (Some(100), None));
    }

    #[test]
    fn what_stands_behind_the_mark_is_for_later_gpus_alone() {
        let ptx = format!(".version 7.0\n.target sm_80\n\t{LATER}griddepcontrol.wait;\n\tret; // as ever\n");
        assert_eq!(for_capability(&ptx, (8, 6)), ptx);
        let later = ".version 7.8\n.target sm_90\n\tgriddepcontrol.wait;\n\tret; // as ever\n";
        assert_eq!(for_capability(&ptx, (9, 0)), later);
        assert_eq!(for_capability(&ptx, (10, 0)), later);
        let own = ptx.replace("7.0", "8.6").replace("sm_80", "sm_100a");
        assert_eq!(for_capability(&own, (10, 0)), own.replace(LATER, ""));
        // Without the mark nothing is copied.
        assert!(matches!(for_capability(".target sm_80\n", (9, 0)), Cow::Borrowed(_)));
    }
}

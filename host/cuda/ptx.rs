//! PTX of the kernels: lookup of a kernel's module, and adaptation to later GPUs. Instructions that only later GPUs
//! support are commented out with a marker ([`LATER`]), which is removed for those GPUs.

use cuda_std::Ptx;
use cuda_std::grid::LATER;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

static PTX: OnceLock<&'static Ptx> = OnceLock::new();

/// Sets the PTX of this executable's kernels (`kernels_ptx::PTX`). Must be called before a GPU is opened; only the
/// first call has an effect. Not needed for the emulated device.
pub fn set_ptx(ptx: &'static Ptx) {
    PTX.get_or_init(|| ptx);
}

/// Returns the PTX set with [`set_ptx`], or a value without modules.
#[must_use]
pub fn ptx() -> &'static Ptx {
    PTX.get().copied().unwrap_or(&Ptx { modules: &[], arch: None, rustc: None })
}

/// Number of the module that contains each entry point.
static MODULE_OF: LazyLock<HashMap<&str, usize>> = LazyLock::new(|| {
    let entries = |(number, (_, text)): (usize, &(&'static str, &'static str))| {
        let name = |line: &'static str| line.split_once(".entry ").and_then(|(_, rest)| rest.split('(').next());
        text.lines().filter_map(name).map(move |name| (name, number)).collect::<Vec<_>>()
    };
    ptx().modules.iter().enumerate().flat_map(entries).collect()
});

/// Returns the number of the module that contains this kernel.
pub(super) fn module_of(kernel: &str) -> Option<usize> {
    MODULE_OF.get(kernel).copied()
}

/// Returns the lowest compute capability on which a module runs, for example 90 for 9.0.
pub(super) fn capability_of(ptx: &str) -> Option<u32> {
    let target = ptx.lines().find_map(|line| line.strip_prefix(".target sm_"))?;
    let digits = target.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(target.len());
    target[..digits].parse().ok()
}

/// PTX ISA version and compute capability that the marked instructions require.
const ISA: (u32, u32) = (7, 8);
const CAPABILITY: u32 = 90;

/// Returns the PTX for a GPU of this compute capability. From 9.0 on, removes the [`LATER`] markers and raises the PTX
/// version and target, without which the driver would reject these instructions.
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
        // A later target, such as sm_90a, is kept.
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
    fn module_is_found_by_kernel_entry() {
        let modules = &[
            ("small", ".target sm_80\n.visible .entry one(\n.visible .entry two("),
            ("late", ".target sm_90a\n.entry three("),
        ];
        set_ptx(Box::leak(Box::new(Ptx { modules, arch: Some("sm_80"), rustc: None })));
        for (name, capability) in
            [("one", Some(80)), ("two", Some(80)), ("three", Some(90)), ("thre", None), ("", None)]
        {
            let found = module_of(name).map(|number| ptx().modules[number].1);
            assert_eq!(found.and_then(capability_of), capability, "{name}");
        }
        assert_eq!((capability_of(".target sm_100a, debug"), capability_of("")), (Some(100), None));
    }

    #[test]
    fn marked_instructions_are_kept_only_for_later_gpus() {
        let ptx = format!(".version 7.0\n.target sm_80\n\t{LATER}griddepcontrol.wait;\n\tret; // as ever\n");
        assert_eq!(for_capability(&ptx, (8, 6)), ptx);
        let later = ".version 7.8\n.target sm_90\n\tgriddepcontrol.wait;\n\tret; // as ever\n";
        assert_eq!(for_capability(&ptx, (9, 0)), later);
        assert_eq!(for_capability(&ptx, (10, 0)), later);
        let own = ptx.replace("7.0", "8.6").replace("sm_80", "sm_100a");
        assert_eq!(for_capability(&own, (10, 0)), own.replace(LATER, ""));
        // PTX without markers is not copied.
        assert!(matches!(for_capability(".target sm_80\n", (9, 0)), Cow::Borrowed(_)));
    }
}

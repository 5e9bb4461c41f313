//! What the PTX has for later GPUs than it is for: instructions behind a mark that makes them comments.

use cuda_std::grid::LATER;
use std::borrow::Cow;

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

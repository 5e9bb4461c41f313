//! CUDA_VISIBLE_DEVICES, interpreted like the CUDA driver does.

/// Name of the environment variable.
pub const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// GPUs that a value makes visible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Number of GPUs.
    pub count: usize,
    /// Reason why the list ends early or is invalid; `None` if it is valid.
    pub stop: Option<String>,
}

/// Returns which of `all` GPUs the value makes visible.
///
/// The driver reads up to the first entry that names no GPU. An entry is a number, whose suffix after the digits is
/// ignored, or a prefix of a UUID (`GPU-`, `MIG-`); the first entry determines the type of the list. Only one MIG
/// device is visible. A repeated entry makes the list empty. An empty value, `-1`, and `NoDevFiles`, which Slurm sets,
/// make no GPU visible. The function does not check whether a UUID belongs to a GPU.
#[must_use]
pub fn shown(value: &str, all: usize) -> Shown {
    let entries: Vec<&str> = value.split(',').collect();
    let stop = |count: usize, why: String| Shown { count: count.min(all), stop: Some(why) };
    if value.trim().is_empty() {
        return stop(0, "it is empty, which hides every GPU".to_owned());
    }
    let prefix = ["GPU-", "MIG-"].into_iter().find(|prefix| value.starts_with(prefix));
    let most = if prefix == Some("MIG-") { all.min(1) } else { all };
    let mut seen = Vec::new();
    for entry in entries {
        let key = match prefix {
            Some(prefix) => entry.starts_with(prefix).then(|| entry.to_owned()),
            None => number(entry).filter(|number| *number < all).map(|number| number.to_string()),
        };
        let Some(key) = key else {
            return stop(seen.len().min(most), format!("{entry:?} names no GPU, and entries after it are ignored"));
        };
        if seen.contains(&key) {
            return stop(0, format!("{entry:?} is listed twice, which hides every GPU"));
        }
        seen.push(key);
    }
    Shown { count: seen.len().min(most), stop: None }
}

/// Parses a number like strtoul(3). Returns `None` for text without digits, and for negative numbers.
fn number(entry: &str) -> Option<usize> {
    let text = entry.trim();
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_device_lists_parse_like_driver() {
        for (value, count, stop) in [
            ("0,1,2", 3, ""),
            ("2,0", 2, ""),
            (" 1, 2", 2, ""),
            ("1gpu2,2ampere", 2, ""),
            ("+1", 1, ""),
            ("", 0, "it is empty"),
            ("  ", 0, "it is empty"),
            ("-1", 0, "\"-1\" names no GPU"),
            ("NoDevFiles", 0, "\"NoDevFiles\" names no GPU"),
            ("none", 0, "names no GPU"),
            ("0,-1,1", 1, "\"-1\" names no GPU"),
            ("0,7,1", 1, "\"7\" names no GPU"),
            ("0,,1", 1, "\"\" names no GPU"),
            ("1,1", 0, "\"1\" is listed twice"),
            ("1, 1", 0, "twice"),
            ("GPU-1b,GPU-2c", 2, ""),
            ("GPU-1b,GPU-1b", 0, "twice"),
            ("GPU-1b,0", 1, "\"0\" names no GPU"),
            ("0,GPU-1b", 1, "\"GPU-1b\" names no GPU"),
            ("GPU-1b, GPU-2c", 1, "names no GPU"),
            ("gpu-1b", 0, "names no GPU"),
            ("MIG-1", 1, ""),
            ("MIG-1,MIG-2", 1, ""),
            ("MIG-GPU-8f/1/0", 1, ""),
            ("99999999999999999999999", 0, "names no GPU"),
        ] {
            let shown = shown(value, 3);
            assert_eq!(shown.count, count, "{value:?}");
            assert_eq!(shown.stop.is_none(), stop.is_empty(), "{value:?}: {shown:?}");
            assert!(shown.stop.unwrap_or_default().contains(stop), "{value:?}");
        }
        assert_eq!(shown("0", 0).count, 0);
        assert_eq!(shown("GPU-1b", 0).count, 0);
    }
}

//! FI_PROVIDER and FI_* values, interpreted as libfabric does.

/// Variable that selects providers.
pub const VARIABLE: &str = "FI_PROVIDER";

/// Returns whether a library with this value of FI_PROVIDER lists entries of `provider`, a full name such as `efa` or
/// `tcp;ofi_rxm`.
///
/// libfabric (`src/fabric.c`) reads a list of names separated by commas. A `^` before the whole list excludes them.
/// Case is ignored, blanks are significant, and an empty value is a list of one empty name. A core name includes its
/// layered variants: `tcp` includes `tcp;ofi_rxm`. A layered name includes only itself. Utility providers, such as
/// `ofi_rxm`, are not filtered by a list of other names.
#[must_use]
pub fn shows(value: &str, provider: &str) -> bool {
    let (excludes, list) = value.strip_prefix('^').map_or((false, value), |list| (true, list));
    let core = provider.split(';').next().unwrap_or(provider);
    let mut names = list.split(',');
    let named = |name: &str| name.eq_ignore_ascii_case(provider) || name.eq_ignore_ascii_case(core);
    // Variants below an excluded layer are also not listed.
    let layers = || provider.split(';').skip(1);
    if excludes {
        !names.any(|name| named(name) || layers().any(|layer| name.eq_ignore_ascii_case(layer)))
    } else {
        names.any(named)
    }
}

/// Parses a truth value. Returns `None` for other texts, which libfabric ignores.
#[must_use]
pub fn truth(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Parses an integer as strtol(3) does for libfabric: leading blanks, a sign, and the prefixes `0x` and `0` for other
/// bases. Returns 0 for other texts.
#[must_use]
pub fn integer(value: &str) -> i64 {
    let text = value.trim_start();
    let (negative, text) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let (base, digits) = match text {
        _ if text.starts_with("0x") || text.starts_with("0X") => (16, &text[2..]),
        _ if text.starts_with('0') => (8, text),
        _ => (10, text),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    let number = match &digits[..end] {
        "" => 0,
        digits => i64::from_str_radix(digits, base).unwrap_or(i64::MAX),
    };
    if negative { -number } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_filtered_as_libfabric_does() {
        for (value, shown) in [
            ("efa", true),
            ("EFA", true),
            ("tcp,Efa", true),
            ("efa,^tcp", true),
            ("^psm3,sockets", true),
            ("^tcp", true),
            ("^", true),
            ("^^efa", true),
            ("^ efa", true),
            ("^efa;ofi_rxd", true),
            ("^ofi_rxm", true),
            ("^efa", false),
            ("^EFA", false),
            ("^tcp,efa", false),
            ("tcp", false),
            ("", false),
            (" efa", false),
            ("efa ", false),
            ("tcp, efa", false),
            (" ^tcp", false),
            ("efa;ofi_rxm", false),
            ("efa-direct", false),
            ("ef", false),
            ("ofi_rxm", false),
        ] {
            assert_eq!(shows(value, "efa"), shown, "{value:?}");
        }
        for (value, shown) in [
            ("tcp", true),
            ("TCP;OFI_RXM", true),
            ("^tcp;ofi_rxd", true),
            ("^tcp", false),
            ("^tcp;ofi_rxm", false),
            ("^ofi_rxm", false),
            ("tcp;ofi_rxd", false),
            ("ofi_rxm", false),
        ] {
            assert_eq!(shows(value, "tcp;ofi_rxm"), shown, "{value:?}");
        }
    }

    #[test]
    fn values_are_parsed_like_strtol_and_libfabric() {
        let integers =
            [("1", 1), (" 12x", 12), ("0x10", 16), ("010", 8), ("-3", -3), ("off", 0), ("", 0), ("0", 0), ("09", 0)];
        integers.iter().for_each(|(value, number)| assert_eq!(integer(value), *number, "{value:?}"));
        let words =
            [("1", Some(true)), ("TRUE", Some(true)), ("On", Some(true)), ("no", Some(false)), ("OFF", Some(false))];
        words.iter().for_each(|(value, word)| assert_eq!(truth(value), *word, "{value:?}"));
        assert!(["", "2", " 1", "y"].iter().all(|value| truth(value).is_none()));
    }
}

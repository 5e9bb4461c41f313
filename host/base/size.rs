//! Parsing and formatting of sizes and lists.

/// Reason for the rejection of a size, a sweep or a list, as one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SizeError(String);

/// Suffixes, smallest first. Each is 1024 times the previous one.
const SUFFIXES: [&str; 5] = ["", "K", "M", "G", "T"];

/// Parses `64`, `4K`, `1M`, `2G`, `4KiB`: powers of two, in either case.
///
/// Rejects decimal `KB`, because tools disagree on its meaning.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits);
    let fail = |why: &str| Err(SizeError(format!("invalid size {text:?}: {why}")));
    if number.is_empty() {
        return fail("expected a whole number with an optional unit K, M, G or T (4096, 4K, 1M)");
    }
    let suffix = suffix.trim_start().to_ascii_uppercase();
    let letter = match suffix.strip_suffix("IB") {
        Some("") => return fail("unknown unit; use K, M, G or T (powers of two)"),
        Some(letter) => letter,
        None if suffix == "B" => "",
        None => suffix.as_str(),
    };
    let Some(power) = SUFFIXES.iter().position(|known| *known == letter) else {
        if letter.starts_with('.') {
            return fail("fractions are not accepted; use a smaller unit");
        }
        if letter.len() == 2 && letter.ends_with('B') {
            return fail(
                "decimal units are not accepted; use K, M, G or T (or KiB, MiB, ...), which are powers of two",
            );
        }
        return fail("unknown unit; use K, M, G or T (powers of two)");
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << (10 * power)));
    match bytes {
        Some(bytes) => Ok(bytes),
        None => fail("must fit into 64 bits"),
    }
}

/// Returns the sizes from `begin` to at most `end`, each `factor` times the previous one, including `begin`.
///
/// 0 is allowed only on its own (`begin` and `end` both 0), because it has no multiples.
pub fn sweep(begin: u64, end: u64, factor: u64) -> Result<Vec<u64>, SizeError> {
    if factor < 2 {
        return Err(SizeError(format!("invalid sweep factor {factor}: must be at least 2")));
    }
    if end < begin {
        return Err(SizeError(format!(
            "sweep from {} to {}: the end is smaller than the beginning",
            human(begin),
            human(end)
        )));
    }
    if begin == 0 && end > 0 {
        return Err(SizeError(format!("sweep from 0 to {}: 0 has no multiples; begin at 1 or more", human(end))));
    }
    // `factor` is at least 2, so the sizes grow until they exceed the end or 64 bits; 0 is the only size of its list.
    let next = |size: &u64| size.checked_mul(factor).filter(|next| *next > *size && *next <= end);
    Ok(std::iter::successors(Some(begin), next).collect())
}

/// Parses a list of positive counts, such as `1,8,32`: at least one entry, in the given order, without duplicates.
pub fn parse_list(text: &str) -> Result<Vec<u32>, SizeError> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        match part.parse::<u32>() {
            Ok(0) => return Err(SizeError(format!("invalid list {text:?}: every entry must be at least 1"))),
            Ok(value) if list.contains(&value) => {}
            Ok(value) => list.push(value),
            Err(_) if part.is_empty() => {
                return Err(SizeError(format!(
                    "invalid list {text:?}: an entry is empty; expected a form like 1,8,32"
                )));
            }
            Err(_) => {
                return Err(SizeError(format!(
                    "invalid list {text:?}: {part:?} is not a whole number from 1 to {}",
                    u32::MAX
                )));
            }
        }
    }
    Ok(list)
}

/// Formats a size: exactly if the result is short (`64 B`, `4 KiB`, `4097 B`, `1536 MiB`), and otherwise rounded and
/// marked (`~1.5 GiB`).
pub fn human(bytes: u64) -> String {
    // The largest unit that is at most the size, and the largest unit that divides it.
    let held = bytes.checked_ilog2().unwrap_or(0) as usize / 10;
    let dividing = bytes.trailing_zeros() as usize / 10;
    let unit = |power: usize| if power == 0 { "B".to_owned() } else { format!("{}iB", SUFFIXES[power]) };
    let exact = held.min(dividing).min(SUFFIXES.len() - 1);
    let count = bytes >> (10 * exact);
    if count < 10_000 {
        return format!("{count} {}", unit(exact));
    }
    let near = held.min(SUFFIXES.len() - 1);
    format!("~{:.1} {}", bytes as f64 / (1u64 << (10 * near)) as f64, unit(near))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_in_all_spellings() {
        for (text, bytes) in [
            ("0", 0),
            ("64", 64),
            ("64B", 64),
            ("4K", 4096),
            ("4k", 4096),
            ("4KiB", 4096),
            ("4kib", 4096),
            ("4 KiB", 4096),
            (" 1M ", 1 << 20),
            ("2G", 2 << 30),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refusals_say_why() {
        let refusals: Vec<String> =
            ["", "K", "-1", "1.5M", "4KB", "4X", "4iB", "17179869184G", "99999999999999999999", "4KK", "0x10", "é"]
                .iter()
                .map(|text| parse(text).unwrap_err().to_string())
                .collect();
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        invalid size "": expected a whole number with an optional unit K, M, G or T (4096, 4K, 1M)
        invalid size "K": expected a whole number with an optional unit K, M, G or T (4096, 4K, 1M)
        invalid size "-1": expected a whole number with an optional unit K, M, G or T (4096, 4K, 1M)
        invalid size "1.5M": fractions are not accepted; use a smaller unit
        invalid size "4KB": decimal units are not accepted; use K, M, G or T (or KiB, MiB, ...), which are powers of two
        invalid size "4X": unknown unit; use K, M, G or T (powers of two)
        invalid size "4iB": unknown unit; use K, M, G or T (powers of two)
        invalid size "17179869184G": must fit into 64 bits
        invalid size "99999999999999999999": must fit into 64 bits
        invalid size "4KK": unknown unit; use K, M, G or T (powers of two)
        invalid size "0x10": unknown unit; use K, M, G or T (powers of two)
        invalid size "é": expected a whole number with an optional unit K, M, G or T (4096, 4K, 1M)
        "#);
    }

    #[test]
    fn sweeps_multiply_up_to_end() {
        assert_eq!(sweep(4096, 1 << 20, 4).unwrap(), [4096, 16384, 65536, 262144, 1 << 20]);
        assert_eq!(sweep(3, 20, 2).unwrap(), [3, 6, 12]);
        assert_eq!(sweep(8, 8, 2).unwrap(), [8]);
        assert_eq!(sweep(0, 0, 2).unwrap(), [0]);
        assert_eq!(sweep(u64::MAX / 2, u64::MAX, 1000).unwrap(), [u64::MAX / 2]);
        let refusals = [sweep(0, 1024, 2), sweep(8, 4, 2), sweep(1, 8, 1), sweep(1, 8, 0)];
        let refusals: Vec<String> = refusals.into_iter().map(|refusal| refusal.unwrap_err().to_string()).collect();
        insta::assert_snapshot!(refusals.join("\n"), @r"
        sweep from 0 to 1 KiB: 0 has no multiples; begin at 1 or more
        sweep from 8 B to 4 B: the end is smaller than the beginning
        invalid sweep factor 1: must be at least 2
        invalid sweep factor 0: must be at least 2
        ");
    }

    #[test]
    fn lists_parse_or_name_invalid_entry() {
        assert_eq!(parse_list("1,8,32").unwrap(), [1, 8, 32]);
        assert_eq!(parse_list(" 4 , 1,4").unwrap(), [4, 1]);
        let refusals: Vec<String> = ["", "1,,2", "1,0", "a", "-1", "4294967296"]
            .iter()
            .map(|text| parse_list(text).unwrap_err().to_string())
            .collect();
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        invalid list "": an entry is empty; expected a form like 1,8,32
        invalid list "1,,2": an entry is empty; expected a form like 1,8,32
        invalid list "1,0": every entry must be at least 1
        invalid list "a": "a" is not a whole number from 1 to 4294967295
        invalid list "-1": "-1" is not a whole number from 1 to 4294967295
        invalid list "4294967296": "4294967296" is not a whole number from 1 to 4294967295
        "#);
    }

    #[test]
    fn sizes_are_formatted_with_binary_units() {
        let shown: Vec<String> =
            [0, 1, 1023, 1024, 4095, 4096, 4097, 1 << 20, 3 << 29, 1_500_000_000, 1 << 40, u64::MAX]
                .into_iter()
                .map(human)
                .collect();
        insta::assert_snapshot!(shown.join(", "), @"0 B, 1 B, 1023 B, 1 KiB, 4095 B, 4 KiB, 4097 B, 1 MiB, 1536 MiB, ~1.4 GiB, 1 TiB, ~16777216.0 TiB");
    }

    proptest! {
        #[test]
        fn sweep_is_bounded_geometric_sequence(begin in 1u64.., span in any::<u64>(), factor in 2u64..) {
            let end = begin.saturating_add(span);
            let sizes = sweep(begin, end, factor).unwrap();
            prop_assert_eq!(sizes[0], begin);
            prop_assert!(sizes.len() <= 64);
            prop_assert!(sizes.windows(2).all(|pair| pair[1] == pair[0] * factor));
            let last = sizes[sizes.len() - 1];
            prop_assert!(last <= end && last.checked_mul(factor).is_none_or(|next| next > end));
        }

        #[test]
        fn exact_sizes_come_back(bytes in 0u64..1024, power in 0usize..5) {
            let bytes = bytes << (10 * power);
            prop_assert_eq!(parse(&human(bytes)), Ok(bytes));
        }
    }
}

//! Sizes and lists as people write them.

/// Why a size, a sweep or a list was refused, in one line for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SizeError(String);

/// The suffixes, smallest first: each is 1024 times the one before.
const SUFFIXES: [&str; 5] = ["", "K", "M", "G", "T"];

/// Parses `64`, `4K`, `1M`, `2G`, `4KiB`: powers of two, in either case.
///
/// Decimal `KB` is refused rather than guessed: tools disagree on what it means.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits);
    let fail = |why: &str| Err(SizeError(format!("size {text:?}: {why}")));
    if number.is_empty() {
        return fail("expected a whole number, with K, M, G or T behind it if wanted (4096, 4K, 1M)");
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
            return fail("fractions are not taken; use a smaller unit");
        }
        if letter.len() == 2 && letter.ends_with('B') {
            return fail("decimal units are not taken; K, M, G and T (or KiB, MiB, ...) are powers of two");
        }
        return fail("unknown unit; use K, M, G or T (powers of two)");
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << (10 * power)));
    match bytes {
        Some(bytes) => Ok(bytes),
        None => fail("larger than 64 bits hold"),
    }
}

/// The sizes from `begin` to at most `end`, each `factor` times the one before. Always holds `begin`.
///
/// 0 is a size of its own (`begin` and `end` both 0), never the start of a sweep: it has no multiples.
pub fn sweep(begin: u64, end: u64, factor: u64) -> Result<Vec<u64>, SizeError> {
    if factor < 2 {
        return Err(SizeError(format!("sweep factor {factor}: must be at least 2")));
    }
    if end < begin {
        return Err(SizeError(format!("sweep from {} to {}: the end lies below the begin", human(begin), human(end))));
    }
    if begin == 0 && end > 0 {
        return Err(SizeError(format!("sweep from 0 to {}: 0 has no multiples; begin at 1 or more", human(end))));
    }
    // `factor` is 2 or more, so the sizes grow until they pass the end or leave 64 bits; 0 stands alone.
    let next = |size: &u64| size.checked_mul(factor).filter(|next| *next > *size && *next <= end);
    Ok(std::iter::successors(Some(begin), next).collect())
}

/// Parses a list of positive counts, `1,8,32`: at least one, repeats dropped, order kept.
pub fn parse_list(text: &str) -> Result<Vec<u32>, SizeError> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        match part.parse::<u32>() {
            Ok(0) => return Err(SizeError(format!("list {text:?}: every entry must be at least 1"))),
            Ok(value) if list.contains(&value) => {}
            Ok(value) => list.push(value),
            Err(_) if part.is_empty() => {
                return Err(SizeError(format!("list {text:?}: an entry is empty; write it as 1,8,32")));
            }
            Err(_) => {
                return Err(SizeError(format!("list {text:?}: {part:?} is not a whole number from 1 to {}", u32::MAX)));
            }
        }
    }
    Ok(list)
}

/// A size for people, exact where that is short: `64 B`, `4 KiB`, `4097 B`, `1536 MiB`; otherwise marked, `~1.5 GiB`.
pub fn human(bytes: u64) -> String {
    // The largest unit the size holds, and the largest that divides it.
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
        size "": expected a whole number, with K, M, G or T behind it if wanted (4096, 4K, 1M)
        size "K": expected a whole number, with K, M, G or T behind it if wanted (4096, 4K, 1M)
        size "-1": expected a whole number, with K, M, G or T behind it if wanted (4096, 4K, 1M)
        size "1.5M": fractions are not taken; use a smaller unit
        size "4KB": decimal units are not taken; K, M, G and T (or KiB, MiB, ...) are powers of two
        size "4X": unknown unit; use K, M, G or T (powers of two)
        size "4iB": unknown unit; use K, M, G or T (powers of two)
        size "17179869184G": larger than 64 bits hold
        size "99999999999999999999": larger than 64 bits hold
        size "4KK": unknown unit; use K, M, G or T (powers of two)
        size "0x10": unknown unit; use K, M, G or T (powers of two)
        size "é": expected a whole number, with K, M, G or T behind it if wanted (4096, 4K, 1M)
        "#);
    }

    #[test]
    fn sweeps() {
        assert_eq!(sweep(4096, 1 << 20, 4).unwrap(), [4096, 16384, 65536, 262144, 1 << 20]);
        assert_eq!(sweep(3, 20, 2).unwrap(), [3, 6, 12]);
        assert_eq!(sweep(8, 8, 2).unwrap(), [8]);
        assert_eq!(sweep(0, 0, 2).unwrap(), [0]);
        assert_eq!(sweep(u64::MAX / 2, u64::MAX, 1000).unwrap(), [u64::MAX / 2]);
        let refusals = [sweep(0, 1024, 2), sweep(8, 4, 2), sweep(1, 8, 1), sweep(1, 8, 0)];
        let refusals: Vec<String> = refusals.into_iter().map(|refusal| refusal.unwrap_err().to_string()).collect();
        insta::assert_snapshot!(refusals.join("\n"), @r"
        sweep from 0 to 1 KiB: 0 has no multiples; begin at 1 or more
        sweep from 8 B to 4 B: the end lies below the begin
        sweep factor 1: must be at least 2
        sweep factor 0: must be at least 2
        ");
    }

    #[test]
    fn lists() {
        assert_eq!(parse_list("1,8,32").unwrap(), [1, 8, 32]);
        assert_eq!(parse_list(" 4 , 1,4").unwrap(), [4, 1]);
        let refusals: Vec<String> = ["", "1,,2", "1,0", "a", "-1", "4294967296"]
            .iter()
            .map(|text| parse_list(text).unwrap_err().to_string())
            .collect();
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        list "": an entry is empty; write it as 1,8,32
        list "1,,2": an entry is empty; write it as 1,8,32
        list "1,0": every entry must be at least 1
        list "a": "a" is not a whole number from 1 to 4294967295
        list "-1": "-1" is not a whole number from 1 to 4294967295
        list "4294967296": "4294967296" is not a whole number from 1 to 4294967295
        "#);
    }

    #[test]
    fn sizes_for_people() {
        let shown: Vec<String> =
            [0, 1, 1023, 1024, 4095, 4096, 4097, 1 << 20, 3 << 29, 1_500_000_000, 1 << 40, u64::MAX]
                .into_iter()
                .map(human)
                .collect();
        insta::assert_snapshot!(shown.join(", "), @"0 B, 1 B, 1023 B, 1 KiB, 4095 B, 4 KiB, 4097 B, 1 MiB, 1536 MiB, ~1.4 GiB, 1 TiB, ~16777216.0 TiB");
    }

    proptest! {
        #[test]
        fn a_sweep_is_a_bounded_geometric_row(begin in 1u64.., span in any::<u64>(), factor in 2u64..) {
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

//! Offsets in error messages. Rails and proxies know only regions. A layer that knows the allocations in a region
//! replaces the offsets.

/// Returns the text of an offset in a region of this rank.
#[must_use]
pub fn local(offset: u64, region: u32) -> String {
    format!("offset {offset} of region {region}")
}

/// Returns the text of an offset in the region of another rank.
#[must_use]
pub fn remote(offset: u64, rank: u32) -> String {
    format!("offset {offset} of rank {rank}'s region")
}

/// Replaces each offset in region 0, of this rank or of another one, by its name. Keeps offsets for which `name`
/// returns `None`.
#[must_use]
pub fn replace(text: &str, name: impl Fn(u64) -> Option<String>) -> String {
    const FIRST: &str = "offset ";
    let (mut replaced, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(FIRST) {
        let (before, there) = rest.split_at(at);
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let after = &there[FIRST.len()..];
        let (offset, after) = after.split_at(digits(after));
        let in_region = after.strip_prefix(" of region 0").filter(|after| digits(after) == 0);
        let in_other =
            || after.strip_prefix(" of rank ").and_then(|after| after[digits(after)..].strip_prefix("'s region"));
        let named = in_region.or_else(in_other).zip(offset.parse().ok().and_then(&name));
        replaced.push_str(before);
        rest = match named {
            Some((after, name)) => {
                replaced.push_str(&name);
                after
            }
            None => {
                replaced.push_str(FIRST);
                &there[FIRST.len()..]
            }
        };
    }
    replaced + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_in_region_0_are_replaced() {
        let text = format!(
            "put from {} to {}, {} and {}; offset of {}",
            local(70, 0),
            remote(80, 12),
            local(90, 1),
            local(7, 0),
            local(60, 0)
        );
        let name = |offset: u64| (offset >= 60).then(|| format!("object {offset}"));
        let expected =
            "put from object 70 to object 80, offset 90 of region 1 and offset 7 of region 0; offset of object 60";
        assert_eq!(replace(&text, name), expected);
        for text in ["", "offset ", "offset 5", "offset 99999999999999999999 of region 0", "offset 70 of region 01"] {
            assert_eq!(replace(text, name), text);
        }
    }
}

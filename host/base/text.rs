//! Sanitizing of text from other processes for a terminal.

/// Maximum number of characters; longer texts are truncated, so that a message stays on one line.
const LONGEST: usize = 1000;

/// Returns the text with `?` instead of characters that could control a terminal or hide other text: control
/// characters (including ESC) and invisible marks of direction and format. Truncated to 1000 characters.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST).map(|c| if acts(c) { '?' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown += "...";
    }
    shown
}

fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_terminal() {
        assert_eq!(printable("plain, ümlaut, 日本"), "plain, ümlaut, 日本");
        assert_eq!(printable("a\x1b[2Jb\r\nc\x07\u{9b}31m\u{202e}d\0"), "a?[2Jb??c??31m?d?");
        assert_eq!(printable(&"x".repeat(1001)).len(), 1003);
        assert_eq!(printable(&"x".repeat(1000)).len(), 1000);
    }
}

//! JUnit file of a soak: one test case per seed, as read by continuous integration.

use std::fmt::Write;

/// Result of one seed.
#[derive(Clone, Debug)]
pub struct SeedResult {
    pub seed: u64,
    /// Command line that repeats the seed.
    pub command: String,
    pub seconds: f64,
    /// One-line reason. `None` if the seed passed.
    pub failure: Option<String>,
}

/// Returns `text` with the characters of markup escaped, and those that XML 1.0 forbids replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // A parser would replace these characters by blanks in attributes.
            '\t' | '\n' | '\r' => {
                let _ = write!(out, "&#{};", u32::from(letter));
            }
            '\0'..'\x20' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ => out.push(letter),
        }
    }
    out
}

/// Returns the document of all seeds that were run.
pub fn document(cases: &[SeedResult]) -> String {
    let failed = cases.iter().filter(|case| case.failure.is_some()).count();
    let seconds: f64 = cases.iter().map(|case| case.seconds).sum();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<testsuite name=\"ginlab soak\" tests=\"{}\" failures=\"{failed}\" errors=\"0\" skipped=\"0\" time=\"{seconds:.3}\">",
        cases.len()
    );
    for SeedResult { seed, command, seconds, failure } in cases {
        // The experiment, or the program.
        let words = if command.starts_with("ginlab ") { 2 } else { 1 };
        let class = escaped(&command.split(' ').take(words).collect::<Vec<_>>().join(" "));
        let _ = write!(out, "<testcase classname=\"{class}\" name=\"seed {seed}\" time=\"{seconds:.3}\"");
        let _ = match failure {
            None => writeln!(out, "/>"),
            Some(why) => writeln!(
                out,
                ">\n<failure message=\"{}\">{}</failure>\n</testcase>",
                escaped(why),
                escaped(&format!("seed {seed}: {why}: {command}"))
            ),
        };
    }
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_is_well_formed_for_any_text() {
        let why = "bytes < 8 & \"x\" > ]]>\u{0}\u{1b}[0m\nend \u{ffff} \u{e9}";
        let case = |seed, failure: Option<&str>| SeedResult {
            seed,
            command: "./a&b.sh --seed 7".into(),
            seconds: 0.25,
            failure: failure.map(str::to_owned),
        };
        let text = document(&[case(7, None), case(8, Some(why))]);
        let parsed = roxmltree::Document::parse(&text).expect("well-formed");
        let all = |name| parsed.descendants().filter(move |node| node.has_tag_name(name));
        let suite = all("testsuite").next().expect("a suite");
        assert_eq!((suite.attribute("tests"), suite.attribute("failures")), (Some("2"), Some("1")));
        assert_eq!(suite.attribute("time"), Some("0.500"));
        let names: Vec<_> = all("testcase").filter_map(|case| case.attribute("name")).collect();
        assert_eq!(names, ["seed 7", "seed 8"]);
        assert_eq!(all("testcase").next().and_then(|case| case.attribute("classname")), Some("./a&b.sh"));
        let failure = all("failure").next().expect("a failure");
        let expected = why.replace(['\u{0}', '\u{1b}', '\u{ffff}'], "\u{fffd}");
        assert_eq!(failure.attribute("message"), Some(expected.as_str()));
        assert!(failure.text().is_some_and(|text| text.ends_with(": ./a&b.sh --seed 7")), "{failure:?}");
    }
}

//! Parses PTX as text: the statements of each function, the protocol instructions among them, and the control flow.
//!
//! Tests use it to check rules on the embedded PTX. It is a separate crate so that it can be optimized, because it
//! parses a million lines. Optimizing the tests as well would increase their compile time by 40 s.

pub mod flow;

use std::collections::BTreeMap;

/// Lists of statements or mnemonics, by the name of the function.
pub type Protocol = BTreeMap<String, Vec<String>>;

/// Returns the statements of each function, in order. If several modules have a function, the first one is used.
pub fn functions(ptx: &str) -> Protocol {
    let mut all = Protocol::new();
    for module in ptx.split("\n.version ") {
        for (name, list) in functions_of(module) {
            all.entry(name).or_insert(list);
        }
    }
    all
}

/// Like [`functions`], for one module.
pub(crate) fn functions_of(module: &str) -> Protocol {
    let mut functions = Protocol::new();
    let mut current: Option<String> = None;
    for raw in module.lines() {
        let line = raw.split("//").next().unwrap_or_default().trim();
        if line.starts_with(".visible .entry") || line.starts_with(".entry") || line.starts_with(".func") {
            // A declaration ends on one line; a subsequent definition repeats the name.
            let name = line.rsplit(')').next().filter(|rest| !rest.trim().is_empty()).unwrap_or(line);
            let name = name.split_whitespace().last().unwrap_or_default().trim_end_matches(['(', ')', ';']);
            current = Some(short(name));
            continue;
        }
        let Some(name) = &current else { continue };
        // Blocks inside a function are indented.
        if raw.starts_with('}') {
            current = None;
            continue;
        }
        // Inline PTX has several statements, and its own block, on one line.
        for statement in line.split([';', '{', '}']).map(str::trim).filter(|statement| !statement.is_empty()) {
            functions.entry(name.clone()).or_default().push(statement.to_owned());
        }
    }
    functions.values_mut().for_each(|statements| name_what_is_called(statements));
    functions
}

/// Replaces calls by address (`cuda_std::call::by_address`) by calls by name: the register contains a function's
/// address, or a copy of it.
fn name_what_is_called(statements: &mut [String]) {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let known = names.len();
        for statement in statements.iter() {
            let words: Vec<&str> = statement.split([' ', '\t', ',']).filter(|word| !word.is_empty()).collect();
            // If a `selp` selects one of two functions, the first represents both, because they implement the same
            // operation.
            if let ["mov.b64" | "selp.b64", register, values @ ..] = &words[..] {
                let name = |value: &&str| {
                    if value.starts_with("_R") { Some((*value).to_owned()) } else { names.get(*value).cloned() }
                };
                let found = values.iter().find_map(name);
                found.map(|name| names.insert((*register).to_owned(), name));
            }
        }
        if names.len() == known {
            break;
        }
    }
    for statement in statements.iter_mut().filter(|statement| statement.starts_with("call")) {
        let called = statement.split([' ', '\t', ',']).find(|word| word.starts_with('%')).map(str::to_owned);
        if let Some(register) = called {
            let name = names.get(&register).unwrap_or_else(|| panic!("{statement}: the address of no variable"));
            *statement = statement.replacen(&register, name, 1);
        }
    }
}

/// Returns a mangled name without its hashes, which change with every compiler:
/// `_RNvMNtNtCs4GlXxbfTxJd_7kernels4ring8producerNtB4_4Ring4wait` becomes `kernels::ring::producer::Ring::wait`.
pub fn short(name: &str) -> String {
    if !name.starts_with("_R") {
        return name.into();
    }
    let mut parts: Vec<&str> = Vec::new();
    let bytes = name.as_bytes();
    let mut at = 2;
    while at < bytes.len() {
        if bytes[at] == b's' && matches!(bytes[at - 1], b'C' | b'M' | b'X') {
            // The disambiguator of a crate or of an `impl` block is a number in base 62 that ends with an underscore.
            at += name[at..].find('_').map_or(1, |end| end + 1);
        } else if bytes[at] == b'B' {
            // A back reference is also a number in base 62 that ends with an underscore.
            at += name[at..].find('_').map_or(1, |end| end + 1);
        } else if bytes[at].is_ascii_digit() {
            let digits = name[at..].bytes().take_while(u8::is_ascii_digit).count();
            let length = &name[at..at + digits];
            let length: usize = length.parse().unwrap_or_else(|_| panic!("{name}: no part of {length} characters"));
            at += digits;
            parts.extend(name.get(at..at + length));
            at += length;
        } else {
            at += 1;
        }
    }
    parts.join("::")
}

/// Returns the mnemonic of a statement, without its predicate. For a `mov` from `%globaltimer`, includes that register.
pub fn mnemonic(statement: &str) -> String {
    let words: Vec<&str> = statement.split_whitespace().filter(|word| !word.starts_with('@')).collect();
    let first = words.first().copied().unwrap_or_default();
    match words.last() {
        Some(&"%globaltimer") => format!("{first} %globaltimer"),
        _ => first.into(),
    }
}

/// Returns whether a mnemonic belongs to the protocol: it orders or scopes memory, synchronizes, votes, waits or reads
/// the time. Of the plain loads and stores, only the wide stores of payload belong to it.
fn is_protocol(mnemonic: &str) -> bool {
    let starts = [
        "fence",
        "membar",
        "atom",
        "red.",
        "bar.",
        "barrier",
        "cp.",
        "shfl",
        "activemask",
        "nanosleep",
        "vote",
        "match",
    ];
    let ordered = ["relaxed", "acquire", "release", "volatile", "mmio", "weak"];
    let access = mnemonic.starts_with("ld.") || mnemonic.starts_with("st.");
    starts.iter().any(|start| mnemonic.starts_with(start))
        || access && mnemonic.split('.').any(|part| ordered.contains(&part))
        || mnemonic.starts_with("st.") && is_wide(mnemonic)
        || mnemonic.contains("%globaltimer")
}

/// Returns whether a mnemonic is that of a 16-byte access to memory other than parameters and local memory.
fn is_wide(mnemonic: &str) -> bool {
    let wide = ["v2.b64", "v2.u64", "v4.b32", "v4.u32", "b128"];
    !mnemonic.contains(".param") && !mnemonic.contains(".local") && wide.iter().any(|wide| mnemonic.ends_with(wide))
}

/// Returns whether a mnemonic is that of a wide store without order, which stores payload.
pub fn is_payload(mnemonic: &str) -> bool {
    mnemonic.starts_with("st.") && is_wide(mnemonic) && !mnemonic.contains(".relaxed")
}

/// Returns the mnemonic of a statement, if it belongs to the protocol.
fn of_protocol(statement: &str) -> Option<String> {
    Some(mnemonic(statement)).filter(|mnemonic| is_protocol(mnemonic))
}

/// Returns the mnemonics of each function's statements that belong to the protocol.
pub fn protocol(ptx: &str) -> Protocol {
    let of = |statements: Vec<String>| statements.iter().filter_map(|statement| of_protocol(statement)).collect();
    functions(ptx).into_iter().map(|(name, statements)| (name, of(statements))).collect()
}

/// The statements of each function, each with its protocol mnemonic: parsed once, for tests that modify them many
/// times.
#[derive(Debug)]
pub struct Read(BTreeMap<String, Vec<(String, Option<String>)>>);

impl Read {
    /// Parses the PTX.
    pub fn new(ptx: &str) -> Read {
        let each = |statement: String| {
            let of = of_protocol(&statement);
            (statement, of)
        };
        let all = functions(ptx).into_iter();
        Read(all.map(|(name, statements)| (name, statements.into_iter().map(each).collect())).collect())
    }

    /// Returns the protocol with `right` replaced by `wrong` in all statements.
    pub fn spoilt(&self, right: &str, wrong: &str) -> Protocol {
        // Statements have lost the semicolon that `right` may end with.
        let part = right.trim_end_matches(';');
        let each = |(statement, of): &(String, Option<String>)| -> Vec<String> {
            if !statement.contains(part) {
                return of.iter().cloned().collect();
            }
            format!("{statement};")
                .replace(right, wrong)
                .split(';')
                .filter_map(|part| of_protocol(part.trim()))
                .collect()
        };
        self.0.iter().map(|(name, statements)| (name.clone(), statements.iter().flat_map(each).collect())).collect()
    }
}

//! Control flow of a PTX function: successors of each statement, payload stores, and the threads that reach a
//! statement.

use crate::{Protocol, functions_of, is_payload, mnemonic, short};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The fence that orders accesses that are visible to other devices.
pub const FENCE: &str = "fence.acq_rel.sys";

/// The threads whose stores a signal covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalScope {
    /// Only the thread that signals.
    Thread,
    /// The threads of the calling thread's warp.
    Warp,
    /// The threads of the calling thread's block.
    Block,
}

/// A function of a module, with its control flow.
#[derive(Debug)]
pub struct PtxFunction {
    /// Name in the form of [`short`].
    pub name: String,
    /// The statements in order.
    pub statements: Vec<String>,
    after: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
    /// Threads whose stores the function's signals cover.
    pub scope: SignalScope,
    /// Indices of statements that store payload: wide plain stores, and calls of functions that store without ordering.
    stores: HashSet<usize>,
    /// Mnemonic of each statement.
    pub mnemonics: Vec<String>,
    /// The first statement that writes each register.
    made: HashMap<String, usize>,
    /// Edges after a branch that only the first thread of a scope takes (true), or that it does not take (false).
    ways: HashMap<(usize, usize), bool>,
}

/// Result of a backward walk.
#[derive(Debug, Default)]
pub struct Walk {
    /// Statements that stopped the walk.
    pub cuts: BTreeSet<usize>,
    /// Whether the walk met a payload store or the start of the function. Before the start, a caller or an earlier
    /// launch may have stored.
    pub met_store: bool,
}

/// Returns the functions of a module.
pub fn functions(module: &str) -> Vec<PtxFunction> {
    let all = functions_of(module);
    let storing: HashSet<&String> =
        all.iter().filter(|(name, list)| only_stores(name, list)).map(|(name, _)| name).collect();
    all.iter()
        .map(|(name, list)| {
            let called = |statement: &str| callee(statement).is_some_and(|name| storing.contains(&short(name)));
            let stores = |at: &usize| called(&list[*at]) || is_payload(&mnemonic(&list[*at]));
            PtxFunction::new(name.clone(), list.clone(), (0..list.len()).filter(stores).collect())
        })
        .collect()
}

/// Returns whether a device function has plain stores to memory that other threads can access, and orders nothing
/// itself.
fn only_stores(name: &str, list: &[String]) -> bool {
    let plain = |statement: &String| {
        let word = mnemonic(statement);
        let own = [".param", ".local", ".shared", "relaxed", "release", "volatile"];
        word.starts_with("st.") && !own.iter().any(|part| word.contains(part))
    };
    let orders =
        |statement: &String| ["bar", "red.", "fence"].iter().any(|first| mnemonic(statement).starts_with(first));
    !is_kernel(name) && list.iter().any(plain) && !list.iter().any(orders)
}

/// Returns whether this is the name of a kernel. Names of kernels are not mangled.
fn is_kernel(name: &str) -> bool {
    !name.contains("::")
}

/// Returns the function that a statement calls.
fn callee(statement: &str) -> Option<&str> {
    let (_, rest) = statement.strip_prefix("call")?.split_once(char::is_whitespace)?;
    rest.split([',', ' ', '\t']).find(|word| word.starts_with(|first: char| first.is_alphabetic() || first == '_'))
}

impl PtxFunction {
    fn new(name: String, statements: Vec<String>, stores: HashSet<usize>) -> PtxFunction {
        let after = successors(&statements);
        let mut before = vec![Vec::new(); statements.len()];
        for (at, next) in after.iter().enumerate() {
            next.iter().for_each(|next| before[*next].push(at));
        }
        let scope = scope(&name, &statements, &stores);
        let mnemonics = statements.iter().map(|statement| mnemonic(statement)).collect();
        let mut made = HashMap::new();
        for (at, statement) in statements.iter().enumerate() {
            written(statement).map(|register| made.entry(register.to_owned()).or_insert(at));
        }
        let mut function =
            PtxFunction { name, statements, after, before, scope, stores, mnemonics, made, ways: HashMap::new() };
        function.ways = function.ways_of_the_first();
        function
    }

    /// Returns whether a statement's mnemonic starts with `wanted`.
    pub fn is(&self, at: usize, wanted: &str) -> bool {
        self.mnemonics[at].starts_with(wanted)
    }

    /// Returns whether any statement's mnemonic starts with `wanted`.
    pub fn any(&self, wanted: &str) -> bool {
        (0..self.statements.len()).any(|at| self.is(at, wanted))
    }

    /// Returns whether a statement is a barrier of the scope's threads. A block barrier is also one for its warps.
    pub fn is_barrier(&self, at: usize) -> bool {
        let of_warp = self.is(at, "bar.warp.sync");
        if self.scope == SignalScope::Warp { self.is(at, "bar") } else { self.is(at, "bar") && !of_warp }
    }

    /// Walks back from a statement on all paths, up to statements for which `cuts` holds. If only the first thread of
    /// the scope reaches the statement, paths that this thread does not take are excluded.
    pub fn back(&self, from: usize, cuts: &dyn Fn(usize) -> bool) -> Walk {
        let first = self.is_of_the_first(from);
        let before = |to: usize| {
            let taken = move |at: &usize| !first || self.ways.get(&(*at, to)) != Some(&false);
            self.before[to].iter().copied().filter(taken)
        };
        let (mut walk, mut seen) = (Walk::default(), HashSet::new());
        let mut todo: Vec<usize> = before(from).collect();
        while let Some(at) = todo.pop() {
            if !seen.insert(at) {
                continue;
            }
            if cuts(at) {
                walk.cuts.insert(at);
                continue;
            }
            walk.met_store |= at == 0 || self.stores.contains(&at);
            todo.extend(before(at));
        }
        walk
    }

    /// Returns whether only the first thread of the scope reaches a statement: every path to it has an edge that only
    /// this thread takes.
    fn is_of_the_first(&self, wanted: usize) -> bool {
        let (mut todo, mut seen) = (vec![0], HashSet::new());
        while let Some(at) = todo.pop() {
            if seen.insert(at) {
                todo.extend(self.after[at].iter().filter(|next| self.ways.get(&(at, **next)) != Some(&true)));
            }
        }
        !seen.contains(&wanted)
    }

    fn ways_of_the_first(&self) -> HashMap<(usize, usize), bool> {
        let mut ways = HashMap::new();
        for (at, next) in self.after.iter().enumerate() {
            if let (Some(predicate), [jump, next]) = (guard(&self.statements[at]), &next[..]) {
                for (side, value) in [(jump, true), (next, false)] {
                    self.is_first(predicate, value).map(|is_first| ways.insert((at, *side), is_first));
                }
            }
        }
        ways
    }

    /// Returns whether a thread for which the predicate has this value is the first of its scope (true) or not (false).
    /// Returns `None` if the predicate does not determine it.
    fn is_first(&self, predicate: &str, value: bool) -> Option<bool> {
        let words = self.words_of(predicate)?;
        match words[..] {
            [compare, _, register, "0"] if compare.starts_with("setp.eq") || compare.starts_with("setp.ne") => {
                let made = &self.statements[*self.made.get(register)?];
                let is_rank = made.contains("%tid.x") || made.contains("%laneid");
                is_rank.then_some(compare.starts_with("setp.eq") == value)
            }
            ["not.pred", _, other] => self.is_first(other, !value),
            ["and.pred", _, one, other] if value => self.is_first(one, value).or_else(|| self.is_first(other, value)),
            ["or.pred", _, one, other] if !value => self.is_first(one, value).or_else(|| self.is_first(other, value)),
            _ => None,
        }
    }

    /// Returns the words of the statement that writes a register.
    fn words_of(&self, register: &str) -> Option<Vec<&str>> {
        let made = &self.statements[*self.made.get(register)?];
        Some(made.split([' ', '\t', ',']).filter(|word| !word.is_empty()).collect())
    }

    /// Returns the function with another statement at this index.
    pub fn with(&self, at: usize, statement: &str) -> PtxFunction {
        let mut statements = self.statements.clone();
        statements[at] = statement.into();
        PtxFunction::new(self.name.clone(), statements, self.stores.clone())
    }

    /// Returns whether the scope's first thread can get from a payload store to the next clock read without a fence.
    ///
    /// Applies to kernels that wait by `quiet`, in which only that thread fences, after a branch that depends on
    /// whether there was a store. Paths on which this branch contradicts the register values known at the store are
    /// excluded.
    pub fn unfenced(&self) -> bool {
        self.stores.iter().any(|store| {
            let (mut todo, mut seen) = (vec![(*store, self.known_at(*store))], HashSet::new());
            while let Some((at, known)) = todo.pop() {
                if !seen.insert((at, known.clone())) || self.is(at, FENCE) {
                    continue;
                }
                let statement = &self.statements[at];
                if statement.contains("%clock64") || statement.contains("%globaltimer") {
                    return true;
                }
                // A register that is overwritten is no longer known.
                let mut known = known;
                known.retain(|(register, _)| written(statement) != Some(register));
                let taken = guard(statement).and_then(|predicate| self.value(predicate, &known));
                let next = self.after[at]
                    .iter()
                    .enumerate()
                    .filter(|(side, _)| taken.is_none_or(|taken| taken == (*side == 0)))
                    .filter(|(_, next)| self.ways.get(&(at, **next)) != Some(&false));
                todo.extend(next.map(|(_, next)| (*next, known.clone())));
            }
            false
        })
    }

    /// Returns what the branches on every path to a statement imply for registers: whether they are 0.
    fn known_at(&self, wanted: usize) -> Vec<(String, bool)> {
        let mut known = Vec::new();
        for (at, next) in self.after.iter().enumerate() {
            let (Some(predicate), [jump, follow]) = (guard(&self.statements[at]), &next[..]) else { continue };
            let Some((register, equal)) = self.comparison(predicate) else { continue };
            for (side, zero) in [(*jump, equal), (*follow, !equal)] {
                if !self.comes_without((at, side), wanted) {
                    known.push((register.clone(), zero));
                }
            }
        }
        known
    }

    /// Returns whether some path from the start reaches a statement without using this edge.
    fn comes_without(&self, step: (usize, usize), wanted: usize) -> bool {
        let (mut todo, mut seen) = (vec![0], vec![false; self.statements.len()]);
        while let Some(at) = todo.pop() {
            if at == wanted {
                return true;
            }
            if !std::mem::replace(&mut seen[at], true) {
                todo.extend(self.after[at].iter().filter(|next| (at, **next) != step));
            }
        }
        false
    }

    /// Returns a predicate's value for the first thread of the scope, given which registers are known to be 0 or not.
    fn value(&self, predicate: &str, known: &[(String, bool)]) -> Option<bool> {
        let words = self.words_of(predicate)?;
        match words[..] {
            ["not.pred", _, other] => self.value(other, known).map(|value| !value),
            ["and.pred" | "or.pred", _, one, other] => {
                let (one, other) = (self.value(one, known), self.value(other, known));
                // A single operand may determine the result. Otherwise, both must be known.
                let decides = words[0] == "or.pred";
                if one == Some(decides) || other == Some(decides) { Some(decides) } else { one.and(other) }
            }
            _ => {
                let (register, equal) = self.comparison(predicate)?;
                let made = self.made.get(&register).map_or("", |at| &self.statements[*at]);
                let is_rank = made.contains("%tid.x") || made.contains("%laneid");
                let zero = known.iter().find(|(known, _)| *known == register).map(|(_, zero)| *zero);
                (if is_rank { Some(true) } else { zero }).map(|zero| zero == equal)
            }
        }
    }

    /// Returns the register that a predicate compares with 0, and whether for equality.
    fn comparison(&self, predicate: &str) -> Option<(String, bool)> {
        let words = self.words_of(predicate)?;
        match words[..] {
            [compare, _, register, "0"] if compare.starts_with("setp.eq") => Some((register.into(), true)),
            [compare, _, register, "0"] if compare.starts_with("setp.ne") => Some((register.into(), false)),
            _ => None,
        }
    }
}

/// Returns the predicate of a branch.
fn guard(statement: &str) -> Option<&str> {
    statement.strip_prefix('@')?.split_whitespace().next()
}

/// Returns the register that a statement writes.
fn written(statement: &str) -> Option<&str> {
    statement.split_whitespace().nth(1)?.strip_suffix(',')
}

/// Returns the successors of each statement. The target of a branch is first.
fn successors(statements: &[String]) -> Vec<Vec<usize>> {
    let is_label = |statement: &&String| statement.starts_with('$') && !statement.ends_with(',');
    let labels: HashMap<&str, usize> = (0..)
        .zip(statements)
        .filter(|(_, statement)| is_label(statement))
        .filter_map(|(at, statement)| Some((statement.split_once(':')?.0, at)))
        .collect();
    // A table of targets follows its name, one per line.
    let table = |at: usize| {
        let last = statements[at + 1..].iter().position(|target| !target.ends_with(',')).unwrap_or(0) + at + 1;
        statements[at + 1..=last].iter().map(|target| labels[target.trim_end_matches(',')]).collect::<Vec<usize>>()
    };
    let next = |at: usize, statement: &String| {
        let words: Vec<&str> = statement.split_whitespace().collect();
        let (condition, words) = match words.split_first() {
            Some((first, rest)) if first.starts_with('@') => (true, rest),
            _ => (false, &words[..]),
        };
        let target = words.last().copied().unwrap_or_default();
        let mut next = match words.first().copied().unwrap_or_default() {
            "bra" | "bra.uni" => vec![labels[target]],
            "brx.idx" => table(labels[target]),
            "ret" | "trap" | "exit" => Vec::new(),
            _ => vec![at + 1],
        };
        if condition && next != [at + 1] {
            next.push(at + 1);
        }
        next.retain(|next| *next < statements.len());
        next
    };
    statements.iter().enumerate().map(|(at, statement)| next(at, statement)).collect()
}

/// Returns the scope of a function: the type parameter in its name, or the last parameter of a call that stores, which
/// is the number of threads that copy. Without either, the end of the name determines it.
fn scope(name: &str, statements: &[String], stores: &HashSet<usize>) -> SignalScope {
    match name.rsplit_once("::scope::") {
        Some((_, "Thread")) => return SignalScope::Thread,
        Some((_, "Warp")) => return SignalScope::Warp,
        Some((_, "Block")) => return SignalScope::Block,
        _ => {}
    }
    let by_name = || match name {
        _ if name.ends_with("_thread") => SignalScope::Thread,
        _ if name.ends_with("_warp") => SignalScope::Warp,
        _ => SignalScope::Block,
    };
    let calls = stores.iter().filter(|at| callee(&statements[**at]).is_some());
    let Some(call) = calls.min() else { return by_name() };
    let parameter = |statement: &String| {
        let (number, value) = statement.strip_prefix("st.param")?.split_once("[param")?.1.split_once("],")?;
        Some((number.parse::<u32>().ok()?, value.trim().to_owned()))
    };
    // The parameters of a call directly precede it.
    let parameters = statements[..*call].iter().rev().take_while(|statement| callee(statement).is_none());
    let Some((_, threads)) = parameters.filter_map(parameter).take(8).max() else { return by_name() };
    let made = |register: &str| statements.iter().find(|statement| written(statement) == Some(register));
    let converted = |register: &str| {
        made(register).filter(|made| made.starts_with("cvt")).and_then(|made| made.split_whitespace().last())
    };
    // The parameter may at most be widened and narrowed again.
    let mut register = threads.as_str();
    for _ in 0..2 {
        register = converted(register).unwrap_or(register);
    }
    match register {
        "1" => SignalScope::Thread,
        register if made(register).is_some_and(|made| made.contains("%ntid.x")) => SignalScope::Block,
        _ => SignalScope::Warp,
    }
}

/// Returns the kernels and functions that use the device API (`gin`) directly or indirectly.
pub fn of_gin(functions: &Protocol) -> HashSet<String> {
    let mut found: HashSet<String> = functions.keys().filter(|name| name.contains("::gin::")).cloned().collect();
    loop {
        let calls = |list: &Vec<String>| {
            list.iter().any(|statement| callee(statement).is_some_and(|name| found.contains(&short(name))))
        };
        let more: Vec<String> = functions
            .iter()
            .filter(|(name, list)| !found.contains(*name) && calls(list))
            .map(|(name, _)| name.clone())
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

//! The ways through a function of the PTX: which statement comes behind which, what stores payload, and who comes by.

use crate::{Protocol, functions_of, is_payload, mnemonic, short};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The fence that orders what goes to other devices.
pub const FENCE: &str = "fence.acq_rel.sys";

/// Whose stores a signal speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Its own.
    Thread,
    /// Its warp's.
    Warp,
    /// Its block's.
    Block,
}

/// A function of a module, and from where to where it goes.
#[derive(Debug)]
pub struct Function {
    /// Short, as [`short`] has it.
    pub name: String,
    /// As they stand.
    pub statements: Vec<String>,
    after: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
    /// Whose stores its signals speak of.
    pub scope: Scope,
    /// Statements that store payload: wide plain stores, and calls of functions that store and order nothing.
    stores: HashSet<usize>,
    /// Of each statement.
    pub mnemonics: Vec<String>,
    /// By register, the statement that writes it first.
    made: HashMap<String, usize>,
    /// Ways behind a branch that only the first thread of a scope takes, and those that it does not take.
    ways: HashMap<(usize, usize), bool>,
}

/// What a walk against the direction of the program has met.
#[derive(Debug, Default)]
pub struct Walk {
    /// Where it was stopped.
    pub cuts: BTreeSet<usize>,
    /// A payload store, or the beginning of the function: what stands before it, in a caller or an earlier launch, may be one.
    pub met_store: bool,
}

/// The functions of a module.
pub fn functions(module: &str) -> Vec<Function> {
    let all = functions_of(module);
    let storing: HashSet<&String> =
        all.iter().filter(|(name, list)| only_stores(name, list)).map(|(name, _)| name).collect();
    all.iter()
        .map(|(name, list)| {
            let called = |statement: &str| callee(statement).is_some_and(|name| storing.contains(&short(name)));
            let stores = |at: &usize| called(&list[*at]) || is_payload(&mnemonic(&list[*at]));
            Function::new(name.clone(), list.clone(), (0..list.len()).filter(stores).collect())
        })
        .collect()
}

/// Whether a device function stores plainly to memory that others see, and orders nothing itself.
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

/// Names of kernels are not mangled.
fn is_kernel(name: &str) -> bool {
    !name.contains("::")
}

/// The function that a statement calls.
fn callee(statement: &str) -> Option<&str> {
    let (_, rest) = statement.strip_prefix("call")?.split_once(char::is_whitespace)?;
    rest.split([',', ' ', '\t']).find(|word| word.starts_with(|first: char| first.is_alphabetic() || first == '_'))
}

impl Function {
    fn new(name: String, statements: Vec<String>, stores: HashSet<usize>) -> Function {
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
            Function { name, statements, after, before, scope, stores, mnemonics, made, ways: HashMap::new() };
        function.ways = function.ways_of_the_first();
        function
    }

    /// Whether a statement's mnemonic begins so.
    pub fn is(&self, at: usize, wanted: &str) -> bool {
        self.mnemonics[at].starts_with(wanted)
    }

    /// Whether one of them does.
    pub fn any(&self, wanted: &str) -> bool {
        (0..self.statements.len()).any(|at| self.is(at, wanted))
    }

    /// A barrier at which the scope's threads meet. Those of a block hold for its warps too.
    pub fn is_barrier(&self, at: usize) -> bool {
        let of_warp = self.is(at, "bar.warp.sync");
        if self.scope == Scope::Warp { self.is(at, "bar") } else { self.is(at, "bar") && !of_warp }
    }

    /// Walks back from a statement, on every way, up to statements that cut it. Where only the first thread of the scope comes to the
    /// statement, no way is walked that this thread does not take.
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

    /// Whether only the first thread of the scope comes to a statement: nobody does but on its ways.
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

    /// What a predicate's value says of a thread: whether it is the first of its scope.
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

    /// The statement that makes a register.
    fn words_of(&self, register: &str) -> Option<Vec<&str>> {
        let made = &self.statements[*self.made.get(register)?];
        Some(made.split([' ', '\t', ',']).filter(|word| !word.is_empty()).collect())
    }

    /// The same with another statement in this place.
    pub fn with(&self, at: usize, statement: &str) -> Function {
        let mut statements = self.statements.clone();
        statements[at] = statement.into();
        Function::new(self.name.clone(), statements, self.stores.clone())
    }

    /// Ways of a scope's first thread from a payload store to the next look at the clock without a fence: in kernels that wait by `quiet`, whose
    /// fence is that thread's and stands behind the question whether there was a store. A way on which that question has another answer than
    /// before the store is none.
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
                // What is written anew is not known any more.
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

    /// What the branches that every way to a statement takes say of registers: which are 0, and which are not.
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

    /// Whether a way from the beginning comes to a statement without this step of a branch.
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

    /// A predicate's value for the first thread of the scope, where some registers are known to be 0 or not.
    fn value(&self, predicate: &str, known: &[(String, bool)]) -> Option<bool> {
        let words = self.words_of(predicate)?;
        match words[..] {
            ["not.pred", _, other] => self.value(other, known).map(|value| !value),
            ["and.pred" | "or.pred", _, one, other] => {
                let (one, other) = (self.value(one, known), self.value(other, known));
                // What decides alone, and what both must be.
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

    /// The register that a predicate compares with 0, and whether for equality.
    fn comparison(&self, predicate: &str) -> Option<(String, bool)> {
        let words = self.words_of(predicate)?;
        match words[..] {
            [compare, _, register, "0"] if compare.starts_with("setp.eq") => Some((register.into(), true)),
            [compare, _, register, "0"] if compare.starts_with("setp.ne") => Some((register.into(), false)),
            _ => None,
        }
    }
}

/// The predicate that a branch asks.
fn guard(statement: &str) -> Option<&str> {
    statement.strip_prefix('@')?.split_whitespace().next()
}

/// The register that a statement writes.
fn written(statement: &str) -> Option<&str> {
    statement.split_whitespace().nth(1)?.strip_suffix(',')
}

/// Where each statement goes on: a branch's target first.
fn successors(statements: &[String]) -> Vec<Vec<usize>> {
    let is_label = |statement: &&String| statement.starts_with('$') && !statement.ends_with(',');
    let labels: HashMap<&str, usize> = (0..)
        .zip(statements)
        .filter(|(_, statement)| is_label(statement))
        .filter_map(|(at, statement)| Some((statement.split_once(':')?.0, at)))
        .collect();
    // A table of targets follows its name, one on each line.
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

/// Who copies: the last parameter of a call that stores is the number of threads. Where nothing is copied, the name says it.
fn scope(name: &str, statements: &[String], stores: &HashSet<usize>) -> Scope {
    let by_name = || match name {
        _ if name.ends_with("_thread") => Scope::Thread,
        _ if name.ends_with("_warp") => Scope::Warp,
        _ => Scope::Block,
    };
    let calls = stores.iter().filter(|at| callee(&statements[**at]).is_some());
    let Some(call) = calls.min() else { return by_name() };
    let parameter = |statement: &String| {
        let (number, value) = statement.strip_prefix("st.param")?.split_once("[param")?.1.split_once("],")?;
        Some((number.parse::<u32>().ok()?, value.trim().to_owned()))
    };
    // The parameters of a call stand right before it.
    let parameters = statements[..*call].iter().rev().take_while(|statement| callee(statement).is_none());
    let Some((_, threads)) = parameters.filter_map(parameter).take(8).max() else { return by_name() };
    let made = |register: &str| statements.iter().find(|statement| written(statement) == Some(register));
    let of_block = |register: &str| made(register).is_some_and(|made| made.contains("%ntid.x"));
    let widened = |register: &str| {
        made(register).filter(|made| made.starts_with("cvt")).and_then(|made| made.split_whitespace().last())
    };
    match threads.as_str() {
        "1" => Scope::Thread,
        register if of_block(register) || widened(register).is_some_and(of_block) => Scope::Block,
        _ => Scope::Warp,
    }
}

/// The kernels and functions that use the device API of programs: those from which a call leads into it.
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

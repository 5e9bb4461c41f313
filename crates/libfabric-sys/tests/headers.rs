//! Compares the declarations of this crate with the installed headers of libfabric, as bindgen reads them.
//!
//! The headers are those of `LIBFABRIC_INCLUDE_DIR`, otherwise the installed ones. Without headers or libclang, the
//! test prints a message and is skipped. Both sides are compared as syntax trees:
//!
//! - the members of each structure in order, with names and types;
//! - the signature of each operation and exported function;
//! - the value of each constant;
//! - the integer type of each enumeration.
//!
//! Items whose doc comment has a version (`Since 1.20`) may be absent from older headers.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use libfabric_sys as sys;
use syn::{BinOp, Expr, Fields, Item, Lit, Type};

/// Sources of this crate's declarations.
const SOURCES: [&str; 5] = [
    include_str!("../src/constants.rs"),
    include_str!("../src/types.rs"),
    include_str!("../src/tables.rs"),
    include_str!("../src/info.rs"),
    include_str!("../src/library.rs"),
];

/// One macro has a cast: bindgen translates signed constants with a cast, but no macros.
const HEADER: &str = "#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
static const long long CAST_FI_ADDR_UNSPEC = (long long) FI_ADDR_UNSPEC;
";

/// Sizes of the structures created here, as laid out by the compiler.
macro_rules! sizes {
    ($($name:ident),*) => { [$((stringify!($name), size_of::<sys::$name>())),*] };
}
const SIZES: [(&str, usize); 13] = sizes!(
    fid,
    fi_bus_attr_attr,
    fi_pci_attr,
    fi_context2,
    fi_av_attr,
    fi_cq_attr,
    fi_mr_attr,
    fi_mr_attr_device,
    fi_cq_data_entry,
    fi_cq_err_entry,
    fi_rma_iov,
    fi_msg,
    fi_msg_rma
);

struct Member {
    name: String,
    ty: Type,
    since: Option<u32>,
}

#[derive(Default)]
struct Record {
    members: Vec<Member>,
    /// Whether the last member is `_rest`, so that the declaration may be incomplete.
    stops: bool,
    is_c: bool,
}

/// The declarations of one side.
#[derive(Default)]
struct Side {
    records: BTreeMap<String, Record>,
    functions: BTreeMap<String, Type>,
    constants: BTreeMap<String, (Type, i128, Option<u32>)>,
    aliases: BTreeMap<String, Type>,
    /// Sizes according to clang; only for the headers.
    sizes: BTreeMap<String, usize>,
}

/// Returns the version of a doc comment such as `Since 1.20`.
fn since(attributes: &[syn::Attribute]) -> Option<u32> {
    attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(doc) = &attribute.meta else { return None };
        let Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) = &doc.value else { return None };
        let text = text.value();
        let (major, rest) = text.trim().strip_prefix("Since ")?.split_once('.')?;
        let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some(sys::version(major.parse().ok()?, minor.parse().ok()?))
    })
}

impl Side {
    fn new(sources: &[String]) -> Self {
        let mut side = Self::default();
        for source in sources {
            for item in syn::parse_file(source).unwrap().items {
                side.add(item);
            }
        }
        side
    }

    fn add(&mut self, item: Item) {
        match item {
            Item::Struct(item) if item.ident == "LibfabricLibrary" => {
                let exported = item.fields.into_iter().filter(|field| matches!(field.ty, Type::BareFn(_)));
                self.functions.extend(exported.map(|field| (field.ident.unwrap().to_string(), field.ty)));
            }
            Item::Struct(item) => self.add_record(item.ident.to_string(), &item.attrs, item.fields),
            Item::Union(item) => self.add_record(item.ident.to_string(), &item.attrs, Fields::Named(item.fields)),
            Item::Type(item) => drop(self.aliases.insert(item.ident.to_string(), *item.ty)),
            Item::Const(item) if item.ident == "_" => self.add_sizes(&item.expr),
            Item::Const(item) => {
                if let Some(value) = self.value(&item.expr) {
                    let dated = since(&item.attrs);
                    self.constants.insert(item.ident.to_string(), (*item.ty, value, dated));
                }
            }
            Item::ForeignMod(block) => {
                for item in block.items {
                    let syn::ForeignItem::Fn(item) = item else { continue };
                    let (inputs, output) = (item.sig.inputs.iter(), &item.sig.output);
                    let arguments = inputs.map(|input| match input {
                        syn::FnArg::Typed(argument) => (&*argument.pat, &*argument.ty),
                        syn::FnArg::Receiver(_) => unreachable!("a C function has no self"),
                    });
                    let text = arguments.map(|(name, ty)| format!("{}: {}", words(name), words(ty)));
                    let text = text.collect::<Vec<_>>().join(", ");
                    let text = format!("unsafe extern \"C\" fn({text}) {}", words(output));
                    self.functions.insert(item.sig.ident.to_string(), syn::parse_str(&text).unwrap());
                }
            }
            _ => {}
        }
    }

    fn add_record(&mut self, name: String, attributes: &[syn::Attribute], fields: Fields) {
        let is_c = attributes.iter().any(|attribute| words(attribute) == "# [repr (C)]");
        let mut record = Record { is_c, ..Record::default() };
        for field in fields {
            let (name, since) = (field.ident.map(|name| name.to_string()).unwrap_or_default(), since(&field.attrs));
            assert!(!record.stops, "{name}: nothing may follow _rest");
            record.stops = name == "_rest";
            if !record.stops {
                record.members.push(Member { name, ty: field.ty, since });
            }
        }
        self.records.insert(name, record);
    }

    /// Reads a size from bindgen's layout tests: `["Size of fid"][::std::mem::size_of::<fid>() - 24usize];`
    fn add_sizes(&mut self, tests: &Expr) {
        let Expr::Block(tests) = tests else { return };
        for test in &tests.block.stmts {
            let syn::Stmt::Expr(Expr::Index(test), _) = test else { continue };
            let text = words(&test.expr);
            let Some(name) = text.strip_prefix("[\"Size of ").and_then(|rest| rest.strip_suffix("\"]")) else {
                continue;
            };
            if let Expr::Binary(difference) = &*test.index {
                let size = self.value(&difference.right).unwrap();
                self.sizes.insert(name.to_owned(), usize::try_from(size).unwrap());
            }
        }
    }

    /// Returns the value of a constant expression, if it is one.
    fn value(&self, expression: &Expr) -> Option<i128> {
        match expression {
            Expr::Lit(syn::ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse().ok(),
            Expr::Unary(minus) => Some(-self.value(&minus.expr)?),
            Expr::Binary(both) => {
                let (left, right) = (self.value(&both.left)?, self.value(&both.right)?);
                match both.op {
                    BinOp::Shl(_) => Some(left << right),
                    BinOp::BitOr(_) => Some(left | right),
                    _ => None,
                }
            }
            Expr::Path(path) if words(path) == "fi_addr_t :: MAX" => Some(u64::MAX.into()),
            Expr::Path(path) => self.constants.get(&words(path)).map(|(_, value, _)| *value),
            _ => None,
        }
    }
}

fn words(tokens: &impl quote::ToTokens) -> String {
    tokens.to_token_stream().to_string()
}

/// Comparison of both sides; differences are one line each.
struct Comparison<'a> {
    ours: &'a Side,
    theirs: &'a Side,
    version: u32,
    compared: BTreeSet<String>,
    differences: Vec<String>,
}

impl Comparison<'_> {
    /// Returns a type without paths, and without aliases that only the headers have.
    fn plain(&self, ty: &Type) -> String {
        match ty {
            Type::Path(path) => {
                let last = path.path.segments.last().unwrap();
                let name = last.ident.to_string();
                match (&last.arguments, self.theirs.aliases.get(&name)) {
                    (syn::PathArguments::AngleBracketed(inner), _) => {
                        let inner = inner.args.iter().map(|argument| match argument {
                            syn::GenericArgument::Type(ty) => self.plain(ty),
                            other => words(other),
                        });
                        format!("{name}<{}>", inner.collect::<Vec<_>>().join(", "))
                    }
                    (_, Some(alias)) if !self.ours.aliases.contains_key(&name) => self.plain(alias),
                    _ => name,
                }
            }
            Type::Ptr(pointer) => {
                let kind = if pointer.mutability.is_some() { "mut" } else { "const" };
                format!("*{kind} {}", self.plain(&pointer.elem))
            }
            Type::Array(array) => format!("[{}; {}]", self.plain(&array.elem), self.ours.value(&array.len).unwrap()),
            Type::BareFn(function) => {
                let argument = |argument: &syn::BareFnArg| {
                    let name = argument.name.as_ref().map(|(name, _)| name.to_string()).unwrap_or_default();
                    format!("{name}: {}", self.plain(&argument.ty))
                };
                let arguments = function.inputs.iter().map(argument).collect::<Vec<_>>().join(", ");
                let result = match &function.output {
                    syn::ReturnType::Default => "()".to_owned(),
                    syn::ReturnType::Type(_, ty) => self.plain(ty),
                };
                assert_eq!(words(&function.abi), "extern \"C\"");
                format!("fn({arguments}) -> {result}")
            }
            other => words(other),
        }
    }

    fn differ(&mut self, place: &str, ours: impl std::fmt::Display, theirs: impl std::fmt::Display) {
        self.differences.push(format!("{place}: declared {ours}, in the headers {theirs}"));
    }

    /// Compares a member's name and type.
    fn member(&mut self, place: &str, ours: &Member, theirs: &Member) {
        let (mine, other) = (self.plain(&ours.ty), self.plain(&theirs.ty));
        if theirs.name.starts_with("__bindgen_anon") {
            // An anonymous union in the headers of later versions, of which this declaration is one member.
            let union = &self.theirs.records[&other];
            let same = union.members.iter().any(|member| member.name == ours.name && self.plain(&member.ty) == mine);
            let size = if mine.starts_with('*') { size_of::<usize>() } else { size_of::<u32>() };
            let known = mine.starts_with('*') || self.ours.aliases.contains_key(&mine);
            if !same || !known || self.theirs.sizes[&other] != size {
                self.differ(place, format!("{}: {mine}", ours.name), "a union that is not that");
            }
        } else if ours.name != theirs.name {
            self.differ(place, &ours.name, &theirs.name);
        } else if other.contains("__bindgen_ty_") && self.ours.records.contains_key(&mine) {
            self.record(&mine, &other);
        } else if mine != other && !(mine == "Uncalled" && other.starts_with("Option<fn(")) {
            self.differ(&format!("{place}.{}", ours.name), mine, other);
        }
        // The structure is used by value, so its declaration must be complete.
        if let Type::Path(_) = &ours.ty
            && let name = self.plain(&ours.ty)
            && name.starts_with("fi")
            && !self.ours.aliases.contains_key(&name)
            && self.ours.records.get(&name).is_none_or(|record| record.stops)
        {
            self.differ(&format!("{place}.{}", ours.name), "as a part of which not all is declared", "by value");
        }
    }

    fn record(&mut self, name: &str, theirs: &str) {
        self.compared.insert(name.to_owned());
        let ours = &self.ours.records[name];
        let Some(header) = self.theirs.records.get(theirs) else { return self.differ(name, "a struct", "nothing") };
        if !ours.is_c {
            self.differ(name, "without repr(C)", "a C struct");
        }
        // In a named union, the order of the members does not matter.
        let is_union = theirs.contains("__bindgen_ty_");
        let mut dated = false;
        for (index, member) in ours.members.iter().enumerate() {
            let place = if is_union {
                header.members.iter().position(|other| other.name == member.name)
            } else {
                Some(index).filter(|index| *index < header.members.len())
            };
            match place {
                Some(place) => self.member(name, member, &header.members[place]),
                None if member.since.is_some_and(|since| since > self.version) => dated = true,
                None => self.differ(name, &member.name, "nothing"),
            }
        }
        if ours.stops {
            return;
        }
        let more = header.members.iter().skip(ours.members.len()).map(|member| member.name.as_str());
        let more = more.collect::<Vec<_>>().join(", ");
        if !is_union && !more.is_empty() {
            if self.version > sys::NEWEST_API {
                // The requested API version is older, so the library ignores these members.
                println!("{name} has grown by {more}");
                return;
            }
            self.differ(name, "no more", more);
        }
        let size = SIZES.iter().find(|(known, _)| *known == name).map(|(_, size)| *size);
        let expected = self.theirs.sizes.get(theirs).copied();
        if !dated && size != expected {
            self.differ(name, format!("{size:?} bytes"), format!("{expected:?}"));
        }
    }

    fn all(mut self) -> (usize, Vec<String>) {
        let (ours, theirs) = (self.ours, self.theirs);
        for name in ours.records.keys().filter(|name| name.starts_with("fi")) {
            // The two unions are compared where they are used: the headers have no name for them.
            if theirs.records.contains_key(name) {
                self.record(name, name);
            }
        }
        for name in ours.records.keys().filter(|name| name.starts_with("fi")) {
            if !self.compared.contains(name) {
                self.differ(name, "a struct", "nothing");
            }
        }
        for (name, function) in &ours.functions {
            let mine = self.plain(function);
            let other = theirs.functions.get(name).map_or("nothing".to_owned(), |function| self.plain(function));
            if mine != other {
                self.differ(name, mine, other);
            }
        }
        for (name, alias) in ours.aliases.iter().filter(|(name, _)| name.starts_with("fi_")) {
            let other = theirs.aliases.get(name).map_or("nothing".to_owned(), |alias| self.plain(alias));
            if self.plain(alias) != other {
                self.differ(name, self.plain(alias), other);
            }
        }
        for (name, (ty, value, since)) in ours.constants.iter().filter(|(name, _)| name.starts_with("FI_")) {
            let header = theirs.constants.get(name).or_else(|| theirs.constants.get(&format!("CAST_{name}")));
            match header {
                None if since.is_some_and(|since| since > self.version) => {}
                None => self.differ(name, value, "nothing"),
                Some((_, other, _)) if *value as u64 != *other as u64 => self.differ(name, value, other),
                Some((other, ..)) => {
                    // A member of a named enumeration has its type.
                    let (mine, other) = (words(ty), words(other));
                    if other.starts_with("fi_") && mine != other {
                        self.differ(name, mine, other);
                    }
                }
            }
        }
        let count = self.compared.len() + ours.functions.len() + ours.aliases.len() + ours.constants.len();
        (count, self.differences)
    }
}

fn compare(ours: &[String], theirs: &Side) -> (usize, Vec<String>) {
    let number = |name: &str| u32::try_from(theirs.constants[name].1).unwrap();
    let version = sys::version(number("FI_MAJOR_VERSION"), number("FI_MINOR_VERSION"));
    let ours = &Side::new(ours);
    Comparison { ours, theirs, version, compared: BTreeSet::new(), differences: Vec::new() }.all()
}

/// Returns the directory for `-I`, if one is needed, or the reason why there are no headers.
fn include() -> Result<Option<PathBuf>, String> {
    let has_headers = |folder: &Path| folder.join("rdma/fabric.h").is_file();
    if let Some(named) = std::env::var_os("LIBFABRIC_INCLUDE_DIR").filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        assert!(has_headers(&named), "LIBFABRIC_INCLUDE_DIR={} has no rdma/fabric.h", named.display());
        return Ok(Some(named));
    }
    let told = Command::new("pkg-config").args(["--variable=includedir", "libfabric"]).output();
    let told = told.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let places = [told.as_str(), "/usr/include", "/opt/amazon/efa/include", "/usr/local/include"];
    let found =
        places.into_iter().filter(|place| !place.is_empty()).map(PathBuf::from).find(|place| has_headers(place));
    found
        .map(Some)
        .ok_or_else(|| "no headers of libfabric (package libfabric-dev; or LIBFABRIC_INCLUDE_DIR)".to_owned())
}

/// Returns the headers as bindgen reads them, or the reason why they cannot be read.
fn headers() -> Result<Side, String> {
    let include = include()?;
    let generate = || {
        bindgen::Builder::default()
            .header_contents("ginlab_libfabric.h", HEADER)
            .clang_args(include.iter().map(|path| format!("-I{}", path.display())))
            .allowlist_function("fi_.*")
            .allowlist_type("fi_.*|fid|fid_.*")
            .allowlist_var("FI_.*|CAST_.*")
            .prepend_enum_name(false)
            .generate()
    };
    // bindgen panics without libclang.
    std::panic::set_hook(Box::new(|_| {}));
    let generated = std::panic::catch_unwind(generate);
    let _ = std::panic::take_hook();
    let bindings = generated.map_err(|_| "no libclang (package libclang-dev)".to_owned())?;
    Ok(Side::new(&[bindings.expect("headers that clang understands").to_string()]))
}

#[test]
fn declarations_match_headers() {
    let theirs = match headers() {
        Ok(theirs) => theirs,
        Err(why) => return println!("skipped: {why}"),
    };
    let number = |name: &str| theirs.constants[name].1;
    let version = format!("{}.{}", number("FI_MAJOR_VERSION"), number("FI_MINOR_VERSION"));
    let sources = SOURCES.map(str::to_owned);
    let (count, differences) = compare(&sources, &theirs);
    assert!(differences.is_empty(), "headers of libfabric {version}:\n{}", differences.join("\n"));
    assert!(count > 120, "{count} declarations: has one of the sources moved?");
    println!("ok: {count} declarations are as in the headers of libfabric {version}");

    if sys::version(number("FI_MAJOR_VERSION") as u32, number("FI_MINOR_VERSION") as u32) > sys::NEWEST_API {
        // With newer headers, a missing member is indistinguishable from one that the headers have added.
        return;
    }
    // The comparison must detect each of these errors.
    for (right, wrong) in [
        // A member out of order, missing, or of another type.
        ("pub caps: u64,\n", ""),
        (
            "pub fabric: *mut fid_fabric,\n    pub name: *mut c_char,",
            "pub name: *mut c_char,\n    pub fabric: *mut fid_fabric,",
        ),
        (
            "pub src_addrlen: usize,\n    pub dest_addrlen: usize,",
            "pub dest_addrlen: usize,\n    pub src_addrlen: usize,",
        ),
        ("pub wait_cond: fi_cq_wait_cond,", ""),
        ("pub wait_set: *mut fid_wait,", ""),
        ("pub olen: usize,", "pub olen: u32,"),
        ("pub cuda: c_int,", "pub cuda: u64,"),
        ("pub function_id: u8,", ""),
        ("pub data_progress: fi_progress,", "pub data_progress: u64,"),
        ("pub mr_iov: *const iovec,", "pub mr_iov: *mut iovec,"),
        ("#[repr(C)]\n#[derive(Clone, Copy, Debug)]\npub struct fi_rma_iov", "pub struct fi_rma_iov"),
        // An operation at the wrong position, and one with other arguments.
        ("pub readfrom: Uncalled,\n", ""),
        (
            "pub insertsvc: Uncalled,\n    pub insertsym: Uncalled,",
            "pub insertsym: Uncalled,\n    pub insertsvc: Uncalled,",
        ),
        (
            "fn(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int",
            "fn(fid: *mut fid, arg: *mut c_void, command: c_int) -> c_int",
        ),
        ("            addr: u64,\n            key: u64,", "            key: u64,\n            addr: u64,"),
        ("msg: *const fi_msg_rma, flags: u64) -> isize", "msg: *const fi_msg_rma, flags: u64) -> c_int"),
        // An exported function, an enumeration, constants of each kind.
        ("fn(info: *const fi_info) -> *mut fi_info", "fn(info: *mut fi_info) -> *mut fi_info"),
        ("pub type fi_ep_type = c_uint;", "pub type fi_ep_type = c_int;"),
        ("pub const FI_MORE: u64 = 1 << 18;", "pub const FI_MORE: u64 = 1 << 19;"),
        ("pub const FI_EP_RDM: fi_ep_type = 3;", "pub const FI_EP_RDM: fi_ep_type = 2;"),
        ("pub const FI_EP_RDM: fi_ep_type = 3;", "pub const FI_EP_RDM: u32 = 3;"),
        ("pub const FI_PROTO_SHM: u32 = 16;", "pub const FI_PROTO_SHM: u32 = 17;"),
        ("pub const FI_EAVAIL: c_int = 259;", "pub const FI_EAVAIL: c_int = 260;"),
        ("fi_addr_t = fi_addr_t::MAX;", "fi_addr_t = 0;"),
    ] {
        let wrong: Vec<String> = sources.iter().map(|source| source.replacen(right, wrong, 1)).collect();
        assert!(wrong != sources, "stands nowhere: {right}");
        let (_, differences) = compare(&wrong, &theirs);
        assert!(!differences.is_empty(), "not found: {right}");
    }
}

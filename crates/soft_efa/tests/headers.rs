//! Compares the declarations in `crates/verbs-sys/`, and the exported functions, with the headers of rdma-core as
//! bindgen reads them, and with the functions that the installed libfabric imports.
//!
//! The headers are those of `VERBS_INCLUDE_DIR`, otherwise the installed ones. Without headers or libclang, the test
//! prints a message and is skipped. The test compares the members of each structure in order, with names and types; the
//! signature of each function; and the value of each constant. Items whose doc comment has a version (`Since rdma-core
//! 56`, a release of rdma-core) may be absent from older headers.
//!
//! A `c_void` pointer here matches any pointer, including a function pointer.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use syn::{Fields, Item, Type};

/// The declarations, by topic.
const ABI: [&str; 7] = [
    include_str!("../../verbs-sys/src/completion.rs"),
    include_str!("../../verbs-sys/src/constants.rs"),
    include_str!("../../verbs-sys/src/counter.rs"),
    include_str!("../../verbs-sys/src/device.rs"),
    include_str!("../../verbs-sys/src/efa.rs"),
    include_str!("../../verbs-sys/src/memory.rs"),
    include_str!("../../verbs-sys/src/pair.rs"),
];
/// The function definitions.
const SYMBOLS: [&str; 11] = [
    include_str!("../src/channel.rs"),
    include_str!("../src/completions.rs"),
    include_str!("../src/context.rs"),
    include_str!("../src/registration.rs"),
    include_str!("../src/symbols/classic.rs"),
    include_str!("../src/symbols/counters.rs"),
    include_str!("../src/symbols/device.rs"),
    include_str!("../src/symbols/efa.rs"),
    include_str!("../src/symbols/objects.rs"),
    include_str!("../src/symbols/pair.rs"),
    include_str!("../src/symbols/queues.rs"),
];
const HEADER: &str = "#include <infiniband/verbs.h>\n#include <infiniband/efadv.h>\n";
/// Types with anonymous unions: only their size is compared.
const NAMELESS: [&str; 9] = [
    "efadv_cq_init_attr_ext_mem_dmabuf",
    "efadv_memory_location_dmabuf",
    "ibv_send_wr",
    "ibv_send_wr_wr",
    "ibv_send_wr_ud",
    "ibv_send_wr_atomic",
    "ibv_send_wr_qp_type",
    "ibv_send_wr_bind_mw",
    "ibv_wc",
];

#[derive(Default)]
struct Side {
    records: BTreeMap<String, Vec<(String, Type, bool)>>,
    /// Records that older headers lack.
    late: BTreeSet<String>,
    functions: BTreeMap<String, Vec<Type>>,
    constants: BTreeMap<String, (i128, bool)>,
    aliases: BTreeMap<String, Type>,
    sizes: BTreeMap<String, usize>,
}

fn words(item: &impl ToTokens) -> String {
    item.to_token_stream().to_string()
}

fn is_late(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| words(attribute).contains("Since "))
}

fn signature(signature: &syn::Signature) -> Vec<Type> {
    let mut types: Vec<Type> = Vec::new();
    for input in &signature.inputs {
        let syn::FnArg::Typed(argument) = input else { unreachable!("a C function has no self") };
        types.push((*argument.ty).clone());
    }
    types.push(match &signature.output {
        syn::ReturnType::Default => syn::parse_quote!(()),
        syn::ReturnType::Type(_, ty) => (**ty).clone(),
    });
    types
}

impl Side {
    fn new(sources: &[&str]) -> Side {
        let mut side = Side::default();
        for item in sources.iter().flat_map(|source| syn::parse_file(source).unwrap().items) {
            match item {
                Item::Struct(item) => {
                    if is_late(&item.attrs) {
                        side.late.insert(item.ident.to_string());
                    }
                    side.record(item.ident.to_string(), item.fields);
                }
                Item::Union(item) => side.record(item.ident.to_string(), Fields::Named(item.fields)),
                Item::Type(item) => drop(side.aliases.insert(item.ident.to_string(), *item.ty)),
                Item::Const(item) if item.ident == "_" => side.size(&words(&item.expr)),
                Item::Const(item) => {
                    let value = words(&item.expr).replace(' ', "").parse();
                    if let Ok(value) = value {
                        side.constants.insert(item.ident.to_string(), (value, is_late(&item.attrs)));
                    }
                }
                Item::Fn(item) if item.sig.abi.is_some() => {
                    side.functions.insert(item.sig.ident.to_string(), signature(&item.sig));
                }
                Item::ForeignMod(block) => {
                    for item in block.items {
                        if let syn::ForeignItem::Fn(item) = item {
                            side.functions.insert(item.sig.ident.to_string(), signature(&item.sig));
                        }
                    }
                }
                _ => {}
            }
        }
        side
    }

    fn record(&mut self, name: String, fields: Fields) {
        let member = |field: syn::Field| Some((field.ident?.to_string(), field.ty, is_late(&field.attrs)));
        self.records.insert(name, fields.into_iter().filter_map(member).collect());
    }

    /// Reads the sizes from bindgen's assertions, such as `["Size of ibv_qp"][::std::mem::size_of::<ibv_qp>() -
    /// 160usize]`.
    fn size(&mut self, text: &str) {
        for part in text.split("\"Size of ").skip(1) {
            let name = part.split('"').next().unwrap_or_default();
            let bytes = part.split("- ").nth(1).and_then(|rest| rest.split("usize").next()?.trim().parse().ok());
            self.sizes.extend(bytes.map(|bytes| (name.to_owned(), bytes)));
        }
    }

    /// Returns a type in canonical form: integers by width and sign, enumerations as integers.
    fn plain(&self, ty: &Type) -> String {
        match ty {
            Type::Ptr(pointer) => format!("*{}", self.plain(&pointer.elem)),
            Type::Array(array) => format!("[{};{}]", self.plain(&array.elem), self.length(&array.len)),
            Type::BareFn(function) => {
                let inputs = function.inputs.iter().map(|input| self.plain(&input.ty)).collect::<Vec<_>>().join(",");
                match &function.output {
                    syn::ReturnType::Default => format!("fn({inputs})"),
                    syn::ReturnType::Type(_, ty) => format!("fn({inputs})->{}", self.plain(ty)),
                }
            }
            Type::Path(path) => {
                let last = path.path.segments.last().unwrap();
                if let syn::PathArguments::AngleBracketed(arguments) = &last.arguments
                    && let Some(syn::GenericArgument::Type(ty)) = arguments.args.first()
                {
                    return self.plain(ty);
                }
                let name = last.ident.to_string();
                match name.as_str() {
                    "c_int" | "__s32" => "i32".into(),
                    "c_uint" | "__u32" => "u32".into(),
                    "c_ushort" => "u16".into(),
                    "c_uchar" => "u8".into(),
                    "c_char" => "i8".into(),
                    "c_ulong" | "c_ulonglong" | "usize" => "u64".into(),
                    "c_long" | "c_longlong" => "i64".into(),
                    _ => self.aliases.get(&name).map_or(name, |ty| self.plain(ty)),
                }
            }
            other => words(other),
        }
    }

    fn length(&self, expression: &syn::Expr) -> String {
        let text = words(expression).replace("usize", "").trim().to_owned();
        // The declarations use constants.
        match text.as_str() {
            "IBV_SYSFS_NAME_MAX" => "64".into(),
            "IBV_SYSFS_PATH_MAX" => "256".into(),
            _ => text,
        }
    }
}

/// Returns whether type `ours` is compatible with type `theirs`.
fn agree(ours: &str, theirs: &str) -> bool {
    let same = |ours: &str, theirs: &str| ours.trim_start_matches("_bindgen_ty_") == theirs;
    if ours == "*c_void" && (theirs.starts_with('*') || theirs.starts_with("fn(")) {
        return true;
    }
    // bindgen generates names for anonymous unions.
    same(ours, theirs)
        || (ours.ends_with("_dmabuf") || ours.starts_with("ibv_gid_")) && theirs.contains("__bindgen_ty")
        || ours.starts_with("ibv_data_buf") && theirs == ours
        || ours.starts_with('*') && theirs.starts_with('*') && agree(&ours[1..], &theirs[1..])
        || ours.starts_with("fn(") && ours.replace("*c_void", "*_") == theirs.replace("*c_void", "*_")
}

fn headers() -> Option<Side> {
    let folder = std::env::var_os("VERBS_INCLUDE_DIR").map_or_else(|| PathBuf::from("/usr/include"), PathBuf::from);
    if !folder.join("infiniband/efadv.h").is_file() {
        println!("skipped: no infiniband/efadv.h in {} (libibverbs-dev)", folder.display());
        return None;
    }
    let clang = std::panic::catch_unwind(|| {
        bindgen::Builder::default()
            .header_contents("verbs.h", HEADER)
            .clang_arg(format!("-I{}", folder.display()))
            .allowlist_item("(ibv|efadv|IBV|EFADV|verbs|_ibv)_.*")
            .default_enum_style(bindgen::EnumVariation::Consts)
            .prepend_enum_name(false)
            .layout_tests(true)
            .generate()
    });
    match clang {
        Ok(Ok(bindings)) => Some(Side::new(&[&bindings.to_string()])),
        Ok(Err(error)) => panic!("{error}"),
        Err(_) => {
            println!("skipped: no libclang");
            None
        }
    }
}

#[test]
fn declarations_match_headers() {
    let Some(theirs) = headers() else { return };
    let (ours, symbols) = (Side::new(&ABI), Side::new(&SYMBOLS));
    let mut wrong = Vec::new();
    let mut compared = [0; 3];
    for (name, members) in &ours.records {
        if NAMELESS.contains(&name.as_str()) || name == "ibv_gid_global" {
            continue;
        }
        let Some(of_header) = theirs.records.get(name) else {
            if !ours.late.contains(name) {
                wrong.push(format!("{name} is not in the headers"));
            }
            continue;
        };
        let mut of_header = of_header.iter().filter(|(member, ..)| member != "_bindgen_opaque_blob").peekable();
        if name == "verbs_context" {
            // The structure grows at its front; its member `sz` contains its size.
            while of_header.next_if(|(known, ..)| *known != members[0].0).is_some() {}
        }
        for (member, ty, late) in members {
            let plain = ours.plain(ty);
            match of_header.peek() {
                Some((known, of_ty, _)) if known.trim_end_matches('_') == member.trim_start_matches("r#") => {
                    let of_plain = theirs.plain(of_ty);
                    // Later headers name bytes that were reserved.
                    if member != "reserved" && !agree(&plain, &of_plain) {
                        wrong.push(format!("{name}.{member} is {plain}, the headers say {of_plain}"));
                    }
                    of_header.next();
                    compared[0] += 1;
                }
                // Later headers name bytes that were reserved.
                Some((known, ..)) if *late && known == "reserved" && !members.iter().any(|(of, ..)| of == known) => {
                    of_header.next();
                }
                _ if *late => {}
                other => {
                    let other = other.map(|(known, ..)| known.as_str());
                    wrong.push(format!("{name}.{member}: the headers have {other:?} here"));
                }
            }
        }
        wrong.extend(of_header.map(|(member, ..)| format!("{name}.{member} is not declared")));
    }
    for (name, (value, late)) in &ours.constants {
        match theirs.constants.get(name) {
            Some((known, _)) if known == value => compared[1] += 1,
            Some((known, _)) => wrong.push(format!("{name} is {value}, the headers say {known}")),
            None if *late || name.starts_with("IBV_SYSFS") => {}
            None => wrong.push(format!("{name} is not in the headers")),
        }
    }
    for (name, types) in &symbols.functions {
        let Some(known) = theirs.functions.get(name) else { continue };
        // Functions that only return that they are not supported ignore their arguments, and declare none.
        if types.len() == 1 && known.len() > 1 {
            continue;
        }
        let (types, known): (Vec<_>, Vec<_>) =
            (types.iter().map(|ty| ours.plain(ty)).collect(), known.iter().map(|ty| theirs.plain(ty)).collect());
        let mut pairs = types.iter().zip(&known);
        let is_older = name == "ibv_query_port";
        if types.len() != known.len() || !is_older && !pairs.all(|(ours, theirs)| agree(ours, theirs)) {
            wrong.push(format!("{name}({types:?}), the headers say {known:?}"));
        }
        compared[2] += 1;
    }
    // Structures with anonymous members, or which have grown.
    let is_newest = theirs.records.contains_key("efadv_comp_cntr_init_attr");
    for (name, bytes) in [
        ("ibv_send_wr", size_of::<soft_efa::abi::ibv_send_wr>()),
        ("efadv_wq_attr", size_of::<soft_efa::abi::efadv_wq_attr>()),
        ("efadv_cq_attr", size_of::<soft_efa::abi::efadv_cq_attr>()),
        ("efadv_cq_init_attr", size_of::<soft_efa::abi::efadv_cq_init_attr>()),
        ("efadv_qp_init_attr", size_of::<soft_efa::abi::efadv_qp_init_attr>()),
        ("efadv_device_attr", size_of::<soft_efa::abi::efadv_device_attr>()),
        ("efadv_comp_cntr_init_attr", size_of::<soft_efa::abi::efadv_comp_cntr_init_attr>()),
    ] {
        let Some(known) = theirs.sizes.get(name).copied() else { continue };
        if known > bytes || known < bytes && (is_newest || name == "ibv_send_wr") {
            wrong.push(format!("{name} has {bytes} bytes, the headers say {known}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(compared.iter().zip([250, 30, 25]).all(|(found, least)| *found > least), "compared were only {compared:?}");
    let [members, constants, functions] = compared;
    println!("ok: {members} members, {constants} constants and {functions} functions agree with the headers");
}

#[test]
fn all_verbs_symbols_of_libfabric_exist() {
    let file = std::env::var_os("GINLAB_LIBFABRIC")
        .map(PathBuf::from)
        .into_iter()
        .chain(
            ["/usr/lib/x86_64-linux-gnu/libfabric.so.1", "/usr/lib/aarch64-linux-gnu/libfabric.so.1"]
                .map(PathBuf::from),
        )
        .find(|file| file.is_file());
    let output = file.and_then(|file| Command::new("nm").args(["-D", "--undefined-only"]).arg(file).output().ok());
    let Some(output) = output else {
        return println!("skipped: no libfabric or no nm here");
    };
    // Functions defined by a macro appear within its braces.
    let defined = SYMBOLS.concat();
    let is_there =
        |name: &str| defined.contains(&format!("fn {name}(")) || defined.contains(&format!("    {name} -> "));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let asked: Vec<&str> = text
        .split_whitespace()
        .filter(|word| word.starts_with("ibv_") || word.starts_with("efadv_"))
        .map(|word| word.split('@').next().unwrap_or(word))
        .collect();
    let missing: Vec<&&str> = asked.iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    println!("ok: libfabric asks for {} functions", asked.len());
}

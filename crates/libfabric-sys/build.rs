//! Finds libfabric's headers and library, and generates the bindings.
//!
//! Order: `LIBFABRIC_INCLUDE_DIR` (with `LIBFABRIC_LIB_DIR`), pkg-config, the places where distributions and the EFA
//! installer put them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;

/// Header folder and library folder, tried when neither variable nor pkg-config names any.
const DEFAULT_PLACES: [(&str, &str); 4] = [
    ("/opt/amazon/efa/include", "/opt/amazon/efa/lib"),
    ("/opt/amazon/efa/include", "/opt/amazon/efa/lib64"),
    ("/usr/include", "/usr/lib"),
    ("/usr/local/include", "/usr/local/lib"),
];

const MEND: &str = "apt-get install libfabric-dev libclang-dev (or set LIBFABRIC_INCLUDE_DIR and LIBFABRIC_LIB_DIR)";

/// One line for a person, then the end.
fn fail(why: &str) -> ! {
    println!("cargo::error={why}; mend it by: {MEND}");
    exit(1)
}

fn has_headers(include: &Path) -> bool {
    include.join("rdma/fabric.h").is_file()
}

/// Prints what the linker needs and returns the header folders (none: the compiler's default).
fn locate() -> Vec<PathBuf> {
    if let Some(include) = env::var_os("LIBFABRIC_INCLUDE_DIR").map(PathBuf::from) {
        if !has_headers(&include) {
            fail(&format!("LIBFABRIC_INCLUDE_DIR={} has no rdma/fabric.h", include.display()));
        }
        if let Some(lib) = env::var_os("LIBFABRIC_LIB_DIR") {
            println!("cargo::rustc-link-search=native={}", Path::new(&lib).display());
        }
        println!("cargo::rustc-link-lib=dylib=fabric");
        return vec![include];
    }
    if let Ok(found) = pkg_config::Config::new().atleast_version("1.17").probe("libfabric") {
        return found.include_paths;
    }
    for (include, lib) in DEFAULT_PLACES {
        let include = PathBuf::from(include);
        if has_headers(&include) && Path::new(lib).is_dir() {
            println!("cargo::rustc-link-search=native={lib}");
            println!("cargo::rustc-link-lib=dylib=fabric");
            return vec![include];
        }
    }
    fail("no headers of libfabric 1.17 or newer were found")
}

/// Gives macro constants the type they are used with; bindgen alone would pick the smallest that fits.
#[derive(Debug)]
struct MacroTypes;

impl bindgen::callbacks::ParseCallbacks for MacroTypes {
    fn int_macro(&self, name: &str, value: i64) -> Option<bindgen::callbacks::IntKind> {
        use bindgen::callbacks::IntKind;
        let int = name.starts_with("FI_E") && name != "FI_EVENT" || name.starts_with("FI_MR_");
        // Some FI_MR_* are bits of a 64-bit word (FI_MR_SINGLE_USE of 2.x), most are bits of the int mr_mode.
        if int && i32::try_from(value).is_ok() {
            Some(IntKind::Int)
        } else if name.ends_with("_VERSION") {
            Some(IntKind::U32)
        } else {
            Some(IntKind::U64)
        }
    }
}

fn main() {
    for variable in ["LIBFABRIC_INCLUDE_DIR", "LIBFABRIC_LIB_DIR", "LIBCLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=wrapper.h");
    let includes = locate();
    for include in &includes {
        println!("cargo::rerun-if-changed={}", include.join("rdma/fabric.h").display());
    }

    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else { fail("OUT_DIR is not set: run by cargo") };
    let generate = || {
        bindgen::Builder::default()
            .header("wrapper.h")
            .clang_args(includes.iter().map(|path| format!("-I{}", path.display())))
            .allowlist_function("fi_(version|getinfo|freeinfo|dupinfo|fabric|strerror|tostr_r)")
            .allowlist_type("fi_.*|fid|fid_.*")
            .allowlist_var("FI_.*")
            .prepend_enum_name(false)
            .derive_default(true)
            .parse_callbacks(Box::new(MacroTypes))
            .generate()
    };
    // bindgen panics when libclang is missing; the panic's page of text is replaced by the one line that mends it.
    std::panic::set_hook(Box::new(|_| {}));
    let generated = std::panic::catch_unwind(generate);
    let _ = std::panic::take_hook();
    let bindings = match generated {
        Ok(Ok(bindings)) => bindings,
        Ok(Err(error)) => fail(&format!("libfabric's headers were not understood ({error})").replace('\n', " ")),
        Err(_) => fail("libclang, which reads libfabric's headers, was not found"),
    };
    if let Err(error) = bindings.write_to_file(out.join("bindings.rs")) {
        fail(&format!("the bindings could not be written ({error})"));
    }
}

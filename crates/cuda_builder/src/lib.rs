//! Compiles a kernel crate to PTX from a build script, with rustc's own `nvptx64-nvidia-cuda` backend.
//!
//! The calls are similar to Rust-CUDA's:
//!
//! ```no_run
//! let toolchain = cuda_builder::Toolchain::find("1.96.0")?;
//! cuda_builder::CudaBuilder::new("kernels", toolchain).arch("sm_80").build()?;
//! # Ok::<(), cuda_builder::Error>(())
//! ```
//!
//! A nested cargo compiles `core` and the kernel crate for the GPU, with its own target directory. It needs a toolchain
//! that has the sources of `core`; [`Toolchain::find`] documents where it searches.
//!
//! PTX is cached by the contents of its inputs, so the same sources are compiled once for all profiles. Of the kernel
//! crate, the inputs are the files that the compiler has read for the module. An edit thus compiles only the modules
//! that use the file.

mod error;
mod files;
mod nested;
mod toolchain;

pub use error::Error;
pub use toolchain::Toolchain;

use files::{SeedLock, assemblies, copy_file, copy_folder, list_files, out_folder, shared_folder};
use nested::nested;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

/// Name of the target, for rustc and in the output path.
const TARGET: &str = "nvptx64-nvidia-cuda";

/// Returns the compiler release that a file specifies, for a build script. Makes cargo watch the file.
///
/// # Errors
/// Returns [`Error::Io`] if the file cannot be read.
pub fn release_in(file: &Path) -> Result<String, Error> {
    println!("cargo::rerun-if-changed={}", file.display());
    let text = fs::read_to_string(file).map_err(|error| Error::Io(file.into(), error))?;
    Ok(text.trim().to_owned())
}

/// Builds one kernel crate.
#[derive(Debug)]
pub struct CudaBuilder {
    krate: PathBuf,
    toolchain: Toolchain,
    arch: String,
    isa: Option<u32>,
    feature: Option<String>,
    watch: Vec<PathBuf>,
}

impl CudaBuilder {
    /// Creates a builder for the crate in directory `krate`, with this compiler.
    pub fn new(krate: impl Into<PathBuf>, toolchain: Toolchain) -> CudaBuilder {
        CudaBuilder {
            krate: krate.into(),
            toolchain,
            arch: "sm_80".into(),
            isa: None,
            feature: None,
            watch: Vec::new(),
        }
    }

    /// Sets the lowest GPU architecture that the PTX must run on, `sm_80` by default. The driver compiles the PTX for
    /// newer GPUs when it loads it.
    pub fn arch(mut self, arch: impl Into<String>) -> CudaBuilder {
        self.arch = arch.into();
        self
    }

    /// Sets the PTX version, such as 80 for 8.0. Required if instructions need a newer version than the compiler
    /// chooses for the GPU.
    pub fn isa(mut self, version: u32) -> CudaBuilder {
        self.isa = Some(version);
        self
    }

    /// Sets the only feature of the crate to build with, without its default features. This produces a separate module:
    /// `kernels_bulk.ptx` for `bulk`.
    pub fn feature(mut self, feature: impl Into<String>) -> CudaBuilder {
        self.feature = Some(feature.into());
        self
    }

    /// Adds the directory of another crate that the kernels use, whose changes cause a rebuild.
    pub fn watch(mut self, path: impl Into<PathBuf>) -> CudaBuilder {
        self.watch.push(path.into());
        self
    }

    /// Compiles modules of one crate in parallel and returns their paths.
    ///
    /// # Errors
    /// Returns the first [`Error`] of a module.
    pub fn build_all(builders: Vec<CudaBuilder>) -> Result<Vec<PathBuf>, Error> {
        let building: Vec<_> = builders.into_iter().map(|builder| std::thread::spawn(|| builder.build())).collect();
        let made = building.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        made.collect()
    }

    /// Compiles and returns the path of the PTX. Prints `cargo::rerun-if-` lines for its inputs.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn build(self) -> Result<PathBuf, Error> {
        for line in self.asks_cargo_to_watch() {
            println!("{line}");
        }
        self.build_in(&out_folder())
    }

    fn asks_cargo_to_watch(&self) -> Vec<String> {
        let files = self.inputs().map(|path| format!("cargo::rerun-if-changed={}", path.display()));
        let variables = toolchain::VARIABLES.iter().map(|variable| format!("cargo::rerun-if-env-changed={variable}"));
        files.chain(variables).collect()
    }

    fn build_in(&self, out: &Path) -> Result<PathBuf, Error> {
        check_arch(&self.arch)?;
        let suffix = self.suffix();
        let destination = out.join(format!("kernels{suffix}.ptx"));
        let shared = shared_folder(out);
        // The files of the crate that the compiler read for the last build of this module. While none of these files
        // has changed, the compiler would read the same files again, because only these files can refer to others.
        let list = shared.join(format!("kernels{suffix}.d"));
        let named = |number: u64| shared.join(format!("kernels{suffix}-{number:016x}.ptx"));
        let mut made = named(self.fingerprint(fs::read_to_string(&list).ok().as_deref())?);
        if !made.is_file() {
            let folder = shared.join(self.folder());
            // `core` and the macros are the same for all modules, and compiling them takes longer than compiling the
            // kernels. The first module to be built, over all build scripts, compiles them for all others.
            let mut alone = None;
            if !folder.exists() {
                let first = SeedLock::wait(&shared)?;
                match first.seed() {
                    Some(seed) => copy_folder(seed, &folder)?,
                    None => alone = Some(first),
                }
            }
            let assembly = self.compile(&folder)?;
            alone.map(|turn| turn.sow(&folder)).transpose()?;
            let read = assembly.with_extension("d");
            let text = fs::read_to_string(&read).map_err(|error| Error::Io(read.clone(), error))?;
            made = named(self.fingerprint(Some(&text))?);
            copy_file(&assembly, &made)?;
            copy_file(&read, &list)?;
        }
        fs::copy(&made, &destination).map_err(|error| Error::Io(destination.clone(), error))?;
        Ok(destination)
    }

    fn suffix(&self) -> String {
        self.feature.as_ref().map(|feature| format!("_{feature}")).unwrap_or_default()
    }

    /// Returns the name of the nested cargo's target directory.
    fn folder(&self) -> String {
        format!("nvptx{}", self.suffix())
    }

    /// Returns the sources of each crate, without tests, which do not affect the PTX.
    fn inputs(&self) -> impl Iterator<Item = PathBuf> {
        self.watch.iter().chain([&self.krate]).flat_map(|krate| ["Cargo.toml", "src"].map(|part| krate.join(part)))
    }

    /// Returns a hash of all inputs of the PTX: sources, compiler, target. Of the kernel crate's sources, includes only
    /// those in the compiler's dependency list `read`, if given (`TARGET: FILE FILE...`, relative to the compiler's
    /// working directory).
    fn fingerprint(&self, read: Option<&str>) -> Result<u64, Error> {
        let mut files = Vec::new();
        for path in self.inputs() {
            list_files(&path, &mut files)?;
        }
        let sources = self.krate.join("src");
        let is_read = |path: &PathBuf| match (read, path.strip_prefix(&self.krate)) {
            (Some(read), Ok(name)) if path.starts_with(&sources) => {
                read.split_whitespace().any(|file| Path::new(file).ends_with(name))
            }
            _ => true,
        };
        files.retain(is_read);
        files.sort();
        let mut hasher = DefaultHasher::new();
        for path in &files {
            let bytes = fs::read(path).map_err(|error| Error::Io(path.clone(), error))?;
            hasher.write(path.as_os_str().as_encoded_bytes());
            hasher.write_usize(bytes.len());
            hasher.write(&bytes);
        }
        hasher.write(format!("{:?}", self.settings()).as_bytes());
        // Includes the path of the compiler, because two compilers of one version may have different patches.
        hasher.write(self.toolchain.to_string().as_bytes());
        Ok(hasher.finish())
    }

    /// Returns the arguments of the nested cargo, except paths.
    fn settings(&self) -> Vec<String> {
        let mut list: Vec<String> =
            ["rustc", "--lib", "--crate-type", "cdylib", "--release", "-Zbuild-std=core", "--target", TARGET]
                .map(String::from)
                .into();
        let alone = |feature: &String| ["--no-default-features".into(), "--features".into(), feature.clone()];
        list.extend(self.feature.iter().flat_map(alone));
        // The assembly that LLVM emits is the PTX, so nothing is linked.
        list.extend(["--", "--emit=asm", "-C", "linker=/bin/true", "-C"].map(String::from));
        list.push(format!("target-cpu={}", self.arch));
        // rustc's own jump threading does not know about convergence: it copies a barrier into both branches of an `if`
        // around it. Lanes of one warp can then wait indefinitely at two different barriers, as observed with
        // `put_kernel` on an H200. LLVM's jump threading is aware of convergence.
        list.push("-Zmir-enable-passes=-JumpThreading".into());
        if let Some(version) = self.isa {
            list.extend(["-C".into(), format!("target-feature=+ptx{version}")]);
        }
        list
    }

    fn compile(&self, target_dir: &Path) -> Result<PathBuf, Error> {
        let toolchain = &self.toolchain;
        let deps = target_dir.join(TARGET).join("release/deps");
        for old in assemblies(&deps) {
            fs::remove_file(&old).map_err(|error| Error::Io(old, error))?;
        }
        let mut cargo = nested(&toolchain.cargo);
        cargo
            .env("RUSTC", &toolchain.rustc)
            // -Zbuild-std and the PTX features are unstable, but every recent compiler has them.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .env("CARGO_PROFILE_RELEASE_INCREMENTAL", "false")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            // Paths are passed in variables, so that the output does not depend on them.
            .env("CARGO_TARGET_DIR", target_dir)
            .current_dir(&self.krate)
            .args(self.settings());
        let output = cargo.output().map_err(|error| Error::Io(toolchain.cargo.clone(), error))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Compile(format!("compiling the kernels with {toolchain} failed:\n{text}")));
        }
        match assemblies(&deps).as_slice() {
            [one] => Ok(one.clone()),
            found => Err(Error::Compile(format!("expected one .s file in {}, found {found:?}", deps.display()))),
        }
    }
}

fn check_arch(arch: &str) -> Result<(), Error> {
    let number = arch.strip_prefix("sm_").map(|rest| rest.trim_end_matches(['a', 'f']));
    match number.and_then(|number| number.parse::<u32>().ok()) {
        Some(number) if number >= 80 => Ok(()),
        _ => Err(Error::Compile(format!(
            "invalid GPU target {arch:?}: expected sm_80 or later, for example sm_80, sm_90, sm_100"
        ))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn targets_without_memory_model_are_rejected() {
        for good in ["sm_80", "sm_90", "sm_90a", "sm_100"] {
            assert!(check_arch(good).is_ok(), "{good}");
        }
        for bad in ["", "sm_", "sm_70", "90", "compute_90"] {
            assert!(check_arch(bad).is_err(), "{bad}");
        }
    }

    /// Writes a crate of one file.
    fn toy(folder: &Path) {
        fs::create_dir_all(folder.join("src")).unwrap();
        fs::write(folder.join("Cargo.toml"), "[package]").unwrap();
        fs::write(folder.join("src/lib.rs"), "fn kernel() {}").unwrap();
    }

    #[test]
    fn ptx_is_rebuilt_only_after_kernel_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (kernels, used) = (folder.path().join("kernels"), folder.path().join("used"));
        toy(&kernels);
        toy(&used);
        let toolchain = Toolchain {
            rustc: "/bin/false".into(),
            cargo: "/bin/false".into(),
            version: "1.96.0".into(),
            is_the_projects: true,
        };
        let builder = || CudaBuilder::new(&kernels, toolchain.clone()).watch(&used);
        let number = builder().fingerprint(None).unwrap();
        // The fingerprint does not change if the same contents are written again, or if a test or git's files change.
        toy(&kernels);
        fs::create_dir_all(kernels.join("tests")).unwrap();
        fs::write(kernels.join("tests/a.rs"), "fn test() {}").unwrap();
        fs::create_dir_all(folder.path().join(".git")).unwrap();
        fs::write(folder.path().join(".git/HEAD"), "another commit").unwrap();
        assert_eq!(builder().fingerprint(None).unwrap(), number);
        let inputs: Vec<PathBuf> = builder().inputs().collect();
        // Cargo must rerun the build script if an input changes, but not on each commit, as it would if git's files
        // were watched.
        let watched = builder().asks_cargo_to_watch();
        let told = |input: &PathBuf| watched.contains(&format!("cargo::rerun-if-changed={}", input.display()));
        assert!(inputs.iter().all(told) && !watched.iter().any(|line| line.contains(".git")), "{watched:?}");
        // Existing PTX is not built again; this compiler could not build it.
        let out = folder.path().join("target/debug/build/name/out");
        fs::create_dir_all(&out).unwrap();
        let made = folder.path().join(format!("target/kernels/kernels-{number:016x}.ptx"));
        fs::create_dir_all(made.parent().unwrap()).unwrap();
        assert!(builder().build_in(&out).is_err());
        fs::write(&made, "ptx").unwrap();
        assert_eq!(fs::read_to_string(builder().build_in(&out).unwrap()).unwrap(), "ptx");
        for edited in [kernels.join("src/lib.rs"), used.join("src/lib.rs"), kernels.join("Cargo.toml")] {
            assert!(inputs.iter().any(|input| edited.starts_with(input)), "{}", edited.display());
            let before = fs::read(&edited).unwrap();
            fs::write(&edited, [before.as_slice(), b" // edited"].concat()).unwrap();
            assert_ne!(builder().fingerprint(None).unwrap(), number, "{}", edited.display());
            fs::write(&edited, before).unwrap();
        }
        fs::write(kernels.join("src/new.rs"), "").unwrap();
        assert_ne!(builder().fingerprint(None).unwrap(), number, "a new file");
        fs::remove_file(kernels.join("src/new.rs")).unwrap();
        assert_eq!(builder().fingerprint(None).unwrap(), number);
        // With the compiler's dependency list, files of other modules are not inputs.
        let read = "/target/kernels.s: kernels/src/lib.rs kernels/src/gin/mod.rs\n";
        fs::create_dir_all(kernels.join("src/gin")).unwrap();
        let (mut earlier, mut edits) = (builder().fingerprint(Some(read)).unwrap(), 0);
        let files = [
            ("src/mod.rs", false),
            ("src/gin/mod.rs", true),
            ("src/gin/lib.rs", false),
            ("src/lib.rs", true),
            ("Cargo.toml", true),
        ];
        for (file, counts) in files {
            fs::write(kernels.join(file), "edited").unwrap();
            let now = builder().fingerprint(Some(read)).unwrap();
            assert_eq!(now != earlier, counts, "{file}");
            (earlier, edits) = (now, edits + u32::from(counts));
        }
        assert_eq!(edits, 3);
        // Another GPU, module or compiler results in a different fingerprint.
        let last = builder().fingerprint(None).unwrap();
        let mut other = builder();
        other.toolchain.version = "1.97.0".into();
        for other in [builder().arch("sm_90"), builder().isa(80), builder().feature("bulk"), other] {
            assert_ne!(other.fingerprint(None).unwrap(), last, "{other:?}");
        }
    }
}

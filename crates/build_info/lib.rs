//! Commit and compiler of an executable, for the headers of results.
//!
//! A separate crate with functions that are not inlined. The text changes with each commit, and in a larger library it
//! would make LLVM recompile everything in the same codegen unit.

/// Returns the commit, with `-dirty` if tracked files differ from it. Returns `None` if the sources came without git.
#[inline(never)]
pub fn commit() -> Option<&'static str> {
    option_env!("GINLAB_COMMIT").filter(|commit| !commit.is_empty())
}

/// Returns the version of the compiler of the host code, and the profile if it is not the release profile.
#[inline(never)]
pub fn rustc() -> Option<&'static str> {
    option_env!("GINLAB_RUSTC").filter(|rustc| !rustc.is_empty())
}

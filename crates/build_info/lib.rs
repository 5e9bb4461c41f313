//! Which commit and which compiler a program is of; results name both.
//!
//! A crate of its own, and functions that nobody inlines: the text is another one behind each commit, and the library that had it
//! compiled everything anew that LLVM had looked at together with it (16 of the 19.5 s of a first edit, two cores).

/// The commit, `-dirty` where tracked files differ from it; none where the sources came without git.
#[inline(never)]
pub fn commit() -> Option<&'static str> {
    option_env!("GINLAB_COMMIT").filter(|commit| !commit.is_empty())
}

/// The version of the compiler of the host code, and the profile where it is not the one for measuring.
#[inline(never)]
pub fn rustc() -> Option<&'static str> {
    option_env!("GINLAB_RUSTC").filter(|rustc| !rustc.is_empty())
}

//! What the host needs to launch a kernel: its handle.

use core::fmt;

/// The PTX of a kernel crate, as a program carries it.
#[derive(Debug)]
pub struct Ptx {
    /// The modules: name and text. A kernel is in one of them.
    pub modules: &'static [(&'static str, &'static str)],
    /// The lowest GPU that they run on, as `sm_80`; the text of one may say a later one.
    pub arch: Option<&'static str>,
    /// The compiler that wrote them and its LLVM, as `1.96.0, LLVM 22.1.8`.
    pub rustc: Option<&'static str>,
}

/// A kernel in both its forms: the entry point in the PTX, and the native function. [`kernel`](crate::kernel) makes one for
/// each kernel; `A` is the kernel's argument.
pub struct Kernel<A> {
    name: &'static str,
    native: Option<unsafe fn(A)>,
    resident: bool,
}

impl<A> Kernel<A> {
    /// The handle of a kernel with a native form. `#[kernel]` writes this.
    #[must_use]
    pub const fn new(name: &'static str, native: unsafe fn(A)) -> Kernel<A> {
        Kernel { name, native: Some(native), resident: false }
    }

    /// The handle of a kernel that has no native form, since it uses bulk stores. `#[kernel(bulk)]` writes this.
    #[must_use]
    pub const fn bulk(name: &'static str) -> Kernel<A> {
        Kernel { name, native: None, resident: false }
    }

    /// The same kernel, whose blocks wait for one another or for those of other devices: all of a grid must be on the device at
    /// once. `#[kernel(resident)]` writes this.
    #[must_use]
    pub const fn resident(self) -> Kernel<A> {
        Kernel { resident: true, ..self }
    }

    /// Whether all blocks of a grid must be on the device at once.
    #[must_use]
    pub const fn is_resident(&self) -> bool {
        self.resident
    }

    /// Name of the entry point.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The same function, compiled natively; `None` of a kernel that uses bulk stores, which CPUs have not.
    #[must_use]
    pub const fn native(&self) -> Option<unsafe fn(A)> {
        self.native
    }
}

impl<A> fmt::Debug for Kernel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.name)
    }
}

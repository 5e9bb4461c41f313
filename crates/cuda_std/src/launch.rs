//! Kernel handles, with which the host launches kernels.

use core::fmt;

/// The PTX of a kernel crate, as embedded in an executable.
#[derive(Debug)]
pub struct Ptx {
    /// Name and text of each module. Each kernel is in exactly one module.
    pub modules: &'static [(&'static str, &'static str)],
    /// The lowest GPU architecture that the modules run on, such as `sm_80`. The text of a module may specify a later
    /// one.
    pub arch: Option<&'static str>,
    /// The compiler that wrote the modules, and its LLVM, such as `1.96.0, LLVM 22.1.8`.
    pub rustc: Option<&'static str>,
}

/// A kernel in both forms: the entry point in the PTX and the native function. [`kernel`](crate::kernel) creates one
/// for each kernel; `A` is the type of the kernel's argument.
pub struct Kernel<A> {
    name: &'static str,
    native: Option<unsafe fn(A)>,
    resident: bool,
}

impl<A> Kernel<A> {
    /// Creates the handle of a kernel with a native form. `#[kernel]` generates this call.
    #[must_use]
    pub const fn new(name: &'static str, native: unsafe fn(A)) -> Kernel<A> {
        Kernel { name, native: Some(native), resident: false }
    }

    /// Creates the handle of a kernel without a native form, because it uses bulk stores. `#[kernel(bulk)]` generates
    /// this call.
    #[must_use]
    pub const fn bulk(name: &'static str) -> Kernel<A> {
        Kernel { name, native: None, resident: false }
    }

    /// Returns the handle marked as resident. Blocks of such a kernel wait for one another or for blocks of other
    /// devices, so all blocks of a grid must be on the device at the same time. `#[kernel(resident)]` generates this
    /// call.
    #[must_use]
    pub const fn resident(self) -> Kernel<A> {
        Kernel { resident: true, ..self }
    }

    /// Returns whether all blocks of a grid must be on the device at the same time.
    #[must_use]
    pub const fn is_resident(&self) -> bool {
        self.resident
    }

    /// Returns the name of the entry point.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the natively compiled function, or `None` if the kernel uses bulk stores, which CPUs do not have.
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

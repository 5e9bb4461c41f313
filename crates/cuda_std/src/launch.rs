//! What the host needs to launch a kernel: its handle.

use core::fmt;

/// The PTX modules: which one a kernel is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    /// The first, which every experiment loads.
    First,
    /// Kernels with bulk stores, for compute capability 9.0 and later. They have no native form.
    Bulk,
    /// Programs over the device API, loaded by those experiments alone that run them: the driver compiles them for seconds.
    Programs,
}

/// A kernel in both its forms: the entry point in the PTX, and the native function. [`kernel`](crate::kernel) makes one for
/// each kernel; `A` is the kernel's argument.
pub struct Kernel<A> {
    name: &'static str,
    native: Option<unsafe fn(A)>,
    module: Module,
    resident: bool,
}

impl<A> Kernel<A> {
    /// The handle of a kernel with a native form. `#[kernel]` writes this.
    #[must_use]
    pub const fn new(name: &'static str, native: unsafe fn(A)) -> Kernel<A> {
        Kernel { name, native: Some(native), module: Module::First, resident: false }
    }

    /// The handle of a kernel that is only in the second PTX module. `#[kernel(bulk)]` writes this.
    #[must_use]
    pub const fn bulk(name: &'static str) -> Kernel<A> {
        Kernel { name, native: None, module: Module::Bulk, resident: false }
    }

    /// The same kernel, whose blocks wait for one another or for those of other devices: all of a grid must be on the device at
    /// once. `#[kernel(resident)]` writes this.
    #[must_use]
    pub const fn resident(self) -> Kernel<A> {
        Kernel { resident: true, ..self }
    }

    /// The same kernel, in the module of programs. `#[kernel(program)]` writes this.
    #[must_use]
    pub const fn program(self) -> Kernel<A> {
        Kernel { module: Module::Programs, ..self }
    }

    /// Which PTX module it is in.
    #[must_use]
    pub const fn module(&self) -> Module {
        self.module
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

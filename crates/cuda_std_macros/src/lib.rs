//! The `#[kernel]` attribute, which makes one function an entry point of a grid on the GPU and an ordinary function on
//! the host. It also defines the handle by which the host launches the function. The `#[args]` attribute marks the
//! argument of a kernel.

use proc_macro::TokenStream;
use quote::{format_ident, quote};
use syn::punctuated::Punctuated;
use syn::{
    Error, FnArg, Ident, ItemFn, ItemStruct, ReturnType, Token, parse::Parser, parse_macro_input, spanned::Spanned,
};

/// Marks a function as the entry point of a grid.
///
/// On `nvptx64` it becomes an exported `extern "ptx-kernel"` function under its own name. Natively it stays an ordinary
/// function, which the emulated device calls from every thread of a grid. In addition, the attribute defines a constant
/// with the name in capitals: the handle by which the host launches either (`cuda_std::Kernel<Args>`). For example,
/// `put_kernel(args: PutArgs)` defines `PUT_KERNEL: Kernel<PutArgs>`.
///
/// A kernel must be `pub unsafe`, take one argument, not be generic and return nothing: results go through memory.
///
/// `#[kernel(resident)]`: the kernel's blocks wait for one another or for those of other devices (a grid barrier, or a
/// signal that depends on another block's work). If the device cannot hold the whole grid, the launch is then refused
/// instead of hanging.
///
/// `#[kernel(bulk)]`: the kernel uses bulk stores, which GPUs have from compute capability 9.0 on. It has a handle, but
/// no native function.
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    expand(attribute.into(), function).unwrap_or_else(Error::into_compile_error).into()
}

/// Marks a struct as the argument of a kernel: `#[repr(C)]`, `Clone`, `Copy`, `Debug`, `Send` and `Sync`.
///
/// The struct must be plain data that a launch can copy: numbers and pointers. Sending its pointers to another thread
/// is sound, because no safe code dereferences them. Kernels are `unsafe`, and the launching code must guarantee that
/// the pointers are valid while the grid runs.
#[proc_macro_attribute]
pub fn args(_: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as ItemStruct);
    let name = &item.ident;
    let marked = quote! {
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #item

        // SAFETY: the struct has only numbers and pointers, and no safe code dereferences the pointers.
        unsafe impl Send for #name {}
        // SAFETY: the struct has only numbers and pointers, and no safe code dereferences the pointers.
        unsafe impl Sync for #name {}
    };
    marked.into()
}

fn expand(attribute: proc_macro2::TokenStream, mut function: ItemFn) -> Result<proc_macro2::TokenStream, Error> {
    let words = Punctuated::<Ident, Token![,]>::parse_terminated.parse2(attribute)?;
    if let Some(word) = words.iter().find(|word| *word != "bulk" && *word != "resident") {
        return Err(Error::new(
            word.span(),
            format!("invalid #[kernel] option `{word}`: expected `bulk` or `resident`"),
        ));
    }
    let [bulk, resident] = ["bulk", "resident"].map(|wanted| words.iter().any(|word| word == wanted));
    let signature = &function.sig;
    if signature.unsafety.is_none() {
        return Err(Error::new(
            signature.span(),
            "a kernel must be an `unsafe fn`: it trusts the pointers it is launched with",
        ));
    }
    if !matches!(signature.output, ReturnType::Default) {
        return Err(Error::new(signature.output.span(), "a kernel must not return a value"));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new(
            signature.generics.span(),
            "a kernel cannot be generic: its symbol is looked up by name",
        ));
    }
    let mut arguments = signature.inputs.iter();
    let (Some(FnArg::Typed(argument)), None) = (arguments.next(), arguments.next()) else {
        return Err(Error::new(
            signature.inputs.span(),
            "a kernel must take one argument: a `#[repr(C)]` struct with all its parameters",
        ));
    };
    let (name, argument, visibility) = (&signature.ident, &argument.ty, &function.vis);
    let handle = format_ident!("{}", name.to_string().to_uppercase());
    let text = name.to_string();
    let made = if bulk { quote!(bulk(#text)) } else { quote!(new(#text, #name)) };
    let made = if resident { quote!(#made.resident()) } else { made };
    let doc = format!("The handle of [`{name}`], to launch it.");
    let doc = if bulk { format!("The handle of `{name}`, to launch it.") } else { doc };
    let handle = quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #[doc = #doc]
        #visibility const #handle: ::cuda_std::Kernel<#argument> = ::cuda_std::Kernel::#made;
    };
    let mut on_device = function.clone();
    on_device.sig.abi = Some(syn::parse_quote!(extern "ptx-kernel"));
    let natively = if bulk {
        quote!()
    } else {
        function.sig.abi = None;
        quote! {
            #[cfg(not(target_arch = "nvptx64"))]
            #function
        }
    };
    Ok(quote! {
        #[cfg(target_arch = "nvptx64")]
        #[unsafe(no_mangle)]
        #on_device

        #natively

        #handle
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(attribute: proc_macro2::TokenStream, source: &str) -> Result<String, String> {
        let function = syn::parse_str(source).expect("test source parses");
        expand(attribute, function).map(|tokens| tokens.to_string()).map_err(|error| error.to_string())
    }

    fn error(source: &str) -> String {
        expanded(quote!(), source).expect_err("must be refused")
    }

    #[test]
    fn invalid_kernels_are_rejected() {
        assert!(error("pub fn k(a: u32) {}").contains("unsafe"));
        assert!(error("pub unsafe fn k(a: u32) -> u32 { 0 }").contains("must not return a value"));
        assert!(error("pub unsafe fn k<T>(a: T) {}").contains("generic"));
        assert!(error("pub unsafe fn k() {}").contains("one argument"));
        assert!(error("pub unsafe fn k(a: u32, b: u32) {}").contains("one argument"));
        let unknown = expanded(quote!(bulky), "pub unsafe fn k(a: u32) {}").expect_err("must be refused");
        assert!(unknown.contains("option `bulky`"), "{unknown}");
    }

    #[test]
    fn kernel_has_one_body_and_host_handle() {
        let text = expanded(quote!(), "pub unsafe fn my_k(a: Args) { let _ = a; }").expect("a kernel");
        assert!(text.contains("ptx-kernel"));
        assert_eq!(text.matches("let _ = a").count(), 2);
        let handle =
            "pub const MY_K : :: cuda_std :: Kernel < Args > = :: cuda_std :: Kernel :: new (\"my_k\" , my_k) ;";
        assert!(text.contains(handle), "{text}");
    }

    #[test]
    fn handle_of_resident_kernel_is_resident() {
        let text = expanded(quote!(resident), "pub unsafe fn my_k(a: Args) { let _ = a; }").expect("a kernel");
        assert!(text.contains("Kernel :: new (\"my_k\" , my_k) . resident () ;"), "{text}");
    }

    #[test]
    fn bulk_stores_have_no_native_body() {
        let text = expanded(quote!(bulk), "pub unsafe fn my_k(a: Args) { let _ = a; }").expect("a kernel");
        assert_eq!(text.matches("let _ = a").count(), 1);
        assert!(text.contains("Kernel :: bulk (\"my_k\") ;"), "{text}");
    }
}

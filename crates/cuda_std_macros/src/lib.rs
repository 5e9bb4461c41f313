//! The `#[kernel]` attribute: one function, entry point of a grid on the GPU and a plain function on the host.

use proc_macro::TokenStream;
use quote::quote;
use syn::{Error, ItemFn, ReturnType, parse_macro_input, spanned::Spanned};

/// Marks a function as the entry point of a grid.
///
/// On `nvptx64` it becomes an exported `extern "ptx-kernel"` function under its own name; natively it stays a plain
/// function, so that the emulated device can call it from every thread of a grid. A kernel is `pub unsafe`, is not
/// generic and returns nothing: what it finds goes through memory.
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    expand(attribute.into(), function).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(attribute: proc_macro2::TokenStream, mut function: ItemFn) -> Result<proc_macro2::TokenStream, Error> {
    if !attribute.is_empty() {
        return Err(Error::new(attribute.span(), "#[kernel] takes no arguments"));
    }
    let signature = &function.sig;
    if signature.unsafety.is_none() {
        return Err(Error::new(
            signature.span(),
            "a kernel is an `unsafe fn`: it trusts the pointers it is launched with",
        ));
    }
    if !matches!(signature.output, ReturnType::Default) {
        return Err(Error::new(signature.output.span(), "a kernel returns nothing"));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new(
            signature.generics.span(),
            "a kernel cannot be generic: its symbol is looked up by name",
        ));
    }
    let mut on_device = function.clone();
    on_device.sig.abi = Some(syn::parse_quote!(extern "ptx-kernel"));
    function.sig.abi = None;
    Ok(quote! {
        #[cfg(target_arch = "nvptx64")]
        #[unsafe(no_mangle)]
        #on_device

        #[cfg(not(target_arch = "nvptx64"))]
        #function
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(source: &str) -> String {
        let function = syn::parse_str(source).expect("test source parses");
        expand(quote!(), function).expect_err("must be refused").to_string()
    }

    #[test]
    fn refuses_what_cannot_be_a_kernel() {
        assert!(error("pub fn k() {}").contains("unsafe"));
        assert!(error("pub unsafe fn k() -> u32 { 0 }").contains("returns nothing"));
        assert!(error("pub unsafe fn k<T>() {}").contains("generic"));
    }

    #[test]
    fn gives_both_machines_one_body() {
        let function = syn::parse_str("pub unsafe fn k(a: u32) { let _ = a; }").expect("test source parses");
        let text = expand(quote!(), function).expect("a kernel").to_string();
        assert!(text.contains("ptx-kernel"));
        assert_eq!(text.matches("let _ = a").count(), 2);
    }
}

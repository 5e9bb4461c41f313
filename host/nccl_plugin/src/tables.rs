//! Tables through which NCCL accesses the plugin's functions.

use crate::abi::{Gin14, Name, Rma13, Rma14, Rma15, Rma16};
use crate::gin;
use crate::puts::*;
use crate::setup::*;

/// Name in NCCL's logs.
const NAME: Name = Name(c"ginlab".as_ptr());

/// Defines a table. Each use lists the fields that differ between tables.
macro_rules! table {
    ($(#[$doc:meta])* $symbol:ident: $kind:ident { $($fields:tt)* }) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "NCCL searches for this name")]
        pub static $symbol: $kind = $kind {
            name: NAME,
            init,
            devices,
            listen,
            connect,
            dereg_mr_sym: deregister,
            close_coll,
            close_listen,
            finalize,
            $($fields)*
        };
    };
}

/// Defines tables of type 2. Each use lists the fields that differ between versions.
macro_rules! rma_tables {
    ($($(#[$doc:meta])* $symbol:ident: $kind:ident { $($fields:tt)* })*) => {$(
        table! {
            $(#[$doc])*
            $symbol: $kind {
                get_properties,
                destroy_context,
                iflush,
                test,
                progress: None,
                query_last_error,
                $($fields)*
            }
        }
    )*};
}

rma_tables! {
    /// Table for NCCL 2.30.
    ncclRmaPlugin_v13: Rma13 {
        create_context: create_context13,
        reg_mr_sym: register13,
        reg_mr_sym_dma_buf: register_dma_buf13,
        iput,
        iput_signal: iput_signal13,
        iget,
    }
    /// Table for NCCL 2.30 and 2.31.
    ncclRmaPlugin_v14: Rma14 {
        create_context,
        reg_mr_sym: register,
        reg_mr_sym_dma_buf: register_dma_buf,
        iput,
        iput_signal: iput_signal14,
        iget,
    }
    /// Table for NCCL 2.31 and 2.32.
    ncclRmaPlugin_v15: Rma15 {
        create_context,
        reg_mr_sym: register,
        reg_mr_sym_dma_buf: register_dma_buf,
        iput: iput15,
        iput_signal: iput_signal15,
        iget: iget15,
    }
    /// Table for NCCL 2.32.
    ncclRmaPlugin_v16: Rma16 {
        get_rma_properties,
        create_context,
        reg_mr_sym: register,
        reg_mr_sym_dma_buf: register_dma_buf,
        iput: iput15,
        iput_signal: iput_signal15,
        iget: iget15,
    }
}

table! {
    /// Table for NCCL 2.32 with `NCCL_GIN_TYPE=5`.
    ncclGinPlugin_v14: Gin14 {
        get_gin_properties: gin::get_gin_properties,
        get_properties: gin::get_properties,
        create_context: gin::create_context,
        reg_mr_sym: gin::register,
        reg_mr_sym_dma_buf: register_dma_buf_gin,
        destroy_context: gin::destroy_context,
        progress: gin::progress,
        query_last_error: gin::query_last_error,
    }
}

//! The tables by which NCCL finds the plugin's functions.

use crate::abi::{Gin14, Name, Rma13, Rma14, Rma15, Rma16};
use crate::gin;
use crate::puts::*;
use crate::setup::*;

/// As NCCL's logs call it.
const NAME: Name = Name(c"ginlab".as_ptr());

/// For NCCL 2.30.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclRmaPlugin_v13: Rma13 = Rma13 {
    name: NAME,
    init,
    devices,
    get_properties,
    listen,
    connect,
    create_context: create_context13,
    reg_mr_sym: register13,
    reg_mr_sym_dma_buf: register_dma_buf13,
    dereg_mr_sym: deregister,
    destroy_context,
    close_coll,
    close_listen,
    iput,
    iput_signal: iput_signal13,
    iget,
    iflush,
    test,
    progress: None,
    query_last_error,
    finalize,
};

/// For NCCL 2.30 and 2.31.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclRmaPlugin_v14: Rma14 = Rma14 {
    name: NAME,
    init,
    devices,
    get_properties,
    listen,
    connect,
    create_context,
    reg_mr_sym: register,
    reg_mr_sym_dma_buf: register_dma_buf,
    dereg_mr_sym: deregister,
    destroy_context,
    close_coll,
    close_listen,
    iput,
    iput_signal: iput_signal14,
    iget,
    iflush,
    test,
    progress: None,
    query_last_error,
    finalize,
};

/// For NCCL 2.31 and 2.32.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclRmaPlugin_v15: Rma15 = Rma15 {
    name: NAME,
    init,
    devices,
    get_properties,
    listen,
    connect,
    create_context,
    reg_mr_sym: register,
    reg_mr_sym_dma_buf: register_dma_buf,
    dereg_mr_sym: deregister,
    destroy_context,
    close_coll,
    close_listen,
    iput: iput15,
    iput_signal: iput_signal15,
    iget: iget15,
    iflush,
    test,
    progress: None,
    query_last_error,
    finalize,
};

/// For NCCL 2.32.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclRmaPlugin_v16: Rma16 = Rma16 {
    name: NAME,
    init,
    devices,
    get_rma_properties,
    get_properties,
    listen,
    connect,
    create_context,
    reg_mr_sym: register,
    reg_mr_sym_dma_buf: register_dma_buf,
    dereg_mr_sym: deregister,
    destroy_context,
    close_coll,
    close_listen,
    iput: iput15,
    iput_signal: iput_signal15,
    iget: iget15,
    iflush,
    test,
    progress: None,
    query_last_error,
    finalize,
};

/// For NCCL 2.32, with `NCCL_GIN_TYPE=5`.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclGinPlugin_v14: Gin14 = Gin14 {
    name: NAME,
    init,
    devices,
    get_gin_properties: gin::get_gin_properties,
    get_properties: gin::get_properties,
    listen,
    connect,
    create_context: gin::create_context,
    reg_mr_sym: gin::register,
    reg_mr_sym_dma_buf: gin::register_dma_buf,
    dereg_mr_sym: deregister,
    destroy_context: gin::destroy_context,
    close_coll,
    close_listen,
    progress: gin::progress,
    query_last_error: gin::query_last_error,
    finalize,
};

//! Lists the software EFA devices that the variable `SOFT_EFA` describes.
//!
//! ```text
//! SOFT_EFA=cards=2 cargo run -p soft_efa --example devices
//! ```

use soft_efa::{ibv_free_device_list, ibv_get_device_guid, ibv_get_device_list, ibv_get_device_name};
use std::ffi::CStr;

fn main() {
    let mut count = 0;
    // SAFETY: `count` is valid for writes. The list has `count` devices and is freed once.
    unsafe {
        let list = ibv_get_device_list(&mut count);
        if list.is_null() {
            return println!("no devices: {}", std::io::Error::last_os_error());
        }
        for index in 0..usize::try_from(count).unwrap_or(0) {
            let device = *list.add(index);
            let name = CStr::from_ptr(ibv_get_device_name(device)).to_string_lossy();
            println!("{name} {:016x}", ibv_get_device_guid(device));
        }
        ibv_free_device_list(list);
    }
}

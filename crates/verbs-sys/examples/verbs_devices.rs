//! Lists the RDMA devices of this machine.
//!
//! ```text
//! cargo run -p verbs-sys --example verbs_devices
//! ```

use std::ffi::CStr;
use verbs_sys::VerbsLibrary;

fn main() {
    let library = match VerbsLibrary::load() {
        Ok(library) => library,
        Err(why) => return println!("no verbs: {why}"),
    };
    let mut count = 0;
    // SAFETY: `count` is valid for writes. The list has `count` devices and is freed once.
    unsafe {
        let list = (library.ibv_get_device_list)(&mut count);
        println!("{count} devices");
        if list.is_null() {
            return;
        }
        for index in 0..usize::try_from(count).unwrap_or(0) {
            let name = (library.ibv_get_device_name)(*list.add(index));
            println!("{}", CStr::from_ptr(name).to_string_lossy());
        }
        (library.ibv_free_device_list)(list);
    }
}

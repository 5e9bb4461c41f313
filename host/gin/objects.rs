//! Contents of the symmetric heap: objects, signals and inboxes, and access to them by the CPU.

use super::cards::{Cards, Unread};
use super::heap::clear;
use super::{GinError, Inbox, Plain, Signal, Sym, World};
use ginlab_bootstrap::Bootstrap;
use kernels::gin::USER_SIGNALS;

impl World {
    /// Allocates a zeroed symmetric object of `len` values. Every rank must request the same length. The function
    /// returns only after all ranks have the object.
    ///
    /// # Errors
    /// Returns [`GinError::Usage`] if the heap has no free range of this size, or if ranks request different sizes,
    /// with the sizes.
    pub fn alloc<T: Plain>(&mut self, ranks: &mut Bootstrap, len: u64) -> Result<Sym<T>, GinError> {
        let bytes = len.checked_mul(size_of::<T>() as u64);
        self.agree(ranks, "alloc", bytes.unwrap_or(u64::MAX))?;
        let offset = bytes.and_then(|bytes| self.space.take(bytes, kind_of::<T>()));
        let offset = offset.ok_or_else(|| {
            GinError::Usage(format!(
                "{len} values of {} B do not fit into the symmetric heap, whose largest free range has {} B; open the \
                 world with a larger heap",
                size_of::<T>(),
                self.space.largest()
            ))
        })?;
        clear(&self.heap, offset, len * size_of::<T>() as u64)?;
        // No rank may write to an object that another rank is still clearing.
        ranks.barrier("a symmetric object")?;
        // SAFETY: the range was allocated for this object, and ranges are aligned to 256 bytes.
        Ok(unsafe { Sym::from_parts(offset, len) })
    }

    /// Frees an object that no PE uses any longer.
    ///
    /// # Errors
    /// Returns [`GinError::Usage`] if the object is not an allocation, or if ranks free different objects.
    pub fn free<T: Plain>(&mut self, ranks: &mut Bootstrap, object: Sym<T>) -> Result<(), GinError> {
        self.agree(ranks, "free", object.offset())?;
        if self.space.give_back(object.offset()) {
            return Ok(());
        }
        Err(GinError::Usage(format!("{object:?} is not allocated: it is a slice of an object, or already freed")))
    }

    /// Allocates `count` consecutive signals, initially 0. Signals cannot be freed.
    ///
    /// # Errors
    /// Returns [`GinError::Usage`] if too few are left, or if ranks request different numbers.
    pub fn signals(&mut self, ranks: &mut Bootstrap, count: u32) -> Result<Signal, GinError> {
        self.agree(ranks, "signals", u64::from(count))?;
        let first = self.signals;
        let end = first.checked_add(count).filter(|end| *end <= USER_SIGNALS);
        let refused =
            || GinError::Usage(format!("{count} signals in addition to {first}: a world has only {USER_SIGNALS}"));
        self.signals = end.ok_or_else(refused)?;
        Ok(Signal(first))
    }

    /// Allocates an inbox on every PE for messages of up to `bytes` bytes from every PE.
    ///
    /// # Errors
    /// Returns [`GinError::Usage`] if `bytes` exceeds [`Inbox::MOST`], and otherwise the same errors as
    /// [`alloc`](World::alloc) and [`signals`](World::signals).
    pub fn inbox(&mut self, ranks: &mut Bootstrap, bytes: u64) -> Result<Inbox, GinError> {
        if bytes > Inbox::MOST {
            return Err(GinError::Usage(format!("messages of {bytes} bytes: at most {} are supported", Inbox::MOST)));
        }
        let capacity = bytes.next_multiple_of(8).max(8);
        let pes = self.n_pes();
        let room = self.alloc::<u8>(ranks, Inbox::bytes(capacity, pes))?;
        let inbox = Inbox { offset: room.offset(), capacity, signals: self.signals(ranks, pes)? };
        self.inboxes.push(inbox);
        Ok(inbox)
    }

    /// Copies values into this PE's part of an object. No kernel and no put may use the object during the call.
    ///
    /// # Errors
    /// Returns [`GinError::Usage`] if the object has fewer than `values.len()` values, and otherwise the driver's
    /// error.
    pub fn write<T: Plain>(&self, object: Sym<T>, values: &[T]) -> Result<(), GinError> {
        if values.len() as u64 > object.len() {
            return Err(GinError::Usage(format!("{} values into {object:?}", values.len())));
        }
        // SAFETY: `Plain` values have no padding, so all their bytes are initialized.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        Ok(self.heap.write(object.offset() as usize, bytes)?)
    }

    /// Returns this PE's part of an object. No kernel and no put may write the object during the call.
    ///
    /// # Errors
    /// Returns the driver's error if the copy fails.
    pub fn read<T: Plain>(&self, object: Sym<T>) -> Result<Vec<T>, GinError> {
        let len = object.len() as usize;
        let mut values = Vec::<T>::with_capacity(len);
        // SAFETY: the vector has capacity for `bytes` bytes, which are zeroed first. Every byte pattern is a valid
        // `Plain` value.
        unsafe {
            let (first, bytes) = (values.as_mut_ptr().cast::<u8>(), len * size_of::<T>());
            first.write_bytes(0, bytes);
            self.heap.read(object.offset() as usize, std::slice::from_raw_parts_mut(first, bytes))?;
            values.set_len(len);
        }
        Ok(values)
    }

    /// Returns the current value of this PE's signal: the sum of what kernels and other PEs have added, as observed by
    /// the CPU.
    ///
    /// # Errors
    /// Returns the driver's error if a copy fails.
    pub fn signal(&self, signal: Signal) -> Result<u64, GinError> {
        let (mut near, mut far) = ([0u64; 1], [0u64; 1]);
        self.heap.read(signal.0 as usize * 8, &mut near)?;
        self.far.read(signal.0 as usize * 8, &mut far)?;
        Ok(near[0] + far[0] + self.unread()?.of(signal.0))
    }

    /// Returns the arrivals that no kernel of this PE has read, by kind. Nonempty only with path `direct`, if kernels
    /// read arrivals. Intended for studies and tests.
    ///
    /// # Errors
    /// Returns the driver's error if a copy fails.
    pub fn unread(&self) -> Result<Unread, GinError> {
        self.cards.as_ref().map_or(Ok(Unread::default()), Cards::unread)
    }

    /// Returns the same error on every rank if the ranks disagree.
    fn agree(&mut self, ranks: &mut Bootstrap, call: &str, what: u64) -> Result<(), GinError> {
        let all = ranks.all_gather_values(&(call.to_owned(), what), call)?;
        let mine = &all[0];
        match all.iter().position(|theirs| theirs != mine) {
            None => Ok(()),
            Some(rank) => Err(GinError::Usage(format!(
                "ranks disagree: rank 0 calls {}({}), but rank {rank} calls {}({})",
                mine.0, mine.1, all[rank].0, all[rank].1
            ))),
        }
    }
}

/// Returns the name of a type without its path.
fn kind_of<T>() -> &'static str {
    let name = std::any::type_name::<T>();
    name.rsplit("::").next().unwrap_or(name)
}

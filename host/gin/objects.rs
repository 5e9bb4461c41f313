//! What programs have in the symmetric heap: objects, signals and inboxes, and how the CPU reads and writes them.

use super::cards::{Cards, Unread};
use super::heap::clear;
use super::{GinError, Inbox, Plain, Signal, Sym, World};
use ginlab_bootstrap::Bootstrap;
use kernels::gin::USER_SIGNALS;

impl World {
    /// A symmetric object of `len` values, zeroed. Every rank asks for the same, and no rank goes on before all have it.
    ///
    /// # Errors
    /// [`GinError::Usage`] when the heap has no room, or when ranks ask for different sizes: which, and what each asked for.
    pub fn alloc<T: Plain>(&mut self, ranks: &mut Bootstrap, len: u64) -> Result<Sym<T>, GinError> {
        let bytes = len.checked_mul(size_of::<T>() as u64);
        self.agree(ranks, "alloc", bytes.unwrap_or(u64::MAX))?;
        let offset = bytes.and_then(|bytes| self.space.take(bytes));
        let offset = offset.ok_or_else(|| {
            GinError::Usage(format!(
                "{len} values of {} B do not fit into the symmetric heap, which has {} B free in one piece: open the world with a \
                 larger heap",
                size_of::<T>(),
                self.space.largest()
            ))
        })?;
        clear(&self.heap, offset, len * size_of::<T>() as u64)?;
        // Nobody writes to an object that another rank is still clearing.
        ranks.barrier("a symmetric object")?;
        // SAFETY: the stretch has just been taken for it, and stretches begin at multiples of 256.
        Ok(unsafe { Sym::from_parts(offset, len) })
    }

    /// Gives an object back, once nobody uses it any more on any PE.
    ///
    /// # Errors
    /// [`GinError::Usage`] when it is no object that was allocated, or ranks free different ones.
    pub fn free<T: Plain>(&mut self, ranks: &mut Bootstrap, object: Sym<T>) -> Result<(), GinError> {
        self.agree(ranks, "free", object.offset())?;
        if self.space.give_back(object.offset()) {
            return Ok(());
        }
        Err(GinError::Usage(format!("{object:?} is not allocated: a slice of an object, or freed before")))
    }

    /// `count` signals side by side, 0 at first. They are not given back.
    ///
    /// # Errors
    /// [`GinError::Usage`] when there are no more, or ranks ask for different numbers.
    pub fn signals(&mut self, ranks: &mut Bootstrap, count: u32) -> Result<Signal, GinError> {
        self.agree(ranks, "signals", u64::from(count))?;
        let first = self.signals;
        let end = first.checked_add(count).filter(|end| *end <= USER_SIGNALS);
        let refused = || GinError::Usage(format!("{count} signals beside {first}: a world has {USER_SIGNALS}"));
        self.signals = end.ok_or_else(refused)?;
        Ok(Signal(first))
    }

    /// Room on every PE for messages of up to `bytes` from every PE.
    ///
    /// # Errors
    /// As [`alloc`](World::alloc) and [`signals`](World::signals); [`GinError::Usage`] for more than [`Inbox::MOST`].
    pub fn inbox(&mut self, ranks: &mut Bootstrap, bytes: u64) -> Result<Inbox, GinError> {
        if bytes > Inbox::MOST {
            return Err(GinError::Usage(format!("messages of {bytes} bytes; at most {}", Inbox::MOST)));
        }
        let capacity = bytes.next_multiple_of(8).max(8);
        let pes = self.n_pes();
        let room = self.alloc::<u8>(ranks, Inbox::bytes(capacity, pes))?;
        Ok(Inbox { offset: room.offset(), capacity, signals: self.signals(ranks, pes)? })
    }

    /// Copies values into this PE's part of an object, which no kernel and no put uses meanwhile.
    ///
    /// # Errors
    /// [`GinError::Usage`] for more values than it has; the driver's.
    pub fn write<T: Plain>(&self, object: Sym<T>, values: &[T]) -> Result<(), GinError> {
        if values.len() as u64 > object.len() {
            return Err(GinError::Usage(format!("{} values into {object:?}", values.len())));
        }
        // SAFETY: values of this trait have no padding: they are bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        Ok(self.heap.write(object.offset() as usize, bytes)?)
    }

    /// This PE's part of an object, which no kernel and no put writes meanwhile.
    ///
    /// # Errors
    /// The driver's.
    pub fn read<T: Plain>(&self, object: Sym<T>) -> Result<Vec<T>, GinError> {
        let len = object.len() as usize;
        let mut values = Vec::<T>::with_capacity(len);
        // SAFETY: the vector has room for so many bytes, zeroed first; every pattern of bytes is a value of this trait.
        unsafe {
            let (first, bytes) = (values.as_mut_ptr().cast::<u8>(), len * size_of::<T>());
            first.write_bytes(0, bytes);
            self.heap.read(object.offset() as usize, std::slice::from_raw_parts_mut(first, bytes))?;
            values.set_len(len);
        }
        Ok(values)
    }

    /// This PE's signal now, as the CPU sees it: what kernels and other PEs have added.
    ///
    /// # Errors
    /// The driver's.
    pub fn signal(&self, signal: Signal) -> Result<u64, GinError> {
        let (mut near, mut far) = ([0u64; 1], [0u64; 1]);
        self.heap.read(signal.0 as usize * 8, &mut near)?;
        self.far.read(signal.0 as usize * 8, &mut far)?;
        Ok(near[0] + far[0] + self.unread()?.of(signal.0))
    }

    /// By path direct, where kernels read what arrives: what no kernel of this PE has read yet, and by which way it has come. For studies and tests.
    ///
    /// # Errors
    /// The driver's.
    pub fn unread(&self) -> Result<Unread, GinError> {
        self.cards.as_ref().map_or(Ok(Unread::default()), Cards::unread)
    }

    /// Refuses what ranks do not agree on; every rank gets the same line.
    fn agree(&mut self, ranks: &mut Bootstrap, call: &str, what: u64) -> Result<(), GinError> {
        let all = ranks.all_gather_values(&(call.to_owned(), what), call)?;
        let mine = &all[0];
        match all.iter().position(|theirs| theirs != mine) {
            None => Ok(()),
            Some(rank) => Err(GinError::Usage(format!(
                "ranks do not agree: rank 0 calls {}({}), rank {rank} calls {}({})",
                mine.0, mine.1, all[rank].0, all[rank].1
            ))),
        }
    }
}

//! The allocator of handlers without WASI: memory that the instance has from its start comes first.
//!
//! The standard library's allocator asks the engine for more memory with its first allocation, which costs the host more than
//! the rest of a small message, in system calls. Here the first allocations come off an arena in the module's own data, from
//! front to back; what does not fit goes to the standard library's.
#![allow(unsafe_code, reason = "an allocator is made of pointers")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};

/// Bytes of the arena. It is all zeroes, so it is not in the file; with a stack of 64 KiB and the data of a small handler it fits
/// into the two pages of 64 KiB that the host resets after a message.
const SIZE: usize = 32 * 1024;

#[global_allocator]
static ARENA: Arena = Arena { bytes: UnsafeCell::new([0; SIZE]), used: Cell::new(0) };

/// Its first bytes are aligned for whatever is allocated in it, but for the odd type that wants more.
#[repr(C, align(16))]
struct Arena {
    bytes: UnsafeCell<[u8; SIZE]>,
    /// Bytes that are taken, from the front.
    used: Cell<usize>,
}

// SAFETY: this target has one thread.
unsafe impl Sync for Arena {}

impl Arena {
    /// Where the arena's bytes begin.
    fn start(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    /// How far into the arena a pointer leads; `None`: it is the other allocator's.
    fn offset(&self, pointer: *mut u8) -> Option<usize> {
        (pointer as usize).checked_sub(self.start() as usize).filter(|offset| *offset < SIZE)
    }

    /// Takes bytes; null if there are not so many left.
    fn take(&self, layout: Layout) -> *mut u8 {
        let from = self.used.get().next_multiple_of(layout.align());
        match from.checked_add(layout.size()) {
            Some(end) if end <= SIZE && layout.align() <= align_of::<Self>() => {
                self.used.set(end);
                self.start().wrapping_add(from)
            }
            _ => std::ptr::null_mut(),
        }
    }

    /// Whether these bytes are the ones taken last.
    fn is_last(&self, offset: usize, size: usize) -> bool {
        offset + size == self.used.get()
    }
}

// SAFETY: bytes of the arena are given out once, as `used` only falls by what was given out last and is given back; the others
// are the standard library's, to which they go back.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let taken = self.take(layout);
        // SAFETY: the caller's promises are those that it asks for.
        if taken.is_null() { unsafe { System.alloc(layout) } } else { taken }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match self.offset(pointer) {
            Some(offset) if self.is_last(offset, layout.size()) => self.used.set(offset),
            // It is lost until the instance is, and there is little of it.
            Some(_) => {}
            // SAFETY: it came from there.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(offset) = self.offset(pointer) else {
            // SAFETY: it came from there.
            return unsafe { System.realloc(pointer, layout, size) };
        };
        let last = self.is_last(offset, layout.size());
        if last && offset.checked_add(size).is_some_and(|end| end <= SIZE) {
            self.used.set(offset + size);
            return pointer;
        }
        if size <= layout.size() {
            return pointer;
        }
        // SAFETY: the caller promises that such a layout is one.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both are as long as what is copied, and apart, as the old one is still taken.
            unsafe { std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(size)) };
            // SAFETY: it is given back once, with the layout that it was taken with.
            unsafe { self.dealloc(pointer, layout) };
        }
        new
    }
}

//! Allocator of handlers without WASI. Uses memory that the instance has from its start before any other memory.
//!
//! At its first allocation, the standard library's allocator requests more memory from the engine. The host's system calls for
//! this request cost more than the rest of a small message. Therefore, the first allocations here use an arena in the module's
//! own data, from front to back. If the arena is full, this allocator calls the standard library's.
#![allow(unsafe_code, reason = "an allocator is made of pointers")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};

/// Size of the arena in bytes. The file of the module does not contain the arena, because all its bytes are zero. The host resets
/// two pages of 64 KiB after each message. The arena, a stack of 64 KiB and the data of a small handler fit into these pages.
const SIZE: usize = 32 * 1024;

#[global_allocator]
static ARENA: Arena = Arena { bytes: UnsafeCell::new([0; SIZE]), used: Cell::new(0) };

/// Memory for the first allocations. The alignment of its first byte is enough for all common types.
#[repr(C, align(16))]
struct Arena {
    bytes: UnsafeCell<[u8; SIZE]>,
    /// Number of allocated bytes, from the front.
    used: Cell<usize>,
}

// SAFETY: this target has one thread.
unsafe impl Sync for Arena {}

impl Arena {
    /// Returns the address of the first byte.
    fn start(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    /// Returns the offset of a pointer in the arena. `None`: the pointer belongs to the standard library's allocator.
    fn offset(&self, pointer: *mut u8) -> Option<usize> {
        (pointer as usize).checked_sub(self.start() as usize).filter(|offset| *offset < SIZE)
    }

    /// Allocates bytes in the arena. Returns null if the free space is too small.
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

    /// Returns true if these bytes are the latest allocation.
    fn is_last(&self, offset: usize, size: usize) -> bool {
        offset + size == self.used.get()
    }
}

// SAFETY: the arena allocates each byte once, because `used` decreases only when the latest allocation is freed. All other memory
// belongs to the standard library's allocator, which also frees it.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let taken = self.take(layout);
        // SAFETY: the caller guarantees what this function requires.
        if taken.is_null() { unsafe { System.alloc(layout) } } else { taken }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match self.offset(pointer) {
            Some(offset) if self.is_last(offset, layout.size()) => self.used.set(offset),
            // The memory is unusable until the instance ends. Few bytes are lost in this way.
            Some(_) => {}
            // SAFETY: the standard library's allocator allocated this memory.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(offset) = self.offset(pointer) else {
            // SAFETY: the standard library's allocator allocated this memory.
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
        // SAFETY: the caller guarantees that size and alignment form a valid layout.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both allocations are at least as long as the copied bytes. They do not overlap, because the old one is not
            // freed yet.
            unsafe { std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(size)) };
            // SAFETY: frees the old allocation once, with the layout of its allocation.
            unsafe { self.dealloc(pointer, layout) };
        }
        new
    }
}

//! The C library's functions on memory, for the static binary: musl's `memcpy` takes 9 to 20 ns for a few bytes, where 2 will do.
//!
//! Rust and C both call them for each string that is put together and each value that is moved, some two hundred times a message, and
//! most of what they are called for is short. musl's begin with a string instruction of the CPU, which is quick only once it runs; these
//! begin with as many loads as fit into registers. Nothing else is different: the contract is C's (ISO C17, 7.24; `bcmp` is POSIX.1-2001's).
//!
//! They are assembly, as a compiler may well turn the loop of a `memcpy` in any other language into a call of `memcpy`; and what a plain
//! x86-64 has is enough for them. On other architectures, and with other C libraries, nobody needs them.
#![allow(unsafe_code, reason = "the C library's functions work on raw memory")]

use core::arch::naked_asm;

/// Copies `count` bytes, which may overlap: each is loaded before anything is stored over it, and up to 64 all of them before the
/// first store.
///
/// # Safety
/// As for C's `memmove`.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "cmp rdx, 16",
        "jb {few}",
        "cmp rdx, 32",
        "ja 2f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + rdx - 16], xmm1",
        "ret",
        // 33 to 64.
        "2:",
        "cmp rdx, 64",
        "ja 3f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + rdx - 32]",
        "movups xmm3, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + rdx - 32], xmm2",
        "movups [rdi + rdx - 16], xmm3",
        "ret",
        // More: from the end where `to` lies within what is copied.
        "3:",
        "mov rcx, rdi",
        "sub rcx, rsi",
        "cmp rcx, rdx",
        "jb {backward}",
        "cmp rdx, 2048",
        "jb {forward}",
        "jmp {much}",
        few = sym move_few,
        forward = sym move_forward,
        backward = sym move_backward,
        much = sym move_much,
    )
}

/// Copies fewer than 16 bytes. All these parts have `to` in `rax` too, as that is the answer.
#[unsafe(naked)]
unsafe extern "C" fn move_few() {
    naked_asm!(
        "cmp edx, 8",
        "jb 2f",
        "mov r8, [rsi]",
        "mov r9, [rsi + rdx - 8]",
        "mov [rdi], r8",
        "mov [rdi + rdx - 8], r9",
        "ret",
        "2:",
        "cmp edx, 4",
        "jb 3f",
        "mov r8d, [rsi]",
        "mov r9d, [rsi + rdx - 4]",
        "mov [rdi], r8d",
        "mov [rdi + rdx - 4], r9d",
        "ret",
        "3:",
        "test edx, edx",
        "jz 5f",
        "movzx r8d, byte ptr [rsi]",
        "cmp edx, 1",
        "je 4f",
        "movzx r9d, word ptr [rsi + rdx - 2]",
        "mov [rdi + rdx - 2], r9w",
        "4:",
        "mov [rdi], r8b",
        "5:",
        "ret",
    )
}

/// Copies more than 64 bytes by 64 of them; the last 64 are loaded first, and stored last.
#[unsafe(naked)]
unsafe extern "C" fn move_forward() {
    naked_asm!(
        "movups xmm4, [rsi + rdx - 64]",
        "movups xmm5, [rsi + rdx - 48]",
        "movups xmm6, [rsi + rdx - 32]",
        "movups xmm7, [rsi + rdx - 16]",
        "lea r8, [rdi + rdx]",
        "2:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "sub rdx, 64",
        "cmp rdx, 64",
        "ja 2b",
        "movups [r8 - 64], xmm4",
        "movups [r8 - 48], xmm5",
        "movups [r8 - 32], xmm6",
        "movups [r8 - 16], xmm7",
        "ret",
    )
}

/// Copies 2 KiB and more, to where it is aligned but for the first 16: by the CPU's own loop where both lie alike in its cache's lines
/// of 64 bytes, and else as if it were less, as that loop then takes two to three times as long.
#[unsafe(naked)]
unsafe extern "C" fn move_much() {
    naked_asm!(
        "movups xmm8, [rsi]",
        "mov rcx, rdi",
        "neg rcx",
        "and ecx, 15",
        "add rdi, rcx",
        "add rsi, rcx",
        "sub rdx, rcx",
        "mov ecx, edi",
        "xor ecx, esi",
        "test ecx, 63",
        "jz 2f",
        "call {forward}",
        "movups [rax], xmm8",
        "ret",
        "2:",
        "movups xmm1, [rsi + rdx - 16]",
        "lea r8, [rdi + rdx - 16]",
        "mov rcx, rdx",
        "shr rcx, 3",
        "rep movsq",
        "movups [r8], xmm1",
        "movups [rax], xmm8",
        "ret",
        forward = sym move_forward,
    )
}

/// Copies more than 64 bytes by 64 of them, from the end; the first 64 are loaded first, and stored last.
#[unsafe(naked)]
unsafe extern "C" fn move_backward() {
    naked_asm!(
        "movups xmm4, [rsi]",
        "movups xmm5, [rsi + 16]",
        "movups xmm6, [rsi + 32]",
        "movups xmm7, [rsi + 48]",
        "2:",
        "movups xmm0, [rsi + rdx - 16]",
        "movups xmm1, [rsi + rdx - 32]",
        "movups xmm2, [rsi + rdx - 48]",
        "movups xmm3, [rsi + rdx - 64]",
        "movups [rdi + rdx - 16], xmm0",
        "movups [rdi + rdx - 32], xmm1",
        "movups [rdi + rdx - 48], xmm2",
        "movups [rdi + rdx - 64], xmm3",
        "sub rdx, 64",
        "cmp rdx, 64",
        "ja 2b",
        "movups [rdi], xmm4",
        "movups [rdi + 16], xmm5",
        "movups [rdi + 32], xmm6",
        "movups [rdi + 48], xmm7",
        "ret",
    )
}

/// Copies `count` bytes.
///
/// # Safety
/// As for C's `memcpy`.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    naked_asm!("jmp {}", sym memmove)
}

/// Makes `count` bytes the low byte of `value`.
///
/// # Safety
/// As for C's `memset`.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    naked_asm!(
        "mov r9, rdi",
        "movzx esi, sil",
        "mov rax, 0x0101010101010101",
        "imul rax, rsi",
        "cmp rdx, 16",
        "jb {few}",
        "movq xmm0, rax",
        "punpcklqdq xmm0, xmm0",
        "cmp rdx, 2048",
        "jae 4f",
        "movups [rdi + rdx - 16], xmm0",
        "cmp rdx, 64",
        "jbe 3f",
        "2:",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm0",
        "movups [rdi + 32], xmm0",
        "movups [rdi + 48], xmm0",
        "add rdi, 64",
        "sub rdx, 64",
        "cmp rdx, 64",
        "ja 2b",
        // The rest, of which the last 16 are done.
        "3:",
        "sub rdx, 16",
        "jbe 5f",
        "movups [rdi], xmm0",
        "add rdi, 16",
        "jmp 3b",
        // From 2 KiB on the CPU's own loop is as quick as any; the first and the last 16 apart, so that it is aligned.
        "4:",
        "movups [rdi], xmm0",
        "movups [rdi + rdx - 16], xmm0",
        "mov rcx, rdi",
        "neg rcx",
        "and ecx, 15",
        "add rdi, rcx",
        "sub rdx, rcx",
        "mov rcx, rdx",
        "shr rcx, 3",
        "rep stosq",
        "5:",
        "mov rax, r9",
        "ret",
        few = sym set_few,
    )
}

/// Fills fewer than 16 bytes with those of `rax`; `r9` is the answer.
#[unsafe(naked)]
unsafe extern "C" fn set_few() {
    naked_asm!(
        "cmp edx, 8",
        "jb 2f",
        "mov [rdi], rax",
        "mov [rdi + rdx - 8], rax",
        "jmp 4f",
        "2:",
        "cmp edx, 4",
        "jb 3f",
        "mov [rdi], eax",
        "mov [rdi + rdx - 4], eax",
        "jmp 4f",
        "3:",
        "test edx, edx",
        "jz 4f",
        "mov [rdi], al",
        "cmp edx, 1",
        "je 4f",
        "mov [rdi + rdx - 2], ax",
        "4:",
        "mov rax, r9",
        "ret",
    )
}

/// Compares `count` bytes: less than 0, 0, or more, as the first that differ.
///
/// # Safety
/// As for C's `memcmp`.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    naked_asm!(
        "cmp rdx, 16",
        "jb {few}",
        // All of 16 but the last, which may overlap those before.
        "sub rdx, 16",
        "xor ecx, ecx",
        "jmp 3f",
        "2:",
        "movups xmm0, [rdi + rcx]",
        "movups xmm1, [rsi + rcx]",
        "pcmpeqb xmm0, xmm1",
        "pmovmskb eax, xmm0",
        "xor eax, 0xffff",
        "jnz 4f",
        "add rcx, 16",
        "3:",
        "cmp rcx, rdx",
        "jb 2b",
        "mov rcx, rdx",
        "movups xmm0, [rdi + rcx]",
        "movups xmm1, [rsi + rcx]",
        "pcmpeqb xmm0, xmm1",
        "pmovmskb eax, xmm0",
        "xor eax, 0xffff",
        "jnz 4f",
        "ret",
        // Where they differ.
        "4:",
        "bsf eax, eax",
        "add rcx, rax",
        "movzx eax, byte ptr [rdi + rcx]",
        "movzx ecx, byte ptr [rsi + rcx]",
        "sub eax, ecx",
        "ret",
        few = sym compare_few,
    )
}

/// Compares fewer than 16 bytes.
#[unsafe(naked)]
unsafe extern "C" fn compare_few() {
    naked_asm!(
        "cmp edx, 8",
        "jb 2f",
        "mov rax, [rdi]",
        "mov rcx, [rsi]",
        "cmp rax, rcx",
        "jne 6f",
        "mov rax, [rdi + rdx - 8]",
        "mov rcx, [rsi + rdx - 8]",
        "cmp rax, rcx",
        "jne 6f",
        "xor eax, eax",
        "ret",
        "2:",
        "cmp edx, 4",
        "jb 3f",
        "mov eax, [rdi]",
        "mov ecx, [rsi]",
        "cmp eax, ecx",
        "jne 6f",
        "mov eax, [rdi + rdx - 4]",
        "mov ecx, [rsi + rdx - 4]",
        "cmp eax, ecx",
        "jne 6f",
        "xor eax, eax",
        "ret",
        "3:",
        "xor eax, eax",
        "xor ecx, ecx",
        "4:",
        "cmp rcx, rdx",
        "jae 5f",
        "movzx eax, byte ptr [rdi + rcx]",
        "movzx r8d, byte ptr [rsi + rcx]",
        "inc rcx",
        "sub eax, r8d",
        "jz 4b",
        "5:",
        "ret",
        // Two words that differ: as numbers whose highest byte is the first.
        "6:",
        "bswap rax",
        "bswap rcx",
        "cmp rax, rcx",
        "sbb eax, eax",
        "or eax, 1",
        "ret",
    )
}

/// Compares `count` bytes: 0 if they are the same.
///
/// # Safety
/// As for POSIX's `bcmp`.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    naked_asm!("jmp {}", sym memcmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than any of the ways by length, and some around each where another begins.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..=300).chain([2046, 2047, 2048, 2049, 2064, 4096, 10_001])
    }

    /// Bytes of which no two near one another are the same.
    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|n| (n * 7 + n / 251) as u8).collect()
    }

    #[test]
    fn what_is_copied_is_all_there_and_nothing_beside_it() {
        for length in lengths() {
            for (to, from) in [(0, 0), (1, 0), (0, 1), (3, 11), (15, 8)] {
                let (source, mut target) = (bytes(length + 32), vec![0xee; length + 32]);
                let mut expected = target.clone();
                expected[to..to + length].copy_from_slice(&source[from..from + length]);
                let (start, source) = (target[to..].as_mut_ptr(), source[from..].as_ptr());
                // SAFETY: both have as many bytes, and 16 more, beside one another.
                assert_eq!(unsafe { memcpy(start, source, length) }, start);
                assert_eq!(target, expected, "{length} from {from} to {to}");
            }
        }
    }

    #[test]
    fn what_overlaps_is_read_before_it_is_overwritten() {
        for length in lengths() {
            for apart in [0, 1, 7, 8, 15, 16, 33, 63, 64, 65, 127, length.saturating_sub(1), length] {
                for (to, from) in [(apart + 1, 1), (1, apart + 1)] {
                    let mut text = bytes(length + apart + 32);
                    let mut expected = text.clone();
                    expected.copy_within(from..from + length, to);
                    let start = text.as_mut_ptr();
                    // SAFETY: the text has room for both.
                    let told = unsafe { memmove(start.add(to), start.add(from), length) };
                    assert_eq!(told, text[to..].as_mut_ptr());
                    assert_eq!(text, expected, "{length} from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn what_is_filled_has_the_low_byte_and_nothing_beside_it() {
        for length in lengths() {
            for (to, value) in [(0, 0), (1, 0x1a5), (9, -1), (16, 7)] {
                let mut target = bytes(length + 32);
                let mut expected = target.clone();
                expected[to..to + length].fill(value as u8);
                let start = target[to..].as_mut_ptr();
                // SAFETY: the target has room for as many.
                assert_eq!(unsafe { memset(start, value, length) }, start);
                assert_eq!(target, expected, "{length} at {to}");
            }
        }
    }

    #[test]
    fn the_first_byte_that_differs_decides() {
        let compare = |one: &[u8], other: &[u8]| {
            // SAFETY: both are as long.
            let (told, equal) = unsafe {
                (memcmp(one.as_ptr(), other.as_ptr(), one.len()), bcmp(one.as_ptr(), other.as_ptr(), one.len()))
            };
            assert_eq!(told == 0, equal == 0);
            told.cmp(&0)
        };
        for length in lengths() {
            let one = bytes(length + 1);
            assert_eq!(compare(&one[1..], &one.clone()[1..]), std::cmp::Ordering::Equal);
            for at in (0..length).filter(|at| length < 300 || at % 97 == 0 || at + 40 > length) {
                for (byte, after) in [(0x7f, 0xff), (0x80, 0), (0, 0xff), (0xff, 0)] {
                    let mut other = one[1..].to_vec();
                    other[at] = byte;
                    // What follows says the contrary.
                    other[at + 1..].fill(after);
                    assert_eq!(compare(&one[1..], &other), one[1..].cmp(&other), "{length} at {at}");
                }
            }
        }
    }
}

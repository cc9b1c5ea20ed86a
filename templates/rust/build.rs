//! A small stack makes a small memory, and hostler resets up to 256 KiB of it at once after each message; the linker's own
//! choice is 1 MiB. Raise it if the handler recurses deeply: an overflow traps.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "wasm") {
        println!("cargo::rustc-link-arg=-zstack-size=131072");
    }
}

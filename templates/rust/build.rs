//! A small stack makes a small memory, and hostler resets up to 256 KiB of it at once after each message; the linker's own
//! choice is 1 MiB, which unoptimised code keeps, as its frames are large. Raise it if the handler recurses deeply: an
//! overflow traps. 64 KiB hold serde_json's deepest document.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_FAMILY", "wasm") && !is("OPT_LEVEL", "0") {
        println!("cargo::rustc-link-arg=-zstack-size=65536");
    }
}

//! A small stack, as in what `hostler new` writes.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg=-zstack-size=65536");
}

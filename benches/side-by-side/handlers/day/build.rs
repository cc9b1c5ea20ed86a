//! Sets a small stack, as the projects of `hostler new` do.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg=-zstack-size=65536");
}

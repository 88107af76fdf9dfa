//! Links the library as NVIDIA's is linked.

fn main() {
    // otherwise the addresses of its functions are those of a library in front of it, and the routing of that library is not tested
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rerun-if-changed=build.rs");
}

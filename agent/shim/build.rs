//! Links the shim so that it can stand where the driver's `libcuda.so.1` was: under that name, with the driver's own file as a dependency by
//! its absolute path in the container. What the shim does not export, programs find in the dependency.

#![allow(clippy::expect_used, reason = "the build ends there")]

use std::{env, fs, path::PathBuf, process::Command};

/// Path of the driver's own library in containers; also in `src/real.rs`.
const REAL: &str = "/run/gputenancy/driver/libcuda.so.1";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    // the linker copies the name of a library, here the path, as the name of the dependency
    let (source, stub) = (folder.join("stub.c"), folder.join("libstub.so"));
    fs::write(&source, "").expect("a file in OUT_DIR");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let built = Command::new(compiler)
        .args(["-shared", "-nostdlib", &format!("-Wl,-soname,{REAL}"), "-o"])
        .arg(&stub)
        .arg(&source)
        .status()
        .expect("a C compiler, which Rust's linker is as well");
    assert!(built.success(), "the stub of the driver's library was not linked");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // images of tenants may not have libgcc_s.so.1, which Rust's standard library would need
    let unwinder =
        Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into())).arg("-print-file-name=libgcc_eh.a").output();
    let unwinder = PathBuf::from(String::from_utf8_lossy(&unwinder.expect("a C compiler").stdout).trim());
    println!("cargo::rustc-link-search=native={}", unwinder.parent().expect("a path").display());
    println!("cargo::rustc-link-lib=static:+whole-archive=gcc_eh");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--no-as-needed");
    println!("cargo::rustc-cdylib-link-arg={}", stub.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,--as-needed");
}

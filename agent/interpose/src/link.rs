//! Linking of a library so that it can be at the place of one of the driver's, under its name, with the driver's own file as a dependency by
//! its absolute path in the container. What it does not export, programs find in the dependency.

use std::{
    env,
    ffi::CStr,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Prints what cargo passes to the linker of the library of a build script: the dependency on the file at the path `real`, and the file's name as its own.
pub fn in_front_of(real: &CStr) -> io::Result<()> {
    let real = real.to_string_lossy();
    let (_, soname) = real.rsplit_once('/').ok_or_else(|| io::Error::other("no path of a library"))?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CARGO_ZIGBUILD_TARGET");
    let folder = env::var_os("OUT_DIR").map(PathBuf::from).ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    let stub = stub(&folder, &real)?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    static_unwinder()?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,--no-as-needed");
    println!("cargo::rustc-cdylib-link-arg={}", stub.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,--as-needed");
    Ok(())
}

/// Links the unwinder, which Rust's standard library uses, into the library: images of tenants may not have `libgcc_s.so.1`.
fn static_unwinder() -> io::Result<()> {
    // zig links its own unwinder, always statically
    if env::var_os("CARGO_ZIGBUILD_TARGET").is_some() {
        return Ok(());
    }
    let found = compiler().arg("-print-file-name=libgcc_eh.a").output()?;
    let found = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    let folder = found.parent().ok_or_else(|| io::Error::other("the compiler does not name libgcc_eh.a"))?;
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=static:+whole-archive=gcc_eh");
    Ok(())
}

/// An empty library whose name is the path: the linker copies that name as the name of the dependency.
fn stub(folder: &Path, real: &str) -> io::Result<PathBuf> {
    let (source, stub) = (folder.join("stub.c"), folder.join("libstub.so"));
    fs::write(&source, "")?;
    let soname = format!("-Wl,-soname,{real}");
    let built = compiler().args(["-shared", "-nostdlib", &soname, "-o"]).arg(&stub).arg(&source).status()?;
    if built.success() { Ok(stub) } else { Err(io::Error::other("the stub of the driver's library was not linked")) }
}

/// The C compiler that is the linker of the library: for another processor it is not that of this machine.
fn compiler() -> Command {
    let linker = env::var_os("RUSTC_LINKER").or_else(|| env::var_os("CC"));
    Command::new(linker.unwrap_or_else(|| "cc".into()))
}

//! A program in C that is linked with CUDA's library gets the shim's functions by every way of the dynamic linker.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{CONTEXT, GIB, Node, Share, library};

/// The program, and the library that is loaded before.
struct Built {
    program: PathBuf,
    wrapper: PathBuf,
}

fn compile(arguments: &[&str], to: &Path, more: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/routes.c");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O2", "-fPIC", "-fno-plt"]).args(arguments).arg("-o").arg(to).arg(source).args(more);
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
}

fn build(folder: &Path) -> Built {
    let stub = folder.join("stub");
    fs::create_dir(&stub).unwrap();
    compile(&["-DSTUB", "-shared", "-Wl,-soname,libcuda.so.1"], &stub.join("libcuda.so"), &[]);
    let built = Built { program: folder.join("routes"), wrapper: folder.join("libwrapper.so") };
    let search = format!("-L{}", stub.display());
    compile(&["-pie"], &built.program, &[&search, "-lcuda", "-ldl"]);
    compile(&["-DWRAPPER", "-shared"], &built.wrapper, &["-ldl"]);
    built
}

/// What the program prints in a container with this share, by route.
fn routes(node: &Node, share: &Share, program: &Path, preload: Option<&Path>) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/tests/gpu/in-container");
    let mut container = Command::new(script);
    container.args(["libcuda_sim.so", "libgputenancy_cuda.so"].map(library)).arg(&share.folder);
    if let Some(library) = preload {
        container.arg("env").arg(format!("LD_PRELOAD={}", library.display()));
    }
    container.arg(program).env("NVSIM_STATE", node.store.dir()).env("NVSIM_DEV", "all");
    let output = container.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap().replace("/run/shim/libcuda.so.1", "shim");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn every_route_of_the_dynamic_linker_ends_in_the_shim() {
    let node = Node::new();
    let built = build(node.root.path());
    let share = node.share_with("share", GIB, CONTEXT);
    let shown = routes(&node, &share, &built.program, None);
    // with a version the linker finds nothing, as in the driver's library: its functions have none
    let expected = [
        "linked shim cuMemAlloc_v2 2",
        "default shim cuMemAlloc_v2 2",
        "next shim cuMemAlloc_v2 2",
        "handle shim cuMemAlloc_v2 2",
        "loaded shim cuMemAlloc_v2 2",
        "version-default none",
        "version-next none",
        "version-handle none",
    ];
    assert_eq!(shown, expected);
    // without a limit the driver allocates, through the same functions
    let free = Share { folder: node.root.path().join("none"), ..share };
    fs::create_dir(&free.folder).unwrap();
    let shown = routes(&node, &free, &built.program, None);
    assert_eq!(shown.iter().filter(|line| line.ends_with(" shim cuMemAlloc_v2 0")).count(), 5, "{shown:?}");
}

#[test]
fn library_in_front_of_the_shim_finds_it_as_the_next_one() {
    let node = Node::new();
    let built = build(node.root.path());
    let share = node.share_with("share", GIB, CONTEXT);
    let shown = routes(&node, &share, &built.program, Some(&built.wrapper));
    let of = |route: &str| shown.iter().find(|line| line.starts_with(&format!("{route} "))).unwrap().clone();
    let wrapper = built.wrapper.display();
    // the wrapper adds 1000 to the code of the shim
    assert_eq!(of("linked"), format!("linked {wrapper} cuMemAlloc_v2 1002"));
    assert_eq!(of("default"), format!("default {wrapper} cuMemAlloc_v2 1002"));
    // behind the program itself the wrapper comes first as well
    assert_eq!(of("next"), format!("next {wrapper} cuMemAlloc_v2 1002"));
    assert_eq!(of("handle"), "handle shim cuMemAlloc_v2 2");
}

//! Generates the gRPC interfaces of kubelet and the container runtime from `proto/`, without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let interfaces = protox::compile(["deviceplugin.proto", "podresources.proto", "runtime.proto"], ["proto"])?;
    tonic_prost_build::configure().btree_map(".").compile_fds(interfaces)?;
    Ok(())
}

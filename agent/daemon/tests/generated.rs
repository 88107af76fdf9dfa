//! The committed code of the gRPC interfaces is what `agent/daemon/proto` generates.

use std::{fs, path::Path};

#[test]
fn code_of_the_interfaces_is_that_of_the_proto_files() {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let committed = proto.join("generated");
    let folder = tempfile::tempdir().unwrap();
    let interfaces = protox::compile(["deviceplugin.proto", "podresources.proto", "runtime.proto"], [proto]).unwrap();
    let generator = tonic_prost_build::configure().btree_map(".").out_dir(folder.path());
    generator.compile_fds(interfaces).unwrap();
    let read = |folder: &Path| {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.map(|f| (f.file_name().unwrap().to_owned(), fs::read(&f).unwrap())).collect();
        files.sort();
        files
    };
    let generated = read(folder.path());
    if std::env::var_os("GENERATE").is_some() {
        for (name, content) in &generated {
            fs::write(committed.join(name), content).unwrap();
        }
    }
    assert!(!generated.is_empty());
    assert!(read(&committed) == generated, "run `GENERATE=1 cargo test --test agent generated::`");
}

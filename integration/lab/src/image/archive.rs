//! A docker-save tar with one layer: the same files make the same bytes.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{Result, Write};
use std::path::{Component, Path, PathBuf};
use tar::{Builder, EntryType, Header};

/// A file of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum File {
    /// Content and permissions.
    Regular(Vec<u8>, u32),
    /// A symbolic link.
    Link(String),
    /// A folder and its permissions.
    Folder(u32),
}

/// Files by absolute path.
pub type Files = BTreeMap<PathBuf, File>;

/// The hexadecimal SHA-256.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn header(kind: EntryType, size: usize, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// Adds the folders that files lie in.
fn with_parents(files: &Files) -> Files {
    let mut all = files.clone();
    for path in files.keys() {
        for parent in
            path.ancestors().skip(1).filter(|parent| parent.components().any(|c| matches!(c, Component::Normal(_))))
        {
            all.entry(parent.to_path_buf()).or_insert(File::Folder(0o755));
        }
    }
    all
}

/// The layer's tar.
pub fn layer(files: &Files) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for (path, file) in with_parents(files) {
        let name = path.strip_prefix("/").unwrap_or(&path);
        match file {
            File::Regular(bytes, mode) => {
                tar.append_data(&mut header(EntryType::Regular, bytes.len(), mode), name, bytes.as_slice())?;
            }
            File::Link(target) => tar.append_link(&mut header(EntryType::Symlink, 0, 0o777), name, target)?,
            File::Folder(mode) => {
                tar.append_data(&mut header(EntryType::Directory, 0, mode), name, std::io::empty())?;
            }
        }
    }
    tar.into_inner()
}

/// Writes the image.
pub fn write(out: impl Write, name: &str, entrypoint: &[&str], files: &Files) -> Result<()> {
    let layer = layer(files)?;
    let config = serde_json::json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": ["PATH=/usr/bin:/bin:/usr/sbin:/sbin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))]},
        "history": [{"created": "1970-01-01T00:00:00Z"}],
    });
    let config = serde_json::to_vec(&config)?;
    let config_name = format!("{}.json", digest(&config));
    let manifest = serde_json::json!([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]);
    let manifest = serde_json::to_vec(&manifest)?;
    let mut tar = Builder::new(out);
    for (name, bytes) in [("manifest.json", &manifest), (config_name.as_str(), &config), ("layer.tar", &layer)] {
        tar.append_data(&mut header(EntryType::Regular, bytes.len(), 0o644), Path::new(name), bytes.as_slice())?;
    }
    tar.finish()
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        Files::from([
            ("/usr/bin/a".into(), File::Regular(b"a".to_vec(), 0o755)),
            ("/bin/sh".into(), File::Link("busybox".to_owned())),
            ("/tmp".into(), File::Folder(0o1777)),
        ])
    }

    #[test]
    fn archive_of_equal_files_is_identical() {
        let make = || {
            let mut out = Vec::new();
            write(&mut out, "x:1", &["/usr/bin/a"], &files()).unwrap();
            out
        };
        assert_eq!(make(), make());
    }

    #[test]
    fn layer_contains_files_and_parent_folders() {
        let layer = layer(&files()).unwrap();
        let mut tar = tar::Archive::new(layer.as_slice());
        let seen: Vec<_> = tar
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap())
            })
            .collect();
        let seen: Vec<_> = seen.iter().map(|(path, mode)| (path.trim_end_matches('/'), *mode)).collect();
        let want = [
            ("bin", 0o755),
            ("bin/sh", 0o777),
            ("tmp", 0o1777),
            ("usr", 0o755),
            ("usr/bin", 0o755),
            ("usr/bin/a", 0o755),
        ];
        assert_eq!(seen, want);
    }
}

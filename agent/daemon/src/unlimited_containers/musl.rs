//! Whether a container has musl in place of glibc, which CUDA and the library that limits memory need: by the loader in its files.

use std::{fs, path::Path};

/// Folders in which distributions have the C library of x86-64 and aarch64.
const FOLDERS: &[&str] = &[
    "lib",
    "lib64",
    "usr/lib",
    "usr/lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
];

/// Entries of a folder that are read: a container may have made any number of them.
const ENTRIES: usize = 10_000;

/// Whether the root of a container has musl and no glibc. `None`: it cannot be read, as when its process has ended. Only names of files are read, so that
/// links of the container lead to nothing that matters.
pub fn is_musl(root: &Path) -> Option<bool> {
    fs::read_dir(root).ok()?;
    let has_loader = |folder: &&str| {
        let mut entries = fs::read_dir(root.join(folder)).into_iter().flatten().take(ENTRIES).flatten();
        entries.any(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("ld-musl-")))
    };
    let has_glibc = |folder: &&str| root.join(folder).join("libc.so.6").symlink_metadata().is_ok();
    Some(["lib", "usr/lib"].iter().any(has_loader) && !FOLDERS.iter().any(has_glibc))
}

/// The first process in a cgroup that is a container's; `None` before it has started.
pub fn process_of(cgroup: &Path) -> Option<u32> {
    let processes = fs::read_to_string(cgroup.join("cgroup.procs")).ok()?;
    processes.lines().find_map(|line| line.parse().ok()).filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[&str]) -> Option<bool> {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        is_musl(root.path())
    }

    #[test]
    fn image_with_musl_alone_is_found() {
        assert_eq!(root(&["lib/ld-musl-x86_64.so.1", "lib/libc.musl-x86_64.so.1"]), Some(true));
        assert_eq!(root(&["usr/lib/ld-musl-aarch64.so.1"]), Some(true), "with merged folders");
        // Debian's package musl next to glibc
        assert_eq!(root(&["lib/ld-musl-x86_64.so.1", "lib/x86_64-linux-gnu/libc.so.6"]), Some(false));
        assert_eq!(root(&["lib64/ld-linux-x86-64.so.2", "usr/lib64/libc.so.6"]), Some(false));
        assert_eq!(root(&["app"]), Some(false), "a static program");
        let files: Vec<String> = (0..ENTRIES).map(|number| format!("lib/{number}")).collect();
        let mut files: Vec<&str> = files.iter().map(String::as_str).collect();
        files.extend(["lib/libc.so.6", "usr/lib/ld-musl-x86_64.so.1"]);
        assert_eq!(root(&files), Some(false), "glibc is found among any number of files");
        assert_eq!(is_musl("/nowhere".as_ref()), None);
    }

    #[test]
    fn process_of_a_container_is_the_first_of_its_cgroup() {
        let cgroup = tempfile::tempdir().unwrap();
        assert_eq!(process_of(cgroup.path()), None);
        fs::write(cgroup.path().join("cgroup.procs"), "").unwrap();
        assert_eq!(process_of(cgroup.path()), None);
        // a process of another PID namespace is listed as 0
        fs::write(cgroup.path().join("cgroup.procs"), "0\n").unwrap();
        assert_eq!(process_of(cgroup.path()), None);
        fs::write(cgroup.path().join("cgroup.procs"), "17\n4\n").unwrap();
        assert_eq!(process_of(cgroup.path()), Some(17));
    }
}

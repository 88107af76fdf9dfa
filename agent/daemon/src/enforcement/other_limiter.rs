//! Other products that limit the memory of containers. `HAMi` and those with its library put it into containers, and two such libraries in one
//! container break each other; kai-gpu-fractioning sets the driver's limits. So ours are off on a node that has another product.

use std::{fs, path::Path};

use crate::device::OtherLimiter;

/// List of libraries that the dynamic loader loads into every program.
const PRELOADS: &str = "/etc/ld.so.preload";
/// Folder from which the device plugin of `HAMi` mounts its library into containers; KAI's resource isolator and Volcano's vGPU plugin have the same
/// library, HAMi-core.
const FOLDER: &str = "/usr/local/vgpu";
/// Start of the file names of that library.
const LIBRARY: &str = "libvgpu";

/// Searches the host, whose root is mounted here.
pub fn find(host_root: &Path) -> Option<OtherLimiter> {
    let preloads = fs::read_to_string(host_root.join(PRELOADS.trim_start_matches('/'))).unwrap_or_default();
    let entries = fs::read_dir(host_root.join(FOLDER.trim_start_matches('/'))).into_iter().flatten().flatten();
    let files: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    decide(&preloads, files.iter().map(String::as_str))
}

/// What shows another product: its library among those that are loaded into every program, or among the files of its folder.
fn decide<'f>(preloads: &str, mut files: impl Iterator<Item = &'f str>) -> Option<OtherLimiter> {
    let separated = |c: char| c.is_whitespace() || c == ':';
    let lines = preloads.lines().filter_map(|line| line.split('#').next());
    let mut loaded = lines.flat_map(|line| line.split(separated)).filter_map(|path| path.rsplit('/').next());
    if loaded.any(|name| name.starts_with(LIBRARY)) {
        return Some(OtherLimiter::Preload);
    }
    files.any(|name| name.starts_with(LIBRARY)).then_some(OtherLimiter::Folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_of_another_product_is_found_by_preload_and_by_folder() {
        for (preloads, files, found) in [
            ("", vec![], None),
            ("/usr/lib/libjemalloc.so\n", vec!["ld.so.preload"], None),
            ("# /usr/local/vgpu/libvgpu.so\n", vec![], None),
            ("/usr/local/vgpu/libvgpu.so\n", vec![], Some(OtherLimiter::Preload)),
            ("/usr/lib/a.so:/opt/hami/libvgpu.so.v2.6", vec![], Some(OtherLimiter::Preload)),
            ("", vec!["ld.so.preload", "libvgpu.so.v2.6.1"], Some(OtherLimiter::Folder)),
        ] {
            assert_eq!(decide(preloads, files.into_iter()), found, "{preloads}");
        }
    }

    #[test]
    fn host_is_searched_below_its_mounted_root() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(find(root.path()), None);
        fs::create_dir_all(root.path().join("usr/local/vgpu")).unwrap();
        fs::write(root.path().join("usr/local/vgpu/libvgpu.so"), "").unwrap();
        assert_eq!(find(root.path()), Some(OtherLimiter::Folder));
        fs::create_dir_all(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/ld.so.preload"), "/usr/local/vgpu/libvgpu.so\n").unwrap();
        assert_eq!(find(root.path()), Some(OtherLimiter::Preload));
    }
}

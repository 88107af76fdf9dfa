//! Folders of the host that are mounted into the agent's container. After a folder is removed and created again, the agent still has the removed one:
//! no other process sees what it writes there. Only a new container gets the new folder.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    time::Duration,
};

/// Interval of the comparisons, which are two calls of the kernel for each folder.
const POLL: Duration = Duration::from_secs(1);
/// Most links that a path of the host leads over, as Linux follows.
const MAX_LINKS: u32 = 40;

/// What identifies a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Folder {
    device: u64,
    inode: u64,
    /// Zero once it is removed.
    links: u64,
}

impl Folder {
    fn at(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        Some(Self { device: meta.dev(), inode: meta.ino(), links: meta.nlink() })
    }

    fn is(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Waits until one of these folders, at the same path on the host and in the container, is no longer the host's; returns why, for a message.
pub async fn replaced(folders: &[PathBuf], host_root: &Path) -> String {
    let seen = |path: &PathBuf| Some((path.clone(), Folder::at(path)?, host_folder(host_root, path)));
    let first: Vec<_> = folders.iter().filter_map(seen).collect();
    loop {
        for (path, mounted, host) in &first {
            if let Some(reason) = change((mounted, host.as_ref()), Folder::at(path), host_folder(host_root, path)) {
                return format!(
                    "folder {} of the host was {reason}: restarting, which mounts the new one",
                    path.display()
                );
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// What has happened to a folder since it was first seen, in the container and on the host.
fn change(
    (mounted, host): (&Folder, Option<&Folder>),
    mounted_now: Option<Folder>,
    host_now: Option<Folder>,
) -> Option<&'static str> {
    if mounted_now?.links == 0 {
        return Some("removed");
    }
    // elsewhere the host's path is not what is mounted, such as in a test
    let was_mounted = host.is_some_and(|host| host.is(mounted));
    host_now.filter(|now| was_mounted && !now.is(mounted)).map(|_| "replaced")
}

fn host_folder(root: &Path, path: &Path) -> Option<Folder> {
    Folder::at(&resolve(root, path)?)
}

/// The path below `root` that a path of the host leads to. The kernel would resolve its absolute links, such as `/var/run`, in the container.
fn resolve(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut links = 0;
    let mut done = PathBuf::new();
    let mut rest: Vec<PathBuf> = parts(path);
    while let Some(part) = rest.pop() {
        if part == Path::new("..") {
            done.pop();
            continue;
        }
        let next = done.join(&part);
        match fs::read_link(root.join(&next)) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return None;
                }
                if target.is_absolute() {
                    done = PathBuf::new();
                }
                rest.extend(parts(&target));
            }
            Err(_) => done = next,
        }
    }
    Some(root.join(done))
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let plain = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(plain).map(|part| PathBuf::from(part.as_os_str())).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsRawFd, os::unix::fs::symlink};

    use super::*;

    fn folder(inode: u64, links: u64) -> Folder {
        Folder { device: 1, inode, links }
    }

    #[test]
    fn folder_is_replaced_once_it_is_removed_or_another_one_is_on_the_host() {
        let (first, other) = (folder(1, 2), folder(2, 2));
        let since =
            |host: Option<&Folder>, mounted: Option<Folder>, now: Option<Folder>| change((&first, host), mounted, now);
        let same = Some(&first);
        assert_eq!(since(same, Some(first), Some(first)), None);
        assert_eq!(since(same, Some(folder(1, 3)), Some(folder(1, 3))), None, "a folder in it");
        assert_eq!(since(same, Some(folder(1, 0)), None), Some("removed"));
        assert_eq!(since(same, Some(folder(1, 0)), Some(other)), Some("removed"), "and made again");
        assert_eq!(since(same, Some(first), Some(other)), Some("replaced"), "moved away");
        assert_eq!(since(same, Some(first), None), None, "the host's root does not answer");
        assert_eq!(since(None, Some(first), Some(other)), None, "never the host's");
        assert_eq!(since(Some(&other), Some(first), Some(other)), None, "another one from the beginning");
    }

    #[test]
    fn removed_folder_has_no_links_where_it_is_still_open() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cdi");
        fs::create_dir(&path).unwrap();
        // as a mount does, an open file keeps it
        let open = File::open(&path).unwrap();
        let mounted = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        let first = Folder::at(&mounted).unwrap();
        let now = || change((&first, Some(&first)), Folder::at(&mounted), host_folder(root.path(), Path::new("/cdi")));
        assert_eq!(now(), None);
        let moved = root.path().join("cdi.old");
        fs::rename(&path, &moved).unwrap();
        assert_eq!(now(), None);
        fs::create_dir(&path).unwrap();
        assert_eq!(now(), Some("replaced"));
        fs::remove_dir(&moved).unwrap();
        assert_eq!(now(), Some("removed"));
    }

    #[test]
    fn links_of_the_host_are_resolved_below_its_root() {
        let root = tempfile::tempdir().unwrap();
        let host = root.path();
        fs::create_dir_all(host.join("run/cdi")).unwrap();
        fs::create_dir_all(host.join("var/lib")).unwrap();
        symlink("/run", host.join("var/run")).unwrap();
        symlink("../var/run", host.join("var/relative")).unwrap();
        symlink("circle", host.join("circle")).unwrap();
        for path in ["/var/run/cdi", "/run/cdi", "/var/relative/cdi", "/var/lib/../run/cdi"] {
            assert_eq!(resolve(host, Path::new(path)), Some(host.join("run/cdi")), "{path}");
        }
        assert_eq!(resolve(host, Path::new("/circle/cdi")), None);
        assert!(host_folder(host, Path::new("/run/none")).is_none());
    }

    #[tokio::test]
    async fn agent_is_told_which_folder_was_removed() {
        let root = tempfile::tempdir().unwrap();
        let (kept, removed) = (root.path().join("kept"), root.path().join("removed"));
        for path in [&kept, &removed] {
            fs::create_dir(path).unwrap();
        }
        let open = File::open(&removed).unwrap();
        let mounted = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        let folders = [kept, mounted, root.path().join("none")];
        let waits = replaced(&folders, Path::new("/nowhere"));
        fs::remove_dir(&removed).unwrap();
        let message = waits.await;
        assert!(message.contains("/proc/self/fd/") && message.contains("was removed"), "{message}");
    }
}

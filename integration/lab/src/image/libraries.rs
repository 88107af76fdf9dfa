//! The shared libraries that a program needs, as the host's loader finds them.

use crate::error::Result;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// Reads what `ldd` prints: the absolute paths in it.
pub fn parse(ldd: &str) -> BTreeSet<PathBuf> {
    let path = |line: &str| {
        let line = line.split_once("=>").map_or(line, |(_, path)| path);
        let word = line.split_whitespace().next()?;
        word.starts_with('/').then(|| PathBuf::from(word))
    };
    ldd.lines().filter_map(path).collect()
}

/// The libraries of a program, the loader among them; none for a static one.
pub async fn needed(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = crate::command::output(Command::new("ldd").arg(program)).await?;
    // ldd fails for static programs
    Ok(if output.status == Some(0) { parse(&output.stdout) } else { BTreeSet::new() })
}

/// Libraries that a driver's library needs when it is opened at run time.
pub fn of_drivers(needed: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let libc = needed.iter().find(|path| path.file_name().is_some_and(|name| name == "libc.so.6"));
    let Some(folder) = libc.and_then(|libc| libc.parent()) else { return BTreeSet::new() };
    let names = ["libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"];
    names.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_include_loader_and_exclude_vdso() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffe)
\tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f)
";
        let found: Vec<_> = parse(printed).into_iter().collect();
        let want =
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(found, want.map(PathBuf::from));
    }
}

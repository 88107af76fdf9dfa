//! The libraries as they are shipped (`integration/tools/tenant-libraries`): what they need of a container's image, what they export, and that
//! every build has the same bytes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::built;

/// Newest version of glibc's symbols: that of RHEL 7 and of the manylinux2014 images.
const GLIBC: (u32, u32) = (2, 17);
/// Libraries of glibc, which each image has that a driver's library runs in.
const OF_GLIBC: [&str; 6] =
    ["libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];

/// A shipped library: its file, the name under which programs find it, the beginning of the functions that it replaces, and their table.
const LIBRARIES: [(&str, &str, &str, &str); 2] = [
    ("libgputenancy_cuda.so", "libcuda.so.1", "cu", include_str!("../src/table.rs")),
    ("libgputenancy_nvml_view.so", "libnvidia-ml.so.1", "nvml", include_str!("../../nvml-view/src/table.rs")),
];

/// The folders of two builds of the same sources, and what keeps them.
fn build() -> (tempfile::TempDir, [PathBuf; 2]) {
    let zig = built::checkout().join("target/toolset/zig");
    assert!(zig.exists(), "{} is missing: `make zig` fetches it", zig.display());
    let work = tempfile::tempdir().unwrap();
    let first = work.path().join("first");
    copy_sources(&built::checkout(), &first);
    // paths of another length, and cargo's folder at another path
    let second = work.path().join("another/folder/for/the/second");
    fs::create_dir_all(second.parent().unwrap()).unwrap();
    assert!(Command::new("cp").arg("-a").args([&first, &second]).status().unwrap().success());
    let cargo_home = work.path().join("cargo-home");
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cargo"));
    std::os::unix::fs::symlink(&home, &cargo_home).unwrap();
    let folders = [(first, home), (second, cargo_home)].map(|(checkout, cargo_home)| {
        let mut script = Command::new(checkout.join("integration/tools/tenant-libraries"));
        script.env("GPUTENANCY_ZIG", &zig).env("CARGO_HOME", cargo_home).env_remove("CARGO_TARGET_DIR");
        assert!(script.status().unwrap().success(), "{script:?}");
        checkout.join("target/tenant-libraries").join(std::env::consts::ARCH)
    });
    (work, folders)
}

/// Copies the sources of a checkout: what git has, and what it would add.
fn copy_sources(checkout: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    let script = "git ls-files -z --cached --others --exclude-standard | xargs -0 sh -c \
        'for file; do [ ! -e \"$file\" ] || printf \"%s\\0\" \"$file\"; done' files | xargs -0 cp --parents -t \"$TO\"";
    let copied = Command::new("sh").args(["-c", script]).current_dir(checkout).env("TO", to).status().unwrap();
    assert!(copied.success());
}

/// Lines that `readelf` prints for a library.
fn read(options: &[&str], library: &Path) -> Vec<String> {
    let output = Command::new("readelf").arg("--wide").args(options).arg(library).output().unwrap();
    assert!(output.status.success(), "readelf {}", library.display());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Names in brackets in the lines of the dynamic section with this tag.
fn dynamic(library: &Path, tag: &str) -> Vec<String> {
    let lines = read(&["--dynamic"], library).into_iter().filter(|line| line.contains(tag));
    lines.map(|line| line.split(['[', ']']).nth(1).unwrap_or_default().to_owned()).collect()
}

/// One test, because it builds for half a minute.
#[test]
fn shipped_libraries_fit_old_images_export_their_tables_and_are_reproducible() {
    let (_work, [first, second]) = build();
    need_glibc_2_17_and_the_driver_and_nothing_else_of_an_image(&first);
    export_their_tables_and_nothing_else(&first);
    have_the_same_bytes(&first, &second);
}

fn need_glibc_2_17_and_the_driver_and_nothing_else_of_an_image(folder: &Path) {
    for (file, soname, ..) in LIBRARIES {
        let library = folder.join(file);
        let symbols = read(&["--dyn-syms"], &library);
        let versions = symbols.iter().filter_map(|line| {
            let version = line.split("GLIBC_").nth(1)?.split([' ', ')']).next()?;
            let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap());
            Some((numbers.next()?, numbers.next()?))
        });
        let newest = versions.max().expect("it uses glibc");
        assert!(newest <= GLIBC, "{file} needs glibc {newest:?}");
        let driver = format!("/run/gputenancy/driver/{soname}");
        let needed = dynamic(&library, "(NEEDED)");
        let others: Vec<_> = needed.iter().filter(|name| !OF_GLIBC.contains(&name.as_str())).collect();
        assert_eq!(others, [&driver], "{file}");
        assert_eq!(dynamic(&library, "(SONAME)"), [soname], "{file}");
        assert!(dynamic(&library, "PATH)").is_empty(), "{file} has a path for libraries");
    }
}

fn export_their_tables_and_nothing_else(folder: &Path) {
    for (file, _, prefix, table) in LIBRARIES {
        let symbols = read(&["--dyn-syms"], &folder.join(file));
        let exported = symbols.iter().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // number, value, size, kind, binding, visibility, section, name
            let (section, name) = (words.get(6)?, words.get(7)?);
            (*section != "UND" && *section != "Ndx" && words.get(4) != Some(&"LOCAL")).then(|| (*name).to_owned())
        });
        let start = format!("    fn {prefix}");
        let declared = table.lines().filter_map(|line| line.strip_prefix(&start)?.split_once('('));
        let declared: BTreeSet<String> = declared.map(|(name, _)| format!("{prefix}{name}")).collect();
        assert!(!declared.is_empty(), "{file}");
        assert_eq!(exported.collect::<BTreeSet<_>>(), declared, "{file}");
    }
}

fn have_the_same_bytes(first: &Path, second: &Path) {
    for (file, ..) in LIBRARIES {
        let [first, second] = [first, second].map(|folder| fs::read(folder.join(file)).unwrap());
        assert!(first == second, "{file} has other bytes in another folder");
    }
}

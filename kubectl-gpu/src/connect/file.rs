//! The kubeconfig file: readable by its owner alone, and removed at the end. It has a token, and no other file is overwritten.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf, absolute},
};

/// First words of a file of this command.
const MARK: &str = "# written by kubectl gpu connect";

/// A file that this command has written; it is removed with this value.
#[derive(Debug)]
pub(super) struct Written {
    path: PathBuf,
    text: String,
}

impl Written {
    /// Its absolute path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // another call for the same file may have written it since
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            // there is nothing more to do about a file that cannot be removed
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Writes the kubeconfig. A file of an earlier call, which may have been killed, is replaced.
pub(super) fn write(path: &Path, tenant: &str, kubeconfig: &str) -> Result<Written, String> {
    let failed = |what: &str, error: &std::io::Error| format!("{what} {}: {error}", path.display());
    match fs::read(path) {
        Ok(old) if old.starts_with(MARK.as_bytes()) => fs::remove_file(path).map_err(|e| failed("removing", &e))?,
        Ok(_) => return Err(foreign(path)),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed("reading", &error)),
    }
    let text = format!("{MARK} {tenant}, works while that command runs\n{kubeconfig}");
    // a file that has appeared meanwhile, or a link to nowhere, is not this command's
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(foreign(path)),
        opened => opened.map_err(|e| failed("writing", &e))?,
    };
    let written = Written { path: absolute(path).map_err(|e| failed("writing", &e))?, text };
    file.write_all(written.text.as_bytes()).map_err(|e| failed("writing", &e))?;
    Ok(written)
}

fn foreign(path: &Path) -> String {
    format!(
        "{} exists and was not written by kubectl gpu connect: name another file with --kubeconfig-out, or remove it",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn file_is_private_and_goes_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("team-a.kubeconfig");
        let written = write(&path, "team-a", "apiVersion: v1\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(written.path()).unwrap();
        assert_eq!(text, "# written by kubectl gpu connect team-a, works while that command runs\napiVersion: v1\n");
        drop(written);
        assert!(!path.exists());
    }

    #[test]
    fn file_of_an_earlier_call_is_replaced_and_a_foreign_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let first = write(&path, "team-a", "first").unwrap();
        let second = write(&path, "team-a", "second").unwrap();
        drop(first);
        assert!(fs::read_to_string(&path).unwrap().ends_with("second"), "the first call removes its own text only");
        drop(second);

        fs::write(&path, "mine").unwrap();
        let error = write(&path, "team-a", "x").unwrap_err();
        assert!(error.ends_with("name another file with --kubeconfig-out, or remove it"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");

        let link = folder.path().join("link");
        symlink(folder.path().join("nowhere"), &link).unwrap();
        assert!(write(&link, "team-a", "x").unwrap_err().contains("was not written by"));
        assert!(!folder.path().join("nowhere").exists());
    }
}

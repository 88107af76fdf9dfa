//! The kubeconfig file: readable by its owner alone, and removed at the end. It has a token, and no other file is overwritten.

use std::{
    fs::{self, OpenOptions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf, absolute},
};

use crate::output::cause;

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

/// Why the kubeconfig is not written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be used.
    #[error("{action} {}: {}", .path.display(), cause(source))]
    Io {
        /// What was done with it.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file has another origin.
    #[error(
        "{} exists and was not written by kubectl gpu connect: name another file with --kubeconfig-out, or remove it", .0.display()
    )]
    Foreign(PathBuf),
}

/// Writes the kubeconfig. A file of an earlier call, which may have been killed, is replaced.
pub(super) fn write(path: &Path, tenant: &str, kubeconfig: &str) -> Result<Written, FileError> {
    let failed = |action| move |source| FileError::Io { action, path: path.to_owned(), source };
    let foreign = || FileError::Foreign(path.to_owned());
    match fs::read(path) {
        Ok(old) if old.starts_with(MARK.as_bytes()) => fs::remove_file(path).map_err(failed("removing"))?,
        Ok(_) => return Err(foreign()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed("reading")(error)),
    }
    let text = format!("{MARK} {tenant}, works while that command runs\n{kubeconfig}");
    // a file that has appeared meanwhile, or a link to nowhere, is not this command's
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(foreign()),
        opened => opened.map_err(failed("writing"))?,
    };
    let written = Written { path: absolute(path).map_err(failed("writing"))?, text };
    file.write_all(written.text.as_bytes()).map_err(failed("writing"))?;
    Ok(written)
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
        let error = write(&path, "team-a", "x").unwrap_err().to_string();
        assert!(error.ends_with("name another file with --kubeconfig-out, or remove it"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");

        let link = folder.path().join("link");
        symlink(folder.path().join("nowhere"), &link).unwrap();
        assert!(write(&link, "team-a", "x").unwrap_err().to_string().contains("was not written by"));
        assert!(!folder.path().join("nowhere").exists());
    }
}

//! Errors of credentials, without the command lines and variables of plugins: they may have secrets.

use kube::client::AuthError;

use crate::text::{chain, deepest, one_line};

/// Longest text of a plugin, in bytes.
const MOST_TEXT: usize = 300;

/// Why there are no credentials, with what to do.
pub fn sentence(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecRun { cmd, out } => {
            let text = one_line(&String::from_utf8_lossy(&out.stderr), MOST_TEXT);
            let text = if text.is_empty() { text } else { format!(": {text}") };
            format!(
                "the credential plugin {} of the kubeconfig failed ({}){text}; run it by hand, or log in again",
                program(cmd),
                out.status
            )
        }
        AuthError::AuthExecStart(error) => format!(
            "a credential plugin of the kubeconfig could not be started: {}; install the program that users[].user.exec.command names",
            deepest(error)
        ),
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed | AuthError::ParseTokenKey(_) => {
            "the answer of a credential plugin of the kubeconfig is no ExecCredential; run it by hand".to_owned()
        }
        // its text has the command line
        AuthError::AuthExec(_) => "a credential plugin of the kubeconfig failed; run it by hand".to_owned(),
        error => chain(error),
    }
}

/// The program of a command as the standard library shows it: `NAME="value" "program" "argument"`. Without quotes its first word.
fn program(command: &str) -> String {
    let (mut word, mut quoted, mut escaped) = (String::new(), false, false);
    for c in command.chars().chain([' ']) {
        match c {
            _ if escaped => {
                word.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted => {
                if !word.is_empty() && !word.contains('=') {
                    return one_line(&word, MOST_TEXT);
                }
                word.clear();
            }
            c => word.push(c),
        }
    }
    "without a name".to_owned()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::Output};

    use super::*;

    fn failed(cmd: &str, stderr: &str) -> AuthError {
        let status = std::process::ExitStatus::from_raw(255 << 8);
        AuthError::AuthExecRun {
            cmd: cmd.into(),
            out: Box::new(Output { status, stdout: b"secret".to_vec(), stderr: stderr.as_bytes().to_vec() }),
        }
    }

    #[test]
    fn failed_plugin_is_named_with_its_status_and_without_its_variables() {
        let command = r#"AWS_SECRET="a \"quoted\" secret" PROFILE="x" "/usr/bin/aws" "eks" "get-token""#;
        let expected = "the credential plugin /usr/bin/aws of the kubeconfig failed (exit status: 255): The SSO session has expired.; run it by hand, or log in again";
        assert_eq!(sentence(&failed(command, "\nThe SSO session\nhas expired.\n")), expected);
        let inherited = sentence(&failed(command, ""));
        assert!(inherited.contains("failed (exit status: 255); run it by hand"), "{inherited}");
    }

    #[test]
    fn no_text_of_a_plugin_has_a_secret() {
        for error in [
            failed(r#"A="secret""#, ""),
            failed(r#"A="secret" "aws" "--key=secret""#, ""),
            AuthError::AuthExec("Executing \"secret\" failed: Os { code: 2 }".into()),
            AuthError::AuthExecStart(std::io::Error::from_raw_os_error(2)),
        ] {
            let text = sentence(&error);
            assert!(!text.contains("secret") && !text.contains('{'), "{text}");
        }
    }
}

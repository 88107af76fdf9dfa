//! Control protocol between host and lab: one line of JSON in each direction on a Unix socket.

use crate::error::{During, Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

/// A request to the lab's root process or to a node's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Status.
    Status,
    /// SIGKILL to everything on a node.
    PowerOff(String),
    /// Starts a node that is off.
    PowerOn(String),
    /// Pulls a node's network cable.
    Cut(String),
    /// Plugs it in again.
    Restore(String),
    /// Stops a component and leaves it down.
    Stop(String),
    /// Starts a stopped component.
    Start(String),
    /// Kills a component; it is started again.
    Kill(String),
    /// Starts kwok.
    Kwok,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Done.
    Done,
    /// Refused, with the reason.
    Refused(String),
    /// The answer to [`Request::Status`].
    Status(Status),
}

/// Status of the lab's root or of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Components and their processes, as numbered where they run.
    pub components: BTreeMap<String, Option<i32>>,
    /// Nodes (of the lab's root only).
    pub nodes: BTreeMap<String, NodeStatus>,
    /// A node's components are all started (of nodes only).
    pub booted: bool,
}

/// A node as the lab's root sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its first process, as numbered in the lab; none when it is off.
    pub pid: Option<i32>,
    /// Its network cable is pulled.
    pub cut: bool,
}

/// Serves requests until the process ends.
pub async fn serve<F, Answering>(socket: &Path, answer: F) -> Result<()>
where
    F: Fn(Request) -> Answering + Clone + Send + 'static,
    Answering: Future<Output = Result<Answer>> + Send,
{
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).during(|| format!("listening on {}", socket.display()))?;
    loop {
        let (stream, _) = listener.accept().await.during(|| format!("accepting on {}", socket.display()))?;
        let answer = answer.clone();
        tokio::spawn(async move {
            let (read, mut write) = stream.into_split();
            let mut lines = BufReader::new(read).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let reply = match serde_json::from_str(&line) {
                    Ok(request) => answer(request).await.unwrap_or_else(|error| Answer::Refused(error.to_string())),
                    Err(error) => Answer::Refused(format!("not a request: {error}")),
                };
                let Ok(mut text) = serde_json::to_vec(&reply) else { return };
                text.push(b'\n');
                if write.write_all(&text).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Sends one request and waits for its answer.
pub async fn ask(lab: &str, socket: &Path, request: &Request) -> Result<Answer> {
    let during = || format!("sending {request:?} to lab {lab}");
    let mut stream = UnixStream::connect(socket).await.during(during)?;
    let mut text = serde_json::to_vec(request).during(during)?;
    text.push(b'\n');
    stream.write_all(&text).await.during(during)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await.during(during)?;
    match serde_json::from_str(&line) {
        Ok(Answer::Refused(message)) => Err(Error::Refused { lab: lab.to_owned(), message }),
        Ok(answer) => Ok(answer),
        Err(_) => Err(Error::Refused { lab: lab.to_owned(), message: format!("ended during {request:?}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn control_returns_answer_and_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let at = socket.clone();
        tokio::spawn(async move {
            serve(&at, |request| async move {
                match request {
                    Request::Status => Ok(Answer::Done),
                    _ => Err(Error::Missing("no such node".to_owned())),
                }
            })
            .await
        });
        while !socket.exists() {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask("l", &socket, &Request::Status).await.unwrap(), Answer::Done);
        let refused = ask("l", &socket, &Request::PowerOff("x".to_owned())).await.unwrap_err();
        assert_eq!(refused.to_string(), "lab l: no such node");
    }
}

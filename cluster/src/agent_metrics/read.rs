//! Reads `/metrics` over a connection that the caller opens: to a pod's address, or through a port that the API server forwards.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Why the answer is none.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The connection ended.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The connection ended before an answer.
    #[error("it closes the connection without an answer")]
    Closed,
    /// The status of the answer is not 200.
    #[error("it answers: {0}")]
    Status(String),
    /// There is more than the caller takes.
    #[error("its answer has more than {0} bytes")]
    TooLong(u64),
    /// The server ended while it wrote: the last number may be half a number.
    #[error("its answer ends too early")]
    Short,
}

/// The text of `/metrics`, of at most so many bytes with its head.
pub async fn read(mut connection: impl AsyncRead + AsyncWrite + Unpin, most: u64) -> Result<String, ReadError> {
    // with version 1.0 the answer has no chunks, and ends with the connection
    connection.write_all(b"GET /metrics HTTP/1.0\r\nHost: agent\r\n\r\n").await?;
    let mut answer = Vec::new();
    let length = connection.take(most + 1).read_to_end(&mut answer).await?;
    if u64::try_from(length).is_ok_and(|length| length > most) {
        return Err(ReadError::TooLong(most));
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default();
    if status.trim().is_empty() {
        return Err(ReadError::Closed);
    }
    if status.split_whitespace().nth(1) != Some("200") {
        return Err(ReadError::Status(status.chars().take(80).collect()));
    }
    let length =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    match length.and_then(|(_, length)| length.trim().parse::<usize>().ok()) {
        Some(length) if length > body.len() => Err(ReadError::Short),
        _ => Ok(body.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answered(answer: &'static [u8]) -> Result<String, ReadError> {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let server = async move {
            let mut request = [0; 64];
            let length = theirs.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"GET /metrics HTTP/1.0\r\n"));
            theirs.write_all(answer).await.unwrap();
        };
        tokio::join!(read(ours, 100), server).0
    }

    #[tokio::test]
    async fn body_of_an_answer_with_status_200_is_the_text() {
        assert_eq!(answered(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\nx 1\n").await.unwrap(), "x 1\n");
        assert_eq!(answered(b"HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\nx 1\n").await.unwrap(), "x 1\n");
        let error = answered(b"HTTP/1.0 503 Service Unavailable\r\n\r\n").await.unwrap_err();
        assert_eq!(error.to_string(), "it answers: HTTP/1.0 503 Service Unavailable");
    }

    #[tokio::test]
    async fn connection_that_ends_without_an_answer_is_named() {
        for empty in [b"".as_slice(), b"\r\n"] {
            let error = answered(empty).await.unwrap_err();
            assert_eq!(error.to_string(), "it closes the connection without an answer");
        }
    }

    #[tokio::test]
    async fn answer_that_is_cut_or_too_long_is_an_error_and_no_text() {
        let cut = answered(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nx 1").await;
        assert!(matches!(cut, Err(ReadError::Short)), "{cut:?}");
        let long = answered(b"HTTP/1.0 200 OK\r\n\r\n0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789").await;
        assert!(matches!(long, Err(ReadError::TooLong(100))), "{long:?}");
    }
}

//! A client of the simulated Multi-Process Service.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Name of the daemon's socket in the pipe directory.
pub const CONTROL: &str = "control";
/// First line of a client.
pub const CLIENT: &str = "client";
/// NVML's `NVML_COMPUTEMODE_EXCLUSIVE_PROCESS`.
pub const EXCLUSIVE_PROCESS: u32 = 3;

/// First word of the daemon's answer to a client; its default percentage of threads follows, and its default limit of memory if there is one.
pub const CONNECTED: &str = "connected";
/// Variable with the percentage of threads of a client.
pub const THREADS_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// A connection to the server: the GPU is usable as long as it lasts.
pub struct Connection {
    stream: UnixStream,
    /// Default percentage of threads.
    threads: u32,
    /// Default limit of memory, in bytes.
    memory: Option<u64>,
}

impl Connection {
    /// Connects through the pipe directory.
    pub fn open(pipes: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(pipes.join(CONTROL))?;
        writeln!(stream, "{CLIENT}")?;
        let mut answer = String::new();
        BufReader::new(stream.try_clone()?).read_line(&mut answer)?;
        let mut defaults =
            answer.trim().strip_prefix(CONNECTED).ok_or(io::ErrorKind::ConnectionRefused)?.split_whitespace();
        let threads = defaults.next().and_then(percentage).unwrap_or(100);
        Ok(Self { stream, threads, memory: defaults.next().and_then(bytes) })
    }

    /// Percentage of the GPU's threads that a client may use whose variable has this value: a client asks for no more than the default of its daemon.
    pub fn threads(&self, variable: Option<&str>) -> u32 {
        variable.and_then(percentage).unwrap_or(100).min(self.threads)
    }

    /// Bytes that a client may allocate whose variable has this value: no more than the default of its daemon, as an H200 with driver 580 was found to do.
    pub fn memory(&self, variable: Option<&str>) -> Option<u64> {
        variable.and_then(memory_limit).into_iter().chain(self.memory).min()
    }

    /// Returns when the server has ended.
    pub fn wait_for_end(mut self) {
        let _ = self.stream.read(&mut [0; 1]);
    }
}

/// A percentage such as `25` or `12.5`, rounded up.
fn percentage(text: &str) -> Option<u32> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let more = u32::from(fraction.bytes().any(|digit| digit != b'0'));
    Some((whole.parse::<u32>().ok()? + more).clamp(1, 100))
}

/// Bytes that `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` such as `0=1024M,1=2G` permits on device 0.
pub fn memory_limit(variable: &str) -> Option<u64> {
    variable.split(',').find_map(|part| part.trim().strip_prefix("0=")).and_then(bytes)
}

/// Bytes of an amount such as `1024M`.
fn bytes(amount: &str) -> Option<u64> {
    let (number, shift) = match amount.strip_suffix('M') {
        Some(number) => (number, 20),
        None => (amount.strip_suffix('G')?, 30),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_limit_of_the_first_device_is_read() {
        assert_eq!(memory_limit("0=1024M"), Some(1 << 30));
        assert_eq!(memory_limit("1=1G, 0=2G"), Some(2 << 30));
        assert_eq!(memory_limit("1=1G"), None);
    }

    #[test]
    fn percentage_of_threads_is_between_1_and_100() {
        assert_eq!(
            ["25", " 100.0", "12.5", "0", "400", ""].map(percentage),
            [25, 100, 13, 1, 100, 0].map(|of| (of > 0).then_some(of))
        );
    }
}

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

/// A connection to the server: the GPU is usable as long as it lasts.
pub struct Connection(UnixStream);

impl Connection {
    /// Connects through the pipe directory.
    pub fn open(pipes: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(pipes.join(CONTROL))?;
        writeln!(stream, "{CLIENT}")?;
        let mut answer = String::new();
        BufReader::new(stream.try_clone()?).read_line(&mut answer)?;
        if answer.trim() == "connected" { Ok(Self(stream)) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }

    /// Returns when the server has ended.
    pub fn wait_for_end(mut self) {
        let _ = self.0.read(&mut [0; 1]);
    }
}

/// Bytes that `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` such as `0=1024M,1=2G` permits on device 0.
pub fn memory_limit(variable: &str) -> Option<u64> {
    let limit = variable.split(',').find_map(|part| part.trim().strip_prefix("0="))?;
    let (number, shift) = match limit.strip_suffix('M') {
        Some(number) => (number, 20),
        None => (limit.strip_suffix('G')?, 30),
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
}

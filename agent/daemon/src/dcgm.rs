//! Reads NVIDIA's dcgm-exporter of the node: a source for what NVML does not measure, such as utilization of MIG instances before Hopper.

use std::{collections::BTreeMap, time::Duration};

use gputenancy_agent_core::usage::reading::Performance;
use gputenancy_cluster::agent_metrics::{self, ReadError, sample};
use tokio::net::TcpStream;

/// Most bytes of its answer: with all fields of 8 GPUs × 7 instances it has about 100,000.
const MOST: u64 = 1 << 20;
/// It answers from memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// Performance by UUID of the GPU and GPU instance.
pub type Measured = BTreeMap<String, BTreeMap<Option<u32>, Performance>>;

/// Why nothing was read.
#[derive(Debug, thiserror::Error)]
enum DcgmError {
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Timeout,
}

/// The exporter.
#[derive(Debug)]
pub struct Dcgm {
    address: String,
    /// Whether the last read failed: the log has transitions only.
    failed: bool,
}

impl Dcgm {
    /// At `HOST:PORT`.
    pub fn new(address: String) -> Self {
        Self { address, failed: false }
    }

    /// What it measures now; nothing without one, or when it cannot be read.
    pub async fn read(exporter: Option<&mut Self>) -> Measured {
        let Some(exporter) = exporter else { return Measured::new() };
        let text = tokio::time::timeout(PATIENCE, text(&exporter.address)).await.unwrap_or(Err(DcgmError::Timeout));
        let failed = std::mem::replace(&mut exporter.failed, text.is_err());
        match text {
            Ok(text) => {
                if failed {
                    tracing::info!(address = exporter.address, "the dcgm-exporter can be read again");
                }
                measured(&text)
            }
            Err(error) => {
                if !failed {
                    tracing::warn!(%error, address = exporter.address, "the dcgm-exporter cannot be read");
                }
                Measured::new()
            }
        }
    }
}

async fn text(address: &str) -> Result<String, DcgmError> {
    let connection = TcpStream::connect(address).await?;
    Ok(agent_metrics::read(connection, MOST).await?)
}

/// The fields that GPM has as well, by the names of DCGM 3 and 4. The labels of an instance have its GPU's UUID.
fn measured(text: &str) -> Measured {
    let mut found = Measured::new();
    for sample in text.lines().filter(|line| line.starts_with("DCGM_FI_PROF_")).filter_map(sample) {
        let instance = match sample.label("GPU_I_ID") {
            "" => None,
            id => match id.parse() {
                Ok(id) => Some(id),
                Err(_) => continue,
            },
        };
        let value = Some(sample.value).filter(|value| (0.0..=1.0).contains(value));
        let place = found.entry(sample.label("UUID").to_owned()).or_default().entry(instance).or_default();
        match &*sample.name {
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE" => place.graphics = value,
            "DCGM_FI_PROF_SM_ACTIVE" => place.sm = value,
            "DCGM_FI_PROF_SM_OCCUPANCY" => place.occupancy = value,
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" => place.tensor = value,
            "DCGM_FI_PROF_DRAM_ACTIVE" => place.dram = value,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// Lines in the form of dcgm-exporter 4.5, of an A100 with an instance and of a whole one.
    const TEXT: &str = "\
# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active.
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu=\"0\",UUID=\"GPU-a\",pci_bus_id=\"00000000:07:00.0\",device=\"nvidia0\",modelName=\"NVIDIA A100-SXM4-80GB\",GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"9\",hostname=\"n\"} 0.400000
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu=\"1\",UUID=\"GPU-b\",pci_bus_id=\"00000000:0F:00.0\",device=\"nvidia1\",modelName=\"NVIDIA A100-SXM4-80GB\",hostname=\"n\"} 0.900000
DCGM_FI_PROF_DRAM_ACTIVE{gpu=\"1\",UUID=\"GPU-b\",hostname=\"n\"} 0.100000
DCGM_FI_PROF_SM_ACTIVE{gpu=\"1\",UUID=\"GPU-b\",hostname=\"n\"} 18446744073709551600
DCGM_FI_DEV_GPU_UTIL{gpu=\"1\",UUID=\"GPU-b\",hostname=\"n\"} 90
";

    #[test]
    fn instances_and_gpus_have_their_values_and_blank_ones_are_absent() {
        let found = measured(TEXT);
        assert_eq!(found["GPU-a"][&Some(9)].graphics, Some(0.4));
        let whole = found["GPU-b"][&None];
        assert_eq!((whole.graphics, whole.dram, whole.sm, whole.tensor), (Some(0.9), Some(0.1), None, None));
    }

    #[tokio::test]
    async fn exporter_that_does_not_answer_measures_nothing_until_it_does() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut exporter = Dcgm::new(address);
        let answers = async {
            let (connection, _) = listener.accept().await.unwrap();
            drop(connection);
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = [0; 64];
            assert!(connection.read(&mut request).await.unwrap() > 0);
            connection.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{TEXT}").as_bytes()).await.unwrap();
        };
        let reads = async {
            let none = Dcgm::read(Some(&mut exporter)).await;
            (none, Dcgm::read(Some(&mut exporter)).await)
        };
        let ((none, found), ()) = tokio::join!(reads, answers);
        assert!(none.is_empty() && found.len() == 2);
        assert!(Dcgm::read(None).await.is_empty());
    }
}

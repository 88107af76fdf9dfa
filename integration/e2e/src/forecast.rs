//! What the plan says before anything is touched: `gputenancy-operator plan` on the cluster's objects and a changed tenant.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde_json::json;
use tokio::process::Command;

use crate::{Error, Result, World, objects, product};

/// A GPU: its node and NVML's index.
pub type Gpu = (String, i32);

/// What a changed guarantee would lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// The layout of every GPU afterwards, in the words of [`objects::layouts`].
    pub layouts: BTreeMap<Gpu, Vec<String>>,
    /// GPUs that change.
    pub changes: BTreeSet<Gpu>,
    /// Pods that are evicted, as `namespace/name`, with the GPU and NVIDIA's profile of the device that each has.
    pub evicted: BTreeMap<String, (Gpu, String)>,
    /// Devices of each profile before and after.
    pub supply: BTreeMap<String, (i64, i64)>,
}

/// The plan for a tenant with this guarantee: what the program prints, and the command that prints it again.
pub async fn ask(world: &World, tenant: &str, profile: &str, count: i32) -> Result<(String, String)> {
    let folder = world.lab.folder();
    let (cluster, wanted) = (folder.join("cluster.yaml"), folder.join("wanted.yaml"));
    let kinds = "gpuprofiles,gpupools,gputenants,gpunodes,nodes";
    write(&cluster, &world.kubectl(&["get", kinds, "-o", "yaml"]).await?)?;
    // the API server says what the tenant would be, and leaves it as it is
    let patch =
        json!({"spec": {"gpus": objects::guarantees(&world.client, tenant, profile, count).await?}}).to_string();
    let change = ["patch", "gputenant", tenant, "--type=merge", "--dry-run=server", "-o", "yaml", "-p", &patch];
    write(&wanted, &world.kubectl(&change).await?)?;

    let program = product::root().join("target/debug/gputenancy-operator");
    let output = Command::new(&program).args(["plan", "-f"]).args([&cluster, &wanted]).output().await;
    let output = output.map_err(|source| Error::Io { what: format!("running {}", program.display()), source })?;
    if !output.status.success() {
        return Err(Error::Wrong(format!("no plan: {}", String::from_utf8_lossy(&output.stderr))));
    }
    let shown = |path: &PathBuf| path.strip_prefix(product::root()).unwrap_or(path).display().to_string();
    let command = format!("{} plan -f {} {}", shown(&program), shown(&cluster), shown(&wanted));
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), command))
}

fn write(path: &PathBuf, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|source| Error::Io { what: format!("writing {}", path.display()), source })
}

impl Forecast {
    /// Reads what the program printed.
    pub fn read(text: &str) -> Result<Self> {
        let mut forecast = Self::default();
        let mut at: Option<Gpu> = None;
        for line in text.lines() {
            if let Some(evicted) = line.strip_prefix("    evicts ") {
                let (Some(gpu), Some((pod, device))) = (&at, evicted.split_once(" from ")) else {
                    return Err(unreadable(line));
                };
                forecast.evicted.insert(pod.into(), (gpu.clone(), device.into()));
            } else if line.starts_with("    ") {
                // a sentence for people
            } else if let Some(gpu) = line.strip_prefix("  ") {
                at = Some(forecast.gpu(gpu).ok_or_else(|| unreadable(line))?);
            } else if let Some(profile) = line.strip_prefix("profile ") {
                let (name, before, after) = supply(profile).ok_or_else(|| unreadable(line))?;
                forecast.supply.insert(name, (before, after));
            }
        }
        Ok(forecast)
    }

    /// `gpu-1 GPU 0: keeps 3g.40gb@0 3g.40gb@4`
    fn gpu(&mut self, line: &str) -> Option<Gpu> {
        let (title, rest) = line.split_once(": ")?;
        let (node, index) = title.split_once(" GPU ")?;
        let gpu = (node.to_owned(), index.parse().ok()?);
        let layout = match rest.strip_prefix("changes to ") {
            Some(layout) => {
                self.changes.insert(gpu.clone());
                layout
            }
            None => rest.strip_prefix("keeps ")?,
        };
        let layout = match layout {
            "one whole GPU" => vec!["whole".to_owned()],
            "MIG on, nothing carved" => vec![],
            carved => carved
                .split(' ')
                .map(|i| i.split_once('@').map(|(profile, start)| format!("{start}:{profile}")))
                .collect::<Option<_>>()?,
        };
        self.layouts.insert(gpu.clone(), layout);
        Some(gpu)
    }
}

/// `mig-3g: 7 guaranteed, 2 before, 7 after`
fn supply(line: &str) -> Option<(String, i64, i64)> {
    let (name, numbers) = line.split_once(": ")?;
    let number = |word: &str| numbers.split(", ").find_map(|n| n.strip_suffix(word)?.parse().ok());
    Some((name.to_owned(), number(" before")?, number(" after")?))
}

fn unreadable(line: &str) -> Error {
    Error::Text { what: "the plan".into(), why: format!("this line is not understood: {line:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "pool p (stranded: 3 compute, 0 memory slices)
  n1 GPU 0: keeps one whole GPU
  n1 GPU 1: changes to 1g.10gb@0 3g.40gb@4
    evicts team-a/notebook from 1g.10gb
    n1 GPU 1: remove 1g.10gb at 4, because 1 of mig-3g are guaranteed and 0 exist; must move: team-a/notebook (has 1g.10gb at 4)
profile mig-3g: 1 guaranteed, 0 before, 1 after
";

    #[test]
    fn every_layout_eviction_and_amount_is_read() {
        let forecast = Forecast::read(TEXT).unwrap();
        let (first, second) = (("n1".to_owned(), 0), ("n1".to_owned(), 1));
        let layouts =
            [(first, vec!["whole".to_owned()]), (second.clone(), vec!["0:1g.10gb".into(), "4:3g.40gb".into()])];
        assert_eq!(forecast.layouts, layouts.into());
        assert_eq!(forecast.changes, [second.clone()].into());
        assert_eq!(forecast.evicted, [("team-a/notebook".to_owned(), (second, "1g.10gb".to_owned()))].into());
        assert_eq!(forecast.supply, [("mig-3g".to_owned(), (0, 1))].into());
    }

    #[test]
    fn a_line_of_another_shape_is_an_error_and_not_an_empty_forecast() {
        assert!(Forecast::read("  n1 GPU 0: is something else").is_err());
        assert!(Forecast::read("    evicts team-a/notebook from 1g.10gb").is_err());
        assert!(Forecast::read("profile mig-3g: many").is_err());
    }
}

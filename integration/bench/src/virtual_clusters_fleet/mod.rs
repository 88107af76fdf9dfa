//! Virtual clusters of many tenants, whose control planes are pods on nodes that kwok simulates: Ready, and without any process. What the
//! operator and the controller do is real, up to the connection, which no API server inside answers. Baselines of the same run: the same
//! tenants without a virtual cluster, and few with one.

mod control_planes;
mod figures;
mod phase;
mod programs;

use e2e::{Error, Result, World, objects::delete_everything, product};
use lab::place::Folders;

use control_planes::PROGRAM;
use phase::{Kind, Phase};
use programs::REQUESTS;

/// Virtual clusters of the smaller phase; fewer next to a small number.
const FEW: usize = 10;
/// Written by Kubernetes' quota controller only, which counts again every few minutes; the product has no right on it.
const QUOTAS: &str = "resourcequotas/status";

/// Is all built that the benchmark needs? The error has the remedy. The programs of vCluster do not run, and need not be built.
pub fn built() -> Result<()> {
    let missing = match control_planes::lacking()? {
        Some(file) => Some(file),
        None => Some(Folders::find()?.toolset.join("bin").join(PROGRAM)).filter(|file| !file.exists()),
    };
    let error = |file: std::path::PathBuf| {
        Error::Wrong(format!(
            "{} is missing: run `make tools peer-tools build` (the chart of vCluster, kwok)",
            file.display()
        ))
    };
    missing.map_or(Ok(()), |file| Err(error(file)))
}

/// Measures this many tenants without virtual clusters, a few with one, and as many as the former with one.
pub async fn measure(world: &World, tenants: usize) -> Result<()> {
    delete_everything(&world.client).await?;
    let mut phases = Vec::new();
    let outcome = measured(world, tenants, &mut phases).await;
    // also after a failure, the figures of earlier phases are worth printing
    figures::print(&phases);
    let cleaned = clean(world).await;
    outcome?;
    cleaned?;
    at_rest(&phases)
}

async fn measured(world: &World, tenants: usize, phases: &mut Vec<Phase>) -> Result<()> {
    control_planes::serve(world, tenants).await?;
    REQUESTS.count(world).await?;
    let few = FEW.min(tenants.div_ceil(2));
    for (kind, count) in [(Kind::Plain, tenants), (Kind::Virtual, few), (Kind::Virtual, tenants)] {
        phases.push(phase::run(world, kind, count).await?);
    }
    Ok(())
}

/// Removes all objects, the controller and the simulated nodes.
async fn clean(world: &World) -> Result<()> {
    let deleted = delete_everything(&world.client).await;
    let restored = product::install(&world.lab, &[]).await;
    let uncounted = REQUESTS.remove(world).await;
    // the last: kwok ends the pods of its nodes
    let removed = control_planes::remove_nodes(world).await;
    deleted.and(restored.map(drop)).and(uncounted).and(removed)
}

/// A controller that retries connections writes nothing.
fn at_rest(phases: &[Phase]) -> Result<()> {
    for phase in phases {
        let writes = phase.rest.writes.without(QUOTAS);
        if writes.sum() > 0.0 {
            let tenants = phase.tenants;
            return Err(Error::Wrong(format!(
                "virtual-clusters-fleet: writes at rest with {tenants} tenants: {writes}"
            )));
        }
    }
    Ok(())
}

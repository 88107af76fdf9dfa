//! `make bench`: measurements, each next to a baseline of the same run. Arguments select one, and its number of tenants
//! (of nodes: `fleet`): `bench onboarding 1000`.
#![allow(clippy::indexing_slicing, reason = "of JSON values, whose index answers null; and of pairs")]

mod admission;
mod change;
mod fleet;
mod load;
mod many;
mod onboarding;
mod peer;
mod plugin;
mod requests;
mod rest;
mod usage;
mod virtual_clusters;
mod virtual_clusters_fleet;
mod writes;

use std::process::ExitCode;

use e2e::{Result, World};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let only = std::env::args().nth(1);
    let count = std::env::args().nth(2).and_then(|n| n.parse().ok());
    let wanted = |name: &str| only.as_deref().is_none_or(|o| o == name);
    if wanted("peer") {
        peer::built()?;
    }
    if wanted("virtual-clusters") {
        virtual_clusters::built()?;
    }
    if wanted("virtual-clusters-fleet") {
        virtual_clusters_fleet::built()?;
    }
    let world = World::enter_realtime().await?;
    if wanted("rest") {
        rest::measure(&world, count.unwrap_or(0)).await?;
    }
    if wanted("change") {
        change::measure(&world).await?;
    }
    if wanted("onboarding") {
        onboarding::measure(&world, count.unwrap_or(200)).await?;
    }
    if wanted("admission") {
        admission::measure(&world, count.unwrap_or(1000)).await?;
    }
    if wanted("fleet") {
        fleet::measure(&world, count.unwrap_or(1000)).await?;
    }
    if wanted("plugin") {
        plugin::measure(&world).await?;
    }
    if wanted("usage") {
        usage::measure(&world).await?;
    }
    if wanted("virtual-clusters") {
        virtual_clusters::measure(&world, count.unwrap_or(10)).await?;
    }
    if wanted("virtual-clusters-fleet") {
        virtual_clusters_fleet::measure(&world, count.unwrap_or(200)).await?;
    }
    // last, because it uninstalls the product
    if wanted("peer") {
        peer::measure(&world, count.unwrap_or(200)).await?;
    }
    Ok(())
}

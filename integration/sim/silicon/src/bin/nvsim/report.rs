//! Report of GPUs, instances and clients.

use std::error::Error;

use clap::ValueEnum;
use serde_json::json;
use silicon::clients::Client;
use silicon::machine::Gpu;
use silicon::{Machine, Store};

/// How to print.
#[derive(Clone, Copy, Default, ValueEnum)]
pub enum Output {
    /// Text.
    #[default]
    Text,
    /// JSON.
    Json,
}

/// GPUs, instances and clients.
pub fn show(store: &Store, output: Output) -> Result<String, Box<dyn Error>> {
    let machine = store.read()?;
    let clients = store.clients()?.live()?;
    Ok(match output {
        Output::Json => format!("{}\n", serde_json::to_string_pretty(&json(&machine, &clients))?),
        Output::Text => text(&machine, &clients),
    })
}

fn json(machine: &Machine, clients: &[Client]) -> serde_json::Value {
    let client = |c: &Client| json!({"pid": c.pid, "name": c.name, "owner": c.owner, "memory": c.memory});
    let gpus: Vec<_> = machine
        .gpus
        .iter()
        .map(|gpu| {
            let devices = machine.mig_devices();
            let instances: Vec<_> = gpu
                .instances
                .iter()
                .map(|gi| {
                    let of_gi = devices.iter().filter(|d| d.gpu.index == gpu.index && d.gi.id == gi.id);
                    let mig: Vec<_> = of_gi
                        .map(|d| {
                            json!({
                                "uuid": d.uuid(),
                                "profile": d.profile_name(),
                                "ci": d.ci.id,
                                "index": d.ci.mig_index,
                                "clients": clients.iter().filter(|c| d.has(c)).map(client).collect::<Vec<_>>(),
                            })
                        })
                        .collect();
                    let profile = gpu.profile_of(gi).map(|p| p.name.clone()).unwrap_or_default();
                    json!({
                        "gi": gi.id, "profile": profile, "profileId": gi.profile,
                        "start": gi.placement.start, "size": gi.placement.size, "devices": mig,
                    })
                })
                .collect();
            let whole = clients.iter().filter(|c| c.gpu == gpu.index && c.instance.is_none());
            json!({
                "index": gpu.index, "uuid": gpu.uuid, "board": gpu.board.key, "name": gpu.board.name,
                "mig": gpu.mig, "migPending": gpu.mig_pending, "lost": gpu.lost,
                "instances": instances, "clients": whole.map(client).collect::<Vec<_>>(),
            })
        })
        .collect();
    let board = distinct(machine.gpus.iter().map(|gpu| gpu.board.key.as_str()));
    let name = distinct(machine.gpus.iter().map(|gpu| gpu.board.name.as_str()));
    json!({"node": machine.node, "board": board, "name": name, "gpus": gpus})
}

/// The only text of all GPUs, or the different ones in the order of the GPUs.
fn distinct<'t>(of_gpus: impl Iterator<Item = &'t str>) -> String {
    let mut all: Vec<&str> = of_gpus.collect();
    all.dedup();
    all.join("+")
}

fn text(machine: &Machine, clients: &[Client]) -> String {
    machine.gpus.iter().map(|gpu| gpu_text(machine, gpu, clients)).collect()
}

fn gpu_text(machine: &Machine, gpu: &Gpu, clients: &[Client]) -> String {
    let mode = match (gpu.mig, gpu.mig_pending) {
        (true, true) => "MIG on",
        (false, false) => "MIG off",
        (true, false) => "MIG on, off after reset",
        (false, true) => "MIG off, on after reset",
    };
    let lost = if gpu.lost { ", lost" } else { "" };
    let mut text = format!("GPU {}: {} {} ({mode}{lost})\n", gpu.index, gpu.board.name, gpu.uuid);
    for gi in &gpu.instances {
        let name = gpu.profile_of(gi).map(|p| p.name.as_str()).unwrap_or_default();
        text += &format!("  GI {} {name} at {}:{}\n", gi.id, gi.placement.start, gi.placement.size);
    }
    for device in machine.mig_devices().iter().filter(|d| d.gpu.index == gpu.index) {
        let name = device.profile_name();
        text += &format!(
            "  MIG {} {name} GI {} CI {} {}\n",
            device.ci.mig_index,
            device.gi.id,
            device.ci.id,
            device.uuid()
        );
    }
    for c in clients.iter().filter(|c| c.gpu == gpu.index) {
        let at = c.instance.map_or(String::new(), |(gi, ci)| format!(" GI {gi} CI {ci}"));
        text += &format!("  process {} {}{at}, {} MiB, for {}\n", c.pid, c.name, c.memory >> 20, c.owner);
    }
    text
}

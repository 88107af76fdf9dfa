//! A measurement: how long the plugin takes to answer `Allocate`, without the connection, on the simulated driver and this machine's `/proc`.

use std::{fs, path::Path, sync::Arc, time::Instant};

use gputenancy_agent::{
    device::DeviceView,
    grpc::proto::plugin::{AllocateRequest, ContainerAllocateRequest, device_plugin_server::DevicePlugin as _},
    kubelet::{
        Config,
        device_list::{DeviceList, ListedDevice},
        plugin::{Plugin, owner_lookup::OwnerLookup, watchers::ListWatchers},
    },
    metrics::Metrics,
    warm_up::WarmUp,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Request;

use crate::{
    common::{Agent, Sim},
    handover::start_kubelet,
};

#[tokio::test]
#[ignore = "a measurement"]
async fn allocate_of_56_instances() {
    let sim = Sim::new("h100-80gb", 8);
    let root = sim.root.path();
    let mut agent = Agent::seeing(root, Path::new("/proc"), gputenancy_agent::gpu::Deadlines::default());
    agent.uuid().await;
    let gpus: Vec<String> =
        agent.state.borrow().inventory.as_ref().unwrap().gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let slices: Vec<(i32, &str)> = (0..7).map(|start| (start, "1g.10gb")).collect();
    agent.want_all(gpus.iter().map(|uuid| Agent::spec(uuid, true, &slices)).collect());
    agent.converge().await;
    let DeviceView { devices, .. } = agent.view.borrow().clone();
    let resource = devices[0].resource.clone();
    let config = Config { kubelet_dir: root.to_owned(), ..Config::default() };
    fs::create_dir_all(root.join("pod-resources")).unwrap();
    let _kubelet = start_kubelet(&root.join("pod-resources"), &[]);
    let list: DeviceList = devices.iter().map(|d| (d.id.clone(), ListedDevice { healthy: true, numa: None })).collect();
    let lookup = OwnerLookup::new(&config, watch::channel(None).1, WarmUp::default());
    lookup.journal.set_devices(&devices);
    lookup.journal.publish(&resource, &list);
    let plugin = Plugin {
        resource,
        lookup,
        handover: agent.handover.clone(),
        mps: None,
        shim: None,
        sandboxes: None,
        requests: watch::channel(None).1,
        list: watch::channel(list).1,
        watchers: ListWatchers::new(Arc::default()),
        config: Arc::new(config),
        metrics: Metrics::default(),
        stop: CancellationToken::new(),
    };
    let mut took = Vec::new();
    for device in &devices {
        let container_requests = vec![ContainerAllocateRequest { devices_ids: vec![device.id.to_string()] }];
        let begun = Instant::now();
        plugin.allocate(Request::new(AllocateRequest { container_requests })).await.unwrap();
        took.push(begun.elapsed());
    }
    let first = took[0];
    took.sort();
    println!(
        "{} devices: p50 {:?}, largest {:?}, first {first:?}",
        took.len(),
        took[took.len() / 2],
        took[took.len() - 1]
    );
}

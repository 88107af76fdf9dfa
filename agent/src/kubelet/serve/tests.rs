use std::{collections::BTreeMap, pin::Pin};

use tokio::sync::{mpsc, watch};
use tonic::{Code, Request, Response, Status, transport::Channel};

use super::*;
use crate::{
    device::{Device, DeviceId},
    kubelet::{
        config::Allocation,
        holders::Holders,
        ledger::Ledger,
        listeners::Listeners,
        offer::{Listed, Offer},
        plugin::Terms,
        pods::PodResources,
        proto::plugin::{
            AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Empty,
            PreferredAllocationRequest,
            device_plugin_client::DevicePluginClient,
            registration_server::{Registration, RegistrationServer},
        },
    },
    metrics::Metrics,
};

const R: &str = "nvidia.com/gpu";

/// As much of kubelet as registration needs: it dials back and listens.
struct Kubelet {
    folder: PathBuf,
    lists: mpsc::UnboundedSender<BTreeMap<String, String>>,
}

type Lists = mpsc::UnboundedReceiver<BTreeMap<String, String>>;

#[tonic::async_trait]
impl Registration for Kubelet {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        assert_eq!((request.version.as_str(), request.resource_name.as_str()), ("v1beta1", R));
        let mut plugin = dial(&self.folder.join(request.endpoint)).await;
        let mut stream = plugin.list_and_watch(Empty {}).await?.into_inner();
        let lists = self.lists.clone();
        tokio::spawn(async move {
            while let Ok(Some(list)) = stream.message().await {
                let devices = list.devices.into_iter().map(|device| (device.id, device.health)).collect();
                if lists.send(devices).is_err() {
                    break;
                }
            }
        });
        Ok(Response::new(Empty {}))
    }
}

async fn dial(socket: &Path) -> DevicePluginClient<Channel> {
    DevicePluginClient::new(uds::connect(socket, Duration::from_secs(10)).await.unwrap())
}

/// Starts as kubelet does: wipes the folder, then listens.
fn start_kubelet(folder: &Path) -> (Lists, CancellationToken) {
    for file in std::fs::read_dir(folder).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let (lists, received) = mpsc::unbounded_channel();
    let service = RegistrationServer::new(Kubelet { folder: folder.to_owned(), lists });
    let incoming = UnixListenerStream::new(UnixListener::bind(folder.join("kubelet.sock")).unwrap());
    let stop = CancellationToken::new();
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned()));
    (received, stop)
}

fn device(n: u32) -> Device {
    let gpu = format!("GPU-{n}");
    Device {
        id: DeviceId::new(&gpu),
        resource: R.to_owned(),
        gpu_uuid: gpu,
        gpu_minor: n,
        mig: None,
        numa: None,
        cordoned: false,
        healthy: true,
    }
}

fn offer(ids: &[u32]) -> Offer {
    ids.iter().map(|n| (device(*n).id, Listed { healthy: true, numa: None })).collect()
}

struct Bench {
    folder: tempfile::TempDir,
    plugin: Plugin,
    offer: watch::Sender<Offer>,
    renew: Arc<Notify>,
}

impl Bench {
    fn new(terms: Terms) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Arc::new(Ledger::default());
        let devices: Vec<Device> = (0..4).map(device).collect();
        ledger.learn(&devices);
        ledger.publish(R, &offer(&[0, 1]));
        let sender = watch::Sender::new(offer(&[0, 1]));
        let plugin = Plugin {
            resource: R.to_owned(),
            holders: Holders { ledger, pods: PodResources::at(&folder.path().join("pods.sock")) },
            offer: sender.subscribe(),
            listeners: Listeners::new(Arc::default()),
            terms: Arc::new(terms),
            metrics: Metrics::default(),
            stop: CancellationToken::new(),
        };
        Self { folder, plugin, offer: sender, renew: Arc::default() }
    }

    fn keep(&self) -> Pin<Box<impl Future<Output = ()> + use<>>> {
        Box::pin(keep(self.plugin.clone(), self.folder.path().to_owned(), self.renew.clone()))
    }

    fn own_socket(&self) -> PathBuf {
        self.folder.path().join("gputenancy-nvidia.com-gpu.sock")
    }
}

fn names(ids: &[u32]) -> BTreeMap<String, String> {
    ids.iter().map(|n| (format!("GPU-{n}"), "Healthy".to_owned())).collect()
}

fn allocate(ids: &[&str]) -> AllocateRequest {
    let devices_ids = ids.iter().map(ToString::to_string).collect();
    AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] }
}

#[tokio::test]
async fn registers_and_streams_every_change_of_the_list() {
    let bench = Bench::new(Terms::default());
    let (mut lists, _kubelet) = start_kubelet(bench.folder.path());
    let keeper = tokio::spawn(bench.keep());
    assert_eq!(lists.recv().await.unwrap(), names(&[0, 1]));
    bench.offer.send_replace(offer(&[1]));
    assert_eq!(lists.recv().await.unwrap(), names(&[1]));
    bench.offer.send_replace(offer(&[]));
    assert_eq!(lists.recv().await.unwrap(), names(&[]));
    bench.plugin.stop.cancel();
    keeper.await.unwrap();
    assert!(!bench.own_socket().exists());
    assert!(!bench.plugin.listeners.any());
}

#[tokio::test]
async fn registers_again_with_a_restarted_kubelet_that_wiped_the_folder() {
    let bench = Bench::new(Terms::default());
    let keeper = tokio::spawn(bench.keep());
    for _ in 0..3 {
        let (mut lists, kubelet) = start_kubelet(bench.folder.path());
        assert_eq!(lists.recv().await.unwrap(), names(&[0, 1]));
        kubelet.cancel();
    }
    bench.plugin.stop.cancel();
    keeper.await.unwrap();
}

#[tokio::test]
async fn connects_anew_when_told_to() {
    let bench = Bench::new(Terms::default());
    let (mut lists, _kubelet) = start_kubelet(bench.folder.path());
    let keeper = tokio::spawn(bench.keep());
    lists.recv().await.unwrap();
    bench.renew.notify_one();
    assert_eq!(lists.recv().await.unwrap(), names(&[0, 1]));
    bench.plugin.stop.cancel();
    keeper.await.unwrap();
}

#[tokio::test]
async fn gives_cdi_names_and_refuses_what_is_not_offered() {
    let extra = vec!["gputenancy.io/simulator=state".to_owned()];
    let bench = Bench::new(Terms { allocation: Allocation::Cdi, extra_cdi_devices: extra });
    let served = Served::start(&bench.plugin, &bench.own_socket()).unwrap();
    let mut kubelet = dial(&bench.own_socket()).await;
    let given = kubelet.allocate(allocate(&["GPU-0", "GPU-1"])).await.unwrap().into_inner();
    let response = &given.container_responses[0];
    let names: Vec<&str> = response.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["gputenancy.io/gpu=GPU-0", "gputenancy.io/gpu=GPU-1", "gputenancy.io/simulator=state"]);
    assert!(response.envs.is_empty() && response.devices.is_empty() && response.mounts.is_empty());
    let refused = kubelet.allocate(allocate(&["GPU-3"])).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "nvidia.com/gpu: device GPU-3 is not offered now");
    served.end().await;
}

#[tokio::test]
async fn what_was_given_is_not_given_again_while_kubelet_does_not_say_whether_it_is_free() {
    let bench = Bench::new(Terms::default());
    let served = Served::start(&bench.plugin, &bench.own_socket()).unwrap();
    let mut kubelet = dial(&bench.own_socket()).await;
    kubelet.allocate(allocate(&["GPU-0"])).await.unwrap();
    let refused = kubelet.allocate(allocate(&["GPU-0"])).await.unwrap_err();
    let words = "nvidia.com/gpu: device GPU-0 may be held by a container: kubelet's pod resources API does not answer";
    assert!(refused.message().starts_with(words), "{}", refused.message());
    assert!(kubelet.allocate(allocate(&["GPU-1"])).await.is_ok(), "nobody was given that one");
    let counted = r#"gputenancy_agent_refused_allocations_total{reason="Unknown"} 1"#;
    assert!(gputenancy_service::endpoints::text(bench.plugin.metrics.registry()).unwrap().contains(counted));
    served.end().await;
}

#[tokio::test]
async fn falls_back_to_the_variable_of_nvidias_hook() {
    let bench = Bench::new(Terms { allocation: Allocation::Envvar, extra_cdi_devices: vec![] });
    let served = Served::start(&bench.plugin, &bench.own_socket()).unwrap();
    let mut kubelet = dial(&bench.own_socket()).await;
    let given = kubelet.allocate(allocate(&["GPU-1", "GPU-0"])).await.unwrap().into_inner();
    let response = &given.container_responses[0];
    assert_eq!(response.envs, [("NVIDIA_VISIBLE_DEVICES".to_owned(), "GPU-1,GPU-0".to_owned())].into());
    assert!(response.cdi_devices.is_empty());
    served.end().await;
}

#[tokio::test]
async fn prefers_what_is_there_and_includes_what_must_be() {
    let bench = Bench::new(Terms::default());
    let served = Served::start(&bench.plugin, &bench.own_socket()).unwrap();
    let mut kubelet = dial(&bench.own_socket()).await;
    let options = kubelet.get_device_plugin_options(Empty {}).await.unwrap().into_inner();
    assert!(options.get_preferred_allocation_available);
    let request = ContainerPreferredAllocationRequest {
        available_device_i_ds: vec!["GPU-0".to_owned(), "GPU-1".to_owned(), "GPU-2".to_owned()],
        must_include_device_i_ds: vec!["GPU-2".to_owned()],
        allocation_size: 2,
    };
    let request = PreferredAllocationRequest { container_requests: vec![request] };
    let chosen = kubelet.get_preferred_allocation(request).await.unwrap().into_inner();
    assert_eq!(chosen.container_responses[0].device_i_ds, ["GPU-2", "GPU-0"]);
    served.end().await;
}

#[test]
fn socket_names_are_plain_file_names() {
    assert_eq!(socket_name("nvidia.com/mig-1g.10gb.me"), "gputenancy-nvidia.com-mig-1g.10gb.me.sock");
    assert!(!socket_name("gputenancy.io/../x").contains('/'));
}

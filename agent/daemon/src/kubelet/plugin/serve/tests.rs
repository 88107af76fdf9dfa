use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Mutex,
};

use futures::future::BoxFuture;
use gputenancy_nvml::Process;
use tokio::sync::{mpsc, watch};
use tonic::{Code, Request, Response, Status, transport::Channel};

use super::*;
use crate::{
    device::{Device, DeviceId},
    gpu::{Inventory, NvmlError, ObservedGpu, processes::process_origin::Origins},
    grpc::{
        pod_resources::PodResources,
        proto::plugin::{
            AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Empty,
            PreferredAllocationRequest,
            device_plugin_client::DevicePluginClient,
            device_plugin_server::DevicePlugin as _,
            registration_server::{Registration, RegistrationServer},
        },
        proto::podresources::{
            self, AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
            GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse,
            pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
        },
    },
    handover::HandoverCheck,
    kubelet::{
        config::{Allocation, Config},
        device_list::{DeviceList, ListedDevice},
        plugin::{journal::AllocationJournal, owner_lookup::OwnerLookup, watchers::ListWatchers},
    },
    metrics::Metrics,
    warm_up::WarmUp,
};

const R: &str = "nvidia.com/gpu";

/// The registration service of a kubelet, which connects to the plugin and watches its list.
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
        let mut plugin = connect(&self.folder.join(request.endpoint)).await;
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

async fn connect(socket: &Path) -> DevicePluginClient<Channel> {
    DevicePluginClient::new(uds::endpoint(socket, Duration::from_secs(10)).connect().await.unwrap())
}

/// Empties the folder, then listens, as kubelet does.
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
        share: None,
        numa: None,
        cordoned: false,
        healthy: true,
    }
}

fn list(ids: &[u32]) -> DeviceList {
    ids.iter().map(|n| (device(*n).id, ListedDevice { healthy: true, numa: None })).collect()
}

struct Fixture {
    folder: tempfile::TempDir,
    /// What NVML reports of processes.
    processes: Arc<Mutex<Result<Inventory, NvmlError>>>,
    /// The GPU that does not answer: a read of it fails.
    silent: Arc<Mutex<Option<&'static str>>>,
    plugin: Plugin,
    list: watch::Sender<DeviceList>,
    register: Arc<Notify>,
}

impl Fixture {
    fn new(config: Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let journal = Arc::new(AllocationJournal::default());
        let devices: Vec<Device> = (0..4).map(device).collect();
        journal.set_devices(&devices);
        journal.publish(R, &list(&[0, 1]));
        let config = Config { kubelet_dir: folder.path().to_owned(), ..config };
        std::fs::create_dir(config.plugin_dir()).unwrap();
        let sender = watch::Sender::new(list(&[0, 1]));
        let gpu = |n: u32| ObservedGpu { uuid: format!("GPU-{n}"), ..ObservedGpu::default() };
        let inventory = Inventory { gpus: (0..4).map(gpu).collect(), ..Inventory::default() };
        let processes = Arc::new(Mutex::new(Ok(inventory)));
        let silent = Arc::<Mutex<Option<&'static str>>>::default();
        let (answer, fails) = (Arc::clone(&processes), Arc::clone(&silent));
        let read = Arc::new(move |uuids: BTreeSet<String>, _| -> BoxFuture<'static, _> {
            let answer = match *fails.lock().unwrap() {
                Some(gpu) if uuids.contains(gpu) => Err(NvmlError::Ended),
                _ => answer.lock().unwrap().clone(),
            };
            Box::pin(async { answer })
        });
        let (proc_root, logs) = (folder.path().join("proc"), folder.path().join("logs"));
        let origins = Origins { proc_root, logs, pods: crate::seen_pods::SeenPods::default() };
        let plugin = Plugin {
            resource: R.to_owned(),
            lookup: OwnerLookup {
                journal,
                pod_resources: PodResources::at(&config.pod_resources_socket()),
                requests: watch::channel(None).1,
                warm_up: WarmUp::default(),
            },
            handover: HandoverCheck::new(read, origins),
            mps: None,
            shim: None,
            sandboxes: None,
            requests: watch::channel(None).1,
            list: sender.subscribe(),
            watchers: ListWatchers::new(Arc::default()),
            config: Arc::new(config),
            metrics: Metrics::default(),
            stop: CancellationToken::new(),
        };
        Self { folder, processes, silent, plugin, list: sender, register: Arc::default() }
    }

    /// A process of a container with this log is on a GPU.
    fn starts(&self, pid: u32, gpu: usize, log: &str) {
        let process = self.folder.path().join("proc").join(pid.to_string());
        let logs = self.folder.path().join("logs");
        std::fs::create_dir_all(&process).unwrap();
        std::fs::create_dir_all(&logs).unwrap();
        let id = format!("{pid:064x}");
        std::fs::write(process.join("stat"), format!("{pid} (python) S 1")).unwrap();
        std::fs::write(process.join("comm"), "python\n").unwrap();
        std::fs::write(process.join("cgroup"), format!("0::/kubepods.slice/cri-containerd-{id}.scope\n")).unwrap();
        std::fs::write(logs.join(format!("{log}-{id}.log")), "").unwrap();
        let mut answer = self.processes.lock().unwrap();
        let client = Process { pid, gi: None, ci: None, memory: None };
        answer.as_mut().unwrap().gpus[gpu].clients.push(client);
    }

    fn serve(&self) -> Pin<Box<impl Future<Output = ()> + use<>>> {
        Box::pin(serve(self.plugin.clone(), self.register.clone()))
    }

    fn folder(&self) -> PathBuf {
        self.plugin.config.plugin_dir()
    }

    fn own_socket(&self) -> PathBuf {
        self.folder().join(socket_name("nvidia.com/gpu"))
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
async fn plugin_registers_and_streams_every_change_of_the_list() {
    let fixture = Fixture::new(Config::default());
    let (mut lists, _kubelet) = start_kubelet(&fixture.folder());
    let keeper = tokio::spawn(fixture.serve());
    assert_eq!(lists.recv().await.unwrap(), names(&[0, 1]));
    fixture.list.send_replace(list(&[1]));
    assert_eq!(lists.recv().await.unwrap(), names(&[1]));
    fixture.list.send_replace(list(&[]));
    assert_eq!(lists.recv().await.unwrap(), names(&[]));
    fixture.plugin.stop.cancel();
    keeper.await.unwrap();
    assert!(!fixture.own_socket().exists());
    assert!(!fixture.plugin.watchers.any());
}

#[tokio::test]
async fn plugin_registers_again_with_a_restarted_kubelet() {
    let fixture = Fixture::new(Config::default());
    let keeper = tokio::spawn(fixture.serve());
    for _ in 0..3 {
        let (mut lists, kubelet) = start_kubelet(&fixture.folder());
        assert_eq!(lists.recv().await.unwrap(), names(&[0, 1]));
        kubelet.cancel();
    }
    fixture.plugin.stop.cancel();
    keeper.await.unwrap();
}

#[tokio::test]
async fn plugin_registers_again_on_demand() {
    let fixture = Fixture::new(Config::default());
    let (mut lists, _kubelet) = start_kubelet(&fixture.folder());
    let keeper = tokio::spawn(fixture.serve());
    lists.recv().await.unwrap();
    fixture.register.notify_one();
    assert_eq!(lists.recv().await.unwrap(), names(&[0, 1]));
    fixture.plugin.stop.cancel();
    keeper.await.unwrap();
}

#[tokio::test]
async fn allocation_returns_cdi_names_and_refuses_withdrawn_devices() {
    let extra = vec!["gputenancy.io/simulator=state".to_owned()];
    let fixture = Fixture::new(Config { extra_cdi_devices: extra, ..Config::default() });
    let server = Server::start(&fixture.plugin, &fixture.own_socket()).unwrap();
    let mut kubelet = connect(&fixture.own_socket()).await;
    let response = kubelet.allocate(allocate(&["GPU-0", "GPU-1"])).await.unwrap().into_inner();
    let response = &response.container_responses[0];
    let names: Vec<&str> = response.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["gputenancy.io/gpu=GPU-0", "gputenancy.io/gpu=GPU-1", "gputenancy.io/simulator=state"]);
    assert!(response.envs.is_empty() && response.devices.is_empty() && response.mounts.is_empty());
    let refusal = kubelet.allocate(allocate(&["GPU-3"])).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    assert_eq!(refusal.message(), "nvidia.com/gpu: device GPU-3 is not advertised");
    server.stop().await;
}

#[tokio::test]
async fn allocated_device_is_refused_while_kubelet_does_not_answer() {
    let fixture = Fixture::new(Config::default());
    let server = Server::start(&fixture.plugin, &fixture.own_socket()).unwrap();
    let mut kubelet = connect(&fixture.own_socket()).await;
    kubelet.allocate(allocate(&["GPU-0"])).await.unwrap();
    let refusal = kubelet.allocate(allocate(&["GPU-0"])).await.unwrap_err();
    let message =
        "nvidia.com/gpu: device GPU-0 may be allocated to a container: kubelet's pod resources API does not answer";
    assert!(refusal.message().starts_with(message), "{}", refusal.message());
    assert!(kubelet.allocate(allocate(&["GPU-1"])).await.is_ok(), "not allocated before");
    let counted = r#"gputenancy_agent_refused_allocations_total{reason="Unknown"} 1"#;
    assert!(gputenancy_cluster::service::endpoints::text(fixture.plugin.metrics.registry()).unwrap().contains(counted));
    server.stop().await;
}

/// Kubelet's pod resources API, which counts its answers.
#[derive(Clone, Default)]
struct Owners(Arc<Mutex<(ListPodResourcesResponse, u32)>>);

#[tonic::async_trait]
impl PodResourcesLister for Owners {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        let mut answer = self.0.lock().unwrap();
        answer.1 += 1;
        Ok(Response::new(answer.0.clone()))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get(&self, _: Request<GetPodResourcesRequest>) -> Result<Response<GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tokio::test]
async fn devices_that_one_check_finds_free_are_allocated_once_without_another_check() {
    let fixture = Fixture::new(Config::default());
    let (socket, owners) = (fixture.plugin.config.pod_resources_socket(), Owners::default());
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let incoming = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
    let service = PodResourcesListerServer::new(owners.clone());
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    let plugin = &fixture.plugin;
    let allocated = async |id: &str| plugin.allocate(Request::new(allocate(&[id]))).await.map(drop);
    // as kubelet does before each allocation
    let request = ContainerPreferredAllocationRequest {
        available_device_i_ds: vec!["GPU-0".to_owned(), "GPU-1".to_owned()],
        must_include_device_i_ds: Vec::new(),
        allocation_size: 1,
    };
    let request = PreferredAllocationRequest { container_requests: vec![request] };
    plugin.get_preferred_allocation(Request::new(request)).await.unwrap();
    allocated("GPU-0").await.unwrap();
    allocated("GPU-1").await.unwrap();
    assert_eq!(owners.0.lock().unwrap().1, 1, "one check for both");
    // kubelet drops the allocation
    let devices = vec![ContainerDevices { resource_name: R.into(), device_ids: vec!["GPU-1".into()] }];
    let container = ContainerResources { name: "main".into(), devices };
    let pod = podresources::PodResources { containers: vec![container], ..podresources::PodResources::default() };
    owners.0.lock().unwrap().0.pod_resources.push(pod);
    assert!(allocated("GPU-1").await.unwrap_err().message().contains("is allocated to container main"));
    assert_eq!(owners.0.lock().unwrap().1, 2);
}

#[tokio::test]
async fn device_in_use_by_another_pod_is_refused_and_another_one_preferred() {
    let fixture = Fixture::new(Config::default());
    let server = Server::start(&fixture.plugin, &fixture.own_socket()).unwrap();
    let mut kubelet = connect(&fixture.own_socket()).await;
    fixture.starts(7, 0, "train-0_team-a_main");
    let request = |available: &[&str]| {
        let available_device_i_ds = available.iter().map(ToString::to_string).collect();
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds,
            must_include_device_i_ds: Vec::new(),
            allocation_size: 1,
        };
        PreferredAllocationRequest { container_requests: vec![request] }
    };
    let chosen = kubelet.get_preferred_allocation(request(&["GPU-0", "GPU-1"])).await.unwrap().into_inner();
    assert_eq!(chosen.container_responses[0].device_i_ds, ["GPU-1"]);
    let refusal = kubelet.allocate(allocate(&["GPU-0"])).await.unwrap_err();
    let message = "nvidia.com/gpu: device GPU-0 is still in use by process 7 of another pod, which kubelet does not list as \
        the owner: it is free when that process has ended; wait, or end it";
    assert_eq!(refusal.message(), message);
    let counted = r#"gputenancy_agent_refused_allocations_total{reason="InUse"} 1"#;
    assert!(gputenancy_cluster::service::endpoints::text(fixture.plugin.metrics.registry()).unwrap().contains(counted));
    assert!(kubelet.allocate(allocate(&["GPU-1"])).await.is_ok(), "no process uses it");
    std::fs::write(fixture.folder.path().join("proc/7/stat"), "7 (python) Z 1").unwrap();
    assert!(kubelet.allocate(allocate(&["GPU-0"])).await.is_ok(), "the process has ended");
    server.stop().await;
}

#[tokio::test]
async fn device_is_refused_while_its_processes_are_not_known() {
    let fixture = Fixture::new(Config::default());
    let server = Server::start(&fixture.plugin, &fixture.own_socket()).unwrap();
    let mut kubelet = connect(&fixture.own_socket()).await;
    let before = fixture.processes.lock().unwrap().clone();
    *fixture.processes.lock().unwrap() = Err(NvmlError::Ended);
    let refusal = kubelet.allocate(allocate(&["GPU-0"])).await.unwrap_err();
    let message = "nvidia.com/gpu: device GPU-0 may be in use by another pod: NVML does not list its processes: the NVML thread ended";
    assert_eq!(refusal.message(), message);
    // a single GPU that does not answer: its processes are those of an earlier scan
    *fixture.processes.lock().unwrap() = before;
    let failure =
        gputenancy_nvml::NvmlFailure { call: "nvmlDeviceGetCount_v2", code: 15, message: "GPU is lost".into() };
    fixture.processes.lock().unwrap().as_mut().unwrap().gpus[0].failure = Some(failure);
    let request = ContainerPreferredAllocationRequest {
        available_device_i_ds: vec!["GPU-0".to_owned(), "GPU-1".to_owned()],
        must_include_device_i_ds: Vec::new(),
        allocation_size: 1,
    };
    let request = PreferredAllocationRequest { container_requests: vec![request] };
    let chosen = kubelet.get_preferred_allocation(request).await.unwrap().into_inner();
    assert_eq!(chosen.container_responses[0].device_i_ds, ["GPU-1"], "of a GPU that answers");
    assert!(kubelet.allocate(allocate(&["GPU-0"])).await.unwrap_err().message().contains("GPU is lost"));
    assert!(kubelet.allocate(allocate(&["GPU-1"])).await.is_ok(), "the other GPU answers");
    server.stop().await;
}

#[tokio::test]
async fn gpu_that_does_not_answer_fails_no_allocation_of_another() {
    let fixture = Fixture::new(Config::default());
    let server = Server::start(&fixture.plugin, &fixture.own_socket()).unwrap();
    let mut kubelet = connect(&fixture.own_socket()).await;
    *fixture.silent.lock().unwrap() = Some("GPU-0");
    assert!(kubelet.allocate(allocate(&["GPU-1"])).await.is_ok());
    assert!(kubelet.allocate(allocate(&["GPU-0"])).await.is_err());
    server.stop().await;
}

#[tokio::test]
async fn allocation_without_cdi_sets_the_variable_of_nvidias_hook() {
    let fixture = Fixture::new(Config { allocate: Allocation::Envvar, ..Config::default() });
    let server = Server::start(&fixture.plugin, &fixture.own_socket()).unwrap();
    let mut kubelet = connect(&fixture.own_socket()).await;
    let response = kubelet.allocate(allocate(&["GPU-1", "GPU-0"])).await.unwrap().into_inner();
    let response = &response.container_responses[0];
    assert_eq!(response.envs, [("NVIDIA_VISIBLE_DEVICES".to_owned(), "GPU-1,GPU-0".to_owned())].into());
    assert!(response.cdi_devices.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn preferred_allocation_includes_the_required_devices() {
    let fixture = Fixture::new(Config::default());
    let server = Server::start(&fixture.plugin, &fixture.own_socket()).unwrap();
    let mut kubelet = connect(&fixture.own_socket()).await;
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
    server.stop().await;
}

#[test]
fn socket_names_are_plain_file_names() {
    let name = socket_name("nvidia.com/mig-1g.10gb.me");
    assert!(name.starts_with("gputenancy-nvidia.com-mig-1g.10gb.me-"), "{name}");
    assert!(!socket_name("gputenancy.io/../x").contains('/'));
}

proptest::proptest! {
    #[test]
    fn each_resource_has_a_socket_of_its_own_that_can_be_bound(
        resources in proptest::collection::btree_set("[a-z0-9]{1,12}[.][a-z]{2,20}/[a-zA-Z0-9][-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9]", 2..20),
        same in "[-_.]{1,3}",
    ) {
        // and some that differ in one character that a file name may not show
        let twins = same.chars().map(|c| format!("gputenancy.io/x{c}y"));
        let resources: std::collections::BTreeSet<String> = resources.into_iter().chain(twins).collect();
        let names: std::collections::BTreeSet<String> = resources.iter().map(|resource| socket_name(resource)).collect();
        proptest::prop_assert_eq!(names.len(), resources.len());
        let longest = names.iter().map(|name| "/var/lib/kubelet/device-plugins/".len() + name.len()).max().unwrap();
        proptest::prop_assert!(longest <= 107);
    }
}

//! Devices of pods that kubelet has forgotten, with processes on the simulated driver.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{fs::symlink, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use crate::common::{Agent, Sim};
use gputenancy_agent::{
    device::{Device, DeviceId, DeviceOwner, Owners},
    gpu::Deadlines,
    grpc::proto::podresources::{
        AllocatableResourcesRequest, AllocatableResourcesResponse, GetPodResourcesRequest, GetPodResourcesResponse,
        ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
        pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
    },
    refusal::Refusal,
};
use silicon::fault::Effect;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

const LAYOUT: &[(i32, &str)] = &[(0, "1g.10gb"), (1, "1g.10gb")];

/// A node's `/proc` with one process that has an instance's capability file open, but no context in NVML.
struct Proc(PathBuf);

impl Proc {
    fn new(root: &Path) -> Self {
        let proc = root.join("proc");
        fs::create_dir_all(root.join("logs")).unwrap();
        fs::create_dir_all(&proc).unwrap();
        Self(proc)
    }

    /// A process of a container; `cap` is the minor number of the capability file.
    fn start(&self, pid: u32, owner: &DeviceOwner, cap: u32) {
        let (folder, id) = (self.0.join(pid.to_string()), format!("{pid:064x}"));
        fs::create_dir_all(folder.join("fd")).unwrap();
        fs::write(folder.join("stat"), format!("{pid} (python) S{} 777", " 1".repeat(18))).unwrap();
        fs::write(folder.join("comm"), "python\n").unwrap();
        fs::write(folder.join("cgroup"), format!("0::/kubepods.slice/cri-containerd-{id}.scope\n")).unwrap();
        let DeviceOwner { namespace, pod, container } = owner;
        let log = format!("{pod}_{namespace}_{container}-{id}.log");
        fs::write(self.0.parent().unwrap().join("logs").join(log), "").unwrap();
        symlink(format!("/dev/nvidia-caps/nvidia-cap{cap}"), folder.join("fd/3")).unwrap();
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.0.join(pid.to_string())).unwrap();
    }
}

/// Minor number of a GPU instance's capability file on GPU 0 where the driver lists none, as the agent computes it.
fn cap(gi: u32) -> u32 {
    3 + 9 * gi
}

fn owner(pod: &str) -> DeviceOwner {
    DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() }
}

fn by_id(agent: &Agent) -> BTreeMap<DeviceId, Device> {
    agent.view.borrow().devices.iter().map(|device| (device.id.clone(), device.clone())).collect()
}

/// The check of an allocation of this device while kubelet reports no owners.
async fn refusal(agent: &Agent, id: &DeviceId) -> Result<(), Refusal> {
    let devices = by_id(agent);
    let inventory = agent.handover.processes(devices.values()).await.unwrap();
    agent.handover.refuse(&devices, &inventory, &Owners::new(), std::slice::from_ref(id)).map(drop)
}

#[tokio::test]
async fn instance_whose_capability_file_is_open_is_withdrawn_and_refused_until_the_process_ends() {
    let sim = Sim::new("h100-80gb", 1);
    let proc = Proc::new(sim.root.path());
    let mut agent = Agent::seeing(sim.root.path(), &proc.0, Deadlines::default());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, LAYOUT);
    agent.converge().await;
    let ids = [0, 1].map(|instance| DeviceId::new(agent.mig_uuid(instance)));
    let pod = owner("train-0");
    proc.start(700, &pod, cap(agent.gpu().instances[0].gi));
    agent.kubelet.send_modify(|kubelet| {
        kubelet.answered = true;
        kubelet.owners.insert(ids[0].clone(), pod.clone());
    });
    agent.quick_scan().await;
    assert_eq!(agent.advertised().len(), 2, "the process is that of the owner");
    // kubelet forgets the pod, whose process runs on
    agent.kubelet.send_modify(|kubelet| kubelet.owners.clear());
    agent.quick_scan().await;
    assert_eq!(agent.advertised(), [ids[1].to_string()]);
    let refused = refusal(&agent, &ids[0]).await.unwrap_err();
    assert_eq!(refused.reason(), "InUse");
    assert!(refused.to_string().contains("process 700 of another pod, which kubelet does not list"), "{refused}");
    assert_eq!(refusal(&agent, &ids[1]).await, Ok(()));
    proc.end(700);
    assert_eq!(refusal(&agent, &ids[0]).await, Ok(()));
    agent.quick_scan().await;
    assert_eq!(agent.advertised().len(), 2);
}

#[tokio::test]
async fn instance_with_a_client_in_nvml_is_refused_until_the_client_ends() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, LAYOUT);
    agent.converge().await;
    let ids = [0, 1].map(|instance| DeviceId::new(agent.mig_uuid(instance)));
    let client = sim.client(agent.gpu().instances[1].gi);
    // the client came after the latest scan
    assert_eq!(refusal(&agent, &ids[0]).await, Ok(()));
    let refused = refusal(&agent, &ids[1]).await.unwrap_err();
    assert!(refused.to_string().contains(&format!("process {}", client.pid())), "{refused}");
    drop(client);
    assert_eq!(refusal(&agent, &ids[1]).await, Ok(()));
}

#[tokio::test]
async fn memory_that_a_process_left_is_found_also_after_a_check_between_two_scans() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, LAYOUT);
    agent.converge().await;
    let gi = agent.gpu().instances[1].gi;
    let id = DeviceId::new(agent.mig_uuid(1));
    let client = sim.client(gi);
    agent.quick_scan().await;
    sim.store.change(|machine, _| machine.leak(0, Some(gi), 1 << 30)).unwrap();
    drop(client);
    assert_eq!(refusal(&agent, &id).await, Ok(()));
    agent.quick_scan().await;
    assert_eq!(agent.gpu().unexplained.keys().collect::<Vec<_>>(), [&Some(gi)]);
}

#[tokio::test]
async fn allocation_is_refused_while_nvml_does_not_answer() {
    let sim = Sim::new("h100-80gb", 1);
    let deadlines = Deadlines { scan: Duration::from_millis(300), operation: Duration::from_secs(10) };
    let mut agent = Agent::with(sim.root.path(), deadlines);
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, LAYOUT);
    agent.converge().await;
    sim.inject("nvmlDeviceGetComputeRunningProcesses_v3", 1, Some(1), Effect::Hang(3000));
    let devices = by_id(&agent);
    let error = agent.handover.processes(devices.values()).await.unwrap_err().to_string();
    assert!(error.starts_with("nvmlDeviceGetComputeRunningProcesses_v3 has not returned"), "{error}");
}

#[tokio::test]
async fn allocation_waits_for_one_gpu_of_a_scan_and_not_for_all() {
    let sim = Sim::new("h100-80gb", 4);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, LAYOUT);
    agent.converge().await;
    let (handover, devices) = (agent.handover.clone(), by_id(&agent));
    // each GPU of a scan takes so long; the check does not ask for the mode
    sim.inject("nvmlDeviceGetMigMode", 1, None, Effect::Hang(400));
    let check = async {
        while sim.matched_calls() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        handover.processes(devices.values()).await
    };
    tokio::select! {
        () = agent.quick_scan() => panic!("the scan ended before the check was answered"),
        checked = check => assert_eq!(checked.unwrap().gpus.len(), 4, "all GPUs are known"),
    }
}

/// Kubelet's pod resources API with these pods and no devices.
struct Kubelet(Vec<PodResources>);

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        Ok(Response::new(ListPodResourcesResponse { pod_resources: self.0.clone() }))
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

/// Serves the pod resources API until the task is aborted.
pub fn start_kubelet(root: &Path, pods: &[&DeviceOwner]) -> tokio::task::JoinHandle<()> {
    let pods = pods.iter().map(|pod| PodResources {
        namespace: pod.namespace.clone(),
        name: pod.pod.clone(),
        ..PodResources::default()
    });
    let socket = root.join("kubelet.sock");
    let _ = fs::remove_file(&socket);
    let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    let service = PodResourcesListerServer::new(Kubelet(pods.collect()));
    tokio::spawn(async move {
        tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
    })
}

/// A process of this test that the agent may kill.
fn victim() -> Child {
    Command::new("sleep").arg("600").spawn().unwrap()
}

#[tokio::test]
async fn process_of_a_forgotten_pod_is_killed_after_the_deadline_and_no_other() {
    let sim = Sim::new("h100-80gb", 1);
    let root = sim.root.path();
    let proc = Proc::new(root);
    let deadline = Some(Duration::ZERO);
    let mut agent = Agent::ending(root, &proc.0, Deadlines::default(), deadline);
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, LAYOUT);
    agent.converge().await;
    let ids = [0, 1].map(|instance| DeviceId::new(agent.mig_uuid(instance)));
    let (forgotten, listed) = (owner("forgotten"), owner("listed"));
    let (mut killed, mut spared) = (victim(), victim());
    proc.start(killed.id(), &forgotten, cap(agent.gpu().instances[0].gi));
    proc.start(spared.id(), &listed, cap(agent.gpu().instances[1].gi));
    agent.kubelet.send_modify(|kubelet| {
        kubelet.answered = true;
        kubelet.owners = [(ids[0].clone(), forgotten.clone()), (ids[1].clone(), listed.clone())].into();
    });
    agent.quick_scan().await;
    agent.kubelet.send_modify(|kubelet| kubelet.owners.clear());
    // kubelet does not answer: nothing is killed
    agent.quick_scan().await;
    assert!(killed.try_wait().unwrap().is_none() && agent.advertised().is_empty());
    let kubelet = start_kubelet(root, &[&listed]);
    agent.quick_scan().await;
    assert_eq!(killed.wait().unwrap().signal(), Some(9));
    assert!(spared.try_wait().unwrap().is_none(), "kubelet lists its pod");
    kubelet.abort();
    spared.kill().unwrap();
    spared.wait().unwrap();
}

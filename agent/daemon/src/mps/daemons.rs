//! Starts the daemon of a GPU with its first container, watches it, restarts it after its end, and removes it with the GPU's last share.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use gputenancy_crds::backoff::Backoff;
use tokio::sync::{Mutex, MutexGuard, watch};

use super::{
    Error,
    control::Control,
    host::{Host, notices},
    share::{folder, mps_share},
    state::{Down, GpuMps, MpsView},
    tenancy::{self, Admission, OtherTenant, Tenancy, admit, defaults, max_clients},
};
use crate::{
    device::{Device, DeviceId, DeviceOwner, DeviceView, Owners, Share},
    send_if_changed,
};

/// Interval of checks whether daemons live.
const INTERVAL: Duration = Duration::from_secs(1);
/// Every so many checks the clients are counted, which runs the control program.
const COUNT_EVERY: u32 = 10;
/// Delays of restarts.
const RESTART: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));
/// File with the [`Tenancy`] in a GPU's folder.
const TENANCY: &str = "tenancy.json";

/// Why a container with an MPS share does not start.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The GPU serves another tenant.
    #[error(transparent)]
    OtherTenant(#[from] OtherTenant),
    /// CUDA finds one server only.
    #[error("a container can have one MPS share and this one has {0}: request one, or a profile with a larger share")]
    Several(usize),
    /// Kubelet reports no owner. It does not report devices that only init containers request.
    #[error(
        "kubelet does not report the pod that has {0}: request the share in a container, not in an init container alone"
    )]
    NoOwner(DeviceId),
    /// The daemon has ended.
    #[error("the MPS daemon of GPU {0} has ended and is being restarted; the container is started after that")]
    Down(String),
    /// The daemon cannot run, or a query failed.
    #[error("no MPS daemon for GPU {gpu}: {error}")]
    Failed {
        /// The GPU.
        gpu: String,
        /// Why.
        error: Error,
    },
}

/// The daemons of this node.
#[derive(Clone)]
pub struct Mps {
    host: Host,
    daemons: Arc<Mutex<BTreeMap<String, Daemon>>>,
    view: watch::Sender<MpsView>,
}

struct Daemon {
    tenancy: Tenancy,
    control: Control,
    limits: (Option<i64>, Option<i32>),
    servers: Vec<u32>,
    clients: usize,
    down: Option<Restart>,
}

/// A restart that is due.
struct Restart {
    down: Down,
    failures: u32,
    at: Instant,
}

impl Mps {
    /// The daemons below `host.root`; those of an earlier run are adopted.
    pub fn new(host: Host) -> Self {
        Self { host, daemons: Arc::default(), view: watch::Sender::default() }
    }

    /// What the status reports.
    pub fn subscribe(&self) -> watch::Receiver<MpsView> {
        self.view.subscribe()
    }

    /// Prepares the start of a container with these devices: its GPU's daemon serves its tenant, and its folders lead to that daemon.
    /// Devices that are no MPS shares need nothing.
    pub async fn prepare(&self, ids: &[DeviceId], devices: &BTreeMap<DeviceId, Device>) -> Result<(), Refusal> {
        let shares: Vec<(&Device, &Share)> =
            ids.iter().filter_map(|id| devices.get(id)).filter_map(|d| Some((d, mps_share(d)?))).collect();
        let (device, share) = match shares.as_slice() {
            [] => return Ok(()),
            [one] => *one,
            several => return Err(Refusal::Several(several.len())),
        };
        let gpu = &device.gpu_uuid;
        let failed = |error: Error| Refusal::Failed { gpu: gpu.clone(), error };
        let owners = (self.host.owners)(()).await.map_err(failed)?;
        let owner = owners.get(&device.id).ok_or_else(|| Refusal::NoOwner(device.id.clone()))?;
        let key = (self.host.tenant)(owner.namespace.clone()).await.map_err(failed)?;
        let limits = defaults(devices.values().filter(|d| d.gpu_uuid == *gpu).filter_map(mps_share));
        let mut daemons = self.daemons.lock().await;
        self.adopt(&mut daemons, gpu, limits);
        self.mark_ended(&mut daemons, &owners, Instant::now()).await;
        let running = daemons.get(gpu);
        match admit(gpu, running.map(|d| &d.tenancy), owner, &key, owners_of(&owners, gpu))? {
            Admission::Join(_) if running.is_some_and(|daemon| daemon.down.is_some()) => {
                return Err(Refusal::Down(gpu.clone()));
            }
            Admission::Join(tenancy) => {
                if let Some(daemon) = daemons.get_mut(gpu) {
                    self.write_tenancy(gpu, &tenancy).map_err(failed)?;
                    daemon.tenancy = tenancy;
                    if daemon.limits != limits {
                        daemon.control.set_defaults(limits).await.map_err(failed)?;
                        daemon.limits = limits;
                    }
                }
            }
            Admission::Start(tenancy) => {
                if let Some(former) = daemons.remove(gpu) {
                    former.control.stop(&former.servers).await;
                }
                let daemon = self.start(gpu, tenancy, limits).await.map_err(failed)?;
                tracing::info!(gpu, tenant = daemon.tenancy.key, "started MPS daemon");
                daemons.insert(gpu.clone(), daemon);
            }
        }
        link(&folder(&self.host.root, gpu, share.number), &key).map_err(|error| failed(Error::Links(error)))?;
        self.publish(&daemons);
        Ok(())
    }

    /// Checks the daemons for as long as it is polled.
    pub async fn run(&self, devices: watch::Receiver<DeviceView>) {
        let mut count = 0_u32;
        loop {
            let view = devices.borrow().clone();
            self.check(&view, count.is_multiple_of(COUNT_EVERY), Instant::now()).await;
            count = count.wrapping_add(1);
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// One check: adopts, notices ends, restarts what is due, counts clients if `count`, and removes what no share needs.
    pub async fn check(&self, view: &DeviceView, count: bool, now: Instant) {
        let gpus: BTreeSet<&String> =
            view.devices.iter().filter(|d| mps_share(d).is_some()).map(|d| &d.gpu_uuid).collect();
        // nothing to do on most nodes
        if view.generation == 0 || gpus.is_empty() && self.folders().is_empty() {
            return;
        }
        // without owners nothing is known of the pods that a daemon serves
        let Ok(owners) = (self.host.owners)(()).await else { return };
        let mut daemons = self.daemons.lock().await;
        for gpu in self.folders() {
            let shares = view.devices.iter().filter(|d| d.gpu_uuid == gpu).filter_map(mps_share);
            self.adopt(&mut daemons, &gpu, defaults(shares));
            if !gpus.contains(&gpu) && owners_of(&owners, &gpu).next().is_none() {
                self.remove(&mut daemons, &gpu).await;
            }
        }
        self.mark_ended(&mut daemons, &owners, now).await;
        self.restart_due(&mut daemons, &owners, now).await;
        for daemon in daemons.values_mut().filter(|daemon| count && daemon.down.is_none()) {
            daemon.count().await;
        }
        self.publish(&daemons);
    }

    fn control(&self, gpu: &str, key: &str) -> Result<Control, Error> {
        let driver_root = (self.host.inventory)().and_then(|inventory| inventory.driver_root);
        Ok(Control {
            gpu: gpu.to_owned(),
            driver_root: driver_root.ok_or(Error::NoDriver)?.local,
            folder: self.host.root.join(gpu).join(tenancy::folder(key)),
            proc_root: self.host.proc_root.clone(),
            cgroup_root: self.host.cgroup_root.clone(),
        })
    }

    async fn start(&self, gpu: &str, tenancy: Tenancy, limits: (Option<i64>, Option<i32>)) -> Result<Daemon, Error> {
        let control = self.control(gpu, &tenancy.key)?;
        (self.host.set_exclusive)((gpu.to_owned(), true)).await?;
        self.write_tenancy(gpu, &tenancy)?;
        let started = async {
            control.start().await?;
            control.set_defaults(limits).await
        };
        if let Err(error) = started.await {
            control.stop(&[]).await;
            return Err(error);
        }
        Ok(Daemon { tenancy, control, limits, servers: Vec::new(), clients: 0, down: None })
    }

    /// Takes over the daemon of an earlier run of the agent, which may have ended meanwhile.
    fn adopt(&self, daemons: &mut BTreeMap<String, Daemon>, gpu: &str, limits: (Option<i64>, Option<i32>)) {
        if daemons.contains_key(gpu) {
            return;
        }
        let read = fs::read(self.host.root.join(gpu).join(TENANCY)).ok();
        let Some(tenancy) = read.and_then(|text| serde_json::from_slice::<Tenancy>(&text).ok()) else { return };
        if let Ok(control) = self.control(gpu, &tenancy.key) {
            let daemon = Daemon { tenancy, control, limits, servers: Vec::new(), clients: 0, down: None };
            daemons.insert(gpu.to_owned(), daemon);
        }
    }

    fn write_tenancy(&self, gpu: &str, tenancy: &Tenancy) -> Result<(), Error> {
        let folder = self.host.root.join(gpu);
        let write = || {
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("tenancy.new"), serde_json::to_vec(tenancy)?)?;
            fs::rename(folder.join("tenancy.new"), folder.join(TENANCY))
        };
        write().map_err(|error| Error::Tenancy { file: folder.join(TENANCY), error })
    }

    /// Folders of GPUs that have or had shares.
    fn folders(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.host.root).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with("GPU-"))
            .collect()
    }

    async fn mark_ended(&self, daemons: &mut BTreeMap<String, Daemon>, owners: &Owners, now: Instant) {
        for (gpu, daemon) in daemons.iter_mut() {
            if daemon.down.is_some() || daemon.control.pid().is_some() {
                continue;
            }
            let down = Down { owners: owners_of(owners, gpu).cloned().collect(), error: None };
            tracing::warn!(gpu, pods = down.pods(), "MPS daemon has ended");
            // a server without its daemon would keep the GPU from the next one
            daemon.control.stop(&daemon.servers).await;
            (daemon.servers, daemon.clients) = (Vec::new(), 0);
            for notice in notices(&self.host.node, gpu, &down) {
                (self.host.publish)(notice).await;
            }
            daemon.down = Some(Restart { down, failures: 1, at: now + RESTART.after(1) });
        }
    }

    async fn restart_due(&self, daemons: &mut BTreeMap<String, Daemon>, owners: &Owners, now: Instant) {
        // without pods there is nothing to restart: the next container starts a daemon
        daemons.retain(|gpu, daemon| {
            let needed = daemon.down.is_none() || owners_of(owners, gpu).next().is_some();
            if !needed {
                let _ = fs::remove_file(self.host.root.join(gpu).join(TENANCY));
            }
            needed
        });
        for (gpu, daemon) in daemons.iter_mut() {
            let Some(restart) = daemon.down.as_mut().filter(|restart| restart.at <= now) else { continue };
            match self.start(gpu, daemon.tenancy.clone(), daemon.limits).await {
                Ok(started) => {
                    tracing::info!(gpu, "restarted MPS daemon");
                    *daemon = started;
                }
                Err(error) => {
                    tracing::warn!(gpu, %error, "MPS daemon not restarted");
                    restart.failures = restart.failures.saturating_add(1);
                    restart.at = now + RESTART.after(restart.failures);
                    restart.down.error = Some(error.to_string());
                }
            }
        }
    }

    /// The GPU has no MPS share any more.
    async fn remove(&self, daemons: &mut BTreeMap<String, Daemon>, gpu: &str) {
        if let Some(daemon) = daemons.remove(gpu) {
            daemon.control.stop(&daemon.servers).await;
        }
        // a GPU that was taken out has no mode
        let present = (self.host.inventory)().is_none_or(|inventory| inventory.gpu(gpu).is_some());
        if present && let Err(error) = (self.host.set_exclusive)((gpu.to_owned(), false)).await {
            tracing::warn!(gpu, %error, "compute mode not restored");
            return;
        }
        // last: while the folder exists, this is tried again
        match fs::remove_dir_all(self.host.root.join(gpu)) {
            Ok(()) => tracing::info!(gpu, "removed MPS daemon"),
            Err(error) => tracing::warn!(gpu, %error, "folder of MPS daemon not removed"),
        }
    }

    fn publish(&self, daemons: &MutexGuard<'_, BTreeMap<String, Daemon>>) {
        let inventory = (self.host.inventory)();
        let inventory = inventory.as_ref();
        let gpu = |(uuid, daemon): (&String, &Daemon)| {
            let before_volta = inventory.and_then(|i| i.gpu(uuid)).is_some_and(|gpu| gpu.board.before_volta);
            let driver = inventory.map(|inventory| inventory.driver_version.as_str()).unwrap_or_default();
            let down = daemon.down.as_ref().map(|restart| restart.down.clone());
            let max_clients = max_clients(before_volta, driver);
            (uuid.clone(), GpuMps { clients: daemon.clients, max_clients, down })
        };
        send_if_changed(&self.view, daemons.iter().map(gpu).collect());
    }
}

impl Daemon {
    /// Counts servers and clients. A daemon that does not answer is ended, which the next check notices.
    async fn count(&mut self) {
        let counted = async {
            let servers = self.control.servers().await?;
            let clients = self.control.clients(&servers).await?;
            Ok::<_, Error>((servers, clients))
        };
        match counted.await {
            Ok(counted) => (self.servers, self.clients) = counted,
            Err(error) => {
                tracing::warn!(gpu = self.control.gpu, %error, "ending MPS daemon that does not answer");
                self.control.stop(&self.servers).await;
            }
        }
    }
}

/// Containers with shares of a GPU.
fn owners_of<'o>(owners: &'o Owners, gpu: &str) -> impl Iterator<Item = &'o DeviceOwner> {
    let shares = owners.iter().filter(move |(id, _)| id.uuid() == gpu && id.as_str() != gpu);
    shares.map(|(_, owner)| owner).collect::<Vec<_>>().into_iter()
}

/// Makes a share's folders lead to the daemon of a tenant. The runtime follows the links when it mounts them.
fn link(share: &Path, key: &str) -> io::Result<()> {
    fs::create_dir_all(share)?;
    for name in ["pipe", "log"] {
        let (link, new) = (share.join(name), share.join(format!("{name}.new")));
        let target = PathBuf::from("..").join(tenancy::folder(key)).join(name);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => symlink(target, &new)?,
        }
        fs::rename(new, link)?;
    }
    Ok(())
}

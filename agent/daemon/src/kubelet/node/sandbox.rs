//! Which pods run in a sandbox, whose containers do not get the library that limits memory. Pure, except for the wait for a pod.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use gputenancy_crds::{Isolation, Sandbox};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{requests::PodRequests, runtime_classes::RuntimeClasses};
use crate::device::{Device, DeviceOwner, DeviceView, DriverLimits, KubeletView, Owners};

/// How long an allocation waits for the pod that it is for: kubelet and agent watch the same pods, and kubelet may receive one first.
const WAIT: Duration = Duration::from_secs(2);
/// How long a device without the library waits for pods that kubelet has received and the agent not yet: one of them may be a plain one.
const SETTLE: Duration = Duration::from_secs(1);
/// Handlers of gVisor begin so, in any case: its programs use the node's driver in the pod's cgroup.
const WITH_DRIVER_OF_NODE: [&str; 2] = ["runsc", "gvisor"];

/// Finds the pods that run in a sandbox.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    /// Handlers that are sandboxes; `*` at the end stands for any rest.
    pub handlers: Arc<[String]>,
    /// The cluster's classes; none before they are read.
    pub classes: watch::Receiver<Option<RuntimeClasses>>,
    /// The pods of this node; none without the right to read pods.
    pub requests: watch::Receiver<Option<PodRequests>>,
    /// The devices, and the least means that the pool accepts.
    pub view: watch::Receiver<DeviceView>,
    /// What can limit memory.
    pub kubelet: watch::Receiver<KubeletView>,
}

/// The pods that a device may be allocated to now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Starting {
    /// None of them runs in a sandbox.
    Plain,
    /// All of them do; the handler of one.
    Sandboxed(String),
    /// Some do: kubelet does not report which pod an allocation is for.
    Mixed(String),
}

/// Whether the handler is one of these.
pub fn is_sandbox(handlers: &[String], handler: &str) -> bool {
    let matches = |pattern: &String| match pattern.strip_suffix('*') {
        Some(start) => handler.starts_with(start),
        None => handler == pattern,
    };
    handlers.iter().any(matches)
}

/// Decides by the handlers of the sandboxes among the pods; `None` for a pod that runs in none.
pub fn starting(pods: impl IntoIterator<Item = Option<String>>) -> Starting {
    let pods: BTreeSet<Option<String>> = pods.into_iter().collect();
    let plain = pods.contains(&None);
    match pods.into_iter().flatten().next() {
        None => Starting::Plain,
        Some(handler) if plain => Starting::Mixed(handler),
        Some(handler) => Starting::Sandboxed(handler),
    }
}

/// Why kubelet gets no share for a pod that may run in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// Pods with and without a sandbox start at the same time.
    #[error(
        "a pod with a RuntimeClass of handler {0}, which is a sandbox, and a pod without one start at the same time, and kubelet does not report which of them gets the device: start the pod again"
    )]
    Mixed(String),
    /// The sandbox is limited by less than the pool demands.
    #[error(
        "the sandbox of handler {handler} does not get the library that limits memory, so that its memory is limited by {means}, and spec.enforcement.minimum of the GpuPool is {minimum}: run the pod without its RuntimeClass, or use a MIG instance or a whole GPU"
    )]
    BelowMinimum {
        /// Handler of the sandbox.
        handler: String,
        /// The limit that it has.
        means: Isolation,
        /// The least limit of the pool.
        minimum: Isolation,
    },
    /// The class of a pod is not known yet.
    #[error(
        "a pod with RuntimeClass {0} starts, and the agent has not read the RuntimeClasses yet, which decide whether it runs in a sandbox: start the pod again"
    )]
    ClassesUnread(String),
}

/// What limits a pod in a sandbox on this share: the driver by the pod's cgroup in gVisor. A virtual machine such as Kata's has a driver of its own,
/// and of other sandboxes it is not known.
pub fn means(device: &Device, driver: DriverLimits, handler: &str) -> Isolation {
    let begins = |start: &str| handler.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    let in_cgroup = WITH_DRIVER_OF_NODE.into_iter().any(begins);
    let by_driver = driver == DriverLimits::Supported && device.mig.is_none() && in_cgroup;
    if by_driver { Isolation::Driver } else { Isolation::None }
}

/// Whether the library limits the memory of this share in other containers.
pub fn is_limited(device: &Device) -> bool {
    device.share.as_ref().is_some_and(|share| share.limit_mib.is_some())
}

impl Sandboxes {
    fn of_class(&self, class: Option<&str>) -> Option<String> {
        let (classes, class) = (self.classes.borrow(), class?);
        let handler = classes.as_ref().map_or(class, |known| known.handler(class));
        is_sandbox(&self.handlers, handler).then(|| handler.to_owned())
    }

    /// The sandbox of the owner of a share that is limited in other containers.
    pub fn of(&self, device: &Device, owner: &DeviceOwner) -> Option<Sandbox> {
        if !is_limited(device) {
            return None;
        }
        let handler = {
            let requests = self.requests.borrow();
            self.of_class(requests.as_ref()?.class(&owner.namespace, &owner.pod))?
        };
        let enforcement = means(device, self.kubelet.borrow().limiters.driver, &handler);
        Some(Sandbox { handler, enforcement })
    }

    /// The handler of the sandbox for which kubelet allocates these devices of a resource, if it does; or why it gets none.
    pub async fn admit(
        &self,
        resource: &str,
        devices: &[&Device],
        owners: &Owners,
    ) -> Result<Option<String>, NotAdmitted> {
        let Some(device) = devices.iter().find(|device| is_limited(device)) else { return Ok(None) };
        self.wait_for_pod(resource, owners).await;
        let mut starting = self.starting(resource, owners).await?;
        if matches!(starting, Starting::Sandboxed(_)) {
            sleep(SETTLE).await;
            starting = self.starting(resource, owners).await?;
        }
        let handler = match starting {
            Starting::Plain => return Ok(None),
            Starting::Sandboxed(handler) => handler,
            Starting::Mixed(handler) => {
                return Err(NotAdmitted::Mixed(handler));
            }
        };
        let means = means(device, self.kubelet.borrow().limiters.driver, &handler);
        let minimum = self.view.borrow().minimum;
        if means.is_at_least(minimum) {
            return Ok(Some(handler));
        }
        Err(NotAdmitted::BelowMinimum { handler, means, minimum })
    }

    async fn wait_for_pod(&self, resource: &str, owners: &Owners) {
        let mut requests = self.requests.clone();
        let known = |requests: &Option<PodRequests>| {
            requests.as_ref().is_none_or(|known| known.starting(resource, owners).next().is_some())
        };
        // without the pod no sandbox is known of
        let _ = timeout(WAIT, requests.wait_for(known)).await;
    }

    /// The pods that a device may be allocated to now, or why that is not known.
    async fn starting(&self, resource: &str, owners: &Owners) -> Result<Starting, NotAdmitted> {
        let classes: Vec<Option<String>> = {
            let requests = self.requests.borrow();
            let pods = requests.iter().flat_map(|known| known.starting(resource, owners));
            pods.map(|class| class.map(str::to_owned)).collect()
        };
        if let Some(class) = classes.iter().flatten().next()
            && !self.are_classes_known().await
        {
            return Err(NotAdmitted::ClassesUnread(class.clone()));
        }
        Ok(starting(classes.iter().map(|class| self.of_class(class.as_deref()))))
    }

    async fn are_classes_known(&self) -> bool {
        let mut classes = self.classes.clone();
        timeout(WAIT, classes.wait_for(Option::is_some)).await.is_ok_and(|known| known.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use gputenancy_crds::SharingMode;
    use gputenancy_crds::projection::NodePod;
    use serde_json::json;

    use super::*;
    use crate::{
        device::{DeviceId, Limiters, MigIds, Share},
        mps::share::tests::device,
    };

    const R: &str = "gputenancy.io/part";

    fn pod(name: &str, class: Option<&str>, phase: &str) -> NodePod {
        let container = json!({"name": "main", "resources": {"limits": {R: "1"}}});
        serde_json::from_value(json!({
            "metadata": {"namespace": "team-a", "name": name},
            "spec": {"containers": [container], "runtimeClassName": class}, "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn limited(mig: bool) -> Device {
        let whole = device(0, SharingMode::Fraction, Some(1000), None);
        let share = whole.share.clone().map(|share| Share { limit_mib: Some(1000), ..share });
        let mig = mig.then(|| MigIds { gi: 7, ci: 0, start: 0, profile: "1g.10gb".into() });
        Device { mig, share, ..whole }
    }

    fn owner(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() }
    }

    fn sandboxes(
        pods: &[NodePod],
        minimum: Isolation,
        driver: DriverLimits,
    ) -> (Sandboxes, watch::Sender<Option<PodRequests>>) {
        let mut requests = PodRequests::default();
        for pod in pods {
            requests.apply(pod, Instant::now());
        }
        let (send, requests) = watch::channel(Some(requests));
        let classes = [("gvisor", "runsc"), ("plain", "runc")].map(|(n, h)| (n.to_owned(), h.to_owned()));
        let limiters = Limiters { driver, ..Limiters::default() };
        let sandboxes = Sandboxes {
            handlers: ["runsc*", "kata*", "exact"].map(str::to_owned).into(),
            classes: watch::channel(Some(RuntimeClasses(classes.into()))).1,
            requests,
            view: watch::channel(DeviceView { minimum, ..DeviceView::default() }).1,
            kubelet: watch::channel(KubeletView { limiters, ..KubeletView::default() }).1,
        };
        (sandboxes, send)
    }

    #[test]
    fn handlers_match_by_name_or_by_start() {
        let handlers = ["runsc*", "exact"].map(str::to_owned);
        let found =
            ["runsc", "runsc-gpu", "exact", "exactly", "runc", ""].map(|handler| is_sandbox(&handlers, handler));
        assert_eq!(found, [true, true, true, false, false, false]);
    }

    #[test]
    fn pods_that_start_are_sandboxed_when_all_are() {
        let runsc = || Some("runsc".to_owned());
        assert_eq!(starting([]), Starting::Plain);
        assert_eq!(starting([None, None]), Starting::Plain);
        assert_eq!(starting([runsc(), runsc()]), Starting::Sandboxed("runsc".into()));
        assert_eq!(starting([None, runsc()]), Starting::Mixed("runsc".into()));
    }

    #[test]
    fn driver_limits_gvisor_by_its_cgroup_and_no_other_sandbox() {
        let supported = DriverLimits::Supported;
        assert_eq!(means(&limited(false), supported, "runsc"), Isolation::Driver);
        assert_eq!(means(&limited(false), supported, "gVisor-gpu"), Isolation::Driver);
        for other in ["kata-qemu", "Kata", "my-kata", "io.containerd.kata.v2", "quark", "runs", "", "rünsc"] {
            assert_eq!(means(&limited(false), supported, other), Isolation::None, "{other}");
        }
        assert_eq!(means(&limited(true), supported, "runsc"), Isolation::None);
        assert_eq!(means(&limited(false), DriverLimits::NotSupported, "runsc"), Isolation::None);
    }

    #[tokio::test]
    async fn share_is_allocated_to_a_sandbox_only_if_the_pool_accepts_its_means() {
        let device = limited(false);
        let admit = async |pods: &[NodePod], minimum, driver| {
            let (sandboxes, _send) = sandboxes(pods, minimum, driver);
            sandboxes.admit(R, &[&device], &Owners::new()).await
        };
        let (none, not_supported) = (Isolation::None, DriverLimits::NotSupported);
        let sandboxed = pod("s", Some("gvisor"), "Pending");
        let plain = pod("p", Some("plain"), "Pending");
        let runsc = || Ok(Some("runsc".to_owned()));
        assert_eq!(admit(std::slice::from_ref(&sandboxed), none, not_supported).await, runsc());
        assert_eq!(admit(std::slice::from_ref(&plain), Isolation::Software, not_supported).await, Ok(None));
        let refused =
            admit(std::slice::from_ref(&sandboxed), Isolation::Software, not_supported).await.unwrap_err().to_string();
        assert!(
            refused.contains("limited by None, and spec.enforcement.minimum of the GpuPool is Software"),
            "{refused}"
        );
        assert_eq!(
            admit(std::slice::from_ref(&sandboxed), Isolation::Software, DriverLimits::Supported).await,
            runsc()
        );
        let mixed = admit(&[sandboxed.clone(), plain.clone()], none, not_supported).await.unwrap_err().to_string();
        assert!(mixed.contains("handler runsc") && mixed.contains("start the pod again"), "{mixed}");
        // one that runs has its device
        let running = pod("s", Some("gvisor"), "Running");
        assert_eq!(admit(&[running, plain], none, not_supported).await, Ok(None));
        // nor does one start whose init container runs, of which kubelet reports no device
        let init: NodePod = serde_json::from_value(json!({
            "metadata": {"namespace": "team-a", "name": "i"},
            "spec": {
                "initContainers": [{"name": "init", "resources": {"limits": {R: "1"}}}],
                "containers": [{"name": "main"}], "runtimeClassName": "gvisor",
            },
            "status": {"phase": "Pending", "startTime": "2026-11-27T12:00:00Z"},
        }))
        .unwrap();
        assert_eq!(admit(&[init, pod("p", None, "Pending")], none, not_supported).await, Ok(None));
        // a class that is not known counts as its handler
        assert_eq!(
            admit(&[pod("k", Some("kata-qemu"), "Pending")], none, not_supported).await,
            Ok(Some("kata-qemu".into()))
        );
    }

    #[tokio::test]
    async fn allocation_waits_for_the_pod_that_kubelet_has_seen_first() {
        let (sandboxes, send) = sandboxes(&[], Isolation::None, DriverLimits::NotSupported);
        let device = limited(false);
        let (devices, owners) = ([&device], Owners::new());
        let arrives = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            send.send_modify(|known| {
                assert!(known.as_mut().unwrap().apply(&pod("s", Some("gvisor"), "Pending"), Instant::now()));
            });
        };
        let (admitted, ()) = tokio::join!(sandboxes.admit(R, &devices, &owners), arrives);
        assert_eq!(admitted, Ok(Some("runsc".to_owned())));
        // the second container of a pod that has one device of two
        let owners = [(DeviceId::share("GPU-a", 1), owner("s"))].into();
        assert_eq!(sandboxes.admit(R, &devices, &owners).await, Ok(None), "it has all of its devices");
        assert_eq!(sandboxes.of(&device, &owner("s")).map(|sandbox| sandbox.handler).as_deref(), Some("runsc"));
        assert_eq!(sandboxes.of(&device, &owner("other")), None);
        let whole = Device { share: None, ..device.clone() };
        assert_eq!(sandboxes.of(&whole, &owner("s")), None, "nothing is limited there");
    }

    #[tokio::test]
    async fn device_without_the_library_waits_for_plain_pods_that_kubelet_has_seen_first() {
        let (sandboxes, send) =
            sandboxes(&[pod("s", Some("gvisor"), "Pending")], Isolation::None, DriverLimits::NotSupported);
        let device = limited(false);
        let (devices, owners) = ([&device], Owners::new());
        let arrives = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            send.send_modify(|known| {
                assert!(known.as_mut().unwrap().apply(&pod("p", None, "Pending"), Instant::now()));
            });
        };
        let (admitted, ()) = tokio::join!(sandboxes.admit(R, &devices, &owners), arrives);
        let refused = admitted.unwrap_err().to_string();
        assert!(refused.contains("handler runsc") && refused.contains("start the pod again"), "{refused}");
    }

    #[tokio::test]
    async fn pod_with_a_class_gets_a_limited_share_only_once_the_classes_are_read() {
        let admit = async |class: Option<&str>, arrives: bool| {
            let (known, _send) = sandboxes(&[pod("s", class, "Pending")], Isolation::None, DriverLimits::NotSupported);
            let classes = watch::Sender::new(None);
            let sandboxes = Sandboxes { classes: classes.subscribe(), ..known };
            let read = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                if arrives {
                    classes.send_replace(Some(RuntimeClasses([("a".to_owned(), "runsc".to_owned())].into())));
                }
            };
            let device = limited(false);
            let (devices, owners) = ([&device], Owners::new());
            tokio::join!(sandboxes.admit(R, &devices, &owners), read).0
        };
        assert_eq!(admit(Some("a"), true).await, Ok(Some("runsc".into())));
        let refused = admit(Some("a"), false).await.unwrap_err().to_string();
        assert!(refused.contains("RuntimeClass a") && refused.contains("has not read the RuntimeClasses"), "{refused}");
        assert_eq!(admit(None, false).await, Ok(None));
    }
}
